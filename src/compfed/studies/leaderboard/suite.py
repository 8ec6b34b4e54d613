"""The suite of the leaderboard: problems, what methods are ranked by, and the budget of every method.

A change of a problem, a budget or a criterion is a new `VERSION`: numbers of two versions are never in one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compfed.data import Sites, bundled, from_table, partition
from compfed.errors import InputError
from compfed.losses import Huber, Logistic, MultiSquared, Softmax, Squared, from_function
from compfed.problem.problem import Problem
from compfed.regularisers import L1, GroupL2, Nuclear, Regulariser, Zero
from compfed.studies.few_rounds import wide
from compfed.studies.paper.experiments import paper_problem
from compfed.studies.tuning import Tries

VERSION = "1"
DISTANCE = "||x - x*|| / ||x*||"  # what methods are ranked by on a convex problem
FIVE = Tries(first=3, ratio=4.0, total=5)  # settings that every method may try
THREE = Tries(first=3, ratio=4.0, total=3)  # with --quick
TUNING_SEED = 1000
ON_NETWORK = ("DecoupledProx", "FedMid", "FedDA", "FedDR", "Scaffnew", "NormalMap")

Build = Callable[[], Problem]


class Missing(Exception):
    """The data of a problem are not there; the text says what to do."""


@dataclass(frozen=True)
class Task:
    """A problem of the suite with its budget and what methods are ranked by.

    Attributes
    ----------
    name, words : str
        Its short name, and what it is.
    build : callable
        Makes the problem; raises `Missing` where its data are absent.
    rounds : int
        The budget of every setting of every method.
    levels : tuple of float
        The accuracies whose costs are reported; methods are ranked by the one in the middle, and tuned for all.
    criterion : {"optimality", "objective"}
        ||x - x*|| / ||x*|| with a certified x*, or F(x) / F(x0) where there is none.
    clock : str
        The cost model of the simulated seconds.
    seeds : tuple of int
        The reporting seeds. One is enough where all clients take part with full gradients: hardly any method draws something then.
    methods : tuple of str, optional
        Those that take part; all unless given.
    """

    name: str
    words: str
    build: Build
    rounds: int
    levels: tuple[float, float, float] = (1e-2, 1e-4, 1e-6)
    criterion: str = "optimality"
    clock: str = "hospital"
    tau: int = 5
    batch_size: int | None = None
    participants: int | None = None
    seeds: tuple[int, ...] = (0,)
    tries: Tries = FIVE
    methods: tuple[str, ...] | None = None

    @property
    def words_of_criterion(self) -> str:
        """What methods are ranked by."""
        return DISTANCE if self.criterion == "optimality" else "F(x) / F(x0)"

    def terms(self) -> dict[str, Any]:
        """The terms on which methods are compared, as plain data: they are equal in files whose numbers are shown together."""
        return {
            "rounds": self.rounds, "settings": self.tries.total, "tau": self.tau, "batch_size": self.batch_size,
            "participants": self.participants, "seeds": list(self.seeds), "tuning_seed": TUNING_SEED, "clock": self.clock,
            "criterion": self.words_of_criterion, "levels": [f"{level:g}" for level in self.levels],
        }  # fmt: skip


# --- problems that need no file ---


def _standardised(X: np.ndarray) -> np.ndarray:
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _pooled(loss: Any, g: Regulariser, sites: Sites, dtype: str = "float64") -> Problem:
    """The problem of the pooled table: a site counts by its rows."""
    return Problem(loss, g, sites, weights=sites.shares, dtype=dtype)


def _small_paper() -> Problem:
    return paper_problem(100, clients=10)


def _breast_cancer() -> Problem:
    table = bundled.breast_cancer()
    return _pooled(Logistic(ridge=0.01), L1(0.01), from_table(_standardised(table.X), table.y, table.sites))


def _diabetes() -> Problem:
    table = bundled.diabetes()
    y = _standardised(table.y[:, None])[:, 0]
    return _pooled(Squared(), L1(0.02), from_table(_standardised(table.X), y, table.sites))


def _digits_softmax() -> Problem:
    table = bundled.digits()
    return _pooled(Softmax(10, ridge=0.01), Zero(), from_table(table.X / 16 - 0.5, table.y, table.sites))


def _low_rank() -> Problem:
    """Six outputs that depend on twelve columns through a matrix of rank two."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 12)) + 0.5 * rng.standard_normal((8, 12)).repeat(50, axis=0)
    B = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 6))
    Y = X @ B + 0.5 * rng.standard_normal((400, 6))
    return _pooled(MultiSquared(6), Nuclear(0.3, columns=6), from_table(X, Y, np.repeat(range(8), 50)))


def _group() -> Problem:
    """Forty columns in eight groups, two of which matter; labels are shifted from site to site."""
    rng = np.random.default_rng(0)
    site = np.repeat(range(6), 80)
    X = rng.standard_normal((480, 40)) + 0.5 * rng.standard_normal((6, 40))[site]
    w = np.zeros(40)
    w[:10] = rng.standard_normal(10)
    y = (rng.random(480) < 1.0 / (1.0 + np.exp(-X @ w - rng.standard_normal(6)[site]))).astype(int)
    groups = tuple(int(k) for k in np.repeat(range(8), 5))
    return _pooled(Logistic(ridge=0.01), GroupL2(0.05, groups), from_table(X, y, site))


def _huber() -> Problem:
    """Twenty columns, one label in ten far off, and no penalty but a ridge: methods for smooth problems take part."""
    rng = np.random.default_rng(0)
    site = np.repeat(range(6), 60)
    X = rng.standard_normal((360, 20)) * np.linspace(0.5, 2.0, 20) + 0.5 * rng.standard_normal((6, 20))[site]
    y = X @ rng.standard_normal(20) + rng.standard_normal(360) + np.where(rng.random(360) < 0.1, 20.0, 0.0)
    return _pooled(Huber(delta=1.35, ridge=0.01), Zero(), from_table(X, y, site))


def _many_clients(clients: int = 200) -> Problem:
    """Clients with 5 to 30 rows, of which a tenth takes part in a round."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 31, clients)
    site = np.repeat(range(clients), sizes)
    X = rng.standard_normal((len(site), 20)) + 0.5 * rng.standard_normal((clients, 20))[site]
    w = np.where(np.arange(20) < 8, rng.standard_normal(20), 0.0)
    y = (rng.random(len(site)) < 1.0 / (1.0 + np.exp(-X @ w))).astype(int)
    return _pooled(Logistic(ridge=0.05), L1(0.005), from_table(X, y, site))


HIDDEN, CLASSES = 16, 10


def _scores(w: dict[str, Any], a: Any) -> Any:
    return jnp.tanh(a @ w["W_in"] + w["b_in"]) @ w["W_out"] + w["b_out"]


def _cross_entropy(w: dict[str, Any], a: Any, y: Any) -> Any:
    scores = _scores(w, a)
    return jax.nn.logsumexp(scores) - scores[y.astype(int)]


def _network() -> Problem:
    """64 pixels -> 16 tanh -> 10 digits, 1,210 weights under an l1 penalty, ten sites that hold other digits than each other."""
    table, rng = bundled.digits(), np.random.default_rng(0)
    start = {
        "W_in": rng.standard_normal((64, HIDDEN)) / 8.0,
        "W_out": rng.standard_normal((HIDDEN, CLASSES)) / np.sqrt(HIDDEN),
        "b_in": np.zeros(HIDDEN),
        "b_out": np.zeros(CLASSES),
    }
    loss = from_function(_cross_entropy, start, convex=False)
    where = partition.dirichlet(table.y, 10, alpha=0.3, seed=0, min_rows=20)
    return _pooled(loss, L1(1e-4), from_table(table.X / 16 - 0.5, table.y, where), dtype="float32")


# --- problems whose tables are in a folder ---


def _folder(data: Path | None, name: str, file: str) -> Path:
    """The folder below `data`, or `data` itself, that has the file."""
    if data is None:
        raise Missing(f"needs the table {name}: give --data DIR, a folder that has {file}.")
    for folder in (data / name, data):
        if (folder / file).is_file():
            return folder
    raise Missing(f"{file} is neither in {data / name} nor in {data}.")


def _thinned(X: np.ndarray, y: np.ndarray, site: np.ndarray, every: int) -> Sites:
    """Every so many-th row of every site."""
    kept = np.sort(np.concatenate([np.flatnonzero(site == name)[::every] for name in np.unique(site)]))
    X = X[kept]
    return from_table(X[:, X.std(axis=0) > 0], y[kept], site[kept])


def _heart(data: Path | None) -> Problem:
    table = bundled.heart(_folder(data, "heart", "processed.cleveland.data"))
    return _pooled(Logistic(ridge=0.01), L1(0.01), from_table(_standardised(table.X), table.y, table.sites))


def _a9a(data: Path | None) -> Problem:
    table = bundled.a9a(_folder(data, "adult_a9a", "a9a"), drop_site_columns=True)
    return _pooled(Logistic(ridge=0.001), L1(0.001), _thinned(table.X, table.y, table.sites, 8))


def _mushrooms(data: Path | None) -> Problem:
    file = "agaricus-lepiota.data"
    rows = [line.split(",") for line in (_folder(data, "mushrooms", file) / file).read_text().split()]
    if {len(row) for row in rows} != {23}:
        raise InputError(f"{file} must have 23 columns with commas between and no header; get UCI's.")
    label, *columns, habitat = np.array(rows).T
    X = np.column_stack([column == level for column in columns for level in np.unique(column)[1:]]).astype(float)
    return _pooled(Logistic(ridge=0.001), L1(0.001), _thinned(X, (label == "p").astype(float), habitat, 4))


def _school(data: Path | None) -> Problem:
    from scipy.io import loadmat

    loaded = loadmat(_folder(data, "school", "school.mat") / "school.mat")
    tables, marks = loaded["X"].ravel(), loaded["Y"].ravel()
    site = np.repeat(range(len(tables)), [len(table) for table in tables])
    X, y = (
        np.concatenate(list(tables))[:, :-1],
        np.concatenate([each.ravel() for each in marks]),
    )  # the last is constant
    return _pooled(Squared(ridge=0.01), L1(0.01), from_table(_standardised(X), _standardised(y[:, None])[:, 0], site))


# --- the suite ---


def suite(quick: bool = False, data: Path | None = None) -> dict[str, Task]:
    """The problems by name: all of them, or the small ones of `--quick`."""
    tasks = _quick() if quick else _full(data)
    return {task.name: task for task in tasks}


def _full(data: Path | None) -> list[Task]:
    sampled: Mapping[str, Any] = {"levels": (1e-1, 1e-2, 1e-3), "clock": "phone", "seeds": (0, 1, 2)}
    return [
        Task("paper", "the paper's with fewer rows: l1-logistic, ridge, 30 sites of 300 rows, d = 60", lambda: paper_problem(300), 500),
        Task("breast cancer", "l1-logistic regression, ridge, standardised, 4 simulated clinics", _breast_cancer, 1000),
        Task("diabetes", "the lasso, standardised columns, 4 age bands", _diabetes, 1000),
        Task("digits softmax", "softmax regression of ten digits, ridge, smooth (no g); 10 sites, skewed labels", _digits_softmax, 300),
        Task("wide", "l1-logistic, 150 rows x 600 columns, 4 sites, one with a single class", lambda: wide(150, 600), 1000),
        Task("low rank", "least squares with six outputs and a nuclear norm, 8 sites", _low_rank, 500),
        Task("group", "group-lasso logistic regression with a ridge, 8 groups of 5 columns, 6 sites", _group, 500),
        Task("huber", "Huber regression, ridge, smooth (no g); 6 sites, one label in ten far off", _huber, 1000),
        Task(
            "many clients", "l1-logistic regression with a ridge, 200 clients of 5 to 30 rows, 20 of them in each round",
            _many_clients, 1000, participants=20, **sampled,
        ),
        Task("heart", "l1-logistic regression with a ridge, standardised columns, 4 hospitals", lambda: _heart(data), 1000),
        Task("a9a", "l1-logistic regression with a ridge, every eighth row, 15 occupations", lambda: _a9a(data), 300),
        Task("mushrooms", "l1-logistic regression with a ridge, every fourth row, 7 habitats", lambda: _mushrooms(data), 300),
        Task("school", "the lasso with a ridge, standardised columns, 139 schools", lambda: _school(data), 300),
        _network_task(rounds=60, seeds=(0, 1, 2)),
    ]  # fmt: skip


def _quick() -> list[Task]:
    terms: Mapping[str, Any] = {"tries": THREE, "seeds": (0,)}
    return [
        Task("paper", "the paper's made small: l1-logistic, ridge, 10 sites of 100 rows, d = 60", _small_paper, 300, **terms),
        Task("breast cancer", "l1-logistic regression, ridge, standardised, 4 simulated clinics", _breast_cancer, 300, **terms),
        Task("huber", "Huber regression, ridge, smooth (no g); 6 sites, one label in ten far off", _huber, 300, **terms),
        _network_task(rounds=20, tries=THREE, seeds=(0,), methods=ON_NETWORK[:3]),
    ]  # fmt: skip


def _network_task(rounds: int, methods: tuple[str, ...] = ON_NETWORK, **terms: Any) -> Task:
    words = (
        "a network of 1,210 weights with an l1 penalty, not convex; ten sites, skewed digits, mini-batches of 20 rows"
    )
    return Task(
        "network", words, _network, rounds, (0.5, 0.2, 0.1), "objective", "phone", tau=10, batch_size=20, methods=methods, **terms
    )  # fmt: skip
