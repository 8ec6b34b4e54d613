"""When a run stops: it converged, rounding hides the rest, nothing gets better, no minimiser exists, or it diverged.

The rule is one line, `has_converged`; `has_diverged` is another. Compiled loops, rounds by messages (`Monitor`) and
second-order searches all apply them. The rest of this file says when a search that has not converged should go on: `Status`
for rounds of a first-order method, `StoppingRule` for the trials of a second-order solver. `Certificate` is what a user sees.
A state that is not finite ends a run at once: `simulation/xla.py` and `federation/server/rounds.py` look for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compfed._utils.html_table import html_table
from compfed.errors import InputError
from compfed.losses import Logistic, Softmax
from compfed.losses.offset import unwrapped
from compfed.problem_spec import ProblemSpec
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.trace import Trace

if TYPE_CHECKING:
    from compfed.federation.server.trial import Evaluated

MAX_IDLE = 40  # evaluations without progress, before a search stops
LONG_STEP = 1e-3  # of the model's norm: where the certificate holds and steps are longer, there may be no minimiser
FAR = 1e9  # times a model: as far as a bound is looked for
LONG_STEPS = 2  # long steps that are tried before the search says so: near a minimiser they would be short at once
OUT_OF_REACH = (
    "rounding hides what is left: columns or labels are far larger than they vary, or columns nearly the same. Subtract "
    "what they have in common, leave one of them out, or ask for less with a larger tol"
)
NO_MINIMISER = (
    "the loss is all but zero and the coefficients still grow: the classes are perfectly separable, and without a "
    "penalty there is no best model. Give a larger alpha"
)
STILL_GROWS = (
    "the gradient is as small as asked for and the coefficients still grow: a column, or a sum of some, tells one class from the "
    "others or has no counts but zero, and without a penalty there is no best model. Give a larger alpha"
)


# A model that is this many times larger than at the start (or than x*) has diverged, unless its objective is lower.
GROWTH = 1e10


def has_diverged(sizes: np.ndarray, usual: float, objective: np.ndarray | None, first: float | None) -> np.ndarray:
    """Which models have diverged: those that are not finite, or grew `GROWTH`-fold to an objective above the first.

    `sizes` are the norms of the models, `usual` that of the start (or of x*). Without objectives growth alone counts.
    """
    grew = ~(sizes < GROWTH * usual)  # True for NaN
    if objective is None or first is None:
        return grew
    return grew & ~(np.isfinite(sizes) & (objective <= first))


def has_converged(gradient_mapping: Any, tol: Any) -> Any:
    """The stopping rule, for numbers and for traced arrays."""
    return gradient_mapping <= tol


def check_certified(x_star: Any) -> Any:
    """x* as it was given, unless it is a solution that says of itself that it did not converge."""
    if getattr(x_star, "converged", True):
        return x_star
    raise InputError(
        f"x_star is a {type(x_star).__name__} that did not converge: distances to it mean nothing. Solve with more iterations "
        "or rounds, or leave x_star out and look at the columns objective and gradient_mapping."
    )


@dataclass(frozen=True)
class Certificate:
    """How far a model can be from stationary, from numbers at the model alone.

    The gradient mapping of a model x is::

        G(x) = L * (x - prox_{g / L}(x - grad f(x) / L)),    L = sum_i p_i L_i

    It is zero exactly at a stationary point of f + g; of a convex problem that is a minimiser.

    Attributes
    ----------
    gradient_mapping : float
        The norm of G(x).
    scale : float
        What that norm is compared with: the norm of grad f at the start (for an estimator, at the null model).
    tol : float
        The tolerance that was asked for.
    duality_gap : float or None
        An upper bound on F(x) - F(x*), rounding included; None where no dual point is known.
    minimiser_exists : bool
        False where the objective falls for ever as the model grows.
    unique : bool or None
        Whether x* is the only minimiser; None where that is not known.
    rounding : float
        An estimate of how much of the gradient mapping rounding can hide.
    convex : bool or None
        Whether the problem is convex; None if that is not known.

    Examples
    --------
    >>> certificate = Certificate(gradient_mapping=2e-13, scale=0.5, tol=1e-12)
    >>> certificate.relative, certificate.holds
    (4e-13, True)
    """

    gradient_mapping: float
    scale: float
    tol: float
    duality_gap: float | None = None
    minimiser_exists: bool = True
    unique: bool | None = None
    rounding: float = 0.0
    convex: bool | None = True

    def _repr_html_(self) -> str:
        known = {True: "yes", False: "no", None: "not known"}
        rows = [
            ["gradient mapping", f"{self.gradient_mapping:.3g}"],
            ["as a share of its scale", f"{self.relative:.1e}; tol = {self.tol:.1e}"],
            [
                "objective above its minimum",
                "not known" if self.duality_gap is None else f"at most {self.duality_gap:.1e}",
            ],
            ["the only minimiser", known[self.unique]],
            ["what rounding can hide", f"{self.rounding:.1e}"],
        ]
        return html_table(self.words, rows)

    @property
    def claim(self) -> str:
        """What the certificate shows if it holds: "minimum", or "stationary point" without known convexity."""
        return "minimum" if self.convex else "stationary point"

    @property
    def relative(self) -> float:
        """The gradient mapping as a share of `scale`."""
        if not (np.isfinite(self.gradient_mapping) and np.isfinite(self.scale)):
            return float("nan")
        return self.gradient_mapping / self.scale if self.scale > 0 else self.gradient_mapping

    @property
    def holds(self) -> bool:
        """Whether the gradient mapping is at most tol * scale, a minimiser exists, and rounding hides no more than that."""
        return has_converged(self.relative, self.tol) and self.minimiser_exists and self.within_reach

    @property
    def within_reach(self) -> bool:
        """Whether rounding errors are below tol * scale, so that the tolerance can be met at all."""
        return bool(self.rounding <= self.tol * self.scale)

    @property
    def words(self) -> str:
        """The certificate in one sentence."""
        relative, gap = f"{self.relative:.1e}", self.duality_gap
        if not self.holds:
            of_scale = f"the gradient mapping is {relative} of its scale; tol = {self.tol:.1e}"
            if not self.minimiser_exists:
                return f"NOT certified: there is no minimiser; {of_scale}."
            if not self.within_reach:
                hidden = self.rounding / self.scale if self.scale > 0 else self.rounding
                way_out = OUT_OF_REACH.partition(": ")[2]
                return f"NOT certified: {of_scale}, but rounding can hide {hidden:.1e}: {way_out}."
            return f"NOT certified: {of_scale}."
        if not self.convex:
            return f"Certified as a stationary point, which need not be a minimum: relative optimality {relative}."
        within = (
            f"relative optimality {relative}" if gap is None else f"the objective is within {gap:.1e} of its minimum"
        )
        return f"Certified: {within}{'; no other model reaches it' if self.unique else ''}."


# --- what rounding can hide ---


def rounding_error(sizes: np.ndarray, x: np.ndarray, L: float, terms: float) -> float:
    """An estimate of the rounding error in a gradient mapping, over sites of these sizes.

    The prediction of each row has an error of u L ||x||, of random sign; the sum of the gradient's terms has an error of u
    times their size. u is the rounding of one number.
    """
    unit, rows = 0.5 * float(np.finfo(float).eps), float(np.sum(sizes))
    return unit * (float(L) * float(np.linalg.norm(x)) / float(np.sqrt(max(rows, 1.0))) + terms)


def rounding_level(x: np.ndarray, L: float, terms: float) -> float:
    """100 eps (L ||x|| + size of the gradient's terms): a gradient mapping below this is zero to rounding.

    The terms count before they cancel: at the minimiser the rounding errors in them are all that is left.
    """
    return 100 * float(np.finfo(x.dtype).eps * (L * np.linalg.norm(x) + terms))


# --- rounds of a first-order method ---


class Status(Enum):
    """The status of a run after some rounds."""

    CONVERGED = "the certificate holds"
    RUNNING = "the objective falls"
    STALLED = "rounds brought the objective no lower"
    DIVERGED = "the model diverged"

    @property
    def failed(self) -> bool:
        return self in (Status.STALLED, Status.DIVERGED)


def has_stalled(trace: Trace, records: int) -> bool:
    """Whether the last records of a trace brought neither a lower objective nor a smaller gradient mapping."""
    F, mapping = trace["objective"], trace["gradient_mapping"]
    if len(F) <= records:
        return False
    return bool(F[-1] >= F[-records] - 1e-12 * abs(F[-1]) and mapping[-records:].min() >= mapping[:-records].min())


# --- trials of a second-order solver ---


class Stop(NamedTuple):
    """The end of a search: whether it converged, and a note for a person where it did not."""

    converged: bool
    note: str = ""


class StoppingRule:
    """When a search by trials stops. It observes every evaluation, and keeps the best.

    Parameters
    ----------
    spec : ProblemSpec
    tol : float
        On the norm of the gradient mapping.
    step : float
        Step of the gradient mapping.
    """

    def __init__(self, spec: ProblemSpec, tol: float, step: float):
        self.spec, self.tol, self.L = spec, tol, 1.0 / step
        self.best: Evaluated | None = None
        self.objective = self.norm = np.inf  # of the best evaluation
        self.first_objective = self.first_norm = self.last_norm = np.inf
        self.idle, self.idle_norm = 0, np.inf  # evaluations without progress, and the norm at the last progress
        self.slow, self.slow_norm = 0, np.inf  # evaluations since the norm last fell by a tenth, and that norm
        self.long_steps = 0

    @property
    def converged(self) -> bool:
        """Whether the last evaluation meets the tolerance."""
        return has_converged(self.last_norm, self.tol)

    def observe(self, at: Evaluated, objective: float, norm: float) -> None:
        """Take note of an evaluation: its objective f + g, and the norm of its gradient mapping."""
        rounding = 8 * np.finfo(float).eps * abs(objective)
        lower = objective < self.objective - rounding
        if self.best is None:
            self.first_objective, self.first_norm = objective, norm
        if self.best is None or lower or (objective <= self.objective + rounding and norm < self.norm):
            self.best, self.objective, self.norm = at, objective, norm
        progress = lower or norm < 0.9 * self.idle_norm
        self.idle, self.idle_norm = (0, min(norm, self.idle_norm)) if progress else (self.idle + 1, self.idle_norm)
        closer = norm < 0.9 * self.slow_norm
        self.slow, self.slow_norm = (0, norm) if closer else (self.slow + 1, self.slow_norm)
        self.last_norm = norm

    def before_tolerance(self) -> Stop | None:
        """Why the search should stop although the tolerance is not reached; None to go on.

        `Stop(True)` where the gradient mapping is zero to rounding and the tolerance was not too fine for the start.
        """
        assert self.best is not None
        if self.separates_classes:
            return Stop(False, NO_MINIMISER)
        x, terms = self.best.x, self.best.terms
        too_fine = self.rounding_at(self.best) > self.tol
        rounding = rounding_level(x, self.L, terms)
        if self.idle > 3 and self.norm <= rounding:
            return Stop(False, OUT_OF_REACH) if too_fine and self.first_norm > rounding else Stop(True)
        if self.slow > MAX_IDLE and too_fine:  # the tolerance is below the rounding errors: it could go on for ever
            return Stop(False, OUT_OF_REACH)
        return Stop(False, f"{MAX_IDLE} evaluations brought nothing") if self.idle > MAX_IDLE else None

    def at_convergence(self, at: Evaluated, step: np.ndarray) -> Stop | None:
        """Stop at a point that meets the tolerance, unless the model still grows; None to try one more step.

        Where there is no minimiser a Newton step takes the gradient down by a factor, and is as long as the one before. A
        step along which rounding hides the gradient proves nothing.
        """
        self.best, self.norm = at, self.last_norm  # whatever rounding makes of objectives whose terms cancel
        length = float(np.linalg.norm(step))
        if self.separates_classes:
            return Stop(False, NO_MINIMISER)
        if getattr(self.spec.loss, "attained", False) or not length > LONG_STEP * np.linalg.norm(at.x):
            return Stop(True)
        if self.loss_vanished and self.free:
            return Stop(False, NO_MINIMISER)
        if abs(at.gradient @ step) <= 3 * length * self.rounding_at(at) or self._is_held(step):
            return Stop(True)
        self.long_steps += 1
        return Stop(False, STILL_GROWS) if self.long_steps > LONG_STEPS else None

    def rounding_at(self, at: Evaluated) -> float:
        """The rounding error of the gradient mapping there."""
        return rounding_error(self.spec.sizes, at.x, self.L, at.terms)

    def _is_held(self, step: np.ndarray) -> bool:
        """Whether a penalty ends the growth of every coefficient that moves: a long step then goes to another minimiser."""
        form = coordinate_form(self.spec.regulariser, self.spec.d)
        if form is None:
            return False
        held = (form.l1 > 0) | (form.l2 > 0) | (np.append(form.group_weight, 0.0)[form.group] > 0)
        return bool(held[np.abs(step) >= LONG_STEP * np.abs(step).max()].all())

    @property
    def loss_vanished(self) -> bool:
        """Whether the loss of a classifier, which is zero nowhere, is all but zero."""
        assert self.best is not None
        classifies = isinstance(unwrapped(self.spec.loss), (Logistic, Softmax))
        return classifies and self.best.value <= 1e-6 * self.first_objective

    @property
    def free(self) -> bool:
        """Whether there is no penalty and no bound on the way from zero through the best model, however far it goes."""
        assert self.best is not None
        form = coordinate_form(self.spec.regulariser, self.spec.d)
        unpenalised = self.objective == self.best.value and not self.spec.loss.ridge
        return unpenalised and (form is None or form.value(FAR * self.best.x) < np.inf)

    @property
    def separates_classes(self) -> bool:
        """Whether the value proves that every row is classified correctly, and there is no penalty.

        A row in the wrong class, or between two classes, has a logistic loss of at least log 2, times the weight of its class.
        """
        assert self.best is not None
        of_a_row = float(np.min(self.spec.weights / self.spec.sizes))
        of_a_class = float(np.min(getattr(unwrapped(self.spec.loss), "class_weights", 1.0)))
        return self.loss_vanished and self.free and self.best.value < np.log(2) * of_a_row * of_a_class
