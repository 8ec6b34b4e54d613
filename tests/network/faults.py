"""A federation of processes on this machine that faults are done to, and the tools to do them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import compfed as cf
from compfed.cli.demo import NAMES, Loopback, end_process, rehearsal
from compfed.data import bundled
from compfed.estimators.model_file import load_model
from compfed.network.run_folder import is_alive

ALPHA = 0.02
FAULTY_SITE = Path(__file__).with_name("faulty_site.py")
REAL, CUT, FAULTY = NAMES[1], NAMES[2], NAMES[3]  # sites: as installed, behind a proxy, with faults of its own


def wait_for(what: Callable[[], Any], seconds: float = 120.0, why: str = "") -> Any:
    """The first value of `what` that is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"{seconds:g} s are over; {why}"
        time.sleep(0.01)
    return found


def ends_within(process: subprocess.Popen[Any], seconds: float) -> int:
    """The exit status of a process, which must end in time."""
    return process.wait(seconds)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def children(pid: int) -> set[int]:
    """The processes that a process has started and that are still there."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(child) for child in path.read_text().split()}
    return found


def in_session(leader: int) -> set[int]:
    """The processes of the session that a process leads, whoever their parent is now."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.add(int(path.parent.name))
    return found


class Proxy:
    """Carries TCP connections to a port of this machine. While it is cut it accepts nothing and drops everything."""

    def __init__(self, port: int):
        self.target, self.is_cut = port, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._ended:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            while self.is_cut.is_set():  # the connection is not answered, as if every packet were lost
                time.sleep(0.05)
            with contextlib.suppress(OSError):
                far = socket.create_connection(("127.0.0.1", self.target))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()
                continue
            near.close()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                if not self.is_cut.is_set():
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._ended = True
        self.is_cut.clear()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


class Faults(Loopback):
    """Four clinics that mask their sums: one behind a proxy, one with faults of its own. Runs of one small fit."""

    def __init__(self, home: Path):
        super().__init__(home, bundled.breast_cancer().federation())
        path = self.home / "federation.toml"
        text = path.read_text().replace('"FederatedLogisticRegressionCV"', '"FederatedLogisticRegression"')
        path.write_text(text.replace("[parameters]", f"[parameters]\nalpha = {ALPHA}\n#", 1))
        self.proxy = Proxy(self.settings.listen[1])
        path = self.site_folder(CUT) / "site.toml"
        path.write_text(path.read_text().replace(self.settings.superlink, f"127.0.0.1:{self.proxy.port}"))
        self.behave()
        self.tables = {name: (self.site_folder(name) / "rows.csv").read_bytes() for name in self.names}
        self.others: list[subprocess.Popen[Any]] = []
        self.runs = self.stops = 0
        self.truth = self.new_model().fit_federation(rehearsal(self))
        self.messages: int = 1 + self.truth.communication_.rounds  # the first asks the sites to enrol

    def new_model(self, **more: Any) -> Any:
        return cf.FederatedLogisticRegression(alpha=ALPHA, **more)

    def __exit__(self, *problem: Any) -> None:
        self.processes |= {f"other {i}": process for i, process in enumerate(self.others)}
        super().__exit__(*problem)
        self.proxy.close()

    # --- the processes ---

    def behave(self, **how: Any) -> None:
        """What the faulty site does from the next message on; nothing: it is honest and quick."""
        path = self.site_folder(FAULTY) / "behaviour.json"
        path.with_suffix(".new").write_text(json.dumps(how))
        path.with_suffix(".new").replace(path)

    def start_site(self, name: str, faulty: bool = True, environment: dict[str, str] | None = None) -> None:
        folder = self.site_folder(name)
        script = [str(FAULTY_SITE), str(folder / "behaviour.json")]
        start = script if name == FAULTY and faulty else ["-m", "compfed.cli", "site", "run"]
        command = [sys.executable, *start, "--config", str(folder / "site.toml")]
        with (folder / "site.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env={**self.environment, **(environment or {})}, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def site_log(self, name: str) -> str:
        """The lines that a site printed since its last start."""
        text = (self.site_folder(name) / "site.log").read_text()
        return text[text.rfind("operator can ask for") :]

    def is_connected(self, name: str) -> bool:
        return " connected to " in self.site_log(name).rpartition("not connected")[2]

    def replies_of(self, name: str) -> list[dict[str, Any]]:
        """The log of a site: a line per reply."""
        return read_lines(self.site_folder(name) / "state" / "log.jsonl")

    def kill(self, name: str) -> None:
        process = self.processes[name]
        process.kill()
        process.wait()

    def terminate(self, name: str, seconds: float = 5.0) -> float:
        """SIGTERM; how long it took to end."""
        began = time.monotonic()
        self.processes[name].terminate()
        ends_within(self.processes[name], seconds)
        return time.monotonic() - began

    def restart(self, name: str) -> None:
        if name == "superlink":
            self.start_superlink()
        else:
            self.start_site(name)

    def heal(self) -> None:
        """Everything as it should be, before the next fault."""
        self.behave()
        self.proxy.is_cut.clear()
        for name, table in self.tables.items():
            path = self.site_folder(name) / "rows.csv"
            if path.read_bytes() != table:
                path.write_bytes(table)
        started = []
        for name in ("superlink", *self.names):
            if name not in self.processes or self.processes[name].poll() is not None:
                if name in self.names:
                    (self.site_folder(name) / "site.log").write_text("")
                    started.append(name)
                self.restart(name)
        for name in started:
            wait_for(lambda name=name: self.is_connected(name), 60, f"{name} did not connect: {self.site_log(name)}")

    @contextlib.contextmanager
    def unmasked(self) -> Iterator[None]:
        """All sites with secure_sum = false, and afterwards as they were."""
        texts = {name: (self.site_folder(name) / "site.toml").read_text() for name in self.names}
        try:
            for name, text in texts.items():
                assert "secure_sum = true" in text
                self.terminate(name)
                path = self.site_folder(name) / "site.toml"
                path.write_text(text.replace("secure_sum = true", "secure_sum = false"))
            self.heal()
            yield
        finally:
            for name, text in texts.items():
                self.terminate(name)
                (self.site_folder(name) / "site.toml").write_text(text)

    # --- runs ---

    def lock_owner(self, folder: Path) -> int | None:
        """The process that runs in a folder."""
        return is_alive(folder)

    def run(self, script: str | None = None) -> Run:
        self.runs += 1
        return Run(self, self.home / f"run-{self.runs}", script)

    def spawn(self, command: list[str], log: Path) -> subprocess.Popen[Any]:
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, env=self.environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.others = [other for other in self.others if other.poll() is None] + [process]
        return process


class Run:
    """A run folder, and the operator's process that works in it."""

    def __init__(self, federation: Faults, folder: Path, script: str | None = None):
        self.federation, self.folder, self.script = federation, folder, script
        self.log = folder.with_suffix(".txt")
        self.process: subprocess.Popen[Any] | None = None

    def start(self) -> Run:
        """The command of the operator; the same one continues a run."""
        home = self.federation.home
        if self.script is None:
            command = [sys.executable, "-m", "compfed.cli", "federation", "run", str(home), "--out", str(self.folder)]
        else:
            command = [sys.executable, "-c", self.script, str(home), str(self.folder)]
        self.process = self.federation.spawn(command, self.log)
        return self

    @property
    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def replies(self, number: int) -> int:
        """How many sites have replied to a message."""
        return sum(
            line.get("number") == number and "bytes_up" in line for line in read_lines(self.folder / "log.jsonl")
        )

    def start_and_reach(self, number: int, sleep: float = 20.0) -> Run:
        """Start, and wait for the moment at which all sites but one have replied to a message. That one sleeps."""
        self.federation.behave(sleep=sleep, at=number)
        self.start()
        self.reach(number)
        return self

    def reach(self, number: int, replies: int = len(NAMES) - 1) -> None:
        """Wait until a message is answered by some sites."""
        assert self.process is not None
        process = self.process

        def reached() -> bool:
            assert process.poll() is None, f"the run ended before message {number}: {self.said}"
            return self.replies(number) >= replies

        wait_for(reached, 90, f"message {number} was not reached: {self.said}")

    def end(self, seconds: float = 180.0) -> int:
        """Wait for the operator's process; its exit status."""
        assert self.process is not None
        return ends_within(self.process, seconds)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def finish(self, seconds: float = 180.0) -> None:
        """Wait for the model, which must have the bits of the model without faults."""
        assert self.end(seconds) == 0, self.said[-3000:]
        self.check(self.federation.truth)

    def check(self, truth: Any) -> None:
        model = load_model(self.folder)
        for name in ("coef_", "intercept_", "alpha_", "n_iter_", "classes_"):
            if hasattr(truth, name):
                np.testing.assert_array_equal(getattr(model, name), getattr(truth, name), err_msg=name)

    def stops(self, *words: str, seconds: float = 120.0) -> str:
        """Wait for the run to stop with an error that has these words, and no model."""
        said = len(self.said)
        assert self.end(seconds) != 0, self.said
        text = self.said[said:] or self.said
        assert "Traceback" not in self.said, self.said
        self.federation.stops += 1
        assert not (self.folder / "model.safetensors").exists()
        for word in words:
            assert word in self.said, f"{word!r} is not in: {self.said[-3000:]}"
        return text.strip().splitlines()[-1]

    @property
    def problems(self) -> list[str]:
        """The problems that the operator saw, in order and without repetition."""
        found = [
            f"{line['site'] or 'operator'}: {line['problem']}" for line in read_lines(self.folder / "log.jsonl") if "problem" in line
        ]  # fmt: skip
        return list(dict.fromkeys(found))

    @property
    def write_ahead_log(self) -> Path:
        return self.folder / "write_ahead.log"


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Callable[[], None]]:
    """A disk of its own for a folder; call the value to fill it up. `filler` in the folder is what fills it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept = folder.with_name(folder.name + ".kept")
    shutil.copytree(folder, kept)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)], check=True)
    try:
        shutil.copytree(kept, folder, dirs_exist_ok=True)

        def fill() -> None:
            with (folder / "filler").open("wb", 0) as file, contextlib.suppress(OSError):
                for block in (2**16, 2**12, 1):
                    with contextlib.suppress(OSError):
                        while True:
                            file.write(bytes(block))

        yield fill
        shutil.rmtree(kept)
        shutil.copytree(folder, kept)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder)
        kept.rename(folder)


def can_mount(folder: Path) -> bool:
    """May this process mount a disk?"""
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0 or not shutil.which("mount"):
        return False
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", str(folder)], check=True)
    return done.returncode == 0


@contextlib.contextmanager
def stopped(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A process that gets no time."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


__all__ = [
    "ALPHA", "CUT", "FAULTY", "NAMES", "REAL", "Faults", "Proxy", "Run", "can_mount", "children", "end_process", "ends_within",
    "in_session", "read_lines", "small_disk", "stopped", "wait_for",
]  # fmt: skip


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
