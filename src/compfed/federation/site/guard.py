"""What a site lets through: its limits and its disclosure policy. What has left is counted in the ledger (`federation.numbers`)."""

from __future__ import annotations

import functools
from weakref import WeakKeyDictionary

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement
from compfed.federation.limits import QueryChecks, QueryLimits
from compfed.federation.queries import QUERIES, Tabulate
from compfed.federation.query import Query, SiteRefusal
from compfed.federation.site.disclosure import (
    Admitted,
    DisclosurePolicy,
    Spreads,
    Varying,
    check_table,
    rare_class,
    rare_values,
    reason_of,
    varying_columns,
    withheld_columns,
)
from compfed.federation.site.rows import Rows
from compfed.federation.spec import ObjectiveSpec
from compfed.splits import BUCKETS


class Guard:
    """The guard of one site's rows.

    Parameters
    ----------
    rows : Rows
    policy : DisclosurePolicy, optional
        The rules of the site for what it reveals; without one there are none.
    limits : QueryLimits or None
        None for a site in the process of its server.
    secure_sum : bool
        Whether the sums of the site are masked. Values of few rows are then allowed where three sites have them.
    """

    def __init__(self, rows: Rows, policy: DisclosurePolicy | None, limits: QueryLimits | None, secure_sum: bool):
        self.rows, self.policy, self.limits, self.secure_sum = rows, policy, limits, secure_sum
        self.agreement: Agreement | None = None  # with the other sites of a run
        self.admitted: WeakKeyDictionary[ObjectiveSpec, Admitted] = WeakKeyDictionary()
        self._unlisted: str | None = None  # why it lists no classes, "" if it does, None if that is not known yet

    def reason(self, query: Query) -> str | None:
        """Why the site refuses a query; None if it answers."""
        reason = self._blanket_reason(query)
        if reason is None and self.limits is not None:
            reason = self.limits.reason(query, QueryChecks(self.limits, self))
        if reason is None and self.policy is not None:
            reason = reason_of(self.policy, query, self)
        return reason

    def _blanket_reason(self, query: Query) -> str | None:
        """Why the site refuses every query of this kind; None if it does not. Names the rule, never the number of rows.

        Decided before anything else of a query is read: the reason of a limit may depend on the rows.
        """
        name, policy, file = type(query).__name__, self.policy, self.rows.file
        if type(query) not in QUERIES:  # a closed list: a subclass is another query
            return f"{name} is not a query it knows"
        if policy is not None and name in policy.queries:
            return f"it does not answer {name}"
        if self.rows.count < (1 if policy is None else policy.min_rows):
            return "it has fewer rows than its min_rows"
        if file.not_encoded and not isinstance(query, Tabulate):
            return f"it {file.not_encoded.removesuffix('.')}"
        return None

    def join(self, agreement: Agreement) -> None:
        """Take part in a run with these sites; raises `SiteRefusal` where a value of few rows would show in its sums."""
        if self.agreement is agreement:
            return
        out = agreement.enrolments[0].not_kept  # the same of all sites
        names = self.rows.every_column or tuple(map(str, range(self.rows.every_feature.shape[1])))
        self.rows.leave_out(j for j, name in enumerate(names) if name in out)
        # sites whose rows cannot be used together answer `Tabulate` alone, which keeps this rule by itself
        encoded = not agreement.encoded_problem
        checked = self.policy is not None and self.secure_sum and encoded
        if checked and (problems := rare_values(self, agreement.enrolments)):
            raise SiteRefusal(f"site {self.rows.name!r} takes part in no run with these sites: {'; '.join(problems)}.")
        dealt = [e.buckets for e in agreement.enrolments if e.min_rows > 1 and (e.buckets > 1 or self.secure_sum)]
        self.rows.agree_on_buckets(min([*BUCKETS[:1], *dealt]))
        self.agreement, self._unlisted = agreement, None
        self.admitted.clear()
        self.__dict__.pop("spreads", None)  # of the columns of another run

    @functools.cached_property
    def varying(self) -> list[Varying]:
        """How every column varies; empty without a policy."""
        return [] if self.policy is None else list(varying_columns(self.rows, self.policy.min_level_rows))

    @functools.cached_property
    def spreads(self) -> Spreads:
        """What the site knows of its own columns."""
        return Spreads.of(self.rows.features[self.rows.used])

    @functools.cached_property
    def table_problems(self) -> list[str]:
        """Reasons of the policy to refuse every query, whatever it is; checked once."""
        return [] if self.policy is None else check_table(self, self.policy)

    @functools.cached_property
    def withheld(self) -> dict[int, str]:
        """The columns that the site gives no sums of, by position, and why."""
        return {} if self.policy is None else withheld_columns(self, self.policy)

    @property
    def problems(self) -> list[str]:
        """Why the site refuses every query of encoded rows: its table, or a column that it withholds and the run does not leave out."""
        here = [why for j, why in self.withheld.items() if j not in self.rows.left_out]
        return [*self.table_problems, *here]

    def check_classes(self) -> None:
        """Refuse to list labels that are continuous, or of few rows: they would be values of single rows."""
        if self._unlisted is None:
            self.rows.check_classes()
            rare = None if self.policy is None else rare_class(self, self.policy)
            self._unlisted = "" if rare is None else f"site {self.rows.name!r} lists no classes: {rare}."
        if self._unlisted:
            raise InputError(self._unlisted)
