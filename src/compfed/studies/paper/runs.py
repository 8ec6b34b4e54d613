"""An experiment: runs that belong together, and how their progress is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compfed.monitor import Progress
from compfed.simulation import simulate
from compfed.studies.paper.keys import Key, Traces
from compfed.trace import Trace

Run = Callable[[Progress], list[Trace]]  # one trace per seed


@dataclass(frozen=True)
class Experiment:
    """`run(progress)` gives one list of traces (one per seed) for each line of a figure."""

    name: str
    run: Callable[[Progress], Traces]


def one_line(key: Key, run: Run) -> Experiment:
    """An experiment that is a single line of a figure."""
    return Experiment(str(key), lambda progress: {key: run(progress)})


def over_seeds(seeds: int, progress: Progress, *run: Any, **options: Any) -> list[Trace]:
    """One run per seed. `grid` would do them as one program, which takes longer to compile than these take to run."""
    return [
        simulate(*run, **options, seed=k, progress=lambda done, total, k=k: progress(k * total + done, seeds * total))
        for k in range(seeds)
    ]
