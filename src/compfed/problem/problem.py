"""Problem and LazyProblem: min_x F(x) = sum_i p_i f_i(x) + g(x) over sites in this process."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from compfed._utils.array_namespace import Numbers
from compfed._utils.compilation import check_dtype, precision
from compfed._utils.validation import check_numbers, check_positive
from compfed.data import LazySites, Sites, lazy_sites
from compfed.errors import InputError
from compfed.losses import Loss
from compfed.losses.from_function import FromFunction
from compfed.losses.lipschitz import largest_eigenvalue, largest_eigenvalues
from compfed.problem.local_loss import client_gradients, curvatures, gradients, objectives_and_mappings
from compfed.problem.padded_dataset import PaddedDataset, check_finite, pad_clients, pad_sites
from compfed.problem_spec import ProblemSpec, check_lipschitz, check_loss, check_regulariser, check_site_weights
from compfed.regularisers import Regulariser, from_object

BLOCK = 2**26  # bytes of rows of a LazyProblem that are read together in a pass over all clients


class _WithRows(ProblemSpec):
    """What Problem and LazyProblem share: a checked specification, and the sites that hold the rows."""

    sites: Any  # Sites, or LazySites

    def __init__(
        self,
        loss: Loss,
        regulariser: Regulariser,
        sites: Sites | LazySites,
        weights: npt.ArrayLike | None = None,
        dtype: npt.DTypeLike = "float64",
    ):
        sites = self._accept(sites)
        precise = check_dtype(dtype)
        check_loss(loss, regulariser)
        regulariser = from_object(regulariser)
        check_regulariser(regulariser, loss.size(sites.width))
        super().__init__(
            loss=loss, regulariser=regulariser, weights=check_site_weights(weights, len(sites)), names=sites.names,
            numbers=sites.ids if isinstance(sites, Sites) else sites.names, sizes=sites.sizes, width=sites.width,
            dtype=precise, source=sites.source,
        )  # fmt: skip
        self.sites = sites
        self._check_values(*self._load())

    def _accept(self, sites: object) -> Sites | LazySites:
        """The sites that hold the rows; others are refused."""
        raise NotImplementedError

    def _load(self) -> tuple[Array, Array]:
        """Features and labels of some rows on the device, with which the loss is tried."""
        raise NotImplementedError

    def _check_values(self, A: Numbers, y: Numbers) -> None:
        """Refuse a loss that does not give one number per row."""
        try:
            with precision(self.dtype):
                found = jax.eval_shape(self.loss.values, self.start, A, y).shape
        except InputError:
            raise
        except Exception as error:  # a function of the user's may raise anything
            row = (
                f"one row of {self.width} features" if isinstance(self.loss, FromFunction) else f"{self.width} features"
            )
            raise InputError(f"{type(self.loss).__name__} does not work with {row}: {error}") from error
        if found != y.shape[:1]:
            raise InputError(f"{type(self.loss).__name__} gives shape {found[1:]} for a row; it must give one number.")

    def __repr__(self) -> str:
        parts = f"{type(self.loss).__name__}, {type(self.regulariser).__name__}, {self.sites!r}"
        return f"{type(self).__name__}({parts}, {self.d} coefficients, {self.dtype.name})"

    @property
    def fingerprints(self) -> np.ndarray:
        """One sum over the rows of each site, by which it is recognised; NaN for clients that are not read."""
        return self.sites.fingerprints

    def point(self, x: Any, name: str = "x") -> np.ndarray:
        """x as a vector of this problem, checked and copied; for `losses.from_function` also a pytree of its parameters."""
        if isinstance(self.loss, FromFunction):
            x = self.loss.ravelled(x, name)
        array = np.array(check_numbers(x, name, self.dtype))
        if array.shape != (self.d,):
            need = f"this problem has {self.d} coefficients: shape ({self.d},)"
            raise InputError(f"{name} has shape {array.shape}; {need}.")
        if not np.isfinite(array).all():
            raise InputError(f"{name} has NaN or infinite entries; it must be finite.")
        return array


class Problem(_WithRows):
    """min_x F(x) = sum_i p_i f_i(x) + g(x), with f_i(x) = sum_l q_l loss(x; a_l, y_l) + (ridge / 2) ||x||^2.

    f_i is the mean loss over the rows of site i: q_l = 1 / m_i, unless the sites have row weights.

    Parameters
    ----------
    loss : Loss
        One of `compfed.losses`, or `losses.from_function`.
    regulariser : Regulariser
        g: one of `compfed.regularisers`, or any object with a value and a prox, which are checked against each other.
    sites : Sites
        The rows, from `compfed.data`.
    weights : array of shape (n,), optional
        p_i, which sum to 1; 1/n if left out. A site of weight 0 does not count. `sites.shares` makes the problem that of
        the pooled table.
    dtype : {"float64", "float32"}, default="float64"
        The precision of every run on this problem.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> problem.n, problem.d, round(problem.objective(np.zeros(4)), 4)
    (3, 4, 0.6931)
    """

    sites: Sites

    def _accept(self, sites: object) -> Sites:
        if isinstance(sites, LazySites):
            raise InputError(
                "a Problem has its rows on the device; for LazySites use LazyProblem, or sites.loaded(...)."
            )
        if not isinstance(sites, Sites):
            raise InputError(f"sites must come from compfed.data (from_arrays, ...); got {type(sites).__name__}.")
        return sites

    def _load(self) -> tuple[Array, Array]:
        labels = self.loss.encode(np.concatenate(self.sites.labels))
        self.dataset, self.order = pad_sites(self.sites, labels, self.weights, self.dtype)
        self.cache: dict[str, Any] = {}  # results that depend on the rows only; `replace` shares it
        return self.dataset.A, self.dataset.y

    def replace(self, loss: Loss | None = None, regulariser: Regulariser | None = None) -> Problem:
        """The same data with another loss or regulariser; nothing is copied, and equal shapes compile once."""
        loss = self.loss if loss is None else loss
        regulariser = self.regulariser if regulariser is None else from_object(regulariser)
        if loss is self.loss and regulariser is self.regulariser:
            return self
        # another loss may read the labels differently
        if type(loss) is not type(self.loss) or loss.size(self.width) != self.d:
            return Problem(loss, regulariser, self.sites, self.weights, self.dtype)
        check_regulariser(regulariser, self.d)
        new = copy.copy(self)
        vars(new).update(loss=loss, regulariser=regulariser)  # the fields of a specification are frozen
        return new

    def with_regulariser(self, g: Regulariser) -> Problem:
        return self.replace(regulariser=g)

    def astype(self, dtype: npt.DTypeLike) -> Problem:
        """The same problem in another precision."""
        if check_dtype(dtype) == self.dtype:
            return self
        return Problem(self.loss, self.regulariser, self.sites, self.weights, dtype)

    def objective(self, x: npt.ArrayLike) -> float:
        """F(x) = sum_i p_i f_i(x) + g(x)."""
        return float(self._objective_and_mapping(x, 1.0)[0])

    def gradient(self, x: npt.ArrayLike) -> np.ndarray:
        """sum_i p_i grad f_i(x)."""
        with precision(self.dtype):
            return np.asarray(gradients(self.loss, self.dataset, self.point(x)[None])[0])

    def client_gradients(self, x: npt.ArrayLike) -> np.ndarray:
        """grad f_i(x), one row per site."""
        with precision(self.dtype):
            return np.asarray(client_gradients(self.loss, self.dataset, self.point(x)))[np.argsort(self.order)]

    def gradient_mapping(self, x: npt.ArrayLike, step: float | None = None) -> np.ndarray:
        """(x - prox_{step g}(x - step grad f(x))) / step; step is 1/L unless given.

        It is zero exactly at stationary points. If the loss and g are convex (`problem.convex`), these are the minimisers.
        """
        return self._objective_and_mapping(x, 1.0 / self.lipschitz if step is None else check_positive(step, "step"))[1]

    def _objective_and_mapping(self, x: npt.ArrayLike, step: float) -> tuple[np.ndarray, np.ndarray]:
        with precision(self.dtype):
            point = self.point(x)[None]
            F, mapping = objectives_and_mappings(self.loss, self.regulariser, self.dataset, point, step)
            return np.asarray(F[0]), np.asarray(mapping[0])

    @property
    def lipschitz(self) -> float:
        """L: Lipschitz constant of the gradient of f = sum_i p_i f_i.

        For a loss whose curvature has no bound: the largest curvature of f at `start`.
        """
        if self.loss.curvature is None:
            return check_lipschitz(self._curvature_at_start[0], self.regulariser)
        if "top" not in self.cache:
            weights = [p * q for p, q in zip(self.weights, self.sites.row_shares, strict=True)]
            self.cache["top"] = largest_eigenvalue(self.sites.features, weights)
        L = self.cache["top"] * self.loss.curvature + float(self.loss.ridge)
        return check_lipschitz(float(L), self.regulariser)

    @property
    def client_lipschitz(self) -> np.ndarray:
        """L_i of every site; for a loss whose curvature has no bound, the largest curvature of f_i at `start`."""
        if self.loss.curvature is None:
            return self._curvature_at_start[1]
        if "tops" not in self.cache:
            self.cache["tops"] = largest_eigenvalues(self.sites.features, self.sites.row_shares)
        return self.cache["tops"] * self.loss.curvature + float(self.loss.ridge)

    def curvature_at(self, x: npt.ArrayLike) -> tuple[float, np.ndarray]:
        """The eigenvalue of largest size of the Hessian of f at x, and of every f_i."""
        with precision(self.dtype):
            total, clients = curvatures(self.loss, self.dataset, self.point(x))
            return float(total), np.asarray(clients, float)[np.argsort(self.order)]

    @property
    def _curvature_at_start(self) -> tuple[float, np.ndarray]:
        if self.cache.get("curvature", (None,))[0] is not self.loss:
            self.cache["curvature"] = self.loss, self.curvature_at(self.start)
        return self.cache["curvature"][1]


class LazyProblem(_WithRows):
    """min_x F(x) = sum_i p_i f_i(x) + g(x), over clients that are too many, or too large, for the memory of the device.

    `simulate_out_of_core` runs it; rows are fetched when a client takes part.

    Parameters
    ----------
    loss : Loss
        One of `compfed.losses`, or `losses.from_function`.
    regulariser : Regulariser
        g: one of `compfed.regularisers`, or any object with a value and a prox, which are checked against each other.
    sites : LazySites or Sites
        From `data.lazy_sites` or `data.mapped_sites`. Ordinary `Sites` stay off the device.
    weights : array of shape (n,), optional
        p_i, which sum to 1; 1/n if left out.
    dtype : {"float64", "float32"}, default="float64"
        The precision of every run on this problem.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.LazyProblem(cf.losses.Squared(), cf.regularisers.L1(1e-3), sites)
    >>> problem.n, problem.subset([0, 2]).n
    (3, 2)
    """

    sites: LazySites

    def _accept(self, sites: object) -> LazySites:
        if isinstance(sites, Sites):
            if sites.sample_weight is not None:
                raise InputError("a LazyProblem has no row weights; use a Problem, or leave them out.")
            if sites.ids != tuple(range(len(sites))):
                raise InputError("a LazyProblem numbers clients 0..n-1 in their order; these sites were permuted.")
            rows = list(zip(sites.features, sites.labels, strict=True))
            return lazy_sites(rows.__getitem__, sites.sizes, source=sites.source)
        if not isinstance(sites, LazySites):
            raise InputError(f"sites must come from compfed.data, as lazy_sites(...) does; got {type(sites).__name__}.")
        return sites

    def _load(self) -> tuple[Array, Array]:
        first = self.cohort(np.zeros(1, int))
        return first.A, first.y

    def cohort(self, clients: np.ndarray, like_all: bool = False) -> PaddedDataset:
        """The rows of some clients on the device, padded alike.

        With `like_all` the dataset states the size of the largest of all clients, by which mini-batches are drawn.
        """
        capacity = self.sites.largest if like_all else None
        return pad_clients(self.sites, clients, self.weights[clients], self.loss, self.dtype, capacity)

    def subset(self, clients: Sequence[int] | np.ndarray) -> Problem:
        """Some of the clients as a problem of their own, weights in proportion: on it a long run can be evaluated."""
        chosen = np.asarray(clients)
        numbers = chosen.ndim == 1 and chosen.dtype.kind in "iu" and len(chosen) > 0
        if not numbers or not 0 <= chosen.min() <= chosen.max() < self.n:
            raise InputError(f"subset(clients) needs numbers of clients, 0..{self.n - 1}; got {clients!r:.80}.")
        p = self.weights[chosen]
        if not p.sum() > 0:
            raise InputError(f"subset(clients): the clients {clients!r:.80} have weight 0; take some that count.")
        return Problem(self.loss, self.regulariser, self.sites.loaded(chosen), p / p.sum(), self.dtype)

    def objective(self, x: npt.ArrayLike) -> float:
        """F(x) = sum_i p_i f_i(x) + g(x): one pass over all clients, a block of them at a time."""
        x = self.point(x)
        with precision(self.dtype):
            total = sum(float(w @ np.asarray(self.loss.values(x, A, y))) for A, y, w in self._blocks())
            return total + 0.5 * float(self.loss.ridge) * float(x @ x) + float(self.regulariser(jnp.asarray(x)))

    def gradient(self, x: npt.ArrayLike) -> np.ndarray:
        """sum_i p_i grad f_i(x): one pass over all clients, a block of them at a time."""
        x = self.point(x)
        with precision(self.dtype):
            total = sum(np.asarray(self.loss.gradient(x, A, y, w)) for A, y, w in self._blocks())
            return total + self.loss.ridge * x

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Features, labels and shares p_i / m_i of the rows of all clients, in blocks."""
        of_block = np.cumsum(self.sizes) * self.width * self.dtype.itemsize // BLOCK
        for clients in np.split(np.arange(self.n), np.flatnonzero(np.diff(of_block)) + 1):
            rows = [self.sites.rows(i) for i in clients.tolist()]
            A, y = (np.concatenate(parts).astype(self.dtype) for parts in zip(*rows, strict=True))
            check_finite(clients, A, y)
            m = self.sizes[clients]
            yield A, self.loss.encode(y).astype(self.dtype), np.repeat(self.weights[clients] / m, m).astype(self.dtype)
