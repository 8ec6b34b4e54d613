"""`compfed leaderboard`: run every method on every problem of the suite, and write the results file and its page.

A method that has finished on a problem is on the disk, in parts/, and is not run again as long as the terms of the problem, the
version of compfed and the source of the method are the same.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from compfed import __version__
from compfed._utils.compilation import count_programs
from compfed._utils.files import check_writable, write_text
from compfed._utils.plain import JsonObject
from compfed._utils.text import join_names, versions
from compfed.algorithms import known
from compfed.errors import Divergence, InputError
from compfed.problem.problem import Problem
from compfed.report.page import write_run_report
from compfed.report.run_result import write_result
from compfed.solve import solve_federated, solve_pooled
from compfed.solvers.base import Method, SecondOrder
from compfed.solvers.second_order import SOLVERS
from compfed.studies.compare_methods import Budget, Comparison, Criterion, costs_of
from compfed.studies.leaderboard.ranks import OURS, record_of
from compfed.studies.leaderboard.results import FORMAT, UNITS, WORK, added, check_results, read_results
from compfed.studies.leaderboard.suite import TUNING_SEED, VERSION, Missing, Task, suite
from compfed.studies.tuning import Contender, contenders
from compfed.trace import Trace

NAME = "leaderboard.json"
LIMIT = {False: 90.0, True: 60.0}  # CPU seconds of one method on one problem, without and with --quick
COLUMNS = ["exchanges", "bytes_up", "bytes_down", "gradients", "rows", "hessians", "clock"]
PER_METHOD, PER_NUMBER, PER_ROUND = 2.5, 2e-9, 1e-4  # seconds, for the time that is left


@dataclass(frozen=True)
class Furthest(Criterion):
    """A criterion by which settings are chosen for the accuracies that methods are ranked by.

    Of two runs the better is the one that reaches the harder level, then the one that reaches it in fewer rounds; of two that
    reach none, the one that ends lower. The score is the less the better, inf for a divergence.
    """

    def score(self, trace: Trace) -> float:
        last = float(trace[self.column][-1])
        if "diverged" in trace.provenance or not np.isfinite(last):
            return np.inf
        for k, level in enumerate(reversed(self.levels)):
            rows = np.flatnonzero(self.reaches(trace, level))
            if len(rows):
                return k - len(self.levels) + 1.0 - 1.0 / (1.0 + float(trace["round"][rows[0]]))
        above = max((last - self.low) / self.scale, 0.0)
        return 1.0 + above / (1.0 + above)


# --- one method on one problem ---


class _Stopped(Exception):
    """A method that takes too long."""


@dataclass
class Prepared:
    """A problem that is built, with its certified x* or its start value, and the contest between its methods."""

    task: Task
    problem: Problem
    star: Any
    by: Furthest
    about: JsonObject

    @classmethod
    def of(cls, task: Task) -> Prepared:
        """Build the problem of a task and find its x*, by two solvers that must agree."""
        problem = task.build()
        about: JsonObject = {
            "words": task.words, "terms": task.terms(), "rows": int(problem.sizes.sum()), "columns": problem.d,
            "sites": problem.n,
        }  # fmt: skip
        if task.criterion == "objective":
            start = problem.objective(problem.start)
            by = Furthest("objective", task.words_of_criterion, task.levels, scale=start)
            reference = f"not convex: ranked by F(x) / F(x0), F(x0) = {start:.6g}, the same start for all"
            return cls(task, problem, None, by, about | {"reference": reference})
        star, other = solve_pooled(problem), solve_federated(problem, "ProximalNewton", tol=1e-14)
        apart = float(np.linalg.norm(star.x - other.x) / (np.linalg.norm(star.x) or 1.0))
        if not (star.converged and apart < 1e-3 * min(task.levels)):
            raise InputError(f"{task.name}: x* is not certified: {star}; ProximalNewton ends {apart:.1e} from it.")
        reference = (
            f"x* of cf.solve_pooled, certified: gradient mapping {star.gradient_mapping:.1e}; ProximalNewton ends {apart:.1e} "
            f"from it; F(x*) = {star.objective:.9g}, {np.count_nonzero(star.x)} of {problem.d} coefficients non-zero"
        )
        by = Furthest("optimality", task.words_of_criterion, task.levels)
        return cls(task, problem, star, by, about | {"reference": reference})

    def compare(self, method: Method, limit: float) -> tuple[JsonObject, int]:
        """Tune one method, run it on the reporting seeds, and say what it paid; also the number of runs."""
        task, (each,) = self.task, contenders([method], {})
        each = replace(each, every_step=True)  # a method that solves local problems tunes their steps as all others do
        entry: JsonObject = {"problem": task.name, "method": each.label, "kind": kind_of(method)}
        columns = [task.criterion, *COLUMNS]
        options = {
            "batch_size": task.batch_size, "participants": task.participants, "sampling": None, "clock": task.clock,
            "columns": columns,
        }  # fmt: skip
        contest = Comparison(
            self.problem, Budget("rounds", task.rounds), task.tau, task.tries, task.seeds, (TUNING_SEED,), options
        )
        began = time.process_time()

        def progress(done: int, total: int) -> None:
            if time.process_time() - began > limit:
                raise _Stopped

        try:
            contest.check(each)
        except InputError as problem:
            return entry | {"status": "does not apply", "reason": _first_sentence(problem)}, 0
        try:
            traces, tuning = contest.run(each, self.by, self.star, progress)
        except _Stopped:
            reason = f"It took more than {limit:g} CPU seconds for its settings and seeds, and was stopped."
            return entry | {"status": "stopped", "reason": reason}, 0
        except (InputError, Divergence) as problem:
            return entry | {"status": "stopped", "reason": _first_sentence(problem)}, 0
        return entry | self._measured(each, traces, tuning), len(traces) + len((tuning or {}).get("tried", ()))

    def _measured(self, each: Contender, traces: Sequence[Trace], tuning: Mapping[str, Any] | None) -> JsonObject:
        traces = [with_bytes(trace) for trace in traces]
        found = costs_of(traces, self.by, UNITS)
        ends = [None if end is None else (end - self.by.low) / self.by.scale for end in found["finals"]]
        final = None if found["final"] is None else (found["final"] - self.by.low) / self.by.scale
        spent = {unit: float(np.median([trace[column][-1] for trace in traces])) for unit, column in UNITS.items()}
        tried = [] if tuning is None else tuning["tried"]
        entry: JsonObject = {
            "status": "diverged" if final is None else "ran",
            "tried": len(tried) if len(tried) > 1 else 0,
            "setting": _setting(each, tuning),
            "at_edge": [] if tuning is None else tuning["at_edge"],
            "to_accuracy": {
                level: {unit: paid[unit] for unit in UNITS} for level, paid in found["to_accuracy"].items()
            },
            "range": found["range"],
            "final": final,
            "finals": ends,
            "spent": spent,
        }
        return entry | (
            {"reason": traces[0].provenance["diverged"][:400]} if "diverged" in traces[0].provenance else {}
        )


def with_bytes(trace: Trace) -> Trace:
    """The trace with a column of the bytes both ways."""
    return replace(trace, columns=trace.columns | {"bytes": trace["bytes_up"] + trace["bytes_down"]})


def kind_of(method: Method) -> str:
    """Whether a method is this project's own: the paper's, one derived from it, or a second-order solver."""
    cited = getattr(method, "citation", None)
    own = method.__name__ == OURS or issubclass(method, SecondOrder) or bool(cited is not None and cited.ours)
    return "ours" if own else "baseline" if method.__module__.startswith("compfed.") else "added"


def _setting(each: Contender, tuning: Mapping[str, Any] | None) -> str:
    if each.is_solver or tuning is None or not tuning["chosen"]:
        return "nothing to tune"
    return ", ".join(f"{name} = {value:g}" for name, value in tuning["chosen"].items())


def _first_sentence(problem: Exception) -> str:
    text = re.sub(r"\s+", " ", str(problem))
    return re.split(r"(?<=[.;]) ", text)[0].rstrip(".;")[:400] + "."


# --- the whole suite ---


@dataclass(frozen=True)
class Parts:
    """What has finished, one file for each problem and method below a folder."""

    folder: Path
    quick: bool

    def path(self, task: Task, name: str) -> Path:
        return self.folder / "parts" / task.name.replace(" ", "-") / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.json"

    def mark(self, task: Task, method: Method | None) -> JsonObject:
        """What must be the same for a part to be used again."""
        source = "" if method is None else _source(method)
        return {
            "suite": VERSION,
            "compfed": __version__,
            "quick": self.quick,
            "words": task.words,
            "terms": task.terms(),
            "source": source,
        }

    def read(self, task: Task, name: str, method: Method | None) -> Any:
        """The content of a part; None where there is none, or one of other terms, or a damaged one."""
        try:
            found = json.loads(self.path(task, name).read_text(encoding="utf-8"))
            return found["content"] if found["mark"] == self.mark(task, method) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, task: Task, name: str, method: Method | None, content: JsonObject) -> None:
        path = self.path(task, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"mark": self.mark(task, method), "content": content}, indent=1) + "\n")


def _source(method: Method) -> str:
    """A digest of the file that a method is written in."""
    file = getattr(sys.modules.get(method.__module__), "__file__", None)
    return (
        hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else method.__module__
    )


class _Progress:
    """Lines with the share of the work that is done and the time that is left."""

    def __init__(self, total: float, count: int, stream: TextIO | None):
        self.total, self.count, self.out = total, count, sys.stderr if stream is None else stream
        self.began, self.done, self.number, self.fresh = time.monotonic(), 0.0, 0, 0.0

    def start(self, name: str) -> None:
        self.number += 1
        elapsed = time.monotonic() - self.began
        left = f", about {_minutes(elapsed * (self.total - self.done) / self.fresh)} left" if self.fresh > 5.0 else ""
        self.out.write(f"[{self.number}/{self.count}, {self.done / self.total:.0%}{left}] {name}\n")
        self.out.flush()

    def finished(self, weight: float, ran: bool) -> None:
        self.done += weight
        self.fresh += weight if ran else 0.0

    def skip(self, text: str, count: int, weight: float) -> None:
        """Say why a problem with so many methods is left out."""
        self.number, self.done = self.number + count, self.done + count * weight
        self.out.write(f"{text}\n")
        self.out.flush()


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def leaderboard(
    out: str | Path,
    quick: bool = False,
    data: str | Path | None = None,
    problems: Sequence[str] | None = None,
    methods: Sequence[str | Method] | None = None,
    add: Sequence[str | Path] = (),
    stream: TextIO | None = None,
    tasks: Mapping[str, Task] | None = None,
) -> JsonObject:
    """Run what is not on the disk yet, and write leaderboard.json, result.json and report.html.

    Parameters
    ----------
    out : path
        The folder; a second call with it goes on from what is there.
    quick : bool, default=False
        Four small problems, three settings and one seed.
    data : path, optional
        A folder with the tables that do not come with the package.
    problems, methods : sequence, optional
        Those to run; all unless given. What other calls have run of known methods stays on the board.
    add : sequence of path, optional
        Results files of others, which are checked before anything runs.
    stream : text file, optional
        Where progress is shown; standard error unless given.
    tasks : dict of str to Task, optional
        Another suite, for tests.

    Returns
    -------
    dict
        The board, as leaderboard.json has it.
    """
    out, others = Path(out), [read_results(path) for path in add]
    check_writable(out, f"--out {out}")
    out.mkdir(parents=True, exist_ok=True)
    every = suite(quick, None if data is None else Path(data)) if tasks is None else dict(tasks)
    asked = list(every) if problems is None else list(problems)
    if unknown := [name for name in asked if name not in every]:
        raise InputError(
            f"there is no problem {unknown[0]!r} in the suite; there are {join_names(list(every), most=20)}."
        )
    every_method: dict[str, Method] = {**known(), **SOLVERS}
    chosen = every_method if methods is None else {each.label: each.method for each in contenders(methods, {})}
    pairs = {name: _methods_of(every[name], chosen, methods is not None) for name in asked}
    total = sum(_weight(every[name]) * len(of) for name, of in pairs.items())
    progress = _Progress(total, sum(map(len, pairs.values())), stream)
    made = _Board(Parts(out, quick), progress, LIMIT[quick])
    try:
        for name, task in every.items():
            made.run(task, pairs.get(name, {}), {**every_method, **chosen})
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"What has finished is kept in {out}; the same command goes on from it.") from None
    board: JsonObject = {
        "format": FORMAT, "suite": VERSION, "mode": "quick" if quick else "full", "by": "compfed",
        "created": time.strftime("%Y-%m-%d %H:%M:%S %z"), "versions": versions(), "work": made.work, "problems": made.about,
        "entries": made.entries,
    }  # fmt: skip
    if tasks is None:
        check_results(board)
    write_text(out / NAME, json.dumps(board, indent=1, allow_nan=False) + "\n")
    write_page(added(board, others), out)
    return board


@dataclass
class _Board:
    """What is known so far: descriptions of problems, results, and the work that they took."""

    parts: Parts
    progress: _Progress
    limit: float
    about: JsonObject = field(default_factory=dict)
    entries: list[JsonObject] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=lambda: dict.fromkeys(WORK, 0.0))

    def run(self, task: Task, todo: Mapping[str, Method], every: Mapping[str, Method]) -> None:
        """Run methods on a problem where that is not done yet; add what has been run before, of all methods that are known."""
        prepared: Prepared | None = None
        description = self.parts.read(task, "problem", None)
        if description is None and not todo:
            return
        if description is None:
            try:
                prepared = Prepared.of(task)
            except Missing as reason:
                self.about[task.name] = {"words": task.words, "terms": task.terms(), "skipped": str(reason)}
                self.progress.skip(f"{task.name}: skipped; it {reason}", len(todo), _weight(task))
                return
            description = prepared.about
            self.parts.write(task, "problem", None, description)
        self.about[task.name] = description
        for label, method in todo.items():
            self.progress.start(f"{task.name}: {label}")
            part = self.parts.read(task, label, method)
            fresh = part is None
            if fresh:
                prepared = Prepared.of(task) if prepared is None else prepared
                part = self._compare(prepared, method)
                self.parts.write(task, label, method, part)
            self.progress.finished(_weight(task), fresh)
            self._add(task, part)
        for label, method in every.items():
            if label not in todo and (part := self.parts.read(task, label, method)) is not None:
                self._add(task, part)

    def _compare(self, prepared: Prepared, method: Method) -> JsonObject:
        """The result of a method on a problem, and the work that it took."""
        before, began = count_programs(), time.process_time()
        entry, runs = prepared.compare(method, self.limit)
        work = runs, max(0, count_programs() - before), round(time.process_time() - began, 1)
        return {"entry": entry, "work": dict(zip(WORK, work, strict=True))}

    def _add(self, task: Task, part: JsonObject) -> None:
        over_seeds = () if len(task.seeds) > 1 else ("range", "finals")  # of one seed they say nothing more
        self.entries.append({name: value for name, value in part["entry"].items() if name not in over_seeds})
        self.work = {key: round(amount + part["work"][key], 1) for key, amount in self.work.items()}


def _methods_of(task: Task, chosen: Mapping[str, Method], asked: bool) -> dict[str, Method]:
    """The methods that run on a problem: all, or those that the suite names and those asked for by name."""
    if task.methods is None or asked:
        return dict(chosen)
    return {name: method for name, method in chosen.items() if name in task.methods}


def _weight(task: Task) -> float:
    """About how many seconds a method takes on a problem; the time that is left follows from it."""
    runs = (task.tries.total or task.tries.first) + len(task.seeds)
    return PER_METHOD + runs * task.rounds * PER_ROUND * (1 + task.tau / 5)


def write_page(board: JsonObject, out: Path) -> None:
    """Write result.json and report.html of a board."""
    out.mkdir(parents=True, exist_ok=True)
    write_result(out, record_of(board))
    write_run_report(out)
