"""Searches by trials, side by side: every message evaluates f at one trial of each search that is under way.

`Search` is one of them: the state of its solver, when it stops, and whether the next trial is worth a Hessian. A single fit is
one search; a cross-validation is one for every alpha and every set of training rows.

**When a Hessian is asked for.** With rho the rate at which the gradient mapping falls from one accepted point to the next,
log(tol / |G|) / log rho steps are left. A single fit asks where more than `NEXT` are left. A search of many that share their
Hessians asks where more than `STEPS_ALLOWED` are.

**Hessians that are shared** (`HessianSharing`). The Hessian of all rows serves the searches over folds at the same alpha too,
whose rows are most of the same; each corrects it by what it knows of its own gradients. So no Hessian of a fold leaves a
site, unless a search over it converges too slowly with those of all rows; then it asks for its own.

**The loss on the rows held out** travels with the last trials of a search over a fold, so that it takes no message of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from compfed._utils.text import versions
from compfed.federation.accounting import Communication
from compfed.federation.queries import Evaluate, HeldOut
from compfed.federation.queries.held_out import HeldOutSum
from compfed.federation.query import Refusal, SiteRefusal
from compfed.federation.server.program import Program, Request, Summed
from compfed.federation.server.trial import Evaluated, Trial, evaluation
from compfed.federation.spec import FederatedProblem
from compfed.losses import Softmax
from compfed.losses.base import ignore_overflow
from compfed.losses.offset import unwrapped
from compfed.problem_spec import optimality_at
from compfed.regularisers.coordinate_form import coordinate_form, with_cached_form
from compfed.solvers.base import FederatedSolution, SearchOptions, SecondOrder, SolverState, Start
from compfed.solvers.quadratic_model import OUTSIDE_DOMAIN
from compfed.solvers.second_order import corrected, step_and_change
from compfed.splits import RowSubset
from compfed.stopping import NO_MINIMISER, STILL_GROWS, Certificate, Stop, StoppingRule
from compfed.trace import Trace

NEXT = 1.5  # steps left: a Hessian that comes with the next trial would hardly be used
STEPS_ALLOWED = 5.0  # steps left, up to which a search that shares Hessians does without a new one
OF_ITS_OWN = 2.5  # the same of a search that has taken its share of them: then it asks for its own
SOON = 2.5  # steps left, from where a trial may be the last: the loss on the rows held out is asked for along with it
PAIRS = 3  # steps whose changes of the gradient correct a Hessian of all rows for the rows of a fold
FEW_STEPS = 3  # steps before a search asks for a Hessian of its own rows
NEARLY = 1e3  # times the tolerance: so near, only a slow search asks
RATES = 1e-8, 0.99
ROUNDING = 10.0  # times the rounding error: below, rates say nothing
STEEP = 1e3  # times the curvature along a step: a Hessian of all rows is not for a fold
ROUNDED = 1e-12  # of the largest eigenvalue: zero to rounding
AT_ONCE = 64  # models of a query

Fallback = Callable[[FederatedProblem, str], tuple[SecondOrder, str]]  # the solver, and why it


class Search:
    """The search for the minimum of one problem.

    Parameters
    ----------
    spec : FederatedProblem
    options : SearchOptions
    solver : SecondOrder
    start : Start
        A start with an evaluation `at` is not evaluated again.
    state : SolverState, optional
        Where the solver begins, instead of at the start.
    why : str
        Why this solver was chosen.
    fallback : callable, optional
        Makes the solver that goes on where a site refuses a Hessian, from the problem and the reason; without it the refusal
        ends the program.
    """

    def __init__(
        self,
        spec: FederatedProblem,
        options: SearchOptions,
        solver: SecondOrder,
        start: Start,
        state: SolverState | None = None,
        why: str = "",
        fallback: Fallback | None = None,
    ):
        self.problem, self.spec = spec, spec.with_regulariser(with_cached_form(spec.regulariser, spec.d))
        self.options, self.solver, self.start, self.why, self.fallback = options, solver, start, why, fallback
        self.step = start.certificate_step(spec)
        self.rule = StoppingRule(self.spec, options.tol * start.scale, self.step)
        self.solution: FederatedSolution | None = None
        self.evaluations = self.hessians = 0  # at the trials of this search
        self.cost, self.norm = Communication(), np.inf  # the norm is that at the point that was accepted last
        self.eager = not spec.loss_is_quadratic  # ask before there is a rate
        self.sharing: HessianSharing | None = None
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []  # the last steps, and the changes of the gradient
        self.left = np.inf  # steps, at the rate of the last one
        self.split: RowSubset | None = None  # whose rows are held out, if their loss is wanted
        self.notes = [start.refused] if start.refused else []
        self._rows: list[tuple[float, ...]] = []
        self._began = time.perf_counter()
        at = start.at if state is None else None
        if state is None:
            state = solver.init(np.asarray(start.x if at is None else at.x, float), at, start.kept)
        self._constants = _free_constants(self.spec)
        self.state = self._centred(state)
        if at is not None:
            self._record(at)
            if self.rule.converged:
                self._end(Stop(True))
            elif _covered(at, state.trial.W):
                self._advance(at)

    @property
    def trial(self) -> Trial:
        return self.state.trial

    @property
    def under_way(self) -> bool:
        return self.solution is None

    @property
    def lacks_loss(self) -> bool:
        """Whether the loss on the rows held out is wanted now: at the end, or at a trial that may be it."""
        return self.left <= SOON if self.solution is None else self.solution.held_out is None

    @property
    def relative(self) -> float:
        """The gradient mapping of the last evaluation, as a share of that at the start."""
        return self.rule.last_norm / self.start.scale if self.start.scale > 0 else 0.0

    @property
    def metric(self) -> np.ndarray | None:
        """The matrix of the quadratic model, where it is on all coordinates; None for a solver without one."""
        H = self.state.kept.get("H")
        return H if H is not None and len(H) == self.spec.d else None

    def observe(
        self, at: Evaluated, cost: Communication, held_out: HeldOutSum | None = None, asked: bool = False
    ) -> None:
        """Take the evaluation of the trial: accept or reject it, and propose the next one or end.

        `asked` says whether its Hessian was worked out at the sites, not taken from another search.
        """
        self.evaluations, self.hessians = self.evaluations + 1, self.hessians + int(asked)
        before = self.state.at
        if self.sharing is not None and (pair := step_and_change(before, at)) is not None:
            self.pairs = [*self.pairs[1 - PAIRS :], pair]
        self.cost = self.cost.then(cost)
        self._record(at)
        self._advance(at)
        if held_out is not None and self.solution is not None and self.solution.x is at.x:
            self.solution = replace(self.solution, held_out=held_out)

    def go_on_without_hessians(self, reason: str) -> None:
        """Continue from the accepted model with the solver that asks for none."""
        if self.fallback is None:
            raise SiteRefusal(reason)
        self.notes.append(reason)
        (self.solver, self.why), self.fallback = self.fallback(self.problem, reason), None
        at = self.state.at
        known = at.value < OUTSIDE_DOMAIN
        self.state = self.solver.init(at.x if known else self.trial.x)
        if known:
            self.state = ignore_overflow(self.solver.update)(self.spec.regulariser, self.state, at)

    # --- one step ---

    def _advance(self, at: Evaluated) -> None:
        rule, g = self.rule, self.spec.regulariser
        converged = rule.converged
        stop = None if converged else rule.before_tolerance()
        if stop is None and not converged and self.cost.rounds >= self.options.max_rounds:
            stop = Stop(False, f"stopped at max_rounds={self.options.max_rounds}")
        if stop is None:
            ask = self._is_slow(rule.last_norm, at)
            self.state = self._centred(ignore_overflow(self.solver.update)(g, self.state, at, ask))
            if self.state.at is at:
                self.norm = rule.last_norm
            stop = rule.at_convergence(at, self.trial.x - at.x) if converged else None
        if stop is not None:
            self._end(stop)

    def _is_slow(self, norm: float, at: Evaluated) -> bool:
        """Whether more steps are left, at the rate of the last one, than are allowed."""
        if self.spec.loss_is_quadratic:
            self.left = 0.0
            return False
        if getattr(self.spec.loss, "jumps", False):  # the matrix of another point says little
            return True
        if not np.isfinite(self.norm):
            return self.eager
        if not 0 < self.rule.tol < norm:  # converged, or to go on until nothing gets better
            return self.rule.tol == 0
        rate = min(max(norm / self.norm, RATES[0]), RATES[1])
        self.left = left = math.log(self.rule.tol / norm) / math.log(rate)
        worth = norm > ROUNDING * self.rule.rounding_at(at)
        if self.sharing is None:
            return bool(left > NEXT and worth)
        few = self.sharing.steps_allowed(self) if norm > NEARLY * self.rule.tol else STEPS_ALLOWED
        return bool(left > few and worth)

    def _centred(self, state: SolverState) -> SolverState:
        """The state with a trial whose free constants have mean zero: nothing else keeps rounding from making them grow."""
        if self._constants is None:
            return state
        x = state.trial.x.copy()
        x[self._constants] -= x[self._constants].mean(axis=1, keepdims=True)
        return state._replace(trial=state.trial._replace(x=x))

    # --- the record ---

    @ignore_overflow
    def _record(self, at: Evaluated) -> None:
        point = optimality_at(self.spec.regulariser, at.x, at.value, at.gradient, self.step)
        self.rule.observe(at, point.objective, point.norm)
        cost, seconds = self.cost, time.perf_counter() - self._began
        used = float(np.count_nonzero(at.x))
        work = self.evaluations, self.hessians
        row = cost.rounds, point.objective, point.norm, used, cost.bytes_up, cost.bytes_down, *work, seconds
        self._rows.append(row)

    def _end(self, stop: Stop) -> None:
        """The best model, with its certificate and its trace."""
        at, rule = self.rule.best, self.rule
        assert at is not None
        certificate = Certificate(
            rule.norm, self.start.scale, self.options.tol, minimiser_exists=stop.note not in (NO_MINIMISER, STILL_GROWS),
            rounding=rule.rounding_at(at), convex=self.spec.convex,
        )  # fmt: skip
        if self.options.progress is not None:
            self.options.progress(self.cost.rounds, self.cost.rounds)
        notes = [*self.notes, stop.note] if stop.note else self.notes
        self.solution = FederatedSolution(
            at.x,
            certificate,
            stop.converged,
            self.cost.rounds,
            self.solver,
            self._trace(at),
            notes,
            at,
            self.state.kept,
        )

    def _trace(self, at: Evaluated) -> Trace:
        rounds, objective, norm, nonzeros, up, down, evaluations, hessians, seconds = np.array(self._rows, float).T
        vector, zero = 8 * at.x.size, np.zeros_like(rounds)
        passes = 2 * evaluations + hessians  # of a site over its rows: for a value, a gradient, a Hessian
        columns = {
            "round": rounds.astype(int), "objective": objective, "gradient_mapping": norm, "nonzeros": nonzeros.astype(int),
            "vectors_up": up / vector, "vectors_down": down / vector, "exchanges": rounds.astype(int), "bytes_up": up,
            "bytes_down": down, "gradients": evaluations.astype(int), "rows": passes * float(np.mean(self.spec.sizes)),
            "values": evaluations.astype(int), "hessians": hessians.astype(int), "hvps": zero.astype(int),
            "client_proxes": zero.astype(int), "seconds": seconds,
        }  # fmt: skip
        provenance = {
            "engine": "queries", "algorithm": {"name": type(self.solver).__name__} | vars(self.solver),
            "problem": self.spec.describe(), "rounds": self.cost.rounds, "batch_size": None, "participants": self.spec.n,
            "record_every": 1, "seed": None, "x_star": None, "dtype": "float64", "device": "cpu",
            "versions": dict(versions()),
        }  # fmt: skip
        return Trace(columns, at.x, provenance)


def _free_constants(spec: FederatedProblem) -> np.ndarray | None:
    """The coefficients of a softmax to which one constant can be added for all classes, one feature in a row; None without any."""
    loss, form = unwrapped(spec.loss), coordinate_form(spec.regulariser, spec.d)
    if not isinstance(loss, Softmax) or spec.loss.ridge or form is None:
        return None
    free = (form.l1 == 0) & (form.l2 == 0) & (form.group < 0) & (form.lower == -np.inf) & (form.upper == np.inf)
    every = np.flatnonzero(free.reshape(-1, loss.outputs).all(axis=1))
    return every[:, None] * loss.outputs + np.arange(loss.outputs) if len(every) else None


def _covered(at: Evaluated, W: np.ndarray | None) -> bool:
    """Whether an evaluation has the Hessian on W."""
    return W is None or not len(W) or (at.H is not None and at.W is not None and np.array_equal(at.W, W))


# --- Hessians that searches share ---


class HessianSharing:
    """The Hessians of all rows at one alpha, for the searches over all rows and over folds.

    The search over all rows leads: they are asked for at its trials. Each moves the matrix of every other search by as much as
    the matrix of the leader, from where both began.

    Parameters
    ----------
    searches : sequence of Search
        The leader, then the others; each has a matrix.
    limit : float
        Shared Hessians that a search takes before it asks for its own.
    """

    def __init__(self, searches: Sequence[Search], limit: float):
        self.leader, self.searches, self.limit = searches[0], list(searches), limit
        self.first = {id(search): search.metric for search in searches}
        self.taken: dict[int, float] = dict.fromkeys(self.first, 0)
        for search in searches:
            search.sharing = self

    def steps_allowed(self, search: Search) -> float:
        """The steps that may be left without a new Hessian."""
        alone = self.taken[id(search)] >= self.limit and search.cost.rounds > FEW_STEPS
        return OF_ITS_OWN if alone else STEPS_ALLOWED

    def place(self) -> tuple[Search | None, list[Search]]:
        """The search at whose trial the Hessian of all rows is asked for, if any; and those that ask for their own."""
        asking = [search for search in self.searches if search.under_way and search.trial.W is not None]
        own = [search for search in asking if search is not self.leader and self.taken[id(search)] >= self.limit]
        shared = [search for search in asking if search not in own]
        if not shared:
            return None, own
        return (self.leader if self.leader.under_way else shared[0]), own

    def moved(self, search: Search, at: Evaluated, H: np.ndarray) -> np.ndarray | None:
        """The matrix of a search at its trial, from the Hessian H of all rows.

        None where it has had enough of them, and where a row that the fold holds out has made H useless: from then on the search asks
        for its own.
        """
        if self.taken[id(search)] >= self.limit:
            return None
        mine, base, before = self.first[id(search)], self.first[id(self.leader)], search.state.at
        finite = bool(np.isfinite(H).all())
        if len(H) < search.spec.d:  # on some columns: the solver corrects it
            return H if finite else None
        pair = step_and_change(before, at)
        pairs = search.pairs if pair is None else [*search.pairs[1 - PAIRS :], pair]
        if not finite or any(s @ H @ s > STEEP * (s @ y) > 0 for s, y in pairs[-1:]):
            self.taken[id(search)] = self.limit
            return None
        if mine is not None and base is not None and mine is not base:
            moved = mine + (H - base)
            values = np.linalg.eigvalsh(moved)
            # a loss of several outputs is flat along some directions
            H = moved if values[0] > -ROUNDED * values[-1] else H
        for s, y in pairs:
            H = corrected(H, s, y)
        return H

    def count(self, search: Search) -> None:
        """Note that a search got a Hessian."""
        self.taken[id(search)] += 1


# --- side by side ---


@dataclass
class _Batch:
    """Trials of one objective that are evaluated by one query, with a Hessian on W or without."""

    spec: FederatedProblem
    W: np.ndarray | None
    single: bool = False  # whether the Hessian may be in single precision
    points: list[np.ndarray] = field(default_factory=list)
    searches: list[Search | None] = field(default_factory=list)  # None: a point whose Hessian alone is wanted
    sharing: list[HessianSharing | None] = field(default_factory=list)

    def request(self) -> Request:
        spec = self.spec
        coords = self.W if self.W is not None and len(self.W) else None
        query = Evaluate(spec.objective, np.array(self.points), coords, single=self.single)
        return Request((query,), weights=spec.weights, weighting=spec.weighting, models=len(self.points))

    def evaluations(self, sums: Summed) -> Iterator[tuple[Search | None, HessianSharing | None, Evaluated]]:
        (summed,) = sums
        for k, (x, search, sharing) in enumerate(zip(self.points, self.searches, self.sharing, strict=True)):
            yield search, sharing, evaluation(self.spec, Trial(x, self.W), summed, k)


def run_searches(
    searches: Sequence[Search],
    sharings: Sequence[HessianSharing] = (),
    until: float = 0.0,
    progress: Callable[[], None] | None = None,
) -> Program[None]:
    """Advance all searches, in shared messages, to their ends; or until all are at `until` of their scale."""
    while under_way := [search for search in searches if search.under_way]:
        if max(search.relative for search in under_way) <= until:
            return
        batches, last = _batches(under_way, sharings), _without_loss(searches)
        refused: list[tuple[_Batch, Refusal]] = []
        try:
            sums = yield [*(batch.request() for batch in batches), *(held_out_request(each) for each in last)]
        except SiteRefusal as refusal:
            refused = _refused_hessians(batches, refusal)
            sums: Any = refusal.sums
        held_out = _losses(last, sums[len(batches) :])
        for search in (one for each in last for one in each):
            if search.solution is not None:
                search.solution = replace(search.solution, held_out=held_out[id(search)])
        wrong = [id(batch) for batch, _ in refused]
        results = [(batch, one) for batch, one in zip(batches, sums, strict=False) if id(batch) not in wrong]
        del sums  # they may be large, and the next ones come while this program waits
        _hand_out(results, held_out)
        for batch, reason in refused:
            sharing = {id(one): one for one in batch.sharing if one is not None}.values()
            concerned = [*(s for s in batch.searches if s is not None), *(s for one in sharing for s in one.searches)]
            for search in {id(search): search for search in concerned if search.under_way}.values():
                if search.fallback is not None:
                    search.go_on_without_hessians(reason.reason)
        if progress is not None:
            progress()


def _batches(under_way: Sequence[Search], sharings: Iterable[HessianSharing]) -> list[_Batch]:
    """The queries of one message."""
    batches: dict[tuple[int, bytes | None, int], _Batch] = {}
    counts: dict[tuple[int, bytes | None], int] = {}

    def add(spec: FederatedProblem, trial: Trial, search: Search | None, sharing: HessianSharing | None) -> None:
        kind = id(spec.objective), None if trial.W is None else trial.W.tobytes()
        number = counts[kind] = counts.get(kind, -1) + 1
        single = trial.W is not None and sharing is not None and not spec.loss_is_quadratic
        batch = batches.setdefault((*kind, number // AT_ONCE), _Batch(spec, trial.W, single))
        batch.points.append(trial.x)
        batch.searches.append(search)
        batch.sharing.append(sharing)

    asking: set[int] = set()
    for sharing in sharings:
        place, own = sharing.place()
        asking |= {id(search) for search in own}
        if place is sharing.leader:
            asking.add(id(place))
        elif place is not None:  # the leader has ended: all rows are asked at the trial of another one
            add(sharing.leader.spec, place.trial, None, sharing)
    for search in under_way:
        alone = search.sharing is None or id(search) in asking
        add(search.spec, search.trial if alone else search.trial._replace(W=None), search, search.sharing)
    return list(batches.values())


def _hand_out(results: Sequence[tuple[_Batch, Summed]], held_out: Mapping[int, HeldOutSum]) -> None:
    """Give every search its evaluation, with the Hessian that came for it."""
    found: list[tuple[Search, Evaluated, Communication, bool]] = []
    shared: dict[int, Evaluated] = {}  # of all rows
    for batch, sums in results:
        each = sums.cost.over(len(batch.points))
        for search, sharing, at in batch.evaluations(sums):
            if sharing is not None and at.H is not None and search in (None, sharing.leader):
                shared[id(sharing)] = at
            if search is not None:
                found.append((search, at, each, batch.W is not None and len(batch.W) > 0))
    for search, at, cost, asked in found:
        sharing = search.sharing
        if sharing is not None and at.H is None and id(sharing) in shared:
            whole = shared[id(sharing)]
            H = sharing.moved(search, at, whole.H)  # pyright: ignore[reportArgumentType]
            at = at if H is None else at._replace(W=whole.W, H=H)
        if sharing is not None and at.H is not None:
            sharing.count(search)
        search.observe(at, cost, held_out.get(id(search)), asked)


def _refused_hessians(batches: Sequence[_Batch], refusal: SiteRefusal) -> list[tuple[_Batch, Refusal]]:
    """The batches whose Hessians a site refused. Any other refusal ends the program."""
    if refusal.sums is None:
        raise refusal
    found = []
    if any(isinstance(sums[0], Refusal) for sums in refusal.sums[len(batches) :]):  # of rows held out
        raise refusal
    for batch, sums in zip(batches, refusal.sums, strict=False):
        if isinstance(sums[0], Refusal):
            if batch.W is None or any(search is not None and search.fallback is None for search in batch.searches):
                raise refusal
            found.append((batch, sums[0]))
    return found


# --- the loss on the rows held out ---


def _without_loss(searches: Sequence[Search]) -> list[list[Search]]:
    """The searches over folds whose trial may be the last, or that ended with no loss, by split."""
    soon = [search for search in searches if search.split is not None and search.lacks_loss]
    splits = {id(search.split): search.split for search in soon}.values()
    return [[search for search in soon if search.split is split] for split in splits]


def held_out_request(searches: Sequence[Search]) -> Request:
    """The loss of these searches, at their ends or their trials, on the rows that their split holds out."""
    split = searches[0].split
    assert split is not None
    x = np.array([search.trial.x if search.solution is None else search.solution.x for search in searches])
    spec = searches[0].spec
    return Request((HeldOut(spec.objective, split, x),), weighting=spec.weighting or "rows", models=len(x))


def _losses(last: Sequence[Sequence[Search]], sums: Sequence[Summed]) -> dict[int, HeldOutSum]:
    """The loss of each trial."""
    found = dict[int, HeldOutSum]()
    for searches, (total,) in zip(last, sums, strict=True):
        for k, search in enumerate(searches):
            found[id(search)] = total._replace(loss=total.loss[k : k + 1])
    return found
