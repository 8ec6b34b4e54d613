"""The gate in front of Flower's SuperLink, around an app that only counts: who passes, how much, and how long."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest

from compfed.network import superlink
from compfed.network.flower import GATE_HEADER, TASK_HEADER
from compfed.network.superlink import (
    FLEET_PATHS,
    OPERATOR_CONTENT,
    OPERATOR_PUSHES,
    OPERATOR_WAITS,
    SITES_CONTENT,
    SITES_PUSH,
    SITES_WAIT,
    Gate,
    is_local,
)

SECRET = b"s" * 32
TOKEN = hmac.new(SECRET, b"compfed/gate/1", hashlib.sha256).hexdigest()
LOCAL, AWAY = ("127.0.0.1", 50000), ("203.0.113.7", 50000)


class Stub:
    """An app that notes what reaches it; `bodies` are what it answers, the last one again and again."""

    def __init__(self, *bodies: bytes, status: int = 200):
        self.bodies, self.status = list(bodies) or [b"ok"], status
        self.seen: list[tuple[str, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        assert not message.get("more_body")
        self.seen.append((scope.get("path", scope["type"]), message.get("body", b"")))
        body = self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": body})


class Client:
    """One request through a gate."""

    def __init__(
        self, gate: Any, path: str, *, client: Any = LOCAL, token: str | None = None, body: bytes | list[bytes] = b"x",
        headers: Any = (),
    ):  # fmt: skip
        shown = [] if token is None else [(GATE_HEADER.encode(), token.encode())]
        server = ("198.51.100.1", 8443)
        self.scope = {
            "type": "http", "method": "POST", "path": path, "headers": [*shown, *headers], "client": client, "server": server,
        }  # fmt: skip
        parts = [body] if isinstance(body, bytes) else body
        last = len(parts) - 1
        self.parts = [{"type": "http.request", "body": part, "more_body": k < last} for k, part in enumerate(parts)]
        self.gate, self.sent = gate, list[dict[str, Any]]()
        self.hung_up = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self.parts:
            return self.parts.pop(0)
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    async def __call__(self) -> tuple[int, bytes]:
        await self.gate(self.scope, self.receive, self.send)
        return self.answer()

    def answer(self) -> tuple[int, bytes]:
        if not self.sent:
            return 0, b""
        return self.sent[0]["status"], b"".join(message.get("body", b"") for message in self.sent[1:])


def run(make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(make(), 20))


def asked(stub: Any, path: str, **options: Any) -> tuple[int, bytes]:
    async def one() -> tuple[int, bytes]:
        return await Client(Gate(stub, SECRET), path, **options)()

    return run(one)


# --- who passes ---


@pytest.mark.parametrize("path", sorted(FLEET_PATHS))
def test_a_site_reaches_the_paths_that_it_needs(path):
    stub = Stub()
    assert asked(stub, path, client=AWAY) == (200, b"ok")
    assert stub.seen == [(path, b"x")]


def test_a_site_needs_eight_paths():
    assert len(FLEET_PATHS) == 8
    assert not any(word in path for path in FLEET_PATHS for word in ("fab", "run", "register", "context"))


FOREIGN = (
    "/v1/control/start-run", "/v1/control/register-node", "/v1/control/list-nodes", "/v1/runtime/push-messages",
    "/v1/runtime/pull-messages", "/v1/runtime/acquire-task", "/v1/fleet/get-fab", "/v1/fleet/get-run",
    "/v1/fleet/register-node", "/", "", "/docs", "/openapi.json", "/health", "/v1/fleet/pull-messages/",
    "//v1/fleet/pull-messages", "/v1/fleet/../control/start-run", "/v1/fleet/pull-messages/../../control/start-run",
    "/V1/FLEET/PULL-MESSAGES", "/v1/fleet/pull-messages\x00", "/v1/fleet/",
)  # fmt: skip


@pytest.mark.parametrize("path", FOREIGN)
def test_everything_else_needs_the_secret_and_this_machine(path):
    stub = Stub()
    refused = [
        asked(stub, path, client=LOCAL),
        asked(stub, path, client=AWAY, token=TOKEN),
        asked(stub, path, client=None, token=TOKEN),
        asked(stub, path, client=LOCAL, token=""),
        asked(stub, path, client=LOCAL, token=TOKEN[:-1]),
        asked(stub, path, client=LOCAL, token=TOKEN.upper()),
        asked(stub, path, client=LOCAL, token="\u00e4" * 64),
    ]
    assert {status for status, _ in refused} == {403}
    assert stub.seen == []  # not a byte of it reached Flower
    assert "for the operator" in json.loads(refused[0][1])["detail"]
    assert asked(stub, path, client=LOCAL, token=TOKEN) == (200, b"ok")
    assert len(stub.seen) == 1


def test_the_secret_of_another_federation_is_no_key():
    other = hmac.new(b"t" * 32, b"compfed/gate/1", hashlib.sha256).hexdigest()
    assert asked(Stub(), "/v1/control/start-run", token=other)[0] == 403
    assert asked(Stub(), "/v1/control/start-run", token=SECRET.decode())[0] == 403  # nor is the secret itself


def test_headers_of_a_proxy_do_not_make_a_client_local():
    forwarded = [(b"x-forwarded-for", b"127.0.0.1"), (b"x-real-ip", b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1")]
    assert asked(Stub(), "/v1/control/start-run", client=AWAY, token=TOKEN, headers=forwarded)[0] == 403


def test_websockets_do_not_pass():
    stub = Stub()

    async def connect() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        scope = {"type": "websocket", "path": "/v1/control/start-run", "headers": [], "client": AWAY}
        await Gate(stub, SECRET)(scope, receive, send)
        return sent

    assert [message["type"] for message in run(connect)] == ["websocket.close"]
    assert stub.seen == []


def test_the_start_of_the_server_passes():
    stub = Stub()

    async def start() -> None:
        async def receive() -> Any:
            return {"type": "lifespan.startup"}

        async def send(_: Any) -> None: ...

        await Gate(stub, SECRET)({"type": "lifespan"}, receive, send)

    run(start)
    assert stub.seen == [("lifespan", b"")]


@pytest.mark.parametrize(
    ("client", "server", "local"),
    [
        (("127.0.0.1", 1), ("0.0.0.0", 8443), True),
        (("127.8.9.1", 1), ("0.0.0.0", 8443), True),
        (("::1", 1), ("::", 8443), True),
        (("10.0.0.5", 1), ("10.0.0.5", 8443), True),  # the machine of the server dials its own address
        (("10.0.0.6", 1), ("10.0.0.5", 8443), False),
        (("203.0.113.7", 1), ("0.0.0.0", 8443), False),
        (("128.0.0.1", 1), None, False),
        (("0.0.0.0", 1), ("10.0.0.5", 8443), False),
        (("localhost", 1), ("10.0.0.5", 8443), False),  # a name is no address
        (("", 1), ("10.0.0.5", 8443), False),
        (None, ("10.0.0.5", 8443), False),
        (None, None, False),
        (("testclient", 1), ("testclient", 8443), False),
    ],
)
def test_which_clients_are_on_this_machine(client, server, local):
    assert is_local({"client": client, "server": server}) is local


# --- how much ---


@pytest.fixture
def small(monkeypatch) -> None:
    """A stranger may send 1,000 bytes, a registered node and the operator 5,000; a header says who is registered."""
    monkeypatch.setattr(superlink, "STRANGER", 1000)
    monkeypatch.setattr(superlink, "LARGEST", 5000)
    monkeypatch.setattr(superlink, "node_of", lambda app, headers: 7 if headers.get(b"node") == b"known" else None)


NODE = (b"node", b"known")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("path", "headers", "most"),
    [
        ("/v1/fleet/push-object", [], 1000),
        ("/v1/fleet/push-object", [NODE], 5000),
        ("/v1/runtime/push-object", [], 5000),
    ],
)
def test_a_request_that_is_too_large_is_refused(path, headers, most):
    stub = Stub()
    assert asked(stub, path, token=TOKEN, headers=headers, body=b"x" * most) == (200, b"ok")
    declared = [*headers, (b"content-length", str(most + 1).encode())]
    assert asked(stub, path, token=TOKEN, headers=declared)[0] == 413  # as declared
    assert asked(stub, path, token=TOKEN, headers=headers, body=[b"x" * most, b"x"])[0] == 413  # as it comes
    assert stub.seen == [(path, b"x" * most)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("declared", [b"-1", b"many", b"", b"1e3"])
def test_a_size_that_is_no_number_is_refused(declared):
    assert asked(Stub(), "/v1/fleet/push-object", headers=[NODE, (b"content-length", declared)])[0] == 413


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("headers", "read"), [([], 11), ([NODE], 51)])
def test_reading_stops_at_the_limit(headers, read):
    """A client that sends without end is not read to its end."""

    async def one() -> tuple[int, int]:
        client = Client(Gate(Stub(), SECRET), "/v1/fleet/push-object", headers=headers, body=[b"x" * 100] * 1000)
        status, _ = await client()
        return status, 1000 - len(client.parts)

    assert run(one) == (413, read)


def test_a_body_in_parts_reaches_the_app_whole():
    stub = Stub()
    asked(stub, "/v1/fleet/push-object", body=[b"one ", b"", b"two"])
    assert stub.seen == [("/v1/fleet/push-object", b"one two")]


def test_a_client_that_hangs_up_in_its_request_reaches_nobody():
    stub = Stub()

    async def one() -> None:
        client = Client(Gate(stub, SECRET), "/v1/fleet/push-object")
        client.parts = [{"type": "http.request", "body": b"x", "more_body": True}, {"type": "http.disconnect"}]
        await client()

    run(one)
    assert stub.seen == []


@pytest.mark.usefixtures("small")
def test_a_long_reply_does_not_travel_in_its_announcement(monkeypatch):
    """The operator reads the announcements of many sites in one response: their size is bounded."""
    monkeypatch.setattr(superlink, "INLINE", 2000)
    monkeypatch.setattr(superlink, "FRAMING", 100)
    stub = Stub()
    assert asked(stub, SITES_PUSH, headers=[NODE], body=b"x" * 2100) == (200, b"ok")
    assert asked(stub, SITES_PUSH, headers=[NODE], body=b"x" * 2101)[0] == 413
    assert asked(stub, SITES_CONTENT, headers=[NODE], body=b"x" * 2101) == (200, b"ok")
    assert asked(stub, OPERATOR_PUSHES, token=TOKEN, body=b"x" * 2101) == (200, b"ok")
    assert [path for path, _ in stub.seen] == [SITES_PUSH, SITES_CONTENT, OPERATOR_PUSHES]


# --- how long ---


@pytest.fixture(autouse=True)
def patient(monkeypatch) -> None:
    """Nothing happens because of time; the header `node` has the id of a registered node."""
    for name in ("HOLD", "OPERATOR_HOLD", "LOOK_AGAIN"):
        monkeypatch.setattr(superlink, name, 15.0)
    monkeypatch.setattr(superlink, "waiting_node", lambda app, headers, body: int(headers.get(b"node", 0)) or None)


def site(gate: Any, node: int) -> Client:
    """The request of a site for messages."""
    return Client(gate, SITES_WAIT, headers=[(b"node", b"%d" % node)], client=AWAY)


def operator(gate: Any, replies: int = 1, name: bytes = b"a run") -> Client:
    """The request of an operator for replies to so many messages."""
    body = PullAppMessagesRequest(message_ids=[str(k) for k in range(replies)]).SerializeToString()
    return Client(gate, OPERATOR_WAITS, token=TOKEN, headers=[(TASK_HEADER.encode(), name)], body=body)


def messages(nodes: Any, inline: bool = True) -> list[Message]:
    content = RecordDict(items=[RecordDict.Item(key="compfed")]) if inline else RecordDict()
    return [Message(metadata=Metadata(dst_node_id=node), content=content) for node in nodes]


def pushes(gate: Any, *nodes: int, inline: bool = True) -> Client:
    """The request of an operator that pushes a message to each of some nodes."""
    body = PushAppMessagesRequest(messages_list=messages(nodes, inline)).SerializeToString()
    return Client(gate, OPERATOR_PUSHES, token=TOKEN, body=body)


def replies(gate: Any, inline: bool = True) -> Client:
    """The request of a site that pushes a reply."""
    body = PushMessagesRequest(messages_list=messages([1], inline)).SerializeToString()
    return Client(gate, SITES_PUSH, client=AWAY, body=body)


class Mailbox:
    """An app like Flower: hands out the messages that were pushed, once each, and notes who asked when there were none."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[bytes]] = {}
        self.asked = list[tuple[int, int]]()  # node, and how many messages it got
        self.refuses = False
        self.slow: asyncio.Event | None = (
            None  # the first who asks sees what was there before, and is answered after this
        )
        self.late = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body", b"")
        status, answer = 200, b""
        if scope["path"] == OPERATOR_PUSHES:
            for message in PushAppMessagesRequest.FromString(body).messages_list:
                self.waiting.setdefault(message.metadata.dst_node_id, []).append(b"a message")
        elif scope["path"] == SITES_PUSH:
            self.waiting.setdefault(0, []).append(b"r")
        elif scope["path"] == OPERATOR_WAITS:
            answer = b"".join(self.waiting.pop(0, []))
            self.asked.append((0, len(answer)))
        elif scope["path"] == SITES_WAIT:
            node = int(dict(scope["headers"])[b"node"])
            await asyncio.sleep(0)  # others come in between
            if self.late and self.slow is not None:
                self.late = False
                await self.slow.wait()
            elif self.refuses:
                status, answer = 401, b"who are you"
            elif found := self.waiting.get(node, []):
                answer = found.pop(0)
            self.asked.append((node, 1 if answer else 0))
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": answer})


def test_flower_is_asked_once_by_the_site_that_a_message_is_for():
    async def one() -> tuple[Any, float, Mailbox]:
        app = Mailbox()
        gate = Gate(app, SECRET)
        waiting = [asyncio.ensure_future(site(gate, node)()) for node in (7, 8)]
        await asyncio.sleep(0.05)
        assert app.asked == []
        began = time.monotonic()
        await pushes(gate, 7)()
        answer, seconds = await waiting[0], time.monotonic() - began
        await asyncio.sleep(0.05)
        assert not waiting[1].done()
        waiting[1].cancel()
        return answer, seconds, app

    answer, seconds, app = run(one)
    assert answer == (200, b"a message")
    assert seconds < 2
    assert app.asked == [(7, 1)]


def test_messages_that_came_before_are_handed_out_at_once_one_by_one():
    async def one() -> Mailbox:
        app = Mailbox()
        gate = Gate(app, SECRET)
        await pushes(gate, 7, 8, 7)()
        assert [await site(gate, 7)() for _ in range(2)] == [(200, b"a message")] * 2
        third = asyncio.ensure_future(site(gate, 7)())
        await asyncio.sleep(0.05)
        assert not third.done()
        await pushes(gate, 7)()
        assert await third == (200, b"a message")
        return app

    assert run(one).asked == [(7, 1)] * 3


def test_a_message_whose_content_follows_wakes_nobody_before_it():
    async def one() -> Mailbox:
        app = Mailbox()
        gate = Gate(app, SECRET)
        waiting = asyncio.ensure_future(site(gate, 7)())
        await pushes(gate, 7, inline=False)()
        await asyncio.sleep(0.05)
        assert (app.asked, waiting.done()) == ([], False)
        await Client(gate, OPERATOR_CONTENT, token=TOKEN)()
        assert await waiting == (200, b"a message")
        return app

    assert run(one).asked == [(7, 1)]


def test_a_stranger_is_not_held_and_what_flower_refuses_takes_no_message_away():
    """A request whose stamp is too old, say: the message stays for the next one."""

    async def one() -> None:
        app = Mailbox()
        gate = Gate(app, SECRET)
        assert await site(gate, 0)() == (200, b"")  # a key that is not registered
        await pushes(gate, 7)()
        app.refuses = True
        assert (await site(gate, 7)())[0] == 401
        app.refuses = False
        began = time.monotonic()
        assert await site(gate, 7)() == (200, b"a message")
        assert time.monotonic() - began < 5

    run(one)


def test_a_message_that_comes_while_flower_says_no_is_not_missed(monkeypatch):
    """The run of the first message has ended. The second one comes while Flower says that there is none."""

    async def one() -> None:
        app = Mailbox()
        gate = Gate(app, SECRET)
        await pushes(gate, 7)()
        app.waiting.clear()
        app.slow, app.late = asyncio.Event(), True
        waiting = asyncio.ensure_future(site(gate, 7)())
        await asyncio.sleep(0.05)
        await pushes(gate, 7)()
        app.slow.set()
        began = time.monotonic()
        assert await waiting == (200, b"a message")
        assert time.monotonic() - began < 5
        assert app.asked == [(7, 0), (7, 1)]

    run(one)


def test_two_requests_of_a_site_share_its_messages():
    async def one() -> None:
        app = Mailbox()
        gate = Gate(app, SECRET)
        both = [asyncio.ensure_future(site(gate, 7)()) for _ in range(2)]
        await asyncio.sleep(0.05)
        await pushes(gate, 7)()
        await asyncio.sleep(0.05)
        assert sum(each.done() for each in both) == 1
        await pushes(gate, 7)()
        assert await asyncio.gather(*both) == [(200, b"a message")] * 2

    run(one)


def test_an_operator_is_woken_by_a_reply_and_collects_those_that_come_together(monkeypatch):
    monkeypatch.setattr(superlink, "LINGER", 0.1)

    async def one() -> tuple[Any, Mailbox]:
        app = Mailbox()
        gate = Gate(app, SECRET)
        waiting = asyncio.ensure_future(operator(gate, 4)())
        await asyncio.sleep(0.05)
        for _ in range(3):
            await replies(gate)()
            await asyncio.sleep(0.01)
        return await waiting, app

    answer, app = run(one)
    assert answer == (200, b"rrr")
    assert app.asked == [(0, 0), (0, 3)]  # when it came, and after the moment for which three waited for a fourth


def test_an_operator_whose_replies_are_all_there_does_not_wait_for_others(monkeypatch):
    monkeypatch.setattr(superlink, "LINGER", 10.0)
    monkeypatch.setattr(superlink, "LONGEST_LINGER", 10.0)

    async def one() -> None:
        app = Mailbox()
        gate = Gate(app, SECRET)
        began = time.monotonic()
        for _ in range(2):
            waiting = asyncio.ensure_future(operator(gate, 3)())
            await asyncio.sleep(0.02)
            for _ in range(3):
                await replies(gate)()
            assert await waiting == (200, b"rrr")
        assert time.monotonic() - began < 5

    run(one)


def test_a_long_reply_wakes_the_operator_when_its_content_is_there():
    async def one() -> None:
        app = Mailbox()
        gate = Gate(app, SECRET)
        waiting = asyncio.ensure_future(operator(gate)())
        await asyncio.sleep(0.02)
        await replies(gate, inline=False)()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await Client(gate, SITES_CONTENT, client=AWAY)()
        assert await waiting == (200, b"r")

    run(one)


def test_two_operators_do_not_take_each_others_turn():
    async def one() -> None:
        app = Mailbox()
        gate = Gate(app, SECRET)
        both = [asyncio.ensure_future(operator(gate, 1, name)()) for name in (b"one", b"two")]
        await asyncio.sleep(0.02)
        for _ in range(2):
            await replies(gate)()
            await asyncio.sleep(0.02)
        assert await asyncio.gather(*both) == [(200, b"r")] * 2

    run(one)


def test_what_is_no_message_of_flower_wakes_nobody():
    async def one() -> None:
        app = Stub(b"ok")
        gate = Gate(app, SECRET)
        for path in (OPERATOR_PUSHES, SITES_PUSH):
            await Client(gate, path, token=TOKEN, body=b"\xff\xff")()
        assert (gate._mail, gate._replies) == ({}, 1)

    run(one)


def test_an_error_is_not_held():
    for status, body in ((401, b""), (500, b"{}")):
        assert asked(Stub(b"", body, status=status), OPERATOR_WAITS, token=TOKEN)[0] == status


def test_a_held_request_ends_after_its_time(monkeypatch):
    monkeypatch.setattr(superlink, "HOLD", 0.2)
    stub = Stub(b"")
    began = time.monotonic()
    assert asked(stub, SITES_WAIT, headers=[(b"node", b"7")]) == (200, b"")
    assert 0.15 < time.monotonic() - began < 5
    assert len(stub.seen) == 1  # at the end: it is Flower that says there is none


def test_an_operator_is_answered_sooner_than_a_site(monkeypatch):
    """It has other things to do while replies are missing: to see who is connected, and to send again."""
    monkeypatch.setattr(superlink, "OPERATOR_HOLD", 0.1)
    began = time.monotonic()
    assert asked(Stub(b""), OPERATOR_WAITS, token=TOKEN) == (200, b"")
    assert time.monotonic() - began < 5


def test_held_requests_end_when_the_server_does():
    async def one() -> Any:
        gate = Gate(Mailbox(), SECRET)
        waiting = [asyncio.ensure_future(client()) for client in (site(gate, 7), operator(gate))]
        await asyncio.sleep(0.02)
        gate.stop()
        return await asyncio.gather(*waiting)

    assert run(one) == [(200, b"")] * 2


def test_the_operator_learns_of_nodes_that_have_gone(monkeypatch):
    """A node that goes wakes nobody: the request of the operator is tried again now and then."""
    monkeypatch.setattr(superlink, "LOOK_AGAIN", 0.05)
    assert asked(Stub(b"", b"", b"gone"), OPERATOR_WAITS, token=TOKEN) == (200, b"gone")


@pytest.mark.parametrize("who", [lambda gate: site(gate, 7), operator])
def test_a_held_request_whose_client_hung_up_is_dropped(who):
    stub = Stub(b"", b"a message for nobody")

    async def one() -> tuple[Client, float]:
        gate = Gate(stub, SECRET)
        client = who(gate)
        waiting = asyncio.ensure_future(client())
        await asyncio.sleep(0.05)
        began = time.monotonic()
        client.hung_up.set()
        await waiting
        return client, time.monotonic() - began

    client, seconds = run(one)
    assert seconds < 2
    assert client.sent == []
    assert len(stub.seen) <= 1  # no message was taken out for a client that is not there


def test_many_are_woken_at_once():
    count = 50

    async def all_of_them() -> list[Any]:
        gate = Gate(Mailbox(), SECRET)
        waiting = [asyncio.ensure_future(site(gate, node)()) for node in range(1, count + 1)]
        await asyncio.sleep(0.05)
        await pushes(gate, *range(1, count + 1))()
        return await asyncio.gather(*waiting)

    assert run(all_of_them) == [(200, b"a message")] * count
