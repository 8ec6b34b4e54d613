"""The wall: sites in other processes, reached over pipes. The model agrees to the last bit; no row is at the server."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from federation.pipes import Piped
from federation.wired import replies

import compfed as cf
from compfed._utils.records import nonnegative, record
from compfed.federation import (
    QUERIES,
    Describe,
    DisclosurePolicy,
    Evaluate,
    InProcess,
    Moments,
    Query,
    Refusal,
    Rows,
    Site,
    Tabulate,
    ask,
    run_program,
)
from compfed.federation.queries.lipschitz import BINS, DIGITS
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.spec import FederatedProblem, ObjectiveSpec, RunSpec

ROWS, WIDTH = (24, 18), 5
MARK = 7.25e7  # in some rows of each site, and in no sum of theirs


def make_site(index: int, kind: str = "numbers", policy: DisclosurePolicy | None = None) -> Site:
    """The rows of a site, made where they live."""
    rng = np.random.default_rng([index, 5])
    A = rng.standard_normal((ROWS[index], WIDTH)) * [1.0, 0.1, 10.0, 1.0, 3.0] + index
    z = A @ [1.0, 3.0, 0.0, -0.7, 0.0] + rng.standard_normal(len(A)) + index
    labels = {"numbers": z, "words": np.where(z > 1, "ill", "well"), "counts": np.rint(np.exp(0.2 * z).clip(0, 9))}
    return Site(Rows(A, labels[kind], name=("north", "south")[index], index=index), policy=policy)


ESTIMATORS: dict[str, Any] = {
    "numbers": cf.FederatedLasso(alpha=0.1),
    "words": cf.FederatedLogisticRegression(alpha=0.02),
    "counts": cf.FederatedPoissonRegressor(alpha=0.1, l1_ratio=0.5),
}


def in_this_process(kind: str) -> InProcess:
    return InProcess([make_site(i, kind) for i in range(2)])


@pytest.fixture(scope="module", params=list(ESTIMATORS))
def remote(request):
    with Piped(partial(make_site, kind=request.param), 2) as federation:
        yield request.param, federation


def test_estimators_are_the_same_to_the_last_bit(remote):
    kind, federation = remote
    model = ESTIMATORS[kind].fit_federation(federation)
    coef, intercept, communication = model.coef_, model.intercept_, model.communication_
    here = ESTIMATORS[kind].fit_federation(in_this_process(kind))
    np.testing.assert_array_equal(coef, here.coef_)
    np.testing.assert_array_equal(intercept, here.intercept_)
    assert communication == here.communication_
    assert here.certificate_.holds
    assert model.site_names_.tolist() == ["north", "south"]
    # and those of the compiled rounds, to the accuracy asked for
    sites = [make_site(i, kind) for i in range(2)]
    X, y = np.concatenate([s.rows.features for s in sites]), np.concatenate([s.rows.labels for s in sites])
    fitted = ESTIMATORS[kind].fit(X, y, sites=np.repeat(["north", "south"], ROWS))
    np.testing.assert_allclose(fitted.coef_, coef, rtol=0, atol=1e-9 * np.abs(coef).max())
    assert fitted.communication_ == communication  # what the compiled rounds say they would have cost is what was sent


@pytest.mark.parametrize("remote", ["words"], indirect=True)
def test_cross_validation_over_the_same_federation(remote):
    kind, federation = remote
    there, here = (
        cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=5, tol=1e-6).fit_federation(f)
        for f in (federation, in_this_process(kind))
    )
    np.testing.assert_array_equal(there.coef_path_, here.coef_path_)
    np.testing.assert_array_equal(there.cv_loss_, here.cv_loss_)
    assert there.alpha_ == here.alpha_
    assert (there.n_fits_, there.n_fits_not_converged_) == (12, 0)
    sent, counted = there.communication_, here.communication_
    assert (sent.rounds, sent.bytes_up, sent.models) == (counted.rounds, counted.bytes_up, counted.models)
    assert sent.bytes_down <= counted.bytes_down  # the coordinates of all rows may have been sent in the fit before


def make_paper_site(index: int) -> Site:
    sites = cf.data.synthetic(clients=2, samples=16, features=4, seed=0)
    return Site(Rows(sites.features[index], sites.labels[index], name=str(index), index=index))


@pytest.fixture(scope="module")
def paper():
    sites = cf.data.synthetic(clients=2, samples=16, features=4, seed=0)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    with Piped(make_paper_site, 2) as federation:
        yield problem, federation, InProcess(sites)


@pytest.mark.parametrize(
    "name",
    [
        "DecoupledProx",
        "AcceleratedDecoupledProx",
        "FISTA",
        "FedDR",
        "CompressedDecoupledProx",
        "ProximalNewton",
        "ProximalBFGS",
    ],
)
def test_methods_are_the_same_to_the_last_bit(name, paper):
    """Stateful and stateless, with and without a closing message, dense and compressed."""
    problem, federation, local = paper
    there, here = (cf.solve_federated(problem, name, tol=1e-9, federation=f) for f in (federation, local))
    np.testing.assert_array_equal(there.x, here.x)
    for column in set(there.trace) - {"seconds"}:
        np.testing.assert_array_equal(there.trace[column], here.trace[column])
    assert there.communication == here.communication
    assert here.converged
    np.testing.assert_allclose(here.x, cf.solve_pooled(problem).x, rtol=0, atol=1e-7)


@pytest.mark.thorough
def test_two_exchanges_in_a_round(paper):
    problem, federation, local = paper
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    there, here = (cf.solve_federated(smooth, "Mime", tol=1e-6, federation=f) for f in (federation, local))
    np.testing.assert_array_equal(there.x, here.x)
    assert there.communication == here.communication
    assert there.communication is not None
    # set-up, two messages a round, and both of the round that the certificate came with
    assert there.communication.rounds == 1 + 2 * (there.rounds + 1)


# --- the process of the server holds no row ---


def make_marked_site(index: int) -> Site:
    """Three rows carry a number that no sum, mean or spread of rows comes near."""
    site = make_site(index)
    site.rows.features[:, 4] = 0.0
    site.rows.features[:3, 4] = MARK
    return site


def rows_in_memory() -> list[Any]:
    """Every array or piece of bytes, reachable from anything in this process, that has the number in it."""
    gc.collect()
    pattern = np.float64(MARK).tobytes()
    found = []
    for thing in gc.get_objects():
        for item in gc.get_referents(thing):
            numbers = isinstance(item, np.ndarray) and item.dtype == float and item.size
            if numbers and (np.abs(item) == MARK).any():
                found.append(item)
            if isinstance(item, (bytes, bytearray)) and pattern in item:
                found.append(item)
    return [item for item in found if item is not pattern]


@pytest.mark.thorough
def test_no_row_is_in_the_memory_of_the_server():
    class Watched(Piped):
        found, sent = 0, 0

        def _carry(self, messages):
            carried = super()._carry(messages)
            self.sent += 1
            # set-up and Hessian of the first fit; of the second a message among the rounds
            if self.sent in (1, 2, 3, 20):
                self.found += len(rows_in_memory())
            return carried

    federation = Watched(make_marked_site, 1)
    with federation:
        model = cf.FederatedLasso(alpha=0.1).fit_federation(federation)
        assert model.communication_.by_query["Evaluate"][0] >= 2
        by_rounds = cf.FederatedLasso(alpha=0.1, algorithm="DecoupledProx", max_rounds=200, tol=1e-6)
        by_rounds.fit_federation(federation)
        assert federation.sent > 25
        assert federation.found == 0
    assert np.isfinite(model.coef_).all()
    here = make_marked_site(0)  # the search would have found it
    assert len(rows_in_memory()) > 0
    assert here.rows.width == WIDTH


# --- every message of a fit, by kind and size ---


class Spy(InProcess):
    """Records the queries and the shapes of the fields that a site adds."""

    def __init__(self, sites):
        super().__init__(sites)
        self.record: list[tuple[str, int, dict[str, tuple[int, ...]]]] = []  # kind, message, shapes by field

    def _carry(self, messages):
        carried = super()._carry(messages)
        number = len({m for _, m, _ in self.record})
        for i, asked in messages.items():
            for weighted, given in zip(asked, carried.parts[i], strict=True):
                assert not isinstance(given, Refusal)
                shapes = {name: value.shape for name, value in given.items()}
                self.record.append((type(weighted.query).__name__, number, shapes))
        return carried


def messages_of(spy: Spy) -> list[list[str]]:
    """The kinds of queries in each message."""
    last = spy.record[-1][1]
    return [sorted({kind for kind, number, _ in spy.record if number == k}) for k in range(last + 1)]


def shapes_of(d: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """The shapes of all fields that a site adds: none depends on the number of rows."""
    pairs = {name: (WIDTH,) for name in ("mean", "mean_low", "square", "square_low")}
    classes = {"class_weights": (2,)}
    one = dict.fromkeys(("value", "terms", "infinite", "outside", "conjugate", "no_conjugate"), (1,))
    return {
        "Describe": {**dict.fromkeys(("weight", "rows", "sites", "label_sum"), ()), **classes},
        "Moments": {"factor": (), "factor_low": (), **pairs},
        "Lipschitz": {"factor": (), "outside": (), "L": (), "counts": (BINS,), "power": (DIGITS,)},
        "Evaluate": {"factor": (), **one, "gradient": (1, d), "hessian": (1, d * (d + 1) // 2)},
        "LocalUpdate": {"factor": (), "not_finite": (), "outside": (), "u.0": (d,)},  # one vector up
    }  # fmt: skip


def check_shapes(spy: Spy, d: int) -> None:
    for query, _, shapes in spy.record:
        assert shapes.items() <= shapes_of(d)[query].items(), query


@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_the_queries_of_a_fit_and_the_shapes_of_the_replies(kind):
    """Set-up in two messages, value, gradient and Hessian until they certify the model, the duality gap last."""
    d = WIDTH + 1  # the intercept
    spy = Spy([make_site(i, kind) for i in range(2)])
    model = ESTIMATORS[kind].fit_federation(spy)
    messages = messages_of(spy)
    assert messages[:2] == [["Describe", "Moments"], ["Evaluate", "Lipschitz"]]
    assert set(map(tuple, messages[2:-1])) == {("Evaluate",)}
    assert messages[-1] == ["Evaluate"]
    if kind == "numbers":  # one step solves a quadratic, and one message evaluates the result
        assert len(messages) == 4
    check_shapes(spy, d)
    assert model.n_rounds_ == len(messages) == model.communication_.rounds
    assert model.communication_.by_query["Evaluate"][0] == len(messages) - 1


def test_the_queries_of_a_fit_by_rounds_and_the_shapes_of_the_replies():
    d = WIDTH + 1
    spy = Spy([make_site(i) for i in range(2)])
    model = cf.FederatedLasso(alpha=0.1, algorithm="DecoupledProx").fit_federation(spy)
    messages = messages_of(spy)
    assert messages[:2] == [["Describe", "Moments"], ["Evaluate", "Lipschitz"]]
    assert {name for kinds in messages[2:-1] for name in kinds} == {"LocalUpdate", "Evaluate"}
    assert all("LocalUpdate" in kinds for kinds in messages[2:-1])
    assert messages[-1] == ["Evaluate"]
    check_shapes(spy, d)
    assert model.n_rounds_ == len(messages) == model.communication_.rounds
    assert (
        model.communication_.by_query["LocalUpdate"][0] == sum(kind == "LocalUpdate" for kind, _, _ in spy.record) / 2
    )


# of set-up: a weight and two pairs of vectors up; the scaling (centre, scale), the ridge and the null model down, a bound up
MOMENTS = (1, 0.0, (1 + 2 * WIDTH) * 16.0)
# the factor of the site, a flag, and the bound
LIPSCHITZ = (1, (2 * WIDTH + 1 + WIDTH + 1) * 8.0, 3 * 8.0)
BESIDE = 3  # numbers beside those of an evaluation: the factor and two flags


def test_bytes_are_those_of_the_numbers_sent():
    """Counted by hand: a point down, value, gradient, size of its terms and a triangle up."""
    d = WIDTH + 1
    cost = ESTIMATORS["words"].fit_federation(Spy([make_site(i, "words") for i in range(2)])).communication_
    steps = cost.rounds - 2  # all but the first message and the last
    assert steps > 2
    assert cost.by_query["Moments"] == MOMENTS
    words = np.array(["ill", "well"]).nbytes
    assert cost.by_query["Lipschitz"] == (1, LIPSCHITZ[1] + words, LIPSCHITZ[2])
    # the last asks for a dual value as well: four numbers down; up one, and a flag
    gradients = steps + 1
    asked = steps - 1  # the last trial was expected to end the search
    hessians_down, hessians_up = asked * d * 4, asked * d * (d + 1) / 2 * 8  # coordinates down, upper triangles up
    assert cost.by_query["Evaluate"] == (
        gradients, gradients * d * 8 + 32 + hessians_down, gradients * (d + 2 + BESIDE) * 8 + 16 + hessians_up
    )  # fmt: skip
    for place, total in ((1, cost.bytes_down), (2, cost.bytes_up)):
        assert total == sum(counted[place] for counted in cost.by_query.values())


def test_bytes_of_a_fit_by_rounds_are_those_of_the_numbers_sent():
    """Counted by hand: one vector each way and round, an evaluation every ten rounds."""
    d = WIDTH + 1
    spy = Spy([make_site(i) for i in range(2)])
    cost = cf.FederatedLasso(alpha=0.1, algorithm="DecoupledProx").fit_federation(spy).communication_
    rounds = cost.by_query["LocalUpdate"][0]
    assert cost.by_query["LocalUpdate"][2] == rounds * (d + BESIDE) * 8
    assert cost.by_query["Moments"] == MOMENTS
    # L_i itself, and the digits of its fourth power: the steps use the largest L_i
    assert cost.by_query["Lipschitz"] == (*LIPSCHITZ[:2], LIPSCHITZ[2] + 8.0 * DIGITS)
    evaluations, down, up = cost.by_query["Evaluate"]
    assert (down, up) == (evaluations * d * 8 + 32, evaluations * (d + 2 + BESIDE) * 8 + 16)
    assert cost.bytes_up == sum(up for _, _, up in cost.by_query.values())


# --- refusals ---


def test_a_site_refuses_and_says_why():
    sites = [make_site(0), make_site(1, policy=DisclosurePolicy(queries=("Moments",)))]
    with pytest.raises(cf.InputError, match=r"site 'south' refuses Moments: it does not answer Moments"):
        cf.FederatedLasso().fit_federation(InProcess(sites))
    few = InProcess([make_site(1, policy=DisclosurePolicy(min_rows=20))])
    with pytest.raises(cf.InputError, match=r"site 'south' takes part in no run: it has fewer rows than its min_rows"):
        ask(few, Describe())
    objective = ObjectiveSpec(cf.losses.Squared())
    narrow = InProcess([make_site(1, policy=DisclosurePolicy(max_hessian_share=0.2))])
    assert ask(narrow, Evaluate(objective, np.zeros((1, WIDTH)), np.arange(3)))[0].hessian.shape == (1, 6)
    with pytest.raises(cf.InputError, match=r"4 coordinates are more than 0\.2 of the number of its rows;"):
        ask(narrow, Evaluate(objective, np.zeros((1, WIDTH)), np.arange(4)))


def test_a_query_outside_the_list_is_refused():
    class Rows(Moments):
        """Asks for the rows themselves."""

    class Everything:
        def reply(self, site):
            return site.rows.features

    for asked in (Everything(), Rows()):
        with pytest.raises(cf.InputError, match=f"{type(asked).__name__} is not a query that sites know"):
            ask(in_this_process("numbers"), cast("Query", asked))
        (reply,) = replies(make_site(0), cast("Query", asked))
        assert f"{type(asked).__name__} is not a query it knows" in reply.reason
        assert type(asked) not in QUERIES


@record
class LossOfMyOwn(cf.losses.OneOutput):
    ridge: float = nonnegative(default=0.0)


def test_what_is_not_of_the_library_is_refused_at_the_site(remote):
    """No code travels: a class is named, and a site that does not list it says so."""
    _, federation = remote
    mine: Any = LossOfMyOwn()
    with pytest.raises(
        cf.InputError, match=r"LossOfMyOwn, which is not of compfed. Install it at the site and list it"
    ):
        ask(federation, Evaluate(ObjectiveSpec(mine), np.zeros((1, WIDTH))))
    # the site is still there
    assert ask(federation, Moments())[0].mean[0].shape == (WIDTH,)


def test_sites_of_other_columns_are_named():
    odd = Site(Rows(np.ones((4, 2)), np.ones(4), name="odd", index=1))
    with pytest.raises(cf.InputError, match=r"site 'odd' has 2 columns, site 'north' has 5 columns"):
        cf.FederatedLasso().fit_federation(InProcess([make_site(0), odd]))


def test_a_problem_spec_describes_its_problem():
    problem = cf.Problem(
        cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), cf.data.synthetic(clients=3, samples=9, features=4)
    )
    spec = FederatedProblem.of(problem)
    assert (spec.n, spec.d, spec.dtype) == (problem.n, problem.d, problem.dtype)
    assert spec.describe() == problem.describe()


# --- a site that lost its memory ---


class Forgetful(InProcess):
    """Its second site is replaced by one without memory before message `at`."""

    def __init__(self, sites, at: int):
        super().__init__(sites)
        self.fresh, self.at, self.sent = InProcess(sites).sites[1], at, 0

    def _carry(self, messages):
        self.sent += 1
        if self.sent == self.at:
            self.sites[1] = self.fresh
        return super()._carry(messages)


def test_a_site_without_memory_says_so_where_memory_matters(paper):
    problem, _, _ = paper
    with pytest.raises(
        cf.InputError, match=r"site '1' was asked for round 8 of a run whose client state it does not have"
    ):
        cf.solve_federated(problem, "AcceleratedDecoupledProx", federation=Forgetful(problem.sites, at=10))
    # FISTA remembers nothing at a site, so there is nothing to lose
    forgetful = Forgetful(problem.sites, at=10)
    kept, lost = (
        cf.solve_federated(problem, "FISTA", tol=1e-9, federation=f) for f in (InProcess(problem.sites), forgetful)
    )
    np.testing.assert_array_equal(kept.x, lost.x)
    assert forgetful.sent > 10


def test_a_run_that_begins_again_begins_afresh(paper):
    """The same run twice: the client state of the first does not leak into the second."""
    problem, _, _ = paper
    sites = InProcess(problem.sites)
    spec = FederatedProblem.of(problem)
    method = cf.algorithms.DecoupledProx(eta=0.5, tau=3, upload="gradient-sum")
    run_spec = RunSpec(7, method, problem.regulariser, spec.objective, np.zeros(problem.d), 0, None, 20)
    ends = []
    for _ in range(2):
        loop = ServerLoop(run_spec, spec)
        for _ in range(5):
            run_program(sites, loop.round())
        ends.append(loop.model())
    np.testing.assert_array_equal(*ends)


def test_a_killed_server_goes_on_from_its_checkpoint(paper):
    problem, _, _ = paper
    sites, spec = InProcess(problem.sites), FederatedProblem.of(problem)
    method = cf.algorithms.DecoupledProx(eta=0.5, tau=3, upload="gradient-sum")
    run_spec = RunSpec(8, method, problem.regulariser, spec.objective, np.zeros(problem.d), 0, None, 20)
    saved = []
    loop = ServerLoop(run_spec, spec, checkpoint=saved.append)
    for _ in range(6):
        run_program(sites, loop.round())
    whole = loop.model()
    assert [state.rounds for state in saved] == [1, 2, 3, 4, 5, 6]
    # killed after round 3: the sites are where they were, the server is a new one
    sites = InProcess(problem.sites)
    first, second = ServerLoop(run_spec, spec), ServerLoop(run_spec, spec)
    for _ in range(3):
        run_program(sites, first.round())
    second.restore(saved[2])
    for _ in range(3):
        run_program(sites, second.round())
    np.testing.assert_array_equal(second.model(), whole)


def test_numbers_are_not_listed_as_classes():
    """A number of its own for every row is not a class: the site does not list them."""
    with pytest.raises(cf.InputError, match=r"the labels of site 'north' are numbers \(continuous\), not classes"):
        cf.FederatedLogisticRegression().fit_federation(in_this_process("numbers"))


A, Y = np.arange(12.0).reshape(4, 3) % 5, np.arange(4.0)
WRONG = {
    "nan": (lambda: Site(Rows(np.where(A > 3, np.nan, A), Y, name="a", index=0)), "site 'a' has features that are NaN"),
    "rows": (lambda: Site(Rows(A, Y[:3], name="a", index=0)), "do not match"),
    "weights": (lambda: Site(Rows(A, Y, name="a", index=0, sample_weight=np.zeros(4))), "not all zero"),
    "no site": (lambda: InProcess([]), "at least one site"),
    "rows that are fetched": (
        lambda: InProcess(cf.data.lazy_sites(lambda i: (A, Y), [len(A)])),  # pyright: ignore[reportArgumentType]
        r"sites must come from compfed\.data .*list of Site; got Lazy",
    ),
    "names": (lambda: InProcess([make_site(0), make_site(0)]), "the same name: north, north"),
    "words": (lambda: cf.FederatedLasso().fit_federation(in_this_process("words")), "are words, not numbers"),
    "outcomes": (
        lambda: cf.FederatedLasso().fit_federation(InProcess([Site(Rows(A, np.c_[Y, Y], name="a", index=0))])),
        "2 outcomes per row; this model takes 1",
    ),
    "no federation": (lambda: cf.federation.ask("sites", Describe()), "got str"),  # pyright: ignore  # the mistake
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_at_the_boundary_are_named(mistake):
    make, message = WRONG[mistake]
    with pytest.raises(cf.InputError, match=message):
        make()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
def test_small_integers_do_not_wrap_at_a_site(dtype):
    """A site that is built by hand has the sums and the loss of the same rows in double precision."""
    rng = np.random.default_rng(3)
    A, y = rng.integers(0, 2 if dtype is bool else 100, (12, 3)).astype(dtype), rng.integers(0, 2, 12).astype(dtype)
    objective, x = ObjectiveSpec(cf.losses.Logistic()), np.array([[0.01, -0.02, 0.03]])
    queries = (Tabulate(("0", "1", "2"), (np.empty(0),) * 3), Evaluate(objective, x))
    small = replies(Site(Rows(A, y, name="a", index=0)), *queries)
    double = replies(Site(Rows(A.astype(float), y.astype(float), name="a", index=0)), *queries)
    np.testing.assert_allclose(small[0].mean, A.astype(float).mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(small[0].square, (A.astype(float) ** 2).mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(small[1].value, double[1].value)
    np.testing.assert_array_equal(small[1].gradient, double[1].gradient)
