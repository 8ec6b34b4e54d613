"""Some of the clients with unequal weights: unbiased over all samples there are, and where a method then comes to rest."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from problems import quadratic_oracle, quadratics
from samples import WEIGHTS, samples

import compfed as cf
from compfed.algorithms import (
    ALGORITHMS,
    DecoupledProx,
    FastFedDA,
    FedAvg,
    FedDA,
    FedMid,
    FedProx,
    Mime,
    MimeLite,
    default_steps,
)
from compfed.algorithms.fast_fedda import Constant
from compfed.federation.server.rounds import ServerLoop
from compfed.sampling import participants, participation_scores, run_key
from compfed.simulation import run_plain


def weighted(g: cf.regularisers.Regulariser) -> cf.Problem:
    problem = quadratics(0, g=g)
    return cf.Problem(problem.loss, g, problem.sites, weights=WEIGHTS)


@pytest.fixture(scope="module")
def problems() -> dict[bool, cf.Problem]:
    """Whether it has a regulariser -> problem."""
    return {True: weighted(cf.regularisers.L1(1.0)), False: weighted(cf.regularisers.Zero())}


def after_each_sample(monkeypatch, problem, algorithm, scheme, k, first):
    """(probability, what the server then knows) for every sample of the round that follows `first`."""
    for who, chance in samples(scheme, problem.weights, k):
        monkeypatch.setattr(ServerLoop, "chosen", lambda self, r, who=who: who)
        trace = run_plain(problem, algorithm, 1, participants=k, sampling=scheme, resume=first, record_every=1)
        assert trace.state is not None
        yield chance, trace.state.server


def known(trace: cf.Trace) -> list[np.ndarray]:
    assert trace.state is not None
    return trace.state.server


# Methods whose server uses the mean of the answers: its state is linear in that mean (FedMid without the server's prox; Mime
# with one local step, since with more its second mean is taken over the very sample its first one depends on).
MEANS = {
    "FedAvg": FedAvg(eta=0.05, tau=3),
    "FedProx": FedProx(eta=0.05, mu=0.3, tau=3),
    "FedMid": FedMid(eta=0.05, tau=3, server_prox="none"),
    "FedDA": FedDA(eta=0.05, tau=3),
    "FastFedDA": FastFedDA(mu=0.1, schedule=Constant(20.0), tau=3),
    "Mime": Mime(eta=0.05, tau=1),
    "MimeLite": MimeLite(eta=0.05, tau=3),
}
# Methods whose server adds up what participants change, and leaves the others' part as it is.
SUMS = ("FedDR", "FedADMM", "FedPLT")


def test_every_method_that_can_sample_is_looked_at_here():
    ratio = {
        "Scaffold",
        "DecoupledProx",
        "VarianceReducedDecoupledProx",
        "FedDyn",
    }  # by name, with the reason in their files
    assert {n for n, c in ALGORITHMS.items() if c.sampling != "no"} == {*MEANS, *SUMS} | ratio
    assert {n for n, c in ALGORITHMS.items() if c.sampling != "no" and c.schemes[0] == "self-normalised"} == ratio
    assert all(c.schemes for c in ALGORITHMS.values() if c.sampling != "no")


@pytest.mark.parametrize("name", MEANS)
def test_the_mean_over_all_samples_is_the_round_of_all_clients(problems, monkeypatch, name):
    algorithm = MEANS[name]
    problem = problems[bool(ALGORITHMS[name].composite)]
    first = run_plain(problem, algorithm, 1)
    everyone = known(run_plain(problem, algorithm, 1, resume=first))
    for scheme in ALGORITHMS[name].schemes:
        if scheme == "uniform" and name != "FedAvg":
            continue  # the same weights, which FedAvg and the schemes' own tests go through
        outcomes = list(after_each_sample(monkeypatch, problem, algorithm, scheme, 2, first))
        expected = [sum(p * leaf for p, leaf in zip((p for p, _ in outcomes), leaves, strict=True))
                    for leaves in zip(*(state for _, state in outcomes), strict=True)]  # fmt: skip
        moved = max(np.abs(a - b).max() for a, b in zip(everyone, known(first), strict=True))
        error = max(np.abs(a - b).max() for a, b in zip(expected, everyone, strict=True))
        assert error > 1e-2 * moved if scheme == "self-normalised" else error < 1e-8 * moved, scheme


@pytest.mark.parametrize("name", SUMS)
def test_sums_move_by_the_share_of_clients_that_took_part(problems, monkeypatch, name):
    """E[change of sum_i p_i (...)] is k/n of the change with all clients; both schemes are the same sum."""
    problem, k = problems[True], 2
    algorithm = default_steps(name, problem, tau=3)
    first = run_plain(problem, algorithm, 1)
    (before,), (everyone,) = known(first), known(run_plain(problem, algorithm, 1, resume=first))
    expected = np.zeros_like(before)
    for (p, (state,)), (_, (other,)) in zip(
        *(after_each_sample(monkeypatch, problem, algorithm, s, k, first) for s in ("uniform", "self-normalised")),
        strict=True,
    ):
        np.testing.assert_allclose(state, other, rtol=1e-12)
        expected += p * (state - before)
    np.testing.assert_allclose(expected, k / 5 * (everyone - before), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scheme", ["self-normalised", "uniform"])
def test_scaffold_keeps_the_mean_of_the_control_variates(problems, monkeypatch, scheme):
    """c = sum_i p_i c_i whatever the sample; the step of x is unbiased under "uniform" only."""
    problem = problems[False]
    algorithm = default_steps("Scaffold", problem, tau=3)
    first = run_plain(problem, algorithm, 1)
    everyone, expected = known(run_plain(problem, algorithm, 1, resume=first)), 0.0
    for who, chance in samples(scheme, WEIGHTS, 2):
        monkeypatch.setattr(ServerLoop, "chosen", lambda self, r, who=who: who)
        trace = run_plain(problem, algorithm, 1, participants=2, sampling=scheme, resume=first)
        assert trace.state is not None
        np.testing.assert_allclose(trace.state.server[1], WEIGHTS @ trace.state.clients[0], atol=1e-12)
        expected = expected + chance * trace.state.server[0]
    error = np.abs(expected - everyone[0]).max() / np.abs(everyone[0] - known(first)[0]).max()
    assert error < 1e-10 if scheme == "uniform" else error > 1e-3


def test_the_corrections_of_algorithm_1_cancel_whatever_the_sample(problems, monkeypatch):
    """Why it takes the ratio: sum_i p_i c_i = 0 after every sample, and its fixed point needs that."""
    problem = problems[True]
    algorithm = DecoupledProx(eta=0.05, tau=3, upload="model")
    first = run_plain(problem, algorithm, 1)
    for who, _ in samples("self-normalised", WEIGHTS, 2):
        monkeypatch.setattr(ServerLoop, "chosen", lambda self, r, who=who: who)
        trace = run_plain(problem, algorithm, 1, participants=2, resume=first)
        assert trace.provenance["sampling"] == "self-normalised"
        assert trace["correction"][-1] < 1e-12


@pytest.mark.parametrize("scheme", ["proportional", "self-normalised"])
def test_fedavg_with_one_step_and_one_client_comes_to_rest_around_the_minimiser(problems, scheme):
    """Of the weighted problem in the mean over rounds; of the unweighted one under the ratio, where a client drawn alone
    counts for as much as any other."""
    problem = problems[False]
    H, b = quadratic_oracle(problem)

    def model(loss, g, data, algorithm, server, clients):
        return {"model": server.w}

    trace = cf.simulate(problem, FedAvg(eta=0.02, tau=1), 40_000, participants=1, sampling=scheme, measure=model)
    rest = trace["model"][4_000:].mean(axis=0)
    # the mean of x+ = x - eta (H_i x - b_i) over independent draws: its rest solves E[H_i] x = E[b_i], for every eta
    star, unweighted = (np.linalg.solve(np.tensordot(p, H, 1), p @ b) for p in (WEIGHTS, np.full(5, 0.2)))
    near, far = (unweighted, star) if scheme == "self-normalised" else (star, unweighted)
    assert np.linalg.norm(rest - near) < 0.05 * np.linalg.norm(star)
    assert np.linalg.norm(rest - far) > 0.3 * np.linalg.norm(star)


@pytest.mark.parametrize("scheme", ["proportional", "uniform", "self-normalised"])
def test_engines_agree_under_every_scheme(problems, scheme):
    problem, algorithm = problems[False], FedAvg(eta=0.02, tau=2)
    options = {"participants": 3, "sampling": scheme, "seed": 3}  # three draws make the largest site certain
    a, b = (engine(problem, algorithm, 15, **options) for engine in (cf.simulate, run_plain))
    np.testing.assert_allclose(a.x, b.x, rtol=1e-11)
    np.testing.assert_allclose(a["drift"], b["drift"], rtol=1e-9, atol=1e-12)
    assert a.provenance["sampling"] == b.provenance["sampling"] == scheme


def test_with_equal_weights_or_all_clients_schemes_are_the_same_to_the_last_bit(problems):
    algorithm = FedAvg(eta=0.02, tau=2)
    equal = quadratics(0, g=cf.regularisers.Zero())
    runs = [
        run_plain(equal, algorithm, 10, participants=2, sampling=s)
        for s in ("proportional", "uniform", "self-normalised")
    ]
    assert len({run.x.tobytes() for run in runs}) == 1
    everyone = [
        run_plain(problems[False], algorithm, 10, participants=5, sampling=s) for s in ("proportional", "uniform")
    ]
    assert everyone[0].x.tobytes() == everyone[1].x.tobytes()
    assert everyone[0].provenance["sampling"] is None


def test_clients_whose_numbers_tie_are_told_apart_by_who_they_are():
    """In round 4930 of seed 0 two of a thousand clients draw one number, at the cut. Their places must not decide."""
    n, k, r = 1000, 500, 4930
    scores = np.asarray(participation_scores(run_key(0), r, jnp.arange(n)))
    cut = np.sort(scores)[k - 1 : k + 1]
    assert cut[0] == cut[1]
    first, second = np.flatnonzero(scores == cut[0])
    swapped = np.arange(n)
    swapped[[first, second]] = second, first
    for clients in (np.arange(n), swapped, np.arange(n)[::-1]):
        drawn = clients[np.asarray(participants("uniform", None, run_key(0), r, jnp.asarray(clients), k))]
        assert first in drawn
        assert second not in drawn
