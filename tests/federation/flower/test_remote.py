"""Sites behind Flower's messages: the same numbers to the last bit, and what is wrong is named before it enters a sum."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the messages of Flower: pip install 'compfed[flower]'")

from federation.flower.fake_grid import NOW, FakeGrid, remote, written
from flwr.app import Context, Error, Message, RecordDict
from problems import logistic
from sklearn.metrics import r2_score

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.engines import reference
from compfed.engines.reference_engine import task_of
from compfed.engines.request import checked
from compfed.federation import (
    Curvature,
    Describe,
    HeldOut,
    InProcess,
    Moments,
    Refusals,
    Steepness,
    ValueAndGradient,
    ask,
    converse,
)  # fmt: skip
from compfed.federation.flower import Remote, Unanswered, client_app
from compfed.federation.flower import records as flower_records
from compfed.federation.flower.records import asked, from_records, to_records
from compfed.federation.messages import Packed, pack, unpack
from compfed.federation.server import NotFinite, ServerLoop
from compfed.federation.view import Job, Share, View
from compfed.solvers.steps import suggest
from compfed.tools.records import nonnegative, record

ROUNDS = 5
VIEW = View(cf.losses.Squared())
D = 8


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    return logistic(samples=[30, 6, 20], n=3, d=D, weights=True)


@pytest.fixture(scope="module")
def settings(problem, tmp_path_factory):
    return written(tmp_path_factory.mktemp("sites"), problem.sites)


def trajectory(federation, loop: ServerLoop, rounds: int = ROUNDS) -> np.ndarray:
    models = [loop.model()]
    for _ in range(rounds):
        converse(federation, loop.round())
        models.append(loop.model())
    return np.array(models)


def loop_of(problem: cf.Problem, algorithm, batch_size=None, participants=None) -> ServerLoop:
    run = checked(
        problem, algorithm, ROUNDS, batch_size=batch_size, participants=participants, record_every=1, seed=3, x0=None,
        reference=None, resume=None,
    )  # fmt: skip
    job = Job(
        0, run.algorithm, problem.regulariser, View(problem.loss), run.x0, 3, batch_size,
        int(problem.sites.sizes.max()), run.participants == problem.n,
    )  # fmt: skip
    return ServerLoop(job, task_of(problem), run.participants, sampling=run.sampling)


# --- the same to the last bit ---


# Always: with and without memory, two exchanges, compressed uploads, results that are heard, second order. Others are no
# different on the wire, and are run by `make test-federation` and `make test-all`.
ALWAYS = (
    "DecoupledProx",
    "Scaffold",
    "Mime",
    "FedDR",
    "FISTA",
    "CompressedDecoupledProx",
    "ProximalNewton",
    "ProximalBFGS",
)


def now_or_later(names, always):
    return [name if name in always else pytest.param(name, marks=pytest.mark.thorough) for name in names]


@pytest.mark.parametrize("name", now_or_later(ALGORITHMS, ALWAYS))
def test_every_algorithm_takes_the_path_of_the_reference_engine(name, problem, settings):
    if not ALGORITHMS[name].composite:
        problem = problem.replace(regulariser=cf.regularisers.Zero())
    algorithm = suggest(name, problem, tau=3)
    batch, k = (5, 2) if ALGORITHMS[name].sampling != "no" else (None, None)
    federation, grid = remote(settings)
    here = trajectory(InProcess(problem.sites), loop_of(problem, algorithm, batch, k))
    there = trajectory(federation, loop_of(problem, algorithm, batch, k))
    np.testing.assert_array_equal(there, here)
    plain = reference(problem, algorithm, ROUNDS, batch_size=batch, participants=k, seed=3)
    np.testing.assert_array_equal(there[-1], plain.x)
    assert (there[-1] != there[0]).any()
    assert federation.events == []
    assert len(grid.sent) >= ROUNDS * (k or 3)


def table(kind: str) -> cf.data.Sites:
    rng = np.random.default_rng(7)
    A = [rng.standard_normal((m, 4)) * [1.0, 5.0, 0.2, 1.0] + 0.3 * i for i, m in enumerate((16, 24))]
    z = [a @ [1.0, 0.3, 0.0, -0.8] + 0.3 * rng.standard_normal(len(a)) for a in A]
    labels = {
        "numbers": z,
        "classes": [np.digitize(v, [-0.4, 0.5]).astype(float) for v in z],
        "counts": [np.rint(np.exp(0.5 * v)).clip(0, 9) for v in z],
        "outcomes": [np.c_[v, a[:, 1] - v] for a, v in zip(A, z, strict=True)],
    }[kind]
    return cf.data.from_arrays(A, labels, ["north", "south"], columns=["age", "dose", "rate", "bmi"])


CV = {"n_alphas": 3, "eps": 0.3, "cv": 3, "tol": 1e-6}
FITS: dict[str, tuple[str, Any]] = {
    "FederatedLasso": ("numbers", cf.FederatedLasso(alpha=0.1)),
    "FederatedElasticNet": ("numbers", cf.FederatedElasticNet(alpha=0.1)),
    "FederatedGroupLasso": ("numbers", cf.FederatedGroupLasso(groups=[0, 0, 1, 1], alpha=0.1)),
    "FederatedHuber": ("numbers", cf.FederatedHuber(alpha=0.1)),
    "FederatedLogisticRegression": ("classes", cf.FederatedLogisticRegression(alpha=0.02)),
    "FederatedPoissonRegressor": ("counts", cf.FederatedPoissonRegressor(alpha=0.1)),
    "FederatedMultiTaskLasso": ("outcomes", cf.FederatedMultiTaskLasso(alpha=0.1)),
    "FederatedNuclearRegressor": ("outcomes", cf.FederatedNuclearRegressor(alpha=0.1)),
    "FederatedLassoCV": ("numbers", cf.FederatedLassoCV(**CV)),
    "FederatedElasticNetCV": ("numbers", cf.FederatedElasticNetCV(**CV)),
    "FederatedGroupLassoCV": ("numbers", cf.FederatedGroupLassoCV(groups=[0, 0, 1, 1], **CV)),
    "FederatedHuberCV": ("numbers", cf.FederatedHuberCV(**CV)),
    "FederatedLogisticRegressionCV": ("classes", cf.FederatedLogisticRegressionCV(**CV)),
    "FederatedPoissonRegressorCV": ("counts", cf.FederatedPoissonRegressorCV(**CV)),
    "FederatedMultiTaskLassoCV": ("outcomes", cf.FederatedMultiTaskLassoCV(**CV)),
    "FederatedNuclearRegressorCV": ("outcomes", cf.FederatedNuclearRegressorCV(**CV)),
    "by rounds": ("numbers", cf.FederatedLasso(alpha=0.1, algorithm="DecoupledProx", tol=1e-5)),
}


def test_every_estimator_is_there():
    assert {name for name in cf.__all__ if name.startswith("Federated")} == set(FITS) - {"by rounds"}


@pytest.mark.parametrize(
    "name", now_or_later(FITS, {name for name in FITS if "CV" not in name} | {"FederatedLogisticRegressionCV"})
)
def test_every_estimator_fits_as_in_this_process(name, tmp_path):
    kind, estimator = FITS[name]
    sites = table(kind)
    federation, _ = remote(written(tmp_path, sites))
    there = estimator.fit_federation(federation)
    coef, intercept, cost = there.coef_, there.intercept_, there.communication_
    here = estimator.fit_federation(InProcess(sites))
    np.testing.assert_array_equal(coef, here.coef_)
    np.testing.assert_array_equal(intercept, here.intercept_)
    assert cost == here.communication_
    assert here.feature_names_in_.tolist() == ["age", "dose", "rate", "bmi"]
    if "CV" in name:
        assert there.alpha_ == here.alpha_


def test_nothing_but_this_package_imports_flower():
    code = "import sys, compfed, compfed.cli, compfed.estimators, compfed.studies; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_score_and_comparison_over_the_network(tmp_path):
    sites = table("numbers")
    federation, _ = remote(written(tmp_path, sites))
    model = cf.FederatedLasso(alpha=0.1).fit_federation(InProcess(sites))
    pooled = r2_score(np.concatenate(sites.labels), np.concatenate(sites.features) @ model.coef_ + model.intercept_)
    assert model.score_federation(federation) == pytest.approx(pooled, rel=1e-12)
    there, here = (cf.compare_local_federated(cf.FederatedLasso(alpha=0.1), f) for f in (federation, InProcess(sites)))
    np.testing.assert_array_equal(there.losses, here.losses)
    assert there.communication == here.communication


# --- records ---


def test_arrays_travel_end_to_end_in_double_precision(monkeypatch):
    """Two hundred models are one array: Flower sends every array in requests of its own. The head names their fields."""
    rng = np.random.default_rng(0)
    points = rng.standard_normal((200, 1, 3))
    question = (
        *(ValueAndGradient(VIEW, x, np.zeros((1, 4))) for x in points),
        Curvature(VIEW, points[0, 0], np.arange(2)),
    )
    among_the_words = to_records({"run": "a", "number": 3}, pack(question))
    assert list(among_the_words) == ["words"]
    monkeypatch.setattr(flower_records, "SMALL", 0)
    records = to_records({"run": "a", "number": 3}, pack(question))
    assert {name: (a.dtype, a.shape) for name, a in records["arrays"].items()} == {  # pyright: ignore
        "float64": ("float64", (600 + 800 + 3,)),
        "int64": ("int64", (2,)),
    }
    for sent in (records, among_the_words):
        envelope, packed = from_records(sent)
        assert envelope == {"run": "a", "number": 3}
        assert packed is not None
        assert asked(unpack(packed)) == asked(question)
    by_columns = from_records(to_records({}, pack(np.asfortranarray(np.arange(6.0).reshape(2, 3)))))[1]
    assert by_columns is not None
    assert by_columns.arrays[0].flags.c_contiguous
    np.testing.assert_array_equal(by_columns.arrays[0], np.arange(6.0).reshape(2, 3))


def test_numbers_among_the_words_that_cannot_be_read_are_refused():
    for key, data in (
        ("numbers of <f8", b"1234567"),
        ("numbers of <f8", "words"),
        ("numbers of |O", b"12345678"),
        ("numbers of x", b""),
    ):
        records = to_records({}, pack((np.ones(2),)))
        records["words"][key] = data  # pyright: ignore
        with pytest.raises(cf.InputError, match="of a message cannot be read"):
            from_records(records)


def test_arrays_that_the_head_does_not_name_are_refused(monkeypatch):
    monkeypatch.setattr(flower_records, "SMALL", 0)
    records = to_records({}, pack((np.ones(2),)))
    records["arrays"]["more"] = records["arrays"]["float64"]  # pyright: ignore
    with pytest.raises(cf.InputError, match="array 'more' of a message has 2 numbers; its head names 0"):
        from_records(records)
    del records["arrays"]["more"], records["arrays"]["float64"]  # pyright: ignore
    with pytest.raises(cf.InputError, match=r"has the arrays \[\]; its head names 'array' of dtype float64"):
        from_records(records)
    short = to_records({}, pack((np.ones(2),)))
    short["words"]["shapes"] = '[["<f8", [3]]]'  # pyright: ignore
    with pytest.raises(cf.InputError, match="'float64' of a message is too short for 'array'"):
        from_records(short)
    both = to_records({}, pack((np.ones(2),)))
    both["words"]["numbers of <f8"] = np.zeros(2).tobytes()  # pyright: ignore
    with pytest.raises(cf.InputError, match="numbers of float64 twice"):
        from_records(both)
    other = to_records({})
    other["words"]["protocol"] = 99  # pyright: ignore
    with pytest.raises(cf.InputError, match=r"a message of protocol 99; this side speaks 2. Use one version"):
        from_records(other)


# --- refusals ---


def test_a_site_that_refuses_says_so_to_the_operator(problem, tmp_path):
    more = '[refuses]\nquestions = ["Curvature"]\nleast_rows = 10\n'
    federation, _ = remote(written(tmp_path, problem.sites, more)[:1])
    assert ask(federation, Moments())[0][0].mean.shape == (D,)
    with pytest.raises(cf.InputError, match="site '0' refuses Curvature: it does not answer Curvature"):
        ask(federation, Curvature(VIEW, np.zeros(D), np.arange(2)))
    few, _ = remote(written(tmp_path / "few", problem.sites, more))
    with pytest.raises(cf.InputError, match="site '1' refuses Moments: it has 6 rows and answers nothing below 10"):
        ask(few, Moments())


def test_a_fit_goes_on_without_the_curvature_that_a_site_refuses(tmp_path):
    sites = table("numbers")
    federation, _ = remote(written(tmp_path, sites, '[refuses]\nquestions = ["Curvature"]\n'))
    there, here = (
        cf.FederatedLasso(alpha=0.1).fit_federation(f)
        for f in (federation, InProcess(sites, Refusals(questions=("Curvature",))))
    )
    np.testing.assert_array_equal(there.coef_, here.coef_)
    assert there.certificate_.holds
    assert there.n_rounds_ > 4  # with curvature it takes four


@record
class LossOfMyOwn(cf.losses.Squared):
    ridge: float = nonnegative(default=0.0)


class Everything:
    """No question of the list."""


def test_what_is_not_on_the_list_is_refused(problem, settings, tmp_path):
    federation, _ = remote(settings)
    name = f"{LossOfMyOwn.__module__}:LossOfMyOwn"
    question = ValueAndGradient(View(LossOfMyOwn()), np.zeros((1, D)))
    with pytest.raises(cf.InputError, match=rf"site '0': a message names {name}, which is not of compfed. Install it"):
        ask(federation, question)
    accepting, _ = remote(written(tmp_path, problem.sites, f'accepts = ["{name}"]\n'))
    (answer,), *_ = ask(accepting, question)
    assert answer.gradient.shape == (1, D)
    # words for a question that is none, as a server of another make might send
    foreign = {"record": "builtins:eval", "fields": {}}
    reason = from_records(straight(settings[0], Packed(in_a_message(foreign), [])))[0]["reason"]
    assert reason.startswith("site '0': a message names builtins:eval, which is not of compfed")
    record_of_ours = {"record": "compfed.federation.view:WholeSite", "fields": {"number": 0, "held_out": False}}
    answered = from_records(straight(settings[0], Packed(in_a_message(record_of_ours), [])))[1]
    assert answered is not None
    assert unpack(answered)[0].reason == "site '0' refuses WholeSite: WholeSite is not a question it knows."
    escape = from_records(straight(settings[0], pack(((), (Describe(),))), run="../x"))[0]["reason"]
    assert "a run is named '../x'" in escape


def in_a_message(question):
    return {"tuple": [{"tuple": []}, {"tuple": [question]}]}


def straight(path, packed, run="x"):
    """A message to a site past the server: what it replies."""
    message = Message(to_records({"run": run, "number": 1, "after": 0}, packed), 100, "train")
    return client_app()(message, Context(1, 100, {"site-config": str(path)}, RecordDict(), {})).content


def test_a_failure_at_a_site_does_not_tell_of_its_rows(problem, tmp_path):
    paths = written(tmp_path, problem.sites)
    rows = paths[1].parent / "rows.csv"
    for text, told in {
        "a0,y0\nsecret,1.0\n": "words in column 'a0'. Encode words",
        "": "its table cannot be read",
    }.items():
        rows.write_text(text)
        federation, _ = remote(paths)
        with pytest.raises(cf.InputError, match=f"site '1': its rows cannot be used: {told}") as refused:
            ask(federation, Moments())
        assert "secret" not in str(refused.value)
    assert "secret" in (paths[1].parent / "state" / "answered.jsonl").read_text()


# --- before round one ---

APART = {
    "missing": ("age,bmi,ill\n1,2,0\n2,4,1\n", "site 'south' has no column 'dose', which site 'north' has"),
    "renamed": (
        "age,Dose,bmi,ill\n1,2,3,0\n",
        "no column 'dose', which site 'north' has. site 'south' has a column 'Dose'",
    ),
    "order": ("age,bmi,dose,ill\n1,2,3,0\n", "column 1 is 'bmi' at site 'south' and 'dose' at site 'north'"),
    "words": (
        "age,dose,bmi,ill\n1,2,3,no\n2,1,1,yes\n",
        "the classes are words at site 'south' and numbers at site 'north'",
    ),
    "hole": (
        "age,dose,bmi,ill\n1,2,,0\n2,1,1,1\n",
        "site 'south': its rows cannot be used: values missing in column 'bmi'",
    ),
}


@pytest.mark.parametrize("what", APART)
def test_what_the_sites_must_agree_on_is_checked_before_anything_is_computed(what, tmp_path):
    text, message = APART[what]
    paths = []
    for i, (name, rows) in enumerate({"north": "age,dose,bmi,ill\n1,2,3,0\n2,1,5,1\n4,4,1,0\n", "south": text}.items()):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.csv").write_text(rows)
        paths.append(tmp_path / name / "site.toml")
        paths[-1].write_text(f'name = "{name}"\nindex = {i}\ndata = "rows.csv"\nlabel = "ill"\nstate = "state"\n')
    federation, grid = remote(paths)
    with pytest.raises(cf.InputError, match=message):
        cf.FederatedLogisticRegression(alpha=0.1).fit_federation(federation)
    assert len(grid.sent) == 2  # one message


def test_labels_that_are_words_are_classes_over_the_network_too(tmp_path):
    sites = table("classes")
    names = np.array(["low", "middle", "high"])
    paths = written(tmp_path, sites)
    for path, y in zip(paths, sites.labels, strict=True):
        head, *lines = (path.parent / "rows.csv").read_text().splitlines()
        worded = [f"{line.rpartition(',')[0]},{names[int(c)]}" for line, c in zip(lines, y, strict=True)]
        (path.parent / "rows.csv").write_text("\n".join([head, *worded]) + "\n")
    there = cf.FederatedLogisticRegression(alpha=0.02).fit_federation(remote(paths)[0])
    words = [names[y.astype(int)] for y in sites.labels]
    where = np.repeat(sites.names, [len(y) for y in words])
    here = cf.FederatedLogisticRegression(alpha=0.02).fit(
        np.concatenate(sites.features), np.concatenate(words), sites=where
    )
    assert there.classes_.tolist() == ["high", "low", "middle"]
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-9)


def test_nan_in_a_round_names_the_site_and_enters_no_sum(problem, settings):
    federation, grid = remote(settings)

    def broken(site, records, reply):
        envelope, packed = from_records(reply())
        assert packed is not None
        (answer,) = unpack(packed)
        bad = answer._replace(u={name: value * np.nan for name, value in answer.u.items()}) if site == 1 else answer
        return to_records(envelope, pack((bad,)))

    loop = loop_of(problem, suggest("DecoupledProx", problem, tau=3))
    converse(federation, loop.round())
    before = loop.model()
    grid.meddle = broken
    with pytest.raises(NotFinite, match="round 2, client '1', stage client"):
        converse(federation, loop.round())
    np.testing.assert_array_equal(loop.model(), before)


# --- answers that cannot be used ---


def changed(**fields):
    """A reply whose first answer has other fields."""

    def meddle(site, records, reply):
        envelope, packed = from_records(reply())
        assert packed is not None
        answer, *rest = unpack(packed)
        new = {name: value(getattr(answer, name)) for name, value in fields.items()}
        return (
            to_records(envelope, pack((answer._replace(**new), *rest))) if site == 1 else to_records(envelope, packed)
        )

    return meddle


def nan(value):
    return value * np.nan


X = np.zeros((2, D))
PART = Share(0.5, 0, False, True)
WRONG = {
    "nan": (ValueAndGradient(VIEW, X), changed(gradient=nan), "ValueAndGradient: gradient has 16 NaN"),
    "value": (ValueAndGradient(VIEW, X), changed(value=nan), "ValueAndGradient: value has 2 NaN"),
    "shape": (ValueAndGradient(VIEW, X), changed(gradient=lambda g: g[:, 1:]), r"gradient has shape \(2, 7\); expected \(2, 8\)"),
    "moments": (Moments(), changed(square=nan), "Moments: square has 8 NaN"),
    "curvature": (Curvature(VIEW, X[0], np.arange(3)), changed(triangle=lambda t: t[:-1]), r"\(5,\); expected \(6,\)"),
    "steepness": (Steepness(VIEW), changed(L=nan), "Steepness: L is nan; expected a finite number"),
    "held out": (HeldOut(VIEW, PART, X), changed(loss=nan), "HeldOut: loss has 2 NaN"),
    "describe": (Describe(), changed(rows=lambda _: -1), "Describe: rows is -1"),
    "words": (Describe(), changed(label_mean=nan), "label_mean is not a number"),
    "kind": (Moments(), lambda site, r, reply: _swapped(reply()), "Moments is answered with Steepness.Answer"),
    "field": (Moments(), lambda site, r, reply: _renamed(reply()), "its head names"),
    "round": (Moments(), lambda site, r, reply: _other(reply(), number=7), "its reply is to number 7, not 1; it was not used"),
    "run": (Moments(), lambda site, r, reply: _other(reply(), run="old"), "its reply is to run 'old'"),
    "site": (Moments(), lambda site, r, reply: _other(reply(), site=5), "its reply is to site 5, not"),
    "none": (Moments(), lambda site, r, reply: None, "no reply in time"),
}  # fmt: skip


def _swapped(records):
    envelope, _ = from_records(records)
    return to_records(envelope, pack((Steepness.Answer(1.0),)))


def _renamed(records):
    records["words"]["numbers of <f4"] = records["words"].pop("numbers of <f8")
    return records


def _other(records, **words):
    records["words"].update(words)
    return records


@pytest.mark.parametrize("mistake", WRONG)
def test_an_answer_that_cannot_be_used_is_named_and_not_used(mistake, settings):
    question, meddle, message = WRONG[mistake]
    federation, grid = remote(settings)
    clean = ask(federation, question)
    federation, grid = remote(settings)
    grid.meddle = lambda site, r, reply: meddle(site, r, reply) if site == 1 else reply()
    with pytest.raises(Unanswered, match=message) as problem:
        ask(federation, question)
    assert "site '1'" in str(problem.value)
    assert "site '0'" not in str(problem.value)
    assert "No answer to it was used" in str(problem.value)
    assert {event["site"] for event in federation.events} == {"1"}
    # a fault that passes leaves no trace in the numbers
    federation, grid = remote(settings)
    faults = iter([True])
    grid.meddle = lambda site, r, reply: meddle(site, r, reply) if site == 1 and next(faults, False) else reply()
    assert asked(tuple(map(tuple, ask(federation, question)))) == asked(tuple(map(tuple, clean)))
    assert len(federation.events) == 1


def test_a_round_of_another_shape_is_named(problem, settings):
    federation, grid = remote(settings)

    def cut(site, records, reply):
        envelope, packed = from_records(reply())
        assert packed is not None
        (answer,) = unpack(packed)
        u = {name: value[:-1] for name, value in answer.u.items()}
        return to_records(envelope, pack((answer._replace(u=u),)))

    grid.meddle = lambda site, r, reply: cut(site, r, reply) if site == 2 else reply()
    loop = loop_of(problem, suggest("DecoupledProx", problem, tau=3))
    with pytest.raises(
        Unanswered, match=r"site '2': its answer cannot be used: Round: field '.*' of a message has shape \(7,\)"
    ):
        converse(federation, loop.round())
    assert loop.r == 0


# --- who is who ---


def test_sites_are_known_by_the_index_they_registered_with(problem, settings):
    grid = FakeGrid(reversed(settings))
    federation = Remote(grid, ["0", "1", "2"], patience=NOW)
    assert [a.rows for (a,) in ask(federation, Describe())] == problem.sites.sizes.tolist()
    with pytest.raises(
        cf.InputError, match="site number 0 registered as '0'; this federation calls its sites rome, 1, 2"
    ):
        Remote(grid, ["rome", "1", "2"], patience=NOW)
    with pytest.raises(cf.InputError, match="two nodes registered as site number 0"):
        Remote(FakeGrid([settings[0], settings[0]]), 2, patience=NOW)
    with pytest.raises(cf.InputError, match="registered as number 2; this federation has numbers 0 to 1"):
        Remote(FakeGrid([settings[2]]), 2, patience=NOW)
    with pytest.raises(cf.InputError, match=r"1 of 4 sites did not register in 0 s: number 3. Start them"):
        Remote(grid, 4, patience=NOW)


def test_a_superlink_that_is_busy_is_asked_again(settings, monkeypatch):
    federation, grid = remote(settings)
    clean = ask(federation, Moments())
    federation, grid = remote(settings)
    for name in ("push_messages", "pull_messages", "get_node_ids"):
        real, troubles = getattr(grid, name), iter([1])

        def busy(*given, real=real, troubles=troubles):
            if next(troubles, None):
                raise RuntimeError("database is locked")
            return real(*given)

        monkeypatch.setattr(grid, name, busy)
    np.testing.assert_array_equal(ask(federation, Moments())[1][0].mean, clean[1][0].mean)
    assert {event["what"] for event in federation.events} == {
        "the SuperLink took no message (RuntimeError)",
        "no reply in time",
    }


def test_an_error_of_flower_is_read_by_the_message_it_replies_to(settings):
    federation, grid = remote(settings)
    sent = []

    def gone(site, records, reply):
        if site != 1:
            return reply()
        message = Message(records, 100 + site, "train")
        message.metadata.__dict__["_message_id"] = f"m{len(grid.sent) + 3}"
        answer = Message(Error(5, "Node unavailable"), reply_to=message)
        answer.metadata.__dict__["_src_node_id"] = 1  # the SuperLink itself
        sent.append(answer)
        return answer

    grid.meddle = gone
    with pytest.raises(Unanswered, match="site '1': Flower says: Node unavailable"):
        ask(federation, Moments())
    assert len(sent) == NOW.attempts
    assert [site for site, _ in grid.sent].count(0) == 1  # who has answered is not asked again
