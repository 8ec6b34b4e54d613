"""Does this version give the answers of another one? Trajectories of every method, and fits of every estimator.

    PYTHONPATH=OTHER/src python benchmarks/same_answers.py save answers.npz
    python benchmarks/same_answers.py compare answers.npz

`save` runs every method for 50 rounds with its default steps (all clients, mini-batches, some of the clients), fits every
estimator, and writes models, steps, coefficients and numbers of messages. `compare` runs the same with the steps of the
file and prints the largest relative difference of each; it ends with status 1 if a trajectory differs by more than 1e-12, a
fit by more than 1e-10 or in its zeros, or a fit takes more messages than before (15 % more where its steps use max_i L_i).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings

import numpy as np

import compfed as cf

ROUNDS = 50
FIRST_ORDER = 1.15  # messages, relative to before, of methods whose steps use a bound on max_i L_i


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
            found[f"{name}/{kind}/messages"] = np.array(fitted.communication_.rounds)
    return found


def differences(old: dict[str, np.ndarray], new: dict[str, np.ndarray]) -> bool:
    fine = True
    for name, was in old.items():
        now = new[name]
        if name.endswith("/messages"):
            bad = int(now) > (FIRST_ORDER if "first-order" in name else 1.0) * int(was)
            print(f"{name:<50} {int(was)} -> {int(now)}{'  MORE' if bad else ''}")
        else:
            away = float(np.max(np.abs(now - was)) / max(np.max(np.abs(was)), 1e-300))
            bad = not away <= (1e-10 if name.endswith("/coef") else 1e-12)
            if name.endswith("/coef"):
                bad = bad or bool(((now == 0) != (was == 0)).any())
            print(f"{name:<50} {away:.1e}{'  DIFFERS' if bad else ''}")
        fine = fine and not bad
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["save", "compare"])
    parser.add_argument("file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if args.what == "save":
        found, steps = trajectories(None)
        np.savez(args.file, steps=np.array(json.dumps(steps)), **found | fits())  # pyright: ignore[reportArgumentType]  # no key is allow_pickle
        return
    stored = dict(np.load(args.file))
    steps = json.loads(str(stored.pop("steps")))
    found, _ = trajectories(steps)
    if not differences(stored, found | fits()):
        sys.exit(1)


if __name__ == "__main__":
    main()
