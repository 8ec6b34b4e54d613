"""`compfed reproduce`: run every experiment, draw every figure, check every claim, write the report.

What is checked, claim by claim, is in `claims.py`; what is run for it in `experiments.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.files import check_writable, write_text
from compfed._utils.text import NamedSteps, versions
from compfed.errors import InputError
from compfed.report.page import write_run_report
from compfed.report.run_result import write_result
from compfed.report.style import check_matplotlib
from compfed.studies.paper.claims import Claim, all_claims
from compfed.studies.paper.experiments import (
    ALGORITHM_1,
    QUICK,
    Experiment,
    Group,
    Key,
    Size,
    Traces,
    experiments,
    keys,
)
from compfed.studies.paper.figures import STYLES, draw_figures
from compfed.trace import Trace


def reproduce(out: Path, quick: bool = False, seeds: int | None = None) -> list[Claim]:
    """Write figures/, traces/, claims.json and report.html below `out`; return the claims."""
    check_matplotlib()
    size = QUICK if quick else Size()
    if seeds is not None:
        if seeds < 1:
            raise InputError(f"--seeds {seeds}: at least one seed is needed; the paper's bands use five or more.")
        size = replace(size, seeds=seeds)
    check_writable(out, f"--out {out}")
    out.mkdir(parents=True, exist_ok=True)

    finished, todo = FinishedExperiments(out, size), list(experiments(size))
    steps = NamedSteps(len(todo) + 1)
    try:
        traces = _all_traces(todo, finished, steps)
    except KeyboardInterrupt:
        kept = f"{len(finished)} of {len(todo)} steps are finished and kept in {out}"
        raise KeyboardInterrupt(f"{kept}; the same command goes on from them.") from None
    steps.start("figures and report")
    claims = all_claims(traces)
    rows = [asdict(claim) for claim in claims]
    write_text(out / "claims.json", json.dumps(rows, indent=2) + "\n")
    figures = draw_figures(traces, out / "figures")
    provenance = traces[ALGORITHM_1][0].provenance
    settings = {"size": asdict(size), **{k: provenance[k] for k in ("problem", "dtype", "device", "versions")}}
    lead = (
        f"Zhang, Hu and Johansson (ICASSP 2024): {size.clients} clients, heterogeneous logistic regression with ridge 0.01 and "
        f"l1 1e-4, {size.samples} examples per client, {size.seeds} seeds for mini-batches."
    )
    write_result(out, paper_result(lead, rows, {path: caption for path, caption in figures}, settings, traces, out))
    write_run_report(out)
    finished.clear()
    steps.finish()
    return claims


def paper_result(
    lead: str, claims: list[dict[str, Any]], figures: dict[Path, str], settings: object, traces: Traces, out: Path
) -> dict[str, Any]:
    """The reproduction as plain data for a run folder, with the runs of Figure 1."""
    groups = {"Figure 1, full gradients": Group.FULL, "Figure 1, mini-batches": Group.STOCHASTIC}
    runs = {
        title: {key.name: _median_columns(traces[key]) for key in keys(traces, group)}
        for title, group in groups.items()
    }
    return {
        "kind": "paper",
        "created": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "versions": versions(),
        "title": "Composite federated learning with heterogeneous data, reproduced",
        "lead": lead,
        "claims": claims,
        "figures": [{"file": f"{path.relative_to(out)}.svg", "caption": caption} for path, caption in figures.items()],
        "runs": runs,
        "styles": STYLES,
        "settings": settings,
    }


def _median_columns(runs: Sequence[Trace]) -> dict[str, np.ndarray]:
    """The columns of a method: the median over its seeds."""
    return {
        name: np.median([trace[name] for trace in runs], axis=0) for name, v in runs[0].columns.items() if v.ndim == 1
    }


class _Stopped(Exception):
    """Ends an experiment, because another one failed or the run was interrupted."""


def _all_traces(todo: list[Experiment], finished: FinishedExperiments, steps: NamedSteps) -> Traces:
    """The traces of all experiments, each saved when it ends. When one fails, or on Ctrl-C, the others stop."""
    stop = threading.Event()

    def finish(experiment: Experiment) -> Traces:
        known = finished.traces(experiment.name)
        show = steps.start(experiment.name + ("" if known is None else ": finished before"))
        if known is not None:
            return known

        def progress(rounds: int, total: int) -> None:
            if stop.is_set():
                raise _Stopped
            show(rounds, total)

        traces = experiment.run(progress)
        finished.add(experiment.name, traces)
        return traces

    # Compiling and small programs keep one core busy, so two experiments run side by side.
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = [pool.submit(finish, experiment) for experiment in todo]
        try:
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()  # raises its error at once, while others may still run
            return {key: runs for future in running for key, runs in future.result().items()}
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class FinishedExperiments:
    """Traces of finished experiments on disk, so that an interrupted reproduction continues with the next one.

    The list `unfinished.json` exists while a reproduction is under way. Only experiments of the same size, made with the
    same versions, are reused.
    """

    def __init__(self, out: Path, size: Size):
        self.out, self._lock = out, threading.Lock()
        self._list = out / "unfinished.json"
        self._made_with = json.loads(json.dumps({"size": asdict(size), "versions": versions()}))
        self._steps: dict[str, list[tuple[str, str, float | None, int]]] = {}  # by key: group, name, value, traces
        # Without a readable list every experiment runs.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(self._list.read_text(encoding="utf-8"))
            if found["made_with"] == self._made_with:
                self._steps = found["steps"]

    def __len__(self) -> int:
        return len(self._steps)

    def traces(self, name: str) -> Traces | None:
        """The traces of a finished experiment; None for one that has to run."""
        try:
            return {
                (key := Key(Group(group), line, value)): [Trace.load(self._path(key, i)) for i in range(count)]
                for group, line, value, count in self._steps[name]
            }
        except (InputError, OSError, KeyError, ValueError, TypeError):
            return None

    def add(self, name: str, traces: Traces) -> None:
        """Save the traces of an experiment, then list them."""
        for key, runs in traces.items():
            for i, trace in enumerate(runs):
                trace.save(self._path(key, i))
        with self._lock:
            self._steps[name] = [(str(key.group), key.name, key.value, len(runs)) for key, runs in traces.items()]
            write_text(self._list, json.dumps({"made_with": self._made_with, "steps": self._steps}) + "\n")

    def clear(self) -> None:
        """Remove the list: the next reproduction starts anew."""
        self._list.unlink(missing_ok=True)

    def _path(self, key: Key, i: int) -> Path:
        return self.out / "traces" / f"{re.sub(r'[^a-z0-9.]+', '-', str(key).lower()).strip('-')}-{i}"
