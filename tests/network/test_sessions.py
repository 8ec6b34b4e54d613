"""Masked runs over a network: the same bits as unmasked ones and as in one process; hostile servers get errors or noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network.memory_link import MemoryLink, fields_of, furnish, key_of, logged, remote, wipe

import compfed as cf
import compfed.network.site as site_module
from compfed import estimators
from compfed._utils import files
from compfed.algorithms import default_steps
from compfed.federation import (
    Evaluate,
    FinishRound,
    HeldOut,
    InProcess,
    LocalUpdate,
    Moments,
    Score,
    Tabulate,
    exact_sum,
    secure_sum,
)
from compfed.federation.adding import MessageLayout, decode
from compfed.federation.query import Weighted
from compfed.federation.server.program import Request, run_program
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.site.ledger import Ledger, Roster
from compfed.federation.spec import FeatureScaling, FederatedProblem, ObjectiveSpec, RunSpec
from compfed.network import keys, session
from compfed.network.envelope import ENROL, Body, Header, message_bytes, query_hash, read_header, reply_bytes
from compfed.network.roster import roster_fingerprint, roster_text
from compfed.network.server import NoReply, RemoteFederation
from compfed.network.site_settings import SiteSettings
from compfed.splits import Fold, Holdout, SiteFold

UNMASKED = "secure_sum = false"


class RunningSites(MemoryLink):
    """Sites that keep running from one message to the next, until `restart`."""

    def __init__(self, paths: Sequence[Path]):
        super().__init__(paths)
        self.running: dict[str, Any] = {}

    def service(self, name: str) -> Any:
        if name not in self.running:
            self.running[name] = super().service(name)
        return self.running[name]

    def restart(self, name: str) -> None:
        self.running.pop(name, None)


def connected(paths: Sequence[Path], folder: Path | None = None) -> tuple[RemoteFederation, Any]:
    federation, _ = remote(paths, folder)
    link: Any = RunningSites(paths)
    federation.link = link
    return federation, link


def written(folder: Path, sites: cf.data.Sites, more: str = "") -> list[Path]:
    """A folder per site, each with the roster of all."""
    return furnished_sites(folder, sites, secure_sum=more != UNMASKED)


def furnished_sites(folder: Path, sites: cf.data.Sites, disclosure: str = "", secure_sum: bool = True) -> list[Path]:
    paths = furnish(folder, sites, "", disclosure, secure_sum=secure_sum)
    give_roster(paths, paths)
    return paths


def give_roster(paths: Sequence[Path], members: Sequence[Path]) -> None:
    roster = {path.parent.name: key_of(path).public_key() for path in members}
    for path in paths:
        (path.parent / "roster.txt").write_text(roster_text(roster))


def in_process(paths: Sequence[Path]) -> InProcess:
    """The same sites in this process, with their policies and secrets."""
    sites = [SiteSettings.read(path).site() for path in paths]
    for i, site in enumerate(sites):
        site.rows.index = site.rows.number = i
    return InProcess(sites, exact=True)


def table(kind: str = "numbers", rows: Sequence[int] = (60, 75, 90, 66)) -> cf.data.Sites:
    rng = np.random.default_rng(5)
    A = [rng.uniform(-1, 1, (m, 4)) * [1.0, 5.0, 0.2, 1.0] + 0.3 * i for i, m in enumerate(rows)]
    z = [a @ [1.0, 0.3, 0.0, -0.8] + 0.5 * rng.uniform(-1, 1, len(a)) for a in A]
    labels: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "numbers": lambda v: v,
        "classes": lambda v: (v + rng.uniform(-1, 1, len(v)) > 0).astype(float),
        "counts": lambda v: np.rint(np.exp(0.5 * v)),
        "amounts": lambda v: np.exp(0.5 * v),
        "survival": lambda v: np.c_[np.rint(9 * np.exp(-0.3 * v)), np.arange(len(v)) % 4 > 0],
        "two": lambda v: np.c_[v, 1 - v + 0.3 * rng.uniform(-1, 1, len(v))],
    }
    return cf.data.from_arrays(A, [labels[kind](v) for v in z], names=["north", "east", "south", "west"][: len(rows)])


# --- the same bits ---

ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "FederatedLasso": ("numbers", {"alpha": 0.1}),
    "FederatedElasticNet": ("numbers", {"alpha": 0.1, "l1_ratio": 0.9}),
    "FederatedHuber": ("numbers", {"alpha": 0.05}),
    "FederatedGroupLasso": ("numbers", {"alpha": 0.1, "groups": [0, 0, 1, 1]}),
    "FederatedLogisticRegression": ("classes", {"alpha": 0.03}),
    "FederatedPoissonRegressor": ("counts", {"alpha": 0.1, "l1_ratio": 0.5}),
    "FederatedNegativeBinomialRegressor": ("counts", {"alpha": 0.1, "l1_ratio": 0.5, "theta": 2.0}),
    "FederatedGammaRegressor": ("amounts", {"alpha": 0.1, "l1_ratio": 0.5}),
    "FederatedCox": ("survival", {"alpha": 0.05, "l1_ratio": 0.5}),
    "FederatedMultiTaskLasso": ("two", {"alpha": 0.1}),
    "FederatedNuclearRegressor": ("two", {"alpha": 0.1}),
}
NAMES = [name for name in estimators.__all__ if name.startswith("Federated")]
QUICK = ("FederatedLassoCV",)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory) -> Callable[[str, str], list[Path]]:
    """The sites of a table, written once; every fit over them is a run of its own."""
    made: dict[tuple[str, str], list[Path]] = {}

    def paths(kind: str, more: str) -> list[Path]:
        if (kind, more) not in made:
            made[kind, more] = written(tmp_path_factory.mktemp(kind), table(kind), more)
        return made[kind, more]

    return paths


def copied(paths: Sequence[Path], folder: Path, more: str) -> list[Path]:
    """The same sites with their keys, hence their secrets, and other settings."""
    copies = []
    for path in paths:
        home = folder / path.parent.name
        home.mkdir(parents=True)
        for name in ("rows.csv", "node.key", "roster.txt"):
            (home / name).write_bytes((path.parent / name).read_bytes())
        (home / "site.toml").write_text(path.read_text().replace("secure_sum = true", more))
        copies.append(home / "site.toml")
    return copies


def check_same_bits(model: Any, paths: list[Path], tmp_path: Path) -> None:
    """Masked, unmasked and in one process: the same coefficients to the last bit, and as many messages."""
    found = []
    masked, link = connected(paths)
    plain, _ = connected(copied(paths, tmp_path / "plain", UNMASKED))
    for federation in (masked, plain, in_process(paths)):
        fitted = model.fit_federation(federation)
        found.append((fitted.coef_.copy(), fitted.n_rounds_))
    assert masked.enrolments[0].secure_sum
    assert not plain.enrolments[0].secure_sum
    assert link.sent
    for coef, rounds in found[1:]:
        np.testing.assert_array_equal(coef, found[0][0])
        assert rounds == found[0][1]
    assert found[0][0].any()


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # three alphas
@pytest.mark.parametrize(
    "name", [n if not n.endswith("CV") or n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in NAMES]
)
def test_masked_is_unmasked_is_in_process(name, furnished, tmp_path):
    kind, options = ESTIMATORS[name.removesuffix("CV")]
    if name.endswith("CV"):
        options = {k: v for k, v in options.items() if k != "alpha"} | {"n_alphas": 3, "eps": 0.2, "cv": 5}
    check_same_bits(getattr(cf, name)(**options), furnished(kind, ""), tmp_path)


@pytest.mark.parametrize("weights", ["rows", "equal"])
def test_bundled_tables_with_the_default_policy(weights, tmp_path):
    """Diabetes as it is: the coefficients of the rows in one place, to 1e-10."""
    diabetes = cf.data.bundled.diabetes()
    paths = written(tmp_path / "sites", diabetes.federation())
    federation, _ = connected(paths)
    model = cf.FederatedLasso(alpha=1.0, site_weights=weights)
    coef = model.fit_federation(federation).coef_.copy()
    pooled = model.fit(diabetes.X, diabetes.y, sites=diabetes.sites).coef_
    np.testing.assert_allclose(coef, pooled, rtol=1e-10, atol=1e-9)


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # columns in raw units
@pytest.mark.thorough
def test_breast_cancer_with_cross_validation(tmp_path):
    table = cf.data.bundled.breast_cancer()
    check_same_bits(
        cf.FederatedLogisticRegressionCV(n_alphas=5, eps=0.1), written(tmp_path / "sites", table.federation()), tmp_path
    )


METHODS = ["Scaffnew", "DecoupledProx", "FedDR", "Mime", "CompressedDecoupledProx"]


def rounds_of(name: str, federation: Any, sites: cf.data.Sites, rounds: int = 4) -> np.ndarray:
    g = cf.regularisers.Zero() if name == "Mime" else cf.regularisers.L1(1e-2)
    problem = cf.Problem(cf.losses.Squared(), g, sites)
    run_spec = RunSpec(
        0, default_steps(name, problem, tau=3), g, ObjectiveSpec(problem.loss), np.zeros(4), 3, None, int(problem.sites.sizes.max())
    )  # fmt: skip
    loop = ServerLoop(run_spec, replace(FederatedProblem.of(problem), weighting="rows"), problem.n)
    models = []
    for _ in range(rounds):
        run_program(federation, loop.round())
        models.append(loop.model())
    return np.array(models)


@pytest.mark.parametrize("name", METHODS)
def test_local_update_methods_are_the_same_to_the_bit(name, furnished, tmp_path):
    """Also at sites that are started anew for every message."""
    paths = furnished("numbers", "")
    here = rounds_of(name, in_process(paths), table())
    np.testing.assert_array_equal(rounds_of(name, connected(paths)[0], table()), here)
    np.testing.assert_array_equal(rounds_of(name, remote(paths)[0], table()), here)
    plain, _ = connected(copied(paths, tmp_path, UNMASKED))
    np.testing.assert_array_equal(rounds_of(name, plain, table()), here)
    assert np.abs(here[-1]).max() > 0


# --- a small federation for everything else ---


@pytest.fixture
def paths(tmp_path) -> list[Path]:
    return written(tmp_path / "sites", table(rows=(40, 30, 50)))


LASSO = cf.FederatedLasso(alpha=0.1)


def fitted(federation: Any, model: Any = LASSO) -> np.ndarray:
    return model.fit_federation(federation).coef_.copy()


X = np.array([[0.5, -0.2, 1.0, 0.0]])
OBJECTIVE = ObjectiveSpec(cf.losses.Squared())
QUERY = Weighted(Evaluate(OBJECTIVE, X), "rows")


def words_of(link: Any) -> list[tuple[str, int, np.ndarray]]:
    """All words that left: name of the site, number of the message, words."""
    return [(f["site"], f["number"], f["words"]) for f in link.left if f["kind"] == "words"]


def recorded(paths: Sequence[Path], folder: Path | None = None) -> tuple[RemoteFederation, Any]:
    """A federation whose link keeps the fields of all replies."""
    federation, link = connected(paths, folder)
    link.left, link.replies = [], []

    def keep(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        link.replies.append((name, read_header(data, name)[0].number, reply()))
        link.left.append(fields_of(link, name, link.replies[-1][2]))
        return link.replies[-1][2]

    link.meddle = keep
    return federation, link


def test_words_of_a_single_site_mean_nothing(paths):
    """They are not its plain words; two runs over the same rows send other words; only the sums agree."""
    (first, one), (second, two) = recorded(paths), recorded(paths)
    np.testing.assert_array_equal(fitted(first), fitted(second))
    here: Any = in_process(paths)
    plain: list[dict[int, np.ndarray]] = []
    carry = here.messages.carry

    def kept(messages: Any) -> Any:
        found = carry(messages)
        plain.append(dict(found.parts))
        return found

    here.messages.carry = kept
    fitted(here)
    sent = words_of(one)
    assert len(sent) == len(words_of(two)) == 3 * len(plain) > 6
    for (name, number, a), (_, _, b) in zip(sent, words_of(two), strict=True):
        own = plain[number - 2][first.names.index(name)]
        assert a.shape == own.shape
        assert (a != own).all(axis=1).all()
        assert (a != b).all(axis=1).all()
    for k, words in enumerate(plain):
        summed = reduce(exact_sum.add, [w for _, number, w in sent if number == k + 2])
        np.testing.assert_array_equal(summed, reduce(exact_sum.add, words.values()))


# --- kills, resumes and restarts ---


@pytest.fixture
def spy(monkeypatch) -> dict[tuple[str, bytes], set[bytes]]:
    """(name of the site, key of the cipher) -> all plain words that were masked with it."""
    used: defaultdict[tuple[str, bytes], set[bytes]] = defaultdict(set)
    under_way: list[bytes] = []
    keystream, masked = secure_sum._keystream, session.masked
    monkeypatch.setattr(secure_sum, "_keystream", lambda key, words: under_way.append(key) or keystream(key, words))

    def mask(words: np.ndarray, masks: secure_sum.Masks, header: Header, asked: str) -> np.ndarray:
        under_way.clear()
        found = masked(words, masks, header, asked)
        for key in under_way:
            used[header.names[header.place], key].add(words.tobytes())
        return found

    monkeypatch.setattr(site_module, "masked", mask)
    return used


class Killed(BaseException):
    """A process ends here."""


def check_keys(spy: dict[tuple[str, bytes], set[bytes]]) -> None:
    assert len(spy) > 10
    assert all(len(plain) == 1 for plain in spy.values())
    owners = defaultdict(set)
    for name, key in spy:
        owners[key].add(name)
    assert all(len(names) == 2 for names in owners.values())  # a key is one pair's


@pytest.mark.parametrize("answered", [False, True])
def test_a_killed_operator_resumes_with_the_same_bits(answered, paths, tmp_path, spy):
    """Killed at every message once, before or after the last site answered; no key masks two plaintexts."""
    expected, folder = fitted(in_process(paths)), tmp_path / "run"
    runs = []
    for number in (1, 2, 3, 4, 99):
        federation, link = connected(paths, folder)
        runs.append(federation.log.run)

        def kill(name: str, data: bytes, reply: Callable[[], bytes], number: int = number) -> bytes:
            if read_header(data, name)[0].number == number and name == "south":
                if answered:
                    reply()
                raise Killed
            return reply()

        link.meddle = kill
        if number < 99:
            with pytest.raises(Killed):
                fitted(federation)
        else:
            np.testing.assert_array_equal(fitted(federation), expected)
    assert len(set(runs[1:])) == 1  # before the first message is answered there is nothing to resume
    check_keys(spy)


def test_sites_killed_between_their_files(paths, tmp_path, spy, monkeypatch):
    """A site is killed after any of its writes, and is started again: the same bits, and no key masks two plaintexts."""
    expected = fitted(in_process(paths))
    federation, link = connected(paths)
    write, count = files.write_checked, iter(range(10**6))

    def dying(path: Path, data: bytes, flush: bool = True) -> None:
        write(path, data, flush)
        if next(count) % 3 == 1:
            raise Killed

    monkeypatch.setattr(files, "write_checked", dying)

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes | None:
        try:
            return reply()
        except Killed:
            link.restart(name)
            return None

    link.meddle = meddle
    federation.retry = replace(federation.retry, attempts=50)
    np.testing.assert_array_equal(fitted(federation), expected)
    assert federation.problems
    check_keys(spy)


def test_lost_and_repeated_messages(paths, spy):
    expected = fitted(in_process(paths))
    federation, link = connected(paths)
    count = iter(range(10**6))

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes | None:
        link.restart(name)
        first = reply()
        return None if next(count) % 3 == 1 else first if next(count) % 2 else reply()

    link.meddle = meddle
    np.testing.assert_array_equal(fitted(federation), expected)
    check_keys(spy)


def test_a_repeated_message_gets_the_stored_words(paths):
    federation, link = recorded(paths)
    fitted(federation)
    last = max(number for _, number, _ in link.replies)
    for name, data in link.sent[-3:]:
        link.restart(name)
        again = fields_of(link, name, link.service(name).reply(data))["words"]
        (before,) = [w for n, number, w in words_of(link) if (n, number) == (name, last)]
        np.testing.assert_array_equal(again, before)


def test_a_wiped_site_refuses_and_a_new_run_works(paths, tmp_path):
    federation, link = connected(paths, tmp_path / "run")

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        if read_header(data, name)[0].number == 3 and name == "east":
            wipe(link.paths[name])
            link.restart(name)
        return reply()

    link.meddle = meddle
    with pytest.raises(
        cf.InputError, match=r"site 'east': the session of run .* at this site is lost. Start a new run."
    ):
        fitted(federation)
    again, _ = connected(paths, tmp_path / "run")
    with pytest.raises(cf.InputError, match=r"is lost. Start a new run"):
        fitted(again)
    new, _ = connected(paths, tmp_path / "new")
    np.testing.assert_array_equal(fitted(new), fitted(in_process(paths)))


def test_a_site_without_its_session_file_enrols_no_second_time(paths):
    """The key would be another: the run is over for this site."""
    federation, link = connected(paths)
    assert federation.enrolments
    (link.paths["north"].parent / "state" / "runs" / federation.log.run / "session").unlink()
    header = Header(federation.log.run, 1, 0, 0, federation.names, ENROL)
    reply = fields_of(link, "north", link.service("north").reply(message_bytes(header, Body(()))))
    assert reply["kind"] == "refused"
    assert "is lost. Start a new run" in reply["reason"]


# --- replays ---


def test_replies_replayed_under_another_number_or_run_are_refused(paths):
    for change in ("number", "run"):
        (earlier, old), (federation, link) = recorded(paths), connected(paths)
        if change == "run":
            fitted(earlier)
        kept: dict[tuple[str, int], bytes] = {(name, number): data for name, number, data in old.replies}

        def meddle(name: str, data: bytes, reply: Callable[[], bytes], kept: Any = kept, change: str = change) -> bytes:
            number = read_header(data, name)[0].number
            mine = reply()
            kept.setdefault((name, number), mine)
            if name != "east" or number != 4:
                return mine
            return kept[name, 3 if change == "number" else 4]

        link.meddle = meddle
        with pytest.raises(NoReply, match=f"its reply is for {change} "):
            fitted(federation)


def test_a_reply_to_other_queries_is_refused(paths):
    federation, link = connected(paths)

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        header, _ = read_header(data, name)
        if (name, header.number) != ("east", 2):
            return reply()
        other = (QUERY,)
        changed = message_bytes(
            header._replace(queries=query_hash(other)), Body(other, (), federation._signed_enrolments)
        )
        return link.service(name).reply(changed)

    link.meddle = meddle
    with pytest.raises(NoReply, match="its reply is for queries "):
        fitted(federation)


def test_words_of_another_session_do_not_add_up(paths):
    """The same run, number and queries, after the sites lost their state: the old words are noise in the new sum."""
    earlier, old = recorded(paths)
    fitted(earlier)
    kept = {(name, number): data for name, number, data in old.replies}
    for path in paths:
        wipe(path)
    federation, link = connected(paths)
    federation.log.run = earlier.log.run

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        number = read_header(data, name)[0].number
        mine = reply()
        return kept[name, number] if (name, number) == ("east", 2) else mine

    link.meddle = meddle
    with pytest.raises(cf.InputError, match="its check word is not 3"):
        fitted(federation)


# --- a server that does not follow the protocol ---


class Hostile:
    """A server that says what it likes to each site."""

    def __init__(self, paths: Sequence[Path]):
        self.federation, self.link = connected(paths)
        self.names, self.run = self.federation.names, self.federation.log.run
        self.agreement = self.federation.messages.agreement  # enrols
        self.enrolments = list(self.federation._signed_enrolments)

    def ask(self, name: str, queries: Sequence[Weighted], number: int = 2, **more: Any) -> dict[str, Any]:
        names, enrolments = more.pop("names", self.names), tuple(more.pop("enrolments", self.enrolments))
        header = Header(self.run, number, more.pop("after", number - 1), 0, names, query_hash(queries))
        data = message_bytes(header._replace(**more), Body(tuple(queries), (), enrolments))
        return fields_of(self.link, name, self.link.service(name).reply(data))

    def total(self, replies: Sequence[dict[str, Any]]) -> np.ndarray:
        assert [reply["kind"] for reply in replies] == ["words"] * len(replies), replies
        return reduce(exact_sum.add, [reply["words"] for reply in replies])

    def refusal(self, name: str, queries: Sequence[Weighted] = (QUERY,), **more: Any) -> str:
        reply = self.ask(name, queries, **more)
        assert reply["kind"] == "refused", reply
        assert "words" not in reply
        return reply["reason"]


@pytest.fixture
def hostile(paths) -> Hostile:
    return Hostile(paths)


def test_an_honest_message_of_the_hostile_server_adds_up(hostile, paths):
    """The oracle of the tests below: the gradient over all rows, by NumPy."""
    total = hostile.total([hostile.ask(name, [QUERY]) for name in hostile.names])
    assert exact_sum.check_total(total, 3) == 0
    (found,) = decode(MessageLayout([QUERY], hostile.agreement), total[exact_sum.FRAME :], [range(3)])
    assert isinstance(found, Evaluate.Reply)
    sites = table(rows=(40, 30, 50))
    A, y = np.concatenate(sites.features), np.concatenate(sites.labels)
    np.testing.assert_allclose(found.gradient[0], A.T @ (A @ X[0] - y) / len(y), rtol=1e-12)


@pytest.mark.parametrize("difference", ["query", "last_sum", "lift", "weighting", "number", "fewer", "twice"])
def test_sites_that_are_shown_different_messages_give_noise(difference, hostile):
    """The words of as many sites, but one of them was asked something else: the check word is wrong."""
    odd: dict[str, Any] = {}
    queries = {name: [QUERY] for name in hostile.names}
    match difference:
        case "query":
            queries["east"] = [replace(QUERY, query=Evaluate(OBJECTIVE, 2 * X))]
        case "lift":
            queries["east"] = [replace(QUERY, lift=32)]
        case "weighting":
            queries["east"] = [replace(QUERY, weighting="sites")]
        case "last_sum":
            odd = {"last_sum": "0" * 64}
    replies = [hostile.ask(name, queries[name], **(odd if name == "east" else {})) for name in hostile.names]
    if difference == "number":  # one site's words are to the next message
        replies[1] = hostile.ask("east", [QUERY], number=3)
    if difference == "fewer":
        replies.pop()
    if difference == "twice":
        replies[2] = replies[1]
    with pytest.raises(cf.InputError, match="its check word is not"):
        exact_sum.check_total(hostile.total(replies), len(replies))


def test_settings_that_change_during_a_run_end_it(hostile):
    """Masks that are switched off would send plain words under the number of a masked message."""
    hostile.ask("north", [QUERY])
    path = hostile.link.paths["north"]
    text = path.read_text()
    path.write_text(text.replace("secure_sum = true", UNMASKED))
    hostile.link.restart("north")
    assert "secure_sum has changed in site.toml since run" in hostile.refusal("north", number=3)
    path.write_text(text)
    hostile.link.restart("north")
    assert hostile.ask("north", [QUERY], number=3)["kind"] == "words"
    east = hostile.link.paths["east"]
    give_roster([east], [east, *(hostile.link.paths[name] for name in ("north", "south"))])
    assert "are not those of this site's roster, in its order" in hostile.refusal("east")


def test_a_number_is_answered_once(hostile):
    assert hostile.ask("north", [QUERY])["kind"] == "words"
    other = [replace(QUERY, query=Evaluate(OBJECTIVE, 2 * X))]
    assert "came before with other queries" in hostile.refusal("north", other)
    assert "cannot be answered: the last message that this site answered is 2" in hostile.refusal("north", number=4)
    before = hostile.ask("north", [QUERY], last_sum="f" * 64)["words"]  # stored: not masked a second time
    np.testing.assert_array_equal(before, hostile.ask("north", [QUERY])["words"])


def test_other_names_places_and_orders_are_refused(hostile):
    east, north, south = hostile.names[1], hostile.names[0], hostile.names[2]
    other = (east, north, south)
    swapped = [hostile.enrolments[1], hostile.enrolments[0], hostile.enrolments[2]]
    assert "are not those that it began with" in hostile.refusal("north", names=other, enrolments=swapped)
    assert "are not those that it began with" in hostile.refusal("north", names=(north, east))
    for names in (other, (north, east), (north, east, "west"), (north, east, south, "west")):
        reply = hostile.ask("north", [], number=1, names=names, run="another")
        assert "are not those of this site's roster" in reply["reason"]
    for names in ((east, south), (north, east, north)):
        assert "a message " in hostile.refusal("north", names=names)


def test_enrolments_that_are_not_those_of_the_sites_are_refused(hostile):
    one, two, three = hostile.enrolments
    read = [
        fields_of(hostile.link, name, data.tobytes())
        for name, data in zip(hostile.names, hostile.enrolments, strict=True)
    ]

    def made(place: int, key: Any = None, **fields: Any) -> np.ndarray:
        path = hostile.link.paths[hostile.names[place]]
        return np.frombuffer(reply_bytes({**read[place], **fields}, key or key_of(path)), np.uint8)

    low_order = np.zeros(32, np.uint8)
    cases: dict[str, tuple[list[np.ndarray], str]] = {
        "fewer": ([one, two], "has 3 sites; 2 enrolments came"),
        "more": ([one, two, three, three], "has 3 sites; 4 enrolments came"),
        "order": ([one, three, two], "not signed with its key"),
        "a site twice": ([one, two, two], "not signed with its key"),
        "another key": ([one, made(1, keys.new_identity()), three], "not signed with its key"),
        "the server's session key": ([one, made(1, keys.new_identity(), session_key=read[0]["session_key"]), three], "not signed"),
        "another run": ([one, made(1, run="earlier"), three], "the enrolment of site 'east' is not one of run"),
        "another kind": ([one, made(1, kind="words"), three], "the enrolment of site 'east' is not one of run"),
        "another name": ([one, made(1, site="south"), three], "the enrolment of site 'east' is not one of run"),
        "no enrolment": ([one, made(1, enrolment=None), three], "the enrolment of site 'east' is not one of run"),
        "own key": ([made(0, session_key=read[1]["session_key"]), two, three], "is not its own"),
        "short key": ([one, made(1, session_key=low_order[:31]), three], "the session key of site 'east' is not a key"),
        "low order": ([one, made(1, session_key=low_order), three], "the session key at place 1 is not valid"),
        "a copied key": ([one, made(1, session_key=read[2]["session_key"]), three], "two sites have the same session key"),
        "own copied key": ([one, made(1, session_key=read[0]["session_key"]), three], "two sites have the same session key"),
        "not masked": ([one, made(1, enrolment=replace(read[1]["enrolment"], secure_sum=False)), three], "does not"),
    }  # fmt: skip
    session = hostile.link.paths["north"].parent / "state" / "runs" / hostile.run / "session"
    untouched = session.read_bytes()
    for name, (given, reason) in cases.items():
        assert reason in hostile.refusal("north", enrolments=given), name
        hostile.link.restart("north")
        session.write_bytes(untouched)
    assert hostile.ask("north", [QUERY])["kind"] == "words"


def test_enrolments_cannot_be_exchanged_later(hostile):
    """The first ones are kept: others in a later message are not read."""
    hostile.ask("north", [QUERY])
    first = hostile.ask("north", [QUERY], number=3, enrolments=hostile.enrolments[:1])
    others = [hostile.ask(name, [QUERY], number=number) for name in ("east", "south") for number in (2, 3)]
    exact_sum.check_total(hostile.total([first, others[1], others[3]]), 3)


def test_a_site_does_not_enrol_in_a_later_message(hostile):
    header = Header(hostile.run, 2, 1, 0, hostile.names, ENROL)
    reply = fields_of(hostile.link, "north", hostile.link.service("north").reply(message_bytes(header, Body(()))))
    assert "the first message of a run does" in reply["reason"]


def test_a_run_without_enrolment_gets_no_words(hostile):
    """A masked site has no session; an unmasked one enters the run into its ledger first."""
    assert "is lost. Start a new run" in hostile.refusal("north", run="other")


SCALE = FeatureScaling(np.zeros(4), np.ones(4), intercept=False)


def test_no_part_of_a_site_by_numbers_out_of_range(tmp_path):
    """A scaling chosen so that the gradient of one site is too large: with 0 in its place, its part follows by subtraction.

    The message and its repetition with larger fields then differ by the gradient of that site.
    """
    sites, number = table(rows=(40, 30, 50)), 2
    hostile = Hostile(furnished_sites(tmp_path, sites, "enforce = false"))  # a policy refuses such scales

    def asked(s: float, lift: int) -> np.ndarray:
        nonlocal number
        objective = ObjectiveSpec(cf.losses.Squared(), replace(SCALE, scale=np.array([s, 1.0, 1.0, 1.0])))
        query = Weighted(Evaluate(objective, np.eye(1, 4)), "rows", lift)
        total = hostile.total([hostile.ask(name, [query], number=number) for name in hostile.names])
        number += 1
        return total

    low, high = -80.0, 0.0
    for _ in range(40):  # to where the largest gradient of a site, and no other, is just too large
        s = (low + high) / 2
        flagged = asked(2.0**s, 0)[exact_sum.FRAME + 2].any()
        low, high = (s, high) if flagged else (low, s)
    s, total, again = 2.0**low, asked(2.0**low, 0), asked(2.0**low, 32)
    assert total[exact_sum.FRAME + 2].any()
    assert not again[exact_sum.FRAME + 2].any()
    assert exact_sum.check_total(total, 3) == 0  # nor is it told at how many sites
    parts = [A[:, 0] @ (A[:, 0] / s - y) / s for A, y in zip(sites.features, sites.labels, strict=True)]
    units = np.arange(-60, 60)
    for k in range(exact_sum.FRAME + 3, exact_sum.FRAME + 8):  # value and gradient
        (apart,) = exact_sum.subtract(again[k : k + 1], total[k : k + 1])
        for found in exact_sum.decode(np.tile(apart, (len(units), 1)), units):
            assert all(abs(abs(found / part) - 1) > 1e-3 for part in parts)
    lone = exact_sum.decode(total[exact_sum.FRAME + 4][None], 0)[0]
    assert abs(lone) > 2.0**100  # noise of 128 bits


def test_no_hold_out_at_fewer_than_three_sites(tmp_path):
    """Of sites with one bucket nothing is held out: the sum would be that of the others alone."""
    hostile = Hostile(written(tmp_path, table(rows=(40, 12, 15, 13))))
    held_out = Holdout(0.5, 0, by_class=False, held_out=True)
    for query in (Weighted(Moments(part), "rows") for part in (held_out, replace(held_out, held_out=False))):
        assert "ends the run here" in hostile.refusal("north", [query])
        assert "a site has too few rows to hold any out" in (tmp_path / "north" / "state" / "log.jsonl").read_text()
    larger = Hostile(written(tmp_path / "larger", table(rows=(40, 30, 25, 23))))
    exact_sum.check_total(
        larger.total([larger.ask(name, [Weighted(Moments(held_out), "rows")]) for name in larger.names]), 4
    )


RUN = RunSpec(
    0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), OBJECTIVE, np.zeros(4), 0, None, 50, everyone=False
)
ONE_SITE = {
    "given": (replace(QUERY, weighting="given", factor=0.0), "a factor that the server chooses"),
    "leave one out": (Weighted(Evaluate(replace(OBJECTIVE, subset=SiteFold(1, held_out=False)), X), "rows"), "leaving out one site"),
    "one site": (Weighted(Moments(SiteFold(1, held_out=True)), "rows"), "leaving out one site"),
    "held out": (Weighted(HeldOut(OBJECTIVE, SiteFold(0, held_out=True), X), "rows"), "leaving out one site"),
    "scored": (
        Weighted(Score(OBJECTIVE, X[0], np.empty((0, 0)), np.zeros(1), np.empty((0, 2)), SiteFold(0, held_out=True)), "once"),
        "leaving out one site",
    ),
    "trained on one": (
        Weighted(HeldOut(replace(OBJECTIVE, subset=SiteFold(0, held_out=True)), Holdout(0.5, 0, False, True), X), "rows"),
        "leaving out one site",
    ),
    "participants": (Weighted(LocalUpdate(RUN, 0, 0, {"y": np.zeros(4)}), "rows"), "rounds of some of the sites"),
    "end": (Weighted(FinishRound(RUN, 0, {"y": np.zeros(4)}), "once"), "rounds of some of the sites"),
    "folds": (Weighted(Moments(Fold(0, 4, 0, np.arange(3), False, held_out=True)), "rows"), "4 folds would leave out sites"),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_SITE)
def test_queries_for_the_part_of_one_site_are_refused_at_the_site(name, hostile):
    query, reason = ONE_SITE[name]
    assert "ends the run here" in hostile.refusal("north", [query])
    assert f"sums are masked, and {reason}" in logged(hostile.link.paths["north"])


def test_queries_for_the_part_of_one_site_are_refused_at_the_server(paths):
    """Before the first query, where the settings tell."""
    federation, link = connected(paths)
    cases: list[tuple[Any, str]] = [
        (cf.FederatedLassoCV(cv="leave-one-site-out", n_alphas=3), "leave"),
        (cf.FederatedLassoCV(cv=4, n_alphas=3), "cv = 4 needs 4 buckets of 10 rows at site 'east': use cv = 3"),
    ]
    for model, reason in cases:
        with pytest.raises(cf.InputError, match=reason):
            fitted(federation, model)
    for request in (
        Request((Moments(),), sites=(0,)),
        Request((QUERY.query,), weights=np.array([1.0, 0.0, 0.0])),
        Request((Tabulate(("a0",), (np.empty(0),)),), sites=(0,)),
    ):
        with pytest.raises(cf.InputError, match=r"sums are masked, and .* would show the server one site's part"):
            federation.exchange([request])
    kinds = {read_header(data, name)[0].queries for name, data in link.sent}
    assert ENROL in kinds
    assert federation.number == 1


# --- who takes part ---


def test_two_sites_run_only_without_masks(tmp_path):
    two = table(rows=(40, 30))
    paths = written(tmp_path / "masked", two)
    with pytest.raises(cf.InputError, match="with two sites each would learn the other's totals by subtraction"):
        fitted(connected(paths)[0])
    plain = copied(paths, tmp_path / "plain", UNMASKED)
    np.testing.assert_array_equal(fitted(connected(plain)[0]), fitted(in_process(paths)))


def test_sites_that_do_not_agree_on_masks_are_named(paths, tmp_path):
    mixed = [*paths[:2], *copied(paths[2:], tmp_path / "plain", UNMASKED)]
    with pytest.raises(cf.InputError, match=r"site 'north' masks its sums \(secure_sum\) and site 'south' does not"):
        fitted(connected(mixed)[0])
    mixed = [*copied(paths[:1], tmp_path / "first", UNMASKED), *paths[1:]]
    with pytest.raises(cf.InputError, match=r"site 'east' masks its sums \(secure_sum\) and site 'north' does not"):
        fitted(connected(mixed)[0])


def test_a_roster_with_other_sites_is_refused(tmp_path):
    paths = written(tmp_path, table())
    give_roster(paths[:1], [paths[1], *paths[:1], *paths[2:]])
    for members in (paths, paths[:3]):
        with pytest.raises(
            cf.InputError, match=r"site 'north': the sites of run .* are not those of this site's roster"
        ):
            fitted(connected(members)[0])
    (paths[0].parent / "roster.txt").unlink()
    with pytest.raises(cf.InputError, match=r"there is no .*roster.txt, which secure_sum = true needs"):
        fitted(connected(paths)[0])


def test_a_roster_with_another_key_of_a_site_is_refused(paths):
    """The operator replaced the key of a site: the enrolment signed with the true one is not accepted there."""
    roster = {path.parent.name: key_of(path).public_key() for path in paths}
    (paths[0].parent / "roster.txt").write_text(roster_text({**roster, "east": keys.new_identity().public_key()}))
    with pytest.raises(cf.InputError, match="site 'north': its reply is not signed with its key"):
        fitted(connected(paths)[0])


# --- the ledger ---


def test_another_roster_needs_to_be_allowed(tmp_path):
    paths = written(tmp_path, table())
    fitted(connected(paths)[0])
    give_roster(paths[:3], paths[:3])
    with pytest.raises(
        cf.InputError, match=r"By subtraction the totals of west become known. Allow it with `compfed site allow`"
    ):
        fitted(connected(paths[:3])[0])
    for path in paths[:3]:
        settings = SiteSettings.read(path)
        service = RunningSites(paths[:3]).service(path.parent.name)
        pinned = settings.read_roster()
        assert pinned is not None
        assert "west" in service.ledger().allow(Roster(roster_fingerprint(pinned), tuple(pinned)))
    np.testing.assert_array_equal(fitted(connected(paths[:3])[0]), fitted(in_process(paths[:3])))


@pytest.mark.parametrize("rows", [1, 9, 10])
def test_a_table_with_a_few_changed_rows_is_refused(rows, paths):
    """The difference of the two totals would be these rows. Ten removed rows are as many as min_rows.

    A site answers from its extract; here it was lost, or changed by somebody who may write there.
    """
    before = fitted(connected(paths)[0])
    file = paths[0].parent / "rows.csv"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-rows]))
    np.testing.assert_array_equal(fitted(connected(paths)[0]), before)  # the extract
    (file,) = (paths[0].parent / "state" / "extracts").rglob("*.csv")
    file.write_text("".join(lines[:-rows]))
    federation, _ = connected(paths)
    if rows < 10:
        with pytest.raises(
            cf.InputError, match="site 'north': the rows of this table differ from those of an earlier run by fewer"
        ):
            fitted(federation)
        file.write_text("".join(lines))
        fitted(connected(paths)[0])
    else:
        np.testing.assert_array_equal(fitted(federation), fitted(in_process(paths)))


def test_a_table_that_changes_during_a_run_is_refused(paths):
    federation, link = connected(paths)

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        if read_header(data, name)[0].number == 3 and name == "east":
            (file,) = (paths[1].parent / "state" / "extracts").rglob("*.csv")
            file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
        return reply()

    link.meddle = meddle
    with pytest.raises(cf.InputError, match="site 'east': its table has changed since run"):
        fitted(federation)


def ledger_of(path: Path) -> Ledger:
    link = RunningSites([path])
    return link.service(path.parent.name).ledger()


def test_evaluations_under_masks_have_the_bits_of_a_rehearsal_and_are_counted(tmp_path):
    """Every run counts, over runs and at sites that were started anew."""
    paths = furnished_sites(tmp_path, table("classes"))
    model = cf.FederatedLogisticRegression(alpha=0.02).fit_federation(in_process(paths))
    here = model.evaluate(in_process(paths))
    for k in (1, 2):
        there = model.evaluate(connected(paths)[0])
        assert there.metrics() == here.metrics()
        assert there.intervals == here.intervals
        each = ledger_of(paths[0]).numbers // k
        assert ledger_of(paths[0]).numbers == k * each > 1000
    assert np.isfinite(here.calibration_slope)
    assert here.auc.rounding_low < here.auc.value < here.auc.rounding_high
    with pytest.raises(cf.InputError, match="one site would show its part of a sum by subtraction"):
        model.evaluate(connected(paths)[0], per_site=True)


def test_sites_are_scored_one_by_one_without_masks(tmp_path):
    paths = furnished_sites(tmp_path, table("classes"), secure_sum=False)
    model = cf.FederatedLogisticRegression(alpha=0.02).fit_federation(in_process(paths))
    there, here = (model.evaluate(f, per_site=True) for f in (connected(paths)[0], in_process(paths)))
    assert [one.metrics() for one in there.per_site.values()] == [one.metrics() for one in here.per_site.values()]
    out = model.evaluate(connected(paths)[0], cv="leave-one-site-out")
    assert list(out.per_site) == ["north", "east", "south", "west"]
    assert out.log_loss > here.log_loss


def test_an_unmasked_site_enters_every_run_into_its_ledger(paths, tmp_path):
    """A server that leaves out the first message, with enrolments of its own making, meets the ledger all the same."""
    plain = copied(paths, tmp_path / "plain", UNMASKED)
    hostile = Hostile(plain)
    forged = [
        reply_bytes({**fields_of(hostile.link, name, data.tobytes()), "run": "other"}, keys.new_identity())
        for name, data in zip(hostile.names, hostile.enrolments, strict=True)
    ]
    given = [np.frombuffer(data, np.uint8) for data in forged]
    assert hostile.ask("north", [QUERY], run="other", enrolments=given)["kind"] == "words"
    assert ledger_of(plain[0]).runs["other"].numbers > 0
    file = plain[0].parent / "rows.csv"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    for _ in range(2):
        reply = hostile.ask("north", [QUERY], run="third", enrolments=given)
        assert reply["kind"] == "refused"


def test_what_leaves_is_in_the_ledger_first(paths, monkeypatch):
    """A ledger that cannot be written: no words leave, nor when the message comes again."""
    hostile = Hostile(paths)
    monkeypatch.setattr(Ledger, "record", lambda *a, **k: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    for _ in range(2):
        reply = hostile.ask("north", [QUERY])
        assert reply["kind"] == "failed"
        assert "words" not in reply
    monkeypatch.undo()
    assert hostile.ask("north", [QUERY])["kind"] == "words"
    assert ledger_of(paths[0]).runs[hostile.run].queries["Evaluate"] == 1
