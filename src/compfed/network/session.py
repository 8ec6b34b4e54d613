"""The session of a run at a site: its enrolment, those of the other sites, and the masks that follow from them.

    STATE/runs/RUN/session    the session key, the enrolments of all sites, and the number of the last message that was answered

One file holds the key and the counter. A site answers message last + 1, sends the stored words of `last` again, or refuses:
so no mask is ever used for two different replies. A site that has lost the file cannot go on; a new run has new keys.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from compfed._utils import files
from compfed.errors import InputError
from compfed.federation import exact_sum, secure_sum
from compfed.federation.enrolment import Agreement, Enrolment, kept_columns
from compfed.federation.queries import FinishRound, LocalUpdate
from compfed.federation.queries.rounds import keeps_state
from compfed.federation.query import Query, Weighted
from compfed.federation.server.arrivals import enrolment_fault
from compfed.network.envelope import NEW_RUN, Header, chained, read_enrolment, rounds_chained
from compfed.network.keys import Roster
from compfed.network.roster import MIN_MASKED
from compfed.splits import Fold, Holdout, RowSubset, SiteFold

KEPT = ("last", "asked", "rounds", "ended")


@dataclass(frozen=True)
class Session:
    """The session of one run, as it is kept on disk."""

    private: bytes  # of X25519
    enrolments: tuple[bytes, ...] = ()  # signed, in the order of the sites; none before the second message
    last: int = 1  # number of the last message that was answered
    asked: str = ""  # hash of the queries of all messages that were answered, in order
    rounds: str = ""  # the same of the rounds whose methods keep state
    ended: bool = False  # by a refusal

    @classmethod
    def read(cls, path: Path) -> Session | None:
        """The session in a file; None if there is none, or if it is damaged."""
        data = files.read_checked(path)
        if data is None:
            return None
        found = json.loads(data)
        enrolments = tuple(bytes.fromhex(text) for text in found["enrolments"])
        kept = {name: found[name] for name in KEPT}
        return cls(bytes.fromhex(found["private"]), enrolments, **kept)

    def write(self, path: Path, flush: bool = True) -> None:
        """Write the file; with `flush` it is on the disk when this returns."""
        content = {
            "private": self.private.hex(),
            "enrolments": [data.hex() for data in self.enrolments],
            **{name: getattr(self, name) for name in KEPT},
        }
        files.write_checked(path, json.dumps(content).encode(), flush=flush)

    @property
    def public(self) -> np.ndarray:
        """The public half of the session key."""
        return np.frombuffer(secure_sum.public_key(self.private), np.uint8)

    def check_order(self, header: Header, again: Sequence[Query]) -> None:
        """Refuse, where sums are masked, another state than that after the last message: one site would answer from other rounds.

        A message follows the one before it. A site that lost its state does again all rounds that it did, and no others.
        """
        if (header.after, len(again)) == (header.number - 1, 0):
            return
        if header.after != 0 or not all(map(keeps_state, again)) or rounds_chained("", again) != self.rounds:
            raise InputError(
                f"message {header.number} of run {header.run} asks for other rounds again than this site has answered. {NEW_RUN}"
            )

    def after(self, header: Header, queries: Sequence[Weighted]) -> Session:
        """The session after these queries."""
        rounds = rounds_chained(self.rounds, (weighted.query for weighted in queries))
        return replace(self, last=header.number, asked=chained(self.asked, header.queries), rounds=rounds)

    def joined(
        self, header: Header, enrolments: Sequence[bytes], mine: Enrolment, roster: Roster | None, check_key: bool
    ) -> Session:
        """The session with the enrolments of all sites, once they are checked."""
        if roster is not None:
            check_roster(header, roster)  # it may have changed since the site enrolled
        if len(enrolments) != len(header.names):
            raise InputError(
                f"run {header.run} has {len(header.names)} sites; {len(enrolments)} enrolments came. {NEW_RUN}"
            )
        found = list[Enrolment]()
        for place, data in enumerate(enrolments):
            enrolment, public = read_enrolment(data, header, place, roster)
            if (wrong := enrolment_fault(enrolment)) is not None:
                raise InputError(f"the enrolment of site {header.names[place]!r} cannot be used: {wrong}. {NEW_RUN}")
            if place == header.place and enrolment.table != mine.table:
                raise InputError(f"its table has changed since run {header.run} began. Restore it, or start a new run.")
            if place == header.place and check_key and public.tobytes() != self.public.tobytes():
                raise InputError(f"the enrolment of this site in run {header.run} is not its own. {NEW_RUN}")
            if enrolment.secure_sum != mine.secure_sum:
                one, other = (
                    (header.names[place], "this site") if enrolment.secure_sum else ("this site", header.names[place])
                )
                way_out = "All sites of a federation set secure_sum alike."
                raise InputError(f"{one} masks its sums (secure_sum) and {other} does not. {way_out}")
            found.append(enrolment)
        enforcing = [enrolment.min_rows > 1 for enrolment in found]
        if mine.secure_sum and mine.min_rows > 1 and sum(enforcing) < MIN_MASKED:
            raise InputError(
                f"fewer than {MIN_MASKED} sites of run {header.run} enforce a disclosure policy: the others' parts, which have no rules, "
                "would show this site's part of a sum, by subtraction."
            )
        return replace(self, enrolments=tuple(enrolments))

    def agreement(self, header: Header) -> Agreement:
        """What the enrolments of all sites say together."""
        found = [read_enrolment(data, header, place, None)[0] for place, data in enumerate(self.enrolments)]
        return Agreement(header.names, kept_columns(found))

    def masks(self, header: Header) -> secure_sum.Masks:
        """The masks of this site in this run."""
        publics = [read_enrolment(data, header, place, None)[1] for place, data in enumerate(self.enrolments)]
        session = secure_sum.session_id(header.run, self.enrolments)
        return secure_sum.Masks.agree(self.private, [key.tobytes() for key in publics], header.place, session)


def check_roster(header: Header, roster: Roster) -> None:
    """Refuse a run whose sites are not those of the roster, in its order."""
    if header.names != tuple(roster):
        raise InputError(
            f"the sites of run {header.run} are not those of this site's roster, in its order. Compare the fingerprints of the "
            "roster (compfed site roster), or get a new roster.txt from the operator."
        )


def weightings(queries: Sequence[Weighted]) -> set[str]:
    """The weightings in which numbers are added."""
    return {weighted.query.weighed_by(weighted.weighting) for weighted in queries} - {""}


def reason_under_masks(weighted: Weighted, agreement: Agreement) -> str | None:
    """Why a site that masks its sums refuses a query; None if it does not."""
    query = weighted.query
    if weighted.weighting == "given":
        return "a factor that the server chooses would show it one site's part"
    for subset in query.subsets:
        if (problem := _subset_under_masks(subset, agreement)) is not None:
            return problem
    if isinstance(query, (LocalUpdate, FinishRound)) and not query.run_spec.everyone:
        return "rounds of some of the sites would show single sites' parts, by subtraction (participants)"
    return None


def _subset_under_masks(subset: RowSubset | None, agreement: Agreement) -> str | None:
    buckets = [enrolment.buckets for enrolment in agreement.enrolments]
    if isinstance(subset, Fold) and subset.folds > min(buckets):
        return f"{subset.folds} folds would leave out sites with fewer buckets; cv must divide {min(buckets)}"
    if isinstance(subset, Holdout) and min(buckets) < 2:
        return "a site has too few rows to hold any out; the part of the others would be known by subtraction"
    if isinstance(subset, SiteFold) and subset.number >= 0:
        return "leaving out one site would show its part of the sum, by subtraction (leave-one-site-out)"
    return None


def masked(words: np.ndarray, masks: secure_sum.Masks, header: Header, asked: str) -> np.ndarray:
    """The words of a reply, masked: they mean something only in the sum over all sites.

    The count of numbers out of range is left out: its total would tell at how many sites. The flag of each query is enough.
    """
    words = exact_sum.frame(words[exact_sum.FRAME :], 0)
    return exact_sum.add(words, masks.mask(header.number, asked, header.last_sum, len(words)))
