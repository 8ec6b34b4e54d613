r"""The Cox partial likelihood: a loss of a whole site, in which the rows at risk at each event time stand together.

With the risk set R_k = {j : entry_j < t_k <= time_j} of the k-th event time of a stratum, weights w and z = a^T x + offset,

    f(x) = -1/W sum_strata sum_k [ sum_{events i at t_k} w_i z_i - w_k sum_l log(S0_k - c_l D0_k) ],   W = sum of all weights
    S0_k = sum_{R_k} w_j exp(z_j),   D0_k = the same over the n_k events at t_k

Breslow: c_l = 0 and w_k the weight of these events, once. Efron: c_l = l / n_k for l = 0..n_k - 1, and w_k their mean weight.
With alpha_k = w_k sum_l 1 / (S0_k - c_l D0_k) and beta_k = w_k sum_l c_l / (S0_k - c_l D0_k),

    a_i = w_i exp(z_i) (sum_{k : i in R_k} alpha_k - [i is an event at t_k] beta_k),   gradient = A^T (a - w event) / W
    Hessian = (A^T diag(a) A - sum_k w_k sum_l u_kl u_kl^T) / W,   u_kl = (S1_k - c_l D1_k) / (S0_k - c_l D0_k)

S1 and D1 are S0 and D0 with a_j as another factor: sums along falling times, so that no array is of rows times rows.

Reference: Cox, "Regression models and life tables", JRSS B 1972; Breslow, Biometrics 1974; Efron, JASA 1977. Ties with weights as in
R's survival (coxph). Deviations: none.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple
from weakref import ref

import numpy as np
from scipy.sparse import csr_matrix

from compfed._utils.array_namespace import Numbers, product
from compfed._utils.records import choice, nonnegative, record
from compfed.errors import InputError
from compfed.losses.base import SiteLoss, columns, ignore_overflow
from compfed.losses.lipschitz import gram, largest_eigenvalue
from compfed.losses.many_models import LossEvaluation

ENTRY, TIME, EVENT, STRATUM, OFFSET, WEIGHT = range(6)  # columns of encoded labels
TOGETHER = 2**21  # predictions that are worked out together
KNOWN_ROWS = 2**21  # in the orders of rows that are kept: of all sites and folds of a message, if they fit


class RiskSets:
    """The rows that are in a risk set, in the order of strata and of falling times, and where each comes and goes.

    Groups are the distinct event times of all strata, in that order. Row j is at risk at the groups first[j] to last[j] - 1. Rows
    without a weight are in no risk set, and not here.
    """

    def __init__(self, y: np.ndarray, used: np.ndarray):
        rows = np.flatnonzero(used)
        entry, time, event, stratum = y[rows, : STRATUM + 1].T
        happened = np.flatnonzero(event > 0)
        order = np.lexsort((-time[happened], stratum[happened]))
        s, t = stratum[happened][order], time[happened][order]
        new = np.ones(len(s), bool)
        new[1:] = (s[1:] != s[:-1]) | (t[1:] != t[:-1])
        self.strata, self.times = s[new], t[new]  # of every group
        groups = len(self.times)
        first = _groups_before(self.strata, self.times, stratum, time)
        end = np.searchsorted(self.strata, stratum, side="right")
        late = np.isfinite(entry)
        last = end.copy()
        if late.any():
            last[late] = np.minimum(_groups_before(self.strata, self.times, stratum[late], entry[late]), end[late])
        there = np.flatnonzero(first < last)
        there = there[np.argsort(first[there], kind="stable")]
        self.rows, self.first, self.last, self.event = rows[there], first[there], last[there], event[there] > 0
        self.starts = np.searchsorted(self.first, np.arange(groups))  # each group has a row: that of its event
        bounds = np.flatnonzero(np.r_[True, self.strata[1:] != self.strata[:-1]]) if groups else np.empty(0, int)
        self.bounds = np.append(bounds, groups)  # of the strata, in groups
        self.stratum = np.searchsorted(bounds, self.first, side="right") - 1  # of every row here
        self.of_group = np.repeat(np.arange(len(bounds)), np.diff(self.bounds))
        self.leaving = np.flatnonzero(
            self.last < self.bounds[1:][self.stratum]
        )  # before the last group of their stratum
        self.events = np.flatnonzero(self.event)  # sorted by group, as all rows
        self.event_starts = np.searchsorted(self.first[self.events], np.arange(groups))
        self.ties = np.diff(np.append(self.event_starts, len(self.events)))  # n_k
        self.tied = np.flatnonzero(self.ties > 1)

    @property
    def groups(self) -> int:
        return len(self.times)

    def along(self, values: np.ndarray) -> np.ndarray:
        """Sums over the groups of a stratum up to each, in place."""
        for a, b in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            np.cumsum(values[a:b], axis=0, out=values[a:b])
        return values

    def after(self, values: np.ndarray) -> np.ndarray:
        """Sums over the groups of a stratum from each on."""
        found = np.empty_like(values)
        for a, b in zip(self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True):
            found[a:b] = np.cumsum(values[a:b][::-1], axis=0)[::-1]
        return found

    def at_risk(self, r: np.ndarray) -> np.ndarray:
        """The sum over each risk set of numbers of the rows here, (rows, models)."""
        found = np.add.reduceat(r, self.starts, axis=0)
        if len(self.leaving):
            np.subtract.at(found, self.last[self.leaving], r[self.leaving])
        return self.along(found)

    def at_risk_rows(self, r: np.ndarray, A: np.ndarray) -> np.ndarray:
        """The sum over each risk set of r times the rows of A."""
        shape, ends = (self.groups, len(A)), np.append(self.starts, len(self.rows))
        found = np.asarray(csr_matrix((r, self.rows, ends), shape=shape) @ A)
        if len(self.leaving):
            places = (self.last[self.leaving], self.rows[self.leaving])
            found -= np.asarray(csr_matrix((r[self.leaving], places), shape=shape) @ A)
        return self.along(found)

    def at_ties(self, r: np.ndarray, A: np.ndarray) -> np.ndarray:
        """The sum over the events of each group that has several of r times the rows of A."""
        mine = self.events[self.ties[self.first[self.events]] > 1]
        place = np.searchsorted(self.tied, self.first[mine])
        return np.asarray(csr_matrix((r[mine], (place, self.rows[mine])), shape=(len(self.tied), len(A))) @ A)

    def of_events(self, values: np.ndarray) -> np.ndarray:
        """The sum over the events of each group."""
        return np.add.reduceat(values[self.events], self.event_starts, axis=0)


def _groups_before(strata: np.ndarray, times: np.ndarray, stratum: np.ndarray, at: np.ndarray) -> np.ndarray:
    """For each row, how many groups come before it: of earlier strata, and later than `at` in its own."""
    s, t = np.concatenate([strata, stratum]), np.concatenate([times, at])
    is_group = np.arange(len(s)) < len(strata)
    order = np.lexsort((is_group, -t, s))  # a group at the very time comes after the row: it is at risk there
    found = np.empty(len(s), int)
    found[order] = np.cumsum(is_group[order])
    return found[len(strata) :]


_known: OrderedDict[tuple[int, bytes], tuple[ref[np.ndarray], RiskSets]] = OrderedDict()


def risk_sets(y: np.ndarray, q: np.ndarray) -> RiskSets:
    """The risk sets of the rows that have a weight; those of the last tables are kept, as each message asks again."""
    used = np.asarray(q) > 0
    key = id(y), np.packbits(used).tobytes()
    known = _known.get(key)
    if known is not None and known[0]() is y:
        return known[1]
    made = RiskSets(y, used)
    _known[key] = ref(y), made
    while len(_known) > 1 and sum(len(sets.rows) for _, sets in list(_known.values())) > KNOWN_ROWS:
        _known.popitem(last=False)
    return made


class _AtModels(NamedTuple):
    """What is known of some models at the risk sets of a site; the last axis is that of the models."""

    value: np.ndarray  # (models,)
    a: np.ndarray  # (rows, models), of the rows here
    r: np.ndarray  # (rows, models): w exp(z), on the scale of the stratum
    S0: np.ndarray  # (groups, models)
    squares: tuple[
        np.ndarray, np.ndarray, np.ndarray
    ]  # (groups, models): w_k sum_l c_l^i (S0 / denominator)^2, i = 0, 1, 2


@record
class CoxPartialLikelihood(SiteLoss):
    """Minus the mean log partial likelihood of a Cox model, stratified by site, and within a site by its strata.

    Labels are (time, event) or (entry, time, event): a row is at risk after its entry and until its time, and event is 1 where
    something happened then, 0 where the row was censored.

    Parameters
    ----------
    ridge : float, default=0.0
        Adds (ridge / 2) ||x||^2 to the loss of every site.
    ties : {"efron", "breslow"}, default="efron"
        What stands for the order of events at the same time.

    Examples
    --------
    >>> loss = CoxPartialLikelihood()
    >>> y = loss.encode(np.array([[1.0, 1.0], [2.0, 0.0], [3.0, 1.0]]))
    >>> A, q = np.array([[0.0], [1.0], [2.0]]), np.full(3, 1 / 3)
    >>> found = loss.evaluate(np.zeros((1, 1)), A, y, q[None], np.zeros(1, int), np.abs(A[:, 0]))
    >>> bool(np.isclose(found.value[0], np.log(3) / 3)), found.gradient.round(12)
    (True, array([[0.33333333]]))
    """

    convex = True
    curvature = None
    quadratic = False

    ridge: float = nonnegative(default=0.0)
    ties: str = choice("efron", "breslow", default="efron")

    def size(self, width: int) -> int:
        return width

    def encode(
        self,
        labels: np.ndarray,
        strata: np.ndarray | None = None,
        offset: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> np.ndarray:
        labels = np.asarray(labels, float)
        if labels.ndim != 2 or labels.shape[1] not in (2, 3):
            raise InputError(
                "a Cox model needs labels of two columns, time and event, or of three: entry, time and event. Name them "
                "in this order."
            )
        rows = len(labels)
        y = np.zeros((rows, 6))
        y[:, ENTRY] = labels[:, 0] if labels.shape[1] == 3 else -np.inf
        y[:, [TIME, EVENT]] = labels[:, -2:]
        y[:, STRATUM] = 0.0 if strata is None else strata
        y[:, OFFSET] = 0.0 if offset is None else offset
        y[:, WEIGHT] = 1.0 if weights is None else weights
        if not np.isin(y[:, EVENT], (0.0, 1.0)).all():
            raise InputError(
                "a Cox model needs an event column of 0 (censored) and 1 (event); there are other values. The columns are "
                "time and event, or entry, time and event, in this order."
            )
        if not (y[:, ENTRY] < y[:, TIME]).all():
            raise InputError(
                "the entry of a row must be before its time; at some it is not. Mend these rows, or drop them."
            )
        return y

    @ignore_overflow
    def evaluate(
        self, X: np.ndarray, A: Numbers, y: np.ndarray, Q: np.ndarray, which: np.ndarray, row_norms: np.ndarray
    ) -> LossEvaluation:
        value, terms, gradient = np.zeros(len(X)), np.zeros(len(X)), np.zeros((len(X), X.shape[1]))
        step = max(TOGETHER // max(len(y), 1), 1)
        for k in np.unique(which).tolist():
            q, mine = Q[k], np.flatnonzero(which == k)
            for some in (mine[i : i + step] for i in range(0, len(mine), step)):
                a = np.zeros((len(y), len(some)))
                risk, at = self._at(X[some], A, y, q)
                if at is None:
                    continue
                a[risk.rows] = at.a
                event = (q * y[:, EVENT])[:, None]
                value[some], terms[some] = at.value, row_norms @ (a + event)
                gradient[some] = (A.T @ (a - event)).T
        return LossEvaluation(value, gradient, terms)

    def _at(self, X: np.ndarray, A: Numbers, y: np.ndarray, q: np.ndarray) -> tuple[RiskSets, _AtModels | None]:
        """The risk sets of the rows of weight q > 0, and the models of X there; None without an event."""
        risk = risk_sets(y, q)
        if not risk.groups:
            return risk, None
        rows, ends = risk.rows, risk.bounds
        z = np.asarray(product(A, np.ascontiguousarray(X.T)))[rows] + y[rows, OFFSET][:, None]
        largest = np.maximum.reduceat(
            z, np.append(risk.starts, 0)[ends[:-1]], axis=0
        )  # of each stratum: nothing overflows
        r = np.exp(z - largest[risk.stratum])
        r *= y[rows, WEIGHT][:, None]
        D0 = risk.of_events(r)
        S0 = np.maximum(risk.at_risk(r), D0)  # what rounding takes away where rows leave
        weight = risk.of_events(q[rows])[:, None]  # of the events of a group
        alpha, logs = weight / S0, weight * np.log(S0)
        squares = np.broadcast_to(weight, S0.shape).copy(), np.zeros_like(S0), np.zeros_like(S0)
        beta = np.zeros_like(S0)
        if self.ties == "efron" and len(risk.tied):
            n = risk.ties[risk.tied]
            each, starts = np.repeat(risk.tied, n), np.cumsum(n) - n
            c = ((np.arange(len(each)) - np.repeat(starts, n)) / np.repeat(n, n))[:, None]
            mean, left = (weight / risk.ties[:, None])[each], S0[each] - c * D0[each]
            share = mean * (S0[each] / left) ** 2
            for target, terms in (
                (alpha, mean / left), (beta, mean * c / left), (logs, mean * np.log(left)),
                (squares[0], share), (squares[1], share * c), (squares[2], share * c * c),
            ):  # fmt: skip
                target[risk.tied] = np.add.reduceat(terms, starts, axis=0)
        later = np.concatenate([risk.after(alpha), np.zeros((1, alpha.shape[1]))])
        until = later[risk.first]
        until[risk.leaving] -= later[risk.last[risk.leaving]]
        until[risk.events] -= beta[risk.first[risk.events]]
        z_events, q_events = z[risk.events], q[rows][risk.events]
        value = (logs + weight * largest[risk.of_group]).sum(axis=0) - q_events @ z_events
        # q is w / W: what the site adds is divided by the weight of its rows in the query
        return risk, _AtModels(value, r * until, r, S0, squares)

    @ignore_overflow
    def hessian(self, x: Numbers, A: Numbers, y: Numbers, q: Numbers, W: Numbers | None = None) -> Numbers:
        used = columns(A, W) if isinstance(A, np.ndarray) else A[:, np.arange(A.shape[1]) if W is None else W]
        risk, at = self._at(np.asarray(x)[None], A, y, q)
        if at is None:
            return np.zeros((used.shape[1], used.shape[1]))
        a = np.zeros(len(y))
        a[risk.rows] = at.a[:, 0]
        S0, r, squares = at.S0, at.r[:, 0], [each[:, 0] for each in at.squares]
        U = risk.at_risk_rows(r, used) / S0
        H = gram(used, a) - gram(U, squares[0])
        if self.ties == "efron" and len(risk.tied):
            V, mine = risk.at_ties(r, used) / S0[risk.tied], U[risk.tied]
            crossed = mine.T @ (V * squares[1][risk.tied, None])
            H += crossed + crossed.T - gram(V, squares[2][risk.tied])
        return H

    @ignore_overflow
    def row_curvatures(self, x: np.ndarray, A: Numbers, y: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """a_i of the rows that are in a risk set, and their strata: how much each has a part in the sums of this model."""
        risk, at = self._at(np.asarray(x)[None], A, y, q)
        if at is None:
            return np.empty(0), np.empty(0, int)
        return at.a[:, 0], risk.stratum

    @ignore_overflow
    def lipschitz(self, A: Numbers, q: Numbers, x: Numbers | None = None, y: Numbers | None = None) -> float:
        """lambda_max(A^T diag(a) A) at x, which bounds the Hessian there."""
        if x is None or y is None:
            raise InputError("the curvature of a partial likelihood has no bound: lipschitz needs a model x.")
        return largest_eigenvalue([A], [self._spread(x, A, y, q)])

    @ignore_overflow
    def lipschitz_upper_bound(self, A: Numbers, q: Numbers, row_norms: Numbers, x: Numbers, y: Numbers) -> float:
        """The trace in place of the largest eigenvalue: sum_l a_l ||a_l||^2."""
        return float(self._spread(x, A, y, q) @ row_norms**2)

    def _spread(self, x: Numbers, A: Numbers, y: np.ndarray, q: np.ndarray) -> np.ndarray:
        """a of all rows; 0 for those in no risk set."""
        found = np.zeros(len(y))
        risk, at = self._at(np.asarray(x)[None], A, y, q)
        if at is not None:
            found[risk.rows] = at.a[:, 0]
        return found
