"""`make federation`: a SuperLink and four sites as processes on this machine, TLS and node keys, and the model compared.

Four clinics with simulated patients: a cross-validated sparse logistic regression of who comes back within 30 days.
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
from compfed.data import Sites, from_arrays
from compfed.errors import EdgeOfGridWarning, InputError
from compfed.estimators import FederatedLogisticRegression
from compfed.federation import InProcess
from compfed.network import keys, operator
from compfed.network.roster import MIN_MASKED, roster_text
from compfed.network.settings import FederationSettings, admit, new_federation
from compfed.network.site_settings import SiteSettings, init

NAMES = ("clinic-0", "clinic-1", "clinic-2", "clinic-3")


ANY_SHARE = "share_by_rule = inf\nmax_share = inf"  # for public data: a rule approves every run


class Loopback:
    """A federation of processes on this machine; leaving its `with` statement ends them.

    Its sites let any share of the numbers in their tables leave by rule.
    """

    def __init__(
        self,
        home: Path,
        sites: Sites,
        names: Sequence[str] = NAMES,
        *,
        secure_sum: bool | None = None,
        disclosure: str = "",
        label: str = "label",
        classes: Sequence[str] = (),
    ):
        """Make the folders. Sums are masked with three sites or more; `disclosure` is TOML below [disclosure] of all sites.

        `classes` are words for the labels 0, 1, ...
        """
        self.home, self.names, self.environment = home.absolute(), tuple(names), dict(os.environ)
        shutil.rmtree(self.home, ignore_errors=True)
        new_federation(self.home, self.names, f"127.0.0.1:{free_port()}")
        keys.make_keys(self.home / "keys", "127.0.0.1")
        columns = sites.columns or tuple(f"a{j}" for j in range(sites.features[0].shape[1]))
        for name, A, y in zip(self.names, sites.features, sites.labels, strict=True):
            folder = make_site(self.settings, name, secure_sum, disclosure)
            write_table(folder / "rows.csv", A, np.asarray(classes)[y.astype(int)] if classes else y, columns, label)
            toml = (folder / "site.toml").read_text()
            write_private(folder / "site.toml", toml.replace('label = "label"', f'label = "{label}"').encode())
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
    disclosure = f"{disclosure}\n{ANY_SHARE}"
    if not (len(settings.names) >= MIN_MASKED if secure_sum is None else secure_sum):
        text = text.replace("secure_sum = true ", "secure_sum = false")
    write_private(toml, text.replace("\n[limits]", f"{disclosure}\n\n[limits]").encode())
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


def write_table(path: Path, A: np.ndarray, y: np.ndarray, columns: Sequence[str], label: str = "label") -> None:
    """Write the table of a site as CSV, every number with all its digits."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, label])
        values = y.tolist() if y.dtype.kind == "U" else y.astype(float).tolist()
        writer.writerows([*row, value] for row, value in zip(A.astype(float).tolist(), values, strict=True))


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


LABEL, CLASSES = "within_30_days", ("home", "readmitted")
EFFECTS = {  # mean, standard deviation, and log-odds per standard deviation; of a share between 0 and 1: its mean alone
    "age": (66.0, 13.0, 0.45), "creatinine": (95.0, 30.0, 0.4), "haemoglobin": (13.0, 1.8, -0.35), "crp": (22.0, 15.0, 0.0),
    "heart_rate": (84.0, 15.0, 0.3), "systolic_pressure": (128.0, 19.0, -0.15), "days_in_hospital": (6.0, 3.0, 0.5),
    "bmi": (27.0, 4.5, 0.0), "sodium": (139.0, 4.0, 0.0), "potassium": (4.2, 0.5, 0.0), "smoker": (0.25, 0.0, 0.0),
    "diabetes": (0.3, 0.0, 0.3), "lives_alone": (0.35, 0.0, 0.25), "weekend_admission": (0.28, 0.0, 0.0),
}  # fmt: skip


def patients(sizes: Sequence[int] = (4200, 3100, 2600, 2100), seed: int = 0) -> Sites:
    """Simulated patients of four clinics that differ in age and in how sick their patients are; two thirds do not come back."""
    rng, A, y = np.random.default_rng(seed), [], []
    for i, n in enumerate(sizes):
        columns, log_odds = [], np.full(n, -1.2 + 0.2 * i)
        for name, (mean, sd, effect) in EFFECTS.items():
            z = rng.standard_normal(n) + (0.3 * (i - 1.5) if name in ("age", "creatinine") else 0.0)
            yes = (rng.random(n) < mean).astype(float)
            columns.append(np.round(mean + sd * z, 1) if sd else yes)
            log_odds += effect * (z if sd else yes)
        A.append(np.column_stack(columns))
        y.append((rng.random(n) < 1 / (1 + np.exp(-log_odds))).astype(float))
    return from_arrays(A, y, columns=tuple(EFFECTS))


def demo(home: Path) -> bool:
    """Fit over processes, compare with the simulation and the pooled solution; return whether the models are the same."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # these end the processes that were started, too
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    table, began = patients(), time.monotonic()
    X, y = np.concatenate(table.features), np.asarray(CLASSES)[np.concatenate(table.labels).astype(int)]
    clinic = np.repeat(np.arange(len(table)), table.sizes)
    with Loopback(home, table, label=LABEL, classes=CLASSES) as federation:
        text = federation.settings.path.read_text()
        text = text.replace("evaluate = true ", "evaluate = 5    ", 1).replace(
            "# standardize = true", "standardize = true  "
        )
        write_private(federation.settings.path, text.encode())
        sites = f"{len(NAMES)} sites on 127.0.0.1"
        print(f"A SuperLink and {sites}, TLS, a key per site, a folder each under {home}", flush=True)
        print(
            "This table is public: its sites approve every run by rule (share_by_rule = inf in site.toml).", flush=True
        )
        federation.start()
        model: Any = operator.run(federation.settings, home / "run")[0]
    seconds = time.monotonic() - began
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EdgeOfGridWarning)  # the run said so already
        here = federation.settings.new_estimator().fit_federation(rehearsal(federation))
        # without a policy the grid grows
        alike: Any = federation.settings.new_estimator().set_params(alphas=model.alphas_)
        simulated = alike.fit(X, y, sites=clinic)
    pooled = FederatedLogisticRegression(alpha=float(model.alpha_), standardize=True, tol=1e-10).fit(X, y, sites=None)
    rows = []
    for name, fitted, took in (
        ("network (Flower)", model, f"{seconds:.0f}"),
        ("the same messages in this process", here, "-"),
        ("simulation (fit)", simulated, "-"),
        ("pooled rows, as one site, same alpha", pooled, "-"),
    ):
        cost, apart = fitted.communication_, np.abs(np.ravel(fitted.coef_) - np.ravel(model.coef_)).max()
        sent = ["-", "-"] if fitted is pooled else [f"{cost.rounds}", f"{cost.bytes_up / 1e3:.0f}"]
        alpha = getattr(fitted, "alpha_", model.alpha_)
        rows.append([name, *sent, took, f"{alpha:.4g}", "-" if fitted is model else f"{apart:.1e}"])
    header = ["", "messages", "kB up per site", "seconds", "alpha", "largest difference of a coefficient"]
    print("\n" + text_table(header, rows))
    print(
        "Only the first run sent anything. The others were in this process, and count what their messages would carry;"
    )
    print(
        "the simulation adds numbers of 64 bits, a network exact ones of 128. Its folds are assigned without the sites' secrets,"
    )
    print("so that it may choose another alpha, and with it other coefficients.")
    same = np.array_equal(model.coef_, here.coef_) and np.array_equal(model.intercept_, here.intercept_)
    used = f"{np.count_nonzero(model.coef_)} of {model.coef_.size} coefficients"
    print(f"\nalpha = {model.alpha_:.4g}, {used} are not zero.")
    verdict = "yes" if same else "NO"
    print(f"Bit for bit the model of the same messages in this process: {verdict}. Run folder: {home / 'run'}")
    return bool(same)
