"""`make federation`: a SuperLink and four sites as processes on this machine, TLS and node keys, and the model compared.

Four clinics with the breast cancer table of scikit-learn between them: a cross-validated sparse logistic regression.
"""

from __future__ import annotations

import csv
import shutil
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from compfed.data import Sites, bundled
from compfed.deployment import model_files
from compfed.deployment.app_folder import new
from compfed.deployment.keys import make_keys
from compfed.deployment.operator import register, run, serve
from compfed.deployment.processes import end
from compfed.deployment.settings import FederationSettings
from compfed.errors import InputError, OneSiteWarning
from compfed.estimators import FederatedLogisticRegression
from compfed.federation import InProcess
from compfed.tools.text import text_table

NAMES = ("clinic-0", "clinic-1", "clinic-2", "clinic-3")


class Loopback:
    """A federation of processes on this machine. What it starts it ends."""

    def __init__(self, home: Path, sites: Sites, names: tuple[str, ...] = NAMES):
        self.home, self.names = home.absolute(), names
        shutil.rmtree(self.home, ignore_errors=True)
        ports = free_ports(1 + len(names))
        new(self.home, names, f"127.0.0.1:{ports[0]}")
        make_keys(self.home / "keys", "127.0.0.1", names)
        for name, port, A, y in zip(names, ports[1:], sites.features, sites.labels, strict=True):
            self._furnish(name, port, A, y, sites.columns or tuple(f"a{j}" for j in range(A.shape[1])))
        self.processes: dict[str, subprocess.Popen[Any]] = {}

    def _furnish(self, name: str, port: int, A: Any, y: Any, columns: tuple[str, ...]) -> None:
        """The folder of a site, as its administrator would have made it."""
        folder = self.home / "sites" / name
        with (folder / "rows.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*columns, "label"])
            writer.writerows([*map(repr, map(float, row)), repr(float(label))] for row, label in zip(A, y, strict=True))
        shutil.copy(self.home / "keys" / "ca.crt", folder / "ca.crt")
        shutil.copy(self.home / "keys" / f"{name}.key", folder / "node.key")
        path = folder / "site.toml"
        lines = path.read_text().splitlines()
        path.write_text("\n".join(f"port = {port}" if line.startswith("port =") else line for line in lines) + "\n")

    @property
    def settings(self) -> FederationSettings:
        return FederationSettings.read(self.home)

    def start(self) -> None:
        self.start_superlink()
        register(self.settings)  # a node that is not known yet ends, and tries again later
        for name in self.names:
            self.start_site(name)

    def start_superlink(self) -> None:
        self.processes["superlink"] = serve(self.settings, self.home / "superlink.log")
        wait_for_port(int(self.settings.port), self.processes["superlink"])

    def start_site(self, name: str) -> None:
        folder = self.home / "sites" / name
        command = [sys.executable, "-m", "compfed.cli", "site", "--config", str(folder / "site.toml")]
        with (folder / "site.log").open("ab") as file:
            self.processes[name] = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in reversed(list(self.processes.values())):
            end(process)


def free_ports(n: int) -> list[int]:
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_for_port(port: int, process: subprocess.Popen[Any], seconds: float = 300.0) -> None:
    end_of_patience = time.monotonic() + seconds
    while time.monotonic() < end_of_patience and process.poll() is None:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise InputError(f"the SuperLink did not open port {port}; its log says why.")


def demo(home: Path) -> bool:
    """Train over processes, compare with the simulation and the pooled solution; is it the same model?"""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever stops this stops all of it
    table = bundled.breast_cancer()
    began = time.monotonic()
    with Loopback(home, table.federation()) as federation:
        print(f"A SuperLink and {len(NAMES)} sites on 127.0.0.1, TLS, node keys, a folder each under {home}")
        federation.start()
        ended = run(federation.settings, home / "run")
    seconds = time.monotonic() - began
    model = model_files.load(home / "run")
    estimator = federation.settings.new_estimator()
    here = estimator.fit_federation(InProcess(table.federation()))
    simulated = federation.settings.new_estimator().fit(table.X, table.y, sites=table.sites)
    pooled = _pooled(table, float(model.alpha_))
    rows = [
        ["network (Flower)", f"{ended['rounds']}", f"{ended['bytes_up'] / 1e3:.0f}", f"{seconds:.0f}", "-"],
        _row("the same messages in this process", model, here),
        _row("simulation (fit)", model, simulated),
        ["pooled rows, as one site, same alpha", "-", "-", "-", f"{_apart(model.coef_, pooled):.1e}"],
    ]
    print("\n" + text_table(["", "rounds", "kB up per site", "seconds", "largest difference of a coefficient"], rows))
    same = np.array_equal(model.coef_, here.coef_) and np.array_equal(model.intercept_, here.intercept_)
    print(
        f"\nalpha = {model.alpha_:.4g}, {np.count_nonzero(model.coef_)} of {model.coef_.size} coefficients are not zero."
    )
    print(
        f"Bit for bit the model of the same messages in this process: {'yes' if same else 'NO'}. Run folder: {home / 'run'}"
    )
    return bool(same)


def _row(name: str, model: Any, other: Any) -> list[str]:
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
