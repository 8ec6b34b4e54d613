"""Does this version give the answers of another one? Trajectories of every method, fits of every estimator, and federations.

    PYTHONPATH=OTHER/src python benchmarks/same_answers.py save answers.npz
    python benchmarks/same_answers.py compare answers.npz
    python benchmarks/same_answers.py compare answers.npz --only "masked/.*Lasso"

`save` runs every method for 50 rounds with its default steps (all clients, mini-batches, some of the clients), fits every
estimator, and asks federations of four sites; it writes models, steps, numbers and the messages and bytes they took. `compare`
runs the same with the steps of the file, prints the differences, and ends with status 1 if there is one:

- a trajectory that differs by more than 1e-12, a fit by more than 1e-10 or in its zeros;
- exact and masked sums: one bit of a coefficient or one digit of a number, or an answer where there was a refusal;
- more messages than before (15 % more where the steps of a fit use max_i L_i). Bytes that changed are printed only.

Masked sums are those of real sessions: the services of sites with a site.toml, asked over a link in memory that is in the tests
beside the sources.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import compfed as cf
from compfed.federation import DisclosurePolicy, InProcess

ROUNDS = 50
FIRST_ORDER = 1.15  # messages, relative to before, of methods whose steps use a bound on max_i L_i
SITES = {"north": 60, "east": 75, "south": 90, "west": 66}  # rows
SCHEMA = """
[columns.age]
[columns.sex]
levels = ["female", "male"]
missing = "male"
[columns.dose]
impute = 0.5
[label]
column = "y0"
[rows]
weight = "w"
offset = "o"
"""


def problems(name: str):
    """The problem a method is run on: with a penalty if it takes one."""
    sites = cf.data.synthetic(alpha=1, beta=1, clients=8, samples=40, features=6, seed=1)
    g = cf.regularisers.L1(1e-2) if cf.algorithms.ALGORITHMS[name].composite else cf.regularisers.Zero()
    return cf.Problem(cf.losses.Logistic(ridge=0.05), g, sites)


def suggested(name: str, problem):
    steps = getattr(cf.algorithms, "default_steps", None) or cf.steps.suggest  # pyright: ignore  # its name before
    return steps(name, problem, tau=3)


def parameters(algorithm) -> dict:
    return {field.name: _plain(getattr(algorithm, field.name)) for field in dataclasses.fields(algorithm)}


def _plain(value):
    if dataclasses.is_dataclass(value):  # a schedule of step sizes
        return {"schedule": type(value).__name__, **parameters(value)}
    return value if isinstance(value, (bool, int, str, type(None))) else float(value)


def _built(cls, given: dict):
    def value(v):
        return _built(getattr(sys.modules[cls.__module__], v.pop("schedule")), v) if isinstance(v, dict) else v

    return cls(**{name: value(v) for name, v in given.items()})


def trajectories(steps: dict[str, dict] | None) -> tuple[dict[str, np.ndarray], dict[str, dict]]:
    found, used = {}, {}
    for name in cf.algorithms.ALGORITHMS if steps is None else steps:
        if name in ("ProximalNewton", "ProximalBFGS"):
            continue  # solvers, compared by what they find
        problem, cls = problems(name), cf.algorithms.ALGORITHMS[name]
        algorithm = suggested(name, problem) if steps is None else _built(cls, steps[name])
        used[name] = parameters(algorithm)
        kinds = {"full": {}, "mini-batch": {"batch_size": 5}}
        if cls.sampling != "no":
            kinds["sampled"] = {"participants": 3, "seed": 4}
        for kind, options in kinds.items():
            trace = cf.simulate(problem, algorithm, ROUNDS, **options)
            found[f"{name}/{kind}"] = np.concatenate(
                [trace.x, trace["objective"], trace["bytes_up"], trace["bytes_down"]]
            )
    return found, used


def estimators():
    diabetes, cancer = cf.data.bundled.diabetes(), cf.data.bundled.breast_cancer()
    counts = np.rint(diabetes.y / 50)
    two = np.stack([diabetes.y, diabetes.X[:, 2] * 100], axis=1)
    groups = [[0, 1], [2, 3], [4, 5, 6, 7, 8, 9]]
    for cv in ("", "CV"):
        more = {"alpha": 0.5} if not cv else {"cv": 3, "n_alphas": 8, "seed": 0}
        for name, extra, table, y in [
            ("Lasso", {}, diabetes, diabetes.y), ("ElasticNet", {}, diabetes, diabetes.y),
            ("Huber", {}, diabetes, diabetes.y), ("GroupLasso", {"groups": groups}, diabetes, diabetes.y),
            ("PoissonRegressor", {}, diabetes, counts), ("MultiTaskLasso", {}, diabetes, two),
            ("NuclearRegressor", {}, diabetes, two), ("LogisticRegression", {}, cancer, cancer.y),
        ]:  # fmt: skip
            small = {"alpha": 0.02} if not cv and name in ("LogisticRegression", "PoissonRegressor") else {}
            yield f"{name}{cv}", getattr(cf, f"Federated{name}{cv}")(**more | extra | small), table, y


def fits() -> dict[str, np.ndarray]:
    found = {}
    for name, model, table, y in estimators():
        for kind, options in {"default": {}, "first-order": {"algorithm": "DecoupledProx"}}.items():
            if kind == "first-order" and ("CV" in name or name not in ("Lasso", "ElasticNet")):
                continue
            fitted = model.set_params(**options).fit(table.X, y, sites=table.sites)
            model.set_params(algorithm="auto")
            found[f"{name}/{kind}/coef"] = np.append(np.ravel(fitted.coef_), np.ravel(fitted.intercept_))
            found |= costs(f"{name}/{kind}", fitted.communication_)
    return found


def costs(name: str, communication: Any) -> dict[str, np.ndarray]:
    return {
        f"{name}/messages": np.array(communication.rounds),
        f"{name}/bytes": np.array([communication.bytes_down, communication.bytes_up]),
    }


# --- federations of four sites ---


def tables(folder: Path) -> dict[str, cf.data.Sites]:
    """Sites by the kind of their labels, read from files; "words" has words, blanks, weights and offsets, and a schema."""
    rng = np.random.default_rng(5)
    A = [rng.uniform(-1, 1, (m, 6)) * [1.0, 5.0, 0.2, 1.0, 3.0, 1.0] + 0.3 * i for i, m in enumerate(SITES.values())]
    z = [a @ [1.0, 0.3, 0.0, -0.8, 0.1, 0.0] + 0.5 * rng.uniform(-1, 1, len(a)) for a in A]
    labels = {
        "numbers": z,
        "two": [(v > 0.2).astype(float) for v in z],
        "three": [np.digitize(v, [-0.4, 0.6]).astype(float) for v in z],
        "counts": [np.rint(np.exp(0.5 * v)).clip(0, 9) for v in z],
        "amounts": [np.exp(0.5 * v).clip(0.05, 9.0) for v in z],
        "outcomes": [np.c_[v, a[:, 1] - v] for a, v in zip(A, z, strict=True)],
    }
    columns = ["age", "dose", "rate", "bmi", "pulse", "height"]
    found = {kind: cf.data.from_arrays(A, y, list(SITES), columns=columns) for kind, y in labels.items()}
    files = {}
    for site, a, y in zip(SITES, A, labels["counts"], strict=True):
        files[site] = folder / f"{site}.csv"
        files[site].write_text("\n".join(["age,sex,dose,w,o,y0", *map(_line_of_words, a, y)]) + "\n")
    (folder / "schema.toml").write_text(SCHEMA)
    return found | {"words": cf.data.from_files(list(files.values()), schema=folder / "schema.toml")}


def _line_of_words(row: np.ndarray, y: float) -> str:
    age, dose, *_, pulse, height = row.tolist()
    sex = "female" if height > 0.3 else "male" if height > -0.6 else ""
    return f"{age!r},{sex},{dose if dose > -4 else ''},{1.5 + height / 2!r},{pulse / 10!r},{float(y)!r}"


class Cases:
    """Federations of the same sites: exact sums and masked ones, each with and without a disclosure policy."""

    kinds = ("exact", "exact-policy", "policy", "masked", "masked-policy")

    def __init__(self, folder: Path):
        self.folder, self.numbers = folder, itertools.count()
        self.tables = tables(folder)

    def federation(self, kind: str, table: str) -> Any:
        policy = DisclosurePolicy() if kind.endswith("policy") else None
        if not kind.startswith("masked"):
            return InProcess(self.tables[table], policy=policy, exact=kind.startswith("exact"))
        import memory_link  # pyright: ignore[reportMissingImports]  # of the tests
        from cryptography.hazmat.primitives.asymmetric import ec

        # A site deals its rows into buckets by its identity key: each run has the same keys.
        known = [ec.derive_private_key(k, ec.SECP384R1()) for k in range(1, len(SITES) + 1)]
        home = self.folder / f"masked{next(self.numbers)}"
        with mock.patch("compfed.network.keys.new_identity", side_effect=known):
            rows = self.tables["counts" if table == "words" else table]
            disclosure = "enforce = false" if policy is None else ""
            more = 'schema = "schema.toml"' if table == "words" else ""
            paths = memory_link.furnish(home, rows, more, disclosure, secure_sum=True)
        for path in paths if table == "words" else ():
            (path.parent / "rows.csv").write_text((self.folder / f"{path.parent.name}.csv").read_text())
            (path.parent / "schema.toml").write_text(SCHEMA)
        return memory_link.remote(paths)[0]


def questions() -> Iterator[tuple[str, str, Callable[[Any], tuple[list[Any], Any]]]]:
    """What is asked of a federation: a name, a kind of labels, and a function to (answers, communication)."""

    def fit(model: Any) -> Callable[[Any], tuple[list[Any], Any]]:
        def run(federation: Any) -> tuple[list[Any], Any]:
            found = model.fit_federation(federation)
            names = (
                "coef_",
                "intercept_",
                "alpha_",
                "l1_ratio_",
                "cv_loss_",
                "coef_path_",
                "site_intercepts_",
                "certificate_",
            )
            return [getattr(found, name, None) for name in names], found.communication_

        return run

    def evaluate(model: Any, **options: Any) -> Callable[[Any], tuple[list[Any], Any]]:
        def run(federation: Any) -> tuple[list[Any], Any]:
            found = model.fit_federation(federation).evaluate(federation, **options).to_dict()
            cost = found.pop("communication")
            return [found], cf.federation.Communication(cost["rounds"], cost["bytes_down"], cost["bytes_up"])

        return run

    def solve(method: str) -> Callable[[Any], tuple[list[Any], Any]]:
        def run(federation: Any) -> tuple[list[Any], Any]:
            model = cf.FederatedLogisticRegression(alpha=0.02, algorithm=method, max_rounds=12, tol=1e-4)
            return fit(model)(federation)

        return run

    def describe(federation: Any) -> tuple[list[Any], Any]:
        found = cf.describe(federation)
        return [found.to_dict()], found.communication

    cv: Any = {"n_alphas": 4, "eps": 0.1, "cv": 3, "tol": 1e-8}
    logistic, lasso = cf.FederatedLogisticRegression(alpha=0.02), cf.FederatedLasso(alpha=0.05)
    for name, table, model in [
        ("Lasso", "numbers", lasso),
        ("Lasso, equal sites", "numbers", cf.FederatedLasso(alpha=0.05, site_weights="equal")),
        ("Lasso by rounds", "numbers", cf.FederatedLasso(alpha=0.05, algorithm="DecoupledProx", tol=1e-5)),
        ("Lasso, site effects", "numbers", cf.FederatedLasso(alpha=0.05, site_effects="profile")),
        ("ElasticNet", "numbers", cf.FederatedElasticNet(alpha=0.05)),
        ("GroupLasso", "numbers", cf.FederatedGroupLasso(groups=[0, 0, 1, 1, 2, 2], alpha=0.05)),
        ("Huber", "numbers", cf.FederatedHuber(alpha=0.05)),
        ("Logistic", "two", logistic),
        ("Logistic, site effects", "two", cf.FederatedLogisticRegression(alpha=0.02, site_effects="profile")),
        ("Logistic, three classes", "three", logistic),
        ("Poisson", "counts", cf.FederatedPoissonRegressor(alpha=0.02)),
        ("Poisson, words", "words", cf.FederatedPoissonRegressor(alpha=0.02)),
        ("NegativeBinomial", "counts", cf.FederatedNegativeBinomialRegressor(theta=2.0, alpha=0.02)),
        ("Gamma", "amounts", cf.FederatedGammaRegressor(alpha=0.02)),
        ("MultiTaskLasso", "outcomes", cf.FederatedMultiTaskLasso(alpha=0.05)),
        ("Nuclear", "outcomes", cf.FederatedNuclearRegressor(alpha=0.05)),
        ("LassoCV", "numbers", cf.FederatedLassoCV(**cv)),
        ("LassoCV, left-out sites", "numbers", cf.FederatedLassoCV(**cv | {"cv": "leave-one-site-out"})),
        ("LogisticCV", "two", cf.FederatedLogisticRegressionCV(**cv)),
        ("PoissonCV, words", "words", cf.FederatedPoissonRegressorCV(**cv)),
        ("NuclearCV", "outcomes", cf.FederatedNuclearRegressorCV(**cv)),
    ]:  # fmt: skip
        yield name, table, fit(model)
    for method in ("FedDR", "CompressedDecoupledProx", "FISTA", "ProximalNewton", "ProximalBFGS"):
        yield f"Logistic, {method}", "two", solve(method)
    yield "evaluate, two classes", "two", evaluate(logistic)
    yield "evaluate, two classes, cv=3", "two", evaluate(logistic, cv=3)
    yield "evaluate, three classes", "three", evaluate(logistic)
    yield "evaluate, numbers", "numbers", evaluate(lasso)
    yield "evaluate, numbers, by site", "numbers", evaluate(lasso, per_site=True)
    yield "describe", "two", describe
    yield "describe, words", "words", describe
    yield "agree on a schema", "words", lambda federation: ([cf.Schema.agree(federation).to_toml()], None)


def federations(wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    sys.path.append(str(Path(cf.__file__).parents[2] / "tests" / "network"))  # those of the version that runs
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        cases = Cases(Path(folder))
        for (question, table, ask), kind in itertools.product(questions(), Cases.kinds):
            name = f"{kind}/{question}"
            if not wanted(name):
                continue
            federation, cost = cases.federation(kind, table), None
            try:
                answers, cost = ask(federation)
            except cf.InputError as refusal:
                answers = [f"refused: {refusal}"]
            finally:
                with contextlib.suppress(AttributeError):
                    federation.close()
            found[f"{name}/{'close' if kind == 'policy' else 'bits'}"] = np.array(json.dumps(_numbers(answers)))
            found |= {} if cost is None else costs(name, cost)
    return found


def _numbers(value: Any) -> Any:
    """A value as JSON writes it: a double has as many digits as tell it from every other one, and keeps its sign of zero."""
    if dataclasses.is_dataclass(value):
        return {field.name: _numbers(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _numbers(one) for key, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return _numbers(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_numbers(one) for one in value]
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(one, f"{where}.{key}")
    else:
        yield where, value


def answers_differ(was: str, now: str, tol: float) -> str:
    """What differs between two answers, as text; "" where nothing does. Texts of refusals may differ; numbers may be added."""
    before, after = dict(_leaves(json.loads(was))), dict(_leaves(json.loads(now)))
    if before.keys() - after.keys():
        return f"DIFFERS: {json.loads(was)!s:.150} -> {json.loads(now)!s:.150}"
    away = {name: (one, after[name]) for name, one in before.items() if repr(one) != repr(after[name])}
    if all("refused" in str(one) and "refused" in str(other) for one, other in away.values()):
        return "".join(f"another refusal: {one} -> {other}" for one, other in away.values())
    numbers = [(a, b) for a, b in away.values() if isinstance(a, float) and isinstance(b, float)]
    largest = max((abs(a - b) / max(abs(a), 1.0) for a, b in numbers), default=0.0)
    if len(numbers) == len(away) and largest <= tol:
        return ""
    name, (one, other) = next(iter(away.items()))
    return f"DIFFERS at {len(away)} of {len(before)} numbers, by up to {largest:.1e}; {name}: {one} -> {other}"


def differences(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> bool:
    fine = True
    for name, was in old.items():
        if name not in new:
            bad, text = True, "MISSING"
        elif name.endswith("/messages"):
            now = new[name]
            bad = int(now) > (FIRST_ORDER if "first-order" in name else 1.0) * int(was)
            text = f"{int(was)} -> {int(now)}{'  MORE' if bad else ''}"
        elif name.endswith("/bytes"):
            bad, text = False, "" if (new[name] == was).all() else f"down, up: {was.tolist()} -> {new[name].tolist()}"
        elif name.endswith(("/bits", "/close")):
            text = answers_differ(str(was), str(new[name]), 1e-10 if name.endswith("/close") else 0.0)
            bad = text.startswith("DIFFERS")
            text = text or ("refused, as before" if "refused: " in str(was) else "equal")
        else:
            now = new[name]
            away = float(np.max(np.abs(now - was)) / max(np.max(np.abs(was)), 1e-300))
            bad = not away <= (1e-10 if name.endswith("/coef") else 1e-12)
            if name.endswith("/coef"):
                bad = bad or bool(((now == 0) != (was == 0)).any())
            text = f"{away:.1e}{'  DIFFERS' if bad else ''}"
        if text:
            print(f"{name:<50} {text}")
        fine = fine and not bad
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["save", "compare"])
    parser.add_argument("file")
    parser.add_argument("--only", default="", metavar="REGEX", help="names of answers, such as 'masked/' or 'Lasso'")
    args = parser.parse_args()
    warnings.simplefilter("ignore")

    def wanted(name: str) -> bool:
        return re.search(args.only, name) is not None

    if args.what == "save":
        found, steps = trajectories(None)
        found |= fits() | federations(wanted)
        np.savez(args.file, steps=np.array(json.dumps(steps)), **found)  # pyright: ignore[reportArgumentType]  # no key is allow_pickle
        return
    stored = dict(np.load(args.file))
    steps = json.loads(str(stored.pop("steps")))
    new = federations(wanted)
    if not args.only:
        new |= trajectories(steps)[0] | fits()
    elsewhere = tuple(f"{kind}/" for kind in Cases.kinds)
    old = {name: was for name, was in stored.items() if not args.only or (name.startswith(elsewhere) and wanted(name))}
    if not differences(old, new):
        sys.exit(1)


if __name__ == "__main__":
    main()
