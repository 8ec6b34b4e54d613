"""The figures of the report: which lines stand in which panel, and what the caption says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from compfed.report.figures import Line, Panel, draw
from compfed.studies.paper.keys import ALGORITHM_1, FAST_FEDDA, RIDGE_1, RIDGE_1_BATCHES, Group, Key, Traces, keys

METHODS = ("DecoupledProx", "FedMid", "FedDA", FAST_FEDDA)
STYLES = {**{name: i for i, name in enumerate(METHODS)}, "ProximalGradient": 5, "FISTA": 6}
RULES = {"eta": "η", "eta-tilde": "η̃", "none": "none"}


class Figure(NamedTuple):
    name: str  # of its files
    panels: list[Panel]
    caption: str


def draw_figures(traces: Traces, folder: Path) -> list[tuple[Path, str]]:
    """All figures; returns (path without suffix, caption)."""
    wanted = list(_figures(traces))
    for figure in wanted:
        draw(figure.panels, folder / figure.name)
    return [(folder / figure.name, figure.caption) for figure in wanted]


def _figures(traces: Traces) -> Iterator[Figure]:
    yield _figure_1(traces)
    yield _figure_2(traces)
    yield _ablation(traces)
    yield _budget(traces)
    yield _sparse(traces)
    yield _theorem(traces)


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
        "Beyond the paper: the same runs against what they cost, with proximal gradient and restarted FISTA "
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
