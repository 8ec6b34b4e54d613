r"""FedProx: FedAvg with a quadratic term that holds local models near the global one.

Solves min_x sum_i p_i f_i(x) (smooth only). A client takes tau gradient steps on

    f_i(z) + (mu/2) ||z - w||^2,      started at z = w

and the server averages. The term limits the drift of clients but does not correct it: with different f_i the limit is
away from the minimiser, at a distance that shrinks like 1/mu when local solves are exact. With mu = 0 it is FedAvg.
With exact solves and a server step eta_g > 1 it is FedExProx with gamma = 1/mu.

    w   global model      z   local model      mu   weight of the quadratic term (the paper's mu)

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated Optimization in Heterogeneous Networks", MLSys 2020.
Deviations: inexact solves are tau gradient steps; a server step eta_g (1 in the paper). Clients are drawn by p_i and averaged
plainly, as in the paper, but nobody twice in a round. The paper's theorem bounds the dissimilarity of the clients and the error
of their local solves, which our runs do not: sampling is observed here rather than proved.
"""

from __future__ import annotations

from compfed._utils.records import count, nonnegative, optional, positive, record
from compfed.algorithms.base import Citation
from compfed.algorithms.fedavg import AveragedLocalSteps


@record
class FedProx(AveragedLocalSteps):
    """FedAvg with a quadratic term that holds local models near the global one; for smooth problems.

        z+ = z - eta (grad f_i(z) + mu (z - w)),   w+ = w + eta_g sum_i p_i (z_i - w)

    Parameters
    ----------
    eta : float
        Local step size.
    mu : float
        Weight of the quadratic term.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    epochs : int, optional
        Local epochs per round, in place of `tau`: a client with n_i rows takes ceil(n_i / batch_size) steps in each.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedProx(eta=0.1, mu=1.0)
    FedProx(eta=0.1, mu=1.0, eta_g=1.0, tau=5, epochs=None)
    """

    citation = Citation(
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith", 2020, "Federated Optimization in Heterogeneous Networks", "MLSys"
    )
    composite = False
    sampling = "observed"

    eta: float = positive()
    mu: float = nonnegative()
    eta_g: float = positive(default=1.0)
    tau: int = count(default=5)
    epochs: int | None = optional(count(), default=None)

    def local_step(self, f, g, w, z, key):
        return z - self.eta * (f.grad(z, key) + self.mu * (z - w))

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / (1.1 * b.L_max), mu=0.1 * b.L_max, tau=b.tau)
