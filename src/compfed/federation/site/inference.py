"""The reply of a site to `Inference`: sums of squared residuals, of functions of its labels, and of products of row gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.array_namespace import product
from compfed.federation.queries import Inference
from compfed.federation.site.disclosure import profiled, rounded
from compfed.losses import ManyOutputs, WithOffset
from compfed.losses.base import columns, upper_triangle, weighted
from compfed.losses.lipschitz import gram
from compfed.problem.padded_dataset import LocalDataset

if TYPE_CHECKING:
    from compfed.federation.site.site import Site


def inference(query: Inference, site: Site) -> Inference.Reply:
    """The means of `Inference` over all rows of the site."""
    objective, data = query.objective, site.rows.dataset(query.objective)
    x = np.asarray(query.x, float)
    loss: Any = objective.loss  # limits.py refuses losses without derivatives in the prediction
    y, q = data.y, np.asarray(data.q, float)
    plain, labels = (loss.loss, y[:, 0]) if isinstance(loss, WithOffset) else (loss, y)
    if objective.profile:
        loss, y = profiled(objective, data, x)
    z = loss.predictions(x, data.A) if isinstance(loss, ManyOutputs) else product(data.A, x)
    r = np.asarray(loss.derivative(z, y), float)
    squares = r**2 if r.ndim == 1 else (r**2).sum(axis=1)
    each = [np.asarray(values, float) for values in (squares, plain.saturated(labels), plain.of_label(labels))]
    of_residuals, saturated, constant = (float(weighted(q, values).sum()) for values in each)
    products = np.zeros(query.entries)
    if query.coords.size:
        products = rounded(site.policy, _products(query, data, loss, z, y, r, q, np.asarray(site.rows.weights, float)))
    return Inference.Reply(of_residuals, saturated, constant, products)


def _products(
    query: Inference, data: LocalDataset, loss: Any, z: np.ndarray, y: np.ndarray, r: np.ndarray, q: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The upper triangle of the products of row gradients, or of the site's whole gradient with itself."""
    W = query.coords
    if isinstance(loss, ManyOutputs):  # a row has a residual for each output
        j, k = divmod(W, loss.outputs)
        A, s = data.A[:, j] * r[:, k], np.ones(len(r))
    else:
        A, s = columns(data.A, W), r
    if query.objective.profile:
        h = weighted(q, np.asarray(loss.second_derivative(z, y), float))
        A = data.A[:, W]
        A = A - (h @ A) / (h.sum() or 1.0)
    if query.shape:  # the derivative in log(theta) is one column more, of gradients rather than of features
        of_shape: Any = loss
        A, s = np.column_stack([data.A[:, W] * s[:, None], of_shape.shape_derivative(z, y)]), np.ones(len(s))
    if query.clustered:
        total = weighted(weights, s) @ A
        return upper_triangle(np.outer(total, total)) / weights.sum()
    return upper_triangle(np.asarray(gram(A, weighted(q * weights if query.squared_weights else q, s**2))))
