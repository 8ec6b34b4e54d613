"""What a site keeps of a run on its own disk: every message it answered leaves its state and its reply, before the reply goes.

Flower starts a process per message and keeps nothing that can be relied on, so a site's memory is here:

    STATE/RUN/told/HASH          views and jobs the site was told of, each once
    STATE/RUN/00000012.answered  after message 12: the memories of its jobs, and the reply itself

The last two messages are kept. A message that comes again is answered from its file, identically; one that follows a
message whose file is gone is not answered, and the site says so.
"""

from __future__ import annotations

import fcntl
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from compfed.errors import InputError
from compfed.federation.messages import digest, from_bytes, named, pack, to_bytes, unnamed, unpack
from compfed.federation.questions import Question, Result, Round
from compfed.federation.site import JOBS_KEPT, Site
from compfed.federation.view import Job
from compfed.tools import durable
from compfed.tools.precision import precision

KEPT = 2  # messages
RUNS_KEPT = 20

Remembered = dict[str, tuple[bool, dict[str, np.ndarray]]]  # job -> (unheard, arrays of its memory by name)


class Answered(NamedTuple):
    """The file of a message."""

    asked: str  # hash of the questions
    answers: tuple[Any, ...]
    memories: Remembered


class RunFiles:
    """The files of one run at one site."""

    def __init__(self, state: Path, run: str, accepts: Collection[str] = ()):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", run):
            raise InputError(f"a run is named {run!r}; its name may have letters, digits, '.', '_' and '-'.")
        self.folder, self.accepts = state / "runs" / run, accepts
        self.told = _ToldFiles(self.folder / "told", accepts)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One message of a run at a time: after a time-out two processes may answer the same one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def read(self, number: int) -> Answered | None:
        path = self._path(number)
        if not path.exists():
            return None
        kept = unpack(from_bytes(path.read_bytes()), self.accepts)
        return Answered(kept["asked"], kept["answers"], kept["memories"])

    def write(self, number: int, answered: Answered) -> None:
        """Keep what a message left, and forget all but the last ones before it."""
        durable.write(self._path(number), to_bytes(pack(answered._asdict())))
        for path in sorted(self.folder.glob("*.answered"))[:-KEPT]:
            path.unlink(missing_ok=True)

    def forget_old_runs(self) -> None:
        runs = [path for path in self.folder.parent.iterdir() if path != self.folder]
        for path in sorted(runs, key=lambda path: path.stat().st_mtime)[: -(RUNS_KEPT - 1)]:
            shutil.rmtree(path, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.answered"


class _ToldFiles:
    """Records the site was told of, a file each."""

    def __init__(self, folder: Path, accepts: Collection[str]):
        self.folder, self.accepts = folder, accepts
        self.read: dict[str, Any] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.read or (re.fullmatch("[0-9a-f]{64}", str(name)) is not None and self._path(name).exists())

    def __getitem__(self, name: str) -> Any:
        if name not in self.read:
            self.read[name] = unpack(from_bytes(self._path(name).read_bytes()), self.accepts)
        return self.read[name]

    def __setitem__(self, name: str, record: Any) -> None:
        if name not in self:
            durable.write(self._path(name), to_bytes(pack(record)))
        self.read[name] = record

    def _path(self, name: object) -> Path:
        return self.folder / str(name)


def jobs_of(questions: Iterable[Question]) -> dict[str, Job]:
    """The jobs whose rounds these questions speak of, by hash."""
    return {digest(q.job): q.job for q in questions if isinstance(q, (Round, Result))}


def recall(site: Site, questions: Sequence[Question], kept: Remembered) -> None:
    """Give a site its memories of the jobs it is asked about."""
    site.memories.clear()
    for name, job in jobs_of(questions).items():
        if name in kept:
            unheard, arrays = kept[name]
            with precision(np.dtype(job.view.dtype)):
                like = job.algorithm.init(jnp.asarray(job.x0))[1]
                site.remember(job, jax.tree.map(jnp.asarray, unnamed(arrays, like)), unheard)


def remembered(site: Site, kept: Remembered) -> Remembered:
    """What to keep after a message: the memories of the jobs it spoke of, and of the others as they were."""
    new = {name: (memory.unheard, named(memory.c)) for name, memory in site.memories.items() if _leaves(memory.c)}
    together = {**{name: old for name, old in kept.items() if name not in new}, **new}
    return dict(list(together.items())[-JOBS_KEPT:])


def _leaves(tree: Any) -> bool:
    return bool(jax.tree.leaves(tree))
