"""The wall itself: five members, an adder that may be a log, layouts worked out once, and hashes of queries."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from federation.wired import Wired, sites_of, table
from sklearn.exceptions import ConvergenceWarning

import compfed as cf
from compfed.errors import InputError
from compfed.federation import (
    QUERIES,
    Communication,
    Evaluate,
    Federation,
    InProcess,
    Lipschitz,
    LocalUpdate,
    Moments,
    Query,
    Request,
    ask,
    exact_sum,
)
from compfed.federation.adding import Exactly
from compfed.federation.codec import digest, from_bytes, pack, to_bytes, unpack
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.query import Weighted
from compfed.federation.server.exchange import Carried, MessageExchange
from compfed.federation.server.program import MEMBERS, OneSite, Summed, is_federation
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.simulation.local_federation import Simulated

if TYPE_CHECKING:
    from compfed.network.server import RemoteFederation

N = 3


def sites(kind: str = "numbers") -> list[Any]:
    return sites_of(table(kind, sites=N))


# --- a recorded run ---


class Log(Exactly):
    """An adder that is a log: it keeps the total of every message, or reads those that were kept."""

    def __init__(self, kept: Sequence[np.ndarray] = ()):
        super().__init__()
        self.totals, self.kept = list[np.ndarray](), list(kept)

    def sums(
        self, asked: Sequence[Weighted], sites: Sequence[Sequence[int]], parts: Mapping[int, Any], agreement: Agreement
    ) -> list[Any]:
        self.totals.append(reduce(exact_sum.add, parts.values()) if parts else self.kept.pop(0))
        return super().sums(asked, sites, {0: self.totals[-1]}, agreement)


class Recorded:
    """A federation without sites: who they were, and the totals of a run."""

    schema, problems = None, ()

    def __init__(self, names: tuple[str, ...], enrolments: tuple[Enrolment, ...], totals: Sequence[np.ndarray]):
        self.names, self.enrolments, self.asked = names, enrolments, list[tuple[Weighted, ...]]()
        self.log = Log(totals)
        self.messages = MessageExchange(Agreement(names, enrolments), self.log, self._carry)

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        self.asked.append(messages[0])
        return Carried({})

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        return self.messages(requests)


class Recording(InProcess):
    """Sites in this process whose run is recorded."""

    def __init__(self, kind: str):
        super().__init__(sites(kind), exact=True)
        self.asked, self.log = list[tuple[Weighted, ...]](), Log()
        self.messages.adder = self.log

    def _carry(self, messages: Mapping[int, tuple[Weighted, ...]]) -> Carried:
        self.asked.append(messages[0])
        return super()._carry(messages)

    def replay(self, totals: Sequence[np.ndarray] | None = None) -> Recorded:
        """The run from bytes: nothing of a site is left in it."""
        kept = self.names, self.enrolments, tuple(self.log.totals if totals is None else totals)
        return Recorded(*unpack(from_bytes(to_bytes(pack(kept)))))


RUNS: dict[str, tuple[str, Any]] = {
    "lasso": ("numbers", lambda: cf.FederatedLasso(alpha=0.1)),
    "lasso, chosen by cross-validation": ("numbers", lambda: cf.FederatedLassoCV(cv=3, n_alphas=3)),
    "logistic regression": ("words", lambda: cf.FederatedLogisticRegression(alpha=0.02)),
    "rounds": ("numbers", lambda: cf.FederatedLasso(0.3, algorithm="DecoupledProx", max_rounds=12)),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", RUNS)
def test_a_recorded_run_is_a_federation_whose_adder_is_a_log(name):
    """The same program, driven by recorded totals, asks the same queries and ends with the same bits, and costs the same."""
    kind, make = RUNS[name]
    recording = Recording(kind)
    model = make().fit_federation(recording)
    replay = recording.replay()
    again = make().fit_federation(replay)
    plain = make().fit_federation(InProcess(sites(kind), exact=True))
    for fitted in (again, plain):
        assert fitted.coef_.tobytes() == model.coef_.tobytes()
        assert np.asarray(fitted.intercept_).tobytes() == np.asarray(model.intercept_).tobytes()
        assert fitted.communication_ == model.communication_
    assert [to_bytes(pack(asked)) for asked in replay.asked] == [to_bytes(pack(asked)) for asked in recording.asked]
    assert len(recording.asked) == model.communication_.rounds == len(recording.log.totals) > 2
    assert replay.log.kept == []


def test_what_a_program_asks_next_follows_from_the_log():
    """The oracle of the test above: with one sum changed a little, the next message is another one."""
    recording = Recording("numbers")
    cf.FederatedLasso(alpha=0.1).fit_federation(recording)
    totals, asked = recording.log.totals, [to_bytes(pack(queries)) for queries in recording.asked]
    (moments,) = (k for k, queries in enumerate(recording.asked) if any(isinstance(w.query, Moments) for w in queries))
    changed = [total.copy() for total in totals]
    changed[moments][-8, 1] += np.uint64(2**30)  # the sum of the first of four columns, before four sums of squares
    replay = recording.replay(changed)
    with contextlib.suppress(InputError):  # the rest of the log is of other messages
        cf.FederatedLasso(alpha=0.1).fit_federation(replay)
    again = [to_bytes(pack(queries)) for queries in replay.asked]
    assert again[: moments + 1] == asked[: moments + 1]
    assert again[moments + 1] != asked[moments + 1]
    changed[moments][0, 0] += np.uint64(1)  # as if a fourth site had replied
    with pytest.raises(InputError, match="its check word is not 3"):
        cf.FederatedLasso(alpha=0.1).fit_federation(recording.replay(changed))
    with pytest.raises(IndexError):  # the log ends too early
        cf.FederatedLasso(alpha=0.1).fit_federation(recording.replay(totals[:-1]))


# --- five members ---


@dataclass(eq=False)
class Five:
    """A federation that has the five members of the protocol, and nothing else."""

    names: tuple[str, ...]
    schema: cf.Schema | None
    enrolments: tuple[Enrolment, ...]
    problems: Sequence[Mapping[str, Any]]
    exchange: Any

    @classmethod
    def of(cls, federation: Federation) -> Five:
        return cls(*(getattr(federation, name) for name in MEMBERS))


def remote_is_a_federation(remote: RemoteFederation) -> Federation:
    """For the type checker."""
    return remote


def test_the_protocol_has_five_members_and_each_federation_implements_them():
    declared = {name for name in vars(Federation) if not name.startswith("_")}
    assert declared == set(MEMBERS) == {"names", "schema", "enrolments", "problems", "exchange"}
    whole = InProcess(sites())
    federations: list[Federation] = [whole, Simulated(sites()), OneSite(whole, 1), Recording("numbers").replay()]
    for federation in federations:
        assert is_federation(federation)
        assert len(federation.names) == len(federation.enrolments) == (1 if isinstance(federation, OneSite) else N)
        assert federation.schema is None
        assert list(federation.problems) == []
    for name in MEMBERS:
        assert not is_federation(type("Less", (), {other: None for other in MEMBERS if other != name})())


def test_sites_over_a_network_are_a_federation():
    server = pytest.importorskip("compfed.network.server", reason="a network runs on Flower")
    declared = vars(server.RemoteFederation)
    assert set(MEMBERS) <= set(declared)
    assert all(isinstance(declared[name], property) for name in MEMBERS if name != "exchange")


def test_every_federation_makes_the_same_sums_and_says_what_they_cost():
    """Against the sums of the rows by NumPy; one site alone has those of its own rows."""
    rows, x = table("numbers", sites=N), np.array([[0.5, 0.0, -0.2, 0.1]])
    query = Evaluate(ObjectiveSpec(cf.losses.Squared()), x)
    for federation, mine in (
        (InProcess(sites()), rows), (InProcess(sites(), exact=True), rows), (Simulated(sites()), rows),
        (OneSite(InProcess(sites()), 1), rows[1:2]),
    ):  # fmt: skip
        A, y = np.concatenate([a for a, _ in mine]), np.concatenate([b for _, b in mine])
        (sums,), cost = federation.exchange([Request((query,), weighting="rows")])
        np.testing.assert_allclose(sums[0].gradient[0], A.T @ (A @ x[0] - y) / len(y), rtol=1e-12)
        assert cost.rounds == sums.cost.rounds == 1
        assert (cost.bytes_down, cost.bytes_up) == (sums.cost.bytes_down, sums.cost.bytes_up)
        # down the ridge of the loss and the model; up a factor, two flags, the value, four of the gradient and its size
        share = len(mine) / N
        assert (cost.bytes_down, cost.bytes_up) == (share * (32 + 8), share * 9 * (16 if _exact(federation) else 8))


def _exact(federation: Federation) -> bool:
    return isinstance(federation, InProcess) and federation.exact


def fitted(federation: Federation) -> list[Any]:
    """What estimators, solvers and tables read of a federation."""
    lasso = cf.FederatedLasso(alpha=0.1).fit_federation(federation)
    chosen = cf.FederatedLassoCV(cv=3, n_alphas=3).fit_federation(federation)
    with pytest.warns(ConvergenceWarning):
        rounds = cf.FederatedLasso(0.3, algorithm="FedDR", max_rounds=4).fit_federation(federation)
    report: Any = lasso.evaluate(federation)
    return [lasso.coef_, chosen.coef_, chosen.alpha_, rounds.coef_, str(report), str(cf.describe(federation))]


def test_the_five_members_are_all_that_anybody_asks_of_a_federation():
    for exact in (False, True):
        found = fitted(Five.of(InProcess(sites(), exact=exact)))
        for one, other in zip(found, fitted(InProcess(sites(), exact=exact)), strict=True):
            np.testing.assert_array_equal(one, other)


# --- layouts ---


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Query, Any, Agreement]]:
    """The calls of the layouts of all queries."""
    calls = list[tuple[Query, Any, Agreement]]()

    def count(kind: type[Query]) -> None:
        plain = kind.layout

        def layout(self: Query, agreement: Agreement, weighting: Any) -> Any:
            calls.append((self, weighting, agreement))
            return plain(self, agreement, weighting)

        monkeypatch.setattr(kind, "layout", layout)

    for kind in QUERIES:
        count(kind)
    return calls


def distinct(calls: Sequence[tuple[Query, Any, Agreement]]) -> int:
    return len({(id(query), weighting, id(agreement)) for query, weighting, agreement in calls})


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("algorithm", ["auto", "DecoupledProx"])
def test_a_layout_is_worked_out_once_for_all_sites_the_server_and_the_cost(algorithm, exact, monkeypatch):
    calls = counted(monkeypatch)
    federation = InProcess(sites(), exact=exact)
    model = cf.FederatedLasso(0.1, algorithm=algorithm, tol=1e-3).fit_federation(federation)
    assert {id(agreement) for *_, agreement in calls} == {id(federation.messages.agreement)}
    assert len(calls) == distinct(calls) == sum(models for models, *_ in model.communication_.by_query.values())


def test_compiled_rounds_price_a_message_once(monkeypatch):
    """Four messages a round would cost as much, and their layouts are worked out for one."""
    calls = counted(monkeypatch)
    model = cf.FederatedLasso(0.1, algorithm="DecoupledProx", tol=1e-3).fit_federation(Simulated(sites()))
    assert len(calls) == distinct(calls) < model.communication_.rounds / 2


def test_over_bytes_every_site_and_the_server_work_a_layout_out_once(monkeypatch):
    calls = counted(monkeypatch)
    federation = Wired(sites())
    model = cf.FederatedLasso(0.1).fit_federation(federation)
    assert len(calls) == distinct(calls) == (N + 1) * sum(m for m, *_ in model.communication_.by_query.values())


def test_a_message_that_is_repeated_with_larger_fields_keeps_its_layout(monkeypatch):
    """exp(300) is too large for a field at first: `MessageLayout` is made anew, and the fields are the same."""
    calls = counted(monkeypatch)
    rows = [(np.full((5, 1), a), np.arange(5.0)) for a in (1.0, 0.1, 0.2)]
    federation = InProcess(sites_of(rows), exact=True)
    query = Evaluate(ObjectiveSpec(cf.losses.Poisson()), np.array([[300.0]]))
    _, cost = federation.exchange([Request((query,), weighting="rows")])
    assert cost.rounds > 1
    assert len(calls) == 1


def queries_of_a_round(federation: Federation, r: int) -> list[weakref.ref[Query]]:
    """Ask what a run by rounds asks; the queries live no longer than that."""
    objective = ObjectiveSpec(cf.losses.Squared())
    run = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), objective, np.zeros(4), 0, None, 40)
    x = np.full(4, 0.1 * r)
    queries = (
        LocalUpdate(run, r, 0, {"y": x}),
        Evaluate(objective, x[None], np.arange(2)),
        Lipschitz(objective),
        Moments(),
    )
    for query in queries:
        federation.exchange([Request((query,), weighting="rows")])
    return [weakref.ref(query) for query in queries]


def test_a_layout_is_forgotten_with_its_query():
    """A run has thousands of messages, each with its model."""
    federation = InProcess(sites(), exact=True)
    made = [ref for r in range(3) for ref in queries_of_a_round(federation, r)]
    ask(federation, Moments())  # the adder remembers the last message
    gc.collect()
    assert [ref() for ref in made] == [None] * 12


# --- hashes ---


def test_the_hash_of_a_query_is_over_the_query_whatever_the_bytes_of_its_message_are():
    """Records that travelled before are left out of a message: its bytes change, and what is asked does not."""
    envelope = pytest.importorskip("compfed.network.envelope", reason="a network needs cryptography")
    scaling = FeatureScaling(np.zeros(4), np.ones(4), intercept=True)
    objective = ObjectiveSpec(cf.losses.Squared(), scaling)
    run = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.L1(0.1), objective, np.zeros(5), 0, None, 40)
    asked = (
        Weighted(LocalUpdate(run, 1, 0, {"y": np.arange(5.0)}), "rows"),
        Weighted(Evaluate(objective, np.ones((1, 5))), "rows"),
    )
    name = envelope.query_hash(asked)
    read, sizes = dict[str, Any](), []
    for known in ((), {digest(objective)}, {digest(run), digest(objective)}):  # the site has what the first message had
        body = to_bytes(pack(envelope.Body(asked)._asdict(), known))
        found = envelope.read_body(body, (), read)
        assert envelope.query_hash(found.queries) == name
        sizes.append(len(body))
    assert sizes[0] > sizes[1] > sizes[2]
    first, second = asked
    update: Any = first.query
    others = [
        (second, first),
        (first,),
        (replace(first, weighting="sites"), second),
        (replace(first, lift=32), second),
        (replace(first, factor=2.0), second),
        (replace(first, query=replace(update, r=2)), second),
        (replace(first, query=replace(update, d={"y": np.nextafter(np.arange(5.0), 9.0)})), second),
        (replace(first, query=replace(update, run_spec=replace(run, seed=1))), second),
    ]
    assert len({name, *map(envelope.query_hash, others)}) == 1 + len(others)


def test_a_layout_that_was_worked_out_is_no_part_of_a_query():
    weighted, agreement = Weighted(Moments(), "rows"), InProcess(sites()).messages.agreement
    before = to_bytes(pack(weighted))
    weighted.layout(agreement)
    assert to_bytes(pack(weighted)) == before
    assert [field.name for field in fields(weighted)] == ["query", "weighting", "lift", "factor"]


# --- a query of another kind ---


@dataclass(frozen=True, eq=False)
class Everything(Moments):
    """As `Moments`, and not in the list."""


def test_a_query_that_is_not_in_the_list_does_not_leave():
    sent = list[Any]()
    agreement = InProcess(sites()).messages.agreement
    exchange = MessageExchange(agreement, Exactly(), lambda messages: sent.append(messages) or Carried({}))
    with pytest.raises(InputError, match=r"Everything is not a query that sites know; they know .*Describe, "):
        exchange([Request((Everything(),))])
    assert sent == []
