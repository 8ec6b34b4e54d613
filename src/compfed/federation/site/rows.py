"""The rows of a site: features, labels, weights and folds, and the coordinates in which an objective sees them."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import issparse

from compfed._utils.validation import check_magnitudes, check_sample_weight, check_unmasked
from compfed.data.encoding import events_as_numbers
from compfed.data.raw_table import RawColumn, RawTable, used_columns
from compfed.errors import InputError
from compfed.federation.codec import IN_THIS_PROCESS, digest
from compfed.federation.enrolment import LABEL
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import SiteLoss, WithOffset
from compfed.problem.padded_dataset import SPARSE_METHODS, LocalDataset, SparseRows, dense_rows
from compfed.schema import Schema
from compfed.splits import BUCKETS, Fold, RowSubset, content_order, deal_buckets

OBJECTIVES_KEPT = 16  # rows in the coordinates of a view are a copy of the table: the oldest go first
ROOM = 2**30  # bytes of such copies that are kept from one message to the next; beyond, they are made anew
FeatureMatrix: TypeAlias = Any  # an array, or a sparse matrix of scipy


@dataclass(frozen=True)
class FileTable:
    """The table of a site as it is in its file, and the schema that encodes it.

    Parameters
    ----------
    raw : RawTable, optional
        For `Tabulate`.
    schema : Schema, optional
        The schema that the rows are encoded with.
    proposal : Schema, optional
        Without `schema`: the columns and the label of the table, for an agreement with other sites.
    agreed : bool
        Whether the schema was given to the site, rather than proposed from its own table.
    not_encoded : str
        Why the rows cannot be encoded, for others to read. The site then answers `Tabulate` alone.
    """

    raw: RawTable | None = None
    schema: Schema | None = None
    proposal: Schema | None = None
    agreed: bool = False
    not_encoded: str = ""

    @property
    def proposed(self) -> Schema | None:
        """The schema, or what stands for it until the sites agree on one."""
        return self.proposal if self.schema is None else self.schema


@dataclass(frozen=True)
class FoldOrder:
    """The order of rows by fold: sums over the rows of some folds then leave out whole blocks."""

    folds: int
    seed: int
    by_class: bool
    split: Fold = field(compare=False)

    @classmethod
    def of(cls, subsets: Iterable[RowSubset | None]) -> FoldOrder | None:
        """That of the first fold among the subsets of a message; None without one."""
        fold = next((subset for subset in subsets if isinstance(subset, Fold)), None)
        return None if fold is None else cls(fold.folds, fold.seed, fold.by_class, fold)


class Dealing(NamedTuple):
    """How a site with a policy deals its rows into buckets."""

    min_rows: int
    min_level_rows: int
    secret: bytes


class Rows:
    """Rows and labels of one site.

    Parameters
    ----------
    features : array or scipy.sparse matrix of shape (rows, columns)
    labels : array of shape (rows,) or (rows, outcomes)
    name : str
        Of the site.
    index : int
        Position of the site in the federation.
    number : int, optional
        Source of its random draws; `index` unless given. A site keeps its number when other sites join.
    sample_weight : array of shape (rows,), optional
    columns : sequence of str, optional
        Names of the columns.
    offset : array of shape (rows,), optional
        Added to the prediction of each row.
    strata : array of shape (rows,), optional
        The stratum of each row, for a loss of a whole site. It stays at the site.
    splits : sequence of (train, test) masks
        For cross-validation with folds that were given row by row.
    room : float
        Bytes of scaled rows that are kept between messages.
    file : FileTable, optional
    """

    def __init__(
        self,
        features: FeatureMatrix,
        labels: np.ndarray,
        *,
        name: str,
        index: int,
        number: int | None = None,
        sample_weight: np.ndarray | None = None,
        columns: Sequence[str] | None = None,
        offset: np.ndarray | None = None,
        strata: np.ndarray | None = None,
        splits: Sequence[tuple[np.ndarray, np.ndarray]] = (),
        room: float = ROOM,
        file: FileTable = FileTable(),  # noqa: B008  # frozen
    ):
        for what, values in (("features", features), ("labels", labels), ("row weights", sample_weight)):
            check_unmasked(values, f"site {name!r}: {what}")
        features = features.tocsr() if issparse(features) else np.asarray(features)
        labels = np.asarray(labels)
        _check_rows(name, features, labels, sample_weight, columns)
        self.features, self.labels, self.name, self.index = features, labels, name, index
        self.every_feature = features  # those that a run leaves out included (`leave_out`)
        self.number = index if number is None else number
        self.weights = np.ones(len(labels)) if sample_weight is None else sample_weight
        self.weighted = sample_weight is not None
        self.offset = None if offset is None else _checked_offset(name, offset, labels)
        self.strata = None if strata is None else _codes_of_strata(name, strata, len(labels))
        self.columns = self.every_column = None if columns is None else tuple(columns)
        self.left_out: tuple[int, ...] = ()
        self.splits, self.room, self.file = splits, room, file
        if file.raw is not None and file.raw.rows != len(labels):
            raise InputError(f"site {name!r}: the table has {file.raw.rows} rows, and there are {len(labels)} labels.")
        self.dealing: Dealing | None = None  # of a site with a policy
        self._agreed = max(BUCKETS)  # buckets that all sites of a run have
        self.sorted_columns: dict[str, np.ndarray] = {}  # for `Tabulate`
        self._names: WeakKeyDictionary[ObjectiveSpec, str] = WeakKeyDictionary()
        self._weights: WeakKeyDictionary[RowSubset, np.ndarray] = WeakKeyDictionary()
        self._views: OrderedDict[tuple[str, FoldOrder | None], LocalDataset] = OrderedDict()
        self._arrays: OrderedDict[str, tuple[Any, ...]] = OrderedDict()

    @classmethod
    def to_agree(cls, raw: RawTable, proposal: Schema, reason: str, *, name: str, index: int) -> Rows:
        """A table that cannot be encoded before the sites agree on a schema: its site answers `Tabulate` alone."""
        file = FileTable(raw, proposal=proposal, not_encoded=reason)
        return cls(np.zeros((raw.rows, 0)), np.zeros(raw.rows), name=name, index=index, file=file)

    @property
    def width(self) -> int:
        return self.features.shape[1]

    def leave_out(self, places: Iterable[int]) -> None:
        """Take part without some columns, which all sites of a run leave out."""
        places = tuple(int(j) for j in places)
        if places == self.left_out:
            return
        kept = [j for j in range(self.every_feature.shape[1]) if j not in places]
        self.features = self.every_feature[:, kept] if places else self.every_feature
        if self.every_column is not None:
            self.columns = tuple(self.every_column[j] for j in kept)
        self.left_out = places
        for known in (self._names, self._views, self._arrays):
            known.clear()

    @functools.cached_property
    def used(self) -> np.ndarray:
        """The rows that have a weight."""
        return self.weights > 0

    @functools.cached_property
    def count(self) -> int:
        """The number of rows that have a weight."""
        return int(np.count_nonzero(self.weights))

    def as_read(self) -> tuple[FeatureMatrix, np.ndarray]:
        """The rows before they were encoded, as numbers and words: the same whatever the schema, for the ledger."""
        raw = self.file.raw
        if raw is None:
            return self.every_feature, self.labels
        columns = list(raw.columns.values())
        numbers = [column.values for column in columns if column.is_numeric]
        words = [column.values for column in columns if not column.is_numeric]
        text = np.array([repr([values[i] for values in words]) for i in range(raw.rows)], object)
        return np.column_stack(numbers) if numbers else np.zeros((len(text), 0)), text

    @functools.cached_property
    def table(self) -> RawTable:
        """The table as it is in its file; of a site without one its encoded columns, and its labels last."""
        if self.file.raw is not None and self.file.proposed is not None:
            return events_as_numbers(used_columns(self.file.raw, self.file.proposed), self.file.proposed)
        return _table_of_numbers(self)

    # --- subsets ---

    @property
    def buckets_of_rows(self) -> np.ndarray | None:
        """The bucket of every row; None without a policy. Where other sites have fewer, buckets are joined."""
        return None if self.dealing is None else self._dealt % self.agreed_buckets

    @property
    def agreed_buckets(self) -> int:
        """The number of buckets of every site of a run."""
        return min(self._agreed, self.buckets)

    def agree_on_buckets(self, count: int) -> None:
        """Use so many buckets, as all sites of a run do."""
        if count != self._agreed:
            self._agreed = count
            for table in (self._weights, self._views, self._arrays):
                table.clear()

    @functools.cached_property
    def _dealt(self) -> np.ndarray:
        assert self.dealing is not None
        units, used, y = np.zeros(len(self.labels), int), self.used, self.labels
        if y.ndim == 2 and y.shape[1] in (2, 3) and np.isin(y[:, -1], (0, 1)).all():  # of survival data: by event
            y = y[:, -1]
        least = self.dealing.min_level_rows
        by_class = y.ndim == 1 and is_whole(y) and np.unique(y[used], return_counts=True)[1].min() >= least
        order = content_order(_contents(*self.as_read(), used), self.dealing.secret)
        units[used] = deal_buckets(y[used], self.dealing.min_rows, order, by_class, least)
        return units

    @property
    def buckets(self) -> int:
        """The largest number of folds: of buckets, or of rows where there is no policy."""
        return len(self.labels) if self.dealing is None else int(self._dealt.max()) + 1

    def weights_of(self, subset: RowSubset | None) -> np.ndarray:
        """The weight of each row in a subset; 0 outside of it."""
        if subset is None:
            return self.weights
        if subset not in self._weights:  # a cross-validation asks in every message
            self._weights[subset] = np.where(subset.mask(self), self.weights, 0.0)
        return self._weights[subset]

    def shares_of(self, subset: RowSubset | None) -> np.ndarray:
        """q_l: the share of each row. A subset without rows here has those of all rows: such a site has no weight in the sum."""
        weights = self.weights_of(subset)
        weights = weights if weights.any() else self.weights
        return weights / weights.sum()

    # --- as an objective sees them ---

    def dataset(self, objective: ObjectiveSpec, order: FoldOrder | None = None) -> LocalDataset:
        """The rows, scaled and encoded as an objective asks, in their own order or by fold.

        Objectives that differ in their subset share one copy of the rows.
        """
        key = self.view_name(objective), order
        seen = kept(self._views, key, OBJECTIVES_KEPT, lambda: self._seen(objective, order))
        q = self.shares_of(objective.subset).astype(seen.A.dtype)
        return seen._replace(q=q if seen.order is None else q[seen.order])

    def view_name(self, objective: ObjectiveSpec) -> str:
        """What two objectives share that differ in their subset alone."""
        if objective not in self._names:
            name = digest(objective)
            shared = name if name.startswith(IN_THIS_PROCESS) else digest(replace(objective, subset=None))
            self._names[objective] = shared
        return self._names[objective]

    def _seen(self, objective: ObjectiveSpec, order: FoldOrder | None) -> LocalDataset:
        dtype = np.dtype(objective.dtype)
        A = self.whole() if objective.scaling is None else self.features
        A = A if objective.columns is None else A[:, objective.columns]
        A = A if objective.scaling is None else scaled_rows(objective.scaling, A)
        labels = self.labels if objective.classes is None else self._codes(objective.classes)
        if isinstance(objective.loss, WithOffset):
            if self.offset is None:
                raise InputError(f"site {self.name!r}: its rows have no offset.")
            labels = np.column_stack([np.asarray(labels, float), self.offset])
        loss = objective.loss
        try:
            y = (
                loss.encode(labels, self.strata, self.offset, self.weights)
                if isinstance(loss, SiteLoss)
                else loss.encode(labels)
            )
        except InputError as error:
            raise InputError(f"site {self.name!r}: {error}") from None
        start = np.asarray(getattr(objective.loss, "start", np.zeros(objective.loss.size(A.shape[1]))), dtype)
        A = A.astype(dtype, copy=False)
        if isinstance(A, SparseRows):
            return LocalDataset(A, y.astype(dtype), np.empty(0), start, A.row_norms())
        places = None if order is None else np.argsort(order.split.assign_folds(self), kind="stable")
        if places is not None:
            A, y = A[places], y[places]
        row_norms = np.sqrt(np.einsum("ij,ij->i", A, A))
        return LocalDataset(A, y.astype(dtype), np.empty(0), start, row_norms, places)

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

    def on_device(self, objective: ObjectiveSpec) -> tuple[Any, ...]:
        """The rows for a compiled round: of a small site with rows of weight 0 added, so that such sites share programs."""
        return kept(self._arrays, digest(objective), OBJECTIVES_KEPT, lambda: self.dense(objective).padded())

    def make_room(self) -> None:
        """Drop the oldest copies until those that are kept fit. Sparse rows are not copies and do not count."""
        for table in (self._views, self._arrays):
            while table and sum(getattr(copy[0], "nbytes", 0) for copy in table.values()) > self.room:
                table.popitem(last=False)

    def check_classes(self) -> None:
        """Refuse to list labels that are continuous: they would be values of single rows."""
        if self.labels.ndim != 1 or not is_whole(self.labels):
            raise InputError(
                f"Unknown label type: the labels of site {self.name!r} are numbers (continuous), not classes. Use a "
                "regressor, or label the rows with classes."
            )

    def _codes(self, classes: np.ndarray) -> np.ndarray:
        self.check_classes()
        if not np.isin(self.labels, classes).all():
            raise InputError(
                f"site {self.name!r} has a label that is not among the classes. Which one is in its own table: compare its "
                "labels there with the classes of the model."
            )
        return np.searchsorted(classes, self.labels).astype(float)


def _contents(features: FeatureMatrix, labels: np.ndarray, used: np.ndarray) -> list[bytes]:
    """What is in each of the rows that are used, as bytes."""
    words = labels if labels.dtype.kind not in "biuf" else np.asarray(labels, float) + 0.0  # no -0.0
    found = []
    for i in np.flatnonzero(used):
        row = features[i].toarray() if issparse(features) else features[i]
        label = words[i].tobytes() if words.dtype.kind == "f" else str(words[i]).encode()
        found.append((np.asarray(row, float).ravel() + 0.0).tobytes() + label)
    return found


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
    check_sample_weight(weights, name)


def _codes_of_strata(name: str, strata: np.ndarray, rows: int) -> np.ndarray:
    strata = np.asarray(strata)
    if strata.shape != (rows,):
        raise InputError(f"site {name!r}: strata must be one for each row.")
    return np.unique(strata.astype(str) if strata.dtype.kind == "O" else strata, return_inverse=True)[1].astype(float)


def _checked_offset(name: str, offset: np.ndarray, labels: np.ndarray) -> np.ndarray:
    check_unmasked(offset, f"site {name!r}: offset")
    offset = np.asarray(offset)
    if offset.shape != (len(labels),) or offset.dtype.kind not in "biuf" or not np.isfinite(offset).all():
        raise InputError(f"site {name!r}: offset must be one finite number per row.")
    check_magnitudes(offset, f"offset of site {name!r}")
    return offset.astype(float)


def _table_of_numbers(rows: Rows) -> RawTable:
    A, names = rows.whole(), rows.columns or tuple(map(str, range(rows.width)))
    label = LABEL
    while label in names:
        label += "_"
    y = rows.labels.reshape(len(rows.labels), -1)
    labels = [label] if rows.labels.ndim == 1 else [f"{label} {k + 1}" for k in range(y.shape[1])]
    columns = {name: RawColumn(np.asarray(A[:, j], float)) for j, name in enumerate(names)}
    for k, name in enumerate(labels):
        words = y.dtype.kind not in "biuf"
        columns[name] = RawColumn(y[:, k].astype(object) if words else y[:, k].astype(float))
    return RawTable(rows.name, columns, np.arange(len(y)), "row")


def is_whole(labels: np.ndarray) -> bool:
    """Whether labels are words or whole numbers."""
    return labels.dtype.kind != "f" or bool((labels == np.rint(labels)).all())


def kept(table: OrderedDict[Any, Any], key: Hashable, most: int, make: Callable[[], Any]) -> Any:
    """The entry of a table of the last ones, made if it is not there."""
    if key not in table:
        table[key] = make()
        if len(table) > most:
            table.popitem(last=False)
    table.move_to_end(key)
    return table[key]


def room_for(share: float) -> float:
    """The bytes that a site with this share of all rows in this process may keep."""
    return ROOM * share
