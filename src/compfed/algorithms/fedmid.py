r"""FedMid: federated mirror descent with the Euclidean mirror map, that is FedAvg with local proximal steps.

Solves min_x sum_i p_i f_i(x) + g(x). Averaging post-proximal models loses sparsity ("curse of primal averaging"), and
client drift leaves a floor.

    w   global model      z   local model      eta~ = eta eta_g tau

Three readings of the server's prox exist and give different limits:

- "full": parameter eta~, the authors' code. For an l1 norm g, one client, tau = 1 and eta_g = 1 it
  minimises f + 2 g, because the prox of t g taken twice is that of 2 t g.
- "single": parameter eta eta_g, the code of Bao et al. (ICML 2022).
- "none": no server prox, the one-line description in Zhang, Hu, Johansson (ICASSP 2024).

Reference: Yuan, Zaheer, Reddi, "Federated Composite Optimization", ICML 2021, Algorithm 1.
Deviations: none with server_prox="full" (Euclidean mirror map). Some of the clients: observed; the paper's listing samples
clients, and no theorem known to us covers that. Of unequal weight, they are drawn in proportion to it.
"""

from __future__ import annotations

from compfed._utils.records import choice, count, positive, record
from compfed.algorithms.base import Citation
from compfed.algorithms.fedavg import AveragedLocalSteps, Global


@record
class FedMid(AveragedLocalSteps):
    """Federated mirror descent with the Euclidean mirror map: FedAvg with local proximal steps.

        z+ = prox_{eta g}(z - eta grad f_i(z)),   w+ = prox_{eta~ g}(w + eta_g sum_i p_i (z_i - w))

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    server_prox : {"full", "single", "none"}, default="full"
        Prox parameter of the server: eta eta_g tau, eta eta_g, or no prox.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedMid(eta=0.1, tau=3)
    FedMid(eta=0.1, eta_g=1.0, tau=3, server_prox='full')
    """

    citation = Citation("Yuan, Zaheer, Reddi", 2021, "Federated Composite Optimization", "ICML, Algorithm 1")
    composite = True
    sampling = "observed"
    setting = "for an l1 norm, one client and one step it minimises f + 2 g"

    eta: float = positive()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    server_prox: str = choice("full", "single", "none", default="full")

    def local_step(self, f, g, w, z, key):
        return g.prox(z - self.eta * f.grad(z, key), self.eta)

    def server_update(self, g, s, mean, weight):
        w = s.w + self.eta_g * mean.delta
        if self.server_prox == "none":
            return Global(w=w)
        steps = self.tau if self.server_prox == "full" else 1
        return Global(w=g.prox(w, self.eta_g * self.eta * steps))

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L_max, tau=b.tau)
