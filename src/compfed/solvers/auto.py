"""The minimiser over sites with nothing to tune: the method is chosen by its expected cost in rounds and bytes.

Everything here is a server program (`federation.server.program`): it runs over sites in this process and over a network
alike, and reads no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from compfed.algorithms import AcceleratedDecoupledProx, Algorithm, find
from compfed.errors import InputError
from compfed.federation.queries import Lipschitz
from compfed.federation.query import Refusal, SiteRefusal
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.federation.server.trial import Trial, evaluate_request, evaluation, lipschitz_bounds
from compfed.federation.spec import FederatedProblem
from compfed.losses import OneOutput, SiteLoss
from compfed.losses.base import whole_site
from compfed.losses.offset import unwrapped
from compfed.problem_spec import safe_norm
from compfed.regularisers import Regulariser
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.solvers.base import FIRST_ORDER, FederatedSolution, Method, SearchOptions, SecondOrder, SolverState, Start
from compfed.solvers.first_order import faster_method, solve_by_rounds
from compfed.solvers.search import Search, run_searches
from compfed.solvers.second_order import SOLVERS, PartialNewton, ProximalBFGS, ProximalNewton
from compfed.stopping import OUT_OF_REACH


def solve(
    federation: Federation, spec: FederatedProblem, search: SearchOptions, start: Start
) -> Program[FederatedSolution]:
    """Search until the certificate holds, with the given method or, for "auto", the one expected to cost the least."""
    return (yield from solve_all(federation, [(spec, start)], search))[0]


def solve_all(
    federation: Federation, tasks: Sequence[tuple[FederatedProblem, Start]], search: SearchOptions
) -> Program[list[FederatedSolution]]:
    """The solutions of several problems, from their starts; their searches share messages."""
    choices = [choose(spec, search, start) for spec, start in tasks]
    if all(choice.second_order for choice in choices):
        searches = [make_search(spec, search, start) for spec, start in tasks]
        yield from run_searches(searches)
        return (yield from finish(federation, searches))
    return (
        yield from gather(
            [_solve_alone(federation, *task, search, choice) for task, choice in zip(tasks, choices, strict=True)]
        )
    )


def _solve_alone(
    federation: Federation, spec: FederatedProblem, start: Start, search: SearchOptions, choice: Choice
) -> Program[FederatedSolution]:
    if choice.second_order:
        return (yield from solve_all(federation, [(spec, start)], search))[0]
    return _explained((yield from solve_by_rounds(federation, spec, search, start)), choice.why)


def make_search(
    spec: FederatedProblem, search: SearchOptions, start: Start, state: SolverState | None = None
) -> Search:
    """A second-order search. Where a site refuses its Hessian, "auto" goes on without."""
    choice = choose(spec, search, start)
    solver = _solver(spec, search, start, choice)

    def without_hessians(spec: FederatedProblem, reason: str) -> tuple[SecondOrder, str]:
        choice = choose_method(spec, search.seconds_per_round, refused=reason)
        return _solver(spec, search, start, choice), choice.why

    may_change = search.algorithm == "auto" and isinstance(solver, (ProximalNewton, PartialNewton))
    return Search(spec, search, solver, start, state, choice.why, without_hessians if may_change else None)


def _solver(spec: FederatedProblem, search: SearchOptions, start: Start, choice: Choice) -> SecondOrder:
    solver = search.algorithm
    if choice.method is PartialNewton:
        eta = ProximalBFGS.from_bounds(start.bounds(spec, search.tau)).eta
        return PartialNewton(eta, spec.hessian_columns or (), longest=longest_step(spec))
    if not isinstance(solver, SecondOrder):
        solver = SOLVERS[choice.method.__name__].from_bounds(start.bounds(spec, search.tau))
    if isinstance(solver, ProximalBFGS) and spec.policy:
        solver = replace(solver, longest=min(solver.longest, longest_step(spec)))
    if isinstance(solver, ProximalNewton) and solver.width is None:
        solver = ProximalNewton(working_width(spec.regulariser, spec.d))
    return solver


def finish(federation: Federation, searches: Sequence[Search]) -> Program[list[FederatedSolution]]:
    """The solutions of searches that have ended. Where "auto" did not converge, a first-order method continues."""
    return (yield from gather([_finish(federation, search) for search in searches]))


def _finish(federation: Federation, done: Search) -> Program[FederatedSolution]:
    found, search, spec, why = done.solution, done.options, done.problem, done.why
    assert found is not None
    certificate = found.certificate
    no_rounds = spec.objective.profile or isinstance(spec.loss, SiteLoss)
    if found.converged or search.algorithm != "auto" or not certificate.minimiser_exists or no_rounds:
        return _explained(found, why)
    if found.rounds >= search.max_rounds:
        return _explained(found, why)
    if not certificate.within_reach:  # no method can do better
        return _explained(replace(found, notes=list(dict.fromkeys([*found.notes, OUT_OF_REACH]))), why)
    rest = replace(search, algorithm=FIRST_ORDER, max_rounds=search.max_rounds - found.rounds)
    later = yield from solve_by_rounds(federation, spec, rest, replace(done.start, x=found.x))
    notes = [*found.notes, f"continuing with {type(later.algorithm).__name__}", *later.notes]
    both = replace(later, rounds=found.rounds + later.rounds, trace=found.trace.then(later.trace), notes=notes)
    return _explained(both, why)


def evaluate_start(
    spec: FederatedProblem, search: SearchOptions, x: np.ndarray, scale: float | None = None, hessian: bool = True
) -> Program[Start]:
    """One message: Lipschitz bounds, value and gradient at x, and the Hessian a second-order search begins with.

    Where a site refuses the Hessian, a second message asks without it. None is asked for unless `hessian`.
    """
    choice = choose(spec, search)
    every = hessian and choice.method is ProximalNewton and working_width(spec.regulariser, spec.d) == spec.d
    trial, refused = Trial(x, np.arange(spec.d, dtype=np.int32) if every else None), ""
    bound = Lipschitz(spec.objective, x, upper_bound=choice.second_order)
    try:
        sums = yield [Request((bound,), weights=spec.weights, weighting=spec.weighting), evaluate_request(spec, trial)]
    except SiteRefusal as refusal:
        sums: Any = refusal.sums
        if trial.W is None or isinstance(sums[0][0], Refusal):
            raise
        trial, refused = Trial(x), str(refusal)
        sums = [sums[0], *(yield [evaluate_request(spec, trial)])]
    (summed_bound,), (summed,) = sums
    at = evaluation(spec, trial, summed)
    scale = safe_norm(at.gradient) if scale is None else scale
    return Start(x, *lipschitz_bounds(spec, summed_bound), scale, at, refused=refused, upper_bound=choice.second_order)


def allowed_columns(spec: FederatedProblem, start: Start) -> tuple[int, ...] | None:
    """The coordinates to ask Hessians on, where sites give them on some columns: those of the largest gradients at the start.

    None where sites give all, or too few to be of use. They stay the same for all alphas and folds, because a site counts the
    columns of all runs. The intercept does not count.
    """
    features, most, at = _features(spec), spec.max_hessian_columns, start.at
    one_output = isinstance(spec.loss, OneOutput)
    if start.refused or at is None or not one_output or not LEAST_SHARE * features <= most < features <= WHOLE:
        return None
    largest = np.argsort(-np.abs(at.gradient[:features]), kind="stable")[: int(most)]
    return (*np.sort(largest).tolist(), *range(features, spec.d))


def longest_step(spec: FederatedProblem) -> float:
    """The largest change of a coefficient in one step of ProximalBFGS, where sites refuse models that rest on few rows."""
    if spec.objective.classes is not None:
        return LONGEST
    if spec.loss.curvature is None:
        return OF_EXPONENT
    loss = unwrapped(spec.loss)
    width = getattr(loss, "delta", None) or getattr(loss, "smoothing", None)
    return np.inf if width is None else OF_WIDTH * width


def _explained(solution: FederatedSolution, why: str) -> FederatedSolution:
    """The solution, with the reasons for the choice of its method in its trace."""
    if not why:
        return solution
    trace = solution.trace
    return replace(solution, trace=replace(trace, provenance=trace.provenance | {"choice": why}))


# --- the choice of a method ---

LONGEST = (
    2.0  # change of a coefficient of a classifier in one step of ProximalBFGS, where sites have a disclosure policy
)
OF_EXPONENT = 0.5  # the same for a loss whose curvature has no bound, such as an exponential
OF_WIDTH = 0.5  # the same for a loss with a curved part, as a share of its width
BANDWIDTH = 10e6  # bytes a second between a site and the server
WHOLE = 256  # the Hessian of a model with no more coefficients is asked for in full
WIDTH = (64, 128)  # of a larger model, the Hessian on an eighth of its coordinates at least, within these bounds
LEAST_SHARE = 0.5  # of the columns: a Hessian on fewer is not asked for
WIDEST = 3000  # coordinates of a Hessian at most: 36 MB a message
# Rounds that a search typically takes, from the runs behind docs/explanation/few-rounds.md
ROUNDS = {"ProximalNewton": 12, "PartialNewton": 40, "ProximalBFGS": 80, FIRST_ORDER: 1000}


class Choice(NamedTuple):
    """A method, and why it was chosen."""

    method: Method
    why: str = ""

    @property
    def second_order(self) -> bool:
        return issubclass(self.method, SecondOrder)


def choose(spec: FederatedProblem, search: SearchOptions, start: Start | None = None) -> Choice:
    """The method to use; before the start is known, the first-order method stands for all of its kind."""
    asked = search.algorithm
    if spec.objective.profile and asked != "auto":
        check_profile_method(asked)
    if isinstance(spec.loss, SiteLoss) and asked != "auto":
        check_site_loss_method(spec.loss, asked)
    if asked == FIRST_ORDER:
        return Choice(AcceleratedDecoupledProx)
    if asked != "auto":
        return Choice(find_method(asked) if isinstance(asked, (str, type)) else type(asked))
    if start is None:
        return choose_method(spec, search.seconds_per_round)
    start.certificate_step(spec)  # refuses features that are all zero, which allow no step of any method
    if start.upper_bound and spec.n > 1:  # L_max is not known well enough to compare the first-order methods
        return choose_method(spec, search.seconds_per_round, refused=start.refused)
    first = faster_method(start.bounds(spec, search.tau), spec.n)
    return choose_method(spec, search.seconds_per_round, first, start.refused)


def check_profile_method(asked: str | Method | Algorithm | SecondOrder) -> None:
    """Refuse a method with local steps where every site has an intercept of its own."""
    method = find_method(asked) if isinstance(asked, (str, type)) else type(asked)
    if not issubclass(method, SecondOrder):
        raise InputError(
            f"algorithm={method.__name__!r}: site_effects='profile' takes the best intercept of every site anew at each model, "
            "and local steps know none. Use 'auto', 'ProximalNewton' or 'ProximalBFGS'."
        )


def check_site_loss_method(loss: SiteLoss, asked: str | Method | Algorithm | SecondOrder) -> None:
    """Refuse a method with local steps for a loss of a whole site."""
    method = find_method(asked) if isinstance(asked, (str, type)) else type(asked)
    if not issubclass(method, SecondOrder):
        raise InputError(f"algorithm={method.__name__!r}: {whole_site(loss, 'local steps')}.")


def find_method(asked: str | Method) -> Method:
    """The class of a name, or the class itself: a second-order solver, or a local-update algorithm."""
    if isinstance(asked, type) and (asked in SOLVERS.values() or issubclass(asked, Algorithm)):
        return asked
    if not isinstance(asked, str):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got {asked!r}.")
    solvers = {name.lower(): solver for name, solver in SOLVERS.items()}
    return solvers.get(asked.lower().replace("-", "").replace("_", "")) or find(asked)


def choose_method(
    spec: FederatedProblem,
    seconds_per_round: float,
    first_order: type[Algorithm] = AcceleratedDecoupledProx,
    refused: str = "",
) -> Choice:
    """The method whose rounds and bytes are expected to cost the least; one without Hessians where a site refused them."""
    costs: dict[Method, tuple[float, str]] = {}
    for method, (rounds, size) in rounds_and_bytes(spec, first_order).items():
        seconds = rounds * (seconds_per_round + size / BANDWIDTH)
        shown = f"{size / 1e6:.3g} MB" if size > 1e6 else f"{size / 1e3:.3g} kB"
        costs[method] = seconds, f"{method.__name__}: about {rounds} rounds of {shown}, {seconds:.3g} s"
    if refused:
        costs.pop(ProximalNewton, None)
        costs.pop(PartialNewton, None)
    elif spec.max_hessian_columns < _features(spec):
        refused = f"The policies of the sites allow second derivatives on {int(spec.max_hessian_columns)} of {_features(spec)} columns."
    ranked = sorted(costs, key=lambda method: costs[method][0])
    why = f"expected at {seconds_per_round:g} s a round and {BANDWIDTH / 1e6:g} MB/s: "
    return Choice(ranked[0], f"{why}{'; '.join(costs[method][1] for method in ranked)}. {refused}".rstrip())


def rounds_and_bytes(spec: FederatedProblem, first_order: type[Algorithm]) -> dict[Method, tuple[int, float]]:
    """The methods that can solve a problem: the rounds they are expected to take, and the bytes of one, both ways.

    Second-order steps are for convex problems, since another quadratic model need not have a minimum, and for double
    precision, in which the server computes.
    """
    vectors = 16.0 * spec.d
    found: dict[Method, tuple[int, float]] = {first_order: (ROUNDS[FIRST_ORDER], vectors)}
    if not spec.convex or spec.dtype != np.float64:
        return found
    if spec.objective.profile or isinstance(spec.loss, SiteLoss):  # local steps know neither
        found = {}
    found[ProximalBFGS] = ROUNDS["ProximalBFGS"], vectors
    if spec.hessian_columns is not None:
        found[PartialNewton] = ROUNDS["PartialNewton"], vectors + 8.0 * spec.loss.packed_size(len(spec.hessian_columns))
    w = working_width(spec.regulariser, spec.d)
    if w <= WIDEST and _features(spec) <= spec.max_hessian_columns:
        found[ProximalNewton] = ROUNDS["ProximalNewton"], vectors + 4 * w + 8.0 * spec.loss.packed_size(w)
    return found


def _features(spec: FederatedProblem) -> int:
    """Columns of a table, without the intercept."""
    return spec.width - int(spec.objective.scaling is not None and spec.objective.scaling.intercept)


def working_width(g: Regulariser, d: int) -> int:
    """Coordinates on which a second-order search asks for the Hessian: all, where g couples them."""
    return d if d <= WHOLE or coordinate_form(g, d) is None else min(max(d // 8, WIDTH[0]), WIDTH[1])
