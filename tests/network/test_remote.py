"""Sites behind a link: the sums of this process to the last bit, and a reply that cannot be used enters no sum.

"The same bits" are those of `InProcess(exact=True)`. Its own oracles are sums of fractions (tests/federation/test_exact_sum.py);
here the float sums of `run_plain` are compared to 1e-12.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import (
    NOW,
    MemoryLink,
    changed_words,
    exact,
    fields_of,
    furnish,
    key_of,
    logged,
    number_of,
    remote,
    signed,
    without_framing,
)
from problems import logistic
from sklearn.metrics import r2_score

import compfed as cf
from compfed import estimators
from compfed._utils.records import nonnegative, record
from compfed.algorithms import ALGORITHMS, default_steps
from compfed.federation import (
    Describe,
    Evaluate,
    HeldOut,
    InProcess,
    Moments,
    Request,
    Site,
    ask,
    exact_sum,
    run_program,
)
from compfed.federation.codec import pack, to_bytes
from compfed.federation.query import Weighted
from compfed.federation.server.rounds import NotFinite, ServerLoop
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec
from compfed.network import NoReply, keys
from compfed.network import server as remote_module
from compfed.network.envelope import message_bytes, query_hash, read_body, read_header, read_reply
from compfed.network.flower import LinkError, Reply
from compfed.network.server import TableChanged
from compfed.simulation import run_plain
from compfed.simulation.options import check_options
from compfed.splits import Holdout

ROUNDS = 5
OBJECTIVE = ObjectiveSpec(cf.losses.Squared())
D = 8


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    return logistic(samples=[30, 6, 20], n=3, d=D, weights=True)


@pytest.fixture(scope="module")
def paths(problem, tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("sites"), problem.sites)


@pytest.fixture(scope="module")
def masked_paths(problem, tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("masked"), problem.sites, secure_sum=True)


def trajectory(federation, loop: ServerLoop, rounds: int = ROUNDS) -> np.ndarray:
    models = [loop.model()]
    for _ in range(rounds):
        run_program(federation, loop.round())
        models.append(loop.model())
    return np.array(models)


def loop_of(problem: cf.Problem, algorithm, batch_size=None, participants=None, weighting=None) -> ServerLoop:
    run = check_options(
        problem, algorithm, ROUNDS, batch_size=batch_size, participants=participants, record_every=1, seed=3, x0=None,
        x_star=None, resume=None,
    )  # fmt: skip
    run_spec = RunSpec(
        0, run.algorithm, problem.regulariser, ObjectiveSpec(problem.loss), run.x0, 3, batch_size,
        int(problem.sites.sizes.max()), run.participants == problem.n,
    )  # fmt: skip
    spec = replace(FederatedProblem.of(problem), weighting=weighting)
    return ServerLoop(run_spec, spec, run.participants, sampling=run.sampling)


def bits(replies: Any) -> bytes:
    return to_bytes(pack(tuple(map(tuple, replies))))


# --- the same to the last bit ---


# Always: with and without state, two exchanges, compressed updates, rounds with a result, second order. The others do
# not differ on the wire, and are run by `make test-all`.
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
def test_every_algorithm_takes_the_path_of_the_reference_engine(name, problem, paths):
    if not ALGORITHMS[name].composite:
        problem = problem.replace(regulariser=cf.regularisers.Zero())
    algorithm = default_steps(name, problem, tau=3)
    batch, k = (5, 2) if ALGORITHMS[name].sampling != "no" else (None, None)
    federation, link = remote(paths)
    here = trajectory(InProcess(problem.sites, exact=True), loop_of(problem, algorithm, batch, k))
    there = trajectory(federation, loop_of(problem, algorithm, batch, k))
    np.testing.assert_array_equal(there, here)
    plain = run_plain(problem, algorithm, ROUNDS, batch_size=batch, participants=k, seed=3)
    np.testing.assert_allclose(there[-1], plain.x, rtol=0, atol=1e-12)
    assert (there[-1] != there[0]).any()
    assert federation.problems == []
    assert len(link.sent) >= ROUNDS * (k or 3)


@pytest.mark.parametrize("name", now_or_later(ALGORITHMS, ALWAYS))
def test_every_algorithm_takes_the_same_path_where_sums_are_masked(name, problem, masked_paths):
    """Each site weighs its own rows: the weights are those of the problem, which the server does not send."""
    if not ALGORITHMS[name].composite:
        problem = problem.replace(regulariser=cf.regularisers.Zero())
    algorithm = default_steps(name, problem, tau=3)
    federation, _ = remote(masked_paths)
    there = trajectory(federation, loop_of(problem, algorithm, weighting="rows"))
    here = trajectory(InProcess(problem.sites, exact=True), loop_of(problem, algorithm, weighting="rows"))
    np.testing.assert_array_equal(there, here)
    plain = run_plain(problem, algorithm, ROUNDS, seed=3)
    np.testing.assert_allclose(there[-1], plain.x, rtol=0, atol=1e-12)
    assert federation.problems == []


def table(kind: str) -> cf.data.Sites:
    rng = np.random.default_rng(7)
    A = [rng.standard_normal((m, 4)) * [1.0, 5.0, 0.2, 1.0] + 0.3 * i for i, m in enumerate((16, 24, 20))]
    z = [a @ [1.0, 0.3, 0.0, -0.8] + 0.3 * rng.standard_normal(len(a)) for a in A]
    labels = {
        "numbers": z,
        "classes": [np.digitize(v, [-0.4, 0.5]).astype(float) for v in z],
        "counts": [np.rint(np.exp(0.5 * v)).clip(0, 9) for v in z],
        "amounts": [np.exp(0.5 * v).clip(0.05, 9.0) for v in z],
        "outcomes": [np.c_[v, a[:, 1] - v] for a, v in zip(A, z, strict=True)],
        "survival": [np.c_[np.rint(5 * np.exp(-0.4 * v)) + 1, np.arange(len(v)) % 3 > 0] for v in z],
    }[kind]
    return cf.data.from_arrays(A, labels, ["north", "south", "west"], columns=["age", "dose", "rate", "bmi"])


CV = {"n_alphas": 2, "eps": 0.3, "cv": 3, "tol": 1e-6}
FITS: dict[str, tuple[str, Any]] = {
    "FederatedLasso": ("numbers", cf.FederatedLasso(alpha=0.1)),
    "FederatedElasticNet": ("numbers", cf.FederatedElasticNet(alpha=0.1)),
    "FederatedGroupLasso": ("numbers", cf.FederatedGroupLasso(groups=[0, 0, 1, 1], alpha=0.1)),
    "FederatedHuber": ("numbers", cf.FederatedHuber(alpha=0.1)),
    "FederatedLogisticRegression": ("classes", cf.FederatedLogisticRegression(alpha=0.02)),
    "FederatedPoissonRegressor": ("counts", cf.FederatedPoissonRegressor(alpha=0.1)),
    "FederatedNegativeBinomialRegressor": ("counts", cf.FederatedNegativeBinomialRegressor(theta=2.0, alpha=0.1)),
    "FederatedGammaRegressor": ("amounts", cf.FederatedGammaRegressor(alpha=0.1)),
    "FederatedMultiTaskLasso": ("outcomes", cf.FederatedMultiTaskLasso(alpha=0.1)),
    "FederatedNuclearRegressor": ("outcomes", cf.FederatedNuclearRegressor(alpha=0.1)),
    "FederatedCox": ("survival", cf.FederatedCox(alpha=0.02, l1_ratio=0.5, times=[3.0, 6.0, 9.0])),
    "FederatedCoxCV": ("survival", cf.FederatedCoxCV(l1_ratio=0.5, **CV)),
    "FederatedLassoCV": ("numbers", cf.FederatedLassoCV(**CV)),
    "FederatedElasticNetCV": ("numbers", cf.FederatedElasticNetCV(**CV)),
    "FederatedGroupLassoCV": ("numbers", cf.FederatedGroupLassoCV(groups=[0, 0, 1, 1], **CV)),
    "FederatedHuberCV": ("numbers", cf.FederatedHuberCV(**CV)),
    "FederatedLogisticRegressionCV": ("classes", cf.FederatedLogisticRegressionCV(**CV)),
    "FederatedPoissonRegressorCV": ("counts", cf.FederatedPoissonRegressorCV(**CV)),
    "FederatedNegativeBinomialRegressorCV": ("counts", cf.FederatedNegativeBinomialRegressorCV(theta=2.0, **CV)),
    "FederatedGammaRegressorCV": ("amounts", cf.FederatedGammaRegressorCV(**CV)),
    "FederatedMultiTaskLassoCV": ("outcomes", cf.FederatedMultiTaskLassoCV(**CV)),
    "FederatedNuclearRegressorCV": ("outcomes", cf.FederatedNuclearRegressorCV(**CV)),
    "by rounds": ("numbers", cf.FederatedLasso(alpha=0.1, algorithm="DecoupledProx", tol=1e-5)),
}


def test_every_estimator_is_listed():
    assert {name for name in estimators.__all__ if name.startswith("Federated")} == set(FITS) - {"by rounds"}


@pytest.mark.parametrize("secure_sum", [False, True])
@pytest.mark.parametrize(
    "name",
    now_or_later(
        FITS, {name for name in FITS if "CV" not in name} | {"FederatedLogisticRegressionCV", "FederatedCoxCV"}
    ),
)
def test_every_estimator_fits_as_in_this_process(name, secure_sum, tmp_path):
    kind, estimator = FITS[name]
    sites = table(kind)
    federation, _ = remote(furnish(tmp_path, sites, secure_sum=secure_sum))
    assert {e.secure_sum for e in federation.enrolments} == {secure_sum}
    there = estimator.fit_federation(federation)
    coef, intercept, cost = there.coef_, there.intercept_, there.communication_
    alpha = getattr(there, "alpha_", None)
    here = estimator.fit_federation(InProcess(sites, exact=True))
    np.testing.assert_array_equal(coef, here.coef_)
    np.testing.assert_array_equal(intercept, here.intercept_)
    assert without_framing(cost) == without_framing(here.communication_)
    assert here.feature_names_in_.tolist() == ["age", "dose", "rate", "bmi"]
    assert alpha == getattr(here, "alpha_", None)
    in_doubles = estimator.fit_federation(InProcess(sites))
    np.testing.assert_allclose(coef, in_doubles.coef_, rtol=0, atol=1e-6)  # both within the tolerance of the fit


def test_flower_is_imported_by_the_network_only():
    code = "import sys, compfed, compfed.cli, compfed.estimators, compfed.studies; print('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_score_and_comparison_over_the_network(tmp_path):
    sites = table("numbers")
    federation, _ = remote(furnish(tmp_path, sites))
    model = cf.FederatedLasso(alpha=0.1).fit_federation(InProcess(sites))
    pooled = r2_score(np.concatenate(sites.labels), np.concatenate(sites.features) @ model.coef_ + model.intercept_)
    assert model.evaluate(federation).r2 == pytest.approx(pooled, rel=1e-12)
    there, here, in_doubles = (
        cf.compare_local_federated(cf.FederatedLasso(alpha=0.1), f)
        for f in (federation, InProcess(sites, exact=True), InProcess(sites))
    )
    np.testing.assert_array_equal(there.scores["mean loss"], here.scores["mean loss"])
    # the average weighs a site by its rows in the part to train with, which a network estimates from their total
    close = np.where([name == "average of local" for name in there.models], 1e-2, 1e-6)[:, None]
    assert (np.abs(there.scores["mean loss"] / in_doubles.scores["mean loss"] - 1) < close).all()
    assert without_framing(there.communication) == without_framing(here.communication)


# --- refusals ---


@pytest.mark.parametrize("secure_sum", [False, True])
def test_a_refusal_of_a_site_names_the_site_and_the_rule_and_ends_the_run(secure_sum, problem, tmp_path):
    rng = np.random.default_rng(2)
    A = [rng.standard_normal((m, D)) for m in (30, 25, 40)]
    rows = cf.data.from_arrays(A, [a[:, 0] for a in A], ["0", "1", "2"])
    federation, link = remote(furnish(tmp_path / "rows", rows, "", "max_hessian_share = 0", secure_sum=secure_sum))
    moments = ask(federation, Moments())[0]
    np.testing.assert_allclose(moments.mean[0] / moments.weight[0], np.concatenate(A).mean(axis=0), rtol=1e-12)
    before = len(link.sent)
    with pytest.raises(cf.InputError, match=r"^site '0': it refuses a query of run .* and ends the run here"):
        federation.exchange([Request((Evaluate(OBJECTIVE, np.zeros((1, D)), np.arange(2)),), weighting="rows")])
    assert logged(link.paths["0"]).startswith("site '0' refuses Evaluate: 2 coordinates are more than 0 of the number")
    assert len(link.sent) == before + 3  # each site once: a refusal is not asked for again
    few, _ = remote(furnish(tmp_path / "few", problem.sites, "", "min_rows = 10", secure_sum=secure_sum))
    with pytest.raises(
        cf.InputError, match=r"^site '1': the table has fewer rows than its min_rows. It takes part in no run"
    ) as refused:
        ask(few, Moments())
    assert "6" not in str(refused.value)  # the number of its rows


@pytest.mark.parametrize("secure_sum", [False, True])
def test_a_fit_works_without_the_hessian_that_a_site_refuses(secure_sum, tmp_path):
    paths = furnish(tmp_path, table("numbers"), "", "max_hessian_share = 0", secure_sum=secure_sum)
    there, here, free = (
        cf.FederatedLasso(alpha=0.1).fit_federation(f)
        for f in (remote(paths)[0], exact(paths), InProcess(table("numbers"), exact=True))
    )
    np.testing.assert_array_equal(there.coef_, here.coef_)
    assert there.certificate_.holds
    assert there.n_rounds_ > free.n_rounds_  # with Hessians it takes fewer
    np.testing.assert_allclose(there.coef_, free.coef_, atol=1e-5)


@record
class LossOfMyOwn(cf.losses.Squared):
    ridge: float = nonnegative(default=0.0)


def test_a_class_of_others_is_read_by_sites_that_accept_it(problem, paths, tmp_path):
    name = f"{LossOfMyOwn.__module__}:LossOfMyOwn"
    query = Evaluate(ObjectiveSpec(LossOfMyOwn()), np.zeros((1, D)))
    with pytest.raises(cf.InputError, match=rf"site '0': a message names {name}, which is not of compfed. Install it"):
        ask(remote(paths)[0], query)
    accepting, _ = remote(furnish(tmp_path, problem.sites, f'accepts = ["{name}"]\n'))
    own = ask(accepting, query)
    plain = ask(remote(paths)[0], Evaluate(OBJECTIVE, np.zeros((1, D))))  # the same loss under its usual name
    assert bits(own) == bits(plain)


def test_an_unfit_table_is_named_without_a_value_of_it(problem, tmp_path):
    paths = furnish(tmp_path, problem.sites)
    rows = paths[1].parent / "rows.csv"
    for text, reason in {
        "a0,y0\nsecret,1.0\n": "site '1' cannot encode its table without a schema: words in column 'a0'. Agree on a schema",
        "": "site '1': its rows cannot be used: its table cannot be read",
    }.items():
        rows.write_text(text)
        with pytest.raises(cf.InputError, match=reason) as refused:
            ask(remote(paths)[0], Moments())
        assert "secret" not in str(refused.value)


# --- sites that must agree ---

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
        "site 'south' cannot encode its table without a schema: values missing in column 'bmi'",
    ),
}


@pytest.mark.parametrize("difference", APART)
def test_sites_must_agree_before_anything_is_computed(difference, tmp_path):
    text, message = APART[difference]
    paths = furnish(tmp_path, table("classes"))[:2]
    for path, rows in zip(paths, ("age,dose,bmi,ill\n1,2,3,0\n2,1,5,1\n4,4,1,0\n", text), strict=True):
        (path.parent / "rows.csv").write_text(rows)
        path.write_text(path.read_text().replace("'y0'", "'ill'"))
    federation, link = remote(paths)
    with pytest.raises(cf.InputError, match=message):
        cf.FederatedLogisticRegression(alpha=0.1).fit_federation(federation)
    assert len(link.sent) == 2  # one message to each site


def test_labels_that_are_words_are_classes(tmp_path):
    sites = table("classes")
    names = np.array(["low", "middle", "high"])
    paths = furnish(tmp_path, sites)
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


# --- replies that cannot be used ---

Change = Callable[[MemoryLink, bytes], bytes]


def words(edit: Callable[[np.ndarray], Any]) -> Change:
    """The reply of site 1 with other words, signed by the site: a site that is broken."""
    return lambda link, data: changed_words(link, "1", data, edit)


def other(**fields: Any) -> Change:
    """The reply of site 1 with other fields around the words, signed by the site."""
    return lambda link, data: signed(link, "1", {**fields_of(link, "1", data), **fields})


def enrolled(**facts: Any) -> Change:
    """The enrolment of site 1 with other facts, signed by the site."""

    def change(link: MemoryLink, data: bytes) -> bytes:
        fields = fields_of(link, "1", data)
        return signed(link, "1", {**fields, "enrolment": replace(fields["enrolment"], **facts)})

    return change


NOT_WORDS = "it is not an array of 19 words of 128 bits"  # the frame, a weight, eight means and eight squares
WRONG: dict[str, tuple[int, Change, str]] = {
    "floats": (2, words(lambda w: w.astype(float)), NOT_WORDS),
    "signed": (2, words(lambda w: w.astype(np.int64)), NOT_WORDS),
    "bytes of words": (2, words(lambda w: w.view(np.uint8)), NOT_WORDS),
    "flat": (2, words(lambda w: w.ravel()), NOT_WORDS),
    "one too few": (2, words(lambda w: w[1:]), NOT_WORDS),
    "one too many": (2, words(lambda w: np.concatenate([w, w[:1]])), NOT_WORDS),
    "halves": (2, words(lambda w: w[:, :1]), NOT_WORDS),
    "none": (2, words(lambda w: w[:0]), NOT_WORDS),
    "a list": (2, words(lambda w: tuple(map(float, w.ravel()))), NOT_WORDS),
    "a text": (2, words(lambda w: "words"), NOT_WORDS),
    "nothing": (2, other(words=None), NOT_WORDS),
    "number": (2, other(number=7), "its reply is for number '7', not 2; it was not used"),
    "run": (2, other(run="old"), "its reply is for run 'old'"),
    "site": (2, other(site="0"), "its reply is for site '0', not '1'"),
    "queries": (2, other(queries="0" * 64), "its reply is for queries '0000"),
    "kind": (2, other(kind="code"), "its reply is of the kind 'code'; it was not used"),
    "kind of the first message": (2, other(kind="enrolled"), "its reply is of the kind 'enrolled'; it was not used"),
    "table": (2, other(table=3), "the field 'table' of a message is missing or is not str"),
    "bytes": (2, lambda link, data: b"", "where 'compfed reply 6' is expected"),
    "cut": (2, lambda link, data: data[:-1], "its reply is not signed with its key; it was not used"),
    "old version": (2, lambda link, data: data.replace(b"reply 6", b"reply 3", 1), "'compfed reply 3' where"),
    "a class": (2, other(words=(Describe(),)), "Describe, which is not allowed here"),
    "words before enrolment": (1, other(kind="words"), "its reply is of the kind 'words'; it was not used"),
    "no enrolment": (1, other(enrolment=None), "it is not an enrolment"),
    "numbers as enrolment": (1, other(enrolment=np.zeros(4)), "it is not an enrolment"),
    "a reply as enrolment": (
        1,
        other(enrolment=Moments.Reply(2.0, *np.zeros((4, D)))),
        "Reply, which is not allowed here",
    ),
    "no rows": (1, enrolled(rows=0), "rows is 0; expected a whole number"),
    "weight": (1, enrolled(weight=np.nan), "weight is nan"),
    "width": (1, enrolled(width=D + 1), "it names 8 columns; its width is 9"),
    "bits": (1, enrolled(column_bits=np.zeros(D)), "column_bits is of float64"),
    "bits beyond": (1, enrolled(column_bits=np.full(D, 2**20, np.int32)), "column_bits has numbers beyond"),
    "mask": (1, enrolled(secure_sum=1), "secure_sum is 1; expected true or false"),
    "session key": (1, other(session_key=np.zeros(31, np.uint8)), "its session key is not one of 32 bytes"),
    "no session key": (1, other(session_key="key"), "its session key is not one of 32 bytes"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_reply_that_cannot_be_used_is_named_and_not_used(mistake, problem, masked_paths):
    number, change, message = WRONG[mistake]
    clean = ask(InProcess(problem.sites, exact=True), Moments())
    federation, link = remote(masked_paths)

    def broken(name, data, reply):
        return change(link, reply()) if name == "1" and number_of(data) == number else reply()

    link.meddle = broken
    with pytest.raises(NoReply, match=message) as problem_found:
        ask(federation, Moments())
    assert str(problem_found.value).startswith(f"site '1' sent 3 replies to message {number} that cannot be used: ")
    assert "None of them was used" in str(problem_found.value)
    assert {entry["site"] for entry in federation.problems} == {"1"}
    asked = [name for name, data in link.sent if number_of(data) == number]
    assert asked == ["0", "1", "2", "1", "1"]  # the others are not asked again
    # a fault that passes leaves no trace in the numbers
    federation, link = remote(masked_paths)
    faults = iter([True])
    link.meddle = lambda name, data, reply: (
        change(link, reply()) if name == "1" and number_of(data) == number and next(faults, False) else reply()
    )
    assert bits(ask(federation, Moments())) == bits(clean)
    assert len(federation.problems) == 1


def test_a_reply_that_breaks_the_reader_names_its_site(paths, monkeypatch):
    """Whatever is raised while a reply is read is the fault of its site, and not an error of the run."""

    def breaks(data, key):
        fields = read_reply(data, key)
        if fields["site"] == "1":
            raise ZeroDivisionError("words from outside \x1b[2J")
        return fields

    monkeypatch.setattr(remote_module, "read_reply", breaks)
    federation, _ = remote(paths)
    with pytest.raises(NoReply, match=r"^site '1' .*its reply cannot be read \(ZeroDivisionError\)"):
        ask(federation, Moments())


# --- sums that honest sites cannot give ---


def plus(at: int, value: float, unit: Callable[[], int]) -> Callable[[np.ndarray], np.ndarray]:
    """Words with a number more, in the unit of its field: masked or not, the sum has it too."""

    def edit(given: np.ndarray) -> np.ndarray:
        added, outside = exact_sum.encode(np.array([value]), unit(), 3)
        assert outside == 0
        changed = given.copy()
        changed[at : at + 1] = exact_sum.add(given[at : at + 1], added)
        return changed

    return edit


def rows_unit() -> int:
    """The unit of weights: 56 rows are below 2**6, with a bit of slack beside the 3 sites."""
    return exact_sum.unit_for(6, slack=1, sites=3)


def sites_unit() -> int:
    """The unit of counts of sites: 3 are below 2**2."""
    return exact_sum.unit_for(2, slack=1, sites=3)


def whole() -> int:
    return 0


X = np.zeros((2, D))
PART = Holdout(0.5, 0, False, True)
SUMS: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray], str]] = {
    "weight below 0": (Moments(), plus(2, -57.0, rows_unit), "Moments: the sum of the field factor is below 0"),
    "a row more": (Moments(), plus(2, 1.0, rows_unit), "Moments: the weight of all rows is not that of the enrolments"),
    "a row less": (Describe(), plus(2, -1.0, rows_unit), "Describe: the weight of all rows is not that of the enrolments"),
    "sites": (Describe(), plus(4, 1.0, sites_unit), "Describe: the field sites does not count sites"),
    "half a site": (Describe(), plus(4, -0.5, sites_unit), "Describe: the field sites does not count sites"),
    "held out": (HeldOut(OBJECTIVE, PART, X), plus(2, 60.0, rows_unit), "HeldOut: rows weigh more than the enrolments say"),
    "check word": (Moments(), plus(0, 1.0, whole), "its check word is not 3. A reply is missing, was counted twice"),
    "no check word": (Moments(), plus(0, -1.0, whole), "its check word is not 3"),
    "out of range": (Moments(), plus(1, 52.0, whole), "it counts more numbers out of range than the 51 there are"),
    "below range": (Moments(), plus(1, -1.0, whole), "it counts more numbers out of range than the 51 there are"),
}  # fmt: skip


@pytest.mark.parametrize("secure_sum", [False, True])
@pytest.mark.parametrize("mistake", SUMS)
def test_a_sum_that_honest_sites_cannot_give_is_not_used(mistake, secure_sum, paths, masked_paths, tmp_path):
    """Nobody can tell whose words are wrong where they are masked; unmasked, the log of the operator has them."""
    query, edit, message = SUMS[mistake]
    federation, link = remote(masked_paths if secure_sum else paths, tmp_path / "run")
    link.meddle = lambda name, data, reply: changed_words(link, name, reply(), edit) if name == "1" else reply()
    with pytest.raises(cf.InputError, match=message), federation:
        ask(federation, query)
    resumed, _ = remote(masked_paths if secure_sum else paths, tmp_path / "run")
    assert 2 not in resumed.log.messages  # the message is not in the log: once the site is mended, the run continues
    again, clean = ask(resumed, query), ask(remote(masked_paths if secure_sum else paths)[0], query)
    assert bits(again) == bits(clean)


def test_a_site_that_always_reports_numbers_out_of_range_does_not_repeat_for_ever(masked_paths):
    federation, link = remote(masked_paths)
    # behind the check word, a count, the factor and the flags of infinite models: a model is out of range
    link.meddle = lambda name, data, reply: (
        changed_words(link, name, reply(), plus(5, 1.0, sites_unit)) if name == "1" else reply()
    )
    with pytest.raises(cf.InputError, match="Evaluate: a site has a number that is not finite in its reply"):
        ask(federation, Evaluate(OBJECTIVE, X))
    assert federation.number == 1 + 1 + 2048 // 32  # the enrolment, and every lift once


def test_nan_in_a_round_enters_no_sum(problem, paths, monkeypatch):
    federation, _ = remote(paths)
    loop = loop_of(problem, default_steps("DecoupledProx", problem, tau=3))
    run_program(federation, loop.round())
    before, honest = loop.model(), Site.reply

    def broken(site, queries):
        replies: Any = honest(site, queries)
        if site.name != "1":
            return replies
        return tuple(reply._replace(u={key: value * np.nan for key, value in reply.u.items()}) for reply in replies)

    monkeypatch.setattr(Site, "reply", broken)
    with pytest.raises(NotFinite, match=r"^round 2, stage client_update$"):
        run_program(federation, loop.round())
    np.testing.assert_array_equal(loop.model(), before)


def test_a_round_of_another_shape_names_the_site(problem, paths):
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: (
        changed_words(link, name, reply(), lambda w: w[:-1]) if name == "2" else reply()
    )
    loop = loop_of(problem, default_steps("DecoupledProx", problem, tau=3))
    with pytest.raises(NoReply, match=r"site '2' .* it is not an array of \d+ words of 128 bits"):
        run_program(federation, loop.round())
    assert loop.r == 0


# --- who replied ---


@pytest.mark.parametrize("number", [1, 2])
def test_a_reply_signed_with_the_key_of_another_site_is_not_used(number, paths):
    federation, link = remote(paths)

    def forged(name, data, reply):
        if name != "1" or number_of(data) != number:
            return reply()
        fields = fields_of(link, "1", reply())
        return signed(link, "2", fields)  # site 2 speaks for site 1

    link.meddle = forged
    with pytest.raises(NoReply, match=rf"site '1' .* message {number} .* its reply is not signed with its key"):
        ask(federation, Moments())


@pytest.mark.parametrize("number", [1, 2])
def test_the_whole_reply_of_another_site_is_not_used(number, paths):
    """The SuperLink, or whoever holds it, delivers the reply of site 2 as that of site 1."""
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: (
        link.service("2").reply(data) if name == "1" and number_of(data) == number else reply()
    )
    with pytest.raises(NoReply, match=rf"site '1' .* message {number} .* its reply is not signed with its key"):
        ask(federation, Moments())


@pytest.mark.parametrize("number", [1, 2])
def test_one_flipped_bit_anywhere_in_a_reply_is_noticed(number, problem, tmp_path):
    paths = furnish(tmp_path, problem.sites)[:1]
    federation, link = remote(paths)
    ask(federation, Moments())
    name, data = link.sent[number - 1]
    reply = link.service(name).reply(data)
    flips = iter(np.linspace(0, len(reply) - 1, 40).astype(int).tolist())

    def flipped(name, data, whole):
        if number_of(data) != number:
            return whole()
        at = next(flips)
        return reply[:at] + bytes([reply[at] ^ 1]) + reply[at + 1 :]

    for _ in range(13):  # three each
        again, link = remote(paths)
        again.log.run = federation.log.run
        link.meddle = flipped
        with pytest.raises(NoReply):
            ask(again, Moments())


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("when", ["another message", "another run"])
def test_a_replayed_reply_is_not_used(when, number, paths):
    old: list[bytes] = []
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: old.append(reply()) or reply() if name == "1" else reply()
    ask(federation, Moments())
    if when == "another run":
        federation, link = remote(paths)
    link.meddle = lambda name, data, reply: (
        old[number - 1] if name == "1" and (when == "another message" or number_of(data) == number) else reply()
    )
    reason = "is for run"
    if when == "another message":
        reason = "is of the kind 'enrolled'" if number == 1 else "is for number '2', not 3"
    with pytest.raises(NoReply, match=rf"site '1' .* its reply {reason}"):
        ask(federation, Moments())


def test_a_reply_to_other_queries_under_the_same_number_is_not_used(paths):
    """The carrier sends other queries of its own to a site: its reply names them."""
    federation, link = remote(paths)

    def swapped(name, data, reply):
        if name != "1" or number_of(data) == 1:
            return reply()
        header, body = read_header(data, name)
        query = (Weighted(Describe(), "once"),)
        changed = read_body(body, (), {})._replace(queries=query)
        return link.service("1").reply(message_bytes(header._replace(queries=query_hash(query)), changed))

    link.meddle = swapped
    with pytest.raises(NoReply, match=r"site '1' .* its reply is for queries"):
        ask(federation, Moments())


# --- words from outside ---

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202eevil\x9b31m\nsecond line"


@pytest.mark.parametrize("where", ["refused", "failed", "lost", "version", "column", "kind", "run", "site", "flower"])
def test_control_characters_of_a_site_reach_no_screen_and_no_file(where, paths, tmp_path):
    federation, link = remote(paths, tmp_path / "run", retry=replace(NOW, attempts=2))

    def evil(name, data, reply):
        if name != "1":
            return reply()
        if where == "flower":
            return Reply(None, EVIL)
        fields = fields_of(link, "1", reply())
        if where == "version":
            fields["enrolment"] = replace(fields["enrolment"], version=EVIL)
        elif where == "column":
            columns = (EVIL, *fields["enrolment"].columns[1:])
            fields["enrolment"] = replace(fields["enrolment"], columns=columns)
        elif where in ("kind", "run", "site"):
            fields[where] = EVIL
        else:
            fields |= {"kind": where, "reason": EVIL}
        return signed(link, "1", fields)

    link.meddle = evil
    with pytest.raises(cf.InputError) as problem:
        ask(federation, Moments())
    files = [path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    lines = (line if isinstance(line, str) else f"{line.site}: {line.what}" for line in federation.run_log.lines)
    shown = [str(problem.value), *lines, *files, str(federation.problems)]
    assert "1" in str(problem.value)
    logged = [value for path in (tmp_path / "run").glob("log.jsonl") for line in path.read_text().splitlines()
              for value in json.loads(line).values() if isinstance(value, str)]  # fmt: skip
    for text in (*shown, *logged):
        for line in text.rstrip("\n").split("\n"):
            assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" for c in line), repr(line)
    assert "\n" not in str(problem.value)
    assert not any("\n" in line for line in federation.run_log.lines)
    if where == "refused":
        assert str(problem.value).startswith("site '1'")


# --- waiting and resending ---


def test_a_failing_site_is_asked_again(problem, tmp_path):
    """Its disk is full for two messages: nothing is lost, and the others are not asked again."""
    paths = furnish(tmp_path, problem.sites)
    clean = ask(remote(paths)[0], Moments())
    federation, link = remote(paths)
    runs = paths[1].parent / "state" / "runs"
    hidden = runs.with_name("hidden")
    attempts = itertools.count()

    def failing(name, data, reply):
        if name != "1" or next(attempts) >= 2:
            return reply()
        runs.rename(hidden)
        runs.write_text("not a folder")
        answered = reply()
        runs.unlink()
        hidden.rename(runs)
        return answered

    link.meddle = failing
    assert bits(ask(federation, Moments())) == bits(clean)
    (said,) = federation.problems  # once
    assert said["site"] == "1"
    assert "its state cannot be written, or its table cannot be read" in said["problem"]
    assert [name for name, _ in link.sent] == ["0", "1", "2", "1", "1", "0", "1", "2"]


def test_a_site_that_always_fails_is_named(paths):
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: (
        signed(link, "1", {**fields_of(link, "1", reply()), "kind": "failed", "reason": "it failed."})
        if name == "1"
        else reply()
    )
    with pytest.raises(NoReply, match=r"message 1 of run .* was sent to site '1' 4 times .* it failed"):
        ask(federation, Moments())


def test_an_error_of_flower_is_retried_and_named(paths):
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: Reply(None, "Flower says: Node unavailable") if name == "1" else reply()
    with pytest.raises(NoReply, match=r"site '1' 4 times and is not answered: Flower says: Node unavailable"):
        ask(federation, Moments())
    assert [name for name, _ in link.sent].count("1") == NOW.attempts
    assert [name for name, _ in link.sent].count("0") == 1  # a site that has answered is not asked again


def test_no_reply_at_all_is_named(paths):
    federation, link = remote(paths)
    link.meddle = lambda name, data, reply: None if name == "1" else reply()
    with pytest.raises(NoReply, match=r"was sent to site '1' 4 times and is not answered: no reply in time"):
        ask(federation, Moments())


def test_a_site_that_signs_in_again_gets_its_message_at_once(paths, monkeypatch):
    """It was killed with the message in hand: nobody waits for the timeout."""
    monkeypatch.setattr(remote_module, "CHECK_CONNECTED", 0.02)
    federation, link = remote(paths, retry=replace(NOW, timeout=600.0))
    killed = iter([True])

    def kill(name, data, reply):
        if name == "1" and next(killed, False):
            link.signed_in["1"] = "2"
            return None
        return reply()

    link.meddle = kill
    assert ask(federation, Describe())[0].rows.tolist() == [30, 6, 20]
    assert [entry["problem"] for entry in federation.problems] == ["it signed in again"]


def test_a_site_that_is_away_is_waited_for(paths):
    """Longer than attempts would last: a message to a site that is not connected is not an attempt."""
    federation, link = remote(paths, retry=replace(NOW, attempts=1, wait=60.0))
    del link.signed_in["1"]
    looks = itertools.count()

    def connected():
        if next(looks) == 30:
            link.signed_in["1"] = "9"
        return dict(link.signed_in)

    link.connected = connected  # pyright: ignore[reportAttributeAccessIssue]
    assert ask(federation, Describe())[0].rows.tolist() == [30, 6, 20]
    assert [entry["problem"] for entry in federation.problems] == ["not connected"]  # said once
    assert [name for name, _ in link.sent] == ["0", "2", "1", "0", "1", "2"]


def test_a_site_that_stays_away_is_named(paths):
    federation, link = remote(paths)
    del link.signed_in["1"]
    with pytest.raises(NoReply, match=r"site '1' was not connected for 0.2 s. Ask it to start `compfed site run`"):
        ask(federation, Moments())


@pytest.mark.parametrize("step", ["open", "connected", "push", "pull"])
def test_trouble_with_the_superlink_is_retried_and_named(step, paths):
    federation, link = remote(paths)
    clean = ask(federation, Moments())
    federation, link = remote(paths)
    resets: list[int] = []
    troubles, real = itertools.count(), getattr(link, step)

    def busy(*given):
        if next(troubles) < 2:
            raise LinkError("the connection to fed.example.org:8443 was lost")
        return real(*given)

    setattr(link, step, busy)
    link.reset = lambda: resets.append(1)  # pyright: ignore[reportAttributeAccessIssue]
    assert bits(ask(federation, Moments())) == bits(clean)
    assert [entry["problem"] for entry in federation.problems] == [
        "the SuperLink cannot be used: the connection to fed.example.org:8443 was lost"
    ]
    assert len(resets) == 2
    assert federation.run_log.state["link"] == ""


def test_a_superlink_that_stays_away_is_named(paths):
    federation, link = remote(paths)

    def gone():
        raise LinkError("nothing listens at fed.example.org:8443")

    link.open = gone  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(NoReply, match=r"the SuperLink could not be used for 0.2 s: nothing listens at fed.example.org"):
        ask(federation, Moments())


def test_a_link_that_takes_no_message_for_a_site_is_asked_again(paths):
    federation, link = remote(paths)
    real, times = link.push, itertools.count()

    def refusing(messages, ttl):
        return {name: taken for name, taken in real(messages, ttl).items() if name != "1" or next(times) > 0}

    link.push = refusing  # pyright: ignore[reportAttributeAccessIssue]
    ask(federation, Moments())
    assert [entry["problem"] for entry in federation.problems] == ["the SuperLink took no message for it"]


def test_leaving_the_federation_closes_its_link(paths):
    federation, link = remote(paths)
    with federation as entered:
        assert entered is federation
        ask(federation, Describe())
        assert not link.closed
    assert link.closed


def test_a_table_that_changes_is_noticed_by_the_operator_alone(paths):
    """A site that pins nothing, or was replaced: the hash in its reply is another one."""
    federation, link = remote(paths)
    ask(federation, Moments())
    link.meddle = lambda name, data, reply: (
        signed(link, "1", {**fields_of(link, "1", reply()), "table": "0" * 64}) if name == "1" else reply()
    )
    with pytest.raises(TableChanged, match="the table of site '1' has changed since run"):
        ask(federation, Moments())


def test_the_roster_decides_which_key_is_right(paths):
    federation, _ = remote(paths)
    federation.roster["1"] = keys.new_identity().public_key()
    with pytest.raises(NoReply, match=r"site '1' .* not signed with its key"):
        ask(federation, Moments())
    assert keys.fingerprint(key_of(paths[1]).public_key()) == federation.log.sites["1"]
