"""The command line: what it writes, what it prints, how it refuses."""

from __future__ import annotations

import argparse
import concurrent.futures
import errno
import html
import io
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import compfed as cf
from compfed._utils.text import NamedSteps, progress_bar
from compfed.cli import _parser, main
from compfed.report.figures import Curve, Panel, draw
from compfed.studies import compare_methods as compare
from compfed.studies.paper import reproduce
from compfed.studies.paper.claims import CHECKS, within_bound
from compfed.studies.paper.experiments import ALGORITHM_1, QUICK, Experiment, Group, Key, theorem_bound
from compfed.studies.paper.reproduce import FinishedExperiments

SRC = str(Path(cf.__file__).parents[1])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["compare", "--methods", "DecopledProx"], "nearest is 'DecoupledProx'"),
        (["compare", "--methods", "FedAvg"], "FedAvg is for smooth problems"),
        (["compare", "--methods", "FISTA", "--participants", "3"], "FISTA needs every client"),
        (["compare", "--rounds", "0.5"], "rounds=0.5 must be at least 1"),
        (["compare", "--rounds", "nan"], "must be at least 1, and finite"),
        (["compare", "--bytes", "inf"], "must be at least 1, and finite"),
        (["compare", "--rounds", "1e300", "--quick", "--methods", "FedDA"], "more than can be counted"),
        (["compare", "--few-rounds", "--rounds", "inf"], "rounds=inf must be a whole number"),
        (["compare", "--candidates", "100", "--clients", "2"], "candidates=100 must be at most 99"),
        (["compare", "--clients", "4000000000", "--quick"], "GB of numbers"),
        (["compare", "--samples", "4000000000", "--quick"], "--samples 4000000000"),
        (["compare", "--candidates", "0", "--quick"], "candidates=0 must be"),
        (["compare", "--l1", "nan"], "lam must be"),
        (["compare", "--methods", "no_such_module:Method", "--quick"], "no_such_module"),
        (["compare", "--gradients", "2", "--methods", "FedDA", "--quick"], "does not buy one round of FedDA"),
        (["compare", "--ridge", "-1"], "ridge must be finite and >= 0"),
        (["compare", "--few-rounds", "--tau", "3"], "--tau has no meaning with --few-rounds"),
        (["compare", "--few-rounds", "--methods", "FISTA"], "--methods has no meaning with --few-rounds"),
        (["compare", "--few-rounds", "--rounds", "1.5"], "rounds=1.5 must be a whole number >= 2"),
        (["reproduce", "--seeds", "0"], "at least one seed"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_status_2(argv, message, capsys, tmp_path):
    assert main([*argv, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert error.count("\n") == 1


COMMANDS = [["reproduce", "--quick"], ["compare", "--quick"], ["compare", "--few-rounds", "--quick"]]


def never(*_, **__):
    raise AssertionError("something was computed")


@pytest.fixture
def nothing_is_computed(monkeypatch):
    monkeypatch.setattr(cf.Problem, "__init__", never)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("below", ["file", "file/folder", "a" * 300], ids=["a file", "below a file", "too long a name"])
def test_a_folder_that_cannot_be_made_is_known_before_anything_is_computed(
    command, below, capsys, tmp_path, nothing_is_computed
):
    (tmp_path / "file").write_text("")
    assert main([*command, "--out", str(tmp_path / below)]) == 2
    error = capsys.readouterr().err
    assert ("is a file, or below one" if "file" in below else "File name too long") in error
    assert error.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_disk_is_known_before_anything_is_computed(command, capsys, tmp_path, monkeypatch, nothing_is_computed):
    class Full(io.BytesIO):
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("compfed._utils.files.tempfile.TemporaryFile", lambda dir: Full())
    assert main([*command, "--out", str(tmp_path / "a" / "b")]) == 2
    assert "nothing can be written there (No space left on device)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())  # what was made to try is gone


def in_a_process(*argv: str, **changed: str) -> subprocess.Popen:
    command = [sys.executable, "-c", "import sys; from compfed.cli import main; sys.exit(main())", *argv]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SRC, **changed}
    )


def test_a_reader_that_goes_is_no_error():
    with in_a_process("list", "algorithms") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_words_that_the_locale_does_not_have_are_printed_by_number(tmp_path):
    (tmp_path / "zürich.csv").write_text("a,y\n1,0\n2,1\n")
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    out, error = in_a_process("describe", str(tmp_path), "--label", "y", **ascii).communicate()
    assert (error, rb"z\xfcrich" in out or rb"z\udcc3\udcbcrich" in out) == (b"", True)


def test_a_disk_that_is_full_in_the_end_is_one_line(capsys, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "report.html")

    monkeypatch.setattr("compfed.cli.local_commands.list_methods", full)
    assert main(["list", "algorithms"]) == 2
    assert capsys.readouterr().err == "compfed list: report.html: No space left on device.\n"


def all_parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(found for action in below for child in action.choices.values() for found in all_parsers(child))]


@pytest.mark.parametrize("parser", all_parsers(_parser()), ids=lambda parser: parser.prog)
def test_every_command_has_examples_that_can_be_typed(parser):
    text = parser.format_help()
    lines = [line.strip() for line in text[text.index("\nexample") :].splitlines()]
    examples = [line.split("#")[0] for line in lines if line.startswith("compfed ")]
    assert examples
    assert any(example.startswith(parser.prog) for example in examples)
    for example in examples:  # a wrong option would end the process
        assert callable(_parser().parse_args(shlex.split(example.split(">")[0])[1:]).run)


def test_the_help_lists_every_command_once_and_the_exit_codes(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for name in all_parsers(_parser())[0]._subparsers._group_actions[0].choices:  # pyright: ignore
        assert len(re.findall(rf"^  {name} ", text, flags=re.MULTILINE)) == 1
    assert set(map(int, re.findall(r"^  (\d+) ", text, flags=re.MULTILINE))) == {0, 1, 2, 130}


def test_list_as_json_has_an_object_for_every_method(capsys):
    for what, field in (("algorithms", "method"), ("references", "reference")):
        assert main(["list", what, "--methods", "FISTA,FedDA", "--json"]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [one["method"] for one in found] == ["FISTA", "FedDA"]
        assert all(one[field] for one in found)


def test_list_prints_every_algorithm(capsys):
    assert main(["list", "algorithms"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in cf.algorithms.ALGORITHMS)


def test_describe_prints_table_one(capsys, tmp_path):
    (tmp_path / "north.csv").write_text("id,age,ill\nn1,50,1\nn2,61,0\nn3,40,0\n")
    (tmp_path / "south.csv").write_text("id,age,ill\ns1,70,1\n")
    assert main(["describe", str(tmp_path), "--label", "ill", "--drop", "id"]) == 0
    printed = capsys.readouterr().out
    sites = cf.data.from_arrays([[[50], [61], [40]], [[70]]], [[1, 0, 0], [1]], ["north", "south"], columns=["age"])
    assert printed.split() == str(cf.describe(sites)).replace("label (label)", "ill (label)").split()
    assert main(["describe", str(tmp_path), "--label", "ill", "--drop", "id", "--json"]) == 0
    expected = json.dumps(cf.describe(sites).to_dict()).replace("label", "ill").replace("ills", "labels")
    assert json.loads(capsys.readouterr().out) == json.loads(
        expected.replace("NaN", "null").replace("Infinity", "null")
    )
    # the same rows in one file with a column for the site, and as svmlight
    (tmp_path / "all.csv").write_text("age,ill,town\n50,1,north\n61,0,north\n70,1,south\n40,0,north\n")
    assert main(["describe", str(tmp_path / "all.csv"), "--label", "ill", "--site", "town"]) == 0
    assert capsys.readouterr().out == printed
    (tmp_path / "north.svm").write_text("1 1:50\n0 1:61\n0 1:40\n")
    (tmp_path / "south").write_text("1 1:70\n")
    paths = [str(tmp_path / "north.svm"), str(tmp_path / "south")]
    for argv in ([], ["--format", "svmlight"]):
        assert main(["describe", *paths, *argv]) == 0
        assert capsys.readouterr().out.split() == printed.replace("age,", "0,").replace("ill (", "label (").split()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["a.csv", "--label", "z"], "a has no column 'z'; it has x, y"),
        (["b.csv", "--label", "y"], "there is no file"),
        (["a.csv", "--label", "y", "--site", "town"], "no column 'town'"),
        (["a.csv", "--drop", "z"], "--drop 'z': no file has this column"),
        (["a.csv", "--label", "y", "--format", "svmlight"], "--label is for CSV and Parquet"),
        (["a.csv", "--format", "svmlight"], "a.csv cannot be read as svmlight"),
    ],
)
def test_a_mistake_in_describe_is_one_line_and_status_2(argv, message, capsys, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,0\nred,1\n")
    assert main(["describe", str(tmp_path / argv[0]), *argv[1:]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("compfed describe: ")
    assert error.count("\n") == 1


def test_compare_tunes_fairly_and_reports_costs(capsys, tmp_path):
    argv = ["compare", "--clients", "4", "--samples", "20", "--features", "5", "--rounds", "60", "--candidates", "3"]
    argv += ["--ridge", "0.05", "--methods", "DecoupledProx,ProximalGradient", "--out", str(tmp_path)]
    assert main(argv) == 0
    content = json.loads((tmp_path / "comparison.json").read_text())
    problem = cf.Problem(
        cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(1e-4), cf.data.synthetic(clients=4, samples=20, features=5)
    )
    star = cf.solve_pooled(problem)
    for name, result in content["methods"].items():
        tuning = result["tuning"]
        scales = [tried["scale"] for tried in tuning["tried"]]
        assert scales[:3] == [0.5, 1.0, 2.0]
        # the choice is the best of the candidates when each is run alone
        finals = []
        for scale in scales:
            algorithm = cf.algorithms.default_steps(name, problem, 5, scale)
            try:
                finals.append(cf.simulate(problem, algorithm, 60, x_star=star)["optimality"][-1])
            except cf.Divergence:
                finals.append(np.inf)
        assert tuning["chosen"] == {"scale": scales[int(np.argmin(finals))]}
        np.testing.assert_allclose(result["final"], min(finals), rtol=1e-6)
        first = result["to_accuracy"]["0.01"]
        assert first["bytes"] == 8 * 5 * first["rounds"]
        assert first["gradients"] == first["rounds"] * (5 if name == "DecoupledProx" else 1)
    printed = capsys.readouterr().out
    assert "gradients per client" in printed
    assert (tmp_path / "comparison.svg").exists()


def test_budgets_buy_rounds():
    sites = cf.data.synthetic(clients=4, samples=20, features=5)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(1e-4), sites)
    algorithm = cf.algorithms.DecoupledProx(eta=1.0, tau=5)
    assert compare.Budget("gradients", 103).rounds(algorithm, problem, 4) == 20
    assert compare.Budget("bytes", 400).rounds(algorithm, problem, 4) == 10
    assert compare.Budget("gradients", 103).rounds(algorithm, problem, 2) == 41  # half the clients, half the cost


# --- reproduce, interrupted ---


def made_up(names: list[str], began: list[str]) -> list[Experiment]:
    """Steps that take no time: each notes that it was begun, and gives one trace that is its own."""

    def run(name: str):
        def give(progress):
            began.append(name)
            progress(1, 1)
            return {Key(Group.TAU, name, 2.0): [trace_of(np.array([1.0, len(name)])), trace_of(np.ones(2))]}

        return give

    return [Experiment(name, run(name)) for name in names]


def test_interrupted_it_keeps_finished_steps_and_goes_on_from_them(capsys, monkeypatch, tmp_path):
    began: list[str] = []
    names = ["one", "three", "seven"]

    def interrupted(futures, return_when):
        reproduce_wait(futures[:2])
        raise KeyboardInterrupt

    reproduce_wait = concurrent.futures.wait
    monkeypatch.setattr(reproduce, "experiments", lambda size: made_up(names, began))
    monkeypatch.setattr(reproduce, "wait", interrupted)
    assert main(["reproduce", "--quick", "--out", str(tmp_path)]) == 130
    last = capsys.readouterr().err.splitlines()[-1]
    assert "compfed reproduce: interrupted." in last
    assert f"steps are finished and kept in {tmp_path}; the same command goes on from them." in last
    # the second run does only what is left, and has the traces of all
    monkeypatch.undo()
    began.clear()
    finished = FinishedExperiments(tmp_path, QUICK)
    done = len(finished)
    assert done >= 2
    found = reproduce._all_traces(made_up(names, began), finished, NamedSteps(4, io.StringIO()))
    assert len(began) == 3 - done
    assert list(found) == [Key(Group.TAU, name, 2.0) for name in names]
    assert [runs[0]["optimality"][1] for runs in found.values()] == [3, 5, 5]
    # of another size nothing is taken up; and when all is done, the next run begins anew
    assert len(FinishedExperiments(tmp_path, replace(QUICK, seeds=9))) == 0
    finished.clear()
    assert len(FinishedExperiments(tmp_path, QUICK)) == 0


def test_a_step_that_fails_stops_the_others(tmp_path):
    began: list[str] = []
    first, *others = made_up([str(k) for k in range(40)], began)

    def fails(progress):
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        reproduce._all_traces(
            [Experiment("fails", fails), first, *others],
            FinishedExperiments(tmp_path, QUICK),
            NamedSteps(42, io.StringIO()),
        )
    assert len(began) < 40


TINY = replace(
    QUICK, clients=4, samples=60, rounds=60, stochastic_rounds=20, long_rounds=500, slowest_rounds=500, draws=1,
    theory_rounds=20, seeds=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """The whole reproduction at a size that is too small to reproduce anything."""
    out = tmp_path_factory.mktemp("tiny")
    patch = pytest.MonkeyPatch()
    patch.setattr(reproduce, "QUICK", TINY)
    status = main(["reproduce", "--quick", "--out", str(out)])
    patch.undo()
    return out, status


def test_reproduce_writes_everything_and_fails_when_a_claim_fails(tiny_run):
    out, status = tiny_run
    found = json.loads((out / "claims.json").read_text())
    assert status == 1  # 60 rounds are not enough for 1e-12
    assert not next(c for c in found if c["id"] == "exact-linear")["holds"]
    assert all(set(c) == {"id", "claim", "where", "paper", "measured", "holds"} for c in found)
    # identities do not need rounds: they hold at any size
    for name in ("one-vector", "zero-mean-correction", "equation-2", "fixed-point-appendix", "fixed-point-every-n"):
        assert next(c for c in found if c["id"] == name)["holds"], name
    for name in ("figure-1", "without-floor", "figure-2", "ablation", "budget", "sparse", "theorem"):
        for ending in ("svg", "png", "pdf"):
            assert (out / "figures" / f"{name}.{ending}").stat().st_size > 1000
    page = (out / "report.html").read_text()
    assert page.count('<figure><div class="static scroll"><svg') == 7
    # 60 rows and ten mini-batches of 20, five mini-batches, five times 60 rows
    assert all(rows in page for rows in (": 260 rows read at a client", " 100 for Algorithm 1", " 300 with full"))
    assert all(c["id"] in page for c in found)
    # the report says in plain words, with its numbers, how little Theorem 1 says on the paper's own problem
    theorem = next(c for c in found if c["id"] == "theorem-1")["measured"]
    first, last = theorem["theorem 1: the paper's problem"]["Lyapunov function, first and last"]
    assert 0.95 * first < last < first
    note = theorem["note"]
    assert "Nearly vacuous on the paper&#x27;s own problem" in page
    assert f"from {first:.3g} to {last:.3g} in 500 rounds" in note
    trace = cf.Trace.load(out / "traces" / "theorem-1-the-paper-s-problem-0")
    mu, L = 0.01, trace.provenance["theorem"]["L"]
    # ln 2 / (mu eta~ / 3), eta~ = mu / (150 L^2)
    assert f"{3 * np.log(2) * 150 * L**2 / mu**2:,.0f} rounds to halve it" in note
    trace = cf.Trace.load(out / "traces" / "full-decoupledprox-0")
    assert trace["round"][-1] == 60


def trace_of(optimality: np.ndarray, **columns: np.ndarray) -> cf.Trace:
    rounds = np.arange(len(optimality))
    return cf.Trace({"round": rounds, "optimality": optimality, **columns}, np.zeros(1))


def test_claims_fail_on_traces_that_contradict_them():
    """A claim that cannot fail is worth nothing: feed made-up traces to some of them."""
    r = np.arange(601)
    exact, stalled = trace_of(10.0 ** (-0.0226 * r)), trace_of(np.maximum(10.0 ** (-0.0226 * r), 1e-9))
    curved = trace_of(np.maximum(10.0 ** (-8e-5 * r.astype(float) ** 2), 1e-13))
    linear = CHECKS["exact-linear"]
    assert linear({ALGORITHM_1: [exact]}).holds
    assert not linear({ALGORITHM_1: [stalled]}).holds
    assert not linear({ALGORITHM_1: [curved]}).holds
    neighbourhood = CHECKS["neighbourhood"]
    floor = trace_of(np.maximum(0.9**r, 0.3))
    fedmid, fedda = Key(Group.FULL, "FedMid"), Key(Group.FULL, "FedDA")
    assert neighbourhood({fedmid: [floor], fedda: [floor]}).holds
    assert not neighbourhood({fedmid: [floor], fedda: [exact]}).holds
    coupling, coupled = CHECKS["coupling"], Key(Group.COUPLED, "NaiveCoupled")
    for model, left, holds in ((1.0, 0, True), (1.0, 3, False), (0.3, 0, False)):
        assert coupling({coupled: [trace_of(np.full(9, model), nonzeros=np.full(9, left))]}).holds is holds
    warm, centre = (Key(Group.SPLITTING, start) for start in ("previous", "centre"))
    assert CHECKS["warm-started-splitting"]({warm: [exact]}).holds
    assert not CHECKS["warm-started-splitting"]({warm: [floor]}).holds
    assert CHECKS["inexact-splitting"]({centre: [floor]}).holds
    assert not CHECKS["inexact-splitting"]({centre: [exact]}).holds


def test_a_floor_is_called_a_floor_only_where_the_error_has_stopped_falling():
    r = np.arange(401)
    rng = np.random.default_rng(0)

    def runs(curve: np.ndarray) -> list[cf.Trace]:
        return [trace_of(curve * np.exp(0.1 * rng.standard_normal(401))) for _ in range(5)]

    flat, falling = runs(np.maximum(0.9**r, 1e-2)), runs(np.maximum(0.9**r, 0.1 * 0.995**r))
    keyed = {Key(Group.ETA, "eta", eta): traces for eta, traces in ((1.0, flat), (0.2, flat), (0.02, falling))}
    measured = CHECKS["eta-trade-off"](keyed).measured
    assert set(measured["relative error at the floor"]) == {"1", "0.2"}  # pyright: ignore[reportArgumentType]
    assert set(measured["relative error at the end, still falling"]) == {"0.02"}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("power", "holds"), [(0.5, True), (0.25, False), (1.0, False)])
def test_the_power_with_which_the_floor_falls_is_measured(power, holds):
    """Floors made up as (1/b - 1/m)^power and n^-power."""
    how = {"problem": {"samples": {"largest": 200}}}
    found = {}
    for group, name, values in ((Group.BATCH, "b", (10, 40, 160)), (Group.CLIENTS, "n", (30, 120))):
        for value in values:
            noise = 1 / value - (1 / 200 if name == "b" else 0)
            found[Key(group, name, value)] = [replace(trace_of(np.full(40, noise**power)), provenance=how)]
    claim = CHECKS["residual"](found)
    assert claim.holds is holds
    assert [claim.measured[f"power of the noise, 1/{name}"] for name in "bn"] == pytest.approx([power] * 2)


def test_the_theorem_s_bound_is_its_formula_and_can_be_broken():
    omega = np.array([1.0, 0.5, 0.2])
    how = {"algorithm": {"eta": 0.01, "eta_g": 2.0, "tau": 5}, "participants": 4, "batch_size": 10}
    constants = {"mu": 0.5, "eta_tilde": 0.1, "sigma2": 3.0, "B_g": 0.2}
    trace = replace(trace_of(omega, lyapunov=omega), provenance={**how, "theorem": constants})
    bound = theorem_bound([trace], constants)
    # eta eta_g = 0.02; noise 30 * 0.02 * 3 / (0.5 * 4 * 10) = 0.09; subgradients 21 * 5 * 0.02 * 0.04 / (0.5 * 4) = 0.042
    np.testing.assert_allclose(bound, (1 - 0.05 / 3) ** np.arange(3) + 0.132, rtol=1e-14)
    for shift, holds in ((0.0, True), (1.0, False)):
        columns = {**trace.columns, "lyapunov": omega + shift, "bound": bound}
        made_up = {Key(Group.THEOREM, "made up"): [replace(trace, columns=columns)]}
        assert within_bound(made_up, Group.THEOREM)[1] is holds


def test_figures_draw_bands_over_seeds(tmp_path):
    rng = np.random.default_rng(0)
    traces = [trace_of(0.9 ** np.arange(50) * (1 + 0.1 * rng.random(50))) for _ in range(5)]
    written = draw([Panel("title", [Curve("five seeds", traces, 0), Curve("one", traces[:1], 1)])], tmp_path / "figure")
    assert [p.suffix for p in written] == [".svg", ".png", ".pdf"]
    again = draw([Panel("title", [Curve("five seeds", traces, 0), Curve("one", traces[:1], 1)])], tmp_path / "again")
    assert written[0].read_bytes() == again[0].read_bytes()  # the same traces give the same file


@pytest.mark.parametrize("name", ["$x$ and $", r"$\\frac$", "_hidden", "two\nlines", "tab\tand\x00zero", "100 %", "ü"])
def test_names_are_drawn_as_they_are(name, tmp_path):
    """Neither as formulas, which may not parse, nor hidden from the legend."""
    trace = trace_of(0.9 ** np.arange(5))
    draw([Panel("title", [Curve(name, [trace], 0), Curve("other", [trace], 1)])], tmp_path / "figure")
    shown = " ".join(name.replace("\x00", " ").split())
    text = " ".join(html.unescape((tmp_path / "figure.svg").read_text(encoding="utf-8")).split())
    assert shown in text


def test_a_figure_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    lines = [Curve("a", [trace_of(0.9 ** np.arange(5))], 0)]
    draw([Panel("title", lines)], tmp_path / "figure")
    before = (tmp_path / "figure.svg").read_bytes()

    def half(self, where, **_):
        Path(where).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", half)
    with pytest.raises(OSError, match="full"):
        draw([Panel("another title", lines)], tmp_path / "figure")
    assert (tmp_path / "figure.svg").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["figure.pdf", "figure.png", "figure.svg"]


def test_progress_is_silent_when_quick_and_plain_without_a_terminal(monkeypatch):
    clock = iter([0.0, 1.0, 11.0, 12.0, 40.0])
    monkeypatch.setattr("compfed._utils.text.time", SimpleNamespace(monotonic=lambda: next(clock)))
    out = io.StringIO()
    show = progress_bar("work", out)
    show(1, 4)
    assert out.getvalue() == ""
    show(2, 4)
    assert out.getvalue() == "work: 2/4, about 11 s left\n"
    show(3, 4)
    show(4, 4)
    assert out.getvalue().splitlines()[1:] == ["work: 4/4, 40 s"]


def test_fit_takes_offset_and_weight_columns(tmp_path, capsys):
    """Rates with weights, from two files to predictions of a third: the coefficients of statsmodels on the pooled rows."""
    pd, sm = pytest.importorskip("pandas"), pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"age": rng.normal(0, 1, 120), "years": rng.uniform(0.5, 4, 120), "w": rng.integers(1, 4, 120)}
    )
    table["falls"] = rng.poisson(table["years"] * np.exp(0.4 * table["age"] - 1))
    table["log_years"] = np.log(table["years"])
    files = [str(tmp_path / f"{town}.csv") for town in ("oslo", "rome")]
    for file, rows in zip(files, (table[:50], table[50:]), strict=True):
        rows.to_csv(file, index=False)
    run = str(tmp_path / "run")
    options = ["--label", "falls", "--drop", "years", "--offset", "log_years", "--weight", "w", "--out", run]
    assert main(["fit", *files, "--model", "poisson", "--alpha", "0", "--evaluate", "none", *options]) == 0
    X = sm.add_constant(table[["age"]])
    pooled = sm.GLM(
        table["falls"], X, family=sm.families.Poisson(), offset=table["log_years"], freq_weights=table["w"]
    ).fit(tol=1e-14)
    fitted = cf.load_model(run)
    np.testing.assert_allclose(np.append(fitted.intercept_, fitted.coef_), pooled.params, rtol=1e-8)
    capsys.readouterr()
    assert main(["predict", run, files[0]]) == 0
    printed = [float(line) for line in capsys.readouterr().out.splitlines()[1:]]
    np.testing.assert_allclose(printed, pooled.fittedvalues[:50], rtol=1e-8)


def test_several_problems_of_files_have_a_line_each(tmp_path, capsys):
    for name, rows in {"oslo": "61,x\n", "rome": "old,1\n"}.items():
        (tmp_path / f"{name}.csv").write_text("age,id\n" + rows)
    assert main(["fit", str(tmp_path), "--label", "died", "--model", "logistic", "--out", str(tmp_path / "run")]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("compfed fit: ")
    assert first.endswith("4 problems:")
    assert len(others) >= 4
    assert sum("no column 'died'" in line for line in others) == 2
