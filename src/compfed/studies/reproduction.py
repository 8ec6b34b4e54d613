"""`compfed reproduce`: run everything, draw everything, check every claim, and say so."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

from compfed.errors import InputError
from compfed.report.figures import Line, Panel, draw, pyplot
from compfed.report.page import write_page
from compfed.studies.claims import Claim, Traces, all_claims, as_json
from compfed.studies.paper import QUICK, Size, experiments
from compfed.tools.progress import Steps
from compfed.tools.text import short, text_table

TITLE = "Composite federated learning with heterogeneous data, reproduced"
STYLES = {
    "DecoupledProx": 0, "FedMid": 1, "FedDA": 2, "FastFedDA (quadratic)": 3, "ProximalGradient": 5, "FISTA": 6,
}  # fmt: skip
RULES = {"eta": "η", "eta-tilde": "η̃", "none": "none"}


def reproduce(out: Path, quick: bool = False, seeds: int | None = None, stream: TextIO | None = None) -> list[Claim]:
    """Write figures/, traces/, claims.json and report.html below `out`; returns the claims."""
    pyplot()  # a missing matplotlib should be known before minutes of work, not after
    size = QUICK if quick else Size()
    if seeds is not None:
        if seeds < 1:
            raise InputError(f"--seeds {seeds}: at least one seed is needed; the paper's bands use five or more.")
        size = replace(size, seeds=seeds)
    out.mkdir(parents=True, exist_ok=True)

    todo = list(experiments(size))
    steps = Steps(len(todo) + 1, stream)
    # Compiling and small programs keep one core busy, so two experiments run side by side.
    with ThreadPoolExecutor(max_workers=2) as pool:
        groups = pool.map(lambda experiment: experiment.run(steps.start(experiment.name)), todo)
        traces: Traces = {name: runs for group in groups for name, runs in group.items()}
    steps.start("figures and report")
    for name, runs in traces.items():
        for i, trace in enumerate(runs):
            trace.save(out / "traces" / f"{_slug(name)}-{i}")
    claims = all_claims(traces)
    (out / "claims.json").write_text(json.dumps(as_json(claims), indent=2) + "\n")
    figures = draw_figures(traces, out / "figures")
    provenance = traces["full: DecoupledProx"][0].provenance
    settings = {"size": asdict(size), **{k: provenance[k] for k in ("problem", "dtype", "device", "versions")}}
    lead = (
        f"Zhang, Hu and Johansson (ICASSP 2024): {size.clients} clients, heterogeneous logistic regression with ridge 0.01 and "
        f"l1 1e-4, {size.samples} examples per client, {size.seeds} seeds for mini-batches."
    )
    write_page(out / "report.html", TITLE, lead, as_json(claims), figures, settings)
    steps.finish()
    return claims


def claims_table(claims: list[Claim]) -> str:
    """The claims as a person reads them in a terminal."""
    rows = []
    for c in claims:
        measured = "; ".join(
            f"{k}: {short(v)}" for k, v in c.measured.items() if not isinstance(v, dict) and k != "note"
        )
        measured = measured or "; ".join(f"{k}: {short(next(iter(v.values())))}" for k, v in c.measured.items())
        rows.append(
            [("holds" if c.holds else "FAILS"), c.id, measured if len(measured) < 92 else measured[:89] + "..."]
        )
    return text_table(["", "claim", "measured"], rows)


def draw_figures(traces: Traces, folder: Path) -> list[tuple[Path, str]]:
    """All figures; returns (path without suffix, caption)."""

    def line(group: str, name: str, style: int | None = None, label: str | None = None) -> Line:
        return Line(label or name, traces[f"{group}: {name}"], STYLES[name] if style is None else style)

    methods = ("DecoupledProx", "FedMid", "FedDA", "FastFedDA (quadratic)")
    figure_1 = [
        Panel("Full gradients", [line("full", m) for m in methods]),
        Panel("Mini-batches, b = 20", [line("stochastic", m) for m in methods], legend="center right"),
    ]
    etas = [name.rsplit(" ", 1)[1] for name in traces if name.startswith("impact of eta")]
    taus = [name.rsplit(" ", 1)[1] for name in traces if name.startswith("impact of tau")]
    figure_2 = [
        Panel("Step size, τ = 10", [line("impact of eta", f"eta = {e}", i, f"η = {e}") for i, e in enumerate(etas)]),
        Panel(
            "Local steps, η = 0.2",
            [line("impact of tau", f"tau = {t}", i, f"τ = {t}") for i, t in enumerate(taus)]
            + [line("impact of eta", "eta = 0.2", 2, "τ = 10")],
        ),
    ]

    def rules(group: str, exact: str) -> list[Line]:
        names = {rule: f"local prox: {rule}" for rule in RULES if f"{group}: local prox: {rule}" in traces}
        others = [line(group, name, i + 1, RULES[rule]) for i, (rule, name) in enumerate(names.items())]
        return [Line("(t+1)η", traces[f"{exact}: DecoupledProx"], 0), *others]

    ablation = [
        Panel("Local prox parameter, l1 = 1e-4", rules("ablation", "full")),
        Panel("Local prox parameter, l1 = 1e-3", rules("sparse", "sparse")),
    ]
    costs = [line("full", m) for m in ("DecoupledProx", "FedDA", "FastFedDA (quadratic)", "ProximalGradient", "FISTA")]
    axes = (("rounds", "round"), ("bytes", "bytes_up"), ("gradients", "gradients"))
    budget = [Panel(f"Against {w}", costs, x=x, legend="upper right" if x == "round" else None) for w, x in axes]
    sparse = [
        Panel("Sparse setting, l1 = 1e-3", [line("sparse", m) for m in methods[:3]]),
        Panel(
            "Non-zero coefficients",
            [line("sparse", m) for m in methods[:3]],
            y="nonzeros",
            legend="lower right",
            log=False,
        ),
    ]
    bound = [
        Panel(
            name.capitalize().replace(": ", ", "),
            [Line("measured", traces[name], 0), Line("bound", traces[name][:1], 1, y="bound")],
            y="lyapunov",
            floor=1e-18,
            legend="lower left",
        )
        for name in ("theorem 1: ridge 1", "theorem 1: ridge 1, b = 20")
        if name in traces  # the quick size has the first only
    ]
    wanted = [
        (
            "figure-1", figure_1,
            "Figure 1: Algorithm 1 (DecoupledProx) against FedMid, FedDA and Fast-FedDA; η = η_g = 1, τ = 5. "
            "Right: median and 10-90 % band over seeds.",
        ),
        (
            "figure-2", figure_2,
            "Figure 2: impact of the step size and of the number of local steps on Algorithm 1; b = 50, median and "
            "10-90 % band over seeds.",
        ),
        ("ablation", ablation, "Beyond the paper: only the growing prox parameter of line 11 is exact."),
        (
            "budget", budget,
            "Beyond the paper: the same runs against what they cost, with proximal gradient and restarted FISTA "
            "(step 1/L) as reference lines.",
        ),
        ("sparse", sparse, "Beyond the paper: a setting in which the solution is sparse."),
        ("theorem", bound, "The Lyapunov function of Theorem 1 and its bound, with the theorem's own step sizes (ridge 1)."),
    ]  # fmt: skip
    for name, panels, _ in wanted:
        draw(panels, folder / name)
    return [(folder / name, caption) for name, _, caption in wanted]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
