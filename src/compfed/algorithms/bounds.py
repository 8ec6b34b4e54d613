"""What a rule for step sizes may know of a problem: a few Lipschitz bounds, and the number of local steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bounds:
    """L bounds the curvature of f, L_max that of the worst f_i, mu is the ridge of every f_i.

    For the methods whose local work is a gradient step corrected for drift, the length of a whole round matters as well
    as that of a step: `corrected` is the smaller of 1/L_max and 4/(L_max tau), found stable on every problem tried.
    Methods that solve a local proximal problem take its parameter a few times 1/L_max, and the inner step that allows.
    """

    L: float
    L_max: float
    mu: float
    tau: int
    d: int

    @classmethod
    def of(cls, L: np.ndarray, weights: np.ndarray, mu: float, tau: int, d: int) -> Bounds:
        """From the L_i of the sites: sum_i p_i L_i bounds L, and is what a server can know of it."""
        return cls(L=float(weights @ L), L_max=float(np.max(L)), mu=mu, tau=tau, d=d)

    def corrected(self, scale: float) -> float:
        """The local step of a drift-corrected method."""
        return scale * min(1.0, 4.0 / self.tau) / self.L_max

    def prox_parameter(self, scale: float) -> float:
        """lam of a local proximal problem f_i + ||. - v||^2 / (2 lam)."""
        return 8.0 * scale / self.L_max

    def inner_step(self, scale: float) -> float:
        """The gradient step that such a problem allows."""
        return 1.0 / (self.L_max + 1.0 / self.prox_parameter(scale))
