"""Approval of runs at a site: the rules of its site.toml, and a person where those do not say yes.

    STATE/approvals/NAME-RUN.json   a run sentence that a person was asked about, in words, and what that person decided

A run that no rule approves waits: the site answers "pending", and the operator asks again until a person at the site has said
yes (`compfed site approve`) or no (`compfed site deny`), until the operator ends the run, or for two weeks
(`RetryPolicy.approval`). An approval is of one sentence (`federation.sentence`): another column or another alpha is another
sentence. The first run that it lets in spends it.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from compfed._utils import files
from compfed._utils.text import join_names, printable, text_table
from compfed.errors import InputError
from compfed.federation.queries import AtRisk, Concordance, Inference, Score, Tabulate
from compfed.federation.query import Query, Weighted
from compfed.federation.sentence import RunSentence, Stated
from compfed.federation.site.ledger import Ledger

DAY = 86_400.0  # seconds
MOST_WAITING = 50  # sentences; further ones are refused until a person decided about some
KEPT = 500  # decided ones
SHORT = 12  # characters of a name, for people
TELL_SECONDS = 60.0
FREE = ("bounds",)  # parameters that hold numbers of the operator's choice, at which a model can be made to end

MESSAGES, FEWEST = 3, 20  # times the messages that a run states, and at least so many, that a site answers
TABLES: dict[str, tuple[type[Query], ...]] = {
    "describe": (Tabulate,),
    "Schema.agree": (Tabulate,),
    "kaplan_meier": (AtRisk,),
}
NOT_FITS = (Tabulate, Score, Concordance, Inference)  # asked by no fit
OF_STEPS = {
    "evaluate": (Score, Concordance),
    "summary": (Inference,),
}  # that a step of an estimator asks beside those of fits

State = Literal["waiting", "approved", "denied", "spent"]


class Pending(InputError):
    """A run waits for a person at this site."""


@dataclass(frozen=True)
class ApprovalRules:
    """Which runs are approved without a person: [approval] of site.toml.

    Parameters
    ----------
    by_rule : bool, default=False
        Whether rules may approve a run at all. Without it a person approves each.
    kinds : list of str, optional
        Estimators and functions that may run by rule, such as "FederatedLasso", "FederatedLasso.summary",
        "FederatedLasso.evaluate" or "describe"; all unless given.
    columns : list of str, optional
        Columns that may be used by rule; all unless given.
    numbers_per_month : int, optional
        The most numbers that may leave by rule in thirty days.
    days : int, default=14
        Days for which an approval holds.
    tell : list of str, optional
        A command that is started when a run waits, with the run's name as its last argument and its words as input.
    """

    by_rule: bool = False
    kinds: list[str] | None = None
    columns: list[str] | None = None
    numbers_per_month: int | None = None
    days: int = 14
    tell: list[str] = field(default_factory=list)

    @property
    def covers_everything(self) -> bool:
        """Whether a run may begin by rule whatever it is."""
        return self.by_rule and self.kinds is None and self.columns is None and self.numbers_per_month is None

    def objection(self, sentence: RunSentence, ledger: Ledger) -> str:
        """Why a person has to approve a run that releases little enough; "" where rules may."""
        said = sentence.stated
        if not self.by_rule:
            return "every run of this site is approved by a person (by_rule = false)"
        if self.kinds is not None and said.kind not in self.kinds:
            return f"{said.kind} is not among the kinds that may run by rule"
        if self.columns is not None and (others := [c for c in sentence.columns if c not in self.columns]):
            return f"{join_names([repr(c) for c in others], most=6)} may not be used by rule"
        if free := [name for name in FREE if name in said.parameters]:
            return f"{join_names(free)} hold numbers of the operator's choice"
        return self.beyond_the_month(said.numbers, ledger)

    def beyond_the_month(self, numbers: int, ledger: Ledger) -> str:
        """Why so many more numbers may not leave by rule now; "" where they may."""
        if self.numbers_per_month is None:
            return ""
        left = ledger.left_by_rule(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=30))
        if left + numbers <= self.numbers_per_month:
            return ""
        return (
            f"{left:,} numbers left by rule in thirty days, and {numbers:,} more would be above numbers_per_month = "
            f"{self.numbers_per_month:,}"
        )


@dataclass(frozen=True)
class Asked:
    """A run sentence that a person was asked about."""

    name: str  # the hash of the sentence
    run: str  # the run that asked last
    reason: str  # why no rule approved it
    words: tuple[str, ...]
    sentence: Mapping[str, Any]
    asked: float  # seconds since the epoch
    state: State = "waiting"
    decided: float = 0.0
    until: float = 0.0  # an approval holds until then
    why: str = ""  # of a denial; or why it waits again

    @property
    def short(self) -> str:
        """The beginning of its name, for people."""
        return self.name[:SHORT]

    @classmethod
    def read(cls, path: Path) -> Asked | None:
        """The content of a file; None if it is missing or damaged."""
        data = files.read_checked(path)
        if data is None:
            return None
        given = json.loads(data)
        return cls(**{**given, "words": tuple(given["words"])})


class Approvals:
    """What persons at this site were asked about, and what they decided.

    Parameters
    ----------
    folder : path
        Where it is kept.
    rules : ApprovalRules, optional
        How long an approval holds, and whom to tell.
    """

    def __init__(self, folder: Path, rules: ApprovalRules | None = None):
        self.folder, self.rules = folder, rules or ApprovalRules()

    def all(self) -> list[Asked]:
        """All of them, the latest question first."""
        found = [Asked.read(path) for path in self.folder.glob("*.json")] if self.folder.is_dir() else []
        return sorted((asked for asked in found if asked is not None), key=lambda asked: -asked.asked)

    def find(self, given: str) -> Asked:
        """That of a run, or with a name that begins so; raises `InputError` where there is none, or several."""
        known = self.all()
        found = [a for a in known if len(given) >= 6 and a.name.startswith(given)] or [
            a for a in known if a.run == given
        ]
        found = [
            a for a in found if a.state == "waiting"
        ] or found  # a fit that has begun, and its evaluation that waits
        if len(found) == 1:
            return found[0]
        waiting = join_names([a.run for a in known if a.state == "waiting"], most=12) or "none"
        wrong = "names several runs" if found else "names no run that asked this site"
        raise InputError(f"{printable(given, 100)!r} {wrong}. Waiting: {waiting}. `compfed site runs` lists all.")

    # --- the site ---

    def allows(self, sentence: RunSentence, run: str, words: list[str], reason: str) -> bool:
        """Whether a person approved this sentence; the approval is then spent on this run. Asks a person who was not asked.

        Raises
        ------
        Pending
            Until a person has decided.
        InputError
            Where a person denied it, or where too many runs wait.
        """
        files.make_folder(self.folder)
        with files.locked(self.folder / "lock"):
            now, known = time.time(), [asked for asked in self.all() if asked.name == sentence.hash]  # of all runs
            mine = next((asked for asked in known if asked.run == run), None)
            if mine is not None and mine.state == "spent":
                return True
            decided = max((asked for asked in known if asked.state != "waiting"), key=lambda a: a.decided, default=None)
            if decided is not None and decided.state == "denied":
                raise InputError(f"a person at the site denied this run{f': {decided.why}' if decided.why else ''}")
            given = mine or decided  # an approval lets in its own run, or one that nobody was asked about
            if given is not None and given.state == "approved" and now < given.until and given.words == tuple(words):
                self._write(replace(given, state="spent", run=run, decided=now))
                if given.run != run:
                    self._path(given).unlink(missing_ok=True)
                return True
            if mine is None or mine.state != "waiting":
                before = {
                    "spent": "an approval of this was used by an earlier run",
                    "approved": "an approval of this expired, or more has left since than the person read",
                }
                new = Asked(sentence.hash, run, reason, tuple(words), dataclasses.asdict(sentence), now)
                if mine is None:
                    self._make_room()
                self._write(replace(new, why=before[decided.state] if decided is not None else ""))
                self._tell(new)
        raise Pending(f"it waits for a person at the site to approve this run: {reason}")

    def _make_room(self) -> None:
        known = self.all()
        if sum(asked.state == "waiting" for asked in known) >= MOST_WAITING:
            raise InputError(
                f"{MOST_WAITING} runs wait for a person at this site already. Ask there to decide about them."
            )
        for asked in [asked for asked in known if asked.state != "waiting"][KEPT:]:
            self._path(asked).unlink(missing_ok=True)

    def _tell(self, asked: Asked) -> None:
        """Start the site's own command. It has a minute, and no reply waits for it."""
        if self.rules.tell:
            threading.Thread(target=_run_command, args=(self.rules.tell, asked), daemon=True).start()

    # --- a person ---

    def approve(self, asked: Asked) -> Asked:
        """Approve a sentence for some days; the first run with it spends the approval."""
        now = time.time()
        return self._decide(asked, state="approved", until=now + self.rules.days * DAY, why="")

    def deny(self, asked: Asked, why: str) -> Asked:
        """Deny a sentence, whichever run asks, until a person approves it."""
        return self._decide(asked, state="denied", until=0.0, why=printable(why, 500))

    def changes(self, asked: Asked) -> list[str]:
        """What is different from the last run that a person let in, in words."""
        earlier = [a for a in self.all() if a.state == "spent" and a.name != asked.name]
        return [] if not earlier else _differences(max(earlier, key=lambda a: a.decided).sentence, asked.sentence)

    def _decide(self, asked: Asked, **values: Any) -> Asked:
        with files.locked(self.folder / "lock"):
            known = Asked.read(self._path(asked))
            if known is None or known.state == "spent":
                raise InputError(
                    f"run {asked.run!r} has begun with an approval: it cannot be decided again. Stop the site to end it."
                )
            decided = replace(known, decided=time.time(), **values)
            self._write(decided)
        return decided

    def _path(self, asked: Asked) -> Path:
        return self.folder / f"{asked.name}-{asked.run}.json"

    def _write(self, asked: Asked) -> None:
        files.write_checked(self._path(asked), json.dumps(dataclasses.asdict(asked)).encode())


def _run_command(command: list[str], asked: Asked) -> None:
    text = "\n".join(asked.words).encode()
    try:
        subprocess.run([*command, asked.run], input=text, timeout=TELL_SECONDS, check=False, capture_output=True)
    except (OSError, subprocess.TimeoutExpired):
        return  # the log of the site has the run too


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How one sentence differs from another."""
    lines = []
    for name in ("columns", "roster"):
        names = [[entry if isinstance(entry, str) else entry[0] for entry in found[name]] for found in (old, new)]
        more, fewer = ([n for n in a if n not in b] for a, b in (names[::-1], names))
        if more or fewer:
            moved = [f"+ {n}" for n in more] + [f"- {n}" for n in fewer]
            lines.append(f"{'columns' if name == 'columns' else 'sites'}: {join_names(moved, most=12)}")
        elif name == "roster" and [list(e) for e in old[name]] != [list(e) for e in new[name]]:
            lines.append("sites: the same names, and another key or order")
    for name, value in new["stated"].items():
        if (before := old["stated"].get(name)) != value:
            lines.append(f"{name}: {before or 'none'} -> {value or 'none'}")
    lines += [f"{name}: another one" for name in ("schema", "version", "extract") if old.get(name) != new.get(name)]
    return lines


def asked_beyond(said: Stated, messages: int, queries: Sequence[Weighted]) -> str:
    """Why queries are not those of a run that states this, after so many messages; "" where they may be."""
    if messages >= MESSAGES * max(said.messages, FEWEST):
        return f"the run has had {messages:,} messages; it stated {said.messages:,}"
    estimator, _, step = said.kind.partition(".")
    for kind in {type(weighted.query) for weighted in queries}:
        others = estimator.startswith("Federated") and kind in NOT_FITS and kind not in OF_STEPS.get(step, ())
        if others or kind not in TABLES.get(said.kind, (kind,)):
            return f"a run of {said.kind} does not ask for {kind.__name__}"
    return ""


# --- for people ---


def free_parameters(asked: Asked) -> str:
    """The parameters of a run that hold numbers of the operator's choice; "" without."""
    return ", ".join(name for name in FREE if name in asked.sentence["stated"]["parameters"])


def runs_text(known: list[Asked]) -> str:
    """A line for each sentence that a person was asked about; those that wait in full."""
    if not known:
        return "No run has asked a person at this site."
    rows = [[asked.run, asked.short, _when(asked.asked), _state(asked), asked.words[0][:60]] for asked in known]
    lines = [text_table(["run", "name", "asked", "state", "what"], rows)]
    for asked in known:
        if asked.state == "waiting":
            lines += ["", f"{asked.run} waits: {asked.reason}.", *(f"  {line}" for line in asked.words)]
            lines.append(f"  Decide: compfed site approve {asked.run}, or compfed site deny {asked.run} --why TEXT")
    return "\n".join(lines)


def approval_text(asked: Asked, changes: list[str]) -> str:
    """What a person reads before a decision."""
    lines = [f"Run {asked.run}. A person decides, because {asked.reason}.", *(f"  {line}" for line in asked.words)]
    if asked.why:
        lines.append(f"  {asked.why}")
    if changes:
        lines += ["  Since the last run that a person let in:", *(f"    {line}" for line in changes)]
    return "\n".join(lines)


def _state(asked: Asked) -> str:
    if asked.state == "approved":
        return f"approved until {_when(asked.until)}" if time.time() < asked.until else "approval expired"
    if asked.state == "denied":
        return f"denied: {asked.why}" if asked.why else "denied"
    return {"waiting": "WAITS", "spent": f"began {_when(asked.decided)}"}[asked.state]


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
