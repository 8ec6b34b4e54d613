"""A site: its rows, its client states, and its disclosure policy. It knows no other site."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import issparse

from compfed._utils.compilation import jit, precision
from compfed._utils.text import printable
from compfed._utils.validation import check_magnitudes, check_row_weights, check_unmasked
from compfed.algorithms.base import Algorithm, PyTree
from compfed.algorithms.round import ExchangeMessages, message_shapes
from compfed.data.raw_table import RawTable
from compfed.errors import InputError
from compfed.federation import exact_sum
from compfed.federation.accounting import payload
from compfed.federation.codec import digest, named, unnamed
from compfed.federation.contributions import encode, row_subset
from compfed.federation.enrolment import Agreement, Enrolment, magnitude_bits
from compfed.federation.limits import MAX_REASON, QueryLimits
from compfed.federation.queries import Query, Refusal, Replies, SiteRefusal, Weighted
from compfed.federation.site.answers import answer
from compfed.federation.site.disclosure import (
    DIVERGED,
    DisclosurePolicy,
    EffectiveRows,
    GuardedLoss,
    Varying,
    blanket_reason,
    check_table,
    rare_class,
    rare_values,
    secret_words,
    varying_columns,
)
from compfed.federation.site.disclosure import reason as disclosure_reason
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.losses.base import ignore_overflow
from compfed.problem.evaluation import FullGradient, MiniBatch
from compfed.problem.padded_dataset import SPARSE_METHODS, LocalDataset, SparseRows, dense_rows
from compfed.sampling import client_key, run_key
from compfed.schema import Schema
from compfed.splits import RowSubset, deal_buckets

OBJECTIVES_KEPT = 16  # rows in the coordinates of a view are a copy of the table: the oldest go first
ROOM = 2**30  # bytes of such copies that are kept from one message to the next; beyond, they are made anew
RUNS_KEPT = 4096
FeatureMatrix: TypeAlias = Any  # an array, or a sparse matrix of scipy


class StateLost(InputError):
    """A site was asked to continue a run whose client state it does not have."""


class ClientState(NamedTuple):
    """The state of a client in one run, between its rounds."""

    c: Any
    pending: bool = False  # it sent an update and has not received the result of that round
    local: Any = None  # the local model at the end of its last round, for the record


class Site:
    """Rows and labels of one site, and its replies to queries.

    Parameters
    ----------
    features : array or scipy.sparse matrix of shape (rows, columns)
    labels : array of shape (rows,) or (rows, outcomes)
    name : str
    index : int
        Position of the site in the federation.
    number : int, optional
        Source of its random draws; `index` unless given. A site keeps its number when other sites join.
    row_weights : array of shape (rows,), optional
    columns : sequence of str, optional
        Names of the columns.
    splits : sequence of (train, test) masks
        For cross-validation with folds that were given row by row.
    policy : DisclosurePolicy, optional
        The rules of the site for what it reveals; without one there are none.
    secret : bytes
        Of the site alone: decides which rows share a bucket, and the mini-batches.
    secure_sum : bool
        Whether its sums are masked. Values of few rows are then allowed where three sites have them.
    limits : QueryLimits or None
        None for a site in the process of its server.
    room : float
        Bytes of scaled rows that are kept between messages.
    offset : array of shape (rows,), optional
        Added to the linear predictor of each row.
    raw : RawTable, optional
        The table before it was encoded.
    schema : Schema, optional
        How it was encoded.
    """

    def __init__(
        self,
        features: FeatureMatrix,
        labels: np.ndarray,
        *,
        name: str,
        index: int,
        number: int | None = None,
        row_weights: np.ndarray | None = None,
        columns: Sequence[str] | None = None,
        splits: Sequence[tuple[np.ndarray, np.ndarray]] = (),
        policy: DisclosurePolicy | None = None,
        secret: bytes = b"",
        secure_sum: bool = False,
        limits: QueryLimits | None = QueryLimits(),  # noqa: B008  # frozen
        room: float = ROOM,
        offset: np.ndarray | None = None,
        raw: RawTable | None = None,
        schema: Schema | None = None,
    ):
        for what, values in (("features", features), ("labels", labels), ("row weights", row_weights)):
            check_unmasked(values, f"site {name!r}: {what}")
        features = features.tocsr() if issparse(features) else np.asarray(features)
        labels = np.asarray(labels)
        _check_rows(name, features, labels, row_weights, columns)
        self.features, self.labels, self.name, self.index = features, labels, name, index
        self.number = index if number is None else number
        self.row_weights = np.ones(len(labels)) if row_weights is None else row_weights
        self.columns = None if columns is None else tuple(columns)
        self.splits = splits
        self.policy = policy
        self.secret, self.secure_sum = secret, secure_sum
        self.agreement: Agreement | None = None  # with the other sites of a run
        self.models = 0  # evaluated over the life of the table
        self.hessian_columns: set[int] = set()  # with second derivatives, over the life of the table
        self.limits = limits
        self.room = room
        self.offset, self.raw, self.schema = offset, raw, schema
        self._views: OrderedDict[str, LocalDataset] = OrderedDict()
        self._arrays: OrderedDict[str, tuple[Any, ...]] = OrderedDict()
        self.memories: OrderedDict[str, ClientState] = OrderedDict()  # by the hash of the run

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {len(self.labels)} rows, {self.width} columns)"

    @property
    def width(self) -> int:
        return self.features.shape[1]

    def reply(self, queries: Sequence[Query]) -> Replies:
        """The replies to one message. A refusal is a reply too; it does not affect the other queries."""
        replies, size = list[Any](), 0
        for query in queries:
            if self.limits is None:
                replies.append(self._answered(query))
            elif size > (most := self.limits.max_reply_bytes):
                reason = f"site {self.name!r}: the reply to one message has at most {most} bytes (max_reply_bytes)."
                replies.append(Refusal(reason))
            else:
                replies.append(self._answered(query))
                size += payload(replies[-1], set())
        _make_room(self._views, self.room)
        _make_room(self._arrays, self.room)
        return tuple(replies)

    def contribute(self, asked: Sequence[Weighted], agreement: Agreement) -> np.ndarray:
        """The replies to one message as words that can be added (`contributions`). A refusal ends the run."""
        self.join(agreement)
        replies = self.reply([weighted.query for weighted in asked])
        refused = next((reply for reply in replies if isinstance(reply, Refusal)), None)
        if refused is not None:
            raise SiteRefusal(refused.reason)
        return self.framed_words(asked, replies, agreement)

    def framed_words(self, asked: Sequence[Weighted], replies: Replies, agreement: Agreement) -> np.ndarray:
        """The words of replies, behind a check word and the number of those that are out of range."""
        subsets: dict[int, float] = {}
        weights = []
        for weighted in asked:
            subset = row_subset(weighted.query)
            if id(subset) not in subsets:  # many queries are about the same rows
                subsets[id(subset)] = float(self.weights_of(subset).sum())
            weights.append(subsets[id(subset)])
        return exact_sum.frame(*encode(asked, replies, weights, agreement))

    def enrol(self) -> Enrolment:
        """The facts of this site that the server may know; raises `SiteRefusal` where its policy refuses every query."""
        policy, rows = self.policy, int(np.count_nonzero(self.row_weights))
        wrong = ["it has fewer rows than its min_rows"] if policy is not None and rows < policy.min_rows else []
        if problems := [*wrong, *self.table_problems]:
            raise SiteRefusal(f"site {self.name!r} takes part in no run: {'; '.join(problems)}.")
        A, y = self.features, self.labels
        largest = abs(A).max(axis=0).toarray().ravel() if issparse(A) else np.abs(A).max(axis=0)
        classes, reason = self._listed_classes()
        numbers, share = y.dtype.kind in "biuf", np.inf if policy is None else float(policy.max_hessian_share)
        return Enrolment(
            rows=rows, weight=float(self.row_weights.sum()), width=self.width, columns=self.columns, label_kind=y.dtype.kind,
            label_shape=y.shape[1:], classes=classes, no_classes=reason, column_bits=magnitude_bits(largest),
            label_bits=int(magnitude_bits(np.abs(y.astype(float)).max())) if numbers else 0,
            min_rows=1 if policy is None else policy.min_rows, buckets=self.buckets, max_hessian_share=share,
            varies=np.array([column.many for column in self.varying], bool), secure_sum=self.secure_sum,
        )  # fmt: skip

    def _listed_classes(self) -> tuple[np.ndarray | None, str]:
        """The classes that an enrolment lists, or why there are none. Where sums are masked, those of few rows are left out."""
        y = self.labels
        if not (self.policy is not None and self.secure_sum and y.ndim == 1 and _whole(y)):
            try:
                self.check_classes()
            except InputError as problem:
                return None, str(problem)
        classes, counts = np.unique(y, return_counts=True)
        if self.policy is not None:
            classes = classes[counts >= self.policy.min_level_rows]
        return classes.astype(str) if classes.dtype.kind == "O" else classes, ""

    @ignore_overflow
    def _answered(self, query: Query) -> Any:
        reason = blanket_reason(self.policy, query, int(np.count_nonzero(self.row_weights)))
        if reason is None and self.limits is not None:
            reason = self.limits.reason(query, self)
        try:
            if reason is None and self.policy is not None:
                reason = disclosure_reason(self.policy, query, self)
            if reason is not None:
                return Refusal(printable(f"site {self.name!r} refuses {type(query).__name__}: {reason}.", MAX_REASON))
            return answer(query, self)
        except InputError as problem:  # the query does not fit the rows of this site
            return Refusal(printable(str(problem), MAX_REASON))

    # --- rows ---

    @functools.cached_property
    def varying(self) -> list[Varying]:
        """How every column varies; empty without a policy."""
        return [] if self.policy is None else list(varying_columns(self, self.policy.min_level_rows))

    def join(self, agreement: Agreement) -> None:
        """Take part in a run with these sites; raises `SiteRefusal` where a value of few rows would show in its sums."""
        if self.agreement is agreement:
            return
        if self.policy is not None and self.secure_sum and (problems := rare_values(self, agreement.enrolments)):
            raise SiteRefusal(f"site {self.name!r} takes part in no run with these sites: {'; '.join(problems)}.")
        self.agreement = agreement

    @functools.cached_property
    def table_problems(self) -> list[str]:
        """Reasons of the policy to refuse every query, whatever it is; checked once."""
        return [] if self.policy is None else check_table(self, self.policy)

    @property
    def buckets_of_rows(self) -> np.ndarray | None:
        """The bucket of every row; None without a policy."""
        return None if self.policy is None else self._dealt

    @functools.cached_property
    def _dealt(self) -> np.ndarray:
        assert self.policy is not None
        units, used, y = np.zeros(len(self.labels), int), self.row_weights > 0, self.labels
        by_class = (
            y.ndim == 1 and _whole(y) and np.unique(y[used], return_counts=True)[1].min() >= self.policy.min_level_rows
        )
        units[used] = deal_buckets(y[used], self.policy.min_rows, self.secret, by_class, self.policy.min_level_rows)
        return units

    @property
    def buckets(self) -> int:
        """The largest number of folds: of buckets, or of rows where there is no policy."""
        return len(self.labels) if self.buckets_of_rows is None else int(self.buckets_of_rows.max()) + 1

    def weights_of(self, subset: RowSubset | None) -> np.ndarray:
        """The weight of each row in a subset; 0 outside of it."""
        return self.row_weights if subset is None else np.where(subset.mask(self), self.row_weights, 0.0)

    def shares_of(self, subset: RowSubset | None) -> np.ndarray:
        """q_l: the share of each row. A subset without rows here has those of all rows: the server gives such a site no weight."""
        weights = self.weights_of(subset)
        weights = weights if weights.any() else self.row_weights
        return weights / weights.sum()

    def dataset(self, objective: ObjectiveSpec) -> LocalDataset:
        """The rows, scaled and encoded as an objective asks."""
        return _kept(self._views, digest(objective), OBJECTIVES_KEPT, lambda: self._seen(objective))

    def _seen(self, objective: ObjectiveSpec) -> LocalDataset:
        dtype = np.dtype(objective.dtype)
        A = self.whole() if objective.scaling is None else self.features
        A = A if objective.columns is None else A[:, objective.columns]
        A = A if objective.scaling is None else scaled_rows(objective.scaling, A)
        labels = self.labels if objective.classes is None else self._codes(objective.classes)
        try:
            y = objective.loss.encode(labels)
        except InputError as error:
            raise InputError(f"site {self.name!r}: {error}") from None
        start = np.asarray(getattr(objective.loss, "start", np.zeros(objective.loss.size(A.shape[1]))), dtype)
        A = A.astype(dtype, copy=False)
        row_norms = A.row_norms() if isinstance(A, SparseRows) else np.sqrt(np.einsum("ij,ij->i", A, A))
        return LocalDataset(A, y.astype(dtype), self.shares_of(objective.subset).astype(dtype), start, row_norms)

    def whole(self) -> np.ndarray:
        """The rows as a dense array, if that fits into memory."""
        try:
            return dense_rows(self.features, f"site {self.name!r}")
        except InputError:  # its words have the number of rows
            raise InputError(
                f"site {self.name!r}: its sparse rows take too much memory written out, which this query needs. {SPARSE_METHODS}"
            ) from None

    def dense(self, objective: ObjectiveSpec) -> LocalDataset:
        """The dataset of an objective with dense rows."""
        seen = self.dataset(objective)
        if not isinstance(seen.A, SparseRows):
            return seen
        assert objective.scaling is not None, "rows stay sparse only if they are scaled"
        return seen._replace(A=scaled_rows(objective.scaling, self.whole()).astype(seen.A.dtype))

    def check_classes(self) -> None:
        """Refuse to list labels that are continuous, or of few rows: they would be values of single rows."""
        if self.labels.ndim != 1 or not _whole(self.labels):
            raise InputError(
                f"Unknown label type: the labels of site {self.name!r} are numbers (continuous), not classes. Use a "
                "regressor, or label the rows with classes."
            )
        if self.policy is not None and (problem := rare_class(self, self.policy)) is not None:
            raise InputError(f"site {self.name!r} lists no classes: {problem}.")

    def _codes(self, classes: np.ndarray) -> np.ndarray:
        self.check_classes()  # before the classes are compared: otherwise refusals would reveal labels
        if not np.isin(self.labels, classes).all():
            raise InputError(
                f"site {self.name!r} has a label that is not among the classes. Which one is in its own table: compare its "
                "labels there with the classes of the model."
            )
        return np.searchsorted(classes, self.labels).astype(float)

    # --- rounds ---

    def take_part(self, run_spec: RunSpec, r: int, exchange: int, d: Mapping[str, np.ndarray]) -> tuple[dict, bool]:
        """The site's half of an exchange: its update, and whether its client state is finite."""
        a, g = run_spec.algorithm, run_spec.regulariser
        with precision(np.dtype(run_spec.objective.dtype)):
            memory = self._start(run_spec) if r == exchange == 0 else self._recalled(run_spec, r)
            down, c = unnamed(d, self._shapes(run_spec)[exchange].broadcast), memory.c
            if exchange == 0 and memory.pending and a.finishes_rounds():
                c = close(a, g, down, c)  # this broadcast has the result of the last round
            key = client_key(run_key(run_spec.seed), r, self.number)
            rows = self._on_device(run_spec.objective)
            rule = None if self.policy is None else self._guard(run_spec.objective)
            u, c, z = _client(
                exchange,
                run_spec.batch_size,
                run_spec.capacity,
                a,
                run_spec.objective.loss,
                g,
                rows,
                down,
                c,
                key,
                rule,
            )
            if rule is not None and not (finite(u) and finite(c)):
                raise InputError(f"site {self.name!r} refuses LocalUpdate: {DIVERGED}.")
            self._keep(run_spec, ClientState(c, pending=exchange == len(a.exchanges) - 1, local=z))
            return named(u), finite(c)

    def _guard(self, objective: ObjectiveSpec) -> tuple[EffectiveRows, np.ndarray]:
        """The rule for every model inside the local steps, and the secret of the mini-batches."""
        assert self.policy is not None
        _, y, q, _ = self._on_device(objective)
        share = np.zeros(len(q), q.dtype)
        share[: len(self.labels)] = self.shares_of(None)
        return EffectiveRows.of(self.policy.min_rows, objective.loss, y, q, share), secret_words(self.secret)

    def finish_round(self, run_spec: RunSpec, r: int, d: Mapping[str, np.ndarray]) -> bool:
        """Receive the result of a round that this site took part in; is the client state finite?"""
        with precision(np.dtype(run_spec.objective.dtype)):
            memory = self._recalled(run_spec, r + 1)
            c = close(
                run_spec.algorithm, run_spec.regulariser, unnamed(d, self._shapes(run_spec)[0].broadcast), memory.c
            )
            self._keep(run_spec, ClientState(c, False, memory.local))
            return finite(c)

    def remember(self, run_spec: RunSpec, c: PyTree, pending: bool = False) -> None:
        """Restore the client state of a run."""
        self._keep(run_spec, ClientState(c, pending))

    def recall(self, run_spec: RunSpec) -> ClientState:
        """The client state of a run; the initial one before its first round."""
        known = self.memories.get(digest(run_spec))
        return self._start(run_spec) if known is None else known

    def _start(self, run_spec: RunSpec) -> ClientState:
        with precision(np.dtype(run_spec.objective.dtype)):
            return ClientState(run_spec.algorithm.init(jnp.asarray(run_spec.x0))[1])

    def _recalled(self, run_spec: RunSpec, r: int) -> ClientState:
        """The client state after the rounds before r; a site that takes part in every round must have it."""
        memory = self.recall(run_spec)
        if run_spec.everyone and r > 0 and digest(run_spec) not in self.memories and jax.tree.leaves(memory.c):
            raise StateLost(
                f"site {self.name!r} was asked for round {r} of a run whose client state it does not have; start "
                "the run again."
            )
        return memory

    def _keep(self, run_spec: RunSpec, memory: ClientState) -> None:
        self.memories[digest(run_spec)] = memory
        self.memories.move_to_end(digest(run_spec))
        if len(self.memories) > RUNS_KEPT:
            self.memories.popitem(last=False)

    def _on_device(self, objective: ObjectiveSpec) -> tuple[Any, ...]:
        """The rows for a compiled round: of a small site with rows of weight 0 added, so that such sites share programs."""
        return _kept(self._arrays, digest(objective), OBJECTIVES_KEPT, lambda: self.dense(objective).padded())

    def _shapes(self, run_spec: RunSpec) -> list[ExchangeMessages]:
        return message_shapes(run_spec.algorithm, run_spec.regulariser, run_spec.x0.size, run_spec.x0.dtype)


def scaled_rows(scaling: FeatureScaling, A: Any) -> Any:
    """Rows centred and scaled, with a last column of ones for the intercept. Sparse rows stay sparse."""
    if issparse(A):
        return SparseRows(A, scaling.centre, scaling.scale, scaling.intercept)
    width = scaling.centre.size
    Z = np.empty((len(A), width + int(scaling.intercept)))
    np.subtract(A, scaling.centre, out=Z[:, :width])  # in place: rows may be many
    Z[:, :width] /= scaling.scale
    Z[:, width:] = 1.0
    return Z


def _check_rows(name: str, A: Any, y: np.ndarray, weights: np.ndarray | None, columns: Sequence[str] | None) -> None:
    """Check the rows of a site before the first query."""
    if A.ndim != 2 or y.ndim not in (1, 2) or A.shape[0] != len(y):
        raise InputError(f"site {name!r}: features of shape {A.shape} and labels of shape {y.shape} do not match.")
    if A.dtype.kind not in "biuf":
        raise InputError(f"site {name!r}: features must be numbers; they are {A.dtype}. Encode words as numbers.")
    for what, values in (("features", A.data if issparse(A) else A), ("labels", y)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"site {name!r} has {what} that are NaN or infinite. Drop those rows or impute them.")
    check_magnitudes(A, f"features of site {name!r}", columns)
    check_magnitudes(y, f"labels of site {name!r}")
    if weights is None:
        return
    usable = np.isfinite(weights) & (np.asarray(weights) >= 0)
    if np.shape(weights) != (len(y),) or not usable.all() or not np.any(weights):
        raise InputError(f"site {name!r}: row weights must be one finite number >= 0 per row, and not all zero.")
    check_row_weights(weights, name)


def _whole(labels: np.ndarray) -> bool:
    """Whether labels are words or whole numbers."""
    return labels.dtype.kind != "f" or bool((labels == np.rint(labels)).all())


def _kept(table: OrderedDict[str, Any], key: str, most: int, make: Callable[[], Any]) -> Any:
    if key not in table:
        table[key] = make()
        if len(table) > most:
            table.popitem(last=False)
    table.move_to_end(key)
    return table[key]


def room_for(share: float) -> float:
    """The bytes that a site with this share of all rows in this process may keep."""
    return ROOM * share


def _make_room(table: OrderedDict[str, Any], room: float) -> None:
    """Drop the oldest entries until the rows that are kept fit. Sparse rows are not copies and do not count."""
    while table and sum(getattr(kept[0], "nbytes", 0) for kept in table.values()) > room:
        table.popitem(last=False)


def finite(tree: Any) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


# --- the stages of a round at a site, each compiled on its own ---

close = jit(lambda a, g, d, c: a.finish_round(g, d, c))


@jit(static_argnames=("exchange", "batch_size", "capacity"))
def _client(exchange, batch_size, capacity, a: Algorithm, loss, g, rows, d, c, key, guard=None):
    A, y, q, size = rows
    f = FullGradient(loss, A, y, q)
    if batch_size is not None:
        f = MiniBatch(loss, A, y, q, jnp.int32(0), size, capacity, batch_size)
    if guard is not None:
        f = GuardedLoss(f, loss, A, y, *guard)
    return a.exchanges[exchange].client_update(f, g, d, c, key)
