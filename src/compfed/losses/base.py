"""What a problem asks of a loss, and the linear models: one prediction per row, or several."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from compfed._utils.array_namespace import Numbers, namespace, product
from compfed._utils.triangle import square, upper
from compfed.errors import InputError
from compfed.losses.labels import one_column
from compfed.losses.lipschitz import gram, largest_eigenvalue


class Evaluated(NamedTuple):
    """Of several models: a weighted sum over rows, its gradient, and how large the terms of that are before they cancel."""

    value: Numbers  # (models,)
    gradient: Numbers  # (models, d)
    terms: Numbers  # (models,)


class Loss(Protocol):
    """What a problem needs to know of a loss. The ridge is in none of the methods: who calls them adds it."""

    @property
    def ridge(self) -> float: ...
    @property
    def curvature(self) -> float | None:
        """A bound on the second derivative in the prediction; None where there is none."""
        ...

    def size(self, width: int) -> int:
        """d: the number of coefficients of a model of `width` features."""
        ...

    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        """loss(x; a_l, y_l) of every row l."""
        ...

    def gradient(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        """sum_l weight_l grad loss(x; a_l, y_l)."""
        ...

    def hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l weight_l d^2 loss(x; a_l, y_l) / dx_W dx_W: rows and columns W of the Hessian, all of it for None."""
        ...

    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        """The matrix of a quadratic model around x: `hessian`, unless that says too little of what is near."""
        ...

    def model_triangle(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers) -> Numbers:
        """The numbers in that matrix that a site has to send."""
        ...

    def model_matrix(self, triangle: Numbers, W: Numbers) -> Numbers:
        """The matrix again."""
        ...

    def model_numbers(self, w: int) -> int:
        """How many numbers that is, for w coordinates."""
        ...

    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        """sum_l weight_l ||grad loss(x; a_l, y_l)||: rounding in the gradient is a small multiple of this."""
        ...

    def evaluated(self, X: Numbers, A: Numbers, y: Numbers, weight: Numbers, lengths: Numbers) -> Evaluated:
        """Value, gradient and the size of its terms of the models in the rows of X; `lengths` are the norms of A's rows."""
        ...

    def steepness(
        self, A: np.ndarray, weight: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """L with ||sum_l weight_l d^2 loss(x; a_l, y_l) / dx^2|| <= L: for all x, or, without `curvature`, at x.

        Infinite where it overflows.
        """
        ...

    def curvature_bound(
        self, A: Numbers, weight: np.ndarray, lengths: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        """A bound on that which takes one look at the rows; `lengths` are their norms."""
        ...

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """The labels as the formulas have them; refuses others."""
        ...


# An overflow is an infinity for the caller to judge, with NumPy as with JAX, which never warns.
unwarned = np.errstate(over="ignore", invalid="ignore")


class SentAsTriangle:
    """A loss whose matrix has no more structure than being symmetric."""

    model_hessian: Callable[..., Numbers]

    def model_triangle(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers) -> Numbers:
        return upper(self.model_hessian(x, A, y, weight, W))

    def model_matrix(self, triangle: Numbers, W: Numbers) -> Numbers:
        return square(triangle, len(W))

    def model_numbers(self, w: int) -> int:
        return w * (w + 1) // 2


class OneOutput(SentAsTriangle):
    """A linear model with one prediction z = a^T x."""

    convex = True
    attained = (
        False  # has the sum over any rows a minimiser? Not where classes that can be told apart drive x to infinity
    )
    value: Callable[[Numbers, Numbers], Numbers]  # loss(z, y)
    slope: Callable[[Numbers, Numbers], Numbers]  # its derivative in z
    weight: Callable[[Numbers, Numbers], Numbers]  # its second derivative in z

    @property
    def curvature(self) -> float | None:
        """A bound on `weight`; None where there is none."""
        raise NotImplementedError

    def size(self, width: int) -> int:
        return width

    @unwarned
    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        return self.value(A @ x, y)

    @unwarned
    def gradient(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        return (self.slope(A @ x, y) * weight) @ A

    @unwarned
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        """A_W^T diag(weight w(z)) A_W, with w the second derivative in z."""
        return gram(A if W is None else A[:, W], weight * self.weight(A @ x, y))

    @unwarned
    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        return gram(A if W is None else A[:, W], weight * self.model_weight(product(A, x), y))

    def model_weight(self, z: Numbers, y: Numbers) -> Numbers:
        """The second derivative in z that a quadratic model of the loss is given."""
        return self.weight(z, y)

    @unwarned
    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        """sum_l weight_l |slope_l| ||a_l||."""
        lengths = namespace(x, A).linalg.norm(A, axis=1)
        return (weight * abs(self.slope(A @ x, y))) @ lengths

    @unwarned
    def evaluated(self, X: Numbers, A: Numbers, y: Numbers, weight: Numbers, lengths: Numbers) -> Evaluated:
        z, each = product(A, X[0])[:, None] if len(X) == 1 else A @ X.T, y[:, None]
        pulled = weight[:, None] * self.slope(z, each)
        return Evaluated(weight @ self.value(z, each), (A.T @ pulled).T, lengths @ abs(pulled))

    @unwarned
    def steepness(
        self, A: np.ndarray, weight: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """curvature * lambda_max(A^T diag(weight) A); without a bound, lambda_max(A^T diag(weight w(z)) A) at x."""
        if self.curvature is not None:
            return float(self.curvature) * largest_eigenvalue([A], [weight])
        if x is None:
            raise InputError(f"the curvature of {type(self).__name__} has no bound: steepness needs a model x.")
        return largest_eigenvalue([A], [weight * self.weight(A @ x, y)])

    @unwarned
    def curvature_bound(
        self, A: Numbers, weight: np.ndarray, lengths: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        """The trace in place of the largest eigenvalue: sum_l weight_l curvature ||a_l||^2."""
        curved = self.weight(A @ x, y) if self.curvature is None else self.curvature
        return float((weight * curved) @ lengths**2)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return one_column(labels, self)


class ManyOutputs(SentAsTriangle):
    """A linear model with K predictions z = X^T a, X = x.reshape(-1, K): entry j K + k is of feature j and output k."""

    convex = True
    attained = False
    outputs: int
    value: Callable[[Numbers, Numbers], Numbers]  # loss(z, y)
    slope: Callable[[Numbers, Numbers], Numbers]  # its gradient in z
    weight_parts: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]  # (c, r): in z, its Hessian is diag(c) - r r^T

    @property
    def curvature(self) -> float:
        """A bound on the largest eigenvalue of `weight`."""
        raise NotImplementedError

    def size(self, width: int) -> int:
        return width * self.outputs

    def predictions(self, x: Numbers, A: Numbers) -> Numbers:
        """z = A X, one row of K for each row of A."""
        return product(A, x.reshape(-1, self.outputs))

    def weight(self, z: Numbers, y: Numbers) -> Numbers:
        """diag(c) - r r^T: the second derivative in z, (K, K) for each row. `hessian` does without this array."""
        c, r = self.weight_parts(z, y)
        return c[..., None] * namespace(c).eye(self.outputs, dtype=c.dtype) - r[..., None] * r[..., None, :]

    @unwarned
    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        return self.value(self.predictions(x, A), y)

    @unwarned
    def gradient(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        slope = self.slope(self.predictions(x, A), y)
        return (A.T @ (slope * weight[:, None])).reshape(-1)

    @unwarned
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l weight_l a_lj a_lj' (c_lk [k = k'] - r_lk r_lk') at the entries (j, k), (j', k')."""
        c, r = self.weight_parts(self.predictions(x, A), y)
        j, k = divmod(np.arange(x.size) if W is None else W, self.outputs)
        features = A[:, j]
        same_output = ((features * c[:, k]).T * weight) @ features
        return same_output * (k[:, None] == k) - gram(features * r[:, k], weight)

    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, W: Numbers | None = None) -> Numbers:
        return self.hessian(x, A, y, weight, W)

    @unwarned
    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers) -> Numbers:
        """sum_l weight_l ||slope_l|| ||a_l||, for the gradient of a row is the matrix a slope^T."""
        norm = namespace(x, A).linalg.norm
        return (weight * norm(self.slope(self.predictions(x, A), y), axis=1)) @ norm(A, axis=1)

    @unwarned
    def evaluated(self, X: Numbers, A: Numbers, y: Numbers, weight: Numbers, lengths: Numbers) -> Evaluated:
        found = [self._evaluated(x, A, y, weight, lengths) for x in X]
        return Evaluated(*(np.array(part) for part in zip(*found, strict=True)))

    def _evaluated(self, x: Numbers, A: Numbers, y: Numbers, weight: Numbers, lengths: Numbers) -> tuple[Numbers, ...]:
        z = self.predictions(x, A)
        slope = self.slope(z, y)
        terms = (weight * namespace(x, A).linalg.norm(slope, axis=1)) @ lengths
        return weight @ self.value(z, y), (A.T @ (slope * weight[:, None])).reshape(-1), terms

    def steepness(
        self, A: np.ndarray, weight: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """curvature * lambda_max(A^T diag(weight) A)."""
        return float(self.curvature) * largest_eigenvalue([A], [weight])

    @unwarned
    def curvature_bound(
        self, A: Numbers, weight: np.ndarray, lengths: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        """curvature * sum_l weight_l ||a_l||^2, the trace in place of the largest eigenvalue."""
        return float(self.curvature) * float(weight @ lengths**2)
