"""Losses: site i has f_i(x) = sum_l q_l loss(x; a_l, y_l) + (ridge / 2) ||x||^2, with q_l = 1/m_i or a sample weight.

For a linear model a loss is a function of the prediction z = a^T x and the label y: `value`, its `derivative` and
`second_derivative` in z, and `curvature`, a bound on the latter. With several outputs the model is a matrix
X = x.reshape(-1, K), z = X^T a has K entries, and `curvature` bounds the largest eigenvalue of the second derivative.
`from_function` takes any differentiable JAX function of a pytree of parameters.

Each formula is written once: NumPy arrays give NumPy arrays, without compiling; JAX arrays give JAX arrays. The ridge
belongs to f_i, because the theory asks every f_i to be strongly convex.

base.py           the protocol, base classes of linear models, checks of labels
linear.py         Squared, Huber, SmoothedQuantile, Logistic, SquaredHinge, Poisson, Gamma, NegativeBinomial, NegativeBinomialLikelihood,
                  Softmax, MultiSquared, class weights
cox.py            CoxPartialLikelihood, a loss of a whole site
offset.py         WithOffset: a prediction with an offset of its row
from_function.py  losses made of JAX functions
lipschitz.py      Lipschitz constants of gradients
"""

from compfed.losses.base import Loss, ManyOutputs, OneOutput, SiteLoss
from compfed.losses.cox import CoxPartialLikelihood
from compfed.losses.from_function import FromFunction, Model, from_function
from compfed.losses.linear import (
    ClassWeightedLogistic,
    ClassWeightedSoftmax,
    Gamma,
    Huber,
    Logistic,
    MultiSquared,
    NegativeBinomial,
    NegativeBinomialLikelihood,
    Poisson,
    SmoothedQuantile,
    Softmax,
    Squared,
    SquaredHinge,
)
from compfed.losses.offset import WithOffset

__all__ = [
    "ClassWeightedLogistic", "ClassWeightedSoftmax", "CoxPartialLikelihood",
    "FromFunction", "Gamma", "Huber", "Logistic", "Loss", "ManyOutputs",
    "Model", "MultiSquared", "NegativeBinomial", "NegativeBinomialLikelihood", "OneOutput", "Poisson", "SiteLoss",
    "SmoothedQuantile", "Softmax", "Squared", "SquaredHinge", "WithOffset", "from_function",
]  # fmt: skip
