r"""AblatedProx: Algorithm 1 with another parameter in the local prox. Why line 11 of the paper grows with the step.

    zhat+ = zhat - eta (grad f_i(z) + c),   z+ = prox_{rule g}(zhat+)

The paper's parameter after t local steps is t eta, because zhat then carries t steps of length eta. The rules here are
"eta", "eta-tilde" (eta~ = eta eta_g tau) and "none" (z+ = zhat+). With any of them the minimiser is not a fixed point,
unless g is an indicator, whose prox does not depend on its parameter. Everything else is inherited from `DecoupledProx`,
which names the symbols.

Reference: ours; DecoupledProx with line 11 changed. Deviations: none.
"""

from __future__ import annotations

from compfed._utils.records import choice, record
from compfed.algorithms.base import Citation
from compfed.algorithms.decoupled_prox import DriftCorrected


@record
class AblatedProx(DriftCorrected):
    citation = Citation("ours")
    exact = False
    exact_sampled = None
    sampling = "no"
    schemes = ()

    rule: str = choice("eta", "eta-tilde", "none", default="eta")

    def local_prox(self, g, zhat, t):
        if self.rule == "none":
            return zhat
        return g.prox(zhat, self.eta if self.rule == "eta" else self.eta_tilde)
