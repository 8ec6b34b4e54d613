"""The figures of the report: their panels, lines and captions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compfed.report.figures import Line, Panel, draw
from compfed.studies.paper.experiments import (
    ALGORITHM_1,
    FAST_FEDDA,
    RIDGE_1,
    RIDGE_1_BATCHES,
    VARIANCE_REDUCED,
    Group,
    Key,
    Traces,
    keys,
)  # fmt: skip
from compfed.trace import Trace

METHODS = ("DecoupledProx", "FedMid", "FedDA", FAST_FEDDA)
STYLES = {**{name: i for i, name in enumerate(METHODS)}, "ProximalGradient": 5, "FISTA": 6}
RULES = {"eta": "η", "eta-tilde": "η̃", "none": "none"}


class Figure(NamedTuple):
    name: str  # of its files
    panels: list[Panel]
    caption: str


def draw_figures(traces: Traces, folder: Path) -> list[tuple[Path, str]]:
    """Draw all figures; return (path without suffix, caption) of each."""
    makers = (_figure_1, _without_floor, _figure_2, _ablation, _budget, _sparse, _theorem)
    figures = [make(traces) for make in makers]
    for figure in figures:
        draw(figure.panels, folder / figure.name)
    return [(folder / figure.name, figure.caption) for figure in figures]


def _method(traces: Traces, group: Group, name: str) -> Line:
    return Line(name, traces[Key(group, name)], STYLES[name])


def _figure_1(traces: Traces) -> Figure:
    full, stochastic = ([_method(traces, group, m) for m in METHODS] for group in (Group.FULL, Group.STOCHASTIC))
    return Figure(
        "figure-1",
        [Panel("Full gradients", full), Panel("Mini-batches, b = 20", stochastic, legend="center right")],
        "Figure 1: Algorithm 1 (DecoupledProx) against FedMid, FedDA and Fast-FedDA; η = η_g = 1, τ = 5. "
        "Right: median and 10-90 % band over seeds.",
    )


def _without_floor(traces: Traces) -> Figure:
    plain, reduced = traces[Key(Group.STOCHASTIC, "DecoupledProx")], traces[VARIANCE_REDUCED]
    rounds = int(reduced[0]["round"][-1])
    full = [_until(trace, rounds) for trace in traces[ALGORITHM_1]]
    lines = [
        Line("Algorithm 1, b = 20", plain, 0),
        Line("Algorithm 1, full gradients", full, 5, width=3.2),
        Line("variance-reduced, b = 20", reduced, 4),  # lies on the one before
    ]
    error = [np.median([t["optimality"][-1] for t in runs]) for runs in (plain, reduced)]
    rows = [runs[0]["gradient_rows"][-1] / rounds for runs in (plain, reduced, full)]
    return Figure(
        "without-floor",
        [
            Panel("Against rounds", lines, legend="lower left"),
            Panel("Against rows read", lines, x="gradient_rows", legend=None, log_x=True),
        ],
        "Beyond the paper: the floor of Figure 1, right, is the noise of the mini-batches, and it can be taken away. In "
        "VarianceReducedDecoupledProx a client takes one full gradient when a round starts and corrects every mini-batch "
        f"gradient of the round with it. After {rounds} rounds Algorithm 1 is at an error of {error[0]:.1e}, and this "
        f"method, with the same steps and the same bytes, at {error[1]:.1e}: it follows Algorithm 1 with full gradients. "
        f"A round costs one full gradient and twice the mini-batches: {rows[1]:,.0f} rows read at a client, against "
        f"{rows[0]:,.0f} for Algorithm 1 with mini-batches, which is the cheaper one as long as its floor will do, and "
        f"{rows[2]:,.0f} with full gradients. η = η_g = 1, τ = 5, b = 20; median and 10-90 % band over seeds.",
    )


def _until(trace: Trace, rounds: int) -> Trace:
    """The rows of a trace up to so many rounds."""
    return replace(trace, columns={name: column[trace["round"] <= rounds] for name, column in trace.columns.items()})


def _figure_2(traces: Traces) -> Figure:
    etas = [Line(f"η = {key.value:g}", traces[key], i) for i, key in enumerate(keys(traces, Group.ETA))]
    taus = [Line(f"τ = {key.value:g}", traces[key], i) for i, key in enumerate(keys(traces, Group.TAU))]
    taus.append(Line("τ = 10", traces[Key(Group.ETA, "eta", 0.2)], 2))
    return Figure(
        "figure-2",
        [Panel("Step size, τ = 10", etas), Panel("Local steps, η = 0.2", taus)],
        "Figure 2: impact of the step size and of the number of local steps on Algorithm 1; b = 50, median and "
        "10-90 % band over seeds.",
    )


def _ablation(traces: Traces) -> Figure:
    def rules(group: Group, exact: Key) -> list[Line]:
        others = [Line(RULES[key.name], traces[key], i + 1) for i, key in enumerate(keys(traces, group))]
        return [Line("(t+1)η", traces[exact], 0), *others]

    return Figure(
        "ablation",
        [
            Panel("Local prox parameter, l1 = 1e-4", rules(Group.ABLATION, ALGORITHM_1)),
            Panel("Local prox parameter, l1 = 1e-3", rules(Group.SPARSE_ABLATION, Key(Group.SPARSE, "DecoupledProx"))),
        ],
        "Beyond the paper: only the growing prox parameter of line 11 is exact.",
    )


def _budget(traces: Traces) -> Figure:
    methods = ("DecoupledProx", "FedDA", FAST_FEDDA, "ProximalGradient", "FISTA")
    lines = [_method(traces, Group.FULL, m) for m in methods]
    axes = (("rounds", "round"), ("bytes", "bytes_up"), ("gradients", "gradients"))
    return Figure(
        "budget",
        [Panel(f"Against {w}", lines, x=x, legend="upper right" if x == "round" else None) for w, x in axes],
        "Beyond the paper: the same runs against their costs, with proximal gradient and restarted FISTA "
        "(step 1/L) as reference lines.",
    )


def _sparse(traces: Traces) -> Figure:
    lines = [_method(traces, Group.SPARSE, m) for m in ("DecoupledProx", "FedMid", "FedDA")]
    return Figure(
        "sparse",
        [
            Panel("Sparse setting, l1 = 1e-3", lines),
            Panel("Non-zero coefficients", lines, y="nonzeros", legend="lower right", log=False),
        ],
        "Beyond the paper: a setting in which the solution is sparse.",
    )


def _theorem(traces: Traces) -> Figure:
    def panel(key: Key) -> Panel:
        lines = [Line("measured", traces[key], 0), Line("bound", traces[key][:1], 1, y="bound")]
        title = f"{key.group.capitalize()}, {key.name}"
        return Panel(title, lines, y="lyapunov", floor=1e-18, legend="lower left")

    return Figure(
        "theorem",
        [panel(key) for key in (RIDGE_1, RIDGE_1_BATCHES) if key in traces],  # the quick size has the first only
        "The Lyapunov function of Theorem 1 and its bound, with the theorem's own step sizes (ridge 1).",
    )
