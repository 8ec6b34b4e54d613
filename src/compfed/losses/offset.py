"""A loss whose prediction has an offset of the row, and the constant that a site adds to all of its predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compfed._utils.array_namespace import Numbers
from compfed._utils.records import part, record
from compfed.errors import InputError
from compfed.losses.base import Loss, OneOutput, ignore_overflow
from compfed.losses.linear import Squared

FAR = 1e4  # a shift beyond all predictions, where no finite one is best
FARTHEST = 2.0**1020  # of a shift that there is
SHIFT_STEPS = 200  # at most, to find a shift: a bisection of doubles takes 64


def _one_output(loss: object) -> object:
    if not isinstance(loss, OneOutput) or isinstance(loss, WithOffset):
        name = type(loss).__name__
        raise InputError(f"an offset needs a loss with one prediction per row, such as Logistic(); got a {name}.")
    return loss


@record
class WithOffset(OneOutput):
    """loss(z + o, y), with labels that are pairs (y, o): the prediction of a row has an offset o of its own.

    In a Poisson model of counts, o = log(time at risk) makes a model of rates.

    Parameters
    ----------
    loss : OneOutput
        A loss of one prediction per row.

    Examples
    --------
    >>> from compfed.losses import Poisson
    >>> WithOffset(Poisson()).derivative(np.zeros(2), np.array([[1.0, 0.0], [3.0, np.log(3.0)]])).round(12)
    array([0., 0.])
    """

    loss: Any = part(convert=_one_output)

    @property
    def ridge(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]  # that of the inner loss
        return self.loss.ridge

    @property
    def curvature(self) -> float | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loss.curvature

    @property
    def convex(self) -> bool | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loss.convex

    @property
    def attained(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loss.attained

    @property
    def quadratic(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loss.quadratic

    @property
    def jumps(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.loss.jumps

    def value(self, z: Numbers, y: Numbers) -> Numbers:
        return self.loss.value(z + y[..., 1], y[..., 0])

    def derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return self.loss.derivative(z + y[..., 1], y[..., 0])

    def value_and_derivative(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.loss.value_and_derivative(z + y[..., 1], y[..., 0])

    def second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return self.loss.second_derivative(z + y[..., 1], y[..., 0])

    def model_second_derivative(self, z: Numbers, y: Numbers) -> Numbers:
        return self.loss.model_second_derivative(z + y[..., 1], y[..., 0])

    def usual_curvature(self, y: Numbers, share: Numbers) -> float:
        return self.loss.usual_curvature(y[..., 0], share)

    def shape_derivative(self, z: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The derivative of the inner loss in log(theta)."""
        return self.loss.shape_derivative(z + y[..., 1], y[..., 0])

    @property
    def conjugate(self) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
        """max_z theta z - loss(z + o, y) = loss*(theta, y) - theta o, for the squared loss.

        Other losses have none here: how near a derivative may be to the end of the conjugate's domain depends on the
        offsets, which the server does not know.
        """
        if not isinstance(self.loss, Squared):
            raise AttributeError(f"{type(self.loss).__name__} with an offset has no conjugate")
        inner = self.loss
        return lambda theta, y: inner.conjugate(theta, y[..., 0]) - theta * y[..., 1]

    def conjugate_margin(self, z: float) -> float:
        return np.inf

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Pairs of a label, in the coding of the inner loss, and an offset."""
        if labels.ndim != 2 or labels.shape[1] != 2:
            raise InputError("WithOffset needs labels that are pairs of a label and an offset.")
        return np.column_stack([self.loss.encode(labels[:, 0]), labels[:, 1]])


def unwrapped(loss: Loss) -> Loss:
    """The loss without its offset, to ask of which kind it is."""
    return loss.loss if isinstance(loss, WithOffset) else loss


# --- a shift of all predictions ---


def shifted(loss: OneOutput, y: np.ndarray, shift: float) -> tuple[WithOffset, np.ndarray]:
    """The loss and the labels with `shift` added to all predictions."""
    if isinstance(loss, WithOffset):
        return loss, np.column_stack([y[:, 0], y[:, 1] + shift])
    return WithOffset(loss), np.column_stack([y, np.full(len(y), shift, y.dtype)])


@ignore_overflow
def best_shift(loss: OneOutput, z: np.ndarray, y: np.ndarray, q: np.ndarray) -> tuple[float, bool]:
    """The b that minimises sum_l q_l loss(z_l + b, y_l), to rounding, and whether there is one.

    The derivative in b grows with b. An interval grows, faster and faster, until it changes sign there; then Newton steps
    find the zero, and halve the interval where they leave it or are slow. Without a finite b (rows of a single class, say)
    a shift beyond all predictions stands for the limit: the loss and its derivatives there are those of the limit.
    """
    offset = y[:, 1] if isinstance(loss, WithOffset) else 0.0
    far = FARTHEST if loss.attained else FAR + float(np.abs(z + offset).max(initial=0.0))
    if isinstance(unwrapped(loss), Squared):
        return float(-(q @ loss.derivative(z, y)) / q.sum()), True

    def slope(b: float) -> float:
        return float(np.sum(q * loss.derivative(z + b, y)))  # a dot product starts threads

    rise = slope(0.0)
    if rise == 0 or np.isnan(rise):  # NaN: the model itself is far out
        return 0.0, True

    def second(b: float) -> float:
        return float(np.sum(q * loss.second_derivative(z + b, y)))

    def falls(b: float) -> bool:  # a derivative of 0 without curvature is one that underflows
        at = sign * slope(b)
        return at < 0 or (at == 0 and not loss.attained and second(b) == 0)

    sign, before, reach, growth = -float(np.sign(rise)), 0.0, 1.0, 2.0
    while falls(sign * reach):
        if reach == far:
            return sign * far, False
        before, reach, growth = reach, min(reach * growth, far), 2 * growth
    return _zero(slope, second, *sorted((sign * before, sign * reach))), True


def _zero(slope: Callable[[float], float], second: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a growing function between two points: Newton steps inside an interval that shrinks."""
    b, width = 0.5 * (low + high), high - low
    for _ in range(SHIFT_STEPS):
        rise, curved = slope(b), second(b)
        if rise == 0:
            return b
        low, high = (low, b) if rise > 0 else (b, high)
        new = b - rise / curved if 0 < curved < np.inf else np.inf
        if not low < new < high or abs(new - b) > 0.5 * width:
            new = 0.5 * (low + high)
        width = abs(new - b)
        if width <= 2 * np.spacing(abs(b)):
            return new
        b = new
    return b
