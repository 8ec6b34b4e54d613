"""How many sites one SuperLink serves: light sites, which sign and reply as a site does and compute nothing.

python benchmarks/network_clients.py [--sites 4 16 50 100 200] [--kilobytes 1 1000] [--messages 8] [--limit] [--superlinks 2]

A SuperLink as `compfed federation serve` starts it, the operator's `RemoteFederation` in this process, and one process in which
every light site is a thread with a connection of its own. A site enrols, and replies to `Evaluate` with words of a known value;
the sum over the sites is compared with the exact one. Everything is on loopback addresses of this machine, and ends by itself.

--limit         instead: a site that is slow, one that never replies, and strangers who take all connections.
--superlinks N  instead: N SuperLinks side by side, with the sites dealt to them: what more processes would give.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import queue
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from network_usage import cpu_seconds, memory

import compfed as cf
from compfed.cli.demo import end_process, free_port, wait_for_port
from compfed.errors import InputError
from compfed.federation import Evaluate, ask
from compfed.federation.adding import Exactly
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.spec import ObjectiveSpec
from compfed.network import NoReply, RemoteFederation, RetryPolicy, keys, superlink
from compfed.network.envelope import Body, Header, read_body, read_header, reply_bytes
from compfed.network.flower import FleetConnection, FlowerLink, LinkError
from compfed.network.settings import FederationSettings, admit_all, new_federation

LONGEST = 300.0  # seconds after which light sites end by themselves
ROWS, WIDTH = 100, 20
VALUES = (0.5, -0.25, 0.125, 1.0)  # of the sites in turn: their sum is exact in doubles
NUMBERS = WIDTH + 4  # words of the reply for one model, nearly


Delays = dict[str, float]  # seconds before the reply of a site to a query; infinite: there is none


# --- the light sites ---


class LightSite:
    """One site: it enrols, and replies to `Evaluate` as if all its losses and gradients had one value."""

    def __init__(self, place: int, name: str, key: keys.PrivateKey, words: dict[object, np.ndarray]):
        self.value, self.name, self.key, self.words = VALUES[place % len(VALUES)], name, key, words
        self.records: dict[str, Any] = {}

    def reply(self, data: bytes) -> bytes:
        """The signed reply to a message."""
        header, rest = read_header(data, self.name)
        body = read_body(rest, (), self.records)
        facts = {"run": header.run, "number": header.number, "queries": header.queries, "site": self.name, "table": "t"}
        content: dict[str, Any] = {"kind": "words", "words": self._words(header, body)} if body.queries else {
            "kind": "enrolled", "enrolment": enrolment(), "session_key": np.full(32, 7, np.uint8)
        }  # fmt: skip
        return reply_bytes({**facts, **content}, self.key)

    def _words(self, header: Header, body: Body) -> np.ndarray:
        name = self.value, header.queries
        if name not in self.words:  # every fourth site sends the same
            agreement, given = agreement_of(header.names), []
            for weighted in body.queries:
                assert isinstance(weighted.query, Evaluate)
                models, d = weighted.query.x.shape
                each = np.full(models, self.value)
                reply = Evaluate.Reply(each, np.full((models, d), self.value), np.abs(each))
                given.append(weighted.query.contribution(reply, weighted.factor_at(float(ROWS)), agreement))
            if len(self.words) > 2 * len(VALUES):
                self.words.clear()
            self.words[name] = Exactly().encode(body.queries, given, agreement)
        return self.words[name]


@functools.cache
def enrolment() -> Enrolment:
    """The facts of a light site."""
    bits = np.full(WIDTH, 16, np.int32)
    return Enrolment(ROWS, float(ROWS), WIDTH, None, "f", (), None, "", bits, 16, buckets=10, table="t")


@functools.cache
def agreement_of(names: tuple[str, ...]) -> Agreement:
    """What light sites agree on."""
    return Agreement(names, (enrolment(),) * len(names))


def light_sites(settings: Path, names: Sequence[str], delays: Delays, said: Any) -> None:
    """The process of light sites: a thread each, until it is killed, or some minutes have passed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    federation, end = FederationSettings.read(settings, check_estimator=False), time.monotonic() + LONGEST
    words: dict[object, np.ndarray] = {}

    def run(name: str) -> None:
        site = LightSite(federation.names.index(name), name, keys.read_identity(settings.parent / f"{name}.key"), words)
        known = 0
        while time.monotonic() < end:
            connection = FleetConnection(federation.superlink, federation.keys / "ca.crt", site.key, known)
            try:
                known = connection.sign_in()
                said.put(name)
                while time.monotonic() < end:
                    if (delivery := connection.receive()) is None:
                        continue
                    delay = delays.get(name, 0.0) if read_header(delivery[1], name)[0].number > 1 else 0.0
                    if delay < np.inf:
                        time.sleep(delay)
                        connection.reply(delivery[0], site.reply(delivery[1]))
            except (LinkError, InputError) as problem:
                said.put(f"! {problem}")
                time.sleep(0.5)
            finally:
                connection.close()

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    time.sleep(LONGEST)
    os._exit(0)


# --- a federation of them ---


class LightFederation:
    """A SuperLink and light sites on this machine; leaving its `with` statement ends them."""

    def __init__(self, home: Path, sites: int, delays: Delays | None = None, retry: RetryPolicy | None = None):
        self.names, self.delays, self.retry = [f"site-{k:03d}" for k in range(sites)], delays or {}, retry
        self.path = new_federation(home, self.names, f"127.0.0.1:{free_port()}")
        keys.make_keys(home / "keys", "127.0.0.1")
        lines = []
        for name in self.names:
            key = keys.new_identity()
            keys.write_identity(home / f"{name}.key", key)
            lines.append(f"{keys.public_line(key.public_key())} {name}\n")
        (home / "all.pub").write_text("".join(lines))
        admit_all(home, home / "all.pub")
        self.settings = FederationSettings.read(self.path, check_estimator=False)
        self.log = home / "superlink.log"

    def __enter__(self) -> LightFederation:
        command = [sys.executable, "-m", "compfed.cli", "federation", "serve", str(self.path.parent)]
        with self.log.open("wb") as log:
            self.superlink = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_for_port(self.settings.listen[1], self.superlink)
        while "Admitted" not in self.log.read_text():
            time.sleep(0.05)
        context = get_context("spawn")
        self.said = context.Queue()
        arguments = (self.path, self.names, self.delays, self.said)
        self.clients = context.Process(target=light_sites, args=arguments, daemon=True)
        self.clients.start()
        return self

    def wait(self, sites: int, seconds: float = 120.0) -> list[str]:
        """Wait until so many sites have signed in; what went wrong until then."""
        problems, found = list[str](), set[str]()
        end = time.monotonic() + seconds
        while len(found) < sites and time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                line = self.said.get(timeout=0.2)
                (problems.append if line.startswith("!") else found.add)(line)
        if len(found) < sites:
            raise SystemExit(f"{len(found)} of {sites} light sites signed in: {set(problems)}")
        return problems

    def connection(self) -> RemoteFederation:
        """The operator."""
        link = FlowerLink(self.settings.dial, self.settings.keys, self.settings.roster)
        return RemoteFederation(link, self.settings.roster, retry=self.retry)

    def __exit__(self, *_: object) -> None:
        self.clients.kill()
        end_process(self.superlink)


def message(connection: RemoteFederation, models: int, number: int) -> float:
    """Seconds of one message; the sum over the sites is checked."""
    x = np.full((models, WIDTH), 1.0 + number)
    began = time.perf_counter()
    (summed,) = ask(connection, Evaluate(ObjectiveSpec(cf.losses.Squared()), x))
    seconds = time.perf_counter() - began
    expected = sum(VALUES[k % len(VALUES)] for k in range(len(connection.names)))
    for found in (summed.value, summed.gradient):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    return seconds


# --- what is measured ---


class Cost(NamedTuple):
    """What a message costs."""

    seconds: float
    superlink: float  # seconds of processor
    operator: float
    clients: float
    memory: float  # of the SuperLink, MB at most


def cost(sites: int, kilobytes: float, messages: int) -> Cost:
    """What a message to so many light sites costs, with replies of so many kB."""
    models = max(round(kilobytes * 1e3 / 16 / NUMBERS), 1)
    with tempfile.TemporaryDirectory() as folder, LightFederation(Path(folder) / "f", sites) as federation:
        federation.wait(sites)
        connection = federation.connection()
        try:
            for number in range(2):  # enrolments, and connections that are opened
                message(connection, models, number)
            pids = federation.superlink.pid, os.getpid(), federation.clients.pid or 0
            before = [cpu_seconds(pid) for pid in pids]
            seconds = [message(connection, models, 2 + number) for number in range(messages)]
            used = [(cpu_seconds(pid) - first) / messages for pid, first in zip(pids, before, strict=True)]
            if connection.problems:
                print(f"  problems: {connection.problems[:3]}")
            return Cost(statistics.median(seconds), used[0], used[1], used[2], memory(pids[0], "VmHWM"))
        finally:
            connection.close()


def table(sites: Sequence[int], kilobytes: Sequence[float], messages: int) -> None:
    """The table of docs/howto/operate.md."""
    print("sites  reply kB  s a message  SuperLink CPU s  ms/site  operator CPU s  light sites CPU s  SuperLink MB")
    for size in kilobytes:
        for n in sites:
            c = cost(n, size, messages)
            cells = f"{c.seconds:11.2f} {c.superlink:16.2f} {1e3 * c.superlink / n:8.1f} {c.operator:15.2f} {c.clients:18.2f}"
            print(f"{n:5d} {size:9g} {cells} {c.memory:13.0f}", flush=True)


def limits(sites: int) -> None:
    """What happens at the limit."""
    with tempfile.TemporaryDirectory() as folder:
        with LightFederation(Path(folder) / "slow", sites, {"site-001": 3.0}) as federation:
            federation.wait(sites)
            connection = federation.connection()
            seconds = [message(connection, 1, k) for k in range(2)]
            print(
                f"a site that takes 3 s: messages of {seconds[0]:.1f} and {seconds[1]:.1f} s; problems: {connection.problems}"
            )
            connection.close()
        retry = RetryPolicy(timeout=2.0, attempts=3)
        with LightFederation(Path(folder) / "silent", sites, {"site-001": np.inf}, retry) as federation:
            federation.wait(sites)
            connection, began = federation.connection(), time.monotonic()
            try:
                message(connection, 1, 0)
            except NoReply as problem:
                print(f"a site that never replies, after {time.monotonic() - began:.0f} s: {problem}")
            connection.close()
        retry = RetryPolicy(wait=10.0)
        with LightFederation(Path(folder) / "full", sites, retry=retry) as federation:
            federation.wait(sites)
            connection = federation.connection()
            message(connection, 1, 0)
            most = superlink.CONNECTIONS + superlink.PER_SITE * sites
            with strangers(federation.settings, most) as taken:
                print(f"{taken} connections of strangers: ", end="")
                try:
                    print(f"a message takes {message(connection, 1, 1):.1f} s", end="; ")
                except (NoReply, InputError) as problem:
                    print(problem, end="; ")
                with contextlib.suppress(queue.Empty):
                    print(f"a site says: {federation.said.get(timeout=25)}", end="")
                print()
            print(f"once they have gone: {message(connection, 1, 2):.1f} s; problems: {connection.problems}")
            connection.close()


@contextlib.contextmanager
def strangers(settings: FederationSettings, count: int) -> Iterator[int]:
    """TLS connections to a SuperLink of this machine that send nothing."""
    context, taken = ssl.create_default_context(cafile=str(settings.keys / "ca.crt")), 0
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                plain = stack.enter_context(socket.create_connection(("127.0.0.1", settings.listen[1]), 5))
                stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
                taken += 1
        yield taken


def side_by_side(superlinks: int, sites: int, messages: int) -> None:
    """Several SuperLinks, each with its part of the sites, and a message to all of them at once."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        each = [
            stack.enter_context(LightFederation(Path(folder) / f"f{k}", sites // superlinks)) for k in range(superlinks)
        ]
        for federation in each:
            federation.wait(sites // superlinks)
        connections = [federation.connection() for federation in each]
        seconds = []
        for number in range(messages + 2):
            began = time.perf_counter()
            threads = [threading.Thread(target=message, args=(connection, 1, number)) for connection in connections]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            seconds.append(time.perf_counter() - began)
        for connection in connections:
            connection.close()
        print(
            f"{superlinks} SuperLinks with {sites // superlinks} sites each: {statistics.median(seconds[2:]):.2f} s a message"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 16, 50, 100, 200])
    parser.add_argument("--kilobytes", type=float, nargs="+", default=[1, 1000])
    parser.add_argument("--messages", type=int, default=8)
    parser.add_argument("--limit", action="store_true")
    parser.add_argument("--superlinks", type=int, metavar="N")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever stops this stops all of it
    if args.limit:
        limits(args.sites[0])
    elif args.superlinks:
        for n in args.sites:
            side_by_side(args.superlinks, n, args.messages)
    else:
        table(args.sites, args.kilobytes, args.messages)


if __name__ == "__main__":
    main()
