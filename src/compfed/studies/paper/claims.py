"""The paper's claims, each computed from traces: what was measured, and whether it holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from compfed.studies.paper.keys import (
    ALGORITHM_1,
    FAST_FEDDA,
    FAST_FEDDAS,
    ONE_WORKER,
    PAPERS_PROBLEM,
    UPLOAD_ZHAT,
    Group,
    Key,
    Traces,
    keys,
)
from compfed.studies.paper.theorem import in_words
from compfed.trace import Trace


@dataclass(frozen=True)
class Claim:
    """One row of claims.json."""

    id: str
    claim: str
    where: str
    measured: dict[str, Any]
    holds: bool


CHECKS: dict[str, Callable[[Traces], Claim]] = {}  # by id, in the order of the paper


def _claim(id_: str, claim: str, where: str):
    """Register a check: a function from traces to (measured, holds)."""

    def register(check: Callable[[Traces], tuple[dict[str, Any], bool]]):
        def evaluate(traces: Traces) -> Claim:
            measured, holds = check(traces)
            return Claim(id_, claim, where, measured, bool(holds))

        CHECKS[id_] = evaluate
        return check

    return register


def all_claims(traces: Traces) -> list[Claim]:
    """Every claim, in the order of the paper."""
    return [check(traces) for check in CHECKS.values()]


def as_json(claims: list[Claim]) -> list[dict[str, Any]]:
    return [asdict(claim) for claim in claims]


def _final(trace: Trace) -> float:
    return float(trace["optimality"][-1])


def _floor(trace: Trace) -> float:
    """Mean optimality over the last quarter of the rounds."""
    return float(trace["optimality"][-max(len(trace) // 4, 1) :].mean())


def _median_floor(traces: list[Trace]) -> float:
    return float(np.median([_floor(t) for t in traces]))


def _straightness(trace: Trace, above: float, below: float) -> tuple[float, float]:
    """(decades per 100 rounds, R^2) of a straight line through log10(optimality) between two levels."""
    log = np.log10(np.maximum(trace["optimality"], 1e-300))
    part = (log < np.log10(below)) & (log > np.log10(above))
    r, v = trace["round"][part], log[part]
    if len(r) < 3:
        return 0.0, 0.0  # it never got there
    slope, intercept = np.polyfit(r, v, 1)
    residual = v - (slope * r + intercept)
    return float(-100 * slope), float(1 - residual.var() / v.var())


def _rounds_to(traces: list[Trace], level: float) -> float | None:
    """Median over seeds of the first recorded round at `level`; None if the median seed never gets there."""
    first = [t.first("optimality", level) for t in traces]
    median = float(np.median([np.inf if f is None else f for f in first]))
    return median if np.isfinite(median) else None


@_claim("exact-linear", "Algorithm 1 with full gradients converges exactly and linearly", "Fig. 1 left, section 4")
def _(traces):
    trace = traces[ALGORITHM_1][0]
    decades, r2 = _straightness(trace, above=1e-11, below=1e-2)
    final = _final(trace)
    return {"final_optimality": final, "decades_per_100_rounds": decades, "R2_of_straight_line": r2}, (
        final <= 1e-12 and r2 >= 0.999
    )


@_claim("neighbourhood", "FedMid and FedDA stop at a neighbourhood of the solution", "Fig. 1 left, section 4")
def _(traces):
    measured, holds = {}, True
    for name in ("FedMid", "FedDA"):
        optimality = traces[Key(Group.FULL, name)][0]["optimality"]
        last, middle = float(optimality[-1]), float(optimality[2 * len(optimality) // 3])
        measured[name] = last
        holds &= last > 0.05 and abs(last - middle) < 0.05 * last
    return measured, holds


@_claim("fedda-better", "FedDA ends closer than FedMid, having no primal averaging", "Fig. 1 left, section 4")
def _(traces):
    mid, da = (_final(traces[Key(Group.FULL, name)][0]) for name in ("FedMid", "FedDA"))
    draws = (traces[Key(Group.DRAWS, name)] for name in ("FedMid", "FedDA"))
    pairs = [(_final(a), _final(b)) for a, b in zip(*draws, strict=True)]
    pairs.append((mid, da))
    share = float(np.mean([b < a for a, b in pairs]))
    measured = {"FedMid": mid, "FedDA": da, "share_of_data_draws": share}
    without_prox = traces.get(Key(Group.FULL, "FedMid (no server prox)"))
    if without_prox:  # the reading in the paper's text; it comes closer to FedDA
        measured["FedMid_without_server_prox"] = _final(without_prox[0])
    return measured, da < mid and share >= 0.8


@_claim("fast-fedda-slow", "Fast-FedDA is slow, because its step sizes decay", "Fig. 1 left, section 4")
def _(traces):
    measured, holds = {}, True
    ours = traces[ALGORITHM_1][0]
    for name in (name for name in FAST_FEDDAS if Key(Group.FULL, name) in traces):
        trace = traces[Key(Group.FULL, name)][0]
        late = trace["round"] >= trace["round"][-1] / 2
        power = float(np.polyfit(np.log(trace["round"][late]), np.log(trace["optimality"][late]), 1)[0])
        measured[name] = {"final_optimality": _final(trace), "fitted_rate": f"round^{power:.2f}"}
        holds &= -1.3 < power < -0.6 and _final(trace) > 1e3 * _final(ours)
    return measured, holds


@_claim("stochastic-floor", "With mini-batches (b = 20) Algorithm 1 has the lowest floor", "Fig. 1 right, section 4")
def _(traces):
    names = ("DecoupledProx", "FedMid", "FedDA", FAST_FEDDA)
    floors = {name: [_floor(t) for t in traces[Key(Group.STOCHASTIC, name)]] for name in names}
    others = np.array([floors[name] for name in names[1:]])
    share = float(np.mean(np.array(floors["DecoupledProx"]) < others.min(axis=0)))
    return {name: float(np.median(f)) for name, f in floors.items()} | {"share_of_seeds": share}, share == 1.0


@_claim("eta-trade-off", "Smaller eta is slower and more accurate (b = 50, tau = 10)", "Fig. 2 left, section 4")
def _(traces):
    etas = [f"{key.value:g}" for key in keys(traces, Group.ETA)]
    runs = [traces[key] for key in keys(traces, Group.ETA)]
    to_level = [_rounds_to(r, 0.1) for r in runs]
    floors = [_median_floor(r) for r in runs]
    ordered = all(a is not None and b is not None and a < b for a, b in itertools.pairwise(to_level))
    return {
        "rounds_to_0.1": dict(zip(etas, to_level, strict=True)),
        "floor": dict(zip(etas, floors, strict=True)),
        "rounds_run": {eta: int(r[0]["round"][-1]) for eta, r in zip(etas, runs, strict=True)},
    }, ordered and floors[0] > floors[1] > floors[2]


@_claim("tau-faster", "Larger tau is faster at the same accuracy (b = 50, eta = 0.2)", "Fig. 2 right, section 4")
def _(traces):
    shorter = keys(traces, Group.TAU)
    taus = [f"{key.value:g}" for key in shorter] + ["10"]
    runs = [traces[key] for key in shorter] + [traces[Key(Group.ETA, "eta", 0.2)]]
    to_level = [_rounds_to(r, 0.01) for r in runs]
    floors = [_median_floor(r) for r in runs]
    ordered = all(a is not None and b is not None and a > b for a, b in itertools.pairwise(to_level))
    return {
        "rounds_to_0.01": dict(zip(taus, to_level, strict=True)),
        "floor": dict(zip(taus, floors, strict=True)),
        "largest_to_smallest_floor": max(floors) / min(floors),
    }, ordered and max(floors) < 2 * min(floors)


@_claim("one-vector", "One d-vector up and one down per client and round", "section 2, contribution")
def _(traces):
    trace = traces[ALGORITHM_1][0]
    up, down = (float(trace[column][-1] / trace["round"][-1]) for column in ("vectors_up", "vectors_down"))
    fast = traces[Key(Group.FULL, FAST_FEDDA)][0]
    return {"up": up, "down": down, "FastFedDA_up": float(fast["vectors_up"][-1] / fast["round"][-1])}, up == down == 1


@_claim("zero-mean-correction", "The average correction of all workers is zero", "section 2, below eq. (2)")
def _(traces):
    other = (Group.FIXED_POINT, Group.WITHOUT_FLOOR)  # set by hand; not of the paper
    corrected = [t for key, ts in traces.items() if key.group not in other for t in ts if "correction" in t]
    worst = max(float(t["correction"].max()) for t in corrected)
    return {"largest_norm": worst, "runs": len(corrected)}, worst <= 1e-12


@_claim("equation-2", "The server update is the averaged-gradient form of eq. (2)", "eq. (2), appendix A")
def _(traces):
    trace = traces[UPLOAD_ZHAT][0]
    worst = float(trace["eq2_gap"][1:].max())
    return {"largest_gap": worst, "rounds": int(trace["round"][-1])}, worst <= 1e-12


@_claim("fixed-point-appendix", "One worker, tau = 2, full gradients: started at x*, stays at x*", "appendix, line 11")
def _(traces):
    worst = float(traces[ONE_WORKER][0]["optimality"].max())
    return {"largest_optimality": worst}, worst <= 1e-12


@_claim("fixed-point-every-n", "The same for every n with c_i = grad f(x*) - grad f_i(x*)", "beyond the paper")
def _(traces):
    others = [key for key in keys(traces, Group.FIXED_POINT) if key != ONE_WORKER]
    worst = {str(key): float(traces[key][0]["optimality"].max()) for key in others}
    return worst, len(worst) == 2 and max(worst.values()) <= 1e-12


@_claim(
    "growing-prox", "The prox parameter (t+1) eta is what makes it exact; eta, eta~ and none leave a floor", "line 11"
)
def _(traces):
    measured, holds = {}, True
    for setting, rules, methods in (
        ("ablation", Group.ABLATION, Group.FULL),
        ("sparse", Group.SPARSE_ABLATION, Group.SPARSE),
    ):
        ours = _final(traces[Key(methods, "DecoupledProx")][0])
        measured[f"{setting}: growing"] = ours
        for key in keys(traces, rules):
            floor = _final(traces[key][0])
            measured[f"{setting}: {key.name}"] = floor
            holds &= floor > 1e-4 and floor > 1e6 * ours
    return measured, holds


@_claim(
    "sparse-support",
    "In a sparse setting (l1 1e-3) Algorithm 1 finds the zeros of x*; FedMid and FedDA do not",
    "beyond the paper",
)
def _(traces):
    runs = {name: traces[Key(Group.SPARSE, name)][0] for name in ("DecoupledProx", "FedMid", "FedDA")}
    target = int(runs["DecoupledProx"].provenance["x_star"]["nonzeros"])
    measured = {"x_star": target} | {name: int(t["nonzeros"][-1]) for name, t in runs.items()}
    final = {f"optimality of {name}": _final(t) for name, t in runs.items()}
    holds = measured["DecoupledProx"] == target and all(_final(runs[n]) > 0.05 for n in ("FedMid", "FedDA"))
    return measured | final, holds and _final(runs["DecoupledProx"]) <= 1e-12


def within_bound(traces: Traces, group: Group) -> tuple[dict[str, Any], bool]:
    """The mean (over seeds) of the Lyapunov function against the theorem's bound, at every round."""
    measured, holds = {}, True
    for key in keys(traces, group):
        runs = traces[key]
        omega, bound = np.mean([t["lyapunov"] for t in runs], axis=0), runs[0]["bound"]
        worst = float((omega / bound).max())
        measured[str(key)] = {
            "largest_ratio_to_bound": worst,
            "rounds": int(runs[0]["round"][-1]),
            "lyapunov_first_last": [float(omega[0]), float(omega[-1])],
            "bound_last": float(bound[-1]),
            "seeds": len(runs),
            **{name: float(runs[0].provenance["theorem"][name]) for name in ("sigma2", "B_g", "eta_tilde")},
        }
        holds &= worst <= 1.0 + 1e-12
    return measured, holds and bool(measured)


@_claim("theorem-1", "Theorem 1's bound holds at every round with its own step sizes", "Theorem 1")
def _(traces):
    measured, holds = within_bound(traces, Group.THEOREM)
    if PAPERS_PROBLEM in traces:
        measured["note"] = in_words(traces[PAPERS_PROBLEM])
    return measured, holds


@_claim("corollary-1", "Corollary 1: for an indicator g the B_g term drops", "Corollary 1")
def _(traces):
    return within_bound(traces, Group.COROLLARY)


@_claim(
    "honest-baseline",
    "At the paper's step sizes FISTA needs fewer rounds and fewer gradients to 1e-6",
    "beyond the paper",
)
def _(traces):
    measured = {}
    for name in ("DecoupledProx", "ProximalGradient", "FISTA"):
        trace = traces[Key(Group.FULL, name)][0]
        rounds = trace.first("optimality", 1e-6)
        gradients = None if rounds is None else float(trace["gradients"][trace["round"] == rounds][0])
        measured[name] = {"rounds": rounds, "gradients_per_client": gradients}
    ours, fista = measured["DecoupledProx"], measured["FISTA"]
    return measured, fista["rounds"] is not None and (ours["rounds"] is None or fista["rounds"] < ours["rounds"])
