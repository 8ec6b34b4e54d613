"""`compfed reproduce`: run everything, draw everything, check every claim, and say so."""

from __future__ import annotations

import json
import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from compfed._utils.files import check_writable, write_text
from compfed._utils.progress import Steps
from compfed._utils.text import short, text_table
from compfed.errors import InputError
from compfed.report.figures import pyplot
from compfed.report.page import write_page
from compfed.studies.paper.claims import Claim, all_claims, as_json
from compfed.studies.paper.experiments import experiments
from compfed.studies.paper.figures import draw_figures
from compfed.studies.paper.finished import Finished
from compfed.studies.paper.keys import ALGORITHM_1, Traces
from compfed.studies.paper.runs import Experiment
from compfed.studies.paper.setting import QUICK, Size

TITLE = "Composite federated learning with heterogeneous data, reproduced"


def reproduce(out: Path, quick: bool = False, seeds: int | None = None, stream: TextIO | None = None) -> list[Claim]:
    """Write figures/, traces/, claims.json and report.html below `out`; returns the claims."""
    pyplot()  # a missing matplotlib should be known before minutes of work, not after
    size = QUICK if quick else Size()
    if seeds is not None:
        if seeds < 1:
            raise InputError(f"--seeds {seeds}: at least one seed is needed; the paper's bands use five or more.")
        size = replace(size, seeds=seeds)
    check_writable(out, f"--out {out}")
    out.mkdir(parents=True, exist_ok=True)

    finished, todo = Finished(out, size), list(experiments(size))
    steps = Steps(len(todo) + 1, stream)
    try:
        traces = _all_traces(todo, finished, steps)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"{len(finished)} of {len(todo)} steps are finished and kept in {out}; the same command goes on from them."
        ) from None
    steps.start("figures and report")
    claims = all_claims(traces)
    write_text(out / "claims.json", json.dumps(as_json(claims), indent=2) + "\n")
    figures = draw_figures(traces, out / "figures")
    provenance = traces[ALGORITHM_1][0].provenance
    settings = {"size": asdict(size), **{k: provenance[k] for k in ("problem", "dtype", "device", "versions")}}
    lead = (
        f"Zhang, Hu and Johansson (ICASSP 2024): {size.clients} clients, heterogeneous logistic regression with ridge 0.01 and "
        f"l1 1e-4, {size.samples} examples per client, {size.seeds} seeds for mini-batches."
    )
    write_page(out / "report.html", TITLE, lead, as_json(claims), figures, settings)
    finished.done()
    steps.finish()
    return claims


class _Stopped(Exception):
    """Another step failed, or the run was interrupted: there is no use in going on with this one."""


def _all_traces(todo: list[Experiment], finished: Finished, steps: Steps) -> Traces:
    """The traces of all steps; each is on disk when it is done. When one fails, or on Ctrl-C, the others stop."""
    stop = threading.Event()

    def done(experiment: Experiment) -> Traces:
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
        running = [pool.submit(done, experiment) for experiment in todo]
        try:
            for future in wait(running, return_when=FIRST_EXCEPTION).done:
                future.result()  # raises what went wrong, while others may still be under way
            return {key: runs for future in running for key, runs in future.result().items()}
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def claims_table(claims: list[Claim]) -> str:
    """The claims as a person reads them in a terminal."""
    rows = []
    for c in claims:
        measured = "; ".join(
            f"{k}: {short(v)}" for k, v in c.measured.items() if not isinstance(v, dict) and k != "note"
        )
        nested = {k: v for k, v in c.measured.items() if isinstance(v, dict)}
        measured = measured or "; ".join(f"{k}: {short(next(iter(v.values())))}" for k, v in nested.items())
        rows.append(
            [("holds" if c.holds else "FAILS"), c.id, measured if len(measured) < 92 else measured[:89] + "..."]
        )
    notes = [f"{c.id}: {c.measured['note']}" for c in claims if "note" in c.measured]
    return "\n\n".join([text_table(["", "claim", "measured"], rows), *notes])
