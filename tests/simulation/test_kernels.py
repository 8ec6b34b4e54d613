"""Kernels for a GPU, run on this CPU by an interpreter: the same rounds as the plain loop in double precision."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import compfed as cf
from compfed.algorithms import default_steps
from compfed.simulation import kernels
from compfed.simulation.kernel_lowering import NoKernel, for_kernels, lowered

ROUNDS = 3
simulator = importlib.import_module("compfed.simulation.simulate")  # the package exports the function of the same name
SIZES = (30, 30, 17, 30, 9)  # two buckets; neither rows nor columns are powers of two


def federation(labels: str, sizes: tuple[int, ...] = SIZES) -> cf.data.Sites:
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((m, 6)) for m in sizes]
    z = [a @ np.linspace(-1, 1, 6) + rng.standard_normal(len(a)) for a in X]
    kinds = {"signs": np.sign, "numbers": np.asarray, "counts": lambda v: np.floor(np.exp(np.clip(v, -2, 2)))}
    return cf.data.from_arrays(X, [kinds[labels](v) for v in z])


LOSSES: dict[str, tuple[Any, str]] = {
    "Logistic": (cf.losses.Logistic(ridge=0.1), "signs"),
    "Squared": (cf.losses.Squared(ridge=0.1), "numbers"),
    "Huber": (cf.losses.Huber(delta=1.0, ridge=0.1), "numbers"),
    "SquaredHinge": (cf.losses.SquaredHinge(ridge=0.1), "signs"),
    "Poisson": (cf.losses.Poisson(ridge=0.1), "counts"),
}


def slowly(*cases: Any) -> list[Any]:
    """Cases for `make test-all`."""
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=pytest.mark.thorough) for c in cases]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(kernels, "INTERPRET", True)
    return monkeypatch


def apart(loss: str, g: Any, method: str) -> tuple[float, dict[str, Any]]:
    """How far kernels in single precision are from the plain loop in double, and what the trace says of the kernel."""
    made, labels = LOSSES[loss]
    problem = cf.Problem(made, g, federation(labels))
    bounded = problem.loss.curvature is not None  # others get steps that suit the start
    algorithm = default_steps(method, problem, tau=3, at=None if bounded else problem.start)
    plain = cf.simulation.run_plain(problem, algorithm, ROUNDS)
    trace = cf.simulate(problem.astype("float32"), algorithm, ROUNDS)
    return float(np.linalg.norm(trace.x - plain.x) / np.linalg.norm(plain.x)), trace.provenance["kernel"]


@pytest.mark.parametrize(
    "method",
    [
        "DecoupledProx",
        "FedDR",
        *slowly(
            "FedDA",
            "FastFedDA",
            "FedMid",
            "FedADMM",
            "Scaffnew",
            "FedPLT",
            "NormalMap",
            "ServerProx",
            "AcceleratedDecoupledProx",
            "FISTA",
        ),
    ],
)
def test_a_whole_round_on_chip_is_the_plain_loops(interpreted, method):
    """The client's own method in a kernel, whatever the algorithm."""
    error, kernel = apart("Logistic", cf.regularisers.L1(1e-2), method)
    assert kernel["kind"] == "whole round"
    assert error <= 2e-6


@pytest.mark.parametrize("method", ["Scaffold", *slowly("FedAvg", "FedProx", "Mime")])
def test_methods_without_a_prox_too(interpreted, method):
    error, kernel = apart("Squared", cf.regularisers.Zero(), method)
    assert kernel["kind"] == "whole round"
    assert error <= 2e-6


@pytest.mark.parametrize(
    ("loss", "on_chip"),
    [
        ("Huber", True),
        ("Poisson", False),
        *slowly(
            ("Squared", True),
            ("Poisson", True),
            ("Logistic", False),
            ("Logistic", True),
            ("SquaredHinge", True),
            ("Squared", False),
            ("Huber", False),
            ("SquaredHinge", False),
        ),
    ],
)
def test_every_loss(interpreted, loss, on_chip):
    """On chip, and, where the rows of a client do not fit, in one pass over them per gradient."""
    if not on_chip:
        interpreted.setattr(kernels, "ON_CHIP", 0)
    weighted = cf.regularisers.ElasticNet(np.linspace(0, 0.05, 6), np.full(6, 0.01))
    error, kernel = apart(loss, weighted, "DecoupledProx")
    assert kernel["kind"] == ("whole round" if on_chip else "one pass")
    assert error <= 2e-6


@pytest.mark.parametrize(
    ("g", "method", "kind", "why"),
    [
        (cf.regularisers.L1(1e-2), "CompressedDecoupledProx", "one pass", "top_k has no translation"),
        (cf.regularisers.Box(0.5, 1.0), "DecoupledProx", "one pass", "from 6 to 8 coefficients"),
    ],
)
def test_what_has_no_kernel_says_why_and_runs(interpreted, g, method, kind, why):
    error, kernel = apart("Logistic", g, method)
    assert kernel["kind"] == kind
    assert why in kernel["why"]
    assert error <= 2e-6


def test_without_a_gpu_there_is_no_kernel():
    problem = cf.Problem(LOSSES["Logistic"][0], cf.regularisers.L1(1e-2), federation("signs"), dtype="float32")
    algorithm = cf.algorithms.DecoupledProx(eta=0.1)
    assert kernels.choose_kernel(problem, algorithm, None, problem.n) == (None, "kernels are for a GPU")


@pytest.mark.parametrize(
    ("method", "dtype", "batch", "k", "why"),
    [
        ("DecoupledProx", "float64", None, 5, "float32"),
        ("CompressedDecoupledProx", "float32", 4, 5, "top_k has no translation"),
        ("DecoupledProx", "float32", 10**5, 5, "do not fit on chip"),
    ],
)
def test_where_kernels_do_not_apply(interpreted, method, dtype, batch, k, why):
    problem = cf.Problem(LOSSES["Logistic"][0], cf.regularisers.L1(1e-2), federation("signs"), dtype=dtype)
    kernel, said = kernels.choose_kernel(problem, default_steps(method, problem, tau=3), batch, k)
    assert kernel is None
    assert why in said


@pytest.mark.parametrize(
    ("method", "batch", "k"),
    [
        ("DecoupledProx", 5, None),
        ("VarianceReducedDecoupledProx", 5, None),  # asks for full gradients too
        ("FedAvg", None, 3),
        *slowly(("FedPD", 5, None), ("FISTA", 5, None), ("FedDA", 5, 3), ("Mime", 4, 3), ("FedMid", 6, 2)),
    ],
)
def test_rows_fetched_by_the_kernel(interpreted, method, batch, k):
    """Mini-batches and sampled clients: the draws of the plain loop, and its rounds."""
    interpreted.setattr(kernels, "BLOCK", 64)  # several blocks of rows per client, the last one cut off
    g = cf.regularisers.Zero() if method in ("FedPD", "FedAvg", "Mime") else cf.regularisers.L1(1e-2)
    problem = cf.Problem(LOSSES["Logistic"][0], g, federation("signs"), dtype="float64")
    algorithm, how = default_steps(method, problem, tau=3), {"batch_size": batch, "participants": k, "seed": 3}
    plain = cf.simulation.run_plain(problem, algorithm, ROUNDS, **how)
    trace = cf.simulate(problem.astype("float32"), algorithm, ROUNDS, **how)
    assert trace.provenance["kernel"]["kind"] == "rows fetched"
    np.testing.assert_allclose(trace.x, plain.x, rtol=0, atol=2e-6 * np.abs(plain.x).max())


@pytest.mark.parametrize("method", ["FedDA", *slowly("FedMid", "FastFedDA")])
def test_one_pass_over_the_rows_of_some_clients(interpreted, method):
    """Rows are read where they are, by the number of the participant: the rounds of the plain loop."""
    interpreted.setattr(kernels, "ON_CHIP", 0)
    sites = federation("signs", sizes=(70,) * 5)  # clients of one size are one bucket
    problem = cf.Problem(LOSSES["Logistic"][0], cf.regularisers.L1(1e-2), sites, dtype="float64")
    algorithm = default_steps(method, problem, tau=3)
    plain = cf.simulation.run_plain(problem, algorithm, ROUNDS, participants=2, seed=3)
    trace = cf.simulate(problem.astype("float32"), algorithm, ROUNDS, participants=2, seed=3)
    assert trace.provenance["kernel"]["kind"] == "one pass"
    np.testing.assert_allclose(trace.x, plain.x, rtol=0, atol=2e-6 * np.abs(plain.x).max())


@pytest.mark.parametrize("every", [1, 4, 7])
def test_participants_drawn_ahead(monkeypatch, every):
    """As on a GPU, where a sort for each round would cost more than the round: the draws of the plain loop."""
    monkeypatch.setattr(simulator, "rounds_drawn_together", lambda n, every: 3)
    problem = cf.Problem(LOSSES["Logistic"][0], cf.regularisers.L1(1e-2), federation("signs"))
    algorithm, rounds = cf.algorithms.DecoupledProx(eta=0.1, tau=3), 8
    one_by_one = cf.simulate(problem, algorithm, rounds, participants=2, seed=3, record_every=rounds)
    plain = cf.simulation.run_plain(problem, algorithm, rounds, participants=2, seed=3, record_every=every)
    trace = cf.simulate(problem, algorithm, rounds, participants=2, seed=3, record_every=every)
    np.testing.assert_allclose(trace.x, plain.x, rtol=0, atol=1e-14)
    np.testing.assert_allclose(trace.x, one_by_one.x, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("kind", "batch"), [("one pass", None), *slowly(("whole round", None), ("rows fetched", 5))])
def test_rows_kept_in_sixteen_bits(interpreted, kind, batch):
    """The rounds over rows that were rounded first, by NumPy's own rounding; sums are in single precision."""
    if kind == "one pass":
        interpreted.setattr(kernels, "ON_CHIP", 0)
    sites = federation("signs")
    rounded = [np.asarray(a, jnp.bfloat16).astype(float) for a in sites.features]
    exact, plain = (
        cf.Problem(LOSSES["Logistic"][0], cf.regularisers.L1(1e-2), cf.data.from_arrays(list(A), list(sites.labels)))
        for A in (sites.features, rounded)
    )
    algorithm = cf.algorithms.DecoupledProx(eta=0.5, tau=3)
    right = cf.simulation.run_plain(plain, algorithm, ROUNDS, batch_size=batch).x
    trace = cf.simulate(exact.astype("float32"), algorithm, ROUNDS, batch_size=batch, storage="bfloat16")
    assert trace.provenance["kernel"]["kind"] == kind
    assert trace.provenance["kernel"]["storage"] == "bfloat16"
    np.testing.assert_allclose(trace.x, right, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("storage", "why"), [("bfloat16", "kernels are for a GPU"), ("int8", "not how rows can be kept")]
)
def test_storage_that_cannot_be(storage, why):
    problem = cf.Problem(LOSSES["Logistic"][0], cf.regularisers.L1(1e-2), federation("signs"), dtype="float32")
    with pytest.raises(cf.InputError, match=why):
        cf.simulate(problem, cf.algorithms.DecoupledProx(eta=0.1), 1, storage=storage)


@pytest.mark.parametrize(
    "g",
    [
        cf.regularisers.SparseGroup(np.linspace(0, 0.02, 6), 0.03, (4, 4, 1, 4, 2, 1)),
        *slowly(
            cf.regularisers.GroupL2(0.05, (0, 0, 1, 1, 2, 2)),
            cf.regularisers.GroupL2(0.05, (0, 0, 1, 1, 1, 0), np.array([1.0, 3.0])),
        ),
    ],
)
def test_groups_on_chip(interpreted, g):
    error, kernel = apart("Logistic", g, "FedMid")
    assert kernel["kind"] == "whole round"
    assert error <= 2e-6


def test_a_group_penalty_for_kernels_has_the_same_prox():
    """Whatever the vector: zero groups, a group on its threshold, coefficients that were filled up."""
    g = cf.regularisers.SparseGroup(np.linspace(0, 0.2, 6), 0.3, (4, 4, 1, 4, 2, 1), np.array([1.0, 2.0, 0.0]))
    rng = np.random.default_rng(3)
    for x in (*rng.standard_normal((5, 6)), np.zeros(6), np.full(6, 1e-3)):
        right, wide = np.asarray(g.prox(jnp.asarray(x), 0.7)), np.pad(x, (0, 2))
        np.testing.assert_allclose(for_kernels(g, 6).prox(jnp.asarray(wide), 0.7), np.pad(right, (0, 2)), atol=1e-6)


@pytest.mark.parametrize(("n", "m", "d"), [(3, 40, 16), (1, 100, 256), (2, 16, 8)])
def test_gradients_in_one_pass(n, m, d):
    """Against NumPy in double precision; a client with many rows is split over programs, the last block cut off."""
    rng = np.random.default_rng(1)
    A, x = rng.standard_normal((n, m, d)), rng.standard_normal((n, d)) / np.sqrt(d)
    y, q = np.sign(rng.standard_normal((n, m))), rng.uniform(0, 1 / m, (n, m))
    slope = -y / (1 + np.exp(y * np.einsum("nmd,nd->nm", A, x)))
    right = np.einsum("nmd,nm->nd", A, q * slope)
    found = kernels.gradients(
        cf.losses.Logistic(), *(jnp.asarray(a, jnp.float32) for a in (A, y, q, x)), interpret=True
    )
    np.testing.assert_allclose(found, right, rtol=0, atol=2e-6 * np.abs(right).max())


def test_a_loop_over_numbers_and_a_counter_is_translated():
    def f(x, weights):
        def step(total, item):
            k, w = item
            return total + w * x * (k + 1), None

        return jax.lax.scan(step, jnp.zeros_like(x), (jnp.arange(4), weights))[0]

    x, weights = jnp.arange(8.0), jnp.array([1.0, -2.0, 0.5, 4.0])
    np.testing.assert_allclose(lowered(f, x, weights), f(x, weights))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sort(x), lambda x: x[jnp.array([1, 0])], lambda x: jnp.outer(x, x) @ jnp.outer(x, x),
        lambda x: jax.lax.scan(lambda c, v: (c + v, c), 0.0, x)[1], lambda x: jnp.cumsum(x),
    ],
)  # fmt: skip
def test_what_has_no_translation_is_named(f):
    with pytest.raises(NoKernel, match="has no translation"):
        lowered(f, jnp.arange(8.0))
