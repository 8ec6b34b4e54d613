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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from compfed._utils.files import write_private, write_text
from compfed._utils.text import text_table
from compfed.data import Sites, bundled
from compfed.errors import EdgeOfGridWarning, InputError
from compfed.estimators import FederatedLogisticRegression
from compfed.federation import InProcess
from compfed.network import keys, operator
from compfed.network.roster import MIN_MASKED, roster_text
from compfed.network.settings import FederationSettings, admit, new_federation
from compfed.network.site_settings import SiteSettings, init

NAMES = ("clinic-0", "clinic-1", "clinic-2", "clinic-3")


class Loopback:
    """A federation of processes on this machine; leaving its `with` statement ends them."""

    def __init__(
        self,
        home: Path,
        sites: Sites,
        names: Sequence[str] = NAMES,
        *,
        secure_sum: bool | None = None,
        disclosure: str = "",
    ):
        """Make the folders. Sums are masked with three sites or more; `disclosure` is TOML below [disclosure] of all sites."""
        self.home, self.names, self.environment = home.absolute(), tuple(names), dict(os.environ)
        shutil.rmtree(self.home, ignore_errors=True)
        new_federation(self.home, self.names, f"127.0.0.1:{free_port()}")
        keys.make_keys(self.home / "keys", "127.0.0.1")
        columns = sites.columns or tuple(f"a{j}" for j in range(sites.features[0].shape[1]))
        for name, A, y in zip(self.names, sites.features, sites.labels, strict=True):
            write_table(make_site(self.settings, name, secure_sum, disclosure) / "rows.csv", A, y, columns)
        share_roster(self.settings)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(list(self.processes.values())):
            end_process(process)


def make_site(settings: FederationSettings, name: str, secure_sum: bool | None = None, disclosure: str = "") -> Path:
    """Make the folder of a site, as its administrator would, and admit its key; return the folder."""
    folder = settings.home / "sites" / name
    (*_, toml), line, _ = init(folder, name, settings.superlink)
    admit(settings.path, name, line)
    shutil.copy(settings.keys / "ca.crt", folder / "ca.crt")
    text = toml.read_text().replace("by_rule = false", "by_rule = true ")  # nobody is there to ask
    if not (len(settings.names) >= MIN_MASKED if secure_sum is None else secure_sum):
        text = text.replace("secure_sum = true ", "secure_sum = false")
    write_private(
        toml, text.replace("\n[limits]", f"{disclosure}\n\n[limits]" if disclosure else "\n[limits]").encode()
    )
    return folder


def share_roster(settings: FederationSettings) -> None:
    """Write the roster, and give it to every site: as the operator and the sites would once all keys are admitted."""
    roster = FederationSettings.read(settings.path, check_estimator=False).roster
    for folder in (settings.home, *(settings.home / "sites" / name for name in roster)):
        write_text(folder / "roster.txt", roster_text(roster))


def rehearsal(federation: Loopback) -> InProcess:
    """The sites of a federation in this process, with their own policies and secrets: rows are dealt as over the network."""
    return rehearse([federation.site_folder(name) / "site.toml" for name in federation.names])


def rehearse(paths: Sequence[Path]) -> InProcess:
    """The sites with these site.toml, in this order, in this process. Sums are exact, as over the network."""
    sites = []
    for i, path in enumerate(paths):
        site = SiteSettings.read(path).site()
        site.rows.index = site.rows.number = i
        sites.append(site)
    return InProcess(sites, exact=True)


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
        writer.writerows(np.column_stack([A, y]).astype(float).tolist())


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
    table, began = bundled.breast_cancer(), time.monotonic()
    with Loopback(home, table.federation()) as federation:
        sites = f"{len(NAMES)} sites on 127.0.0.1"
        print(f"A SuperLink and {sites}, TLS, a key per site, a folder each under {home}", flush=True)
        federation.start()
        model: Any = operator.run(federation.settings, home / "run")[0]
    seconds = time.monotonic() - began
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeOfGridWarning)  # the run said so already
        here = federation.settings.new_estimator().fit_federation(rehearsal(federation))
        # without a policy the grid grows
        alike: Any = federation.settings.new_estimator().set_params(alphas=model.alphas_)
        simulated = alike.fit(table.X, table.y, sites=table.sites)
    pooled = FederatedLogisticRegression(alpha=float(model.alpha_), tol=1e-10).fit(table.X, table.y, sites=None)
    rows = []
    for name, fitted, took in (
        ("network (Flower)", model, f"{seconds:.0f}"),
        ("the same messages in this process", here, "-"),
        ("simulation (fit)", simulated, "-"),
        ("pooled rows, as one site, same alpha", pooled, "-"),
    ):
        cost, apart = fitted.communication_, np.abs(np.ravel(fitted.coef_) - np.ravel(model.coef_)).max()
        sent = ["-", "-"] if fitted is pooled else [f"{cost.rounds}", f"{cost.bytes_up / 1e3:.0f}"]
        rows.append([name, *sent, took, "-" if fitted is model else f"{apart:.1e}"])
    print("\n" + text_table(["", "messages", "kB up per site", "seconds", "largest difference of a coefficient"], rows))
    print(
        "Only the first run sent anything. The others were in this process, and count what their messages would carry;"
    )
    print("the simulation adds numbers of 64 bits, a network exact ones of 128.")
    same = np.array_equal(model.coef_, here.coef_) and np.array_equal(model.intercept_, here.intercept_)
    used = f"{np.count_nonzero(model.coef_)} of {model.coef_.size} coefficients"
    print(f"\nalpha = {model.alpha_:.4g}, {used} are not zero.")
    verdict = "yes" if same else "NO"
    print(f"Bit for bit the model of the same messages in this process: {verdict}. Run folder: {home / 'run'}")
    return bool(same)
