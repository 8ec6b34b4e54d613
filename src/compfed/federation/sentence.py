"""The sentence of a run: what will be computed, and how many numbers that can release at most. Decided before the run.

The operator states what it is about to do (`Stated`); the text travels with every message and is bound into the hash of its
queries, so that all sites read the same. Each site adds what it knows itself, which makes the `RunSentence`, and decides:

    numbers released before and by this run, as a share of the table    up to `share_by_rule`: a rule may approve
                                                                        up to `max_share`: a person at the site may
                                                                        beyond: never

A message without a statement is answered while the share stays within `share_by_rule`, where a site lets every run begin by rule.
A site may have rules of its own besides (`objection`); what a person said about a sentence is kept in `network/approvals.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Literal, NamedTuple, Protocol

from compfed._utils.text import join_names, printable
from compfed.errors import InputError
from compfed.federation.numbers import Table, share_text

LONGEST = 1_000  # characters of a part of a statement
KIND = re.compile(r"[A-Za-z0-9_.]{1,80}")
MOST = 2**53
ALARM = 0.5  # the share of the numbers in a table from which on a person reads that rows could be computed


@dataclass(frozen=True)
class Stated:
    """What the operator states about a computation before its first message.

    Parameters
    ----------
    kind : str
        The estimator, or the name of the function.
    parameters : str
        Those that differ from their defaults.
    alphas : int
        Values of the weight of the penalty.
    folds : str
        "" without; "5", "loo", ...
    numbers : int
        The most words that a site sends.
    messages : int
        The most messages.
    why : str
        The operator's reason for more than a rule allows; "" where none is needed.
    """

    kind: str
    parameters: str = ""
    alphas: int = 1
    folds: str = ""
    numbers: int = 0
    messages: int = 0
    why: str = ""

    @property
    def text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> Stated:
        """What a message states; raises `InputError` where that cannot be read."""
        try:
            given = json.loads(text)
            found = cls(**given)
        except (ValueError, TypeError, RecursionError):
            raise InputError("the statement of a run cannot be read. Use one version of compfed everywhere.") from None
        if found.text != text or not KIND.fullmatch(
            str(found.kind)
        ):  # two texts of one sentence would be allowed for twice
            raise InputError(
                "the statement of a run is not written as it should be. Use one version of compfed everywhere."
            )
        for f in fields(cls):
            value = getattr(found, f.name)
            usable = (
                type(value) is str and len(value) <= LONGEST
                if f.type == "str"
                else type(value) is int and 0 <= value <= MOST
            )
            if not usable:
                raise InputError(f"the statement of a run has no usable {f.name}.")
        return replace(
            found, **{f.name: printable(getattr(found, f.name), LONGEST) for f in fields(cls) if f.type == "str"}
        )


@dataclass(frozen=True)
class RunSentence:
    """What a run will compute at a site, complete. Its hash is its name.

    Parameters
    ----------
    stated : Stated
    schema : str
        Hash of the schema of the table; "" without one.
    columns : tuple of str
    roster : tuple of (name, fingerprint of the key)
    version : str
        Of compfed at the site.
    extract : str
        The frozen extract of the table that is answered from; "" where the site keeps none.
    """

    stated: Stated
    schema: str
    columns: tuple[str, ...]
    roster: tuple[tuple[str, str], ...]
    version: str
    extract: str = ""

    @property
    def hash(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    @property
    def bytes(self) -> int:
        """The most bytes of numbers that leave: a word has 16."""
        return 16 * self.stated.numbers

    def words(self, table: Table, before: float, masked: bool) -> list[str]:
        """In at most ten plain lines: what is asked, what leaves, and what is not prevented."""
        said, names = self.stated, [name for name, _ in self.roster]
        share = before + said.numbers / max(table.cells, 1)
        how = f"{said.alphas} values of alpha" if said.alphas > 1 else ""
        folds = {"": "", "loo": "approximate leave-one-out"}.get(said.folds, f"{said.folds} folds")
        lines = [
            f"{said.kind}({said.parameters}){''.join(f', {part}' for part in (how, folds) if part)}",
            f"columns: {join_names(list(self.columns), most=12) if self.columns else 'all of the table, which have no names'}",
            f"sites: {join_names(names, most=12)}; compfed {self.version}{f'; extract {self.extract}' if self.extract else ''}",
            f"leaves: {share_text(said.numbers, table, before, masked)}",
            f"at most {self.bytes:,} bytes of numbers; the operator expects {said.messages:,} messages or fewer",
        ]
        if said.why:
            lines.append(f"the operator's reason: {said.why}")
        if share > ALARM:
            lines.append(
                f"With this run {share:.1f} times as many numbers will have left as the table holds: a participant who lies, or "
                "many such runs, could compute rows."
            )
        lines.append(
            "Not prevented: whoever takes part and lies chooses which numbers leave, within this. No differential privacy."
        )
        return lines


class Limits(Protocol):
    """The limits of a site on what leaves, as shares of the numbers in its table."""

    @property
    def share_by_rule(self) -> float: ...
    @property
    def max_share(self) -> float: ...


class Decision(NamedTuple):
    """Whether a run may begin, who says so, and up to which share numbers may leave."""

    by: Literal["rule", "person", ""]
    limit: float
    why: str = ""


def decide(
    share: float, limits: Limits | None, objection: str = "", ask: Callable[[str], bool] | None = None
) -> Decision:
    """By rule, by a person, or not at all. `share` is the most that will have left after the run.

    Without limits, as where no policy is enforced, any share may leave; a person is asked all the same.
    `objection` says why the site's own rules want a person; `ask` is given the reason, and says whether a person approved the run.
    """
    by_rule, most = (inf, inf) if limits is None else (limits.share_by_rule, limits.max_share)
    if share > most:
        why = f"up to {share:.0%} of the numbers in its table would have left; its end is {most:.0%} (max_share)"
        return Decision("", 0.0, why)
    if share > by_rule:
        rule = f"beyond {by_rule:.0%} (share_by_rule) a person there has to approve the run"
        objection = f"up to {share:.0%} of the numbers in its table would have left; {rule}"
    if not objection:
        return Decision("rule", by_rule)
    if ask is not None and ask(objection):
        return Decision("person", most)
    return Decision("", 0.0, objection)
