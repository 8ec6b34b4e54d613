"""The protocol of a loss, the base classes of linear models with one or several outputs, and checks of labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from compfed._utils.array_namespace import Numbers, namespace, product
from compfed._utils.triangle import square, upper
from compfed.errors import InputError
from compfed.losses.lipschitz import gram, largest_eigenvalue


class LossEvaluation(NamedTuple):
    """f(x), its gradient and the size of the gradient's terms for several models, without the ridge."""

    value: Numbers  # (models,)
    gradient: Numbers  # (models, d)
    terms: Numbers  # (models,), sum_l q_l ||grad loss(x; a_l, y_l)||: rounding is a small multiple of this


class Loss(Protocol):
    """A loss f_i(x) = sum_l q_l loss(x; a_l, y_l) + (ridge / 2) ||x||^2: all that a problem needs of it.

    A has the features a_l of the rows, y their labels, q their sample weights. No method includes the ridge: the caller
    adds it. A loss that is known to be convex has an attribute `convex = True`.
    """

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

    def gradient(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        """sum_l q_l grad loss(x; a_l, y_l)."""
        ...

    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        """sum_l q_l ||grad loss(x; a_l, y_l)||: rounding in the gradient is a small multiple of this."""
        ...

    def evaluate(self, X: Numbers, A: Numbers, y: Numbers, q: Numbers, row_norms: Numbers) -> LossEvaluation:
        """Value, gradient and the size of its terms for the models in the rows of X; `row_norms` are ||a_l||."""
        ...

    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """sum_l q_l d^2 loss(x; a_l, y_l) / dx_W dx_W: rows and columns W of the Hessian, all of it for None."""
        ...

    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        """The matrix of a quadratic model around x: `hessian`, or more where the loss is nearly straight."""
        ...

    def packed_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers) -> Numbers:
        """The entries of `model_hessian` that a site has to send."""
        ...

    def unpack_hessian(self, packed: Numbers, W: Numbers) -> Numbers:
        """The matrix from these entries."""
        ...

    def packed_size(self, w: int) -> int:
        """The number of these entries, for w coordinates."""
        ...

    def lipschitz(
        self, A: np.ndarray, q: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """L with ||sum_l q_l d^2 loss(x; a_l, y_l) / dx^2|| <= L: for all x, or, without `curvature`, at x.

        Infinite where it overflows.
        """
        ...

    def lipschitz_upper_bound(
        self, A: Numbers, q: np.ndarray, row_norms: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        """A bound on `lipschitz` that needs one pass over the rows; `row_norms` are ||a_l||."""
        ...

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """The labels in the coding of the formulas; others are refused."""
        ...


# An overflow gives an infinity, which the caller checks. NumPy must not warn about it; JAX never does.
ignore_overflow = np.errstate(over="ignore", invalid="ignore")


class SymmetricHessian:
    """A loss whose Hessian has no structure but symmetry: its upper triangle is sent."""

    hessian: Callable[..., Numbers]

    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        return self.hessian(x, A, y, q, W)

    def packed_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers) -> Numbers:
        return upper(self.model_hessian(x, A, y, q, W))

    def unpack_hessian(self, packed: Numbers, W: Numbers) -> Numbers:
        return square(packed, len(W))

    def packed_size(self, w: int) -> int:
        return w * (w + 1) // 2


class OneOutput(SymmetricHessian):
    """A linear model with one prediction z = a^T x."""

    convex = True
    attained = False  # whether the sum over any rows has a minimiser; separable classes have none
    value: Callable[[Numbers, Numbers], Numbers]  # loss(z, y)
    derivative: Callable[[Numbers, Numbers], Numbers]  # in z
    second_derivative: Callable[[Numbers, Numbers], Numbers]  # in z

    @property
    def curvature(self) -> float | None:
        """A bound on `second_derivative`; None where there is none."""
        raise NotImplementedError

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
        return gram(A if W is None else A[:, W], q * self.second_derivative(A @ x, y))

    @ignore_overflow
    def model_hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        return gram(A if W is None else A[:, W], q * self.model_second_derivative(product(A, x), y))

    def model_second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        """The second derivative in z that a quadratic model of the loss is given."""
        return self.second_derivative(z, y)

    @ignore_overflow
    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        """sum_l q_l |loss'_l| ||a_l||."""
        row_norms = namespace(x, A).linalg.norm(A, axis=1)
        return (q * abs(self.derivative(A @ x, y))) @ row_norms

    @ignore_overflow
    def evaluate(self, X: Numbers, A: Numbers, y: Numbers, q: Numbers, row_norms: Numbers) -> LossEvaluation:
        z, each = product(A, X[0])[:, None] if len(X) == 1 else A @ X.T, y[:, None]
        weighted = q[:, None] * self.derivative(z, each)
        return LossEvaluation(q @ self.value(z, each), (A.T @ weighted).T, row_norms @ abs(weighted))

    @ignore_overflow
    def lipschitz(
        self, A: np.ndarray, q: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """curvature * lambda_max(A^T diag(q) A); without a bound, lambda_max(A^T diag(q w(z)) A) at x."""
        if self.curvature is not None:
            return float(self.curvature) * largest_eigenvalue([A], [q])
        if x is None:
            raise InputError(f"the curvature of {type(self).__name__} has no bound: lipschitz needs a model x.")
        return largest_eigenvalue([A], [q * self.second_derivative(A @ x, y)])

    @ignore_overflow
    def lipschitz_upper_bound(
        self, A: Numbers, q: np.ndarray, row_norms: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        """The trace in place of the largest eigenvalue: sum_l q_l curvature ||a_l||^2."""
        second = self.second_derivative(A @ x, y) if self.curvature is None else self.curvature
        return float((q * second) @ row_norms**2)

    def encode(self, labels: np.ndarray) -> np.ndarray:
        return one_column(labels, self)


class ManyOutputs(SymmetricHessian):
    """A linear model with K predictions z = X^T a, X = x.reshape(-1, K): entry j K + k is of feature j and output k."""

    convex = True
    attained = False
    outputs: int
    value: Callable[[Numbers, Numbers], Numbers]  # loss(z, y)
    derivative: Callable[[Numbers, Numbers], Numbers]  # its gradient in z
    # (c, r): the Hessian in z is diag(c) - r r^T
    second_derivative_parts: Callable[[Numbers, Numbers], tuple[Numbers, Numbers]]

    @property
    def curvature(self) -> float:
        """A bound on the largest eigenvalue of `second_derivative`."""
        raise NotImplementedError

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

    @ignore_overflow
    def gradient_terms(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers) -> Numbers:
        """sum_l q_l ||loss'_l|| ||a_l||: the gradient of a row is the matrix a loss'^T."""
        norm = namespace(x, A).linalg.norm
        return (q * norm(self.derivative(self.predictions(x, A), y), axis=1)) @ norm(A, axis=1)

    @ignore_overflow
    def evaluate(self, X: Numbers, A: Numbers, y: Numbers, q: Numbers, row_norms: Numbers) -> LossEvaluation:
        found = [self._evaluate_one(x, A, y, q, row_norms) for x in X]
        return LossEvaluation(*(np.array(part) for part in zip(*found, strict=True)))

    def _evaluate_one(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, row_norms: Numbers) -> tuple[Numbers, ...]:
        z = self.predictions(x, A)
        derivative = self.derivative(z, y)
        terms = (q * namespace(x, A).linalg.norm(derivative, axis=1)) @ row_norms
        return q @ self.value(z, y), (A.T @ (derivative * q[:, None])).reshape(-1), terms

    def lipschitz(
        self, A: np.ndarray, q: np.ndarray, x: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> float:
        """curvature * lambda_max(A^T diag(q) A)."""
        return float(self.curvature) * largest_eigenvalue([A], [q])

    @ignore_overflow
    def lipschitz_upper_bound(
        self, A: Numbers, q: np.ndarray, row_norms: np.ndarray, x: np.ndarray | None, y: np.ndarray
    ) -> float:
        """curvature * sum_l q_l ||a_l||^2, the trace in place of the largest eigenvalue."""
        return float(self.curvature) * float(q @ row_norms**2)


# --- checks of labels ---
# A refusal may leave the site that has the labels. It states the requirement, and neither a label nor their number.


def one_column(labels: np.ndarray, loss: object) -> np.ndarray:
    """One label per row, as they are."""
    if labels.ndim != 1:
        raise InputError(
            f"{type(loss).__name__} needs one label per row; got {_columns(labels)}. "
            "Use losses.MultiSquared for several numeric outcomes; labels.ravel() makes labels of one column."
        )
    return labels


def two_classes(labels: np.ndarray, loss: object) -> np.ndarray:
    """Labels in {0, 1} or {-1, +1}, as {-1, +1}."""
    found = np.unique(one_column(labels, loss))
    if np.isin(found, (-1, 1)).all():
        return labels
    if np.isin(found, (0, 1)).all():
        return 2.0 * np.asarray(labels, float) - 1.0  # unsigned zeros would wrap
    raise InputError(
        f"{type(loss).__name__} needs labels in {{-1, +1}} or {{0, 1}}; there are others. "
        "Recode the two classes, or use losses.Squared for a numeric outcome, losses.Softmax for more classes."
    )


def counts(labels: np.ndarray, loss: object) -> np.ndarray:
    """Labels >= 0, as they are."""
    if one_column(labels, loss).min() < 0:
        raise InputError(
            f"{type(loss).__name__} needs labels >= 0 (counts or rates); some are below 0. Correct those rows or leave them "
            "out, or use losses.Squared."
        )
    return labels


def numbered_classes(labels: np.ndarray, loss: ManyOutputs) -> np.ndarray:
    """Labels in {0, ..., outputs - 1}, as they are."""
    found = np.unique(one_column(labels, loss))
    if not np.isin(found, np.arange(loss.outputs)).all():
        raise InputError(
            f"{type(loss).__name__}(outputs={loss.outputs}) needs labels in 0..{loss.outputs - 1}; there are others. "
            "Number the classes from 0 (sklearn.preprocessing.LabelEncoder), or give more outputs."
        )
    return labels


def several_columns(labels: np.ndarray, loss: ManyOutputs) -> np.ndarray:
    """`outputs` labels per row, as they are; a column of numbers is one label per row."""
    if labels.ndim == 1 and loss.outputs == 1:
        return labels[:, None]
    if labels.ndim != 2 or labels.shape[1] != loss.outputs:
        raise InputError(
            f"{type(loss).__name__}(outputs={loss.outputs}) needs labels of shape (rows, {loss.outputs}); "
            f"got {_columns(labels)}."
        )
    return labels


def _columns(labels: np.ndarray) -> str:
    """The shape of labels without the number of rows."""
    return f"labels of shape ({', '.join(['rows', *map(str, labels.shape[1:])])})"
