"""`make federation`: a SuperLink and four sites as processes on this machine, TLS and node keys, and the model compared.

Four clinics share the breast cancer table of scikit-learn: a cross-validated sparse logistic regression.
"""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.text import text_table
from compfed.data import Sites, bundled
from compfed.errors import InputError, OneSiteWarning
from compfed.estimators import FederatedLogisticRegression
from compfed.estimators.base import FederatedModel
from compfed.federation import InProcess
from compfed.network import keys, operator
from compfed.network.settings import FederationSettings, admit, new_federation
from compfed.network.site_settings import init

NAMES = ("clinic-0", "clinic-1", "clinic-2", "clinic-3")


class Loopback:
    """A federation of processes on this machine; leaving its `with` statement ends them."""

    def __init__(
        self, home: Path, sites: Sites, names: Sequence[str] = NAMES, environment: Mapping[str, str] | None = None
    ):
        self.home, self.names = home.absolute(), tuple(names)
        self.environment = {**os.environ, **(environment or {})}
        shutil.rmtree(self.home, ignore_errors=True)
        superlink = f"127.0.0.1:{free_port()}"
        new_federation(self.home, self.names, superlink)
        keys.make_keys(self.home / "keys", "127.0.0.1")
        columns = sites.columns or tuple(f"a{j}" for j in range(sites.features[0].shape[1]))
        for name, A, y in zip(self.names, sites.features, sites.labels, strict=True):
            self._furnish(name, superlink, A, y, columns)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _furnish(self, name: str, superlink: str, A: np.ndarray, y: np.ndarray, columns: Sequence[str]) -> None:
        """The folder of a site, as its administrator would have made it."""
        folder = self.site_folder(name)
        _, line, _ = init(folder, name, superlink)
        admit(self.home, name, line)
        write_table(folder / "rows.csv", A, y, columns)
        shutil.copy(self.home / "keys" / "ca.crt", folder / "ca.crt")

    def site_folder(self, name: str) -> Path:
        """The folder of a site."""
        return self.home / "sites" / name

    @property
    def settings(self) -> FederationSettings:
        """The settings of the federation, read again."""
        return FederationSettings.read(self.home)

    def start(self) -> None:
        """Start the SuperLink and all sites."""
        self.start_superlink()
        for name in self.names:
            self.start_site(name)

    def start_superlink(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        self.processes["superlink"] = self._start(["federation", "serve", str(self.home)], self.home / "superlink.log")
        wait_for_port(self.settings.listen[1], self.processes["superlink"])

    def start_site(self, name: str) -> None:
        """Start the node of a site."""
        folder = self.site_folder(name)
        self.processes[name] = self._start(["site", "run", "--config", str(folder / "site.toml")], folder / "site.log")

    def start_run(self, folder: Path, log: Path) -> subprocess.Popen[bytes]:
        """`compfed federation run` as a process of its own."""
        self.processes["operator"] = self._start(["federation", "run", str(self.home), "--out", str(folder)], log)
        return self.processes["operator"]

    def _start(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "compfed.cli", *arguments]
        with log.open("ab") as file:
            return subprocess.Popen(
                command, env=self.environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(list(self.processes.values())):
            end_process(process)


def end_process(process: subprocess.Popen[bytes], seconds: float = 10.0) -> None:
    """End a process with SIGTERM, then with SIGKILL; a stopped process is continued first."""
    for number, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait)
            return


def write_table(path: Path, A: np.ndarray, y: np.ndarray, columns: Sequence[str]) -> None:
    """Write the table of a site as CSV, every number with all its digits."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "label"])
        writer.writerows([*map(repr, map(float, row)), repr(float(label))] for row, label in zip(A, y, strict=True))


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    """Wait until a process listens on a port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise InputError(f"the SuperLink did not open port {port}; its log says why.")


def demo(home: Path) -> bool:
    """Fit over processes, compare with the simulation and the pooled solution; return whether the models are the same."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # these end the processes that were started, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    table = bundled.breast_cancer()
    began = time.monotonic()
    with Loopback(home, table.federation()) as federation:
        print(
            f"A SuperLink and {len(NAMES)} sites on 127.0.0.1, TLS, a key per site, a folder each under {home}",
            flush=True,
        )
        federation.start()
        model: Any = operator.run(federation.settings, home / "run")
    seconds = time.monotonic() - began
    estimator = federation.settings.new_estimator()
    here = estimator.fit_federation(InProcess(table.federation()))
    simulated = federation.settings.new_estimator().fit(table.X, table.y, sites=table.sites)
    pooled = _pooled(table, float(model.alpha_))
    cost = model.communication_
    rows = [
        ["network (Flower)", f"{cost.rounds}", f"{cost.bytes_up / 1e3:.0f}", f"{seconds:.0f}", "-"],
        _row("the same messages in this process", model, here),
        _row("simulation (fit)", model, simulated),
        ["pooled rows, as one site, same alpha", "-", "-", "-", f"{_apart(model.coef_, pooled):.1e}"],
    ]
    print("\n" + text_table(["", "messages", "kB up per site", "seconds", "largest difference of a coefficient"], rows))
    same = np.array_equal(model.coef_, here.coef_) and np.array_equal(model.intercept_, here.intercept_)
    print(
        f"\nalpha = {model.alpha_:.4g}, {np.count_nonzero(model.coef_)} of {model.coef_.size} coefficients are not zero."
    )
    print(
        f"Bit for bit the model of the same messages in this process: {'yes' if same else 'NO'}. Run folder: {home / 'run'}"
    )
    return bool(same)


def _row(name: str, model: FederatedModel, other: FederatedModel) -> list[str]:
    cost = other.communication_
    return [name, f"{cost.rounds}", f"{cost.bytes_up / 1e3:.0f}", "-", f"{_apart(model.coef_, other.coef_):.1e}"]


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(np.ravel(a) - np.ravel(b)).max())


def _pooled(table: bundled.Table, alpha: float) -> np.ndarray:
    """The model of all rows in one place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OneSiteWarning)  # that is the point
        model = FederatedLogisticRegression(alpha=alpha, tol=1e-10)
        return model.fit(table.X, table.y, sites=np.zeros(len(table.y))).coef_
