"""Ordinary work under the default policy, with masks: which analyses are done, which are refused, and by which rule.

    PYTHONPATH=src:tests python -m attacks.ordinary_work [--quick] [--seeds 3] [--only NAME] [--month]

Four sites of 300, 190, 110 and 60 rows, 15 columns: eight that are normal, three yes/no of 10 to 50 %, one of 5 %, one of 1 %, a
count, and a log-normal one (sigma 1.0). Every analysis is a run of its own on fresh sites, with real services, ledgers and masks.
`--month` does ten analyses one after another on one table.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from network.memory_link import furnish, remote

import compfed as cf
from compfed.federation import exact_sum
from compfed.network.envelope import read_reply
from compfed.network.site_settings import SiteSettings

NAMES, SIZES = ("north", "south", "east", "west"), (300, 190, 110, 60)
COLUMNS = (*(f"lab{j}" for j in range(8)), "sex", "smoker", "treated", "rare5", "rare1", "visits", "crp")
GROUPS = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9, 10], [11, 12], [13, 14]]


def table(seed: int, outcome: str) -> cf.data.Sites:
    """The four sites, with labels of one kind."""
    rng, n = np.random.default_rng([39, seed]), sum(SIZES)
    normal = rng.standard_normal((n, 8)) @ np.linalg.cholesky(0.3 + 0.7 * np.eye(8)).T
    words = [(rng.uniform(size=n) < p).astype(float) for p in (0.5, 0.3, 0.1, 0.05, 0.01)]
    X = np.column_stack([normal, *words, rng.poisson(3.0, n).astype(float), np.exp(rng.standard_normal(n))])
    Z = X.copy()
    Z[:, -1] = np.log(Z[:, -1])
    risk = Z @ np.array([0.6, -0.4, 0.3, 0, 0, 0, 0, 0, 0.5, 0, 0.4, 0, 0, 0.1, 0.3])
    noise = rng.standard_normal(n)
    y = {
        "number": risk + noise,
        "two": (risk + rng.logistic(size=n) > 0.5).astype(float),
        "three": np.searchsorted([-0.3, 1.0], risk + noise).astype(float),
        "count": rng.poisson(np.exp(0.3 * risk)).astype(float),
        "cost": np.exp(0.3 * risk) * rng.gamma(2.0, 0.5, n) + 1e-3,
        "outcomes": np.column_stack([risk + noise, 0.5 * risk + rng.standard_normal(n)]),
    }[outcome]
    ends = np.cumsum(SIZES)
    parts = [slice(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    return cf.data.from_arrays([X[part] for part in parts], [y[part] for part in parts], list(NAMES), columns=COLUMNS)


class Analysis(NamedTuple):
    """One analysis: the labels it needs, and what it does over a federation."""

    outcome: str
    run: Callable[[Any], object]


def fitted(estimator: Any, scored: bool = False, **how: Any) -> Callable[[Any], object]:
    def run(federation: Any) -> object:
        model = estimator.fit_federation(federation)
        return (model, model.evaluate(federation, **how)) if scored else model

    return run


ANALYSES: dict[str, Analysis] = {
    "Table 1": Analysis("two", cf.describe),
    "lasso": Analysis("number", fitted(cf.FederatedLasso(alpha=0.05))),
    "lasso, choice of alpha": Analysis("number", fitted(cf.FederatedLassoCV())),
    "lasso, leave-one-out": Analysis("number", fitted(cf.FederatedLassoCV(cv="loo"))),
    "elastic net": Analysis("number", fitted(cf.FederatedElasticNet(alpha=0.05, l1_ratio=0.5))),
    "lasso, evaluation": Analysis("number", fitted(cf.FederatedLasso(alpha=0.05), True)),
    "logistic": Analysis("two", fitted(cf.FederatedLogisticRegression(alpha=0.01))),
    "logistic, choice of alpha": Analysis("two", fitted(cf.FederatedLogisticRegressionCV())),
    "logistic, leave-one-out": Analysis("two", fitted(cf.FederatedLogisticRegressionCV(cv="loo"))),
    "logistic, standardised, choice": Analysis("two", fitted(cf.FederatedLogisticRegressionCV(standardize=True))),
    "logistic, evaluation": Analysis("two", fitted(cf.FederatedLogisticRegression(alpha=0.01), True)),
    "logistic, evaluation by folds": Analysis("two", fitted(cf.FederatedLogisticRegression(alpha=0.01), True, cv=5)),
    "logistic, class weights": Analysis("two", fitted(cf.FederatedLogisticRegression(alpha=0.01, class_weight="balanced"))),
    "logistic, sites weighted alike": Analysis("two", fitted(cf.FederatedLogisticRegression(alpha=0.01, site_weights="equal"))),
    "logistic, site effects": Analysis("two", fitted(cf.FederatedLogisticRegression(alpha=0.01, site_effects="profile"))),
    "lasso, site effects, choice": Analysis("number", fitted(cf.FederatedLassoCV(site_effects="profile"))),
    "three classes": Analysis("three", fitted(cf.FederatedLogisticRegression(alpha=0.01))),
    "three classes, choice of alpha": Analysis("three", fitted(cf.FederatedLogisticRegressionCV())),
    "Poisson": Analysis("count", fitted(cf.FederatedPoissonRegressor(alpha=0.01))),
    "Poisson, choice of alpha": Analysis("count", fitted(cf.FederatedPoissonRegressorCV(l1_ratio=1.0))),
    "negative binomial": Analysis("count", fitted(cf.FederatedNegativeBinomialRegressor(alpha=0.01))),
    "Huber": Analysis("number", fitted(cf.FederatedHuber(alpha=0.01))),
    "Huber, choice of alpha": Analysis("number", fitted(cf.FederatedHuberCV())),
    "gamma": Analysis("cost", fitted(cf.FederatedGammaRegressor(alpha=0.01))),
    "gamma, choice of alpha": Analysis("cost", fitted(cf.FederatedGammaRegressorCV(l1_ratio=1.0))),
    "groups, choice of alpha": Analysis("number", fitted(cf.FederatedGroupLassoCV(groups=GROUPS))),
    "two outcomes": Analysis("outcomes", fitted(cf.FederatedMultiTaskLasso(alpha=0.05))),
}  # fmt: skip
QUICK = ("Table 1", "lasso", "logistic, choice of alpha", "logistic, evaluation", "Huber", "gamma")
MONTH = (
    "Table 1", "logistic", "logistic, evaluation", "logistic, leave-one-out", "logistic, choice of alpha",
    "logistic, class weights", "logistic, sites weighted alike", "logistic, site effects", "logistic, evaluation by folds",
    "logistic, standardised, choice",
)  # fmt: skip


class Outcome(NamedTuple):
    """What became of an analysis."""

    done: str
    messages: int
    numbers: int  # words of the replies of one site


def numbers_of(replies: list[bytes]) -> int:
    """The words of these replies, without the frame: counted from the bytes."""
    fields = [read_reply(data, None) for data in replies]
    return sum(len(each["words"]) - exact_sum.FRAME for each in fields if "words" in each)


def done(paths: list[Path], analysis: Analysis) -> Outcome:
    """Do an analysis over these sites; where a person has to approve it, one does, and its share is part of what became of it."""
    replies, said = list[bytes](), list[str]()
    federation, link = remote(paths)

    def record(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        found = reply()
        if b'"pending"' in found:
            approvals = SiteSettings.read(link.paths[name]).approvals()
            for asked in (one for one in approvals.all() if one.state == "waiting"):
                approvals.approve(asked)
                share = re.search(r"up to (\d+%) of the numbers", asked.reason)
                if name == NAMES[0] and share is not None:
                    said.append(f"a person read {share[1]} and approved")
        elif name == NAMES[0]:
            replies.append(found)
        return found

    link.meddle = record
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            analysis.run(federation)
        out = getattr(federation.enrolments[0], "not_kept", ())
        said += [f"without {', '.join(out)}"] if out else []
        said += [f"({note})" for w in warned if (note := str(w.message)) and "would release" in note]
        said.insert(0, "done")
    except cf.InputError as problem:
        said.insert(0, f"refused: {problem}")
    return Outcome("; ".join(said), federation.number, numbers_of(replies))


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--quick", action="store_true", help="six analyses, one seed")
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--only", default="", help="a part of the name of an analysis")
    given.add_argument("--exact", default="", help="the name of one analysis")
    given.add_argument("--disclosure", default="", help="lines of [disclosure] in site.toml; ';' ends a line")
    given.add_argument("--month", action="store_true", help="ten analyses on one table")
    args = given.parse_args()
    seeds, began = range(1 if args.quick else args.seeds), time.perf_counter()
    rules = args.disclosure.replace(";", "\n")
    chosen = [
        name
        for name in (QUICK if args.quick else MONTH if args.month else ANALYSES)
        if args.only in name and args.exact in ("", name)
    ]
    print("| analysis | seed | messages | numbers that left | share of 360 x 15 | |\n|---|---|---|---|---|---|")

    def made(folder: Path, seed: int, outcome: str) -> list[Path]:
        return furnish(folder, table(seed, outcome), "", rules, secure_sum=True, counted=True)

    for seed in seeds:
        with tempfile.TemporaryDirectory() as name_of_folder:
            folder = Path(name_of_folder)
            shared = made(folder / "month", seed, "two") if args.month else None
            for k, name in enumerate(chosen):
                analysis = ANALYSES[name]
                said, messages, numbers = done(shared or made(folder / str(k), seed, analysis.outcome), analysis)
                print(
                    f"| {name} | {seed} | {messages} | {numbers:,} | {numbers / 5400:.0%} | {said[:260]} |", flush=True
                )
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
