"""Server programs: which site receives which queries in which message, and what is counted, by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import compfed as cf
from compfed.federation import (
    Communication,
    DisclosurePolicy,
    Evaluate,
    InProcess,
    Program,
    Request,
    SiteRefusal,
    gather,
    run_program,
)
from compfed.federation.server.program import Spent, Summed, for_site
from compfed.federation.spec import ObjectiveSpec
from compfed.simulation.local_federation import Simulated
from compfed.splits import Holdout


class Echo(NamedTuple):
    """Stands for a query: every site adds its number to the word that was sent."""

    word: np.ndarray


class Sites:
    """A federation of three sites that adds up echoes, and lists the messages that each site received."""

    names, schema, enrolments, problems = ("a", "b", "c"), None, (), ()

    def __init__(self):
        self.messages: list[dict[int, int]] = []

    def exchange(self, requests: Sequence[Request]) -> tuple[list[Summed], Communication]:
        received, sums, total = Counter[int](), [], Communication(1)
        for request in requests:
            places = (0, 1, 2) if request.sites is None else request.sites
            received.update(places)
            echoes: Any = request.queries
            size = sum(echo.word.nbytes for echo in echoes) * len(places) / 3
            cost = Communication(0, size, size, request.models)
            sums.append(Summed([sum(echo.word + i for i in places) for echo in echoes], cost))
            total = total.beside(cost)
        self.messages.append(dict(sorted(received.items())))
        return sums, total


def counting(steps: int, sites: tuple[int, ...] | None = None) -> Program[float]:
    total = 0.0
    for k in range(steps):
        ((summed,),) = yield [Request((Echo(np.full(2, float(k))),), sites)]  # pyright: ignore[reportArgumentType]  # a stand-in
        total += summed[0]
    return total


def test_one_program():
    sites = Sites()
    total, cost = run_program(sites, counting(3))
    assert total == 3 * (0 + 1 + 2) + 3 * (0 + 1 + 2)  # the words and the sites
    assert sites.messages == [{0: 1, 1: 1, 2: 1}] * 3
    assert (cost.rounds, cost.bytes_down, cost.bytes_up, cost.models) == (3, 48.0, 48.0, 3)


def test_programs_share_messages_and_drop_out():
    sites = Sites()
    totals, cost = run_program(sites, gather([counting(3), counting(1), counting(2, sites=(1,))]))
    assert totals == [18.0, 3.0, 3.0]
    assert sites.messages == [{0: 2, 1: 3, 2: 2}, {0: 1, 1: 2, 2: 1}, {0: 1, 1: 1, 2: 1}]
    assert cost.rounds == 3
    assert cost.models == 6
    assert cost.bytes_up == pytest.approx(16 * (3 + 1 + 2 / 3))  # a third of the sites were asked by the last one


def spending(rounds: int, steps: int) -> Program[str]:
    yield Spent(
        Communication(rounds, 8.0 * rounds, 4.0 * rounds, rounds, {"LocalUpdate": (rounds, 8.0 * rounds, 4.0 * rounds)})
    )
    yield from counting(steps)
    return "done"


def test_rounds_without_messages_count_as_a_network_would_have():
    """The longest decides: 10 + 1, 4 + 3 and 2 rounds side by side are 11."""
    sites = Sites()
    found, cost = run_program(sites, gather([spending(10, 1), spending(4, 3), counting(2)]))
    assert found[:2] == ["done", "done"]
    assert len(sites.messages) == 3
    assert cost.rounds == 11
    assert cost.by_query["LocalUpdate"] == (14, 112.0, 56.0)
    # one after another they add up
    _, first = run_program(Sites(), spending(10, 1))
    _, second = run_program(Sites(), spending(4, 3))
    assert first.then(second).rounds == 11 + 7
    assert first.beside(second).rounds == 11


def test_nested_programs_share_messages_too():
    sites = Sites()
    inner = gather([counting(2), counting(1)])
    totals, cost = run_program(sites, gather([inner, counting(3)]))  # pyright: ignore[reportArgumentType]  # mixed
    assert totals == [[9.0, 3.0], 18.0]
    assert cost.rounds == len(sites.messages) == 3


def test_a_program_for_one_site():
    sites = Sites()
    total, cost = run_program(sites, for_site(2, 3, counting(2)))
    assert total == 2 + 3
    assert sites.messages == [{2: 1}, {2: 1}]
    assert cost.bytes_up == pytest.approx(2 * 16 / 3)


def test_an_error_at_a_site_ends_the_program():
    sites = cf.data.from_arrays([np.ones((2, 1))], [np.ones(2)])
    strict = InProcess(sites, cf.federation.DisclosurePolicy(min_rows=5))
    with pytest.raises(cf.InputError, match="it has fewer rows than its min_rows"):
        cf.federation.ask(strict, cf.federation.Moments())


def careful(objective: ObjectiveSpec, x: np.ndarray) -> Program[str]:
    """Asks for a Hessian, and makes do with the gradient where a site refuses it."""
    try:
        ((summed,),) = yield [Request((Evaluate(objective, x[None], np.arange(x.size)),))]
        return f"Hessian {summed.hessian.tolist()}"
    except SiteRefusal as refusal:
        ((summed,),) = yield [Request((Evaluate(objective, x[None]),))]
        return f"gradient {summed.gradient.tolist()}, for {refusal}"


def test_a_refusal_concerns_the_program_that_asked_and_it_may_fall_back():
    """Three programs in one message: one is refused and falls back, nested or not; the others do not notice."""
    sites = cf.data.from_arrays([np.ones((4, 2)), np.eye(3, 2)], [np.ones(4), np.zeros(3)])
    federation = InProcess(
        [
            *InProcess(sites).sites[:1],
            *InProcess(sites, DisclosurePolicy(min_rows=1, min_level_rows=1, max_hessian_share=0)).sites[1:],
        ]
    )
    objective, x = ObjectiveSpec(cf.losses.Squared()), np.zeros(2)

    def means() -> Program[float]:
        total = 0.0
        for _ in range(3):
            ((summed,),) = yield [Request((cf.federation.Moments(),), weights=np.ones(2))]
            total += float(summed.mean[0].sum())
        return total

    programs: list[Program[Any]] = [means(), careful(objective, x), gather([careful(objective, x), means()])]
    (total, one, (other, again)), cost = run_program(federation, gather(programs))
    # the gradient of mean((a^T x - y)^2) / 2 at 0 is -1 in both columns at the first site, and 0 at the second
    assert one == other
    assert one.startswith("gradient [[-1.0, -1.0]], for site '1' refuses Evaluate: 2 coordinates are more than 0 of")
    assert total == again == pytest.approx(3 * (2 + 2 / 3))
    assert cost.rounds == 3
    # the first site alone refuses nothing: A^T A / rows is all ones, of which the upper triangle travels
    assert run_program(federation, for_site(0, 2, careful(objective, x)))[0] == "Hessian [[1.0, 1.0, 1.0]]"
    assert run_program(federation, for_site(1, 2, careful(objective, x)))[0].startswith("gradient")


# --- a comparison that is one program ---


def test_local_and_federated_models_over_a_federation():
    """The federated model of the kept rows is that of `fit` on them; the local ones likewise; losses by hand."""
    table = cf.data.bundled.diabetes()
    sites = cf.data.from_table(table.X, table.y, table.sites)
    compiled, plain = (
        cf.compare_local_federated(cf.FederatedLasso(0.5), f(sites), test_size=0.4, seed=1)
        for f in (Simulated, InProcess)
    )
    kept = Holdout(0.4, 1, by_class=False, held_out=False)
    masks = [kept.mask(site.rows) for site in InProcess(sites).sites]
    X, y = (
        [a[m] for a, m in zip(sites.features, masks, strict=True)],
        [b[m] for b, m in zip(sites.labels, masks, strict=True)],
    )
    where = np.repeat(np.arange(len(y)), [len(b) for b in y])
    fitted = cf.FederatedLasso(0.5).fit(np.concatenate(X), np.concatenate(y), sites=where)
    alone = cf.FederatedLasso(0.5).fit(X[0], y[0], sites=None)
    for found in (compiled, plain):
        np.testing.assert_allclose(found.coefficients[:, -1], fitted.coef_, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found.coefficients[:, 0], alone.coef_, rtol=1e-7, atol=1e-9)
        for i, (A, b, m) in enumerate(zip(sites.features, sites.labels, masks, strict=True)):
            assert 0.35 < 1 - m.mean() < 0.45
            expected = np.mean((fitted.predict(A[~m]) - b[~m]) ** 2) / 2
            np.testing.assert_allclose(found.scores["mean loss"][-1, i], expected, rtol=1e-8)
        average = np.average(found.coefficients[:, :-2], axis=1, weights=[len(b) for b in y])  # by the rows fitted to
        np.testing.assert_allclose(found.coefficients[:, -2], average, rtol=1e-12)
        losses, out = found.scores["mean loss"], found.rows[:, 1]
        np.testing.assert_allclose(losses[:, -1], losses[:, :-1] @ out / out.sum(), rtol=1e-12)
    assert compiled.communication == plain.communication
    assert "average of local" in str(plain)


def test_a_site_with_one_class_has_no_local_model():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    y = (X[:, 0] + 0.3 * rng.standard_normal(60) > 0).astype(int)
    where = np.where(y == 1, 0, rng.integers(1, 3, 60))
    where[:10] = 1
    found = cf.compare_local_federated(
        cf.FederatedLogisticRegression(0.05), Simulated(cf.data.from_table(X, y, where)), seed=0
    )
    assert np.isnan(found.scores["log loss"][0]).all()
    assert np.isfinite(found.scores["log loss"][[1, -2, -1]]).all()
    assert " - " in str(found)


@pytest.mark.parametrize("mistake", ["lasso", cf.FederatedLasso])
def test_a_comparison_needs_an_estimator(mistake):
    with pytest.raises(cf.InputError, match="needs an estimator of compfed"):
        cf.compare_local_federated(mistake, InProcess(cf.data.from_arrays([np.eye(3)], [np.ones(3)])))


@pytest.mark.parametrize(("rows", "share"), [(1, 0.3), (2, 0.01), (2, 0.99), (7, 0.5), (40, 0.25)])
def test_every_site_keeps_and_holds_out(rows, share):
    site = InProcess(cf.data.from_arrays([np.ones((rows, 1))], [np.arange(rows) % 2])).sites[0]
    kept, out = (Holdout(share, 0, by_class=True, held_out=h).mask(site.rows) for h in (False, True))
    assert (kept != out).all()
    assert kept.any()
    assert out.any() == (rows > 1)
    if rows == 40:  # class by class
        assert [out[site.rows.labels == c].sum() for c in (0, 1)] == [5, 5]
