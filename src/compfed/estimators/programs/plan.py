"""What a computation will release at most, and how it is done with the numbers that are left (`federation.numbers`).

Everything that trades numbers for something else is decided here, before the first query: how many alphas, folds or approximate
leave-one-out, second derivatives, and the tolerance of what only chooses alpha. A computation that fits is done as it was asked
for. Otherwise the cheapest way to give up least is taken, and said: approximate leave-one-out in place of folds, then fewer alphas.
An operator who wants the full way gives a reason, which a person at each site reads.

The counts are what fits took, with room: a fit of d coefficients evaluates about `TRIALS` models of d + 4 numbers and takes
`HESSIANS` matrices of d (d + 1) / 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from compfed.estimators.programs.fit import FitOptions, Labels
from compfed.estimators.programs.path_and_cv import AlphaGrid
from compfed.estimators.programs.scores import (
    CONCORDANCE_EDGES,
    EDGES,
    NORMAL_QUANTILES,
    NULL_MESSAGES,
    POLICY_EDGES,
    REFINEMENTS,
    counts_in_threes,
    has_policy,
)
from compfed.federation.accounting import Communication
from compfed.federation.enrolment import Enrolment, left_out_note
from compfed.federation.numbers import Left, share_text
from compfed.federation.sentence import LONGEST, Stated
from compfed.federation.server.program import CountedFederation, Federation, counts
from compfed.losses import OneOutput
from compfed.losses.offset import unwrapped
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.splits import LEAVE_ONE_OUT, LEAVE_ONE_SITE_OUT

ROOM, MORE, TIGHT = 2.0, 300, 1.1  # times what fits took, and numbers: the most that is stated; and what has to be left
CLOSE = 1.2  # of what is known nearly
TRIALS, HESSIANS = 8, 4  # of a fit
OF_PATH, OF_QUADRATIC = (
    (5.5, 1.6),
    (1.1, 0.0),
)  # trials and Hessians of each alpha, over all rows and over those of each fold
FRUGAL = 20, 2.0, 4, 12  # trials of a path to 1e-4 and of each alpha; Hessians of a path, and alphas for each one more
WITHOUT_HESSIANS = 60  # trials of a fit where sites give none
SEARCHED = 600  # numbers of an intercept that has no formula
FEWER = (30, 20, 15, 10, 5)  # alphas
SHORT = 80  # characters of a parameter
DESCRIBED, SCORED = 12, 10  # numbers of a description and of a score, beside those of classes, outcomes and thresholds
LINES = 500  # numbers of a recalibration; all steps that it may take are 716, which is within `CLOSE` with the score
RANKED = 14 + len(NORMAL_QUANTILES) + CONCORDANCE_EDGES  # numbers of the pairs of all rows
THETAS = 11  # models of a negative binomial, of a summary


@dataclass(frozen=True)
class Plan:
    """How a computation is done."""

    stated: Stated
    options: FitOptions
    grid: AlphaGrid | None = None
    cv: object = None
    note: str = ""  # a sentence, where it is done in another way than was asked for


@dataclass(frozen=True)
class Sizes:
    """The numbers of the replies of a fit."""

    width: int
    outputs: int
    intercept: bool
    smooth: bool
    hessians: bool  # whether sites give second derivatives on all columns
    searched: int  # numbers of an intercept without a formula
    quadratic: bool  # whether second derivatives are the same everywhere

    @classmethod
    def of(cls, options: FitOptions, enrolments: Sequence[Enrolment]) -> Sizes:
        first = enrolments[0]
        classes, mean = None, np.zeros(first.label_shape or (1,))
        if options.family.classifies:
            listed = [e.classes for e in enrolments if e.classes is not None]
            classes = np.unique(np.concatenate(listed)) if listed else np.arange(2.0)
            mean = None
        shares = None if classes is None else np.full(len(classes), 1 / max(len(classes), 1))
        family, labels = options.family, Labels(classes, shares, mean, one_column=not first.label_shape)
        try:
            loss = family.with_columns(first.columns, first.width).loss(labels)
        except Exception:  # what is wrong is said by the fit
            loss = None
        outputs = 1 if loss is None else loss.size(1)
        smooth = not getattr(loss, "jumps", False)
        allowed = min(e.max_hessian_share * e.rows for e in enrolments)
        has_formula = (
            isinstance(unwrapped(loss), OneOutput) and not first.offset and smooth if loss is not None else True
        )
        searched = 0 if has_formula or not options.fit_intercept or outputs > 1 else SEARCHED
        return cls(
            first.width,
            outputs,
            options.fit_intercept,
            smooth,
            smooth and first.width <= allowed,
            searched,
            getattr(loss, "quadratic", False),
        )

    @property
    def d(self) -> int:
        return (self.width + int(self.intercept)) * self.outputs

    @property
    def model(self) -> int:
        """Of an evaluation."""
        return self.d + 5

    @property
    def hessian(self) -> int:
        return self.d * (self.d + 1) // 2

    @property
    def start(self) -> int:
        """Of what comes before a fit: labels, moments, and the null model."""
        return 10 + 2 * self.outputs + 2 * self.width + self.model + self.searched + self.hessian * self.hessians

    def fit(self) -> float:
        """Of one fit from the null model."""
        if self.quadratic and self.hessians:
            return 4 * self.model
        return TRIALS * self.model + HESSIANS * self.hessian if self.hessians else WITHOUT_HESSIANS * self.model

    def by_folds(self, alphas: int, folds: int) -> float:
        """Of a path over all rows and one over the rows of each fold."""
        trials, hessians = OF_PATH if self.hessians else (WITHOUT_HESSIANS / 2, 0.0)
        if self.quadratic and self.hessians:
            trials, hessians = OF_QUADRATIC
        each = trials * self.model + hessians * self.hessian
        return (folds + 1) * (self.start + alphas * each) + 6 * folds * alphas

    def by_leave_one_out(self, alphas: int) -> float:
        trials, each, hessians, apart = FRUGAL
        if self.quadratic:
            return self.start + (trials / 2 + 1.2 * alphas) * self.model + 6 * alphas + self.hessian
        return (
            self.start + (trials + each * alphas) * self.model + 6 * alphas + (hessians + alphas / apart) * self.hessian
        )


# --- plans ---


def plan_fit(
    federation: Federation,
    kind: str,
    parameters: Mapping[str, Any],
    options: FitOptions,
    more: float = 0.0,
    turns: int = 1,
) -> Plan:
    """A fit with a given alpha, and `more` numbers once it has its minimum; or several, in turns with theta."""
    found = Plan(Stated(kind, shown(parameters)), options)
    if not counts(federation):
        return found
    sizes = Sizes.of(options, federation.enrolments)
    relaxed = 1 + sum(gamma != 1 for gamma in options.gammas)
    effects = 900 if options.site_effects else 0
    each = sizes.start + relaxed * sizes.fit() + sizes.model + effects + more
    theta = THETAS * sizes.model if turns > 1 else 0
    return _stated(federation, found, turns * (each + theta), sizes.model)


def plan_common(
    federation: Federation, kind: str, parameters: Mapping[str, Any], options: FitOptions, times: np.ndarray
) -> Plan:
    """A Cox model with one baseline for all sites: at each trial, of each time and once, sums, vectors and matrices."""
    found = Plan(Stated(kind, shown(parameters)), options)
    if not counts(federation):
        return found
    sizes, d = Sizes.of(options, federation.enrolments), federation.enrolments[0].width
    trial = len(times) * (4 + d * (d + 3)) + d + 2
    return _stated(federation, found, sizes.start + 2 * TRIALS * trial + 2 * len(times), trial)


def plan_comparison(federation: Federation, kind: str, parameters: Mapping[str, Any], options: FitOptions) -> Plan:
    """Of each site a fit together with the others and one alone, and the losses of all these models on its rows held out."""
    found = Plan(Stated(kind, shown(parameters)), options)
    if not counts(federation):
        return found
    sizes, models = Sizes.of(options, federation.enrolments), len(federation.names) + 2
    return _stated(federation, found, 2 * (sizes.start + sizes.fit()) + 3 * models + 2, sizes.model)


def plan_path(
    federation: Federation, kind: str, parameters: Mapping[str, Any], options: FitOptions, grid: AlphaGrid
) -> Plan:
    """Fits at many alphas, to all rows."""
    found = Plan(Stated(kind, shown(parameters), grid.count), options, grid)
    if not counts(federation):
        return found
    sizes, relaxed = Sizes.of(options, federation.enrolments), 1 + sum(gamma != 1 for gamma in options.gammas)
    return _stated(federation, found, relaxed * sizes.by_folds(grid.count, 0) + sizes.start, sizes.model)


def plan_choice(
    federation: Federation,
    kind: str,
    parameters: Mapping[str, Any],
    options: FitOptions,
    grid: AlphaGrid,
    cv: object,
    more: float = 0.0,
) -> Plan:
    """A choice of alpha: as asked for where that is within what is left, or a cheaper way."""
    alphas = grid.count
    asked = Plan(Stated(kind, shown(parameters), alphas, _folds_text(cv)), options, grid, cv)
    if not counts(federation):
        return asked
    sizes, left = Sizes.of(options, federation.enrolments), _left(federation)
    extra = (1 + sum(gamma != 1 for gamma in options.gammas)) * (1.5 if options.site_effects else 1.0)

    def cost(way: Plan, alphas: int) -> float:
        if way.cv == LEAVE_ONE_OUT:
            frugal = sizes.by_leave_one_out(alphas) + more
            apart = way.options.frugal or sizes.quadratic
            return frugal if apart else frugal + alphas * (1.5 * sizes.hessian + 2 * sizes.model)
        folds = int(way.cv) if isinstance(way.cv, (int, np.integer)) else len(federation.names)
        return extra * sizes.by_folds(alphas, folds) + more

    full = cost(asked, alphas)
    if federation.why or TIGHT * full <= left:
        return _stated(federation, asked, full, sizes.model)
    ways = list(_cheaper_ways(asked, _can_leave_one_out(options, sizes, federation), alphas))
    # by rule; or else, as a person is asked in any case, the first that is within the end
    for room, more, most in ((TIGHT, 0, left), (ROOM, MORE, _left(federation, with_person=True))):
        for way in ways:
            numbers = cost(way, way.stated.alphas)
            if room * numbers + more <= most and numbers < full:
                note = _note(kind, asked, way, ROOM * full + MORE)
                return _stated(federation, replace(way, note=note), numbers, sizes.model)
    return _stated(federation, asked, full, sizes.model)


def _cheaper_ways(asked: Plan, loo: bool, alphas: int) -> Iterator[Plan]:
    """Approximate leave-one-out, and fewer alphas, from the least that is given up."""
    grid = asked.grid
    assert grid is not None, "a choice of alpha has a grid"
    fewer = (alphas, *(n for n in FEWER if n < alphas)) if grid.alphas is None else (alphas,)
    for count in fewer:
        smaller = replace(grid, n_alphas=count) if grid.alphas is None else grid
        if loo:
            stated = replace(asked.stated, alphas=count, folds=LEAVE_ONE_OUT)
            yield replace(
                asked, options=replace(asked.options, frugal=True), grid=smaller, cv=LEAVE_ONE_OUT, stated=stated
            )
        yield replace(asked, grid=smaller, stated=replace(asked.stated, alphas=count))


def plan_scores(
    federation: Federation, kind: str, options: FitOptions, classes: int, cv: object, per_site: bool
) -> Plan:
    """An evaluation, of one model or of one for each fold; `classes` is 0 for labels that are numbers."""
    found = Plan(Stated(kind, "", 1, _folds_text(cv)), options)
    if not counts(federation):
        return found
    sizes, by_site = Sizes.of(options, federation.enrolments), cv == LEAVE_ONE_SITE_OUT
    folds = 0 if cv is None else int(cv) if isinstance(cv, (int, np.integer)) else len(federation.names)
    parts = 1 if by_site or not folds else folds  # that one site scores
    fits = sizes.start + folds * (sizes.start + sizes.fit()) if folds else 0.0
    scores = parts * _score(federation, sizes, classes, 1 + (per_site or by_site))
    if classes == 2 and counts_in_threes(federation):
        scores += RANKED
    return _stated(federation, found, fits * ROOM / CLOSE + scores, 6, room=CLOSE)


def _score(federation: Federation, sizes: Sizes, classes: int, groups: int) -> float:
    """The numbers of the score of one part of the rows of a site, which is in so many groups."""
    walled = has_policy(federation)
    if not classes:
        null = 0 if walled or not federation.enrolments[0].offset else NULL_MESSAGES * (sizes.model + 1)
        return DESCRIBED + SCORED + 9 * sizes.outputs + groups * null
    two, refined = classes == 2, not (classes == 2 and counts_in_threes(federation))
    edges, messages = (POLICY_EDGES, 1 + refined) if walled else (EDGES, 1 + REFINEMENTS * refined)
    tables = 0 if two else 2 * classes**2
    each = SCORED + classes + 8 * (1 if two else classes) * edges + tables
    return DESCRIBED + 2 * classes + messages * each + groups * LINES * two * (1 if walled else 3)


def plan_summary(
    federation: Federation, kind: str, parameters: Mapping[str, Any], options: FitOptions, refit: bool
) -> Plan:
    """Standard errors: second derivatives, expected ones and products of row gradients at one model, and before them a refit."""
    found = Plan(Stated(kind, shown(parameters)), options)
    if not counts(federation):
        return found
    sizes = Sizes.of(options, federation.enrolments)
    fits = sizes.start + sizes.fit() if refit else 0.0
    return _stated(federation, found, fits + (2 + THETAS) * sizes.model + 3 * sizes.hessian, sizes.model)


def said_about(federation: Federation, cost: Communication) -> dict[str, str]:
    """For the record of a fit: what it released, and which columns it left out."""
    found, enrolments = dict[str, str](), federation.enrolments
    if counts(federation):
        numbers = round(cost.numbers)
        left = Left.of(enrolments, federation.numbers - numbers)
        found["released"] = share_text(numbers, left.table, left.before, enrolments[0].secure_sum, verb="")
    if note := left_out_note(enrolments):
        found["left_out"] = note
    return found


def shown(parameters: Mapping[str, Any]) -> str:
    """Parameters as text: part of the name of a run."""
    text = ", ".join(f"{name}={_short(value)}" for name, value in parameters.items())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def _short(value: Any) -> str:
    """A value as text; of a long one the beginning, and a hash of all of it."""
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}... ({hashlib.sha256(text.encode()).hexdigest()[:16]})"


def _left(federation: CountedFederation, with_person: bool = False) -> float:
    """Numbers that a rule may still approve at every site; or a person."""
    left = Left.of(federation.enrolments, federation.numbers)
    return left.by_person if with_person else left.by_rule


def _stated(federation: CountedFederation, plan: Plan, numbers: float, least: int, room: float = ROOM) -> Plan:
    """The plan with the most numbers that it may release: what is expected with room, and no more than a rule allows if that does."""
    left, most = _left(federation), ceil(room * numbers) + MORE
    if numbers <= left < most:
        most = int(left)
    why = federation.why if most > left else ""
    return replace(plan, stated=replace(plan.stated, numbers=most, messages=most // least + 20, why=why[:LONGEST]))


def _can_leave_one_out(options: FitOptions, sizes: Sizes, federation: Federation) -> bool:
    family = options.family
    names, width = federation.enrolments[0].columns, federation.enrolments[0].width
    try:
        known = family.with_columns(names, width)
        penalty = known.penalty(1.0, np.ones(width), sizes.outputs)
        single = coordinate_form(penalty, width * sizes.outputs) is not None
    except Exception:  # what is wrong is said by the fit
        return False
    plain = not options.site_effects and all(gamma == 1 for gamma in options.gammas)
    return single and plain and sizes.smooth and sizes.hessians


def _folds_text(cv: object) -> str:
    return "" if cv is None else str(cv)[:100]


def _note(kind: str, asked: Plan, taken: Plan, numbers: float) -> str:
    def way(plan: Plan) -> str:
        how = "approximate leave-one-out" if plan.cv == LEAVE_ONE_OUT else f"cv={plan.cv}"
        return f"{plan.stated.alphas} alphas by {how}"

    return (
        f"{kind}: {way(asked)} would release up to {ceil(numbers):,} numbers, more than a rule may still approve at the sites. Alpha "
        f"was chosen among {way(taken)}. For the full way give a reason (why=), which a person at each site then approves."
    )
