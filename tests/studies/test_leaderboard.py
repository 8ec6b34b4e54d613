"""The leaderboard: ranks that are worked out by hand, files of others, files that cannot be true, the same ranks twice."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from jax import Array
from places import ROOT

import compfed as cf
import compfed.algorithms as alg
from compfed._utils.text import markdown_table
from compfed.algorithms import record
from compfed.cli import main
from compfed.simulation.clock import PRESETS
from compfed.solvers.second_order import SOLVERS
from compfed.studies.compare_methods import solver_trace
from compfed.studies.leaderboard import run
from compfed.studies.leaderboard.ranks import firsts_table, ranks, record_of, standings, totals, totals_table, why_not
from compfed.studies.leaderboard.results import FORMAT, UNITS, added, read_results
from compfed.studies.leaderboard.run import Furthest, leaderboard
from compfed.studies.leaderboard.suite import DISTANCE, TUNING_SEED, VERSION, Task, suite
from compfed.studies.tuning import SCALE, Tries, contenders, search, settings
from compfed.trace import Trace

D = 4
DATACENTRE = PRESETS["datacentre"]


# --- a suite whose results can be worked out on paper ---


class Model(NamedTuple):
    x: Array


class Three(NamedTuple):
    a: Array
    b: Array
    c: Array


@record
class Halve(alg.Algorithm[Model, None, Model, Model]):
    """x <- x - grad f(x) / 2. Where the Hessian is the identity, the error is halved in every round."""

    composite = False

    def init(self, x0):
        return Model(x0), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        gradient = f.grad(d.x, key)
        return Model(gradient), c, d.x

    def server_update(self, g, s, mean, weight):
        return Model(s.x - 0.5 * mean.x)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls()


@record
class Third(alg.Algorithm[Model, None, Model, Three]):
    """x <- x - 2 grad f(x) / 3: a third of the error is left. Its gradient is sent three times, to cost more bytes."""

    composite = False

    def init(self, x0):
        return Model(x0), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        gradient = f.grad(d.x, key)
        return Three(gradient, gradient, gradient), c, d.x

    def server_update(self, g, s, mean, weight):
        return Model(s.x - 2.0 * mean.a / 3.0)

    def solution(self, g, s):
        return s.x

    @classmethod
    def from_bounds(cls, b, scale):
        return cls()


@record
class Away(Halve):
    """x <- x - 11 grad f(x): the error is tenfold after every round."""

    def server_update(self, g, s, mean, weight):
        return Model(s.x - 11.0 * mean.x)


def quadratic(penalty: Any = None) -> cf.Problem:
    """f_i(x) = ||x - c_i||^2 / 2 + constant over two sites of four rows: 2 e_j, with label 2 c_ij."""
    X = np.tile(2.0 * np.eye(D), (2, 1))
    labels = 2.0 * np.array([[3.0, -1.0, 2.0, 0.5], [1.0, 5.0, -2.0, 1.5]])
    sites = cf.data.from_table(X, labels.ravel(), np.repeat([0, 1], D))
    return cf.Problem(cf.losses.Squared(), penalty or cf.regularisers.Zero(), sites)


def tiny() -> dict[str, Task]:
    terms: dict[str, Any] = {"clock": "datacentre", "tau": 2}
    smooth = Task("quadratic", "a quadratic", quadratic, 40, **terms)
    sparse = Task("sparse", "the same with l1", lambda: quadratic(cf.regularisers.L1(0.1)), 40, **terms)
    return {"quadratic": smooth, "sparse": sparse}


METHODS: list[Any] = [alg.ProximalGradient, Halve, Third, Away]


@pytest.fixture(scope="module")
def board(tmp_path_factory) -> tuple[dict[str, Any], Path, str]:
    folder, said = tmp_path_factory.mktemp("board"), io.StringIO()
    return leaderboard(folder, methods=METHODS, stream=said, tasks=tiny()), folder, said.getvalue()


def entry_of(board: dict[str, Any], problem: str, method: str) -> dict[str, Any]:
    (found,) = [e for e in board["entries"] if (e["problem"], e["method"]) == (problem, method)]
    return found


def test_costs_and_ranks_are_those_on_paper(board):
    """(1/2)^r and (1/3)^r first fall below 1e-2, 1e-4, 1e-6 at rounds 7, 14, 20 and 5, 9, 13; one step of length 1/L is exact."""
    found, _, _ = board
    each = {"Halve": ([7, 14, 20], 1), "Third": ([5, 9, 13], 3), "ProximalGradient": ([1, 1, 1], 1)}
    for name, (rounds, vectors_up) in each.items():
        entry = entry_of(found, "quadratic", name)
        per_round = 8.0 * D * (vectors_up + 1)
        seconds = DATACENTRE.latency + per_round / DATACENTRE.bandwidth_up + D * DATACENTRE.row
        for r, (level, paid) in zip(rounds, entry["to_accuracy"].items(), strict=True):
            expected = {"rounds": r, "bytes": r * per_round, "rows": r * D, "seconds": r * seconds}
            assert paid == pytest.approx(expected, rel=1e-6), (name, level)
    own = [entry_of(found, "quadratic", name) for name in ("Halve", "Third")]
    assert ranks(own, "0.0001", "rounds") == {"Third": 1, "Halve": 2}
    assert ranks(own, "0.0001", "rows") == {"Third": 1, "Halve": 2}
    assert ranks(own, "0.0001", "bytes") == {"Halve": 1, "Third": 2}  # 14 rounds of 64 bytes, 9 rounds of 128
    (smooth, _) = standings(found)
    places = {row["method"]: row["costs"]["rounds"]["rank"] for row in smooth["methods"]}
    assert places == {"ProximalGradient": 1, "Third": 2, "Halve": 3, "Away": None}


def test_five_settings_are_tried_and_the_best_one_is_found(board):
    """Multiples 1/4, 1, 4 of 1/L leave 3/4, 0 and 3 times the error; then 2 and 1/2, beside the best. The others have no step."""
    found, _, _ = board
    entry = entry_of(found, "quadratic", "ProximalGradient")
    assert (entry["tried"], entry["setting"], entry["at_edge"]) == (5, "scale = 1", [])
    for name in ("Halve", "Third"):
        entry = entry_of(found, "quadratic", name)
        assert (entry["tried"], entry["setting"]) == (0, "nothing to tune")


def test_what_does_not_arrive_says_so(board):
    found, folder, said = board
    assert entry_of(found, "quadratic", "Away")["status"] == "diverged"
    for name in ("Halve", "Third", "Away"):
        entry = entry_of(found, "sparse", name)
        assert entry["status"] == "does not apply"
        assert "is for smooth problems and has no place for the regulariser L1" in entry["reason"]
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "diverged" in page
    assert "It is for smooth problems and has no place for the regulariser L1." in page
    assert "[8/8, " in said
    assert "left] " in said or found["work"]["cpu_seconds"] < 10


def test_a_second_run_gives_the_same_and_a_finished_one_is_not_run_again(board, tmp_path, monkeypatch):
    found, folder, _ = board
    again = leaderboard(tmp_path, methods=METHODS, stream=io.StringIO(), tasks=tiny())
    assert again["entries"] == found["entries"]
    assert again["problems"] == found["problems"]

    def never(*of: Any) -> None:
        raise AssertionError("it was run again")

    lost = folder / "parts" / "sparse" / "Away.json"
    kept = lost.read_text()
    monkeypatch.setattr(run.Prepared, "compare", never)
    resumed = leaderboard(folder, methods=METHODS, stream=io.StringIO(), tasks=tiny())
    assert resumed["entries"] == found["entries"]
    lost.write_text(kept[:-40])  # cut off: run again
    with pytest.raises(AssertionError, match="run again"):
        leaderboard(folder, methods=METHODS, stream=io.StringIO(), tasks=tiny())
    lost.write_text(kept)
    changed = tiny()
    changed["sparse"] = Task("sparse", "other words", changed["sparse"].build, 41, clock="datacentre", tau=2)
    with pytest.raises(AssertionError, match="run again"):  # other terms: nothing of it is used
        leaderboard(folder, methods=METHODS, stream=io.StringIO(), tasks=changed)


# --- ranks and words, on made-up results ---


def made(method: str, costs: Any, status: str = "ran", spent: float = 100.0, **more: Any) -> dict[str, Any]:
    """A result on the problem "p" whose costs to the three levels are `costs`, in every unit."""
    levels = ("0.01", "0.0001", "1e-06")
    return {
        "problem": "p", "method": method, "status": status, "final": 0.5, "tried": 3, "spent": dict.fromkeys(UNITS, spent),
        "to_accuracy": {level: dict.fromkeys(UNITS, cost) for level, cost in zip(levels, costs, strict=True)}, **more,
    }  # fmt: skip


def test_equal_costs_share_a_place_and_words_say_why_there_is_none():
    entries = [made("a", (1, 7, None)), made("b", (1, 3, 9)), made("c", (2, 7, 8)), made("d", (1, None, None))]
    assert ranks(entries, "0.0001", "bytes") == {"b": 1, "a": 2, "c": 2}
    assert ranks(entries, "1e-06", "bytes") == {"c": 1, "b": 2}
    assert why_not(entries[3], "0.0001", "rows", entries) == "not reached"
    assert why_not(made("d", (None,) * 3, spent=2.0), "0.0001", "rows", entries) == "open"  # 2 spent, the first paid 3
    assert why_not(made("d", (None,) * 3, "diverged"), "0.0001", "rows", entries) == "diverged"
    partly = made("e", (1, 7, 8))
    del partly["to_accuracy"]["0.0001"]["bytes"]
    assert why_not(partly, "0.0001", "bytes", [*entries, partly]) == "not measured"
    terms = {"levels": ["0.01", "0.0001", "1e-06"], "settings": 5, "criterion": DISTANCE}
    other = {"problem": "q", **{name: value for name, value in made("invited", (1, 1, 1)).items() if name != "problem"}}
    problems = {
        "p": {"terms": terms},
        "q": {"terms": {**terms, "criterion": "F(x) / F(x0)"}},
    }  # q: not convex, not in the totals
    (first, *others) = totals(standings({"problems": problems, "entries": [*entries, other]}))
    assert (first["method"], first["first"]["rounds"], first["behind"]["rounds"]) == ("b", 1, 1.0)
    assert {m["method"]: m["behind"]["rounds"] for m in others} == {"a": 7 / 3, "c": 7 / 3, "d": None}


def test_a_setting_is_better_if_it_gets_further_and_then_if_it_is_faster():
    by = Furthest("optimality", "", (1e-2, 1e-4, 1e-6))

    def score(values: list[float]) -> float:
        return by.score(Trace({"round": np.arange(len(values)), "optimality": np.array(values)}, np.zeros(1), {}))

    runs = [
        [1, 1e-7, 1e-8],
        [1, 1e-3, 1e-7],
        [1, 1e-5, 1e-5],
        [1, 0.5, 1e-5],
        [1, 1e-3, 1e-3],
        [1, 0.5, 0.5],
        [1, 2, 3],
    ]
    scores = [score([float(value) for value in values]) for values in runs]
    assert scores == sorted(scores)
    assert len(set(scores)) == len(scores)
    assert score([1.0, np.nan]) == np.inf > scores[-1]


# --- the search with a stated number of settings ---


def test_every_method_with_a_step_tries_exactly_five():
    """At an edge the search goes on beyond it; inside it halves the gap, on a log scale, to both sides."""
    problem, (each,) = quadratic(), contenders(["ProximalGradient"], {})
    tries = Tries(first=3, ratio=4.0, total=5)
    wanted = {
        1.0: [0.25, 1.0, 4.0, 2.0, 0.5],
        100.0: [0.25, 1.0, 4.0, 16.0, 64.0],
        1e-9: [0.25, 1.0, 4.0, 0.0625, 0.015625],
    }
    for best, expected in wanted.items():
        asked: list[float] = []

        def scores(chosen: Any, best: float = best, asked: list[float] = asked) -> list[float]:
            asked.extend(values[SCALE] for values in chosen)
            return [abs(np.log(values[SCALE] / best)) for values in chosen]

        found = search(each, problem, 2, tries, 0, scores)
        assert asked == pytest.approx(expected)
        assert bool(found.at_edge) == (best != 1.0)
    assert settings(each, problem, 2, Tries(3), 0) == [{SCALE: 0.5}, {SCALE: 1.0}, {SCALE: 2.0}]  # as compare_methods


def test_the_scale_multiplies_the_gradient_step_of_local_problems_too():
    """By its own rule FedDR keeps its gradient step below 1/L_max, however large the scale; that of DecoupledProx follows it."""
    problem = quadratic(cf.regularisers.L1(0.1))
    for name, follows in (("FedDR", False), ("FedPLT", False), ("DecoupledProx", True)):
        (each,) = contenders([name], {})
        tuned = [each.algorithm(problem, 2, {SCALE: scale}) for scale in (1.0, 4.0)]
        assert (tuned[1].eta == pytest.approx(4.0 * tuned[0].eta)) == follows  # pyright: ignore[reportAttributeAccessIssue]
        every = replace(each, every_step=True)
        tuned = [every.algorithm(problem, 2, {SCALE: scale}) for scale in (1.0, 4.0)]
        assert tuned[1].eta == pytest.approx(4.0 * tuned[0].eta)  # pyright: ignore[reportAttributeAccessIssue]


def test_the_clock_and_the_rows_of_a_solver():
    """Latency, bytes and rows of every message; a row is read for a value, a gradient, and a Hessian where one is asked for."""
    problem = quadratic(cf.regularisers.L1(0.1))
    trace = solver_trace(problem, SOLVERS["ProximalNewton"], None, 10, clock="datacentre")
    r, c = trace["round"], DATACENTRE
    rows = D * (2 * r + trace["hessians"])
    assert trace["hessians"][-1] >= 1
    np.testing.assert_array_equal(trace["rows"], rows)
    seconds = r * c.latency + trace["bytes_up"] / c.bandwidth_up + trace["bytes_down"] / c.bandwidth_down + rows * c.row
    np.testing.assert_allclose(trace["clock"], seconds, rtol=1e-12)


# --- the suite ---


def test_a_table_that_is_not_there_is_skipped_with_the_reason(tmp_path):
    tasks = {
        name: task for name, task in suite(data=tmp_path).items() if name in ("heart", "school", "a9a", "mushrooms")
    }
    said = io.StringIO()
    found = leaderboard(tmp_path / "out", methods=[alg.FISTA], stream=said, tasks=tasks)
    assert found["entries"] == []
    for name, file in (
        ("heart", "processed.cleveland.data"),
        ("school", "school.mat"),
        ("a9a", "a9a"),
        ("mushrooms", "agaricus"),
    ):
        assert file in found["problems"][name]["skipped"]
        assert f"{name}: skipped" in said.getvalue()
    without = suite()["heart"].build
    with pytest.raises(Exception, match="give --data DIR"):
        without()


DOCS = ROOT / "docs" / "explanation"


def test_the_page_of_the_documentation_has_the_numbers_of_its_file():
    """Every line of both tables, as the file beside the page gives them; the file is one that `--add` would accept."""
    board = read_results(DOCS / "leaderboard.json")
    record, page = record_of(board), (DOCS / "leaderboard.md").read_text(encoding="utf-8")
    for table in (firsts_table(record, markdown_table), totals_table(record, markdown_table)):
        assert table in page
    assert "/work" not in json.dumps(board)


def test_the_terms_are_equal_for_all_methods_and_the_tuning_seed_is_none_of_the_reported():
    for quick in (False, True):
        for task in suite(quick).values():
            assert TUNING_SEED not in task.seeds
            assert task.tries.total == (3 if quick else 5)
            random = task.participants is not None or task.batch_size is not None
            assert len(task.seeds) == (3 if random and not quick else 1)
            assert list(task.levels) == sorted(task.levels, reverse=True)


# --- files of others ---


def theirs() -> dict[str, Any]:
    """A results file made by hand, as somebody else would write it."""
    paper = suite(quick=True)["paper"]
    level = {"rounds": 12, "bytes": 11520, "rows": 18000.0, "seconds": 2.1}
    entry = {
        "problem": "paper", "method": "Theirs <script>alert(1)</script>", "status": "ran", "tried": 3, "setting": "eta = 0.1",
        "to_accuracy": {"0.01": level, "0.0001": {name: 2 * v for name, v in level.items()}, "1e-06": dict.fromkeys(UNITS)},
        "final": 3e-5, "spent": {"rounds": 300, "bytes": 288000, "rows": 450000, "seconds": 60.0},
    }  # fmt: skip
    return {
        "format": FORMAT, "suite": VERSION, "mode": "quick", "by": "Ada & Bob",
        "problems": {"paper": {"terms": paper.terms()}}, "entries": [entry],
    }  # fmt: skip


def written(folder: Path, content: Any, name: str = "theirs.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def ours() -> dict[str, Any]:
    """A board of ours with one method, which is slower."""
    found = copy.deepcopy(theirs())
    entry = found["entries"][0]
    entry |= {"method": "DecoupledProx", "kind": "ours"}
    entry["to_accuracy"]["0.0001"] = {name: 3 * v for name, v in entry["to_accuracy"]["0.01"].items()}
    return found | {"by": "compfed"}


def test_a_file_of_somebody_else_appears_on_the_page_and_is_ranked(tmp_path, capsys):
    results, other = written(tmp_path, ours(), "ours.json"), written(tmp_path, theirs())
    argv = ["leaderboard", "--results", str(results), "--add", str(other), "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    assert "Theirs <script>alert(1)</script> (by Ada & Bob)" in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Theirs &lt;script&gt;alert(1)&lt;/script&gt; (by Ada &amp; Bob)" in page
    assert "<script>alert" not in page
    record = record_of(added(read_results(results), [read_results(other)]))
    (problem,) = record["standings"]
    places = [(row["method"][:6], row["costs"]["rounds"]["rank"]) for row in problem["methods"]]
    assert places == [("Theirs", 1), ("Decoup", 2)]
    assert main([*argv, "--add", str(other)]) == 2
    assert "already has a result on 'paper'" in capsys.readouterr().err


HUGE = 10**400


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), "other", "format='other' must be"),
        (("suite",), "0", "numbers of two versions of the suite are not compared"),
        (("mode",), "fast", "mode='fast' must be one of full, quick"),
        (("mode",), ["full"], r"mode=\['full'\] must be"),
        (("by",), "a\x1b[2J", "by='a.*must be a text of 1 to 80"),
        (("created",), 7, "created=7 must be a text"),
        (("versions",), {"jax": ["<b>"]}, "versions: jax"),
        (("work",), {"runs": "many"}, "work: runs='many' must be a number"),
        (("note",), "see my page", "'note' is no field of a results file"),
        (("problems",), {}, "problems must map names"),
        (("problems",), {"paper\n": {}}, "there is no"),
        (("problems", "paper", "terms", "rounds"), 5000, "are not those of the suite"),
        (("problems", "paper", "rows"), "many", "rows of 'paper'='many' must be a number"),
        (("problems", "paper", "words"), 5, "words of 'paper'=5 must be a text"),
        (("entries",), {"a": 1}, "entries must be a list"),
        (("entries", 0), [1], "must be a result"),
        (("entries", 0, "problem"), "huber", "problem='huber' is not under problems"),
        (("entries", 0, "problem"), ["paper"], "is not under problems"),
        (("entries", 0, "status"), "won", "status='won' must be one of"),
        (("entries", 0, "status"), ["ran"], "must be one of"),
        (("entries", 0, "method"), "", "method='' must be a text"),
        (("entries", 0, "method"), "\u202eevil", "printable"),
        (("entries", 0, "kind"), "best", "kind='best' must be one of"),
        (("entries", 0, "better"), True, "has 'better', which no result has"),
        (("entries", 0, "tried"), 50, "tried=50 must be a whole number from 0 to 3"),
        (("entries", 0, "tried"), 1.5, "tried=1.5 must be a whole number"),
        (("entries", 0, "tried"), True, "tried=True must be a number"),
        (("entries", 0, "at_edge"), "scale", "at_edge must be a list"),
        (("entries", 0, "final"), None, "a method that ran has a final value"),
        (("entries", 0, "final"), "1e-9", "final='1e-9' must be a number"),
        (("entries", 0, "finals"), [1.0, "x"], "finals='x' must be a number"),
        (("entries", 0, "spent", "rounds"), 301, "spent 301 rounds; the budget is 300"),
        (("entries", 0, "spent", "bytes"), -1, "spent bytes=-1 must be a number from 0"),
        (("entries", 0, "spent", "joules"), 1, "must be a table of rounds, bytes, rows, seconds"),
        (("entries", 0, "to_accuracy", "0.01", "bytes"), HUGE, "a number of many digits must be"),
        (("entries", 0, "to_accuracy", "0.01", "bytes"), None, "every cost is a number, or every cost is null"),
        (("entries", 0, "to_accuracy", "0.01"), dict.fromkeys(UNITS), "cannot be less than to the level before it, None"),
        (("entries", 0, "to_accuracy", "0.0001", "rows"), 1.0, "cannot be less than to the level before it"),
        (("entries", 0, "to_accuracy", "0.0001", "rounds"), 400, "are more than the run spent"),
        (("entries", 0, "to_accuracy"), {"0.5": {}}, "must have the levels 0.01, 0.0001, 1e-06"),
        (("entries", 0, "range"), {"0.01": {"rounds": [1]}}, "must be two numbers"),
        (("entries", 0, "range"), {"0.01": {"rounds": [1, "<b>"]}}, "must be a number"),
        (("entries", 0, "reason"), ["x"], "reason=.* must be a text"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_true_is_refused(tmp_path, path, value, message):
    content: Any = theirs()
    at = content
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(cf.InputError, match=message):
        read_results(written(tmp_path, content))
    read_results(written(tmp_path, theirs()))  # the file is right without the change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "format=list must be|must be 'compfed-leaderboard-1'"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps(theirs()).replace("3e-05", "NaN"), "JSON has no NaN"),
        (json.dumps(theirs()).replace("3e-05", "1e999"), "must be a number from 0"),
    ],
)
def test_a_file_that_is_no_results_file_is_refused(tmp_path, text, message, capsys):
    path = written(tmp_path, text)
    with pytest.raises(cf.InputError, match=message):
        read_results(path)
    assert main(["leaderboard", "--results", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_files_of_other_modes_and_doubled_results_are_refused(tmp_path, capsys):
    twice = theirs()
    twice["entries"] *= 2
    with pytest.raises(cf.InputError, match="has two results on 'paper'; keep one"):
        read_results(written(tmp_path, twice))
    full = theirs() | {"mode": "full", "problems": {"paper": {"terms": suite()["paper"].terms()}}, "entries": []}
    with pytest.raises(cf.InputError, match="cannot be added to a board of mode 'quick'"):
        added(ours(), [full])
    no_reason = theirs()
    no_reason["entries"][0] = {"problem": "paper", "method": "M", "status": "does not apply"}
    with pytest.raises(cf.InputError, match="needs a reason, in words"):
        read_results(written(tmp_path, no_reason))
    assert main(["leaderboard", "--problems", "papr", "--out", str(tmp_path / "out")]) == 2
    assert "there is no problem 'papr' in the suite" in capsys.readouterr().err
    argv = ["leaderboard", "--results", str(written(tmp_path, ours())), "--quick", "--out", str(tmp_path / "out")]
    assert main(argv) == 2
    assert "--quick has no meaning with --results" in capsys.readouterr().err
