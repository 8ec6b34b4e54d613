"""`cf.testing.check`: each claim of a method, a penalty or a loss that is wrong is found, and right ones hold."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from problems import logistic

import compfed as cf
import compfed.algorithms as alg
from compfed._utils.records import nonnegative, positive, record
from compfed.algorithms.decoupled_prox import DriftCorrected
from compfed.testing import methods


def verdicts(what: Any, *rows: Any) -> dict[str, str]:
    return {line.what: line.verdict for line in cf.testing.check(what, *rows, quiet=True).lines}


# --- methods ---


@record
class Overconfident(DriftCorrected):
    """Algorithm 1 with the upload that rebuilds corrections from all clients' gradients, and a claim to do without some."""

    exact = True
    exact_sampled = True
    sampling = "observed"
    schemes = ("self-normalised",)


@pytest.mark.thorough
def test_a_class_that_claims_exactness_under_sampling_and_has_none_fails():
    """Everything else it claims holds. The same with uploads that keep the corrections is exact with two clients of five."""
    found = verdicts(Overconfident)
    samples = ["limit with 2 of 5 clients, logistic", "limit with 2 of 5 clients, quadratic"]
    assert [what for what, verdict in found.items() if verdict == "fails"] == samples
    assert methods._Case(alg.DecoupledProx).sampled_limit("quadratic")[0] == "holds"


class HalfCorrected(DriftCorrected):
    """Corrections that do not cancel: half of the mean gradient stays in their mean."""

    def finish_round(self, g, d, c):
        return c._replace(c=0.5 * (c.p - d.x) / self.eta_tilde - c.S / self.tau)


@record
class LeavesTheMeanOut(HalfCorrected):
    upload = "gradient-sum"


@record
class SendsWhatIsRight(HalfCorrected):
    pass


@record
class HalfDecoupledProx(alg.DecoupledProx):
    finish_round = HalfCorrected.finish_round


def half_corrected_by_numpy(eta: float, tau: int, rounds: int) -> float:
    """Algorithm 1 for f_i(x) = a_i (x - b_i)^2 / 2 and no g, with the halved correction: line by line, the upload as in the paper."""
    a, b, c, x = np.array([1.0, 2.0]), np.array([1.0, -1.0]), np.zeros(2), 0.0
    for _ in range(rounds):
        z, S = np.full(2, x), np.zeros(2)
        for _ in range(tau):
            q = a * (z - b)
            z, S = z - eta * (q + c), S + q
        p, x = x, z.mean()
        c = 0.5 * (p - x) / (eta * tau) - S / tau
    return float(x)


@pytest.mark.parametrize("variant", [SendsWhatIsRight, HalfDecoupledProx])
def test_a_correction_of_its_own_is_not_left_out(variant):
    """What is uploaded unless stated is right for every correction. Stated otherwise it is another method, which `check` finds."""
    A = [np.array([[np.sqrt(a)]]) for a in (1.0, 2.0)]
    sites = cf.data.from_arrays(A, [np.array([1.0]), np.array([-np.sqrt(2.0)])])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    expected = half_corrected_by_numpy(0.1, 3, 8)
    assert cf.simulate(problem, variant(eta=0.1, tau=3), 8).x[0] == pytest.approx(expected, rel=1e-12)
    assert abs(cf.simulate(problem, LeavesTheMeanOut(eta=0.1, tau=3), 8).x[0] - expected) > 1e-3
    assert (
        cf.simulate(problem, alg.DecoupledProx(eta=0.1, tau=3), 1).provenance["algorithm"]["upload"] == "gradient-sum"
    )
    assert not methods._Case(variant).leaves_corrections_out


def test_an_upload_that_leaves_corrections_out_is_found():
    case = methods._Case(LeavesTheMeanOut)
    verdict, found = case.uploads_agree()
    assert case.leaves_corrections_out
    assert verdict == "fails"
    assert "the corrections do not cancel" in found
    assert "upload = 'model' in LeavesTheMeanOut" in found
    for variant in (alg.DecoupledProx, alg.ServerProx, alg.VarianceReducedDecoupledProx):
        assert methods._Case(variant).uploads_agree()[0] == "holds"


def test_costs_that_a_plain_loop_does_not_find_fail(monkeypatch):
    case = methods._Case(alg.Scaffold)
    verdict, found = case.costs()
    assert verdict == "holds"
    assert "128 bytes up, 128 down, 3 gradients, 0 proxes" in found  # two vectors of 8 numbers each way

    def billed_once(*args: Any, **options: Any) -> cf.Trace:
        trace = cf.simulate(*args, **options)
        return cf.Trace(trace.columns | {"gradients": trace["round"] * 1.0}, trace.x, trace.provenance)

    monkeypatch.setattr(methods, "simulate", billed_once)
    verdict, found = case.costs()
    assert verdict == "fails"
    assert "gradients 1 in the trace, 3 counted" in found


def test_the_plain_loop_counts_what_the_pseudo_code_does():
    """Mime: a full gradient, then two per step; two vectors up, three down (algorithms as their papers list them)."""
    problem = logistic()
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    counted = methods.counted_by_hand(smooth, alg.Mime(eta=0.1, tau=3), 2)
    vector = 8 * problem.d
    assert counted["gradients"] == 2 * (1 + 2 * 3)
    assert (counted["bytes_up"], counted["bytes_down"]) == (2 * 2 * vector, 2 * 3 * vector)
    assert counted["rows"] == counted["gradients"] * 20
    ours = methods.counted_by_hand(problem, alg.DecoupledProx(eta=0.1, tau=3), 2)
    assert (ours["gradients"], ours["client_proxes"], ours["bytes_up"]) == (2 * 3, 2 * (3 + 1), 2 * vector)


# --- penalties ---


class Own:
    """0.5 ||x||_1, whose prox shrinks by `strength` times t: right for 0.5."""

    def __init__(self, strength: float):
        self.strength = strength

    def __call__(self, x):
        return 0.5 * jnp.abs(x).sum()

    def prox(self, x, t):
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - self.strength * t, 0.0)


@record
class Boastful(cf.regularisers.MCP):
    """A weakly convex penalty that says it is convex."""

    @property
    def largest_step(self) -> float:
        return np.inf


@record
class Timid(cf.regularisers.MCP):
    """MCP that claims half of its modulus of weak convexity: a largest step twice as long."""

    @property
    def largest_step(self) -> float:
        return 2.0 * self.gamma


@record
class Halved(cf.regularisers.L1):
    """An alpha_max that is half of the right one."""

    def alpha_max(self, gradient):
        return 0.5 * super().alpha_max(gradient)


def test_penalties_that_are_right_hold():
    right = [
        cf.regularisers.SparseGroup(0.1, 0.2, (0, 0, 1, 1)),
        cf.regularisers.MCP(0.5, gamma=2.0),
        cf.regularisers.Simplex(),
        Own(0.5),
    ]
    for g in right:
        report = cf.testing.check(g, quiet=True)
        assert report.ok, str(report)


@pytest.mark.parametrize(
    ("g", "wrong"),
    [
        (Own(0.49), {"prox inequality"}),
        (Own(0.5001), {"prox inequality"}),
        (Boastful(0.5, gamma=2.0), {"convex"}),
        (Timid(0.5, gamma=2.0), {"weakly convex"}),
        (Halved(0.3), {"alpha_max"}),
    ],
)
def test_penalties_that_are_wrong_fail(g, wrong):
    assert {what for what, verdict in verdicts(g).items() if verdict == "fails"} >= wrong


# --- losses ---


@record
class Skewed(cf.losses.Squared):
    """A squared loss with one mistake at a time."""

    mistake: float = nonnegative(default=0.0)
    where: float = positive(default=1.0)

    def derivative(self, z, y):
        return super().derivative(z, y) * (1.0 + self.mistake * (self.where == 1))

    def second_derivative(self, z, y):
        return super().second_derivative(z, y) * (1.0 + self.mistake * (self.where == 2))


@record
class Bounded(cf.losses.Logistic):
    """A bound on the curvature that is half of the right one."""

    curvature = 0.125


def test_losses_that_are_right_hold():
    for loss in (cf.losses.Logistic(ridge=0.1), cf.losses.Huber(1.0), cf.losses.Softmax(3), cf.losses.MultiSquared(2)):
        report = cf.testing.check(loss, quiet=True)
        assert report.ok, str(report)


def test_losses_that_are_wrong_fail():
    def failed(loss: Any, *rows: Any) -> set[str]:
        return {what for what, verdict in verdicts(loss, *rows).items() if verdict == "fails"}

    assert failed(Skewed()) == set()
    assert failed(Skewed(mistake=1e-3)) >= {"gradient"}
    assert failed(Skewed(mistake=1e-3, where=2.0)) >= {"Hessian"}
    assert failed(Bounded()) == {"curvature"}
    X, y = np.random.default_rng(0).standard_normal((20, 3)), np.ones(20)
    double_well = cf.losses.from_function(lambda w, a, y: (((a @ w) ** 2 - 1.0) ** 2) / 4, np.zeros(3), convex=True)
    assert failed(double_well, X, y) == {"convex"}
    honest = cf.testing.check(cf.losses.from_function(double_well.model.function, np.zeros(3)), X, y, quiet=True)
    assert honest.ok
    assert any("convex is unknown; not convex: an eigenvalue of" in line.found for line in honest.lines)


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(cf.InputError, match=r"takes none of the labels tried. Give rows of your own"):
        cf.testing.check(cf.losses.from_function(lambda w, a, y: a @ w, np.zeros(7)))
    with pytest.raises(cf.InputError, match="takes X and y together"):
        cf.testing.check(cf.losses.Squared(), np.ones((3, 2)))
    with pytest.raises(cf.InputError, match=r"of a penalty or of a loss; got <class"):
        cf.testing.check(cf.regularisers.L1)
