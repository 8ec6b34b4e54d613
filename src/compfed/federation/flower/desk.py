"""The desk of a site: messages come in, answers go out, and everything that leaves is written down first."""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from flwr.app import RecordDict

from compfed.data.site_file import UnfitRows
from compfed.errors import InputError
from compfed.federation.flower.records import asked, from_records, to_records
from compfed.federation.flower.site_memory import Answered, RunFiles, recall, remembered
from compfed.federation.messages import NotTold, Packed, pack, to_bytes, unpack
from compfed.federation.questions import Refused
from compfed.federation.site import Site
from compfed.tools import durable
from compfed.tools.versions import versions


class Desk:
    """Answers messages with a site. `open_site` reads the rows; it is called once, when they are first needed."""

    def __init__(
        self, index: int, name: str, open_site: Callable[[], Site], state: Path, accepts: Collection[str] = ()
    ):
        self.index, self.name, self.state, self.accepts = index, name, state, accepts
        self._open, self._site = open_site, None

    @property
    def site(self) -> Site:
        if self._site is None:
            try:
                self._site = self._open()
            except Exception as problem:  # its words may quote a row
                self._log({"failed": traceback.format_exc()})
                told = problem.told if isinstance(problem, UnfitRows) else "its log says why."
                raise InputError(f"its rows cannot be used: {told}") from None
        return self._site

    def register(self) -> RecordDict:
        """Who this is: place among the sites, name, version. Nothing about the rows."""
        return to_records({"site": self.index, "name": self.name, "compfed": versions()["compfed"]})

    def reply(self, records: RecordDict) -> RecordDict:
        """The reply to a message. Always one: what went wrong is said in words, without a number of the rows."""
        envelope: dict[str, Any] = {}
        try:
            envelope, packed = from_records(records)
            if packed is None:
                raise InputError("a message without questions.")
            kind, said = self._replied(str(envelope["run"]), int(envelope["number"]), int(envelope["after"]), packed)
        except InputError as problem:
            kind, said = "refused", f"site {self.name!r}: {problem}"
        except Exception as problem:  # of whatever kind: the words of an exception may hold what must not leave
            self._log({"failed": traceback.format_exc()})
            kind, said = "failed", f"site {self.name!r} failed with {type(problem).__name__}; its log says more."
        back = {key: envelope[key] for key in ("run", "number") if key in envelope} | {"site": self.index, "kind": kind}
        if isinstance(said, Packed):
            return to_records(back, said)
        self._log({**back, "said": said})
        return to_records({**back, "reason": said})

    def _replied(self, run: str, number: int, after: int, packed: Packed) -> tuple[str, Packed | str]:
        files = RunFiles(self.state, run, self.accepts)
        with files.locked():
            try:
                again, questions = unpack(packed, self.accepts, files.told)
            except NotTold as problem:
                return "lost", f"site {self.name!r} has lost what it was told: {problem}"
            fingerprint, done = asked(questions), files.read(number)
            if done is not None:  # the reply was lost on its way, or is late
                if done.asked != fingerprint:
                    raise InputError(f"message {number} of run {run} came before with other questions.")
                return self._sent(run, number, packed, questions, done, repeated=True)
            before = files.read(after) if after else Answered("", (), {})
            if before is None:
                return "lost", f"site {self.name!r} has no memory of message {after} of run {run}."
            if not after:
                files.forget_old_runs()
            recall(self.site, (*again, *questions), before.memories)
            self._rebuild(again)
            answers = self.site.answer(questions)
            done = Answered(fingerprint, answers, remembered(self.site, before.memories))
            files.write(number, done)
            return self._sent(run, number, packed, questions, done)

    def _rebuild(self, again: tuple[Any, ...]) -> None:
        """Take part once more in rounds that were forgotten; the answers are known and go nowhere."""
        refused = next((a for a in self.site.answer(again) if isinstance(a, Refused)), None)
        if refused is not None:
            raise InputError(f"a forgotten round could not be done again: {refused.reason}")

    def _sent(
        self, run: str, number: int, packed: Packed, questions: Any, done: Answered, repeated: bool = False
    ) -> tuple[str, Packed]:
        reply = pack(done.answers)
        data = to_bytes(reply)
        self._log(
            {
                "run": run,
                "number": number,
                "questions": [type(question).__name__ for question in questions],
                "refused": [answer.reason for answer in done.answers if isinstance(answer, Refused)],
                "bytes_in": len(to_bytes(packed)),
                "bytes_out": len(data),
                "sha256_out": hashlib.sha256(data).hexdigest(),
                "repeated": repeated,
            }
        )
        return "answers", reply

    def _log(self, line: dict[str, Any]) -> None:
        durable.append(self.state / "answered.jsonl", {"time": round(time.time(), 3), **line})
