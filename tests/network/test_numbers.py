"""Numbers released: the ledger's count is the numbers on the wire, and what a run may release is decided before it."""

from __future__ import annotations

import ast
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import approving, furnish, logged, remote

import compfed as cf
from compfed.errors import RunWarning
from compfed.estimators.path_and_cv import path_over
from compfed.estimators.programs.path_and_cv import AlphaGrid
from compfed.federation import (
    QUERIES,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Inference,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Score,
    Tabulate,
)
from compfed.federation.numbers import About, Table, largest_share, released
from compfed.federation.queries import AtRisk, Concordance
from compfed.federation.query import Weighted
from compfed.federation.sentence import Stated
from compfed.federation.server.program import Request
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.losses import Squared
from compfed.network import approvals, server
from compfed.network.envelope import query_hash
from compfed.network.site import RunFiles
from compfed.network.site_log import ledger_text
from compfed.network.site_settings import SiteSettings, disclosure_text
from compfed.report.words import traffic
from compfed.splits import Fold

NAMES, SIZES, WIDTH = ("north", "east", "south", "west"), (90, 60, 70, 64), 5
SEEN = {"north": 214, "east": 194, "south": 194, "west": 194}  # all rows but those of the largest other site


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(39)
    A = [rng.standard_normal((rows, WIDTH)) for rows in SIZES]
    y = [(a[:, 0] - a[:, 1] + rng.logistic(size=len(a)) > 0).astype(float) for a in A]
    return cf.data.from_arrays(A, y, list(NAMES))


class Recorder:
    """Counts the words of the replies of one site from the bytes: a head in JSON, then arrays. Shares no code with what it checks."""

    def __init__(self, name: str):
        self.name, self.seen = name, dict[tuple[str, int], int]()

    def __call__(self, name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        found = reply()
        if name == self.name:
            self._read(found)
        return found

    def _read(self, data: bytes) -> None:
        line = data.index(b"\n") + 1
        body = data[line + 2 + int.from_bytes(data[line : line + 2], "little") :]
        head = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
        fields = head["head"]["dict"]
        if fields["kind"] == "words":
            shape = head["arrays"][fields["words"]["array"]]["shape"]
            self.seen[fields["run"], fields["number"]] = (
                shape[0] - 2
            )  # a check word, and a count of numbers out of range

    @property
    def numbers(self) -> int:
        return sum(self.seen.values())


def connected(paths: list[Path], recorder: Recorder, folder: Path | None = None) -> Any:
    federation, link = remote(paths, folder)
    link.meddle = recorder
    return federation


def shares(path: Path) -> tuple[int, float]:
    ledger = SiteSettings.read(path).ledger()
    return ledger.numbers, ledger.share()


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")
@pytest.mark.parametrize("masked", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_the_ledger_counts_the_numbers_on_the_wire_over_three_runs(masked, tmp_path, monkeypatch):
    """A fit by folds with its evaluation; a fit during which a site and the operator are killed; and a run that is refused."""
    paths = furnish(tmp_path / "sites", sites(), "", "", secure_sum=masked)
    recorder = Recorder("east")
    federation = connected(paths, recorder)
    model = cf.FederatedLogisticRegressionCV(n_alphas=4, cv=5).fit_federation(federation)
    model.evaluate(federation)
    assert shares(paths[1])[0] == recorder.numbers == federation.numbers > 1000

    class Killed(BaseException):
        pass

    write, times = RunFiles.write, iter([True])

    def killed(files: RunFiles, number: int, reply: Any) -> None:
        """The site dies once between the line in its ledger and the file of its reply."""
        if number == 3 and "east" in str(files.folder) and next(times, False):
            raise Killed
        write(files, number, reply)

    monkeypatch.setattr(RunFiles, "write", killed)
    federation = connected(paths, recorder, tmp_path / "run")
    with pytest.raises(Killed):
        cf.FederatedLasso(alpha=0.01).fit_federation(federation)
    assert shares(paths[1])[0] > recorder.numbers  # counted before it leaves
    resumed = connected(paths, recorder, tmp_path / "run")
    cf.FederatedLasso(alpha=0.01).fit_federation(resumed)
    assert resumed.log.run == federation.log.run
    assert shares(paths[1])[0] == recorder.numbers
    federation = connected(paths, recorder)
    federation.exchange([Request((Moments(),), weighting="rows")])
    scaling, fold = FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), True), Fold(0, 50, 0, np.zeros(4, int), False, True)
    far = ObjectiveSpec(Squared(), scaling, subset=fold)
    before = recorder.numbers
    with pytest.raises(cf.InputError, match="it refuses a query of run"):
        federation.exchange([Request((Evaluate(far, np.zeros((1, WIDTH + 1))),), weighting="rows")])
    assert "folds" in logged(paths[0])
    assert recorder.numbers == before == shares(paths[1])[0]
    rows = SEEN["east"] if masked else 60
    assert shares(paths[1])[1] * (1 + 1e-9) >= recorder.numbers / (rows * WIDTH) > 1


def test_every_query_of_the_closed_list_is_counted_with_all_its_words():
    """A query that is asked is counted: its words are those of its layout, and about the rows that it names."""
    federation = cf.federation.InProcess(sites(), policy=cf.federation.DisclosurePolicy(), exact=True)
    cf.FederatedLasso(alpha=0.01).fit_federation(federation)
    site, agreement = federation.sites[0], federation.messages.agreement
    scaling = FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), True)
    objective = ObjectiveSpec(Squared(), scaling)
    logistic = replace(objective, loss=cf.losses.Logistic(), classes=np.array([0.0, 1.0]))
    x, all_6, none = np.zeros((3, WIDTH + 1)), np.arange(WIDTH + 1), np.empty(0)
    fold, other = (Fold(k, 5, 0, np.zeros(4, int), False, True) for k in (1, 3))
    run = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), objective, x[0], 0, None, 90)
    cox, grid = ObjectiveSpec(cf.losses.CoxPartialLikelihood()), np.arange(1.0, 9.0)
    by_hand: list[tuple[Any, int]] = [
        (Describe(), 4),
        (Moments(), 1 + 5 + 5),
        (Lipschitz(objective, upper_bound=True), 3),
        (Evaluate(objective, x, all_6), 1 + 3 * (1 + 6 + 1 + 2) + 3 * 21),
        (HeldOut(objective, fold, x), 2 + 3 * 3),
        (Score(logistic, x[0], np.arange(7.0)[None], none, np.ones((2, 2))), 6 + 2 * (6 + 1) + 2 + 2 * 4 * 7),
        (LeaveOneOut(objective, x, all_6, np.zeros((3, 21))), 1 + 3 * 5),
        (LocalUpdate(run, 0, 0, {"y": x[0]}), 3 + 6),
        (FinishRound(run, 0, {"y": x[0]}), 1),
        (Tabulate(("a0", "a1"), (np.arange(3.0), none)), 1 + 2 * 2 + 2 + 2 * 3 + 3 * 2),
        (AtRisk(cox, np.zeros(5), grid, (2,), pairs=True), 1 + 2 * 2 * 8 + 3),
        (AtRisk(cox, np.zeros(5), grid, second=True), 1 + 2 * 8 + 2 * 8 + 2 * 8 * 5 + 2 * 8 * 15 + 1 + 5),
        (Concordance(logistic, x[:1], (None,), 1, none, none), 2 + 3),
        (Concordance(logistic, x[:2], (fold, other), 1, np.arange(9.0), none), 2 + 9),
        (Concordance(logistic, x[:1], (None,), 1, np.arange(9.0), np.arange(10.0)), 2 + 3),
        (Inference(objective, x[0], none.astype(np.int32)), 6),
        (Inference(objective, x[0], all_6.astype(np.int32)), 6 + 21),
    ]  # fmt: skip
    assert {type(query) for query, _ in by_hand} == set(QUERIES)
    groups, whole = site.rows.buckets, (1 << site.rows.buckets) - 1
    for query, words in by_hand:
        ((about, numbers),) = released([Weighted(query, "rows")], site.rows, agreement).items()
        assert numbers == words, query
        named = [
            f.number for f in (*getattr(query, "subsets_of_x", ()), getattr(query, "subset", None)) if f is not None
        ]
        rows = [k for k in range(groups) if about.rows >> k & 1]
        # every fifth group, from that of the fold on; of a query about two folds both
        assert rows == ([k for k in range(groups) if k % 5 in named] if named else list(range(groups))), query
        assert about.columns == (2 if isinstance(query, Tabulate) else WIDTH)
    for query in QUERIES:  # nothing but a layout decides: no query can say that its numbers do not count
        assert "told_of" not in vars(query) or query.__name__ in ("Tabulate", "Concordance", "AtRisk")
        assert "layout" in vars(query)
    narrow = ObjectiveSpec(Squared(), columns=np.array([2]))
    (about,) = released([Weighted(Evaluate(narrow, np.zeros((1, 1))), "rows")], site.rows, agreement)
    assert about == About(whole, 1)
    alone, of_labels = (
        np.empty(0, int),
        [Weighted(Evaluate(ObjectiveSpec(Squared(), columns=np.empty(0, int)), np.zeros((1, 0))), "rows")],
    )
    assert list(released(of_labels, site.rows, agreement)) == [
        About(whole, 1)
    ]  # nor diluted by columns that it says nothing about
    curves = [
        Weighted(AtRisk(ObjectiveSpec(cox.loss, columns=alone), np.empty(0), grid, groups), "rows")
        for groups in ((), (2,))
    ]
    assert list(released(curves, site.rows, agreement)) == [
        About(whole, 2),
        About(whole, 3),
    ]  # time, event; and the group


def test_the_share_of_a_set_counts_sums_within_it_and_differences_of_two():
    table = Table(100, 10, 5)
    whole, fold, rest = 0b11111, 0b00001, 0b11110
    assert largest_share([(table, {About(whole, 10): 250})]) == pytest.approx(0.25)
    # of all rows, and of the rows to train with: those of the fold follow for the smaller number of the two
    both = {About(whole, 10): 100, About(rest, 10): 150}
    assert largest_share([(table, both)]) == pytest.approx(max(250 / 1000, 100 / 200, 150 / 800))
    # over two runs, a part in each
    runs = [(table, {About(whole, 10): 100}), (table, {About(rest, 10): 150})]
    assert largest_share(runs) == pytest.approx(0.5)
    assert largest_share([(table, {About(fold, 10): 60})]) == pytest.approx(60 / 200)
    # about one column of ten
    assert largest_share([(table, {About(whole, 1): 50})]) == pytest.approx(0.5)
    # another dealing: its groups are others, and the table is the same
    other = Table(50, 10, 7), {About(0b1, 10): 7}
    assert largest_share([*runs, other]) == pytest.approx(0.5)
    assert largest_share([(table, {About(whole, 10): 490}), other]) == pytest.approx(0.49 + 7 / 500)


@pytest.mark.parametrize("groups", [2, 5, 10])
def test_the_largest_share_is_that_of_the_definition_and_a_hostile_ledger_does_not_hold_a_site_up(groups):
    rng = np.random.default_rng(groups)
    whole = (1 << groups) - 1
    numbers = {
        int(s): int(n) for s, n in zip(rng.choice(whole, min(whole, 12), replace=False) + 1, range(5, 17), strict=False)
    }
    runs = [(Table(100, 10, groups), {About(s, 10): n for s, n in numbers.items()})]

    def about(target: int) -> float:
        """Word by word as the module says, one pair of sets after the other."""
        direct = sum(n for s, n in numbers.items() if s & target == s)
        apart = 0
        for a in numbers:
            for b in numbers:
                if a != b and a | b == a and (a ^ b) | target == target and a | target != target:
                    apart += min(numbers[a], numbers[b])
        return (direct + apart) / (1000 * target.bit_count() / groups)

    targets = {*numbers, *(whole ^ s for s in numbers), *(a ^ b for a in numbers for b in numbers if a | b == a)} - {0}
    assert largest_share(runs) == pytest.approx(max(sum(numbers.values()) / 1000, *map(about, targets - {whole})))
    if groups == 10:  # sums over all sets of groups that there are
        began = time.process_time()
        largest_share([(Table(360, 15, 10), {About(k, 15): 1 for k in range(1, 1 << 10)})])
        assert time.process_time() - began < 5


def test_the_share_of_honest_folds_is_that_of_the_span_of_the_sums():
    """The equations about a fold, from sums over all rows and over the rows to train with, are the rank of what cancels outside."""
    k, numbers = 5, 30
    sums = np.vstack([np.ones(k), 1 - np.eye(k)])  # rows: what was summed; columns: folds
    rank = np.linalg.matrix_rank
    of_fold = rank(sums) - rank(sums[:, 1:])  # supported on the first fold
    whole = (1 << k) - 1
    found = largest_share(
        [(Table(100, 10, k), {About(whole, 10): numbers} | {About(whole & ~(1 << j), 10): numbers for j in range(k)})]
    )
    assert found >= of_fold * numbers / (100 / k * 10)
    assert found >= 6 * numbers / 1000


def test_a_run_beyond_the_line_needs_a_person_at_every_site_and_nothing_goes_beyond_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PENDING_PAUSE", 0.0)
    paths = furnish(
        tmp_path / "sites", sites(), "", "share_by_rule = 0.2\nmax_share = 1.5", secure_sum=True, counted=True
    )
    recorder = Recorder("east")
    model = cf.FederatedLogisticRegression(alpha=0.02)

    reasons, before = dict[str, str](), list[int]()

    def approving(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        found = recorder(name, data, reply)
        approvals = SiteSettings.read(paths[NAMES.index(name)]).approvals()
        for asked in approvals.all():
            if asked.state == "waiting":
                reasons[name] = asked.reason
                before.append(recorder.numbers)
                approvals.approve(asked)
        return found

    def run() -> Any:
        federation, link = remote(paths)
        link.meddle = approving
        return federation, model.fit_federation(federation)

    federation, _ = run()
    assert sorted(reasons) == sorted(NAMES)
    assert all("beyond 20% (share_by_rule) a person there has to approve the run" in why for why in reasons.values())
    assert before == [0, 0, 0, 0]  # decided before anything left
    assert 0 < recorder.numbers == federation.numbers
    assert "approved by a person" not in ledger_text(SiteSettings.read(paths[1]))
    entry = SiteSettings.read(paths[1]).ledger().runs[federation.log.run]
    assert entry.by == "person"
    stated = json.loads(entry.sentence)
    assert recorder.numbers <= stated["numbers"]
    assert entry.left == stated["numbers"] - recorder.numbers
    with pytest.raises(cf.InputError, match=r"150% \(max_share\)"):
        all(run() for _ in range(20))
    share = shares(paths[1])[1]
    assert share <= 1.5
    assert recorder.numbers == shares(paths[1])[0]


def test_a_server_that_states_nothing_or_too_little_gets_no_more(tmp_path):
    """The wall is at the site: without a statement the line for rules holds, and a statement binds whoever made it."""
    paths = furnish(tmp_path / "sites", sites(), "", "", secure_sum=True, counted=True)
    recorder = Recorder("east")
    federation = connected(paths, recorder)
    objective = ObjectiveSpec(Squared(), FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), True))
    asked = Request((Evaluate(objective, np.zeros((10, WIDTH + 1))),), weighting="rows")
    with pytest.raises(cf.InputError, match="over 50% of the numbers in its table"):
        all(federation.exchange([asked]) for _ in range(100))
    assert 0.4 * 194 * WIDTH < recorder.numbers <= 0.5 * 194 * WIDTH
    assert recorder.numbers == shares(paths[1])[0]
    fresh = furnish(tmp_path / "fresh", sites(), "", "", secure_sum=True, counted=True)
    federation = connected(fresh, recorder)
    federation.state(Stated("little", numbers=150))
    federation.exchange([asked])
    with pytest.raises(cf.InputError, match="would release more numbers than it stated"):
        federation.exchange([asked])


def test_a_run_asks_what_belongs_to_its_kind_and_a_multiple_of_its_messages(tmp_path, monkeypatch):
    """Either ends it at the site, and what a person or a rule let in is nothing else."""
    paths = furnish(tmp_path / "sites", sites(), "", "", secure_sum=True)
    objective = ObjectiveSpec(Squared(), FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), True))
    gradient, table = Evaluate(objective, np.zeros((1, WIDTH + 1))), Tabulate(("a0",), (np.empty(0),))
    for kind, query, belongs in [
        ("describe", table, True),
        ("describe", gradient, False),
        ("kaplan_meier", gradient, False),
        ("FederatedLasso", gradient, True),
        ("FederatedLasso", table, False),
        ("FederatedLasso", Inference(objective, np.zeros(WIDTH + 1), np.empty(0, np.int32)), False),
    ]:
        federation, _ = remote(paths)
        federation.state(Stated(kind, numbers=500, messages=1))
        if belongs:
            federation.exchange([Request((query,), weighting="rows")])
            continue
        for _ in range(2):
            with pytest.raises(cf.InputError, match="it refuses a query of run"):
                federation.exchange([Request((query,), weighting="rows")])
        assert "has ended this run here" in logged(paths[0]) or f"a run of {kind} does not ask for" in logged(paths[0])
    federation, _ = remote(paths)
    monkeypatch.setattr(approvals, "FEWEST", 4)
    federation.state(Stated("FederatedLasso", numbers=10_000, messages=5))
    for _ in range(3 * 5):
        federation.exchange([Request((gradient,), weighting="rows")])
    with pytest.raises(cf.InputError, match="it refuses a query of run"):
        federation.exchange([Request((gradient,), weighting="rows")])
    assert "the run has had 15 messages; it stated 5" in logged(paths[0])


def test_sites_that_are_told_different_things_give_noise(tmp_path):
    """A statement is bound into the hash of the queries, and so into the masks."""

    asked = [Weighted(Moments(), "rows")]
    one, other = Stated("fit", numbers=10).text, Stated("fit", numbers=11).text
    assert len({query_hash(asked), query_hash(asked, one), query_hash(asked, other)}) == 3


def test_a_choice_of_alpha_takes_a_cheaper_way_and_says_so_unless_there_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PENDING_PAUSE", 0.0)
    rng = np.random.default_rng(7)
    A = [rng.standard_normal((rows, 6)) for rows in (300, 280, 290, 310)]
    y = [(a[:, 0] - a[:, 1] + rng.logistic(size=len(a)) > 0).astype(float) for a in A]
    table = cf.data.from_arrays(A, y, list(NAMES))
    paths = furnish(tmp_path / "sites", table, "", "", secure_sum=True, counted=True)
    recorder = Recorder("east")
    federation = connected(paths, recorder)
    with pytest.warns(
        RunWarning, match=r"50 alphas by cv=5 would release up to [\d,]+ numbers.*by approximate leave-one-out"
    ):
        model = cf.FederatedLogisticRegressionCV().fit_federation(federation)
    assert recorder.numbers <= 0.5 * 870 * 6
    assert model.certificate_.holds
    pooled = cf.FederatedLogisticRegression(alpha=model.alpha_).fit(np.concatenate(A), np.concatenate(y), sites=None)
    np.testing.assert_allclose(model.coef_, pooled.coef_, atol=1e-10)
    folds = cf.FederatedLogisticRegressionCV().fit(
        np.concatenate(A), np.concatenate(y), sites=np.repeat(NAMES, [300, 280, 290, 310])
    )
    assert 0.2 < model.alpha_ / folds.alpha_ < 5  # two estimates of one loss
    why = "comparison with a published table"
    asked, link = remote(paths, why=why)

    class Waits(Exception):
        pass

    def waits(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        if b'"pending"' in (found := reply()):
            raise Waits
        return found

    link.meddle = waits
    with pytest.raises(Waits):
        cf.FederatedLogisticRegressionCV(n_alphas=20).fit_federation(asked)
    (waiting,) = SiteSettings.read(paths[0]).approvals().all()
    assert why in str(waiting.words)
    assert "beyond 50% (share_by_rule) a person there has to approve the run" in waiting.reason


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")
@pytest.mark.parametrize(
    ("masked", "classes"),
    [(True, 2), (False, 4), *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((False, 2), (True, 4)))],
)
def test_an_evaluation_and_a_summary_release_no_more_than_they_stated(masked, classes, tmp_path):
    """Under the default policy, but for the share of a small table that may leave by rule."""
    table = sites()
    if classes > 2:
        rng = np.random.default_rng(5)
        labels = [
            (np.digitize(a[:, 0] + rng.logistic(size=len(a)), [-1.0, 0.0, 1.0])).astype(float) for a in table.features
        ]
        table = cf.data.from_arrays(list(table.features), labels, list(NAMES))
    share = "share_by_rule = 1e3\nmax_share = 1e3"
    paths = furnish(tmp_path / "sites", table, "", share, secure_sum=masked, counted=True)
    recorder = Recorder("east")
    federation = connected(paths, recorder)
    model = cf.FederatedLogisticRegression(alpha=0.0 if classes == 2 else 0.01).fit_federation(federation)
    ways: list[tuple[str, Callable[[], Any]]] = [
        ("evaluate", lambda: model.evaluate(federation)),
        ("evaluate", lambda: model.evaluate(federation, cv=5)),
    ]
    if classes == 2:
        ways += [("summary", model.summary), ("summary", lambda: model.summary(se="HC0"))]
        ways += [("summary", lambda: cf_refit.summary(refit=True))]
        cf_refit = cf.FederatedLogisticRegression(alpha=0.05).fit_federation(federation)
    if not masked:
        ways += [
            ("evaluate", lambda: model.evaluate(federation, per_site=True)),
            ("evaluate", lambda: model.evaluate(federation, cv="leave-one-site-out")),
        ]
    for kind, compute in ways:
        before = recorder.numbers
        compute()
        entry = SiteSettings.read(paths[1]).ledger().runs[federation.log.run]
        stated, released_now = json.loads(entry.sentence), recorder.numbers - before
        assert stated["kind"] == f"FederatedLogisticRegression.{kind}"
        assert 20 < released_now <= stated["numbers"]
        assert stated["numbers"] <= 3 * released_now + 700  # nor many more
        assert entry.left == stated["numbers"] - released_now


def asked_of(kind: str) -> cf.data.Sites:
    """Four sites with the labels that an action is about."""
    rng = np.random.default_rng(8)
    A = [np.c_[rng.standard_normal((rows, 3)), rng.random(rows) < 0.5] for rows in (150, 120, 130, 110)]
    labels: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "survival": lambda a: np.c_[np.ceil(9 * rng.exponential(np.exp(-a[:, 0]))), rng.random(len(a)) < 0.8],
        "numbers": lambda a: a[:, 0] + 0.3 * rng.standard_normal(len(a)),
        "counts": lambda a: rng.poisson(rng.gamma(2.0, np.exp(0.5 * a[:, 0] + 1) / 2)).astype(float),
    }
    return cf.data.from_arrays(A, [labels[kind](a) for a in A], list(NAMES), columns=["age", "bmi", "crp", "sex"])


TIMES = np.arange(1.0, 25.0)
OPEN = ("a comparison",)  # of single sites, which masks refuse
ACTIONS: dict[str, tuple[str, Callable[[Any], Any], list[str]]] = {
    "curves": ("survival", lambda sites: cf.kaplan_meier(sites, times=TIMES, by="sex"), ["kaplan_meier"]),
    "concordance": (
        "survival",
        lambda sites: cf.FederatedCox().fit_federation(sites).evaluate(sites),
        ["FederatedCox", "FederatedCox.evaluate"],
    ),
    "baseline hazard": ("survival", lambda sites: cf.FederatedCox(times=TIMES).fit_federation(sites), ["FederatedCox"]),
    "a path": (
        "numbers",
        lambda sites: path_over(sites, cf.FederatedLasso(), AlphaGrid("path", None, 12, 1e-2)),
        ["FederatedLasso.path"],
    ),
    "a fit in turns": (
        "counts",
        lambda sites: cf.FederatedNegativeBinomialRegressor(0.1, theta="ml").fit_federation(sites),
        ["FederatedNegativeBinomialRegressor"],
    ),
    "a comparison": (
        "numbers",
        lambda sites: cf.compare_local_federated(cf.FederatedLasso(0.05), sites),
        ["compare_local_federated"],
    ),
    "Table 1": ("numbers", cf.describe, ["describe"]),
}


LONG = ("a fit in turns",)
BESIDE = {  # a function that runs a program and states none: why
    "ask": "one question of a script",
    "solve_federated": "its rows are in this process, as those of a Problem",
    "fit_pooled": "rows in this process",
    "algorithm_trace": "rows in this process",
    "run_plain": "rows in this process",
    "_set_attributes": "the baseline hazard is in the statement of the fit",
    "_fit_in_turns": "theta is in the statement of the fit",
    "agree_schema": "the program states its query, where it has one",
}


def test_whatever_runs_a_program_states_it():
    """Read in the source: each function that drives a program over sites makes a statement, or is in a list that says why not."""
    found = dict[str, bool]()
    for path in (Path(cf.__file__).parent).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                called = {c.func.id for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
                if "run_program" in called:
                    found[node.name] = bool(called & {"state", "state_query", "tell_table"})
    assert {name for name, states in found.items() if not states} == set(BESIDE)
    assert len(found) > len(BESIDE)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in LONG else ()) for name in ACTIONS]
)
def test_whatever_runs_over_sites_is_approved_by_a_person_before_it_and_releases_no_more_than_that_person_read(
    name, tmp_path, monkeypatch
):
    """At new sites, which ask about every run: with the result that sites have which let it begin by rule."""
    monkeypatch.setattr(server, "PENDING_PAUSE", 0.0)
    kind, act, kinds = ACTIONS[name]
    table = asked_of(kind)
    paths = furnish(tmp_path / "new", table, "", "", secure_sum=name not in OPEN)
    for path in paths:
        path.write_text(path.read_text().replace("by_rule = true", "by_rule = false"))
    recorder = Recorder("east")
    federation, link = remote(paths)
    link.meddle = recorder
    approving(link)
    found = act(federation)
    asked = sorted(SiteSettings.read(paths[1]).approvals().all(), key=lambda one: one.asked)
    assert [one.sentence["stated"]["kind"] for one in asked] == kinds
    stated = sum(one.sentence["stated"]["numbers"] for one in asked)
    assert 0 < recorder.numbers == federation.numbers <= stated <= 8 * recorder.numbers + 700
    by_rule = act(remote(furnish(tmp_path / "rule", table, "", "", secure_sum=name not in OPEN))[0])
    for field in ("survival", "coef_", "concordance", "coefs", "overall"):
        np.testing.assert_equal(getattr(found, field, None), getattr(by_rule, field, None))


def test_check_and_ledger_say_the_share_in_words(tmp_path):
    paths = furnish(tmp_path / "sites", sites(), "", "", secure_sum=True, counted=True)
    settings = SiteSettings.read(paths[1])
    assert "over all runs: 0, 0% of the numbers in the rows of all sites but the largest other one" in disclosure_text(
        settings
    )
    recorder = Recorder("east")
    federation = connected(paths, recorder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cf.FederatedLasso(alpha=0.1).fit_federation(federation)
    counted = f"{recorder.numbers:,} numbers about 194 x 5 = 970 (all sites but the largest): {recorder.numbers / 970:.0%}; 0% left before"
    found = traffic(model.to_result())
    assert found is not None
    assert f"Released: {counted}." in found[1]
    lines = "\n".join(map(str, federation.run_log.lines))
    assert "numbers about 194 x 5 = 970 (all sites but the largest)" in lines
    share = recorder.numbers / 970
    assert f"over all runs: {recorder.numbers:,}, {share:.0%} of the numbers in 194 x 5 = 970" in disclosure_text(
        settings
    )
    assert f"{recorder.numbers:,} numbers released, {share:.1%}" in ledger_text(settings)
