"""Flower as a post office: every piece of `network/flower.py` against a real SuperLink behind our gate, in this process.

Another version of Flower, unpacked into a folder, is tested with that folder first on PYTHONPATH.
"""

from __future__ import annotations

import ast
import contextlib
import gzip
import hashlib
import importlib.util
import io
import re
import socket
import ssl
import threading
import time
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

import uvicorn
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.primitives import asymmetric
from flwr.supercore.version import package_version
from network.memory_link import furnish, key_of, without_framing
from places import ROOT

import compfed as cf
from compfed.cli.demo import free_port
from compfed.federation import InProcess
from compfed.network import NoReply, RemoteFederation, RetryPolicy, flower, keys, superlink
from compfed.network import operator as operator_module
from compfed.network.flower import FleetConnection, FlowerLink, LinkError, Rejected, Unreachable
from compfed.network.run_folder import read_status
from compfed.network.settings import FederationSettings, admit, new_federation
from compfed.network.site import SiteNode
from compfed.network.site_settings import SiteSettings
from compfed.network.superlink import FLEET_PATHS

HOST = "127.0.0.1"


class Recorded:
    """An ASGI app that notes path and status of every request to another one."""

    def __init__(self, app: Any):
        self.app, self.requests = app, list[tuple[str, int]]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.requests.append((scope["path"], message["status"]))
            await send(message)

        await self.app(scope, receive, noted)


class Server:
    """An ASGI app behind TLS on a free port of this machine, in a thread."""

    def __init__(self, app: Any, folder: Path, port: int):
        config = uvicorn.Config(
            app, host=HOST, port=port, ssl_keyfile=str(folder / "server.key"), ssl_certfile=str(folder / "server.pem"),
            log_level="error", access_log=False, timeout_graceful_shutdown=1, server_header=False, ws="none",
        )  # fmt: skip
        self.server, self.address = uvicorn.Server(config), f"{HOST}:{port}"
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> Server:
        self.thread.start()
        end = time.monotonic() + 60
        while not self.server.started and self.thread.is_alive() and time.monotonic() < end:
            time.sleep(0.02)
        assert self.server.started
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.should_exit = True
        self.thread.join(20)


class Link:
    """A SuperLink with its keys, and what an operator and a site need to reach it."""

    def __init__(self, address: str, folder: Path, recorded: Recorded, app: Any):
        self.address, self.folder, self.ca, self.recorded, self.app = address, folder, folder / "ca.crt", recorded, app

    @property
    def state(self) -> Any:
        """What the SuperLink keeps."""
        return self.app.state.linkstate_factory.state()

    def operator(self, **identities: Any) -> FlowerLink:
        roster = {name: made.public_key() for name, made in identities.items()}
        return FlowerLink(self.address, self.folder, roster)

    def site(self, key: Any, node_id: int = 0) -> FleetConnection:
        return FleetConnection(self.address, self.ca, key, node_id)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("keys") / "keys"
    keys.make_keys(made, HOST)
    return made


@pytest.fixture(scope="module")
def link(folder) -> Iterator[Link]:
    port, secret = free_port(), keys.read_secret(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(superlink, "HOLD", 1.0)
        app = flower.superlink_app(HOST, port, folder)
        recorded = Recorded(superlink.Gate(app, secret))
        with Server(recorded, folder, port) as server:
            yield Link(server.address, folder, recorded, app)


@pytest.fixture
def key() -> Any:
    """The key of a site that the SuperLink knows."""
    return keys.new_identity()


@pytest.fixture
def operator(link, key) -> Iterator[FlowerLink]:
    made = link.operator(site=key)
    made.register()
    yield made
    made.close()


@pytest.fixture
def site(link, operator, key) -> Iterator[FleetConnection]:
    made = link.site(key)
    made.sign_in()
    yield made
    made.close()


def received(connection: FleetConnection) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if (delivery := connection.receive()) is not None:
            return delivery
    raise AssertionError("no message came")


def pulled(operator: FlowerLink, message: str) -> Any:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if found := operator.pull([message]):
            assert list(found) == [message]
            return found[message]
    raise AssertionError("no reply came")


# --- which Flower ---


def test_flower_is_imported_in_one_file():
    found = set()
    for path in (ROOT / "src" / "compfed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name == "flwr" or name.startswith("flwr.") for name in names):
                found.add(path.relative_to(ROOT / "src" / "compfed").as_posix())
    assert found == {"network/flower.py"}


def test_the_tested_versions_are_those_that_are_installed():
    """`flwr>=1.41,<1.43` and TESTED = ("1.41", "1.42") are the same versions."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = [text for text in extras["flower"] if text.startswith("flwr")]
    found = re.fullmatch(r"flwr>=1\.(\d+),<1\.(\d+)", wanted)
    assert found
    assert tuple(f"1.{minor}" for minor in range(int(found[1]), int(found[2]))) == flower.TESTED
    assert package_version.startswith(flower.TESTED)
    assert version("flwr").startswith(flower.TESTED)


# --- a site signs in ---


def test_a_site_signs_in_and_out(link, operator, key):
    ids = dict(operator._nodes)
    operator.register()
    assert operator._nodes == ids  # once
    assert operator.states()["site"] == (False, "")
    connection = link.site(key)
    assert connection.sign_in() == ids["site"]
    state = operator.states()["site"]
    assert state.online
    assert abs(datetime.fromisoformat(state.since).timestamp() - time.time()) < 10
    connection.close()
    assert not operator.states()["site"].online


def test_a_key_that_is_not_registered_is_refused(link):
    connection = link.site(keys.new_identity())
    with pytest.raises(Rejected) as refused:
        connection.sign_in()
    assert refused.value.code == 2004
    connection.close()


def test_a_predecessor_that_was_killed_is_replaced_at_once(link, operator, key):
    """Flower counts it as online until its heartbeats expire; nobody waits for that."""
    first = link.site(key)
    node = first.sign_in()
    since = operator.states()["site"].since
    first._closed.set()  # killed: no heartbeat, no sign-out
    first._client.close()
    second = link.site(key, node_id=node)
    began = time.monotonic()
    assert second.sign_in() == node
    assert time.monotonic() - began < 5
    assert operator.states()["site"].online
    assert operator.states()["site"].since != since  # the operator sees that it signed in again
    second.close()


@pytest.mark.parametrize(
    "wrong", [timedelta(days=-400), timedelta(hours=-1), timedelta(minutes=10), timedelta(days=30)]
)
def test_a_site_with_a_wrong_clock_signs_in_and_answers(wrong, link, operator, key, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + wrong

    monkeypatch.setattr(flower, "datetime", Clock)
    connection = link.site(key)
    connection.sign_in()
    operator.open()
    sent = operator.push({"site": b"a question"}, 600.0)["site"]
    connection.reply(received(connection)[0], b"an answer")
    assert pulled(operator, sent).data == b"an answer"
    connection.close()


def test_a_node_whose_heartbeats_are_refused_hears_of_it(link, operator, key, monkeypatch):
    """Its key was replaced, say: the next request says why, and the site signs in again."""
    monkeypatch.setattr(flower, "HEARTBEAT", 10.0)
    connection = link.site(key)
    connection.sign_in()
    connection.node_id += 1  # another node, as the SuperLink sees it
    monkeypatch.setattr(flower, "HEARTBEAT", 0.01)
    connection._beat()  # returns, as it was refused
    assert connection.lost is not None
    with pytest.raises(LinkError):
        connection.receive()
    connection.close()


# --- messages ---


@pytest.mark.parametrize("size", [0, 1, 1000, 20_000_000])
def test_bytes_arrive_as_they_were_sent(size, operator, site):
    there, back = (np.random.default_rng(seed).bytes(size) for seed in (1, 2))
    operator.open()
    sent = operator.push({"site": there}, 600.0)
    metadata, data = received(site)
    assert data == there
    site.reply(metadata, back)
    assert pulled(operator, sent["site"]).data == back
    assert operator.pull([sent["site"]]).get(sent["site"], flower.Reply(None)).data is None  # once


def test_the_same_bytes_for_many_sites_and_each_reply_by_its_message(link):
    identities = {f"s{i}": keys.new_identity() for i in range(3)}
    operator = link.operator(**identities)
    operator.open()
    connections = [link.site(made) for made in identities.values()]
    assert [connection.sign_in() for connection in connections] == list(operator._nodes.values())
    sent = operator.push(dict.fromkeys(identities, b"the same"), 600.0)
    assert len(set(sent.values())) == 3
    for i in (2, 0, 1):
        metadata, data = received(connections[i])
        assert data == b"the same"
        connections[i].reply(metadata, b"from %d" % i)
    assert [pulled(operator, sent[name]).data for name in identities] == [b"from 0", b"from 1", b"from 2"]
    for connection in connections:
        connection.close()
    operator.close()


def test_a_message_to_a_site_that_has_gone_is_not_connected(link, operator, key):
    connection = link.site(key)
    connection.sign_in()
    operator.open()
    connection.close()
    sent = operator.push({"site": b"anybody?"}, 600.0)
    assert pulled(operator, sent["site"]) == flower.Reply(None, "not connected")


def test_no_message_is_an_empty_answer_after_some_time(site):
    began = time.monotonic()
    assert site.receive() is None
    assert 0.5 < time.monotonic() - began < 8  # the SuperLink held the request


def test_a_waiting_site_gets_its_message_at_once(operator, site):
    operator.open()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(received(site)))
    waiting.start()
    time.sleep(0.3)
    began = time.monotonic()
    operator.push({"site": b"now"}, 600.0)
    waiting.join(10)
    assert found[0][1] == b"now"
    assert time.monotonic() - began < 1.0


# --- what a message costs ---


@contextlib.contextmanager
def echoing(link: Link, count: int) -> Iterator[tuple[FlowerLink, list[str]]]:
    """An operator, and sites in threads that send every message back, its bytes in reverse."""
    identities = {f"site-{k}": keys.new_identity() for k in range(count)}
    operator, stopped = link.operator(**identities), threading.Event()
    operator.open()
    connections = [link.site(made) for made in identities.values()]

    def echo(connection: FleetConnection) -> None:
        while not stopped.is_set():
            with contextlib.suppress(LinkError):
                if (delivery := connection.receive()) is not None:
                    connection.reply(delivery[0], delivery[1][::-1])

    for connection in connections:
        connection.sign_in()
    threads = [threading.Thread(target=echo, args=(connection,), daemon=True) for connection in connections]
    for thread in threads:
        thread.start()
    try:
        yield operator, list(identities)
    finally:
        stopped.set()
        operator.close()
        for connection in connections:
            connection.close()
        for thread in threads:
            thread.join(10)


def exchanged(operator: FlowerLink, messages: dict[str, bytes]) -> dict[str, bytes | None]:
    """The replies to a message, by site."""
    sent = operator.push(messages, 600.0)
    found: dict[str, Any] = {}
    end = time.monotonic() + 30
    while len(found) < len(sent) and time.monotonic() < end:
        found |= operator.pull([taken for taken in sent.values() if taken not in found])
    return {name: found[taken].data for name, taken in sent.items()}


@pytest.mark.parametrize(
    ("size", "most", "shared"), [(1000, 3, True), (1000, 3, False), (400_000, 10, True), (400_000, 10, False)]
)
def test_requests_per_site_and_message(size, most, shared, link):
    """A short message takes one request of a site to receive it and one to reply; a long one five more, of both sides."""
    count, messages = 6, 5
    rng = np.random.default_rng(0)
    with echoing(link, count) as (operator, names):
        exchanged(operator, dict.fromkeys(names, b"the first one opens connections"))
        link.recorded.requests.clear()
        for _ in range(messages):
            asked = dict.fromkeys(names, rng.bytes(size)) if shared else {name: rng.bytes(size) for name in names}
            assert exchanged(operator, asked) == {name: data[::-1] for name, data in asked.items()}
        made = Counter(path for path, _ in link.recorded.requests)
    made.pop("/v1/fleet/send-node-heartbeat", None)
    assert made.total() <= most * count * messages
    assert made["/v1/fleet/push-messages"] == count * messages
    assert made["/v1/fleet/pull-messages"] <= count * (messages + 1)
    distinct = messages if shared else count * messages
    long = size > flower.INLINE
    assert made["/v1/runtime/push-messages"] == (messages if shared or not long else distinct)
    assert made["/v1/runtime/push-object"] == (distinct if long else 0)  # the same content once
    assert made["/v1/fleet/push-object"] == (count * messages if long else 0)
    for path in ("/v1/fleet/pull-object", "/v1/runtime/pull-object"):
        assert (made[path] > 0) is long
    assert made["/v1/control/list-nodes"] == 0


def test_the_superlink_keeps_nothing_of_messages_that_were_answered(link):
    """A run may have any number of messages: objects and sessions of Flower's do not add up, and end with the run."""
    state = link.state

    def kept() -> tuple[int, ...]:
        stores = state.object_store.store, state._object_push_sessions, state.message_ins_store, state.message_res_store
        return tuple(len(store) for store in stores)

    before = kept()
    with echoing(link, 3) as (operator, names):
        found = []
        for k in range(12):
            size = 1000 if k % 3 else 400_000
            exchanged(operator, {name: bytes([k, *name.encode()]) * (size // 4) for name in names})
            found.append(kept())
        assert found[-1] == found[5]
        assert sum(len(entry.content) for entry in state.object_store.store.values()) == 0
        assert kept()[2:] == before[2:]
    assert kept() == before


def test_a_message_that_is_sent_again_is_another_one(link, operator, site):
    """The first may be lost, or answered late: Flower drops a message with an id that it has."""
    operator.open()
    ids = [operator.push({"site": b"question %d" % k}, 600.0)["site"] for k in range(3)]
    assert len(set(ids)) == 3
    for k, sent in enumerate(ids):
        metadata, data = received(site)
        assert (metadata.message_id, data) == (sent, b"question %d" % k)
        site.reply(metadata, b"answer %d" % k)
    assert [pulled(operator, sent).data for sent in ids] == [b"answer 0", b"answer 1", b"answer 2"]
    last = operator.push({"site": b"question 3"}, 600.0)["site"]
    assert last == ids[-1]  # its reply was read: the id is free
    metadata, data = received(site)
    assert data == b"question 3"


# --- runs ---


def test_a_run_of_somebody_else_is_not_served(link, operator, site):
    """Created through the control API, as `flwr run` does: the operator takes its own run, and ends the other."""
    intruder = link.operator()
    fab = Fab(hash_str=hashlib.sha256(flower.EMPTY_APP).hexdigest(), content=flower.EMPTY_APP)
    theirs = [intruder._control.StartRun(StartRunRequest(fab=fab)).run_id for _ in range(2)]
    operator.open()
    mine = operator._task.run.run_id
    assert mine not in theirs
    sent = operator.push({"site": b"of the operator"}, 600.0)
    metadata, data = received(site)
    assert data == b"of the operator"
    assert metadata.run_id == mine
    site.reply(metadata, b"yes")
    assert pulled(operator, sent["site"]).data == b"yes"
    assert site.receive() is None  # nothing of the other runs
    intruder.close()


def test_two_operators_have_a_run_each(link, operator, site, key):
    other = link.operator(site=key)
    operator.open()
    other.open()
    assert operator._task.run.run_id != other._task.run.run_id
    first = operator.push({"site": b"one"}, 600.0)["site"]
    second = other.push({"site": b"two"}, 600.0)["site"]
    for _ in range(2):
        metadata, data = received(site)
        site.reply(metadata, b"reply to " + data)
    assert pulled(operator, first).data == b"reply to one"
    assert pulled(other, second).data == b"reply to two"
    other.close()


def test_a_run_that_was_ended_can_be_followed_by_another(operator, site):
    for text in (b"first", b"second"):
        operator.open()
        sent = operator.push({"site": text}, 600.0)["site"]
        site.reply(received(site)[0], text)
        assert pulled(operator, sent).data == text
        operator.reset()


def test_the_app_of_a_run_names_modules_that_do_not_exist():
    with zipfile.ZipFile(io.BytesIO(flower.EMPTY_APP)) as archive:
        (name,) = archive.namelist()
        components = tomllib.loads(archive.read(name).decode())["tool"]["flwr"]["app"]["components"]
    assert name == "pyproject.toml"
    for module in components.values():
        assert importlib.util.find_spec(module.partition(":")[0]) is None


# --- a whole federation ---


def table() -> cf.data.Sites:
    rng = np.random.default_rng(3)
    A = [rng.standard_normal((m, 3)) for m in (12, 15, 14)]
    y = [a @ [1.0, -1.0, 0.0] + 0.1 * rng.standard_normal(len(a)) for a in A]
    return cf.data.from_arrays(A, y, ["north", "south", "west"], columns=["age", "dose", "bmi"])


@contextlib.contextmanager
def answering(paths: Sequence[Path]) -> Iterator[list[str]]:
    """The nodes of sites, each in a thread; what they say."""
    said: list[str] = []
    nodes = [SiteNode(SiteSettings.read(path), said.append) for path in paths]
    threads = [threading.Thread(target=node.loop, daemon=True) for node in nodes]
    for thread in threads:
        thread.start()
    try:
        yield said
    finally:
        for node in nodes:
            node.stop()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("secure_sum", [False, True])
def test_a_fit_over_flower_has_the_bits_of_this_process(secure_sum, link, tmp_path):
    paths = furnish(tmp_path, table(), secure_sum=secure_sum)
    for path in paths:
        path.write_text(path.read_text().replace("127.0.0.1:1", link.address))
        (path.parent / "ca.crt").write_bytes(link.ca.read_bytes())
    roster = {path.parent.name: key_of(path).public_key() for path in paths}
    carrier = FlowerLink(link.address, link.folder, roster)
    carrier.open()
    link.recorded.requests.clear()
    estimator = cf.FederatedLasso(alpha=0.1, algorithm="DecoupledProx", tol=1e-4)
    with answering(paths) as said, RemoteFederation(carrier, roster, folder=tmp_path / "run") as federation:
        there = estimator.fit_federation(federation)
        coef, intercept, cost = there.coef_, there.intercept_, there.communication_
    here = estimator.fit_federation(InProcess(table(), exact=True))
    np.testing.assert_array_equal(coef, here.coef_)
    np.testing.assert_array_equal(intercept, here.intercept_)
    assert without_framing(cost) == without_framing(here.communication_)
    assert sum("connected to" in line for line in said) == 3
    paths_asked = {path for path, _ in link.recorded.requests if path.startswith("/v1/fleet/")}
    assert paths_asked <= FLEET_PATHS
    assert {"/v1/fleet/pull-messages", "/v1/fleet/push-messages"} <= paths_asked


@pytest.fixture
def federation(link, tmp_path) -> Path:
    """A federation.toml for the SuperLink, and three sites, which mask their sums, that it has not met."""
    home = tmp_path / "clinics"
    new_federation(home, table().names, link.address)
    (home / "keys").symlink_to(link.folder)
    for path in furnish(home / "sites", table(), secure_sum=True):
        path.write_text(path.read_text().replace("127.0.0.1:1", link.address))
        (path.parent / "ca.crt").write_bytes(link.ca.read_bytes())
        admit(home, path.parent.name, keys.public_line(key_of(path).public_key()))
    settings = home / "federation.toml"
    text = settings.read_text().replace("FederatedLogisticRegressionCV", "FederatedLasso")
    settings.write_text(text.replace("[parameters]", "[parameters]\nalpha = 0.1\n#"))
    return home


def test_status_run_and_connect_find_the_sites(federation, capsys):
    settings = FederationSettings.read(federation)
    assert set(operator_module.site_states(settings).values()) == {"never connected"}
    paths = [federation / "sites" / name / "site.toml" for name in settings.names]
    with answering(paths):
        model, evaluation = operator_module.run(settings, federation / "run")
        assert set(re.sub(r" \d.*", "", words) for words in operator_module.site_states(settings).values()) == {
            "connected since"
        }
        with cf.network.connect(federation) as connected:  # from a script, with nothing on disk
            again = cf.FederatedLasso(alpha=0.1).fit_federation(connected)
    assert all(words.startswith("signed out at ") for words in operator_module.site_states(settings).values())
    here = cf.FederatedLasso(alpha=0.1).fit_federation(InProcess(table(), exact=True))
    for found in (model, again, cf.load_model(federation / "run")):
        np.testing.assert_array_equal(found.coef_, here.coef_)
    messages = [line for line in capsys.readouterr().out.splitlines() if line.startswith("message ")]
    assert evaluation is not None
    assert evaluation.r2 == pytest.approx(here.evaluate(InProcess(table())).r2, rel=1e-12)
    rounds = here.communication_.rounds + evaluation.communication.rounds
    assert len(messages) == 1 + rounds  # the first asks the sites to enrol
    status = read_status(federation / "run")
    assert (status["state"], status["rounds"]) == ("finished", here.communication_.rounds)
    assert {path.name for path in (federation / "run").iterdir()} == {
        "coefficients.csv", "config.json", "evaluation.json", "lock", "log.jsonl", "model.safetensors", "report.html",
        "result.json", "result.npz", "status.json", "trace.npz", "write_ahead.log",
    }  # fmt: skip
    with pytest.raises(cf.InputError, match="holds a run that has finished"):
        operator_module.run(settings, federation / "run")


def test_a_run_that_failed_says_why_and_continues(federation, capsys):
    settings = FederationSettings.read(federation)
    paths = [federation / "sites" / name / "site.toml" for name in settings.names]
    impatient = replace(settings, retry=RetryPolicy(wait=0.5, pause=0.05))
    operator_module.site_states(settings)  # admits the keys
    with pytest.MonkeyPatch.context() as patch, answering([paths[0], paths[2]]):
        patch.setattr(FederationSettings, "read", lambda *_, **__: impatient)
        while not operator_module.site_states(settings)["north"].startswith("connected"):
            time.sleep(0.1)
        with pytest.raises(NoReply, match=r"site 'south' was not connected for 0\.5 s"):
            operator_module.run(impatient, federation / "run")
    status = read_status(federation / "run")
    assert status["state"] == "failed"
    assert str(status["reason"]).startswith("site 'south' was not connected")
    with answering(paths):
        model, _ = operator_module.run(settings, federation / "run")
    np.testing.assert_array_equal(
        model.coef_, cf.FederatedLasso(alpha=0.1).fit_federation(InProcess(table(), exact=True)).coef_
    )


def test_a_link_says_who_is_connected_and_when_they_signed_in(link, key):
    carrier = link.operator(north=key)
    carrier.open()
    assert carrier.connected() == {}
    connection = link.site(key)
    connection.sign_in()
    first = carrier.connected()
    assert list(first) == ["north"]
    connection.close()
    assert carrier.connected() == {}
    time.sleep(0.01)
    again = link.site(key, connection.node_id)
    again.sign_in()
    assert carrier.connected()["north"] != first["north"]
    again.close()
    carrier.close()


def test_no_app_is_ever_fetched(link, operator, site):
    """A node of Flower asks for the app of a run; a site of ours does not. Reads what this whole file has requested."""
    operator.open()
    sent = operator.push({"site": b"x"}, 600.0)["site"]
    site.reply(received(site)[0], b"y")
    assert pulled(operator, sent).data == b"y"
    assert link.recorded.requests
    asked = {path for path, _ in link.recorded.requests}
    assert not [path for path in asked if "fab" in path or "get-run" in path or "context" in path]
    assert {path for path in asked if path.startswith("/v1/fleet/")} <= FLEET_PATHS


# --- strangers ---


def test_the_control_api_is_closed_to_whoever_has_only_the_certificate(link, tmp_path):
    client = flower._client(ControlHttpClient, link.address, link.ca)
    fab = Fab(hash_str="0", content=b"evil")
    for method, request in (
        (client.ListNodes, ListNodesRequest()),
        (client.StartRun, StartRunRequest(fab=fab)),
        (client.RegisterNode, RegisterNodeRequest(public_key=b"x", name="evil")),
    ):
        with pytest.raises(Rejected) as refused:
            flower._call(link.address, method, request)
        assert refused.value.status == 403
        assert "for the operator" in str(refused.value)
    client.close()
    (tmp_path / "ca.crt").write_bytes(link.ca.read_bytes())
    (tmp_path / keys.SECRET).write_bytes(b"x" * 32)  # another secret
    stranger = FlowerLink(link.address, tmp_path, {})
    with pytest.raises(LinkError, match="answered 403"):
        stranger.states()
    stranger.close()


def test_a_large_request_of_a_stranger_is_not_read(link, operator, key):
    context = ssl.create_default_context(cafile=str(link.ca))
    with httpx.Client(verify=context) as client:
        large = client.post(f"https://{link.address}/v1/fleet/push-object", content=b"x" * 2_000_000)
        assert large.status_code == 413
        for path in ("/docs", "/openapi.json", "/", "/v1/control/list-nodes"):
            assert client.get(f"https://{link.address}{path}").status_code == 403


def test_who_asks_for_the_messages_of_another_site_is_refused_at_once(link, operator, site, monkeypatch):
    """Only a request that waits for its own messages, with a signature, is held open."""
    monkeypatch.setattr(superlink, "HOLD", 20.0)
    other = keys.new_identity()
    neighbour = link.operator(other=other)
    neighbour.register()
    operator.open()
    for key, node in ((other, site.node_id), (keys.new_identity(), site.node_id)):
        thief = link.site(key, node)
        began = time.monotonic()
        with pytest.raises(Rejected) as refused:
            thief.receive()
        assert refused.value.status == 401
        assert time.monotonic() - began < 5
        thief.close()
    unsigned = link.site(site.key, site.node_id)
    monkeypatch.setattr(asymmetric, "sign_message", lambda key, data: b"no signature")
    with pytest.raises(Rejected):
        unsigned.receive()
    unsigned._client.close()
    monkeypatch.undo()
    operator.push({"site": b"not for others"}, 600.0)
    assert received(site)[1] == b"not for others"
    neighbour.close()


# --- servers that are not what they should be ---


class Strange:
    """An ASGI app with one answer for everything."""

    status, headers, parts = 200, [(b"content-type", b"text/html")], (b"",)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        await receive()
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        with contextlib.suppress(OSError):  # a client that hung up
            for part in self.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


@pytest.fixture(scope="module")
def strange(folder) -> Iterator[tuple[Strange, str]]:
    app = Strange()
    with Server(app, folder, free_port()) as server:
        yield app, server.address


def signing_in(address: str, ca: Path) -> LinkError:
    connection = FleetConnection(address, ca, keys.new_identity())
    with pytest.raises(LinkError) as problem:
        connection.sign_in()
    connection.close()
    return problem.value


def test_a_response_above_the_limit_is_not_read(strange, folder, monkeypatch):
    app, address = strange
    monkeypatch.setattr(flower, "LARGEST", 100_000)
    app.status, app.headers, app.parts = 200, [], (b"x" * 10_000,) * 5000
    assert isinstance(problem := signing_in(address, folder / "ca.crt"), Unreachable)
    assert f"the connection to {address} was lost (ReadError)" in str(problem)


def test_a_compressed_response_is_not_unpacked(strange, folder):
    """A megabyte of it may be a gigabyte."""
    app, address = strange
    app.status, app.headers = 200, [(b"content-encoding", b"gzip")]
    app.parts = (gzip.compress(bytes(10_000_000)),)
    assert f"the connection to {address} was lost (ReadError)" in str(signing_in(address, folder / "ca.crt"))


def test_redirects_are_not_followed(strange, folder, link):
    app, address = strange
    link.recorded.requests.clear()
    target = f"https://{link.address}/v1/fleet/activate-node".encode()
    for status in (301, 302, 307, 308):
        app.status, app.headers, app.parts = status, [(b"location", target)], (b"",)
        problem = signing_in(address, folder / "ca.crt")
        assert isinstance(problem, Rejected)
        assert problem.status == status
    assert link.recorded.requests == []


def test_words_of_a_strange_server_are_safe_to_print(strange, folder):
    app, address = strange
    app.status, app.headers, app.parts = 500, [], (b"\x1b]52;c;ZXZpbA==\x07" * 1000,)
    problem = signing_in(address, folder / "ca.crt")
    assert isinstance(problem, Rejected)
    assert "\x1b" not in str(problem)
    assert len(str(problem)) < 400


ERRORS = {  # (status, headers, body) that broke the reader of errors
    "charset": (500, [(b"content-type", b"application/json; charset=hex")], b"zz"),
    "compressed charset": (500, [(b"content-type", b"application/json; charset=zlib")], b"zz"),
    "deep": (500, [], b"[" * 9999),
    "a long number": (500, [], b'{"code": ' + b"9" * 5000 + b', "public_message": "x"}'),
    "the end of time": (401, [(b"date", b"Fri, 31 Dec 9999 23:59:59 -1200")], b""),
    "a zone": (401, [(b"date", b"Fri, 31 Dec 2026 23:59:59 +99999999")], b""),
}


@pytest.mark.parametrize("what", ERRORS)
def test_an_error_of_a_strange_server_is_an_error_of_the_link(what, strange, folder):
    app, address = strange
    app.status, app.headers, app.parts = ERRORS[what][0], ERRORS[what][1], (ERRORS[what][2],)
    problem = signing_in(address, folder / "ca.crt")
    assert isinstance(problem, Rejected)
    assert problem.status == ERRORS[what][0]


def test_a_server_that_is_no_superlink_is_named(strange, folder):
    app, address = strange
    app.status, app.headers, app.parts = 200, [(b"content-type", b"text/html")], (b"<html>Welcome to nginx!</html>",)
    problem = signing_in(address, folder / "ca.crt")
    assert isinstance(problem, Unreachable)
    assert address in str(problem)


def test_another_ca_is_said_in_words(link, tmp_path):
    keys.make_keys(tmp_path / "other", HOST)
    problem = signing_in(link.address, tmp_path / "other" / "ca.crt")
    assert str(problem) == (
        f"the certificate of {link.address} is not signed by this CA: ask the operator for the ca.crt of the federation"
    )


def test_another_host_is_said_in_words(tmp_path, folder, link):
    keys.make_keys(tmp_path / "keys", "fed.example.org")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "LOCAL", ())
        keys.make_keys(tmp_path / "far", "fed.example.org")
    with Server(Strange(), tmp_path / "far", free_port()) as server:
        problem = signing_in(server.address, tmp_path / "far" / "ca.crt")
    assert "was made for another host name: dial the name that it was made for" in str(problem)


def test_nothing_that_listens_is_said_in_words(folder):
    address = f"{HOST}:{free_port()}"
    assert str(signing_in(address, folder / "ca.crt")) == f"nothing listens at {address}"
    operator = FlowerLink(address, folder, {})
    with pytest.raises(Unreachable, match=f"nothing listens at {address}"):
        operator.states()
    operator.close()


def test_a_host_that_is_not_known_is_said_in_words(folder):
    problem = signing_in("no-such-host.invalid:8443", folder / "ca.crt")
    assert "no-such-host.invalid:8443" in str(problem)


def test_a_server_that_says_nothing_is_said_in_words(folder, monkeypatch):
    monkeypatch.setattr(flower, "TIMEOUT", 0.3)
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        assert "did not answer in time" in str(signing_in(address, folder / "ca.crt"))
