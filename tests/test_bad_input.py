"""What a user may get wrong: each mistake ends in one error that names the value and the way out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from problems import logistic, quadratics

import compfed as cf
from compfed._utils.records import record
from compfed.algorithms import DecoupledProx, FedDA
from compfed.data import from_arrays, from_table, synthetic
from compfed.losses import Logistic, Squared
from compfed.regularisers import L1, Box, ElasticNet, L2Ball, Zero
from compfed.trace import RunState

ANYTHING: Any = np.ones(2)
X, Y = np.ones((4, 2)), np.array([0, 1, 0, 1])
SITES = from_arrays([X, 2 * X], [Y, Y], names=["north", "south"])
ALGORITHM = DecoupledProx(eta=0.5, tau=3)
any_: Any = cf  # for what no type checker would let through


def spoiled(array: np.ndarray, at: Any, value: float) -> np.ndarray:
    out = np.array(array, float)
    out[at] = value
    return out


@record
class Sampled(FedDA):
    """A method of one's own that allows sampling and says no more."""

    schemes = ()


def problem(**changes: Any) -> cf.Problem:
    given: dict[str, Any] = {"loss": Logistic(ridge=0.1), "regulariser": L1(0.1), "sites": SITES} | changes
    return cf.Problem(**given)


def run(**changes: Any) -> cf.Trace:
    given: dict[str, Any] = {"problem": problem(), "algorithm": ALGORITHM, "rounds": 1} | changes
    return cf.simulate(**given)


def other_trace() -> cf.Trace:
    return cf.Trace({"round": np.arange(1)}, np.zeros(2), {"algorithm": {"name": "FedAvg"}}, RunState(1, [], []))


# what the user did -> what the message must say, as a regular expression: the value, then the way out
MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    # labels and features
    "labels 1 and 2": (
        lambda: problem(sites=from_arrays([X], [Y + 1])),
        r"\{-1, \+1\} or \{0, 1\}; there are others\. Recode the two classes, or use losses\.Squared",
    ),
    "labels with three classes": (
        lambda: problem(sites=from_arrays([X], [[0, 1, 2, 1]])),
        r"there are others\. Recode",
    ),
    "a mix of codings between sites": (
        lambda: problem(sites=from_arrays([X, X], [[-1, 1, 1, 1], Y])),
        r"there are others\. Recode",
    ),
    "NaN in features": (
        lambda: from_arrays([X, spoiled(X, (2, 1), np.nan)], [Y, Y], names=["north", "south"]),
        r"features of site 'south' has 1 value\(s\) .* NaN or infinite, the first at row 2, column 1\. Drop .* impute",
    ),
    "inf in features": (
        lambda: from_arrays([spoiled(X, 1, np.inf)], [Y]),
        r"features of site '0' has 2 value\(s\).*row 1, column 0\. Drop",
    ),
    "NaN in labels": (
        lambda: from_arrays([X], [spoiled(Y, 3, np.nan)]),
        r"labels of site '0' has 1 value\(s\).*row 3\. Drop",
    ),
    "a number no float can be of": (
        lambda: any_.FederatedLasso(alpha=10**400).fit(X, Y, sites=None),
        r"alpha=10{400} must be a finite number >= 0",
    ),
    "a count no machine can count to": (lambda: run(rounds=10**400), r"must be a whole number >= 0 and below 2\*\*63"),
    "words for counts": (
        lambda: any_.FederatedPoissonRegressor().fit(X, np.array(["a", "b", "a", "b"]), sites=None),
        r"y must be numbers: row 0 has .*'a'",
    ),
    "an array for a method": (
        lambda: cf.FederatedLasso(algorithm=ANYTHING).fit(X, Y, sites=None),
        r"algorithm must be a name such as 'DecoupledProx'",
    ),
    "an array for a word": (
        lambda: cf.FederatedLasso(site_weights=ANYTHING).fit(X, Y, sites=None),
        r"site_weights=array.* must be one of 'rows', 'equal'",
    ),
    "an array for a rule": (
        lambda: cf.FederatedLassoCV(rule=ANYTHING).fit(X, Y, sites=None),
        r"rule=array.* must be one of",
    ),
    "an array for a scheme": (lambda: run(sampling=np.ones(2)), r"sampling=array.* must be one of"),
    "no function for progress": (lambda: run(progress=1.5), r"progress=1\.5 must be a function, or None"),
    "no function for a measure": (lambda: run(measure="loss"), r"measure='loss' must be a function, or None"),
    "steps for no local step": (
        lambda: cf.algorithms.default_steps("ProximalGradient", problem(), tau=-1),
        r"tau=-1 must be a whole number >= 1",
    ),
    "a scale whose square is no number": (
        lambda: cf.regularisers.Rescaled(L1(0.1), 1e-300),
        r"scale must be between 1e-70 and 1e\+70",
    ),
    "a number for a column": (lambda: any_.data.from_files("a.csv", label=5), r"5 is not the name of a column"),
    "numbers for the column of sites": (
        lambda: cf.data.from_files("a.csv", label="y", site=ANYTHING),
        r"is not the name of a column; name the one",
    ),
    "a number for a path": (lambda: any_.data.from_files(3, label="y"), r"3 is not a path; give the name of a file"),
    "no number for delta": (lambda: any_.losses.Huber(delta=()), r"delta.*a finite number > 0"),
    "features that are all zero": (
        lambda: any_.FederatedLasso(fit_intercept=False).fit(0 * X, Y, sites=None),
        r"Lipschitz constant 0\.0: its features are all zero",
    ),
    "one number for groups": (
        lambda: any_.FederatedGroupLasso(groups=np.array(0.1)).fit(X, Y, sites=None),
        r"groups=array\(0\.1\) must be a list",
    ),
    "inf in labels": (lambda: from_arrays([X], [spoiled(Y, 0, -np.inf)]), r"labels of site '0'.*row 0\. Drop"),
    "words for labels": (
        lambda: from_arrays([X], [["a", "b", "a", "b"]]),
        r"labels of site '0' must be numbers: row 0 has .*'a'\)?, which is not a number\. Encode words",
    ),
    "words in features": (
        lambda: from_arrays([pd.DataFrame({"a": ["x", "y"]})], [[0, 1]]),
        r"features of site '0': column 'a' has 'x' in row 0, which is not a number\. Encode words",
    ),
    "an empty site": (
        lambda: from_arrays([X, X[:0]], [Y, Y[:0]], names=["north", "south"]),
        r"site 'south' is empty.*Leave it out",
    ),
    "more features than labels": (lambda: from_arrays([X], [Y[:3]]), r"site '0' has 4 rows of features and 3 labels"),
    "sites of different width": (
        lambda: from_arrays([X, X[:, :1]], [Y, Y], names=["north", "south"]),
        r"site 'south' has 1 columns, site 'north' has 2; all sites need the same columns",
    ),
    "no columns": (lambda: from_arrays([X[:, :0]], [Y]), r"site '0' has no feature columns"),
    "one vector for a matrix": (lambda: from_arrays([Y], [Y]), r"shape \(rows, columns\).*got \(4,\) and \(4,\)"),
    "more matrices than label vectors": (lambda: from_arrays([X, X], [Y]), r"2 feature matrices and 1 label vectors"),
    "no site": (lambda: from_arrays([], []), r"at least one site; got none"),
    "wrong number of names": (lambda: from_arrays([X], [Y], names=["a", "b"]), r"2 names for 1 sites; give one name"),
    "site column too short": (
        lambda: from_table(X, Y, ["a", "b"]),
        r"one entry per row; got shapes \(4, 2\), \(4,\) and \(2,\)",
    ),
    "site column missing": (lambda: from_table(X, Y, "hospital"), r"the site of every row is needed; got shape \(\)"),
    "one label for all": (lambda: from_table(X, 1, ["a", "b", "a", "b"]), r"got shapes \(4, 2\), \(\) and \(4,\)"),
    "unknown column": (
        lambda: from_table(pd.DataFrame({"age": [1], "ill": [0]}), "ill", "hospital"),
        r"sites='hospital' names a column, and X has none of that name; it has age",
    ),
    "rows without a site": (
        lambda: from_table(X, Y, np.array(["a", None, "b", None], object)),
        r"site of every row is needed; 2 row\(s\) have none, the first is row 1. Drop them",
    ),
    "rows whose site is pandas.NA": (
        lambda: from_table(X, Y, pd.array([1, 2, pd.NA, 1], dtype="Int64")),  # pyright: ignore[reportArgumentType]  # the mistake
        r"1 row\(s\) have none, the first is row 2",
    ),
    "a wrong permutation": (lambda: SITES.permuted([0, 0]), r"each of 0\.\.1 once; got \[0, 0\]"),
    # the generator
    "negative alpha": (lambda: synthetic(alpha=-1), r"alpha=-1 must be a finite number >= 0"),
    "beta NaN": (lambda: synthetic(beta=float("nan")), r"beta=nan must be a finite number >= 0"),
    "no clients": (lambda: synthetic(clients=0), r"clients=0 must be a whole number >= 1"),
    "half a sample": (lambda: synthetic(samples=2.5), r"samples=2\.5: every site needs a whole number of rows >= 1"),  # pyright: ignore[reportArgumentType]  # the mistake
    "a site without samples": (lambda: synthetic(clients=2, samples=[3, 0]), r"samples=\[3, 0\].*rows >= 1"),
    "samples of other sites": (
        lambda: synthetic(clients=2, samples=[3, 3, 3]),
        r"samples has 3 entries for 2 clients; give one number, or one per client",
    ),
    "no features": (lambda: synthetic(features=0), r"features=0 must be a whole number >= 1"),
    "negative data seed": (lambda: synthetic(seed=-1), r"seed=-1 must be a whole number >= 0"),
    "unknown label rule": (
        lambda: synthetic(label_rule="softmax"),  # pyright: ignore[reportArgumentType]  # the mistake
        r"label_rule='softmax' must be one of 'sign', 'argmax', 'parity'",
    ),
    "unknown normalisation": (
        lambda: synthetic(normalise="l2"),  # pyright: ignore[reportArgumentType]  # the mistake
        r"normalise='l2' must be one of 'rows', 'largest', 'none'",
    ),
    # regularisers, losses, hyper-parameters
    "negative lambda": (lambda: L1(-0.1), r"L1\(lam=-0\.1\): lam must be finite and >= 0"),
    "one negative lambda of many": (lambda: L1(np.array([0.1, -1.0])), r"L1\(lam=array.*lam must be finite and >= 0"),
    "infinite lambda": (lambda: L1(np.inf), r"lam=inf\): lam must be finite"),
    "negative l2": (lambda: ElasticNet(0.1, -1.0), r"ElasticNet\(l2=-1\.0\): l2 must be finite and >= 0"),
    "negative ridge": (lambda: Logistic(ridge=-1.0), r"Logistic\(ridge=-1\.0\): ridge must be finite and >= 0"),
    "empty ball": (lambda: L2Ball(0.0), r"L2Ball\(radius=0\.0\): radius must be a finite number > 0"),
    "box inside out": (lambda: Box(1.0, -1.0), r"Box\(lower=1\.0, upper=-1\.0\): lower must be <= upper"),
    "box inside out somewhere": (lambda: Box(np.array([0.0, 2.0]), 1.0), r"Box\(lower=\[0\. 2\.\], upper=1\.0\)"),
    "box with NaN": (lambda: Box(float("nan"), 1.0), r"Box\(lower=nan\): lower must be a number that is not NaN"),
    "lambda as a word": (lambda: L1("0.1"), r"L1\(lam='0\.1'\): lam must be finite"),  # pyright: ignore[reportArgumentType]  # the mistake
    "negative eta": (lambda: FedDA(eta=-1.0), r"FedDA\(eta=-1\.0\): eta must be a finite number > 0"),
    "eta zero": (lambda: FedDA(eta=0), r"FedDA\(eta=0\.0\): eta must be a finite number > 0"),
    "eta NaN": (lambda: FedDA(eta=float("nan")), r"FedDA\(eta=nan\): eta must be a finite number > 0"),
    "eta None": (lambda: FedDA(eta=None), r"FedDA\(eta=None\): eta must be a finite number > 0"),  # pyright: ignore[reportArgumentType]  # the mistake
    "eta True": (lambda: FedDA(eta=True), r"FedDA\(eta=True\): eta must be a finite number > 0"),
    "a list of etas": (lambda: FedDA(eta=[0.1, 0.2]), r"FedDA\(eta=array.*eta must be a finite number > 0"),  # pyright: ignore[reportArgumentType]  # the mistake
    "tau zero": (lambda: FedDA(eta=1.0, tau=0), r"FedDA\(tau=0\): tau must be a whole number >= 1"),
    "tau not whole": (lambda: FedDA(eta=1.0, tau=2.5), r"FedDA\(tau=2\.5\): tau must be a whole number >= 1"),  # pyright: ignore[reportArgumentType]  # the mistake
    "tau True": (lambda: FedDA(eta=1.0, tau=True), r"FedDA\(tau=True\): tau must be a whole number >= 1"),
    "eta spoiled later": (lambda: dataclasses.replace(ALGORITHM, eta=-2.0), r"DecoupledProx\(eta=-2\.0\): eta must be"),
    "unknown upload": (
        lambda: DecoupledProx(eta=1.0, upload="sum"),
        r"DecoupledProx\(upload='sum'\): upload must be one of 'auto', 'model', 'gradient-sum'",
    ),
    "an algorithm's name misspelt": (
        lambda: cf.algorithms.find("DecupledProx"),
        r"no algorithm 'DecupledProx'; the nearest is 'DecoupledProx'\. Known: .*FedDA",
    ),
    "an algorithm's name far off": (lambda: cf.algorithms.find("adam"), r"no algorithm 'adam'; the nearest is '\w+'"),
    # the problem
    "loss and regulariser swapped": (
        lambda: problem(loss=L1(0.1), regulariser=Logistic()),
        r"got Problem\(L1, Logistic, sites\); the loss comes first, then the regulariser",
    ),
    "no prox": (
        lambda: problem(regulariser=np.sum),
        r"has no prox; a regulariser needs g\.prox\(x, t\), the prox of t g",
    ),
    "no loss": (
        lambda: problem(loss=np.sum),
        r"is not a loss: it has no size\. Take one of compfed\.losses, or make one .* losses\.from_function",
    ),
    "two sites of one name": (
        lambda: cf.data.from_arrays([X, X], [Y, Y], names=["a", "a"]),
        r"two sites are called 'a'; give each its own name",
    ),
    "a table for describe": (
        lambda: cf.describe(X),  # pyright: ignore[reportArgumentType]  # the mistake
        r"describe takes Sites .*got ndarray",
    ),
    "a word for scale": (
        lambda: cf.solve_federated(problem(), scale="a"),  # pyright: ignore[reportArgumentType]  # the mistake
        r"scale='a' must be a finite number >= 0",
    ),
    "the loss's class": (lambda: problem(loss=Logistic), r"got the class Logistic; give an instance"),
    "the regulariser's class": (lambda: problem(regulariser=L1), r"got the class L1; give an instance"),
    "arrays for sites": (lambda: problem(sites=(X, Y)), r"sites must come from compfed\.data.*got tuple"),
    "lambdas for other coefficients": (
        lambda: problem(regulariser=L1(np.ones(3))),
        r"L1 does not work with 2 coefficients.*\(3,\)",
    ),
    "bounds for other coefficients": (
        lambda: problem().replace(regulariser=Box(np.zeros(3), np.ones(3))),
        r"Box does not work with 2 coefficients",
    ),
    "bounds that would broadcast": (
        lambda: problem(sites=from_arrays([X[:, :1]], [Y]), regulariser=L1(np.ones(2))),
        r"L1 has a prox of shape \(2,\) where the model has shape \(1,\)",
    ),
    "weights that sum to two": (
        lambda: problem(weights=[1, 1]),
        r"weights sum to 2\.0; they must sum to 1 within 1e-8, and are 1 off\. Divide",
    ),
    "three weights for two sites": (
        lambda: problem(weights=[0.2, 0.3, 0.5]),
        r"weights has shape \(3,\); there are 2 sites",
    ),
    "a negative weight": (lambda: problem(weights=[1.5, -0.5]), r"finite and >= 0; the smallest is .*-0\.5"),
    "a sample that may weigh nothing": (
        lambda: cf.simulate(problem(weights=[1.0, 0.0]), cf.algorithms.FedAvg(eta=0.1), 1, participants=1),
        r"site 'south' has weight 0, and a sample of participants=1 could consist of such sites only",
    ),
    "a NaN weight": (lambda: problem(weights=[0.5, np.nan]), r"weights must be finite"),
    "words for weights": (
        lambda: problem(weights="uniform"),
        r"weights='uniform' cannot be read as an array of numbers",
    ),
    "unknown dtype": (lambda: problem(dtype="float128x"), r"dtype='float128x'.*Use one of float64, float32"),
    "half precision": (lambda: problem(dtype="float16"), r"dtype='float16'.*Use one of float64, float32"),
    "unknown dtype later": (lambda: problem().astype(int), r"dtype=<class 'int'>.*Use one of float64, float32"),
    "a point of the wrong length": (
        lambda: problem().objective(np.zeros(3)),
        r"x has shape \(3,\); this problem has 2 coefficients: shape \(2,\)",
    ),
    "a point with NaN": (lambda: problem().gradient([0.0, np.nan]), r"x has NaN or infinite entries"),
    "a word for a point": (lambda: problem().objective("zero"), r"x='zero' cannot be read as an array of numbers"),
    "a negative step": (
        lambda: problem().gradient_mapping([0, 0], step=-1.0),
        r"step=-1\.0 must be a finite number > 0",
    ),
    "features all zero": (
        lambda: cf.solve_pooled(problem(loss=Squared(), sites=from_arrays([0 * X], [Y]))),
        r"Lipschitz constant 0\.0: its features are all zero.*Rescale",
    ),
    # runs
    "something else than a problem": (
        lambda: run(problem=SITES),
        r"first argument must be a compfed\.Problem; got Sites",
    ),
    "solving something else": (lambda: cf.solve_pooled(SITES), r"solve_pooled needs a compfed\.Problem; got Sites"),  # pyright: ignore[reportArgumentType]  # the mistake
    "no iterations": (
        lambda: cf.solve_pooled(problem(), max_iterations=0),
        r"max_iterations=0 must be a whole number >= 1",
    ),
    "the algorithm's class": (
        lambda: run(algorithm=DecoupledProx),
        r"must be an instance such as .*DecoupledProx\(eta=1\.0\); got DecoupledProx \(the class\)",
    ),
    "the algorithm's name": (lambda: run(algorithm="FedDA"), r"must be an instance such as .*; got 'FedDA'"),
    "half a round": (lambda: run(rounds=2.5), r"rounds=2\.5 must be a whole number >= 0"),
    "negative rounds": (lambda: run(rounds=-1), r"rounds=-1 must be a whole number >= 0"),
    "record_every zero": (lambda: run(record_every=0), r"record_every=0 must be a whole number >= 1"),
    "negative seed": (lambda: run(seed=-1), r"seed=-1 must be a whole number >= 0"),
    "batch size zero": (lambda: run(batch_size=0), r"batch_size=0 must be a whole number >= 1\. Leave it out for full"),
    "too many participants": (lambda: run(participants=3), r"participants=3 is more than the 2 clients there are"),
    "no participants": (lambda: run(participants=0), r"participants=0 must be a whole number >= 1"),
    "an unknown scheme of sampling": (
        lambda: run(participants=1, sampling="weighted"),
        r"sampling='weighted' must be one of 'proportional', 'uniform', 'self-normalised', or None",
    ),
    "a scheme that does not suit the method": (
        lambda: run(problem=problem(weights=[0.7, 0.3]), participants=1, sampling="proportional"),
        r"sampling='proportional' does not suit DecoupledProx.*'self-normalised'\. Leave sampling out for 'self-normalised'",
    ),
    "unequal weights, and a method that names no scheme": (
        lambda: run(problem=problem(weights=[0.7, 0.3]), algorithm=Sampled(eta=1.0), participants=1),
        r"Sampled does not say how .* unequal weights.*'proportional', 'self-normalised'.*weight \* mean.*For this run alone: sampling=",
    ),
    "x0 of the wrong shape": (
        lambda: run(x0=np.zeros((2, 1))),
        r"x0 has shape \(2, 1\); this problem has 2 coefficients",
    ),
    "x0 with NaN": (lambda: run(x0=[np.nan, 0]), r"x0 has NaN or infinite entries"),
    "x_star of the wrong shape": (lambda: run(x_star=np.zeros(5)), r"x_star has shape \(5,\)"),
    "gradient sums from some": (
        lambda: run(algorithm=DecoupledProx(eta=1.0, upload="gradient-sum"), participants=1),
        r"upload='gradient-sum'\) needs every client.*participants=1 of 2\. Use upload='model'",
    ),
    "a smooth method on a regularised problem": (
        lambda: run(algorithm=cf.algorithms.FedAvg(eta=1.0)),
        r"FedAvg is for smooth problems.*L1\. Use regularisers\.Zero\(\), or a composite method such as DecoupledProx",
    ),
    "resume with another algorithm": (
        lambda: run(resume=other_trace()),
        r"the trace is of FedAvg, the algorithm is DecoupledProx; they must be the same",
    ),
    "resume without state": (lambda: run(resume=cf.Trace({}, np.zeros(2))), r"no state to go on from"),
    "resume and x0": (lambda: run(resume=other_trace(), x0=np.zeros(2)), r"x0 .* or resume .*, not both"),
    "grid over an unknown name": (
        lambda: cf.grid(problem(), ALGORITHM, 1, {"etta": [1.0]}),
        r"grid over 'etta'.*Known: eta, eta_g, lam, ridge, tau, upload, seed, batch_size",
    ),
    "grid over a wrong tau": (
        lambda: cf.grid(problem(), ALGORITHM, 1, {"tau": [1, 0]}),
        r"DecoupledProx\(tau=0\): tau must be a whole number >= 1",
    ),
    "grid of a class": (
        lambda: any_.grid(problem(), DecoupledProx, 1, {"eta": [0.1]}),
        r"must be an instance.*got DecoupledProx \(the class\)",
    ),
    "grid of no algorithm": (lambda: any_.grid(problem(), None, 1, {"eta": [0.1]}), "must be an instance.*got None"),
    "grid over a name alone": (lambda: any_.grid(problem(), ALGORITHM, 1, "eta"), "over='eta' must map names to lists"),
    "grid over a number": (lambda: any_.grid(problem(), ALGORITHM, 1, {3: [1.0]}), "grid over 3: it is not the name"),
    "grid over values of two shapes": (
        lambda: any_.grid(problem(), ALGORITHM, 1, {"lam": [0.1, np.full(4, 0.1)]}),
        "grid over 'lam': its values differ in shape",
    ),
    "grid over nothing": (
        lambda: cf.grid(problem(), ALGORITHM, 1, {}),
        r"over=\{\} names no setting; give at least one",
    ),
    "grid over no values": (
        lambda: cf.grid(problem(), ALGORITHM, 1, {"eta": []}),
        r"over=\{'eta': \[\]\}.*at least one value",
    ),
    "grid over a bad value": (
        lambda: cf.grid(problem(), ALGORITHM, 1, {"eta": [1.0, -1.0]}),
        r"DecoupledProx\(eta=-1\.0\)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake):
    act, message = MISTAKES[mistake]
    with pytest.raises(cf.InputError, match=message):
        act()


@pytest.mark.parametrize("mistake", ["half a round", "too many participants", "gradient sums from some", "x0 with NaN"])
def test_the_reference_engine_refuses_the_same(mistake, monkeypatch):
    act, message = MISTAKES[mistake]
    monkeypatch.setattr(cf, "simulate", cf.simulation.run_plain)
    with pytest.raises(cf.InputError, match=message):
        act()


def test_resume_with_another_algorithm_or_problem_of_a_real_trace():
    trace = cf.simulate(logistic(), DecoupledProx(eta=0.5), 1)
    with pytest.raises(cf.InputError, match="the trace is of DecoupledProx, the algorithm is FedDA"):
        cf.simulate(logistic(), FedDA(eta=0.5), 1, resume=trace)
    with pytest.raises(cf.InputError, match=r"problem of another shape than this one \(2 x 2\)"):
        cf.simulate(problem(), DecoupledProx(eta=0.5), 1, resume=trace)


def test_input_errors_are_value_errors():
    with pytest.raises(ValueError, match="lam"):
        L1(-1.0)


# --- runs that blow up ---


@pytest.fixture(scope="module")
def quadratic() -> cf.Problem:
    return quadratics(g=Zero())


BLOWS_UP = DecoupledProx(eta=2.0)


@pytest.mark.parametrize("engine", ["simulate", "run_plain"])
def test_divergence_names_the_round_and_the_cause_and_keeps_the_rest(quadratic, engine):
    run = getattr(cf.simulation, engine)
    with pytest.raises(cf.Divergence) as caught:
        run(quadratic, BLOWS_UP, 200)
    message, trace = str(caught.value), caught.value.trace
    last = int(trace["round"][-1])
    safe = 1 / quadratic.client_lipschitz.max()
    assert f"DecoupledProx diverged in round {last + 1}" in message
    assert f"eta=2 is {2 / safe:.3g} times 1/L_max={safe:.3g}; try eta <= {safe:.3g}" in message
    assert f"Rounds 0 to {last} are kept" in message
    assert last >= 1
    np.testing.assert_array_equal(trace["round"], np.arange(last + 1))
    assert all(np.isfinite(values).all() for values in trace.columns.values())
    assert np.isfinite(trace.x).all()
    np.testing.assert_allclose(trace["objective"][-1], quadratic.objective(trace.x), rtol=1e-10)
    assert trace.provenance["diverged"] == message
    # what was kept are the true first rounds, and there is no state to go on from
    kept = run(quadratic, BLOWS_UP, last)
    np.testing.assert_array_equal(trace.x, kept.x)
    assert trace.state is None
    with pytest.raises(cf.InputError, match="no state"):
        run(quadratic, BLOWS_UP, 1, resume=trace)


def test_both_engines_stop_in_the_same_round(quadratic):
    lasts = []
    for engine in (cf.simulate, cf.simulation.run_plain):
        with pytest.raises(cf.Divergence) as caught:
            engine(quadratic, BLOWS_UP, 200)
        lasts.append(caught.value.trace["round"][-1])
    assert lasts[0] == lasts[1]


def test_reference_names_client_and_stage_when_numbers_overflow(quadratic):
    """A step so long that one local loop leaves the range of float64: the first client is caught in the act."""
    with pytest.raises(cf.Divergence, match=r"diverged in round 1, client '0', stage client") as caught:
        cf.simulation.run_plain(quadratic, DecoupledProx(eta=1e100), 5)
    np.testing.assert_array_equal(caught.value.trace["round"], [0])
    with pytest.raises(cf.Divergence, match=r"diverged in round 1:") as caught:
        cf.simulate(quadratic, DecoupledProx(eta=1e100), 5)
    np.testing.assert_array_equal(caught.value.trace["round"], [0])


def test_divergence_between_two_recorded_rounds(quadratic):
    with pytest.raises(cf.Divergence) as caught:
        cf.simulate(quadratic, DecoupledProx(eta=1e100), 40, record_every=10)
    assert "diverged in round 1:" in str(caught.value)
    np.testing.assert_array_equal(caught.value.trace["round"], [0])


def test_a_step_that_is_safe_by_itself_points_at_the_others(quadratic):
    eta = 0.5 / quadratic.client_lipschitz.max()
    with pytest.raises(cf.Divergence, match="together with eta_g and tau is too long a step; reduce them"):
        cf.simulate(quadratic, DecoupledProx(eta=eta, eta_g=500.0), 200)


def test_in_a_grid_the_other_members_survive(quadratic):
    etas = [0.01, 2.0, 0.02]
    traces = cf.grid(quadratic, DecoupledProx(eta=0.01), 40, {"eta": etas})
    for eta, trace in zip(etas, traces, strict=True):
        assert trace.provenance["grid"] == {"eta": eta}
        if eta == 2.0:
            assert "diverged in round" in trace.provenance["diverged"]
            assert "eta=2 is" in trace.provenance["diverged"]
            assert trace.state is None
            assert 1 <= trace["round"][-1] < 40
            assert np.isfinite(trace["objective"]).all()
        else:
            assert "diverged" not in trace.provenance
            np.testing.assert_array_equal(trace["round"], np.arange(41))
            alone = cf.simulate(quadratic, DecoupledProx(eta=eta), 40)
            np.testing.assert_allclose(trace.x, alone.x, rtol=1e-10, atol=1e-13)
