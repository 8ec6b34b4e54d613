"""Regularisers that can be written coefficient by coefficient, and some that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
from regulariser_cases import Plain, Traced

from compfed.regularisers import (
    L1,
    MCP,
    SCAD,
    Blocks,
    Box,
    ElasticNet,
    GroupL2,
    L1Ball,
    L2Ball,
    LinfNorm,
    NonNegative,
    Nuclear,
    NuclearBall,
    OnBlock,
    Rescaled,
    Ridge,
    Scaled,
    Shifted,
    Simplex,
    SortedL1,
    SparseGroup,
    TotalVariation1D,
    Zero,
    from_object,
)

D = 7
# Offsets and bounds are eighths: sums of them do not round, so that a point on a moved bound is on it in NumPy and in JAX.
WEIGHTS = np.array([0.0, 0.3, 0.5, 1.0, 2.0, 0.7, 0.0])
LOWER = np.array([-np.inf, -1.0, 0.0, -0.5, 0.25, -2.0, -np.inf])
UPPER = np.array([0.5, np.inf, 0.0, 0.5, 0.375, np.inf, np.inf])
OFFSET = np.array([0.5, -1.0, 0.0, 2.0, 0.125, -0.25, 0.75])
GROUPS = (7, 2, 7, 5, 2, 2, 5)
GROUP_WEIGHTS = np.array([0.5, 0.0, 2.0])

CASES: dict[str, Any] = {
    "Zero": Zero(),
    "L1": L1(0.8),
    "L1-weighted": L1(WEIGHTS),
    "ElasticNet": ElasticNet(0.5, 2.0),
    "ElasticNet-weighted": ElasticNet(WEIGHTS, 2.0 * WEIGHTS[::-1]),
    "Ridge": Ridge(0.6),
    "Box": Box(-0.4, 0.9),
    "Box-of-arrays": Box(LOWER, UPPER),
    "NonNegative": NonNegative(),
    "GroupL2": GroupL2(0.8, GROUPS),
    "GroupL2-weighted": GroupL2(0.8, GROUPS, GROUP_WEIGHTS),
    "SparseGroup": SparseGroup(WEIGHTS, 0.6, GROUPS),
    "Scaled-L1": 2.5 * L1(WEIGHTS),
    "Scaled-ElasticNet": Scaled(0.5 * ElasticNet(0.5, 2.0), 3.0),
    "Scaled-SparseGroup": 0.5 * SparseGroup(0.3, 0.8, GROUPS, GROUP_WEIGHTS),
    "Scaled-Box": 3.0 * Box(-0.4, 0.9),
    "Shifted-L1": Shifted(L1(0.8), OFFSET),
    "Shifted-ElasticNet": Shifted(ElasticNet(WEIGHTS, 1.5), 0.3),
    "Shifted-SparseGroup": Shifted(SparseGroup(0.3, 0.8, GROUPS), OFFSET),
    "Shifted-Box": Shifted(Box(LOWER, UPPER), OFFSET),
    "Shifted-sum": 0.7 * Shifted(L1(WEIGHTS) + Box(LOWER, UPPER), OFFSET),
    "Shifted-twice": Shifted(Shifted(Ridge(0.6), 1.0), OFFSET),
    "Rescaled-ElasticNet": Rescaled(ElasticNet(WEIGHTS, 1.8), 3.0),
    "Rescaled-SparseGroup": Rescaled(SparseGroup(0.3, 0.8, GROUPS), 0.5),
    "Rescaled-Shifted": Rescaled(Shifted(L1(0.8) + Box(LOWER, UPPER), OFFSET), 2.0),
    "OnBlock-L1": OnBlock(L1(0.8), 1, 5),
    "OnBlock-GroupL2": OnBlock(Shifted(GroupL2(0.8, (1, 0, 1, 0)), 0.3), 3, 7),
    "OnBlock-all": OnBlock(NonNegative(), 0, 7),
    "Blocks": Blocks((L1(0.8), Zero(), NonNegative()), (2, 1, 4)),
    "Blocks-of-groups": Blocks(
        (SparseGroup(0.3, 0.8, (4, 4)), Shifted(L1(0.5), 0.1), GroupL2(0.6, (1, 0, 1)), Box(-0.5, 0.5)), (2, 1, 3, 1)
    ),
    "L1+Box": L1(WEIGHTS) + Box(LOWER, UPPER),
    "Zero+NonNegative": Zero() + NonNegative(),
    "NonNegative+ElasticNet": 2.0 * NonNegative() + 0.5 * ElasticNet(0.5, WEIGHTS),
    "L1+GroupL2": 0.5 * L1(WEIGHTS) + 2.0 * GroupL2(0.4, GROUPS),
    "GroupL2+Ridge": GroupL2(0.8, GROUPS) + Ridge(0.6),
    "Ridge+SparseGroup": 2.0 * Ridge(0.6) + SparseGroup(WEIGHTS, 0.6, GROUPS),
    "L1+GroupL2+Ridge": Ridge(0.6) + (L1(0.2) + GroupL2(0.4, GROUPS)),
    "L1+Box+Ridge": (L1(0.5) + Box(LOWER, UPPER)) + Ridge(0.6),
    "Shifted-Box+Ridge": Shifted(Box(LOWER, UPPER), OFFSET) + Ridge(0.6),
    "Ridge+Shifted-Box": Ridge(0.6) + Shifted(Box(LOWER, UPPER), OFFSET),
    "Ridge+Ridge": Ridge(0.6) + Ridge(0.4),
    "Rescaled-GroupL2+Ridge": Rescaled(GroupL2(0.8, GROUPS), 2.0) + Ridge(0.6),
    "Blocks+Ridge": Blocks((GroupL2(0.8, (0, 1, 1, 0)), Box(-0.5, 0.5)), (4, 3)) + Ridge(0.6),
}


class Halved(L1):
    """A user's own class: inherits `form`, which is not its own."""

    def __call__(self, x):
        return 0.5 * super().__call__(x)

    def prox(self, x, t):
        return super().prox(x, 0.5 * t)


WITHOUT: dict[str, Any] = {
    "Nuclear": Nuclear(0.8, columns=1),
    "NuclearBall": NuclearBall(1.5, columns=1),
    "LinfNorm": LinfNorm(0.8),
    "SortedL1": SortedL1(WEIGHTS[::-1].cumsum()[::-1]),
    "TotalVariation1D": TotalVariation1D(0.8),
    "L1Ball": L1Ball(1.5),
    "L2Ball": L2Ball(1.5),
    "Simplex": Simplex(2.0),
    "MCP": MCP(0.6, gamma=2.5),
    "SCAD": SCAD(0.6),
    "NumPy-object": from_object(Plain()),
    "JAX-object": from_object(Traced()),
    "object": Plain(),
    "subclass": Halved(0.8),
    "Scaled": 2.0 * MCP(0.6),
    "Shifted": Shifted(LinfNorm(0.8), 0.3),
    "Rescaled": Rescaled(L1Ball(0.8), 2.0),
    "OnBlock": OnBlock(TotalVariation1D(0.8), 0, 3),
    "Blocks": Blocks((L1(0.8), L2Ball(1.0)), (3, 4)),
    "L1+TotalVariation1D": L1(0.4) + TotalVariation1D(0.7),
    "L1+L2Ball": L1(0.4) + L2Ball(0.7),
    "MCP+Box": MCP(0.6) + Box(-0.4, 0.9),
    "SortedL1+Ridge": LinfNorm(0.6) + Ridge(0.4),
    "groups-with-bounds": GroupL2(0.8, GROUPS) + NonNegative(),
    "two-kinks": Shifted(L1(0.4), OFFSET) + Ridge(0.7),
    "two-kinks-in-a-block": Ridge(0.7) + OnBlock(Shifted(L1(0.4), 0.1), 2, 4),
    "two-kinks-of-groups": Shifted(GroupL2(0.4, GROUPS), OFFSET) + Ridge(0.7),
}
