"""`check` of a loss: gradient and Hessian against differences, convexity, and the bound on its curvature."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from compfed._utils.compilation import precision
from compfed.errors import InputError
from compfed.testing.report import Checked, Verdict, line, verdict

ROWS, WIDTH, MODELS = 30, 4, 6
CLOSE = 1e-5  # relative, of a central difference
AGREE = 1e-9  # relative, of two ways to compute one number


def check_loss(loss: Any, X: npt.ArrayLike | None = None, y: npt.ArrayLike | None = None) -> Checked:
    """The report on a loss."""
    case = _Case(loss, X, y)
    lines = [
        line("gradient", case.gradient), line("Hessian", case.hessian), line("evaluate", case.evaluate),
        line("NumPy and JAX agree", case.engines), line("convex", case.convex), line("curvature", case.curvature),
    ]  # fmt: skip
    return Checked(type(loss).__name__, tuple(lines))


class _Case:
    """A loss, rows and labels that it takes, and random models."""

    def __init__(self, loss: Any, X: npt.ArrayLike | None, y: npt.ArrayLike | None):
        if (X is None) != (y is None):
            raise InputError("check of a loss takes X and y together, or neither.")
        rng = np.random.default_rng(0)
        self.loss = loss
        self.A = rng.standard_normal((ROWS, WIDTH)) if X is None else np.asarray(X, float)
        self.y = _labels(loss, self.A, rng) if y is None else loss.encode(np.asarray(y))
        q = rng.random(len(self.A)) + 0.5
        self.q = q / q.sum()
        self.d = loss.size(self.A.shape[1])
        centre = np.asarray(getattr(loss, "start", np.zeros(self.d)))
        self.X = centre + rng.standard_normal((MODELS, self.d)) * np.repeat([0.3, 1.0], MODELS // 2)[:, None]
        self.V = rng.standard_normal((MODELS, self.d))
        self.V /= np.linalg.norm(self.V, axis=1)[:, None]
        try:
            found = np.shape(self.f(self.X[0]))
        except Exception as error:  # a function of one's own may raise anything on rows it does not take
            raise InputError(
                f"{type(loss).__name__} does not take the rows and labels tried ({type(error).__name__}: {error}). Give some of "
                "your own: check(loss, X, y)."
            ) from error
        if found != ():
            raise InputError(f"{type(loss).__name__}.values gives {found[:-1]} numbers per row; it must give one.")

    def f(self, x: np.ndarray) -> float:
        return self.q @ np.asarray(self.loss.values(x, self.A, self.y))

    def g(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.loss.gradient(x, self.A, self.y, self.q))

    def H(self, x: np.ndarray, W: np.ndarray | None = None) -> np.ndarray:
        return np.asarray(self.loss.hessian(x, self.A, self.y, self.q, W))

    def gradient(self) -> tuple[Verdict, str]:
        h, worst = 1e-5, 0.0
        for x, v in zip(self.X, self.V, strict=True):
            difference = (self.f(x + h * v) - self.f(x - h * v)) / (2 * h)
            worst = max(worst, abs(difference - self.g(x) @ v) / (np.linalg.norm(self.g(x)) + 1e-6))
        return verdict(worst <= CLOSE, f"{worst:.0e} from central differences of the values, at {MODELS} models")

    def hessian(self) -> tuple[Verdict, str]:
        h, worst = 1e-5, 0.0
        W = np.arange(0, self.d, 2)
        for x, v in zip(self.X, self.V, strict=True):
            H = self.H(x)
            difference = (self.g(x + h * v) - self.g(x - h * v)) / (2 * h)
            worst = max(worst, float(np.linalg.norm(difference - H @ v) / (np.linalg.norm(H) + 1e-6)))
            if (part := float(np.abs(self.H(x, W) - H[np.ix_(W, W)]).max())) > AGREE * (np.abs(H).max() + 1e-6):
                return "fails", f"rows and columns W are {part:.0e} from those of the whole"
        return verdict(worst <= CLOSE, f"{worst:.0e} from central differences of the gradient, at {MODELS} models")

    def evaluate(self) -> tuple[Verdict, str]:
        """Values and gradients of pairs of a model and a subset of the rows: all rows, or every second."""
        Q = np.stack([self.q, self.q * (np.arange(len(self.q)) % 2)])
        which = np.arange(MODELS) % 2
        found = self.loss.evaluate(self.X, self.A, self.y, Q, which, np.linalg.norm(self.A, axis=1))
        apart = 0.0
        for x, q, value, gradient in zip(self.X, Q[which], found.value, found.gradient, strict=True):
            alone = q @ np.asarray(self.loss.values(x, self.A, self.y))
            slope = np.asarray(self.loss.gradient(x, self.A, self.y, q))
            apart = max(apart, abs(value - alone) / (abs(alone) + 1e-6))
            apart = max(apart, float(np.abs(gradient - slope).max()) / (float(np.abs(slope).max()) + 1e-6))
        return verdict(apart <= AGREE, f"values and gradients together are {apart:.0e} from those alone")

    def engines(self) -> tuple[Verdict, str]:
        apart = 0.0
        with precision(np.dtype(float)):
            rows = tuple(jnp.asarray(part) for part in (self.A, self.y, self.q))
            for x in self.X:
                there = np.asarray(self.loss.gradient(jnp.asarray(x), *rows))
                apart = max(apart, float(np.abs(there - self.g(x)).max() / (np.abs(there).max() + 1e-6)))
        return verdict(apart <= AGREE, f"gradients are {apart:.0e} apart")

    def convex(self) -> tuple[Verdict, str]:
        """<grad f(x) - grad f(w), x - w> >= 0 for a convex f, on every pair of models."""
        worst = 0.0
        for x in self.X:
            for w in self.X:
                product = (self.g(x) - self.g(w)) @ (x - w)
                scale = np.linalg.norm(self.g(x) - self.g(w)) * np.linalg.norm(x - w) + 1e-12
                worst = min(worst, float(product / scale))
        spectra = [np.linalg.eigvalsh(self.H(x)) for x in self.X]
        eigenvalue = min(float(spectrum[0]) for spectrum in spectra)
        largest = max(float(np.abs(spectrum).max()) for spectrum in spectra)
        curved = worst < -AGREE or eigenvalue < -AGREE * largest
        found = (
            f"not convex: an eigenvalue of {eigenvalue:.1e} of the Hessian"
            if curved
            else "no pair of models says otherwise"
        )
        if (claim := getattr(self.loss, "convex", None)) is not True:
            said = {None: "convex is unknown", False: "convex = False"}[claim]
            return "not claimed", f"{said}; {found}"
        return verdict(not curved, found)

    def curvature(self) -> tuple[Verdict, str]:
        largest = max(float(np.linalg.eigvalsh(self.H(x))[-1]) for x in self.X)
        if self.loss.curvature is None:
            return "not claimed", f"no bound; eigenvalues up to {largest:.3g} here"
        L = float(self.loss.lipschitz(self.A, self.q))
        return verdict(largest <= L * (1 + AGREE), f"eigenvalues up to {largest:.3g}, bound {L:.3g}")


def _labels(loss: Any, A: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Labels that the loss takes: numbers, positive ones, counts, two classes, several, or several columns."""
    m, outputs = len(A), int(getattr(loss, "outputs", 3))
    tried = [
        rng.standard_normal(m), rng.gamma(2.0, size=m), rng.poisson(2.0, m).astype(float), np.where(A[:, 0] > 0, 1.0, -1.0),
        np.arange(m) % outputs, rng.standard_normal((m, outputs)), rng.standard_normal((m, 2)),
    ]  # fmt: skip
    for labels in tried:
        try:
            encoded = loss.encode(labels)
            if np.shape(loss.values(np.zeros(loss.size(A.shape[1])), A, encoded)) == (m,):
                return encoded
        except Exception:  # labels of another kind, or rows that a function of one's own does not take
            continue
    raise InputError(f"{type(loss).__name__} takes none of the labels tried. Give rows of your own: check(loss, X, y).")
