"""The figures of the report: their panels, lines and captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from compfed.report.figures import Curve, Panel, draw
from compfed.studies.paper.claims import is_flat
from compfed.studies.paper.experiments import ALGORITHM_1, FAST_FEDDA, FAST_FEDDAS, METHODS, Group, Key, Traces, keys
from compfed.trace import Trace

STYLES = {
    **{name: i for i, name in enumerate(METHODS)},
    FAST_FEDDAS[1]: 4,
    "ProximalGradient": 5,
    "FISTA": 6,
    FAST_FEDDAS[2]: 7,
}
RULES = {"eta": "η", "eta-tilde": "η̃", "none": "none"}


NOT_STATED = (
    "The paper does not state the dimension, the rule for the labels, the scaling of the rows, the seeds, or the numbers "
    "behind its figures. Here: 60 features, labels by the sign of a linear model of each client, rows of norm 1, data "
    "of seed 0, mini-batches of seeds 0, 1, and so on."
)

Figure = tuple[str, list[Panel], str]  # the name of its files, panels, caption


def draw_figures(traces: Traces, folder: Path) -> list[tuple[Path, str]]:
    """Draw all figures; return (path without suffix, caption) of each."""
    drawn = []
    for make in (_figure_1, _without_floor, _figure_2, _ablation, _budget, _sparse, _theorem):
        name, panels, caption = make(traces)
        draw(panels, folder / name)
        drawn.append((folder / name, caption))
    return drawn


def _methods(traces: Traces, group: Group, names: Sequence[str]) -> list[Curve]:
    return [Curve(name, traces[Key(group, name)], STYLES[name]) for name in names]


def _figure_1(traces: Traces) -> Figure:
    shown = [*METHODS, *(name for name in FAST_FEDDAS[1:] if Key(Group.FULL, name) in traces)]
    full, stochastic = _methods(traces, Group.FULL, shown), _methods(traces, Group.STOCHASTIC, METHODS)
    panels = [Panel("Full gradients", full), Panel("Mini-batches, b = 20", stochastic, legend=None)]
    caption = (
        "Figure 1: Algorithm 1 (DecoupledProx) against FedMid, FedDA and Fast-FedDA; η = η_g = 1, τ = 5. "
        "Fast-FedDA has the constant weights of its authors' code; where the left panel shows linear and quadratic weights too, those are "
        "schedules of other implementations, and slower here. Its paper's text was not at hand. Right: median and 10-90 % band over seeds. "
        + NOT_STATED
    )
    return "figure-1", panels, caption


def _without_floor(traces: Traces) -> Figure:
    (variance_reduced,) = keys(traces, Group.WITHOUT_FLOOR)
    plain, reduced = traces[Key(Group.STOCHASTIC, "DecoupledProx")], traces[variance_reduced]
    rounds = int(reduced[0]["round"][-1])
    full = [_until(trace, rounds) for trace in traces[ALGORITHM_1]]
    lines = [
        Curve("Algorithm 1, b = 20", plain, 0),
        Curve("Algorithm 1, full gradients", full, 5, width=3.2),
        Curve("variance-reduced, b = 20", reduced, 4),  # lies on the one before
    ]
    error = [np.median([t["optimality"][-1] for t in runs]) for runs in (plain, reduced)]
    rows = [runs[0]["rows"][-1] / rounds for runs in (plain, reduced, full)]
    against_rows = Panel("Against rows read", lines, x="rows", legend=None, log_x=True)
    caption = (
        "Beyond the paper: the floor of Figure 1, right, is the noise of the mini-batches, and it can be taken away. In "
        "VarianceReducedDecoupledProx a client takes one full gradient when a round starts and corrects every mini-batch "
        f"gradient of the round with it. After {rounds} rounds Algorithm 1 is at an error of {error[0]:.1e}, and this "
        f"method, with the same steps and the same bytes, at {error[1]:.1e}: it follows Algorithm 1 with full gradients. "
        f"A round costs one full gradient and twice the mini-batches: {rows[1]:,.0f} rows read at a client, against "
        f"{rows[0]:,.0f} for Algorithm 1 with mini-batches, which is the cheaper one as long as its floor will do, and "
        f"{rows[2]:,.0f} with full gradients. η = η_g = 1, τ = 5, b = 20; median and 10-90 % band over seeds."
    )
    return "without-floor", [Panel("Against rounds", lines, legend="lower left"), against_rows], caption


def _until(trace: Trace, rounds: int) -> Trace:
    """The rows of a trace up to so many rounds."""
    return replace(trace, columns={name: column[trace["round"] <= rounds] for name, column in trace.columns.items()})


def _figure_2(traces: Traces) -> Figure:
    etas = [Curve(f"η = {key.value:g}", traces[key], i) for i, key in enumerate(keys(traces, Group.ETA))]
    taus = [Curve(f"τ = {key.value:g}", traces[key], i) for i, key in enumerate(keys(traces, Group.TAU))]
    taus.append(Curve("τ = 10", traces[Key(Group.ETA, "eta", 0.2)], 2))
    caption = (
        "Figure 2: impact of the step size and of the number of local steps on Algorithm 1; b = 50, median and "
        "10-90 % band over seeds. "
    )
    falling = [curve.label for curve in (*etas, *taus) if not is_flat(curve.traces)]
    if falling:
        caption += f"Still falling at the end, so that no floor is reached: {', '.join(falling)}. "
    caption += NOT_STATED
    return "figure-2", [Panel("Step size, τ = 10", etas), Panel("Local steps, η = 0.2", taus)], caption


def _ablation(traces: Traces) -> Figure:
    panels = []
    for l1, group, exact in (("1e-4", Group.ABLATION, Group.FULL), ("1e-3", Group.SPARSE_ABLATION, Group.SPARSE)):
        others = [Curve(RULES[key.name], traces[key], i + 1) for i, key in enumerate(keys(traces, group))]
        ours = Curve("(t+1)η", traces[Key(exact, "DecoupledProx")], 0)
        panels.append(Panel(f"Local prox parameter, l1 = {l1}", [ours, *others]))
    return "ablation", panels, "Beyond the paper: only the growing prox parameter of line 11 is exact."


def _budget(traces: Traces) -> Figure:
    lines = _methods(traces, Group.FULL, ("DecoupledProx", "FedDA", FAST_FEDDA, "ProximalGradient", "FISTA"))
    panels = [
        Panel("Against rounds", lines),
        Panel("Against bytes", lines, x="bytes_up", legend=None),
        Panel("Against gradients", lines, x="gradients", legend=None),
    ]
    costs = (
        "the same runs against their costs, with proximal gradient and restarted FISTA (step 1/L) as reference lines"
    )
    return "budget", panels, f"Beyond the paper: {costs}."


def _sparse(traces: Traces) -> Figure:
    lines = _methods(traces, Group.SPARSE, ("DecoupledProx", "FedMid", "FedDA"))
    nonzeros = Panel("Non-zero coefficients", lines, y="nonzeros", legend="lower right", log=False)
    caption = "Beyond the paper: a setting in which the solution is sparse."
    return "sparse", [Panel("Sparse setting, l1 = 1e-3", lines), nonzeros], caption


def _theorem(traces: Traces) -> Figure:
    panels = []
    for key in keys(traces, Group.THEOREM):
        if key.name.startswith("ridge 1"):
            lines = [Curve("measured", traces[key], 0), Curve("bound", traces[key][:1], 1, y="bound")]
            title = f"{key.group.capitalize()}, {key.name}"
            panels.append(Panel(title, lines, y="lyapunov", floor=1e-18, legend="lower left"))
    caption = "The Lyapunov function of Theorem 1 and its bound, with the theorem's own step sizes (ridge 1)."
    return "theorem", panels, caption
