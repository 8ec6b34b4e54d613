"""A site: its own rows, its own memory of the rounds it took part in, and its own refusals. It knows no other site."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import issparse

from compfed._utils.compilation import compiled
from compfed._utils.precision import precision
from compfed._utils.text import printable, shapes_shown
from compfed._utils.validation import check_sizes, check_weights, unmasked
from compfed.algorithms.base import Algorithm
from compfed.algorithms.contract import Shapes, message_shapes
from compfed.errors import InputError
from compfed.federation.codec import digest, named, payload, unnamed
from compfed.federation.limits import MAX_REASON, QueryLimits
from compfed.federation.queries import Question, Refused
from compfed.federation.site.disclosure import Refusals
from compfed.federation.spec import Job, Part, View
from compfed.losses.base import unwarned
from compfed.problem.local_loss import FullGradient, MiniBatch
from compfed.problem.sparse_rows import SPARSE_METHODS, SparseRows, written_out
from compfed.sampling import client_key, run_key

VIEWS_KEPT = 16  # rows in the coordinates of a view are a copy of the table: the oldest go first
ROOM = 2**30  # bytes of such copies that are kept from one message to the next; beyond, they are made anew
JOBS_KEPT = 4096
SMALL, LEAST_ROOM = 256, 32  # rows up to which a site is padded to a power of two for its rounds, and at least this


class StateLost(InputError):
    """A site was asked to go on with a job it does not remember."""


class Look(NamedTuple):
    """The rows of a site as a view has them."""

    A: Any  # an array, or `SparseRows`
    y: np.ndarray
    q: np.ndarray
    start: np.ndarray
    lengths: np.ndarray  # norms of the rows
    __repr__ = shapes_shown


class Memory(NamedTuple):
    """What a site remembers of a job."""

    c: Any
    unheard: bool = False  # did it answer a round whose result it has not heard?
    local: Any = None  # the local model it ended with, to look at


class Site:
    """Rows and labels of one site. `index` is its place among the sites, and the source of its random draws."""

    def __init__(
        self,
        features: Any,  # an array, or a sparse matrix of scipy
        labels: np.ndarray,
        *,
        name: str,
        index: int,
        number: int | None = None,
        row_weights: np.ndarray | None = None,
        columns: Sequence[str] | None = None,
        splits: Sequence[tuple[np.ndarray, np.ndarray]] = (),
        refuses: Refusals | None = None,
        limits: QueryLimits | None = QueryLimits(),  # noqa: B008  # frozen; None for a site in the process of its server
        room: float = ROOM,
    ):
        for what, values in (("features", features), ("labels", labels), ("row weights", row_weights)):
            unmasked(values, f"site {name!r}: {what}")
        features = features.tocsr() if issparse(features) else np.asarray(features)
        labels = np.asarray(labels)
        _check_rows(name, features, labels, row_weights, columns)
        self.features, self.labels, self.name, self.index = features, labels, name, index
        self.number = index if number is None else number  # of its random draws: a site keeps them when others come
        self.row_weights = np.ones(len(labels)) if row_weights is None else row_weights
        self.columns = None if columns is None else tuple(columns)
        self.splits = splits  # (train, test) masks, for folds that were given row by row
        self.refuses = Refusals() if refuses is None else refuses
        self.limits = limits
        self.room = room  # bytes of views kept; of several sites in one process, each has its share
        self._views: OrderedDict[str, Look] = OrderedDict()
        self._arrays: OrderedDict[str, tuple[Any, ...]] = OrderedDict()
        self.memories: OrderedDict[str, Memory] = OrderedDict()  # by the hash of the job

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {len(self.labels)} rows, {self.width} columns)"

    @property
    def width(self) -> int:
        return self.features.shape[1]

    def answer(self, questions: Sequence[Question]) -> tuple[Any, ...]:
        """The answers to one message; a refusal is an answer too, and the other questions are not affected by it."""
        answers, size = [], 0
        most = None if self.limits is None else self.limits.max_reply_bytes
        for question in questions:
            if most is not None and size > most:
                answers.append(
                    Refused(f"site {self.name!r}: the reply to one message has at most {most} bytes (max_reply_bytes).")
                )
                continue
            answers.append(self._answered(question))
            size += payload(answers[-1], set())
        _make_room(self._views, self.room)
        _make_room(self._arrays, self.room)
        return tuple(answers)

    @unwarned
    def _answered(self, question: Question) -> Any:
        reason = self.refuses.blanket_reason(question, len(self.labels))
        if reason is None and self.limits is not None:
            reason = self.limits.reason(question, self)
        if reason is None:
            reason = self.refuses.reason(question, len(self.labels))
        if reason is not None:
            return Refused(printable(f"site {self.name!r} refuses {type(question).__name__}: {reason}.", MAX_REASON))
        try:
            return question.answer(self)
        except InputError as problem:  # what the server asked for does not fit the rows here
            return Refused(printable(str(problem), MAX_REASON))

    # --- rows ---

    def weights_of(self, part: Part | None) -> np.ndarray:
        """How much each row counts in a part; 0 for those outside."""
        return self.row_weights if part is None else np.where(part.mask(self), self.row_weights, 0.0)

    def shares_of(self, part: Part | None) -> np.ndarray:
        """q_l: the share of each row. Of a part without rows here, all: the server gives such a site no weight."""
        weights = self.weights_of(part)
        weights = weights if weights.any() else self.row_weights
        return weights / weights.sum()

    def look(self, view: View) -> Look:
        """The rows as the view has them."""
        return _kept(self._views, digest(view), VIEWS_KEPT, lambda: self._seen(view))

    def _seen(self, view: View) -> Look:
        dtype = np.dtype(view.dtype)
        A = self.whole() if view.frame is None else self.features
        A = A if view.columns is None else A[:, view.columns]
        A = A if view.frame is None else view.frame.features(A)
        labels = self.labels if view.classes is None else self._codes(view.classes)
        try:
            y = view.loss.encode(labels)
        except InputError as error:
            raise InputError(f"site {self.name!r}: {error}") from None
        start = np.asarray(getattr(view.loss, "start", np.zeros(view.loss.size(A.shape[1]))), dtype)
        A = A.astype(dtype, copy=False)
        lengths = A.lengths() if isinstance(A, SparseRows) else np.sqrt(np.einsum("ij,ij->i", A, A))
        return Look(A, y.astype(dtype), self.shares_of(view.part).astype(dtype), start, lengths)

    def whole(self) -> np.ndarray:
        """The rows as an array: what only estimators can do without."""
        try:
            return written_out(self.features, f"site {self.name!r}")
        except InputError:  # its words have the number of rows
            raise InputError(
                f"site {self.name!r}: its sparse rows take too much memory written out, which this query needs. {SPARSE_METHODS}"
            ) from None

    def dense(self, view: View) -> Look:
        """The rows as the view has them, as an array."""
        seen = self.look(view)
        if not isinstance(seen.A, SparseRows):
            return seen
        assert view.frame is not None, "only a frame keeps rows sparse"
        return seen._replace(A=view.frame.features(self.whole()).astype(seen.A.dtype))

    def check_classes(self) -> None:
        """Labels to be listed must be names: numbers of their own for every row would be the rows' own secret."""
        y = self.labels
        if y.ndim != 1 or (y.dtype.kind == "f" and (y != np.rint(y)).any()):
            raise InputError(
                f"Unknown label type: the labels of site {self.name!r} are numbers (continuous), not classes. Use a "
                "regressor, or label the rows with classes."
            )

    def _codes(self, classes: np.ndarray) -> np.ndarray:
        self.check_classes()  # for this reason alone, whatever the classes: else refusals would give the labels away
        if not np.isin(self.labels, classes).all():
            raise InputError(
                f"site {self.name!r} has a label that is not among the classes. Which one is in its own table: compare its "
                "labels there with the classes of the model."
            )
        return np.searchsorted(classes, self.labels).astype(float)

    # --- rounds ---

    def take_part(self, job: Job, r: int, exchange: int, d: Mapping[str, np.ndarray]) -> tuple[dict, bool]:
        """The site's half of an exchange: what it answers, and whether its memory is finite."""
        a, g = job.algorithm, job.regulariser
        with precision(np.dtype(job.view.dtype)):
            memory = self._start(job) if r == exchange == 0 else self._recalled(job, r)
            down, c = unnamed(d, self._shapes(job)[exchange].down), memory.c
            if exchange == 0 and memory.unheard and a.closes():  # this message has the result of the last round
                c = close(a, g, down, c)
            key = client_key(run_key(job.seed), r, self.number)
            rows = self._on_device(job.view)
            u, c, z = _client(exchange, job.batch_size, job.capacity, a, job.view.loss, g, rows, down, c, key)
            self._keep(job, Memory(c, unheard=exchange == len(a.exchanges) - 1, local=z))
            return named(u), finite(c)

    def hear(self, job: Job, r: int, d: Mapping[str, np.ndarray]) -> bool:
        """The result of a round this site took part in."""
        with precision(np.dtype(job.view.dtype)):
            memory = self._recalled(job, r + 1)
            c = close(job.algorithm, job.regulariser, unnamed(d, self._shapes(job)[0].down), memory.c)
            self._keep(job, Memory(c, False, memory.local))
            return finite(c)

    def remember(self, job: Job, c: Any, unheard: bool = False) -> None:
        """Take up a job where it was left."""
        self._keep(job, Memory(c, unheard))

    def recall(self, job: Job) -> Memory:
        """What it remembers of a job: nothing but the start, if it took no part yet."""
        known = self.memories.get(digest(job))
        return self._start(job) if known is None else known

    def _start(self, job: Job) -> Memory:
        with precision(np.dtype(job.view.dtype)):
            return Memory(job.algorithm.init(jnp.asarray(job.x0))[1])

    def _recalled(self, job: Job, r: int) -> Memory:
        """The memory of the rounds before r. Who takes part in every round must have one, if there is any to have."""
        memory = self.recall(job)
        if job.everyone and r > 0 and digest(job) not in self.memories and jax.tree.leaves(memory.c):
            raise StateLost(
                f"site {self.name!r} was asked for round {r} of a run whose earlier rounds it does not remember; start "
                "the run again."
            )
        return memory

    def _keep(self, job: Job, memory: Memory) -> None:
        self.memories[digest(job)] = memory
        self.memories.move_to_end(digest(job))
        if len(self.memories) > JOBS_KEPT:
            self.memories.popitem(last=False)

    def _on_device(self, view: View) -> tuple[Any, ...]:
        """The rows for a compiled round: of a small site with rows of weight 0 added, so that such sites share programs."""

        def padded() -> tuple[Any, ...]:
            A, y, q = self.dense(view)[:3]
            room = max(LEAST_ROOM, 1 << (len(q) - 1).bit_length()) if len(q) <= SMALL else len(q)
            last = np.minimum(np.arange(room), len(q) - 1)  # the last row again: a loss may be infinite at made-up rows
            weight = np.where(np.arange(room) < len(q), q[last], 0.0).astype(q.dtype)
            return jax.device_put((A[last], y[last], weight, np.int32(len(q))))  # which compiles nothing

        return _kept(self._arrays, digest(view), VIEWS_KEPT, padded)

    def _shapes(self, job: Job) -> list[Shapes]:
        return message_shapes(job.algorithm, job.regulariser, job.x0.size, job.x0.dtype)


def _check_rows(name: str, A: Any, y: np.ndarray, weights: np.ndarray | None, columns: Sequence[str] | None) -> None:
    """A site checks its own rows, before anybody asks about them."""
    if A.ndim != 2 or y.ndim not in (1, 2) or A.shape[0] != len(y):
        raise InputError(f"site {name!r}: features of shape {A.shape} and labels of shape {y.shape} do not match.")
    if A.dtype.kind not in "biuf":
        raise InputError(f"site {name!r}: features must be numbers; they are {A.dtype}. Encode words as numbers.")
    for what, values in (("features", A.data if issparse(A) else A), ("labels", y)):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise InputError(f"site {name!r} has {what} that are NaN or infinite. Drop those rows or impute them.")
    check_sizes(A, f"features of site {name!r}", columns)
    check_sizes(y, f"labels of site {name!r}")
    if weights is None:
        return
    usable = np.isfinite(weights) & (np.asarray(weights) >= 0)
    if np.shape(weights) != (len(y),) or not usable.all() or not np.any(weights):
        raise InputError(f"site {name!r}: row weights must be one finite number >= 0 per row, and not all zero.")
    check_weights(weights, name)


def _kept(table: OrderedDict[str, Any], key: str, most: int, make: Callable[[], Any]) -> Any:
    if key not in table:
        table[key] = make()
        if len(table) > most:
            table.popitem(last=False)
    table.move_to_end(key)
    return table[key]


def room_for(share: float) -> float:
    """The room of a site that has this share of the rows in this process."""
    return ROOM * share


def _make_room(table: OrderedDict[str, Any], room: float) -> None:
    """Forget the oldest until the rows kept, which come first in an entry, fit; sparse ones are the site's own, no copy."""
    while table and sum(getattr(kept[0], "nbytes", 0) for kept in table.values()) > room:
        table.popitem(last=False)


def finite(tree: Any) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


# --- the stages that run at a site, each compiled on its own ---

close = compiled(lambda a, g, d, c: a.close(g, d, c))


@compiled(static_argnames=("exchange", "batch_size", "capacity"))
def _client(exchange, batch_size, capacity, a: Algorithm, loss, g, rows, d, c, key):
    A, y, q, size = rows
    f = FullGradient(loss, A, y, q)
    if batch_size is not None:
        f = MiniBatch(loss, A, y, q, jnp.int32(0), size, capacity, batch_size)
    return a.exchanges[exchange].client(f, g, d, c, key)
