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

from compfed.network import superlink
from compfed.network.flower import GATE_HEADER
from compfed.network.superlink import FLEET_PATHS, OPERATOR_WAITS, SITES_WAIT, Gate, is_local

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
    monkeypatch.setattr(superlink, "is_registered_node", lambda app, headers: headers.get(b"node") == b"known")


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


# --- how long ---


@pytest.mark.parametrize(
    ("waits", "wakes"), [(SITES_WAIT, "/v1/runtime/push-messages"), (OPERATOR_WAITS, "/v1/fleet/push-messages")]
)
def test_a_held_request_is_answered_when_there_is_a_message(waits, wakes, monkeypatch):
    monkeypatch.setattr(superlink, "HOLD", 15.0)
    monkeypatch.setattr(superlink, "LOOK_AGAIN", 15.0)
    stub = Stub(b"", b"pushed", b"a message")

    async def both() -> tuple[Any, float]:
        gate = Gate(stub, SECRET)
        waiting = asyncio.ensure_future(Client(gate, waits, token=TOKEN)())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        began = time.monotonic()
        assert await Client(gate, wakes, token=TOKEN)() == (200, b"pushed")
        return await waiting, time.monotonic() - began

    (status, body), seconds = run(both)
    assert (status, body) == (200, b"a message")
    assert seconds < 2
    assert [path for path, _ in stub.seen] == [waits, wakes, waits]
    assert stub.seen[0][1] == stub.seen[2][1] == b"x"  # the same request, asked again


def test_a_message_that_is_there_is_not_held():
    stub = Stub(b"a message")
    began = time.monotonic()
    assert asked(stub, SITES_WAIT) == (200, b"a message")
    assert time.monotonic() - began < 1


def test_an_error_is_not_held():
    assert asked(Stub(b"", status=401), SITES_WAIT) == (401, b"")
    assert asked(Stub(b"{}", status=500), SITES_WAIT) == (500, b"{}")


def test_a_held_request_ends_after_its_time(monkeypatch):
    monkeypatch.setattr(superlink, "HOLD", 0.2)
    stub = Stub(b"")
    began = time.monotonic()
    assert asked(stub, SITES_WAIT) == (200, b"")
    assert 0.15 < time.monotonic() - began < 5
    assert len(stub.seen) == 2  # once at the beginning, once at the end


def test_the_operator_learns_of_nodes_that_have_gone(monkeypatch):
    """A node that goes wakes nobody: the request of the operator is tried again now and then."""
    monkeypatch.setattr(superlink, "LOOK_AGAIN", 0.05)
    assert asked(Stub(b"", b"", b"gone"), OPERATOR_WAITS, token=TOKEN) == (200, b"gone")


@pytest.mark.parametrize("path", [SITES_WAIT, OPERATOR_WAITS])
def test_a_held_request_whose_client_hung_up_is_dropped(path, monkeypatch):
    monkeypatch.setattr(superlink, "HOLD", 15.0)
    monkeypatch.setattr(superlink, "LOOK_AGAIN", 15.0)
    stub = Stub(b"", b"a message for nobody")

    async def one() -> tuple[Client, float]:
        client = Client(Gate(stub, SECRET), path, token=TOKEN)
        waiting = asyncio.ensure_future(client())
        await asyncio.sleep(0.05)
        began = time.monotonic()
        client.hung_up.set()
        await waiting
        return client, time.monotonic() - began

    client, seconds = run(one)
    assert seconds < 2
    assert client.sent == []
    assert len(stub.seen) == 1  # no message was taken out for a client that is not there


def test_many_are_woken_at_once(monkeypatch):
    monkeypatch.setattr(superlink, "HOLD", 15.0)
    count, cached = 50, b"a message"

    class Messages(Stub):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/v1/runtime/push-messages":
                self.bodies = [cached]
            await super().__call__(scope, receive, send)

    async def all_of_them() -> list[Any]:
        gate = Gate(Messages(b""), SECRET)
        waiting = [asyncio.ensure_future(Client(gate, SITES_WAIT)()) for _ in range(count)]
        await asyncio.sleep(0.05)
        await Client(gate, "/v1/runtime/push-messages", token=TOKEN)()
        return await asyncio.gather(*waiting)

    assert run(all_of_them) == [(200, cached)] * count
