"""The claims that `compfed reproduce` checks: for each, the measured numbers and whether it holds, from traces alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compfed._utils.text import short, text_table
from compfed.studies.paper.experiments import ALGORITHM_1, FAST_FEDDA, METHODS, PAPERS_PROBLEM, Group, Key, Traces, keys
from compfed.trace import Trace


@dataclass(frozen=True)
class Claim:
    """One row of claims.json.

    Attributes
    ----------
    id : str
    claim : str
        The claim in one sentence.
    where : str
        Its place in the paper, or "beyond the paper".
    paper : str
        What the paper says there; its figures come without numbers. Empty beyond the paper.
    measured : dict
        Numbers, texts and dictionaries of them.
    holds : bool
    """

    id: str
    claim: str
    where: str
    paper: str
    measured: dict[str, object]
    holds: bool


OURS = "beyond the paper"

# What the paper says, by claim. Its figures have no numbers in the text.
STATED = {
    "exact-linear": "exact convergence, better than the residual of Theorem 1; no numbers",
    "neighbourhood": "a neighbourhood of the solution, due to client drift; no numbers",
    "fedda-better": "FedDA is better, as it overcomes the curse of primal averaging; no numbers",
    "fast-fedda-slow": "slow, due to its decaying step sizes; no numbers",
    "stochastic-floor": "a neighbourhood; the others still perform worse; no numbers",
    "eta-trade-off": "smaller steps: slower, and of higher accuracy; no numbers",
    "tau-faster": "more local steps: faster, at the same level of accuracy; no numbers",
    "residual": "of the order sigma^2 / (n b) in the squared error: powers of -1/2 in the error",
    "one-vector": "one vector of d numbers",
    "zero-mean-correction": "0",
    "equation-2": "equal",
    "fixed-point-appendix": "stays at x*",
    "growing-prox": "(t+1) eta is what lets it stop at x*",
    "inexact-splitting": "the accuracy of local solves needs to increase by iteration, for convergence",
    "theorem-1": "at most the bound: a ratio of at most 1",
    "corollary-1": "at most the bound without B_g: a ratio of at most 1",
}

Check = tuple[Mapping[str, object], bool]  # measured, holds


CHECKS: dict[str, Callable[[Traces], Claim]] = {}  # by id, in the order of the paper


def _claim(claim: str, where: str) -> Callable[[Callable[[Traces], Check]], None]:
    """Register a claim under the name of the function that checks it, with dashes."""

    def register(check: Callable[[Traces], Check]) -> None:
        name = check.__name__.replace("_", "-")

        def evaluate(traces: Traces) -> Claim:
            measured, holds = check(traces)
            return Claim(name, claim, where, STATED.get(name, ""), dict(measured), bool(holds))

        CHECKS[name] = evaluate

    return register


def all_claims(traces: Traces) -> list[Claim]:
    """Every claim, in the order of the paper."""
    return [check(traces) for check in CHECKS.values()]


def claims_table(claims: Sequence[Claim]) -> str:
    """The claims as text for a terminal."""
    rows = []
    for c in claims:
        flat = {k: v for k, v in c.measured.items() if not isinstance(v, dict) and k != "note"}
        first = {k: next(iter(v.values())) for k, v in c.measured.items() if isinstance(v, dict)}
        measured = "; ".join(f"{k}: {short(v)}" for k, v in (flat or first).items())
        shown = measured if len(measured) < 92 else measured[:89] + "..."
        rows.append(["holds" if c.holds else "FAILS", c.id, shown])
    notes = [f"{c.id}: {c.measured['note']}" for c in claims if "note" in c.measured]
    return "\n\n".join([text_table(["", "claim", "measured"], rows), *notes])


def verdict(claims: Sequence[Claim]) -> str:
    """How many claims hold: the paper's, and ours apart from them.

    >>> one = Claim("a", "It is so.", "Theorem 1", "", {}, True)
    >>> verdict([one, Claim("b", "So too.", OURS, "", {}, False)])
    "1 of the paper's 1 claims holds, and 0 of 1 of our own beyond it."
    """
    ours, papers = ([c.holds for c in claims if (c.where == OURS) == mine] for mine in (True, False))
    verb = "holds" if sum(papers) == 1 else "hold"
    return f"{sum(papers)} of the paper's {len(papers)} claims {verb}, and {sum(ours)} of {len(ours)} of our own beyond it."


# --- measurements ---


def _run(traces: Traces, name: str, group: Group = Group.FULL) -> Trace:
    """The run of a method, with the first seed."""
    return traces[Key(group, name)][0]


def _final(trace: Trace) -> float:
    """Optimality at the end of a run."""
    return float(trace["optimality"][-1])


def _floor(trace: Trace) -> float:
    """Mean optimality over the last quarter of the rounds; a floor only if `is_flat`."""
    return float(trace["optimality"][-max(len(trace) // 4, 1) :].mean())


def is_flat(runs: Sequence[Trace]) -> bool:
    """Whether the error has stopped falling: its mean over the last quarter of the rounds against that over the quarter before.

    Over seeds the logarithm of the ratio may be below zero by a tenth, or by two standard errors if that is more.
    """
    ratios = []
    for trace in runs:
        quarter = max(len(trace) // 4, 1)
        v = trace["optimality"]
        ratios.append(np.log(v[-quarter:].mean() / v[-2 * quarter : -quarter].mean()))
    error = np.std(ratios, ddof=1) / np.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return bool(np.mean(ratios) > -max(0.1, 2 * error))


def _ends(floors: Mapping[str, float], runs: Mapping[str, Sequence[Trace]]) -> dict[str, object]:
    """The errors at the end: a floor only where the error has stopped falling."""
    flat = {name: floor for name, floor in floors.items() if is_flat(runs[name])}
    falling = {name: floor for name, floor in floors.items() if name not in flat}
    found: dict[str, object] = {"relative error at the floor": flat} if flat else {}
    return found | ({"relative error at the end, still falling": falling} if falling else {})


def _straightness(trace: Trace, above: float, below: float) -> tuple[float, float]:
    """(decades per 100 rounds, R^2) of a straight line through log10(optimality) between two levels."""
    log = np.log10(np.maximum(trace["optimality"], 1e-300))
    part = (log < np.log10(below)) & (log > np.log10(above))
    r, v = trace["round"][part], log[part]
    if len(r) < 3:
        return 0.0, 0.0  # the run never reaches these levels
    slope, intercept = np.polyfit(r, v, 1)
    residual = v - (slope * r + intercept)
    return float(-100 * slope), float(1 - residual.var() / v.var())


def _speed_and_floor(runs: dict[str, list[Trace]], level: float) -> tuple[dict[str, object], list[float], list[float]]:
    """Medians over seeds, as measurements and as numbers: the first round at a level (inf, or None: never), and the error at the end."""
    first = [[t.first("optimality", level) for t in seeds] for seeds in runs.values()]
    rounds = [float(np.median([np.inf if r is None else r for r in seeds])) for seeds in first]
    floors = [float(np.median([_floor(t) for t in seeds])) for seeds in runs.values()]
    reached = [None if np.isinf(r) else r for r in rounds]
    measured: dict[str, object] = {f"rounds to a relative error of {level:g}": dict(zip(runs, reached, strict=True))}
    return measured | _ends(dict(zip(runs, floors, strict=True)), runs), rounds, floors


# --- the claims ---


@_claim("Algorithm 1 with full gradients converges exactly and linearly", "Fig. 1 left, section 4")
def exact_linear(traces: Traces) -> Check:
    trace = traces[ALGORITHM_1][0]
    decades, r2 = _straightness(trace, above=1e-11, below=1e-2)
    measured = {
        "relative error at the end": _final(trace),
        "powers of ten in 100 rounds": decades,
        "R^2 of a straight line through the logarithm": r2,
    }
    return measured, _final(trace) <= 1e-12 and r2 >= 0.999


@_claim("FedMid and FedDA stop at a neighbourhood of the solution", "Fig. 1 left, section 4")
def neighbourhood(traces: Traces) -> Check:
    runs = {name: _run(traces, name)["optimality"] for name in ("FedMid", "FedDA")}
    stopped = [v[-1] > 0.05 and abs(v[-1] - v[2 * len(v) // 3]) < 0.05 * v[-1] for v in runs.values()]
    return {f"relative error at the end, {name}": float(v[-1]) for name, v in runs.items()}, all(stopped)


@_claim("FedDA ends closer than FedMid, having no primal averaging", "Fig. 1 left, section 4")
def fedda_better(traces: Traces) -> Check:
    mid, da = (_final(_run(traces, name)) for name in ("FedMid", "FedDA"))
    draws = zip(*(traces[Key(Group.DRAWS, name)] for name in ("FedMid", "FedDA")), strict=True)
    share = float(np.mean([da < mid, *(_final(b) < _final(a) for a, b in draws)]))
    measured = {
        "relative error at the end, FedMid": mid,
        "relative error at the end, FedDA": da,
        "share of the draws of the data in which FedDA is closer": share,
    }
    without_prox = traces.get(Key(Group.FULL, "FedMid (no server prox)"))
    if without_prox:  # as the paper's text reads; it comes closer to FedDA
        measured["FedMid without its prox at the server"] = _final(without_prox[0])
    return measured, da < mid and share >= 0.8


@_claim("Fast-FedDA is slow, because its step sizes decay", "Fig. 1 left, section 4")
def fast_fedda_slow(traces: Traces) -> Check:
    measured, holds = {}, True
    for key in keys(traces, Group.FULL):
        if key.name.startswith("FastFedDA"):
            trace = traces[key][0]
            late = trace["round"] >= trace["round"][-1] / 2
            power = np.polyfit(np.log(trace["round"][late]), np.log(trace["optimality"][late]), 1)[0]
            end = f"relative error after {int(trace['round'][-1])} rounds"
            measured[key.name] = {end: _final(trace), "rate": f"round^{power:.2f}"}
            holds &= -1.3 < power < -0.6 and _final(trace) > 1e3 * _final(traces[ALGORITHM_1][0])
    return measured, holds


@_claim("With mini-batches (b = 20) Algorithm 1 ends at the nearest neighbourhood", "Fig. 1 right, section 4")
def stochastic_floor(traces: Traces) -> Check:
    runs = {name: traces[Key(Group.STOCHASTIC, name)] for name in METHODS}
    floors = {name: [_floor(t) for t in seeds] for name, seeds in runs.items()}
    ours, *others = floors.values()
    share = float(np.mean(np.array(ours) < np.min(others, axis=0)))
    measured = _ends({name: float(np.median(f)) for name, f in floors.items()}, runs)
    return measured | {"share of seeds in which Algorithm 1 is nearest": share}, share == 1.0 and is_flat(
        runs[METHODS[0]]
    )


@_claim("Smaller eta is slower and more accurate (b = 50, tau = 10)", "Fig. 2 left, section 4")
def eta_trade_off(traces: Traces) -> Check:
    etas = {f"{key.value:g}": traces[key] for key in keys(traces, Group.ETA)}
    measured, rounds, floors = _speed_and_floor(etas, 0.1)
    measured["rounds run"] = {eta: int(runs[0]["round"][-1]) for eta, runs in etas.items()}
    ordered = rounds[-1] < np.inf and all(a < b for a, b in itertools.pairwise(rounds))
    return measured, ordered and floors[0] > floors[1] > floors[2]


@_claim("Larger tau is faster at the same accuracy (b = 50, eta = 0.2)", "Fig. 2 right, section 4")
def tau_faster(traces: Traces) -> Check:
    taus = {f"{key.value:g}": traces[key] for key in keys(traces, Group.TAU)}
    taus |= {"10": traces[Key(Group.ETA, "eta", 0.2)]}
    measured, rounds, floors = _speed_and_floor(taus, 0.01)
    flat = [floor for floor, runs in zip(floors, taus.values(), strict=True) if is_flat(runs)]
    if flat:
        measured["largest floor over smallest"] = max(flat) / min(flat)
    ordered = rounds[0] < np.inf and all(a > b for a, b in itertools.pairwise(rounds))
    return measured, ordered and max(floors) < 2 * min(floors)


@_claim("The floor falls like the square root of 1/b and of 1/n", "Theorem 1, residual")
def residual(traces: Traces) -> Check:
    """Batches are drawn without replacement, which makes their noise 1/b - 1/m of that of one row."""
    measured, powers = {}, []
    for group, name in ((Group.BATCH, "b"), (Group.CLIENTS, "n")):
        lines = keys(traces, group)
        floors = {f"{key.value:g}": float(np.median([_floor(t) for t in traces[key]])) for key in lines}
        noise = [1.0 / float(key.value or 1) for key in lines]
        if group is Group.BATCH:
            rows = traces[lines[0]][0].provenance["problem"]["samples"]["largest"]
            noise = [share - 1.0 / rows for share in noise]
        powers.append(float(np.polyfit(np.log(noise), np.log(list(floors.values())), 1)[0]))
        ends = _ends(floors, {f"{key.value:g}": traces[key] for key in lines})
        measured |= {f"{what}, by {name}": value for what, value in ends.items()}
        measured[f"power of the noise, 1/{name}"] = powers[-1]
    return measured, all(0.35 < power < 0.65 for power in powers)


@_claim("One d-vector up and one down per client and round", "section 2, contribution")
def one_vector(traces: Traces) -> Check:
    trace, fast = traces[ALGORITHM_1][0], _run(traces, FAST_FEDDA)
    up, down = (float(trace[column][-1] / trace["round"][-1]) for column in ("vectors_up", "vectors_down"))
    return {
        "vectors up": up,
        "vectors down": down,
        "vectors up, Fast-FedDA": float(fast["vectors_up"][-1] / fast["round"][-1]),
    }, up == down == 1


@_claim("The average correction of all workers is zero", "section 2, below eq. (2)")
def zero_mean_correction(traces: Traces) -> Check:
    # corrections set by hand; beyond the paper; another method, whose corrections do not cancel
    other = (Group.FIXED_POINT, Group.WITHOUT_FLOOR, Group.COUPLED)
    corrected = [t for key, ts in traces.items() if key.group not in other for t in ts if "correction" in t]
    worst = max(float(t["correction"].max()) for t in corrected)
    return {"largest norm of the average": worst, "runs": len(corrected)}, worst <= 1e-12


@_claim("The server update is the averaged-gradient form of eq. (2)", "eq. (2), appendix A")
def equation_2(traces: Traces) -> Check:
    (key,) = keys(traces, Group.EQUATION_2)
    trace = traces[key][0]
    worst = float(trace["eq2_gap"][1:].max())
    return {"largest distance of the two forms": worst, "rounds": int(trace["round"][-1])}, worst <= 1e-12


@_claim("One worker, tau = 2, full gradients: started at x*, stays at x*", "appendix, line 11")
def fixed_point_appendix(traces: Traces) -> Check:
    one_worker, *_ = keys(traces, Group.FIXED_POINT)
    worst = float(traces[one_worker][0]["optimality"].max())
    return {"largest relative error": worst}, worst <= 1e-12


@_claim("The same for every n with c_i = grad f(x*) - grad f_i(x*)", "beyond the paper")
def fixed_point_every_n(traces: Traces) -> Check:
    _, *others = keys(traces, Group.FIXED_POINT)
    worst = {str(key): float(traces[key][0]["optimality"].max()) for key in others}
    return worst, len(worst) == 2 and max(worst.values()) <= 1e-12


@_claim("The prox parameter (t+1) eta is what makes it exact; eta, eta~ and none leave a floor", "line 11")
def growing_prox(traces: Traces) -> Check:
    measured, holds = {}, True
    settings = (("l1 1e-4", Group.ABLATION, Group.FULL), ("l1 1e-3", Group.SPARSE_ABLATION, Group.SPARSE))
    for setting, rules, methods in settings:
        ours = measured[f"relative error at the end with (t+1) eta, {setting}"] = _final(
            _run(traces, "DecoupledProx", methods)
        )
        for key in keys(traces, rules):
            floor = measured[f"the same with {key.name}, {setting}"] = _final(traces[key][0])
            holds &= floor > 1e-4 and floor > 1e6 * ours
    return measured, holds


@_claim("FedDR and FedADMM with five local steps from the centre of the prox stop away from the solution", "section 1")
def inexact_splitting(traces: Traces) -> Check:
    """The two are one method; see their files."""
    trace = traces[Key(Group.SPLITTING, "centre")]
    measured = {"relative error at the floor": _final(trace[0]), "rounds": int(trace[0]["round"][-1])}
    return measured, is_flat(trace) and _final(trace[0]) > 0.05


@_claim("Started at the previous local model they are exact, with five local steps in every round", "beyond the paper")
def warm_started_splitting(traces: Traces) -> Check:
    trace = _run(traces, "previous", Group.SPLITTING)
    return {"relative error at the end": _final(trace), "rounds": int(trace["round"][-1])}, _final(trace) <= 1e-8


@_claim("With the prox between gradients and the mean, corrections undo g: the model goes to 0", "beyond the paper")
def coupling(traces: Traces) -> Check:
    trace = _run(traces, "NaiveCoupled", Group.COUPLED)
    nonzeros = int(trace["nonzeros"][-1])
    measured = {"relative error at the end": _final(trace), "coefficients that are not zero": nonzeros}
    return measured, nonzeros == 0 and abs(_final(trace) - 1.0) < 1e-6


@_claim("In a sparse setting (l1 1e-3) Algorithm 1 finds the zeros of x*; FedMid and FedDA do not", "beyond the paper")
def sparse_support(traces: Traces) -> Check:
    runs = {name: _run(traces, name, Group.SPARSE) for name in ("DecoupledProx", "FedMid", "FedDA")}
    target = int(runs["DecoupledProx"].provenance["x_star"]["nonzeros"])
    nonzeros = {name: int(t["nonzeros"][-1]) for name, t in runs.items()}
    final = {f"relative error at the end, {name}": _final(t) for name, t in runs.items()}
    ours, *others = final.values()
    holds = nonzeros["DecoupledProx"] == target and ours <= 1e-12 and min(others) > 0.05
    counted = {"coefficients that are not zero, x*": target}
    counted |= {f"coefficients that are not zero, {name}": count for name, count in nonzeros.items()}
    return counted | final, holds


CONSTANTS = {
    "sigma2": "variance of a gradient",
    "B_g": "bound of the subgradients of g",
    "eta_tilde": "length of a round",
}


def within_bound(traces: Traces, group: Group) -> Check:
    """The mean (over seeds) of the Lyapunov function against the theorem's bound, at every round."""
    measured, holds = {}, True
    for key in keys(traces, group):
        runs = traces[key]
        omega, bound = np.mean([t["lyapunov"] for t in runs], axis=0), runs[0]["bound"]
        worst = float((omega / bound).max())
        measured[str(key)] = {
            "largest ratio to the bound": worst,
            "rounds": int(runs[0]["round"][-1]),
            "Lyapunov function, first and last": [float(omega[0]), float(omega[-1])],
            "bound at the end": float(bound[-1]),
            "seeds": len(runs),
            **{words: float(runs[0].provenance["theorem"][name]) for name, words in CONSTANTS.items()},
        }
        holds &= worst <= 1.0 + 1e-12
    return measured, holds and bool(measured)


@_claim("Theorem 1's bound holds at every round with its own step sizes", "Theorem 1")
def theorem_1(traces: Traces) -> Check:
    measured, holds = within_bound(traces, Group.THEOREM)
    weak = {"note": _how_weak(traces[PAPERS_PROBLEM][0])} if PAPERS_PROBLEM in traces else {}
    return {**measured, **weak}, holds


def _how_weak(run: Trace) -> str:
    """How little the theorem promises on the paper's own problem, with the numbers: its step is far too small."""
    omega, bound, constants = run["lyapunov"], run["bound"], run.provenance["theorem"]
    each = constants["mu"] * constants["eta_tilde"] / 3
    return (
        f"nearly vacuous on the paper's own problem: with the theorem's step, eta~ = {constants['eta_tilde']:.2g}, its measure moves "
        f"from {omega[0]:.3g} to {omega[-1]:.3g} in {int(run['round'][-1])} rounds and its bound from {bound[0]:.4g} to "
        f"{bound[-1]:.4g}. It promises a factor of {1 - each:.7f} per round, so {np.log(2) / each:,.0f} rounds to halve it. Figure 1 of "
        f"the paper runs with eta~ = 5, {5 / constants['eta_tilde']:,.0f} times as long a step, about which the theorem says nothing."
    )


@_claim("Corollary 1: for an indicator g the B_g term drops", "Corollary 1")
def corollary_1(traces: Traces) -> Check:
    return within_bound(traces, Group.COROLLARY)


@_claim("The bound of Corollary 1 holds with x* on the boundary too, which it leaves out", "beyond the paper")
def corollary_boundary(traces: Traces) -> Check:
    return within_bound(traces, Group.BOUNDARY)


@_claim("At the paper's step sizes FISTA needs fewer rounds and fewer gradients to 1e-6", "beyond the paper")
def honest_baseline(traces: Traces) -> Check:
    measured, rounds = {}, {}
    for name in ("DecoupledProx", "ProximalGradient", "FISTA"):
        trace = _run(traces, name)
        first = trace.first("optimality", 1e-6)
        gradients = None if first is None else float(trace["gradients"][trace["round"] == first][0])
        measured[name] = {"rounds to a relative error of 1e-06": first, "gradients of a client": gradients}
        rounds[name] = np.inf if first is None else first
    return measured, rounds["FISTA"] < rounds["DecoupledProx"]
