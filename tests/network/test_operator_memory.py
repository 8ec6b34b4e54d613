"""An operator in a process of its own, sites in another: no number of a row is in the operator's memory.

The rows are in the process of the test. The operator's process sends its messages through a pipe. When the fit is done,
and nothing that it left behind has been freed, its whole memory is read from outside.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")
if not sys.platform.startswith("linux"):
    pytest.skip("the memory of another process is read through /proc", allow_module_level=True)

from network.faults import writable
from network.memory_link import MemoryLink, furnish, key_of

import compfed as cf
from compfed.federation import InProcess
from compfed.network import keys

pytestmark = pytest.mark.thorough  # run by `make test-federation`

OPERATOR = """
import gc, itertools, struct, sys
from pathlib import Path
gc.disable()
import compfed as cf
from compfed.network import keys
from compfed.network.flower import Reply

class PipeLink:
    ids, waiting, kept = itertools.count(), {}, []
    def open(self): pass
    def reset(self): pass
    def close(self): pass
    def connected(self): return dict.fromkeys(roster, "1")
    def push(self, messages, ttl):
        taken = {}
        for name, data in messages.items():
            sys.stdout.buffer.write(struct.pack("<II", list(roster).index(name) + 1, len(data)) + data)
            sys.stdout.buffer.flush()
            (size,) = struct.unpack("<I", sys.stdin.buffer.read(4))
            reply = sys.stdin.buffer.read(size)
            taken[name] = str(next(self.ids))
            self.waiting[taken[name]] = Reply(reply)
            self.kept += [data, reply]
        return taken
    def pull(self, ids): return {name: self.waiting.pop(name) for name in list(ids) if name in self.waiting}

roster = {name: keys.parse_public_line(line, name) for name, line in zip(("north", "south", "west"), sys.argv[2:])}
federation = cf.network.RemoteFederation(PipeLink(), roster, folder=Path(sys.argv[1]))
model = cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=2).fit_federation(federation)
done = model.coef_.tobytes()
sys.stdout.buffer.write(struct.pack("<II", 0, len(done)) + done)
sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""


def serve(process: Any, link: MemoryLink) -> bytes:
    """Answer for the sites until the operator sends its model."""
    while True:
        place, size = struct.unpack("<II", process.stdout.read(8))
        data = process.stdout.read(size)
        if place == 0:
            return data
        reply = link.service(list(link.paths)[place - 1]).reply(data)
        process.stdin.write(struct.pack("<I", len(reply)) + reply)
        process.stdin.flush()


@pytest.mark.parametrize("secure_sum", [False, True])
def test_no_number_of_a_row_is_in_the_memory_or_the_files_of_the_operator(secure_sum, tmp_path):
    rng = np.random.default_rng(11)
    A = [rng.standard_normal((m, 3)) for m in (12, 15, 14)]
    y = [(a @ [1.0, -1.0, 0.0] + 0.5 * rng.standard_normal(len(a)) > 0).astype(float) for a in A]
    sites = cf.data.from_arrays(A, y, ["north", "south", "west"], columns=["age", "dose", "bmi"])
    paths = furnish(tmp_path / "sites", sites, secure_sum=secure_sum)
    numbers = {value.tobytes() for a in A for value in a[:, 0]}
    numbers |= {repr(float(value))[:12].encode() for a in A for value in a[:3, 1]}  # also as text
    lines = [keys.public_line(key_of(path).public_key()) for path in paths]
    command = [sys.executable, "-c", OPERATOR, str(tmp_path / "run"), *lines]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        coef = serve(process, MemoryLink(paths))
        regions = list(writable(process.pid))
    finally:
        process.communicate(b"", timeout=60)
    here = cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=2).fit_federation(InProcess(sites, exact=True))
    assert coef == here.coef_.tobytes()
    # what should be there is found: the search works
    assert any(coef[:8] in region for region in regions)
    assert any(b"compfed.federation.queries.evaluate:Evaluate" in region for region in regions)
    assert [number for number in numbers if any(number in region for region in regions)] == []
    files = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files
    assert [number for number in numbers if any(number in data for data in files)] == []
