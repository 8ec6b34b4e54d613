"""Seconds a round over a network: an empty app of Flower on SuperNodes, and compfed, in turns on this machine.

python benchmarks/network.py [--turns 3] [--sites 16 50] [--large] [--quick] [--soak 300]

A SuperLink and four sites, TLS and a key per site, as processes on this machine. Flower's empty app sends an empty message
to every node, which replies with an empty one: its rounds are the floor of a Flower app. compfed runs the fits that its
users run, under the default policy: a lasso-penalised logistic regression (small messages) and its cross-validation. A round
lies between the last replies to two messages, the computation of the operator included.

--sites N...  also compfed with N sites on this machine, if its memory is enough: a site takes 250 MB.
--large       also messages of 20 MB each way.
--quick       instead: compfed alone, with three sites and small messages, once: does this script work?
--soak N      instead: N fits over one running federation; memory and open files of every process.

`network_clients.py` measures how many sites one SuperLink serves.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from network_usage import cpu_seconds, memory, memory_available, open_files

import compfed as cf
from compfed.cli.demo import Loopback, end_process, free_port, wait_for_port
from compfed.data import Sites
from compfed.federation import Evaluate, ask
from compfed.federation.spec import ObjectiveSpec
from compfed.network import keys

ROUNDS = 6  # of the empty app
ROWS, COLUMNS = 100, 10  # of a site
SITE_MEMORY = 260.0  # MB
FLOWER = "Flower, empty app"
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "empty-app"
version = "1.0.0"
description = "An empty app"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "compfed"

[tool.flwr.app.components]
serverapp = "empty_app.server:app"
clientapp = "empty_app.site:app"

[tool.flwr.app.config]
rounds = 1
out = ""
"""
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


# --- Flower alone ---


def flower_rounds(folder: Path) -> list[float]:
    """Seconds of the rounds of an empty app on four SuperNodes, TLS and node keys."""
    port = free_port()
    address, key_folder, app = f"127.0.0.1:{port}", folder / "keys", folder / "app"
    keys.make_keys(key_folder, "127.0.0.1")
    for name, text in {
        "pyproject.toml": PROJECT,
        "empty_app/__init__.py": "",
        "empty_app/server.py": SERVER,
        "empty_app/site.py": SITE,
    }.items():
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text(text)
    started: list[subprocess.Popen[Any]] = []

    def start(command: list[str], home: str) -> subprocess.Popen[Any]:
        env = _flower_environment(folder / home)
        with (folder / f"{home}.log").open("ab") as log:
            process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        started.append(process)
        return process

    try:
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        tls = [str(key_folder / word) if not word.startswith("--") else word for word in tls]
        link = start(
            [_program("flower-superlink"), *tls, "--enable-supernode-auth", "--host", "127.0.0.1", "--port", str(port)],
            "superlink",
        )
        wait_for_port(port, link)
        env = _flower_environment(folder / "operator")
        text = f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "{address}"\n'
        text += f'root-certificates = "{key_folder / "ca.crt"}"\n'
        (folder / "operator" / "config.toml").write_text(text)
        for i in range(4):
            path, key = folder / f"node{i}.key", keys.new_identity()
            keys.write_identity(path, key)
            path.with_suffix(".pub").write_text(keys.public_line(key.public_key()) + "\n")
            subprocess.run(
                [_program("flwr"), "supernode", "register", str(path.with_suffix(".pub")), "bench"],
                env=env,
                check=True,
                capture_output=True,
            )
            command = [
                "--root-certificates",
                str(key_folder / "ca.crt"),
                "--superlink",
                address,
                "--auth-supernode-private-key",
                str(path),
            ]
            start([_program("flower-supernode"), *command, "--port", str(free_port())], f"node{i}")
        out = folder / "ends.json"
        config = f'rounds={ROUNDS} out="{out}"'
        subprocess.run(
            [_program("flwr"), "run", str(app), "bench", "--stream", "-c", config],
            env=env,
            check=True,
            capture_output=True,
        )
        end = time.monotonic() + 60
        while not out.exists() and time.monotonic() < end:
            time.sleep(0.5)
        return _between(json.loads(out.read_text()))
    finally:
        for process in reversed(started):
            family = _descendants(process.pid)
            end_process(process)
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _flower_environment(home: Path) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    switches = dict.fromkeys(("FLWR_DISABLE_UPDATE_CHECK", "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"), "1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **switches, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(home), "PATH": path}


def _descendants(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True).stdout
    children: dict[int, list[int]] = {}
    for child, parent in (map(int, line.split()) for line in listed.splitlines()):
        children.setdefault(parent, []).append(child)
    found = [pid]
    for known in found:
        found += children.get(known, [])
    return found[1:]


# --- compfed ---


@contextlib.contextmanager
def timed_federation(federation: Loopback) -> Iterator[tuple[Any, list[float]]]:
    """A connection whose list gains the time at which each message was answered."""
    with cf.network.connect(federation.home) as connection:
        ends: list[float] = []
        exchange = connection.exchange

        def timed(requests: Any) -> Any:
            sums = exchange(requests)
            ends.append(time.time())
            return sums

        connection.exchange = timed
        yield connection, ends


def small(connection: Any) -> None:
    cf.FederatedLogisticRegression(alpha=0.02, tol=1e-8).fit_federation(connection)


def cross_validation(connection: Any) -> None:
    cf.FederatedLogisticRegressionCV().fit_federation(connection)


def large(connection: Any) -> None:
    """20 MB each way: the gradients at 2,600 models of 1,000 coefficients."""
    x = np.random.default_rng(0).standard_normal((2600, 1000))
    for _ in range(4):
        x = x + 1e-3
        ask(connection, Evaluate(ObjectiveSpec(cf.losses.Squared()), x))


def our_rounds(federation: Loopback, fit: Callable[[Any], None]) -> list[float]:
    with timed_federation(federation) as (connection, ends):
        fit(connection)
    return _between(ends)


def _between(ends: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(ends)]


def table(sites: int) -> Sites:
    """A table that every rule of the default policy lets through, with as many rows at every site."""
    rng = np.random.default_rng(0)
    w = np.r_[1.5, -1.0, 0.5, np.zeros(COLUMNS - 3)]
    features = [rng.standard_normal((ROWS, COLUMNS)) for _ in range(sites)]
    return cf.data.from_arrays(
        features, [(1 / (1 + np.exp(-A @ w)) > rng.random(ROWS)).astype(float) for A in features]
    )


def wide(sites: int) -> Sites:
    rng = np.random.default_rng(0)
    return cf.data.from_arrays(
        [rng.standard_normal((50, 1000)) for _ in range(sites)], [rng.standard_normal(50) for _ in range(sites)]
    )


def show(name: str, turns: list[list[float]]) -> float:
    """A line: the mean of all rounds, the means by turn; returns the mean."""
    means = [statistics.mean(turn) for turn in turns]
    every = [second for turn in turns for second in turn]
    print(
        f"{name:40s} {len(every):4d} rounds  mean {statistics.mean(every):6.2f} s  by turn {min(means):.2f} to {max(means):.2f}",
        flush=True,
    )
    return statistics.mean(every)


def compare(turns: int) -> None:
    found: dict[str, list[list[float]]] = {}
    for turn in range(turns):
        with tempfile.TemporaryDirectory() as folder:
            found.setdefault(FLOWER, []).append(flower_rounds(Path(folder)))
        with tempfile.TemporaryDirectory() as folder, Loopback(Path(folder) / "f", table(4)) as federation:
            federation.start()
            our_rounds(federation, small)  # sites start and read their tables meanwhile
            for name, fit in (("compfed, small messages", small), ("compfed, cross-validation", cross_validation)):
                found.setdefault(name, []).append(our_rounds(federation, fit))
        print(f"turn {turn + 1} of {turns}", flush=True)
    means = {name: show(name, rounds) for name, rounds in found.items()}
    for name in list(found)[1:]:
        ratios = [
            statistics.mean(f) / statistics.mean(ours) for f, ours in zip(found[FLOWER], found[name], strict=True)
        ]
        print(
            f"{name}: {means[FLOWER] / means[name]:.1f} times faster than {FLOWER} (by turn {min(ratios):.1f} to {max(ratios):.1f})"
        )


def many_sites(sites: int, turns: int, cross_validate: bool = True) -> None:
    if (needed := SITE_MEMORY * (sites + 2)) > memory_available():
        print(f"compfed, {sites} sites: left out. They need {needed / 1e3:.0f} GB of memory.")
        return
    names = [f"site-{i}" for i in range(sites)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Loopback(Path(folder) / "f", table(sites), names) as federation,
    ):
        federation.start()
        our_rounds(federation, small)
        superlink = federation.processes["superlink"].pid
        before = cpu_seconds(superlink)
        rounds = [our_rounds(federation, small) for _ in range(turns)]
        used = (cpu_seconds(superlink) - before) / sum(
            len(each) + 2 for each in rounds
        )  # and the first message, and enrolments
        show(f"compfed, small messages, {sites} sites", rounds)
        print(f"{'':40s} SuperLink {1e3 * used:.0f} ms of processor a message, {1e3 * used / sites:.1f} ms a site")
        if cross_validate:
            show(f"compfed, cross-validation, {sites} sites", [our_rounds(federation, cross_validation)])


def large_messages(turns: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Loopback(Path(folder) / "f", wide(4)) as federation:
        federation.start()
        our_rounds(federation, large)
        show("compfed, 20 MB each way, 4 sites", [our_rounds(federation, large) for _ in range(turns)])


def soak(fits: int) -> None:
    """Many fits over one running federation: what happens to memory and open files."""
    with tempfile.TemporaryDirectory() as folder, Loopback(Path(folder) / "f", table(4)) as federation:
        federation.start()
        began, first = time.monotonic(), None
        lasso = cf.FederatedLasso(alpha=0.01)
        with cf.network.connect(federation.home) as connection:
            for k in range(1, fits + 1):
                coef = lasso.fit_federation(connection).coef_.copy()
                first = coef if first is None else first
                assert np.array_equal(coef, first), f"fit {k} gave other coefficients"
                if k in (1, 50) or k % 50 == 0:
                    pids = {"operator": os.getpid(), **{name: p.pid for name, p in federation.processes.items()}}
                    usage = "  ".join(
                        f"{name} {memory(pid):.0f} MB {open_files(pid)} files" for name, pid in pids.items()
                    )
                    print(f"fit {k:4d}  {time.monotonic() - began:5.0f} s  {usage}", flush=True)
        pids = [p.pid for p in federation.processes.values()]
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    print(f"processes left behind: {left or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sites", type=int, nargs="+", default=[], metavar="N")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--soak", type=int, metavar="FITS")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever stops this stops all of it
    if args.soak:
        soak(args.soak)
        return
    if args.quick:
        many_sites(3, 1, cross_validate=False)
        return
    compare(args.turns)
    for sites in args.sites:
        many_sites(sites, args.turns)
    if args.large:
        large_messages(args.turns)


if __name__ == "__main__":
    main()
