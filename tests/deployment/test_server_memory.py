"""A server in a process of its own, its sites behind Flower's messages: no number of a row is in its memory.

The rows are in the process of the test, at the desks of the sites. The server has its own, and carries messages to the desks as
Flower's grid would. When the fit is done, and everything it left behind is still there, its whole memory is read from outside.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a deployment runs on Flower: pip install 'compfed[flower]'")
if not sys.platform.startswith("linux"):
    pytest.skip("the memory of another process is read through /proc", allow_module_level=True)

from federation.flower.fake_grid import written

import compfed as cf
from compfed.deployment.open_desk import OpenDesk
from compfed.federation import InProcess

SERVER = """
import gc, sys
gc.disable()
from federation.flower.fake_grid import NOW, FakeGrid
from compfed.deployment.courier import carried
from flwr.app import Message
import compfed as cf

class ToDesks(FakeGrid):
    def _deliver(self, message):
        node = message.metadata.dst_node_id
        what = "reply" if message.metadata.message_type == "train" else "register"
        kept.append(message)
        reply = Message(carried(self.settings[node], what, message.content), reply_to=message)
        kept.append(reply)
        self.replies[message.metadata.message_id] = reply

kept = []
federation = cf.flower.connect(ToDesks(sys.argv[2:]), sites=2, folder=sys.argv[1], patience=NOW)
model = cf.FederatedLogisticRegressionCV(n_alphas=3, eps=0.3, cv=3).fit_federation(federation)
print(model.coef_.tobytes().hex(), model.trace_["objective"][-1].tobytes().hex(), flush=True)
sys.stdin.read()
"""


def writable(pid: int) -> Iterator[bytes]:
    """The memory that a process can have written to, a region at a time."""
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if found:
                start, stop = (int(at, 16) for at in found.groups())
                try:
                    memory.seek(start)
                    yield memory.read(stop - start)
                except (OSError, ValueError, OverflowError):  # a guard page, or the kernel's own
                    continue


def test_no_number_of_a_row_is_in_the_memory_of_the_server(tmp_path):
    rng = np.random.default_rng(11)
    A = [rng.standard_normal((m, 3)) for m in (12, 15)]
    y = [(a @ [1.0, -1.0, 0.0] + 0.5 * rng.standard_normal(len(a)) > 0).astype(float) for a in A]
    sites = cf.data.from_arrays(A, y, ["north", "south"], columns=["age", "dose", "bmi"])
    first, second = written(tmp_path, sites)
    numbers = {value.tobytes() for a in A for value in a[:, 0]}
    numbers |= {repr(float(value))[:12].encode() for a in A for value in a[:3, 1]}  # also as text
    with OpenDesk(first) as one, OpenDesk(second) as other:
        command = [sys.executable, "-c", SERVER, str(tmp_path / "run"), one.place, other.place]
        path = [str(Path(__file__).parents[1]), *sys.path]
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": ":".join(path)}
        )
        try:
            assert server.stdout is not None
            coef, objective = (bytes.fromhex(part) for part in server.stdout.readline().decode().split())
            regions = list(writable(server.pid))
        finally:
            server.communicate(b"", timeout=60)
    here = cf.FederatedLogisticRegressionCV(n_alphas=3, eps=0.3, cv=3).fit_federation(InProcess(sites))
    assert coef == here.coef_.tobytes()
    assert any(coef[:8] in region for region in regions)  # what is there is found
    assert any(objective in region for region in regions)
    assert any(here.communication_.rounds and b"ValueAndGradient" in region for region in regions)
    found = [number for number in numbers if any(number in region for region in regions)]
    assert found == []
