r"""VarianceReducedDecoupledProx: DecoupledProx that stays exact with mini-batches and constant steps.

Solves min_x sum_i p_i f_i(x) + g(x). One change in the client of DecoupledProx: a full gradient at the start of the
round corrects every mini-batch gradient of it,

    q = grad f_B(z) - grad f_B(p) + grad f_i(p),      the same mini-batch B in both

At the fixed point every local iterate stays at p = x*, so the two mini-batch gradients cancel and with them the noise,
which leaves DecoupledProx with a floor. A round costs one full gradient and 2 tau of mini-batches; messages, prox rule
and correction are those of DecoupledProx. With mini-batches of all rows, and with tau = 1 for any mini-batches, it is
DecoupledProx with full gradients.

    x   pre-proximal global model                      p   post-proximal, prox_{eta~ g}(x), eta~ = eta eta_g tau
    c   drift correction of a client; sum_i p_i c_i = 0      S   sum of the client's tau corrected gradients

Upload "auto" sends p - eta S with all clients, where errors in c heal, and zhat_tau ("model") when clients are sampled,
where their corrections do not cancel in the mean; see `decoupled_prox`, also for the reason of the self-normalised mean.

Reference: ours, DecoupledProx after the variance reduction of Johnson, Zhang, "Accelerating stochastic gradient descent
using predictive variance reduction", NeurIPS 2013.
Deviations: none. No convergence proof is known.
"""

from __future__ import annotations

from dataclasses import replace

from compfed._utils.records import choice, record
from compfed.algorithms.base import Citation
from compfed.algorithms.decoupled_prox import DriftCorrected


@record
class VarianceReducedDecoupledProx(DriftCorrected):
    """DecoupledProx that is exact with mini-batches and constant steps.

        q = grad f_B(z) - grad f_B(p) + grad f_i(p)      takes the place of the local gradient

    Parameters
    ----------
    eta : float
        Local step size.
    eta_g : float, default=1.0
        Server step size.
    tau : int, default=5
        Local steps per round.
    upload : {"auto", "model"}, default="auto"
        What a client sends: p - eta S with all clients, zhat_tau when clients are sampled; "model" for zhat_tau
        always.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.VarianceReducedDecoupledProx(eta=0.1, tau=3)
    VarianceReducedDecoupledProx(eta=0.1, eta_g=1.0, tau=3, upload='auto')
    """

    citation = Citation(
        "Johnson, Zhang", 2013,
        "Accelerating stochastic gradient descent using predictive variance reduction", "NeurIPS", ours=True,
    )  # fmt: skip
    exact = True
    exact_sampled = True
    sampling = "observed"
    schemes = ("self-normalised",)  # any other would move sum_i p_i c_i away from zero

    upload: str = choice("auto", "model", default="auto")

    def local_gradient(self, f, p):
        full = f.full_grad(p)

        def corrected(z, key):
            return f.grad(z, key) - f.grad(p, key) + full  # one key: one mini-batch, used twice

        return corrected

    def bind(self, problem, participants):
        return self if participants == problem.n else replace(self, upload="model")
