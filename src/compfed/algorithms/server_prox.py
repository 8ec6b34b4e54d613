r"""ServerProx: drift correction with no prox in the local steps. An ablation: close to the solution, not at it.

Tries to solve min_x sum_i p_i f_i(x) + g(x). Clients take corrected gradient steps from p = prox_{eta~ g}(x),

    z+ = z - eta (grad f_i(z) + c),   x+ = p - eta~ sum_i p_i S_i / tau,   c+ = (p - x+) / eta~ - S / tau

with eta~ = eta eta_g tau. Near the solution the local points do not stay at x* but drift to x* - t eta grad f(x*), so
the error has a floor proportional to eta. Exact only if tau = 1, or if grad f(x*) = 0. Keeping the last server
subgradient removes the floor: `Scaffnew(steps=Fixed(tau))`.

    x   pre-proximal global model   p   post-proximal   c   correction, sum_i p_i c_i = 0   S   sum of tau gradients

Reference: ours, after Zhou, Zhong, Shi, Wen, Yu, "FedCanon: Non-Convex Composite Federated Learning with Efficient Proximal
Operation on Heterogeneous Data", 2025, arXiv 2504.11903, for the idea of one prox per round. It is the plainest member of that
family, DecoupledProx without its local prox, and no statement about FedCanon itself.
Deviations: x is sent before the prox, because the client also needs the mean gradient; so the one prox of a round is
evaluated by the server and again by each client.
"""

from __future__ import annotations

from compfed._utils.records import record
from compfed.algorithms.base import Citation
from compfed.algorithms.decoupled_prox import DriftCorrected


@record
class ServerProx(DriftCorrected):
    """Drift correction without a prox in the local steps: close to the minimiser, not at it.

        z+ = z - eta (grad f_i(z) + c),   x+ = p - eta~ sum_i p_i S_i / tau,   c+ = (p - x+) / eta~ - S / tau

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.ServerProx(eta=0.1, tau=3)
    ServerProx(eta=0.1, eta_g=1.0, tau=3)
    """

    citation = Citation(
        "Zhou, Zhong, Shi, Wen, Yu", 2025,
        "FedCanon: Non-Convex Composite Federated Learning with Efficient Proximal Operation on Heterogeneous Data",
        "arXiv 2504.11903", ours=True,
    )  # fmt: skip
    exact = False

    def local_prox(self, g, zhat, t):
        return zhat  # the mean of p - eta S is that of z_tau, since the corrections cancel
