r"""NaiveCoupled: drift correction with the prox inside the local recursion. Converges to the wrong point, on purpose.

Tries to solve min_x sum_i p_i f_i(x) + g(x). It is DecoupledProx with one change: a client carries the post-proximal
point from step to step and sends that,

    z+ = prox_{(t+1) eta g}(z - eta (grad f_i(z) + c)),   c+ = (p - x+) / eta~ - S / tau

The mean of the z_tau no longer shows the mean gradient: what the proxes took away is mixed in. The corrections add
those subgradients of g up, round after round, until the prox does nothing; with g = lam ||.||_1 the model goes to 0.
It is here to show why the paper decouples. `CoupledControlVariates` repairs it, at twice the communication.

    x   pre-proximal global model   p   prox_{eta~ g}(x), eta~ = eta eta_g tau
    c   correction; sum_i p_i c_i should be zero and is not      S   sum of the client's tau gradients

Reference: ours, after Zhang, Hu, Johansson, "Composite federated learning with heterogeneous data", ICASSP 2024, a remark.
Deviations: the remark has no pseudo-code; everything it leaves open is as in the paper's Algorithm 1.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from compfed._utils.records import record
from compfed.algorithms.base import Citation
from compfed.algorithms.decoupled_prox import Client, DriftCorrected, Update


@record
class NaiveCoupled(DriftCorrected):
    """Drift correction with the prox inside the local recursion; converges to the wrong point.

        z+ = prox_{(t+1) eta g}(z - eta (grad f_i(z) + c)),   c+ = (p - x+) / eta~ - S / tau

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
    >>> cf.algorithms.NaiveCoupled(eta=0.1, tau=3)
    NaiveCoupled(eta=0.1, eta_g=1.0, tau=3)
    """

    citation = Citation(
        "Zhang, Hu, Johansson", 2024,
        "Composite federated learning with heterogeneous data", "ICASSP, a remark", ours=True,
    )  # fmt: skip
    exact = False

    def client_update(self, f, g, d, c, key):
        p = g.prox(d.x, self.eta_tilde)

        def step(carry, t_key):
            z, S = carry
            t, key = t_key
            q = f.grad(z, key)
            z = g.prox(z - self.eta * (q + c.c), (t + 1) * self.eta)
            return (z, S + q), None

        steps = jnp.arange(self.tau), jax.random.split(key, self.tau)
        (z, S), _ = jax.lax.scan(step, (p, jnp.zeros_like(p)), steps)
        return Update(z=z), Client(c=c.c, p=p, S=S), z  # the upload is post-proximal
