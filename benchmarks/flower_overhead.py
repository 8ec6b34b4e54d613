"""What a round over Flower costs beyond Flower's own: an empty app and compfed's, in turn, on the same processes.

python benchmarks/flower_overhead.py [--turns 6]

A SuperLink and four nodes on this machine, TLS and node keys. The empty app sends an empty message to every node, which
replies with an empty one, and looks for replies as often as compfed does; its rounds are Flower's floor. compfed answers
questions about a table (a lasso-penalised logistic regression) and does rounds of local steps (DecoupledProx). A round is
what lies between two messages whose last replies are in, whatever the server does in between included.

Flower starts a process per message, and four of them share this machine's cores: a round is as long as its processor seconds
make it, and seconds of the wall vary more from turn to turn than what is to be seen. So the empty app runs before and after
each of ours, and both seconds are counted: those that passed, and those in which a processor was busy (Linux only).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from compfed.data import bundled
from compfed.deployment.app_folder import APP
from compfed.deployment.loopback import Loopback
from compfed.deployment.operator import register, run
from compfed.deployment.processes import program

ROUNDS = 6
EMPTY = "Flower alone"
SERVER = """\
import json, time
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 4:
        time.sleep(0.2)
    ends = []
    for _ in range(int(context.run_config["rounds"]) + 1):
        waiting = set(grid.push_messages([Message(RecordDict(), node, MessageType.TRAIN) for node in nodes]))
        while waiting:
            waiting -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(list(waiting))}
            time.sleep(0.2 if waiting else 0.0)
        ends.append(time.time())
    with open(context.run_config["out"], "w") as file:
        json.dump(ends, file)
"""
SITE = """\
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def answer(message, context):
    return Message(RecordDict(), reply_to=message)
"""
FITS = {
    "table questions": ("FederatedLogisticRegression", "alpha = 0.01\ntol = 1e-10"),
    "local steps": ("FederatedLogisticRegression", f'alpha = 0.01\nalgorithm = "DecoupledProx"\nmax_rounds = {ROUNDS}'),
}


def empty_app(folder: Path) -> Path:
    text = APP["pyproject.toml"].replace("compfed-federation", "empty-app")
    text = text.replace('settings = ""\nfolder = ""', 'rounds = 1\nout = ""')
    files = {"pyproject.toml": text, "federation_app/__init__.py": "", "federation_app/server.py": SERVER}
    for name, content in {**files, "federation_app/site.py": SITE}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


class Busy(threading.Thread):
    """Seconds in which a processor worked, up to any moment since the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.times: list[float] = []
        self.seconds: list[float] = []

    def run(self) -> None:
        while True:
            user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
            self.times.append(time.time())
            self.seconds.append((user + nice + system) / os.sysconf("SC_CLK_TCK"))
            time.sleep(0.05)

    def until(self, moments: list[float]) -> list[float]:
        return np.interp(moments, self.times, self.seconds).tolist()


def empty_rounds(federation: Loopback, app: Path, out: Path) -> list[float]:
    config = f'rounds={ROUNDS} out="{out}"'
    subprocess.run(
        [program("flwr"), "run", str(app), "compfed", "--stream", "-c", config], env=register(federation.settings),
        capture_output=True, check=True,
    )  # fmt: skip
    return json.loads(out.read_text())


def our_rounds(federation: Loopback, kind: str, out: Path) -> list[float]:
    estimator, parameters = FITS[kind]
    path = federation.home / "federation.toml"
    head, _, rest = path.read_text().partition("[parameters]")
    tail = rest[rest.index("[network]") :]
    lines = [line if not line.startswith("estimator") else f'estimator = "{estimator}"' for line in head.splitlines()]
    path.write_text("\n".join([*lines, "[parameters]", parameters, "", tail]))
    run(federation.settings, out)
    ends: dict[int, float] = {}
    for said in map(json.loads, (out / "messages.jsonl").read_text().splitlines()):
        ends[said["number"]] = max(said["time"], ends.get(said["number"], 0.0))
    return [ends[number] for number in sorted(ends)]


def between(ends: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def measured(turns: int) -> dict[str, list[list[float]]]:
    """By contestant and turn, when each round ended."""
    ends: dict[str, list[list[float]]] = {EMPTY: [], **{kind: [] for kind in FITS}}
    with (
        tempfile.TemporaryDirectory() as folder,
        Loopback(Path(folder) / "f", bundled.breast_cancer().federation()) as f,
    ):
        app = empty_app(Path(folder) / "empty")
        f.start()
        for turn in range(turns):
            for kind in FITS:
                ends[EMPTY].append(empty_rounds(f, app, Path(folder) / f"empty-{turn}-{len(ends[EMPTY])}.json"))
                ends[kind].append(our_rounds(f, kind, Path(folder) / f"{kind} {turn}".replace(" ", "-")))
            print(f"turn {turn + 1} of {turns}", flush=True)
        ends[EMPTY].append(empty_rounds(f, app, Path(folder) / "empty-last.json"))
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=6)
    turns = parser.parse_args().turns
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever stops this stops all of it
    busy = Busy()
    busy.start()
    ends = measured(turns)
    for what, clock in (("seconds", list), ("busy seconds", busy.until)):
        per_turn = {kind: [statistics.mean(between(clock(turn))) for turn in all_] for kind, all_ in ends.items()}
        floor = per_turn[EMPTY]
        for at, (kind, means) in enumerate(per_turn.items()):
            every = sorted(second for turn in ends[kind] for second in between(clock(turn)))
            line = f"{kind:16s} {len(every):3d} rounds  {statistics.mean(every):5.2f} {what} ({every[0]:.2f} to {every[-1]:.2f})"
            if kind != EMPTY:  # the empty app ran just before and just after each of ours
                near = [(floor[len(FITS) * t + at - 1] + floor[len(FITS) * t + at]) / 2 for t in range(turns)]
                ratios = [mean / empty for mean, empty in zip(means, near, strict=True)]
                line += f"  {statistics.mean(means) / statistics.mean(floor):.3f} x Flower alone"
                line += f" (by turn {min(ratios):.2f} to {max(ratios):.2f})"
            print(line)


if __name__ == "__main__":
    main()
