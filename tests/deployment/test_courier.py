"""The process that Flower starts for a message carries it to the desk of the site, and computes nothing itself."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a deployment runs on Flower: pip install 'compfed[flower]'")

from federation.flower.fake_grid import written
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import compfed as cf
from compfed.deployment import courier
from compfed.deployment.open_desk import OpenDesk
from compfed.federation import Curvature, Describe, ValueAndGradient
from compfed.federation.flower import client_app
from compfed.federation.flower.records import from_records, to_records
from compfed.federation.messages import pack, to_bytes, unpack
from compfed.federation.view import View

VIEW = View(cf.losses.Squared())


@pytest.fixture
def site(tmp_path) -> Path:
    rng = np.random.default_rng(1)
    sites = cf.data.from_arrays([rng.standard_normal((9, 3))], [rng.standard_normal(9)], ["north"])
    return written(tmp_path, sites, '[refuses]\nquestions = ["Curvature"]\n')[0]


def message(run: str, *questions) -> Message:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    return Message(to_records({"run": run, "number": 1, "after": 0}, pack(((), questions))), 100, "train")


def told(reply: RecordDict) -> tuple[dict, bytes]:
    envelope, packed = from_records(reply)
    assert packed is not None
    return {key: value for key, value in envelope.items() if key != "run"}, to_bytes(packed)


def test_the_desk_says_what_this_process_would_have_said(site):
    """Also where no desk is open, or it closes: the answer is worked out on the spot."""
    ask = (Describe(), ValueAndGradient(VIEW, np.ones((2, 3))), Curvature(VIEW, np.ones(3), np.arange(2)))
    config: dict[str, Any] = {"site-config": str(site)}
    here = client_app()(message("a", *ask), Context(1, 100, config, RecordDict(), {})).content
    with OpenDesk(site) as desk:
        there = Context(1, 100, {**config, "desk": desk.place}, RecordDict(), {})
        carried = courier.carried(desk.place, "reply", message("b", *ask).content)
        assert told(carried) == told(here)
        assert unpack(from_records(carried)[1])[2].reason.startswith("site 'north' refuses Curvature")  # pyright: ignore
        assert told(courier.client_app()(message("c", *ask), there).content) == told(here)
        assert from_records(courier.carried(desk.place, "register", RecordDict()))[0]["name"] == "north"
        assert Path(desk.place).parent.stat().st_mode & 0o077 == 0
    assert told(courier.client_app()(message("d", *ask), there).content) == told(here)


def test_a_table_that_changed_is_read_again(site):
    with OpenDesk(site) as desk:
        rows = []
        for run in ("a", "b"):
            reply = from_records(courier.carried(desk.place, "reply", message(run, Describe()).content))[1]
            assert reply is not None
            rows.append(unpack(reply)[0].rows)
            lines = (site.parent / "rows.csv").read_text()
            (site.parent / "rows.csv").write_text(lines + lines.splitlines()[-1] + "\n")
    assert rows == [9, 10]


def test_whatever_comes_to_the_desk_it_stays_open(site):
    with OpenDesk(site) as desk:
        for nonsense in (b"", b"\x00", b"\xff" * 64):
            with socket.socket(socket.AF_UNIX) as end:
                end.connect(desk.place)
                end.sendall(nonsense)
                end.shutdown(socket.SHUT_WR)
                assert courier.received(end) == b""
        assert from_records(courier.carried(desk.place, "register", RecordDict()))[0]["site"] == 0


def test_the_process_of_a_message_imports_flower_and_nothing_that_computes():
    """Flower itself imports NumPy; whatever else is imported is paid by every message at every site."""
    code = (
        "import sys, flwr.clientapp, flwr.app; before = set(sys.modules); import compfed.deployment.courier as c; c.client_app()\n"
        "print(*sorted(m for m in set(sys.modules) - before if m.partition('.')[0] not in sys.stdlib_module_names))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [m for m in said if not m.startswith("flwr.")] == [
        "compfed",
        "compfed.deployment",
        "compfed.deployment.courier",
    ]


ROUND = """
import sys
import jax
import numpy as np
import compfed as cf
from compfed.deployment.site_node import compiled
from compfed.federation.flower import SiteSettings
from compfed.federation.view import Job, View

hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
settings = SiteSettings.read(sys.argv[1])
for name, value in compiled(settings).items():
    jax.config.update(name, value)
job = Job(0, cf.algorithms.DecoupledProx(eta=0.1, eta_g=1.0, tau=3), cf.regularisers.L1(0.1), View(cf.losses.Squared()),
          np.zeros(3), 0, None, 9, True)
u, finite = settings.rows().take_part(job, 0, 0, {"x": np.zeros(3)})
print(hits.count("/jax/compilation_cache/cache_hits"), hits.count("/jax/compilation_cache/cache_misses"))
print(*(value.tobytes().hex() for value in u.values()))
"""


@pytest.mark.thorough  # two processes that compile
def test_local_steps_that_were_compiled_once_at_a_site_are_found_by_another_process(site):
    said = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", ROUND, str(site)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        counts, numbers = done.stdout.splitlines()
        said.append((*map(int, counts.split()), numbers))
    (_, missed, first), (hits, missed_again, second) = said
    assert missed > 0
    assert (hits, missed_again) == (missed, 0)
    assert first == second
