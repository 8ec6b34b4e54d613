"""A site: its rows, the guard in front of them, and its memory of runs. It knows no other site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import issparse

from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.federation.accounting import payload
from compfed.federation.enrolment import Agreement, Enrolment, magnitude_bits
from compfed.federation.limits import MAX_REASON, QueryLimits
from compfed.federation.query import FieldValues, Query, Refusal, Replies, SiteRefusal, Weighted
from compfed.federation.site.answers import Answers
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.guard import Guard
from compfed.federation.site.memory import ClientMemory
from compfed.federation.site.rows import Dealing, Rows, is_whole
from compfed.federation.site.tabulation import table_facts
from compfed.losses.base import ignore_overflow
from compfed.splits import RowSubset


class Site:
    """Rows and labels of one site, and its replies to queries.

    Parameters
    ----------
    rows : Rows
    policy : DisclosurePolicy, optional
        The rules of the site for what it reveals; without one there are none.
    secret : bytes
        Of the site alone: decides which rows share a bucket, and the mini-batches.
    secure_sum : bool
        Whether its sums are masked. Values of few rows are then allowed where three sites have them.
    limits : QueryLimits or None
        None for a site in the process of its server.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        policy: DisclosurePolicy | None = None,
        secret: bytes = b"",
        secure_sum: bool = False,
        limits: QueryLimits | None = QueryLimits(),  # noqa: B008  # frozen
    ):
        self.rows = rows
        if policy is not None:
            rows.dealing = Dealing(policy.min_rows, policy.min_level_rows, secret)
        self.guard = Guard(rows, policy, limits, secure_sum)
        self.memory = ClientMemory(rows, policy, secret)

    @property
    def name(self) -> str:
        return self.rows.name

    @property
    def policy(self) -> DisclosurePolicy | None:
        return self.guard.policy

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {len(self.rows.labels)} rows, {self.rows.width} columns)"

    def reply(self, queries: Sequence[Query]) -> Replies:
        """The replies to one message. A refusal is a reply too; it does not affect the other queries."""
        refusals = [self._refusal(query) for query in queries]
        admitted = [query for query, refused in zip(queries, refusals, strict=True) if refused is None]
        replies, size, limits, message = list[object](), 0, self.guard.limits, Answers(admitted, self)
        for query, refused in zip(queries, refusals, strict=True):
            if limits is not None and size > limits.max_reply_bytes:
                most = f"at most {limits.max_reply_bytes} bytes (max_reply_bytes)"
                replies.append(Refusal(f"site {self.name!r}: the reply to one message has {most}."))
                continue
            replies.append(self._answered(query, message) if refused is None else refused)
            size += payload(replies[-1], set()) if limits is not None else 0
        self.rows.make_room()
        return tuple(replies)

    def contributions(self, asked: Sequence[Weighted], agreement: Agreement) -> list[FieldValues | Refusal]:
        """What this site adds to the sums of one message; a refusal where it gives no reply."""
        replies = self.reply([weighted.query for weighted in asked])
        weights: dict[RowSubset | None, float] = {}
        found: list[FieldValues | Refusal] = []
        for weighted, reply in zip(asked, replies, strict=True):
            subset = weighted.query.rows
            # many queries are about the same rows
            if subset not in weights:
                weights[subset] = float(self.rows.weights_of(subset).sum())
            if not isinstance(reply, Refusal):
                factor = weighted.factor_at(weights[subset])
                try:
                    reply = weighted.query.contribution(reply, factor, agreement)
                except InputError as problem:
                    reply = Refusal(printable(f"site {self.name!r}: {problem}", MAX_REASON))
            found.append(reply)  # pyright: ignore[reportArgumentType]  # fields, or a refusal
        return found

    def enrol(self) -> Enrolment:
        """The facts of this site that the server may know; raises `SiteRefusal` where its policy refuses every query."""
        rows, guard, policy = self.rows, self.guard, self.policy
        rows.leave_out(())
        guard.agreement = None  # the next message of a run leaves out its own columns again
        wrong = ["it has fewer rows than its min_rows"] if policy is not None and rows.count < policy.min_rows else []
        if problems := [*wrong, *guard.table_problems]:
            raise SiteRefusal(f"site {self.name!r} takes part in no run: {'; '.join(problems)}.")
        A, y, file = rows.features, rows.labels, rows.file
        highest, lowest = A.max(axis=0), A.min(axis=0)  # no copy of the rows
        if issparse(A):
            highest, lowest = highest.toarray().ravel(), lowest.toarray().ravel()
        largest = np.maximum(highest.astype(float), -lowest.astype(float))
        classes, reason = self._listed_classes()
        numbers, share = y.dtype.kind in "biuf", np.inf if policy is None else float(policy.max_hessian_share)
        offset_bits = 0 if rows.offset is None else int(magnitude_bits(np.abs(rows.offset).max()))
        return Enrolment(
            rows=rows.count, weight=float(rows.weights.sum()), width=rows.width, columns=rows.columns, label_kind=y.dtype.kind,
            label_shape=y.shape[1:], classes=classes, no_classes=reason, column_bits=magnitude_bits(largest),
            label_bits=max(int(magnitude_bits(np.abs(y.astype(float)).max())) if numbers else 0, offset_bits),
            min_rows=1 if policy is None else policy.min_rows, buckets=rows.buckets, max_hessian_share=share,
            withholds=np.array(sorted(guard.withheld), np.int32),
            varies=np.array([column.many for column in guard.varying], bool), secure_sum=guard.secure_sum,
            offset=rows.offset is not None, weighted=rows.weighted,
            share_by_rule=np.inf if policy is None else float(policy.share_by_rule),
            max_share=np.inf if policy is None else float(policy.max_share),
            agreed=file.agreed, not_encoded=file.not_encoded, **table_facts(self)._asdict(),
        )  # fmt: skip

    def _listed_classes(self) -> tuple[np.ndarray | None, str]:
        """The classes that an enrolment lists, or why there are none. Where sums are masked, those of few rows are left out."""
        y = self.rows.labels
        if not (self.policy is not None and self.guard.secure_sum and y.ndim == 1 and is_whole(y)):
            try:
                self.guard.check_classes()
            except InputError as problem:
                return None, str(problem)
        classes, counts = np.unique(y, return_counts=True)
        if self.policy is not None:
            classes = classes[counts >= self.policy.min_level_rows]
        return classes.astype(str) if classes.dtype.kind == "O" else classes, ""

    @ignore_overflow
    def _refusal(self, query: Query) -> Refusal | None:
        try:
            reason = self.guard.reason(query)
        except InputError as problem:  # the query does not fit the rows of this site
            return Refusal(printable(str(problem), MAX_REASON))
        if reason is None:
            return None
        return Refusal(printable(f"site {self.name!r} refuses {type(query).__name__}: {reason}.", MAX_REASON))

    @ignore_overflow
    def _answered(self, query: Query, message: Answers) -> object:
        try:
            return message.answer(query)
        except InputError as problem:  # the query does not fit the rows of this site
            return Refusal(printable(str(problem), MAX_REASON))
