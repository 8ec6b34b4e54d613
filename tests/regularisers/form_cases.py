"""Regularisers that can be written coefficient by coefficient, and some that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
from regulariser_cases import Plain, Traced

from compfed import regularisers as reg

D = 7
# Offsets and bounds are eighths: sums of them do not round, so that a point on a moved bound is on it in NumPy and in JAX.
WEIGHTS = np.array([0.0, 0.3, 0.5, 1.0, 2.0, 0.7, 0.0])
LOWER = np.array([-np.inf, -1.0, 0.0, -0.5, 0.25, -2.0, -np.inf])
UPPER = np.array([0.5, np.inf, 0.0, 0.5, 0.375, np.inf, np.inf])
OFFSET = np.array([0.5, -1.0, 0.0, 2.0, 0.125, -0.25, 0.75])
GROUPS = (7, 2, 7, 5, 2, 2, 5)
GROUP_WEIGHTS = np.array([0.5, 0.0, 2.0])

CASES: dict[str, Any] = {
    "Zero": reg.Zero(),
    "L1": reg.L1(0.8),
    "L1-weighted": reg.L1(WEIGHTS),
    "ElasticNet": reg.ElasticNet(0.5, 2.0),
    "ElasticNet-weighted": reg.ElasticNet(WEIGHTS, 2.0 * WEIGHTS[::-1]),
    "Ridge": reg.Ridge(0.6),
    "Box": reg.Box(-0.4, 0.9),
    "Box-of-arrays": reg.Box(LOWER, UPPER),
    "NonNegative": reg.NonNegative(),
    "GroupL2": reg.GroupL2(0.8, GROUPS),
    "GroupL2-weighted": reg.GroupL2(0.8, GROUPS, GROUP_WEIGHTS),
    "SparseGroup": reg.SparseGroup(WEIGHTS, 0.6, GROUPS),
    "Scaled-L1": 2.5 * reg.L1(WEIGHTS),
    "Scaled-ElasticNet": reg.Scaled(0.5 * reg.ElasticNet(0.5, 2.0), 3.0),
    "Scaled-SparseGroup": 0.5 * reg.SparseGroup(0.3, 0.8, GROUPS, GROUP_WEIGHTS),
    "Scaled-Box": 3.0 * reg.Box(-0.4, 0.9),
    "Shifted-L1": reg.Shifted(reg.L1(0.8), OFFSET),
    "Shifted-ElasticNet": reg.Shifted(reg.ElasticNet(WEIGHTS, 1.5), 0.3),
    "Shifted-SparseGroup": reg.Shifted(reg.SparseGroup(0.3, 0.8, GROUPS), OFFSET),
    "Shifted-Box": reg.Shifted(reg.Box(LOWER, UPPER), OFFSET),
    "Shifted-sum": 0.7 * reg.Shifted(reg.L1(WEIGHTS) + reg.Box(LOWER, UPPER), OFFSET),
    "Shifted-twice": reg.Shifted(reg.Shifted(reg.Ridge(0.6), 1.0), OFFSET),
    "Rescaled-ElasticNet": reg.Rescaled(reg.ElasticNet(WEIGHTS, 1.8), 3.0),
    "Rescaled-SparseGroup": reg.Rescaled(reg.SparseGroup(0.3, 0.8, GROUPS), 0.5),
    "Rescaled-Shifted": reg.Rescaled(reg.Shifted(reg.L1(0.8) + reg.Box(LOWER, UPPER), OFFSET), 2.0),
    "OnBlock-L1": reg.OnBlock(reg.L1(0.8), 1, 5),
    "OnBlock-GroupL2": reg.OnBlock(reg.Shifted(reg.GroupL2(0.8, (1, 0, 1, 0)), 0.3), 3, 7),
    "OnBlock-all": reg.OnBlock(reg.NonNegative(), 0, 7),
    "Blocks": reg.Blocks((reg.L1(0.8), reg.Zero(), reg.NonNegative()), (2, 1, 4)),
    "Blocks-of-groups": reg.Blocks(
        (
            reg.SparseGroup(0.3, 0.8, (4, 4)),
            reg.Shifted(reg.L1(0.5), 0.1),
            reg.GroupL2(0.6, (1, 0, 1)),
            reg.Box(-0.5, 0.5),
        ),
        (2, 1, 3, 1),
    ),
    "L1+Box": reg.L1(WEIGHTS) + reg.Box(LOWER, UPPER),
    "Zero+NonNegative": reg.Zero() + reg.NonNegative(),
    "NonNegative+ElasticNet": 2.0 * reg.NonNegative() + 0.5 * reg.ElasticNet(0.5, WEIGHTS),
    "L1+GroupL2": 0.5 * reg.L1(WEIGHTS) + 2.0 * reg.GroupL2(0.4, GROUPS),
    "GroupL2+Box": reg.GroupL2(0.8, GROUPS) + reg.Box(*np.where(np.equal(GROUPS, 7), 0.0, [[-np.inf], [np.inf]])),
    "GroupL2+Ridge": reg.GroupL2(0.8, GROUPS) + reg.Ridge(0.6),
    "Ridge+SparseGroup": 2.0 * reg.Ridge(0.6) + reg.SparseGroup(WEIGHTS, 0.6, GROUPS),
    "L1+GroupL2+Ridge": reg.Ridge(0.6) + (reg.L1(0.2) + reg.GroupL2(0.4, GROUPS)),
    "L1+Box+Ridge": (reg.L1(0.5) + reg.Box(LOWER, UPPER)) + reg.Ridge(0.6),
    "Shifted-Box+Ridge": reg.Shifted(reg.Box(LOWER, UPPER), OFFSET) + reg.Ridge(0.6),
    "Ridge+Shifted-Box": reg.Ridge(0.6) + reg.Shifted(reg.Box(LOWER, UPPER), OFFSET),
    "Ridge+Ridge": reg.Ridge(0.6) + reg.Ridge(0.4),
    "Rescaled-GroupL2+Ridge": reg.Rescaled(reg.GroupL2(0.8, GROUPS), 2.0) + reg.Ridge(0.6),
    "Blocks+Ridge": reg.Blocks((reg.GroupL2(0.8, (0, 1, 1, 0)), reg.Box(-0.5, 0.5)), (4, 3)) + reg.Ridge(0.6),
}


class Halved(reg.L1):
    """A user's own class: inherits `form`, which is not its own."""

    def __call__(self, x):
        return 0.5 * super().__call__(x)

    def prox(self, x, t):
        return super().prox(x, 0.5 * t)


WITHOUT: dict[str, Any] = {
    "Nuclear": reg.Nuclear(0.8, columns=1),
    "NuclearBall": reg.NuclearBall(1.5, columns=1),
    "LinfNorm": reg.LinfNorm(0.8),
    "SortedL1": reg.SortedL1(WEIGHTS[::-1].cumsum()[::-1]),
    "TotalVariation1D": reg.TotalVariation1D(0.8),
    "L1Ball": reg.L1Ball(1.5),
    "L2Ball": reg.L2Ball(1.5),
    "Simplex": reg.Simplex(2.0),
    "MCP": reg.MCP(0.6, gamma=2.5),
    "SCAD": reg.SCAD(0.6),
    "NumPy-object": reg.from_object(Plain()),
    "JAX-object": reg.from_object(Traced()),
    "object": Plain(),
    "subclass": Halved(0.8),
    "Scaled": 2.0 * reg.MCP(0.6),
    "Shifted": reg.Shifted(reg.LinfNorm(0.8), 0.3),
    "Rescaled": reg.Rescaled(reg.L1Ball(0.8), 2.0),
    "OnBlock": reg.OnBlock(reg.TotalVariation1D(0.8), 0, 3),
    "Blocks": reg.Blocks((reg.L1(0.8), reg.L2Ball(1.0)), (3, 4)),
    "L1+TotalVariation1D": reg.L1(0.4) + reg.TotalVariation1D(0.7),
    "L1+L2Ball": reg.L1(0.4) + reg.L2Ball(0.7),
    "MCP+Box": reg.MCP(0.6) + reg.Box(-0.4, 0.9),
    "SortedL1+Ridge": reg.LinfNorm(0.6) + reg.Ridge(0.4),
    "groups-with-bounds": reg.GroupL2(0.8, GROUPS) + reg.NonNegative(),
    "two-kinks": reg.Shifted(reg.L1(0.4), OFFSET) + reg.Ridge(0.7),
    "two-kinks-in-a-block": reg.Ridge(0.7) + reg.OnBlock(reg.Shifted(reg.L1(0.4), 0.1), 2, 4),
    "two-kinks-of-groups": reg.Shifted(reg.GroupL2(0.4, GROUPS), OFFSET) + reg.Ridge(0.7),
}
