r"""The second-order solvers ProximalNewton and ProximalBFGS: one evaluation of f over the sites per trial.

**ProximalNewton** asks for the value and the gradient at a trial point and, where steps get shorter too slowly without, for
rows and columns W of the Hessian of f. Its step is

    u = argmin <grad f(x), u - x> + (u - x)^T H (u - x) / 2 + g(u),   u = x outside W

W holds every coordinate that is not at a kink of g, then those nearest to leaving their kink; all coordinates where g couples
them. An evaluation without a Hessian corrects H along the step s by the change y of the gradient, as BFGS does:

    H <- H - H s s^T H / s^T H s + y y^T / y^T s

When to ask is decided by the search (`solvers.search`). Iterates do not depend on how rows are split over sites.

Reference: ours in this form. Relatives: Lee, Sun, Saunders, "Proximal Newton-type methods for minimizing composite
functions", SIAM J. Optimization 2014 (one machine); FedNL, Safaryan, Islamov, Qian, Richtarik, ICML 2022 (federated, no
prox); the working sets of glmnet, celer and skglm (one machine). Deviations: federated, composite and working set together.

**ProximalBFGS** asks for the value and the gradient, the messages of proximal gradient and a number. It remembers the last pairs

    s = difference of two points,   y = difference of the gradients of f there

from every evaluation, rejected trials included. The matrix B of limited-memory BFGS is made of these pairs: a diagonal and
a few vectors, so that no d x d array exists. It takes the place of H; before the first pair B is I / eta.

Reference: ours in this form. The nearest published method is Lee, Lim, Wright, "A distributed quasi-Newton algorithm for
empirical risk minimization with nonsmooth regularization", KDD 2018: L-BFGS with a proximal step over data that lies on
several machines. Other relatives: Nocedal, Wright, "Numerical Optimization", Springer 2006, section 7.2 (limited memory,
unrolled); Lee, Sun, Saunders, as above (proximal quasi-Newton). Deviations: the step is computed at the server, from the
sum of the gradients, and not shared out over the machines; the diagonal that the updates start from; pairs from rejected trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from compfed.algorithms.base import Bounds, Citation
from compfed.federation.server.trial import Evaluated
from compfed.regularisers import Regulariser
from compfed.solvers.base import SecondOrder, SolverState, first_state
from compfed.solvers.quadratic_model import OUTSIDE_DOMAIN, bfgs_step, covers, newton_step, next_working_set

WIDTH = 512  # coordinates of the working set unless given: numbers sent grow with its square, to a megabyte


@dataclass(frozen=True)
class ProximalNewton(SecondOrder):
    """Proximal Newton steps on a working set of at least `width` coordinates (512 unless given)."""

    citation = Citation(
        "Lee, Sun, Saunders", 2014, "Proximal Newton-type methods for minimizing composite functions", "SIAM J. Optimization",
        ours=True,
    )  # fmt: skip
    width: int | None = None

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalNewton:
        """The solver has no step size."""
        return cls()

    def init(
        self, x0: np.ndarray, at: Evaluated | None = None, kept: Mapping[str, np.ndarray] | None = None
    ) -> SolverState:
        if at is not None and at.H is not None:
            return first_state(x0, at.W, known_hessian(at.W, at.H))  # pyright: ignore[reportArgumentType]
        if kept and "H" in kept:
            return first_state(x0, kept=kept)
        d = x0.size  # a working set that is narrower than d waits for the gradient at the start
        W = np.arange(d if (self.width or WIDTH) >= d else 0, dtype=np.int32)
        return first_state(x0, W, None if len(W) else known_hessian(W, np.zeros((0, 0))))

    def minimise_model(self, g: Regulariser, at: Evaluated, kept: Mapping[str, np.ndarray]) -> np.ndarray:
        return newton_step(g, at.x, at.gradient, kept["H"], kept["W"])

    def hessian_coordinates(
        self, g: Regulariser, at: Evaluated, x: np.ndarray, kept: Mapping[str, np.ndarray], ask: bool
    ) -> np.ndarray | None:
        H, W = kept["H"], kept["W"]
        if len(W) == x.size and not ask:
            return None
        predicted = at.gradient + np.bincount(W, H @ (x - at.x)[W], minlength=x.size)  # exact on W only
        if not ask and covers(g, x, predicted, W):
            return None
        return next_working_set(g, x, predicted, self.width or WIDTH)

    def keep(self, s: SolverState, at_trial: Evaluated, t: float, accepted: bool) -> Mapping[str, np.ndarray]:
        """The Hessian that came with the trial, or else the one there was, corrected along the step."""
        fresh = at_trial.H is not None and at_trial.W is not None
        if fresh and (accepted or not s.kept):
            return known_hessian(at_trial.W, at_trial.H)  # pyright: ignore[reportArgumentType]
        if not accepted:
            return s.kept
        if (pair := step_and_change(s.at, at_trial)) is None:
            return s.kept
        W, (S, Y) = s.kept["W"], pair
        return {**s.kept, "H": corrected(s.kept["H"], S[W], Y[W])}


TINY = 1e-9  # a step this short, relative to the model, tells rounding errors of the gradient
FLAT = 1e-6  # of its terms: a sum that cancels further says nothing where a Hessian is in single precision


NOISE = 1e4 * np.finfo(float).eps  # of the terms of the gradient: a change this small is rounding in part


def step_and_change(before: Evaluated, at: Evaluated) -> tuple[np.ndarray, np.ndarray] | None:
    """The step between two models and the change of the gradient; None where rounding has too large a part in them."""
    s, y = at.x - before.x, at.gradient - before.gradient
    if before.value == OUTSIDE_DOMAIN or not np.linalg.norm(s) > TINY * np.linalg.norm(at.x):
        return None
    return (s, y) if np.linalg.norm(y) > NOISE * max(at.terms, before.terms) else None


def known_hessian(W: np.ndarray, H: np.ndarray) -> dict[str, np.ndarray]:
    """What ProximalNewton keeps of a Hessian that the sites gave."""
    return {"W": W, "H": H, "summed": H}


def corrected(H: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """H with H s = y, corrected as by BFGS; H itself where the gradient did not grow along s, or by rounding alone.

    Where H is flat along s to rounding, there is nothing to take away: the quotient of two rounding errors is of any size.
    """
    Hs = H @ s
    old, new = float(s @ Hs), float(s @ y)
    if not new > 1e-10 * np.linalg.norm(s) * np.linalg.norm(y):
        return H
    found = H + np.outer(y, y / new)
    return found - np.outer(Hs, Hs / old) if old > FLAT * float(np.abs(s) @ (np.abs(H) @ np.abs(s))) else found


@dataclass(frozen=True)
class ProximalBFGS(SecondOrder):
    """Proximal L-BFGS steps; `eta` is the length of the first step, `memory` the number of pairs.

    `longest` bounds the change of a coefficient in one step. Sites with a disclosure policy refuse models far out, at which all
    rows are classified with certainty; early steps of BFGS would go there, and back.
    """

    citation = Citation(
        "Lee, Lim, Wright", 2018, "A distributed quasi-Newton algorithm for empirical risk minimization with nonsmooth "
        "regularization", "KDD", ours=True,
    )  # fmt: skip
    eta: float
    memory: int = 30
    longest: float = np.inf

    @classmethod
    def from_bounds(cls, bounds: Bounds) -> ProximalBFGS:
        """The first step has length 1 / L."""
        return cls(eta=1.0 / bounds.L)

    def init(
        self, x0: np.ndarray, at: Evaluated | None = None, kept: Mapping[str, np.ndarray] | None = None
    ) -> SolverState:
        missing = np.zeros((self.memory, x0.size))  # zeros stand for missing pairs, and the newest pair is the last
        return first_state(x0, kept=kept or {"S": missing, "Y": missing})

    def minimise_model(self, g: Regulariser, at: Evaluated, kept: Mapping[str, np.ndarray]) -> np.ndarray:
        return bfgs_step(g, at.x, at.gradient, kept["S"], kept["Y"], 1.0 / self.eta)

    def keep(self, s: SolverState, at_trial: Evaluated, t: float, accepted: bool) -> Mapping[str, np.ndarray]:
        """The pairs with the new one, unless its points are equal or f is flat between them, to rounding."""
        if t < 1e-6:  # the pairs mislead: forget them
            return {name: np.zeros_like(pairs) for name, pairs in s.kept.items()}
        S, Y, norm = at_trial.x - s.at.x, at_trial.gradient - s.at.gradient, np.linalg.norm
        if 1e-14 * norm(S) * norm(Y) < S @ Y and norm(S) > 1e-12 * norm(s.at.x):
            return {name: np.concatenate([s.kept[name][1:], pair[None]]) for name, pair in (("S", S), ("Y", Y))}
        return s.kept


@dataclass(frozen=True)
class PartialNewton(SecondOrder):
    """ProximalNewton where sites give second derivatives on some columns only: on the others it learns from steps, as BFGS.

    Its matrix is the last Hessian on `columns`, the mean of its diagonal for every other coordinate, and the corrections by the
    last `memory` steps. Before the first Hessian it is I / eta.
    """

    citation = ProximalBFGS.citation
    eta: float
    columns: tuple[int, ...]
    memory: int = 30
    longest: float = np.inf

    def init(
        self, x0: np.ndarray, at: Evaluated | None = None, kept: Mapping[str, np.ndarray] | None = None
    ) -> SolverState:
        if not kept or "block" not in kept:
            d = x0.size
            nothing = {"S": np.zeros((0, d)), "Y": np.zeros((0, d)), "block": np.zeros((0, 0))}
            kept = {"W": np.arange(d), "H": np.eye(d) / self.eta, **nothing}
        return first_state(x0, kept=kept)

    def minimise_model(self, g: Regulariser, at: Evaluated, kept: Mapping[str, np.ndarray]) -> np.ndarray:
        return newton_step(g, at.x, at.gradient, kept["H"], kept["W"])

    def hessian_coordinates(
        self, g: Regulariser, at: Evaluated, x: np.ndarray, kept: Mapping[str, np.ndarray], ask: bool
    ) -> np.ndarray | None:
        # of a squared loss one block serves all models, and nothing else asks for it
        return np.array(self.columns, np.int32) if ask or not len(kept["block"]) else None

    def keep(self, s: SolverState, at_trial: Evaluated, t: float, accepted: bool) -> Mapping[str, np.ndarray]:
        """The new block, if one came, and the pairs with the new one, from rejected trials too."""
        block = s.kept["block"] if at_trial.H is None else at_trial.H
        S, Y = s.kept["S"], s.kept["Y"]
        step, change = at_trial.x - s.at.x, at_trial.gradient - s.at.gradient
        if s.at.value < OUTSIDE_DOMAIN and np.linalg.norm(step) > TINY * np.linalg.norm(at_trial.x):
            S, Y = (np.concatenate([pairs, new[None]])[-self.memory :] for pairs, new in ((S, step), (Y, change)))
        if t < 1e-6:  # the pairs mislead: forget them
            S, Y = S[:0], Y[:0]
        H, W = np.eye(at_trial.x.size) / self.eta, np.array(self.columns)
        if len(block):
            H *= self.eta * np.diag(block).mean()
            H[np.ix_(W, W)] = block
        for pair in zip(S, Y, strict=True):
            H = corrected(H, *pair)
        return {"W": s.kept["W"], "H": H, "S": S, "Y": Y, "block": block}


SOLVERS: dict[str, type[SecondOrder]] = {"ProximalNewton": ProximalNewton, "ProximalBFGS": ProximalBFGS}
