"""The protocol of a loss, the base classes of linear models with one or several outputs, and checks of labels.

To add a loss, write a record that subclasses `OneOutput` or `ManyOutputs` in `linear.py`, as CONTRIBUTING.md says.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from compfed._utils.array_namespace import Numbers, namespace, product
from compfed.errors import InputError
from compfed.losses.lipschitz import gram, largest_eigenvalue, single_gram
from compfed.losses.many_models import LossEvaluation, evaluate_many, held_out_loss


def upper_triangle(matrix: Numbers) -> Numbers:
    """w (w + 1) / 2 numbers of a symmetric (w, w) matrix, of NumPy or of JAX."""
    return matrix.reshape(-1)[_places(len(matrix))[0]]


def symmetric_matrix(triangle: Numbers, w: int) -> Numbers:
    """The symmetric matrix of which this is the upper triangle."""
    return triangle[_places(w)[1]]


@functools.lru_cache(maxsize=4)  # of 3,000 coordinates this is 54 MB
def _places(w: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the numbers of a triangle are in the matrix, and those of the matrix in the triangle."""
    rows, columns = np.triu_indices(w)
    place = np.zeros((w, w), np.int32)  # a program in single precision knows no other
    place[rows, columns] = np.arange(len(rows))
    return (rows * w + columns).astype(np.int32), np.maximum(place, place.T)


class Loss(Protocol):
    """A loss f_i(x) = sum_l q_l loss(x; a_l, y_l) + (ridge / 2) ||x||^2: all that a problem needs of it.

    A has the features a_l of the rows, y their labels, q their sample weights. No method includes the ridge: the caller
    adds it. `convex` is True for a loss that is convex in x, False for one that is not, and None where nobody knows.
    """

    ridge: float
    convex: bool | None = None
    curvature: float | None = None  # a bound on the second derivative in the prediction, or its eigenvalues

    def size(self, width: int) -> int:
        """d: the number of coefficients of a model of `width` features."""
        ...

    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        """loss(x; a_l, y_l) of every row l."""

    def gradient(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        """sum_l q_l grad loss(x; a_l, y_l)."""

    def evaluate(
        self, X: np.ndarray, A: Numbers, y: np.ndarray, Q: np.ndarray, which: np.ndarray, row_norms: np.ndarray
    ) -> LossEvaluation:
        """Value, gradient and the size of its terms for many pairs (subset of the rows, model), in NumPy.

        Model m has the coefficients X[m] and the sample weights Q[which[m]]; `row_norms` are ||a_l||.
        """
        ...

    def held_out(self, X: np.ndarray, A: Numbers, y: np.ndarray, q: np.ndarray) -> np.ndarray:
        """sum_l q_l loss(x; a_l, y_l) for the models in the rows of X, over the rows that have a weight."""
        return np.array([q @ np.where(q > 0, np.asarray(self.values(x, A, y)), 0.0) for x in X])

    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l q_l d^2 loss(x; a_l, y_l) / dx_W dx_W: rows and columns W of the Hessian, all of it for None."""

    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """The matrix of a quadratic model around x: `hessian`, or more where the loss is nearly straight."""
        return self.hessian(x, A, y, q, W)

    def packed_hessian(
        self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers, single: bool = False
    ) -> Numbers:
        """The entries of `model_hessian` that a site has to send: the upper triangle, if there is no other structure.

        `single` says that single precision is enough, where that is faster.
        """
        return upper_triangle(self.model_hessian(x, A, y, q, W))

    def unpack_hessian(self, packed: Numbers, W: Numbers) -> Numbers:
        """The matrix from these entries."""
        return symmetric_matrix(packed, len(W))

    def packed_size(self, w: int) -> int:
        """The number of these entries, for w coordinates."""
        return w * (w + 1) // 2

    def lipschitz(self, A: Numbers, q: Numbers, x: Numbers | None = None, y: Numbers | None = None) -> float:
        """L with ||sum_l q_l d^2 loss(x; a_l, y_l) / dx^2|| <= L: for all x, or, without `curvature`, at x.

        Infinite where it overflows.
        """
        ...

    def lipschitz_upper_bound(self, A: Numbers, q: Numbers, row_norms: Numbers, x: Numbers, y: Numbers) -> float:
        """A bound on `lipschitz` that needs one pass over the rows, if there is one; `row_norms` are ||a_l||."""
        return self.lipschitz(A, q, x, y)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """The labels in the coding of the formulas; others are refused."""
        return labels


class SiteLoss(Loss):
    """A loss of all rows of a site together, no sum over rows: f_i(x) from (A, y, q), with q = w / sum w the sample weights.

    The methods of `Loss` that take all rows are there: `size`, `evaluate`, `hessian`, `lipschitz`. A row of weight 0 has no part in
    any of them. Those of single rows do not exist, so that mini-batches, local steps, duality gaps and `HeldOut` refuse such a loss;
    a row-wise `Loss` is the ordinary case.
    """

    def encode(
        self,
        labels: np.ndarray,
        strata: np.ndarray | None = None,
        offset: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:
        """y, with a column for everything that the loss knows of a row beside its features."""
        raise NotImplementedError

    def row_curvatures(self, x: np.ndarray, A: Numbers, y: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(a, stratum): the part that rows have in the second derivatives at x, and the stratum of each; rows without are left out."""
        raise NotImplementedError

    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        raise InputError(whole_site(self, "losses of single rows"))

    def gradient(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        raise InputError(whole_site(self, "gradients of single rows"))


def whole_site(loss: Loss, asked: str) -> str:
    """Why a loss of a whole site has no part in something that needs single rows."""
    return (
        f"{type(loss).__name__} is a loss of a whole site, and {asked} need a sum over rows. Use FederatedCox or FederatedCoxCV with "
        "algorithm='auto', 'ProximalNewton' or 'ProximalBFGS'"
    )


def columns(A: Numbers, W: Numbers | None) -> Numbers:
    """The columns W of rows; the rows themselves where those are all."""
    everything = W is None or (
        isinstance(W, np.ndarray) and isinstance(A, np.ndarray) and np.array_equal(W, np.arange(A.shape[1]))
    )
    return A if everything else A[:, W]


def weighted(q: Numbers, each: Numbers) -> Numbers:
    """q times a number of each row, which for a row without a weight may be infinite."""
    return namespace(q, each).where(q > 0, q * each, 0.0)


# An overflow gives an infinity, which the caller checks. NumPy must not warn about it; JAX never does.
ignore_overflow = np.errstate(over="ignore", invalid="ignore")


class LinearModel(Loss):
    """A loss of the predictions z of a linear model."""

    convex = True
    predictions_of_row = 1
    attained = False  # whether the sum over any rows has a minimiser; separable classes have none
    quadratic = False  # whether the second derivative is the same at every model
    jumps = False  # whether the second derivative jumps: where it does, two Hessians may differ by one row
    value: Callable[[Numbers, Numbers], Numbers]  # loss(z, y)
    derivative: Callable[[Numbers, Numbers], Numbers]  # in z
    second_derivative: Callable[[Numbers, Numbers], Numbers]  # in z

    def usual_curvature(self, y: Numbers, share: Numbers) -> float:
        """The second derivative in z that counts as usual: its bound, or without one that of a model of an intercept alone.

        That is the mean count for the exponential; no more than 1, the curvature at the model zero.
        """
        return min(float(share @ y), 1.0) if self.curvature is None else float(self.curvature)

    def value_and_derivative(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both at once, the derivative in an array of its own. A loss with an exponential computes that once for both."""
        return np.asarray(self.value(z, y)), np.array(self.derivative(z, y))

    def by_model(self, z: np.ndarray) -> np.ndarray:
        """Predictions (rows, models * outputs) as (rows, models), or with several outputs as (rows, models, outputs)."""
        raise NotImplementedError

    def size_of(self, derivative: np.ndarray) -> np.ndarray:
        """(rows, models): the norms of derivatives in the predictions of a row."""
        raise NotImplementedError

    @ignore_overflow
    def evaluate(
        self, X: np.ndarray, A: Numbers, y: np.ndarray, Q: np.ndarray, which: np.ndarray, row_norms: np.ndarray
    ) -> LossEvaluation:
        return evaluate_many(self, X, A, y, Q, which, row_norms)

    @ignore_overflow
    def held_out(self, X: np.ndarray, A: Numbers, y: np.ndarray, q: np.ndarray) -> np.ndarray:
        return held_out_loss(self, X, A, y, q)

    def inverse_link(self, z: Numbers) -> Numbers:
        """The predicted mean of a label, or the probability of its classes, from the linear predictor z."""
        return z

    def saturated(self, y: Numbers) -> Numbers:
        """The least loss of a label y over all predictions: the deviance of a row is 2 (loss - saturated)."""
        return namespace(y).zeros(len(y))

    def of_label(self, y: Numbers) -> Numbers:
        """What the loss leaves out of -log P(y), a function of the label; for a summary of the likelihood."""
        return namespace(y).zeros(len(y))

    @ignore_overflow
    def lipschitz(self, A: Numbers, q: Numbers, x: Numbers | None = None, y: Numbers | None = None) -> float:
        """curvature * lambda_max(A^T diag(q) A); without a bound, lambda_max(A^T diag(q w(z)) A) at x."""
        if self.curvature is not None:
            return float(self.curvature) * largest_eigenvalue([A], [q])
        if x is None:
            raise InputError(f"the curvature of {type(self).__name__} has no bound: lipschitz needs a model x.")
        return largest_eigenvalue([A], [weighted(q, self.second_derivative(A @ x, y))])


class OneOutput(LinearModel):
    """A linear model with one prediction z = a^T x."""

    def size(self, width: int) -> int:
        return width

    @ignore_overflow
    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        return self.value(A @ x, y)

    @ignore_overflow
    def gradient(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        return (self.derivative(A @ x, y) * q) @ A

    @ignore_overflow
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """A_W^T diag(q w(z)) A_W, with w the second derivative in z."""
        return gram(columns(A, W), weighted(q, self.second_derivative(A @ x, y)))

    @ignore_overflow
    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        return gram(columns(A, W), weighted(q, self.model_second_derivative(product(A, x), y)))

    @ignore_overflow
    def packed_hessian(
        self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers, single: bool = False
    ) -> Numbers:
        if not (single and isinstance(A, np.ndarray)):
            return super().packed_hessian(x, A, y, q, W)
        return upper_triangle(single_gram(columns(A, W), weighted(q, self.model_second_derivative(product(A, x), y))))

    def model_second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        """The second derivative in z that a quadratic model of the loss is given."""
        return self.second_derivative(z, y)

    def by_model(self, z: np.ndarray) -> np.ndarray:
        return z

    def size_of(self, derivative: np.ndarray) -> np.ndarray:
        return np.abs(derivative)

    @ignore_overflow
    def lipschitz_upper_bound(self, A: Numbers, q: Numbers, row_norms: Numbers, x: Numbers, y: Numbers) -> float:
        """The trace in place of the largest eigenvalue: sum_l q_l curvature ||a_l||^2."""
        second = self.second_derivative(A @ x, y) if self.curvature is None else self.curvature
        return float(weighted(q, second) @ row_norms**2)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return one_column(self, labels)


class ManyOutputs(LinearModel):
    """A linear model with K predictions z = X^T a, X = x.reshape(-1, K): entry j K + k is of feature j and output k."""

    curvature: float  # pyright: ignore[reportIncompatibleVariableOverride]  # always bounded
    outputs: int
    # (c, r): the Hessian in z is diag(c) - r r^T
    second_derivative_parts: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]

    def size(self, width: int) -> int:
        return width * self.outputs

    def predictions(self, x: Numbers, A: Numbers) -> Numbers:
        """z = A X, one row of K for each row of A."""
        return product(A, x.reshape(-1, self.outputs))

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        """diag(c) - r r^T: the second derivative in z, (K, K) for each row. `hessian` does without this array."""
        c, r = self.second_derivative_parts(z, y)
        return c[..., None] * namespace(c).eye(self.outputs, dtype=c.dtype) - r[..., None] * r[..., None, :]

    @ignore_overflow
    def values(self, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        return self.value(self.predictions(x, A), y)

    @ignore_overflow
    def gradient(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        derivative = self.derivative(self.predictions(x, A), y)
        return (A.T @ (derivative * q[:, None])).reshape(-1)

    @ignore_overflow
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l q_l a_lj a_lj' (c_lk [k = k'] - r_lk r_lk') at the entries (j, k), (j', k')."""
        c, r = self.second_derivative_parts(self.predictions(x, A), y)
        j, k = divmod(np.arange(x.size) if W is None else W, self.outputs)
        features = A[:, j]
        same_output = ((features * c[:, k]).T * q) @ features
        return same_output * (k[:, None] == k) - gram(features * r[:, k], q)

    @property
    def predictions_of_row(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.outputs

    def by_model(self, z: np.ndarray) -> np.ndarray:
        return z.reshape(len(z), -1, self.outputs)

    def size_of(self, derivative: np.ndarray) -> np.ndarray:
        return np.sqrt(np.einsum("lmk,lmk->lm", derivative, derivative))

    @ignore_overflow
    def lipschitz_upper_bound(self, A: Numbers, q: Numbers, row_norms: Numbers, x: Numbers, y: Numbers) -> float:
        """curvature * sum_l q_l ||a_l||^2, the trace in place of the largest eigenvalue."""
        return float(self.curvature) * float(q @ row_norms**2)


# --- checks of labels ---
# A refusal may leave the site that has the labels. It states the requirement, and neither a label nor their number.


def one_column(self: Loss, labels: np.ndarray) -> np.ndarray:
    """One label per row, as they are."""
    if labels.ndim != 1:
        way_out = "Use losses.MultiSquared for several numeric outcomes; labels.ravel() makes one column of them."
        raise InputError(f"{type(self).__name__} needs one label per row; got {column_shape(labels)}. {way_out}")
    return labels


def column_shape(labels: np.ndarray) -> str:
    """The shape of labels without the number of rows."""
    return f"labels of shape ({', '.join(['rows', *map(str, labels.shape[1:])])})"
