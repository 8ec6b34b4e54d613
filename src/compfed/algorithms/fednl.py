r"""FedNL with a proximal step: Hessians that the server learns from compressed differences.

Solves min_x sum_i p_i f_i(x) + g(x). Server and clients keep estimates H_i of the Hessians (the server: their mean H). A client sends
its gradient at x, the compressed difference C_i = C(hess f_i(x) - H_i) and the length l_i = ||hess f_i(x) - H_i||_F; the server takes the
proximal Newton step of the estimate before it was updated, made safe by the mean of the lengths:

    x+  =  argmin_u <c, u - x> + (u - x)^T (H + l I) (u - x) / 2 + g(u),     c = sum_i p_i grad f_i(x), l = sum_i p_i l_i
    H_i+ = H_i + C_i,     H+ = H + sum_i p_i C_i

    x   global model      H_i, H   estimates of the Hessians, and their mean      l_i   error of an estimate

C keeps the `rank` eigenvectors with the largest eigenvalues, in absolute value: rank (d + 1) numbers. A ridge, or a client with
fewer rows than coefficients, makes eigenvalues equal; a diagonal of a thousandth of l splits them before the vectors are taken, so that
rounding does not choose among their eigenvectors. With rank = d it is the proximal
Newton method one Hessian late; with rank = 0 the metric l I is all there is. Both estimates start at 0. Another start is a round with
rank = d: a run of rank 1 that resumes from it (`resume=`) begins with the Hessians at x0, and its messages are counted. The step is
`inner` accelerated proximal steps at the server.

Reference: ours, after Safaryan, Islamov, Qian, Richtarik, "FedNL: Making Newton-Type Methods Applicable to Federated Learning", ICML
2022, for smooth problems, with the second of its two safeguards (l I); its listing was not at hand, so lines carry no numbers.
Deviations: g, by the proximal step at the server, for which nothing is proved; H_i = 0 at the start, where the paper advises
the Hessian; the splitting of equal eigenvalues; all clients in every round; weights p_i instead of 1/n.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from compfed._utils.records import count, index, record
from compfed.algorithms.base import Algorithm, Citation, PyTree
from compfed.algorithms.quadratic_step import quadratic_prox
from compfed.errors import InputError

SPLIT = 1e-3


class LowRank(NamedTuple):
    """A symmetric matrix as it is sent: eigenvalues and eigenvectors (rows)."""

    values: Array
    vectors: Array

    def dense(self, d: int) -> Array:
        return (self.vectors.T * self.values) @ self.vectors


class Server(NamedTuple):
    x: Array
    H: Array


class Client(NamedTuple):
    H: Array


class Broadcast(NamedTuple):
    x: Array


class Update(NamedTuple):
    gradient: Array
    C: LowRank  # dense in the mean
    l: Array  # ||hess f_i(x) - H_i||_F


@record
class FedNL(Algorithm[Server, Client, Broadcast, Update]):
    """Proximal Newton steps at the server, with Hessians learnt from compressed differences.

        x+ = argmin_u <c, u - x> + (u - x)^T (H + l I) (u - x) / 2 + g(u),   c = sum_i p_i grad f_i(x)
        H_i += C(hess f_i(x) - H_i),   H = sum_i p_i H_i,   l = sum_i p_i ||hess f_i(x) - H_i||_F

    Parameters
    ----------
    rank : int, default=1
        Eigenvectors of the difference that a client sends.
    inner : int, default=200
        Accelerated proximal steps of the server on the quadratic model.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.algorithms.FedNL(rank=2)
    FedNL(rank=2, inner=200)
    """

    citation = Citation(
        "Safaryan, Islamov, Qian, Richtarik", 2022, "FedNL: Making Newton-Type Methods Applicable to Federated Learning", "ICML",
        ours=True,
    )  # fmt: skip
    composite = True
    exact = True
    setting = "its paper is about smooth problems"
    scalars = ("l",)

    rank: int = index(default=1)
    inner: int = count(default=200)

    state_depends_on = ()

    def init(self, x0):
        H = jnp.zeros((len(x0), len(x0)), x0.dtype)
        return Server(x=x0, H=H), Client(H=H)

    def broadcast(self, g, s):
        return Broadcast(x=s.x)

    def client_update(self, f, g, d, c, key):
        difference = f.hessian(d.x) - c.H
        gradient, l = f.full_grad(d.x), jnp.sqrt((difference**2).sum())
        split = jnp.diag(SPLIT * l * jnp.linspace(0.0, 1.0, len(d.x), dtype=d.x.dtype))
        values, vectors = jnp.linalg.eigh(difference + split)
        kept = vectors.T[jax.lax.top_k(jnp.abs(values), self.rank)[1]]
        values, vectors = jnp.linalg.eigh(kept @ difference @ kept.T)  # of the difference itself, on what they span
        C = LowRank(values=values, vectors=vectors.T @ kept)
        return Update(gradient=gradient, C=C, l=l), Client(H=c.H + C.dense(len(d.x))), d.x

    def server_update(self, g, s, mean: PyTree, weight):
        safe = s.H + mean.l * jnp.eye(len(s.x), dtype=s.x.dtype)
        x = quadratic_prox(mean.gradient, safe, s.x, g, self.inner)
        return Server(x=x, H=s.H + mean.C)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls()

    def bind(self, problem, participants):
        if self.rank > problem.d:
            raise InputError(
                f"FedNL(rank={self.rank}) sends more eigenvectors than the {problem.d} there are. Use rank <= {problem.d}."
            )
        return super().bind(problem, participants)
