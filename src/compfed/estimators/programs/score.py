"""The score of a fitted model on rows that stay at their sites, where sums are enough to know it. Two messages."""

from __future__ import annotations

import numpy as np

from compfed.errors import InputError
from compfed.federation.queries import Describe, HeldOut
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Squared
from compfed.splits import SiteFold

ALL_ROWS = SiteFold(-1, held_out=False)  # every site but one that does not exist


def scoring(
    federation: Federation, coef: np.ndarray, intercept: float, columns: tuple[str, ...] | None
) -> Program[float]:
    """R^2 = 1 - sum_l (y_l - x_l^T w - b)^2 / sum_l (y_l - mean y)^2 over the rows of all sites."""
    ((sites,),) = yield [Request((Describe(),))]
    for name, width, names, shape in zip(
        federation.names, sites.widths, sites.columns, sites.label_shapes, strict=True
    ):
        if width != coef.size or (columns is not None and names not in (None, columns)):
            raise InputError(
                f"site {name!r} has other columns than those the model was fitted with; nothing was scored."
            )
        if shape:
            raise InputError(f"site {name!r} has {shape[0]} outcomes per row; the model has one.")
    mean = float(sites.label_sum / sites.weights.sum())
    scaling = FeatureScaling(np.zeros(coef.size), np.ones(coef.size), intercept=True)
    models = np.array([np.append(coef, intercept), np.append(np.zeros(coef.size), mean)])
    ((held_out,),) = yield [Request((HeldOut(ObjectiveSpec(Squared(), scaling), ALL_ROWS, models),), models=2)]
    left, spread = held_out.loss
    if spread == 0.0:  # labels that are all the same: as sklearn.metrics.r2_score has it
        return 1.0 if left == 0.0 else 0.0
    return float(1.0 - left / spread)
