r"""Losses: site i has f_i(x) = sum_l q_il loss(x; a_il, y_il) + (ridge / 2) ||x||^2, with q_il = 1/m_i or a row weight.

For a linear model a loss is a function of the prediction z = a^T x and the label y: `value`, its derivatives `slope` and
`weight` in z, and `curvature`, a bound on the second. With several outputs the model is a matrix X = x.reshape(-1, K),
z = X^T a has K entries, and `curvature` bounds the largest eigenvalue of the second derivative. `from_function` takes
any differentiable JAX function of a pytree of parameters.

A formula is written once and serves both libraries: arrays of NumPy give arrays of NumPy, with nothing to compile;
arrays of JAX give arrays of JAX.

The ridge belongs to f_i, because the theory asks every f_i to be strongly convex. Formulas give loss(z, y).
"""

from compfed.losses.base import Loss, ManyOutputs, OneOutput
from compfed.losses.from_function import FromFunction, Model, from_function
from compfed.losses.linear import (
    Huber,
    Logistic,
    MultiSquared,
    Poisson,
    SmoothedQuantile,
    Softmax,
    Squared,
    SquaredHinge,
)

__all__ = [
    "FromFunction",
    "Huber",
    "Logistic",
    "Loss",
    "ManyOutputs",
    "Model",
    "MultiSquared",
    "OneOutput",
    "Poisson",
    "SmoothedQuantile",
    "Softmax",
    "Squared",
    "SquaredHinge",
    "from_function",
]
