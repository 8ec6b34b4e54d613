"""Resume: what fits goes on to the right limit; what does not is refused, by name, with the way out."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from problems import quadratics

import compfed as cf
from compfed.algorithms import ALGORITHMS, DecoupledProx, FedADMM, FedAvg, Scaffold, default_steps, positive, record
from compfed.algorithms.fast_fedda import Constant, Linear
from compfed.data import from_arrays

NAMES = ["ash", "birch", "cedar", "elm", "fir"]
ORDER = [3, 0, 4, 2, 1]
WEIGHTS = np.array([0.1, 0.1, 0.2, 0.25, 0.35])
SMOOTH = cf.regularisers.Zero()


def with_names(problem: cf.Problem, names: list[str] | None = None, order: Any = range(5), **more: Any) -> cf.Problem:
    """The same sites, built anew from their arrays in some order."""
    sites = problem.sites
    made = from_arrays([sites.features[i] for i in order], [sites.labels[i] for i in order], names=names)
    return cf.Problem(problem.loss, problem.regulariser, made, **more)


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    return with_names(quadratics(g=SMOOTH), NAMES)


@pytest.fixture(scope="module")
def trace(problem) -> cf.Trace:
    return cf.simulate(problem, SCAFFOLD, 30)


SCAFFOLD = Scaffold(eta=0.05, tau=3)


def minimiser(problem: cf.Problem) -> np.ndarray:
    """Of squared losses without g, by the normal equations."""
    A, y, p = problem.sites.features, problem.sites.labels, problem.weights
    H = sum(w * a.T @ a / len(a) for w, a in zip(p, A, strict=True)) + 0.1 * np.eye(problem.d)
    return np.linalg.solve(H, sum(w * a.T @ b / len(a) for w, a, b in zip(p, A, y, strict=True)))


# --- what is carried over ---


def test_sites_in_another_order_are_found_by_their_names(problem, trace, tmp_path):
    """Site by site it is the uninterrupted run; with the memories mixed up it would be off by far more."""
    whole = cf.simulate(problem, SCAFFOLD, 33)
    other = with_names(problem, [NAMES[i] for i in ORDER], ORDER)
    resumed = cf.simulate(other, SCAFFOLD, 3, resume=cf.Trace.load(trace.save(tmp_path / "t")))
    np.testing.assert_allclose(resumed.x, whole.x, rtol=0, atol=1e-13)
    assert whole.state is not None
    assert resumed.state is not None
    np.testing.assert_allclose(resumed.state.clients[0], whole.state.clients[0][ORDER], rtol=0, atol=1e-12)
    assert resumed.state.members is not None
    assert resumed.state.members.names == tuple(NAMES[i] for i in ORDER)


def test_other_steps_participants_and_batches_go_on_to_the_minimiser(problem, trace):
    """Scaffold's state is in units of gradients: no step enters it."""
    batches = cf.simulate(problem, SCAFFOLD, 5, batch_size=4, seed=3, resume=trace)
    sampled = cf.simulate(problem, replace(SCAFFOLD, eta=0.1, tau=4), 5, participants=3, resume=batches)
    end = cf.simulate(problem, replace(SCAFFOLD, eta=0.08, option="I"), 400, record_every=400, resume=sampled)
    np.testing.assert_allclose(end.x, minimiser(problem), rtol=0, atol=1e-10)


# --- what is refused ---


def changed(problem: cf.Problem) -> cf.Problem:
    features = [a.copy() for a in problem.sites.features]
    features[2][0, 0] += 1e-3
    return cf.Problem(problem.loss, SMOOTH, from_arrays(features, problem.sites.labels, names=NAMES))


def relabelled(problem: cf.Problem) -> cf.Problem:
    """The same rows and the same labels at a site, which no longer belong together: no sum over either can tell."""
    labels = [y.copy() for y in problem.sites.labels]
    labels[1] = labels[1][::-1]
    return cf.Problem(problem.loss, SMOOTH, from_arrays(problem.sites.features, labels, names=NAMES))


REFUSED: dict[str, Any] = {
    "weights": (
        lambda p: with_names(p, NAMES, weights=WEIGHTS),
        r"weight of site 'fir' was 0\.2 in the trace and is 0\.35 now.*x0=trace\.x",
    ),
    "other names": (lambda p: with_names(p, [*NAMES[:4], "yew"]), r"knows no site 'yew'; it has 'ash', .*x0=trace\.x"),
    "the same names in another order": (
        lambda p: with_names(p, NAMES, ORDER),
        r"site 'ash' has other rows than in the trace\. Give each site the name it had",
    ),
    "labels of other rows": (relabelled, r"objective at the trace's model was .* the rows are others.*x0=trace\.x"),
    "rows": (changed, r"site 'cedar' has other rows than in the trace"),
    "more rows": (
        lambda p: cf.Problem(p.loss, SMOOTH, from_arrays(
            [*p.sites.features[:4], np.ones((13, 8))], [*p.sites.labels[:4], np.ones(13)], names=NAMES)),
        r"site 'fir' had 12 rows in the trace and has 13 now",
    ),
    "loss": (
        lambda p: p.replace(loss=cf.losses.Squared(ridge=0.2)),
        r"the loss was Squared\(.*ridge=0\.1.*and is Squared\(.*ridge=0\.2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("engine", ["simulate", "run_plain"])
def test_another_problem_is_refused(problem, trace, engine, what):
    make, message = REFUSED[what]
    with pytest.raises(cf.InputError, match=message):
        getattr(cf.simulation, engine)(make(problem), SCAFFOLD, 1, resume=trace)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_function_is_known_by_what_it_gives(problem, dtype):
    """It has no number to compare. The same one, written again, goes on; the float32 run, in blocks or alone, as well."""

    def made(power: float) -> cf.Problem:
        loss = cf.losses.from_function(lambda w, a, y: jnp.abs(a @ w - y) ** power / 2, np.zeros(8), ridge=0.1)
        return cf.Problem(loss, SMOOTH, problem.sites, dtype=dtype)

    trace = cf.simulate(made(2.0), FedAvg(eta=0.01), 7)
    assert len(cf.simulate(made(2.0), FedAvg(eta=0.01), 1, resume=trace)) == 9
    with pytest.raises(cf.InputError, match="the loss, the regulariser or the rows are others"):
        cf.simulate(made(2.01), FedAvg(eta=0.01), 1, resume=trace)


def test_the_way_out_is_one(problem, trace):
    other = with_names(problem, NAMES, weights=WEIGHTS)
    anew = cf.simulate(other, SCAFFOLD, 400, record_every=400, x0=trace.x)
    np.testing.assert_allclose(anew.x, minimiser(other), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("before", "now", "field"),
    [
        (FedADMM(eta=0.05, rho=2.0), FedADMM(eta=0.05, rho=3.0), "rho"),
        (cf.algorithms.FastFedDA(0.1, Constant(9.0), tau=3), cf.algorithms.FastFedDA(0.1, Constant(9.0), tau=4), "tau"),
        (cf.algorithms.FastFedDA(0.1, Constant(9.0)), cf.algorithms.FastFedDA(0.1, Linear(9.0)), "schedule"),
    ],
)
def test_a_number_that_the_state_depends_on_is_kept(problem, before, now, field):
    """FedADMM's xtilde = sum_i p_i (x_i + z_i / rho); the weights of FastFedDA's sums follow from tau and schedule."""
    trace = cf.simulate(problem, before, 0)
    with pytest.raises(cf.InputError, match=rf"the state of {type(now).__name__} depends on {field}, which was"):
        cf.simulate(problem, now, 1, resume=trace)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_said_what_its_state_depends_on(name):
    cls: Any = ALGORITHMS[name]
    assert set(cls.state_depends_on) <= {f.name for f in fields(cls)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name, cls in ALGORITHMS.items() if cls.exact])
def test_the_numbers_that_may_change_do_not_move_the_limit(name):
    """Every exact method: 20 rounds with one setting, then another; the limit is the minimiser."""
    cls: Any = ALGORITHMS[name]
    problem = quadratics(g=cf.regularisers.L1(0.3) if cls.composite else SMOOTH)
    algorithm, star = default_steps(name, problem, tau=3), cf.solve_pooled(problem).x
    trace = cf.simulate(problem, algorithm, 20)
    for field in {f.name for f in fields(cls)} - set(cls.state_depends_on):
        value = getattr(algorithm, field)
        if isinstance(value, float):
            other: Any = replace(algorithm, **{field: 0.5 * value})
            end = cf.simulate(problem, other, 4000, record_every=4000, resume=trace)
            assert np.linalg.norm(end.x - star) < 1e-8 * np.linalg.norm(star), field


@record
class Own(FedAvg):
    """A method from outside, whose author has said nothing."""

    eta: float = positive()
    state_depends_on = None


def test_of_a_method_from_outside_nothing_is_taken_for_granted(problem):
    trace = cf.simulate(problem, Own(eta=0.05), 1)
    cf.simulate(problem, Own(eta=0.05), 1, resume=trace)
    with pytest.raises(
        cf.InputError, match=r"the state of Own depends on eta, .*say so in the class: state_depends_on = \(\)"
    ):
        cf.simulate(problem, Own(eta=0.06), 1, resume=trace)


# --- what cannot be checked, and what is damaged ---


def with_state(trace: cf.Trace, **changes: Any) -> cf.Trace:
    assert trace.state is not None
    return replace(trace, state=replace(trace.state, **changes))


def test_a_trace_of_an_earlier_version_says_what_cannot_be_checked(problem, trace):
    with pytest.warns(cf.RunWarning, match="does not say of which sites and weights it is.*cannot be checked"):
        cf.simulate(problem, SCAFFOLD, 1, resume=with_state(trace, members=None))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: {"clients": []}, r"state of the clients is incomplete: 0 arrays of 1"),
        (lambda s: {"clients": [s.clients[0][:4]]}, r"clients\.c_i is float64 of shape \(4, 8\); .*shape \(5, 8\)"),
        (lambda s: {"server": s.server[:1]}, r"state of the server is incomplete: 1 arrays of 2"),
        (lambda s: {"clients": [np.full((5, 8), np.nan)]}, r"clients\.c_i is not finite"),
        (lambda s: {"server": [s.server[0].astype("float32"), s.server[1]]}, r"server\.x is float32 of shape"),
        (lambda s: {"rounds": 7}, r"its state is that after round 7, its last row that of round 30"),
    ],
)
def test_a_damaged_state_is_found(problem, trace, damage, message):
    with pytest.raises(cf.InputError, match=message):
        cf.simulate(problem, SCAFFOLD, 1, resume=with_state(trace, **damage(trace.state)))


def test_provenance_that_says_nothing_is_found(problem, trace):
    with pytest.raises(cf.InputError, match="provenance has no 'dtype'"):
        cf.simulate(problem, SCAFFOLD, 1, resume=replace(trace, provenance={"algorithm": {"name": "Scaffold"}}))


def test_the_run_of_algorithm_1_with_the_paper_s_upload(problem):
    """The state of sampled clients conserves sum_i p_i c_i = 0: with other weights it would be off for ever."""
    algorithm = DecoupledProx(eta=0.05, tau=3)
    trace = cf.simulate(problem, algorithm, 5, participants=3)
    with pytest.raises(cf.InputError, match="the weight of site"):
        cf.simulate(with_names(problem, NAMES, weights=WEIGHTS), algorithm, 5, participants=3, resume=trace)
    end = cf.simulate(problem, replace(algorithm, eta=0.1), 600, record_every=600, resume=trace)
    np.testing.assert_allclose(end.x, minimiser(problem), rtol=0, atol=1e-10)
