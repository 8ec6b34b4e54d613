"""`compfed federation serve`: Flower's SuperLink in one process, behind a gate.

Flower's control API has no authentication of its own, and shares the port with the API that sites use. The gate lets
anybody reach the eight paths that a site needs (Flower checks the key of the node there), and nothing else; all other
paths are for processes on this machine that know the operator's secret. It also bounds the size of a request, and holds
a request for messages open until there are some, so that nobody has to poll and Flower is asked once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.network.flower import (
    FRAMING,
    GATE_HEADER,
    INLINE,
    LARGEST,
    TASK_HEADER,
    FlowerLink,
    LinkError,
    announced,
    ids_asked,
    node_of,
    superlink_app,
    waiting_node,
)
from compfed.network.keys import gate_token, read_secret
from compfed.network.settings import FederationSettings

FLEET_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip
SITES_WAIT, OPERATOR_WAITS = "/v1/fleet/pull-messages", "/v1/runtime/pull-messages"
SITES_PUSH, OPERATOR_PUSHES = "/v1/fleet/push-messages", "/v1/runtime/push-messages"
SITES_CONTENT, OPERATOR_CONTENT = "/v1/fleet/push-object", "/v1/runtime/push-object"
HOLD = 20.0  # seconds that the request of a site for messages is held open while there are none
OPERATOR_HOLD = 2.0  # the same of an operator, who then looks who is connected, and what has waited too long
STRANGER = 2**20  # bytes that are read of a request before it is known who sent it
LOOK_AGAIN = 1.0  # seconds after which the operator's request is tried again: a node may have gone
LINGER = 0.002  # seconds per missing reply, for which the first replies wait for others: one request collects many
LONGEST_LINGER = 0.2
CONNECTIONS = 512  # at once, and `PER_SITE` more for every site; a stranger may have STRANGER bytes in each
PER_SITE = 4
FILES_BESIDE = 64  # open files of this process beside connections
OPERATORS = 0  # in place of the id of a node
OPERATORS_KEPT = 16  # runs whose last request is remembered


class Gate:
    """An ASGI app in front of Flower's."""

    def __init__(self, app: ASGIApp, secret: bytes):
        self.app, self._token, self._stopping = app, gate_token(secret).encode(), False
        self._mail: Counter[int] = Counter()  # by node: messages pushed to it, and not taken yet
        self._announced: list[int] = []  # nodes whose message waits for its content
        self._replies = 0  # that sites have pushed
        self._tried: dict[bytes, int] = {}  # by operator: `_replies` when it last asked Flower
        self._changed: dict[int, asyncio.Event] = {}  # by node, or `OPERATORS`: set when there is something new

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # Flower needs no WebSocket
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"]
        if path not in FLEET_PATHS and not self._is_operator(scope):
            refusal = JSONResponse({"detail": "this path is for the operator, on the machine of the SuperLink"}, 403)
            await refusal(scope, receive, send)
            return
        body = await self._read_body(scope, receive)
        if body is None:
            await JSONResponse({"detail": "the request is too large"}, 413)(scope, receive, send)
        elif path == SITES_PUSH and len(body) > INLINE + FRAMING:
            await JSONResponse({"detail": "a long reply follows its announcement"}, 413)(scope, receive, send)
        elif path in (SITES_WAIT, OPERATOR_WAITS):
            await self._hold(scope, body, receive, send)
        else:
            await self.app(scope, _replay(body, receive), send)
            self._note(path, body)

    def _is_operator(self, scope: Scope) -> bool:
        shown = dict(scope["headers"]).get(GATE_HEADER.encode(), b"")
        return is_local(scope) and hmac.compare_digest(shown, self._token)

    async def _read_body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body of a request; None if it is too large. A stranger may send little: nobody knows yet who it is."""
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"0")
        size, limit, parts, more = 0, STRANGER, [], True
        if not declared.isdigit():
            return None
        while True:
            if max(size, int(declared)) > limit:
                known = scope["path"] not in FLEET_PATHS or node_of(self.app, headers) is not None
                if not known or max(size, int(declared)) > LARGEST:
                    return None
                limit = LARGEST
            if not more:
                return b"".join(parts)
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), bool(message.get("more_body"))

    # --- who waits, and for what ---

    def _note(self, path: str, body: bytes) -> None:
        """Wake those for whom a request has brought something. What a site sends can wake an operator too early, no more."""
        if path == OPERATOR_PUSHES:
            said = announced(body, by_site=False)
            self._announced += said.nodes
            if not said.follows:
                self._deliver()
        elif path == OPERATOR_CONTENT:
            self._deliver()
        elif path == SITES_CONTENT or (path == SITES_PUSH and not announced(body, by_site=True).follows):
            self._replies += 1
            self._wake(OPERATORS)

    def _deliver(self) -> None:
        nodes, self._announced = self._announced, []
        self._mail.update(nodes)
        for node in nodes:
            self._wake(node)

    def _wake(self, who: int) -> None:
        if (event := self._changed.pop(who, None)) is not None:
            event.set()

    def stop(self) -> None:
        """Answer the requests that are held open: the server is about to end."""
        self._stopping = True
        for who in list(self._changed):
            self._wake(who)

    async def _hold(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request for messages once there are some, or after some seconds."""
        headers = dict(scope["headers"])
        waiter: _Site | _Operator
        end = time.monotonic() + HOLD
        if scope["path"] == OPERATOR_WAITS:
            end = time.monotonic() + OPERATOR_HOLD
            waiter = _Operator(self, headers.get(TASK_HEADER.encode(), b""), ids_asked(body))
        else:
            waiter = _Site(self, waiting_node(self.app, headers, body))
        gone = asyncio.ensure_future(receive())  # resolves when the other side hangs up
        try:
            while True:
                left = end - time.monotonic()
                pause = 0.0 if self._stopping or left <= 0 else min(left, waiter.pause())
                if pause > 0:
                    event = self._changed.setdefault(waiter.who, asyncio.Event())
                    waiting = asyncio.ensure_future(event.wait())
                    await asyncio.wait({waiting, gone}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    if gone.done():
                        return
                    continue
                waiter.before()
                parts = list[Message]()

                async def keep(part: Message, parts: list[Message] = parts) -> None:
                    parts.append(part)

                state = dict(scope.get("state", {}))
                await self.app({**scope, "state": state}, _replay(body, _nobody_hangs_up), keep)
                status, empty = _summary(parts)
                waiter.after(status, empty)
                if left <= 0 or self._stopping or status != 200 or not empty or not waiter.stays:
                    for part in parts:
                        await send(part)
                    return
        finally:
            gone.cancel()


class _Site:
    """A site that waits for a message. Flower is asked once there is one for it; for anybody else at once, and refuses."""

    def __init__(self, gate: Gate, node: int | None):
        self.gate, self.stays, self.who = gate, node is not None, OPERATORS if node is None else node
        self.mail = 0  # when Flower was asked

    def pause(self) -> float:
        """Seconds to wait before Flower is asked."""
        return HOLD if self.stays and not self.gate._mail[self.who] else 0.0

    def before(self) -> None:
        """Flower is about to be asked."""
        self.mail = self.gate._mail[self.who]

    def after(self, status: int, empty: bool) -> None:
        """Flower has answered. What it refused is still there; what came meanwhile is new."""
        if self.stays and status == 200:
            self.gate._mail[self.who] = max(self.gate._mail[self.who] - (self.mail if empty else 1), 0)


class _Operator:
    """An operator that waits for replies. Flower is asked once all are there, or some and others do not come at once."""

    stays = True

    def __init__(self, gate: Gate, name: bytes, asked: int):
        self.gate, self.name, self.asked, self.who = gate, name, asked, OPERATORS
        self.since = time.monotonic()
        self.first: float | None = None  # when a new reply was seen

    def pause(self) -> float:
        """Seconds to wait before Flower is asked."""
        now, seen = time.monotonic(), self.gate._tried.get(self.name)
        if seen is None:
            return 0.0
        if (new := self.gate._replies - seen) == 0:
            return max(self.since + LOOK_AGAIN - now, 0.0)
        self.first = self.first or now
        return 0.0 if new >= self.asked else max(self.first + min(LINGER * self.asked, LONGEST_LINGER) - now, 0.0)

    def before(self) -> None:
        """Flower is about to be asked."""
        tried = self.gate._tried
        tried.pop(self.name, None)
        tried[self.name] = self.gate._replies
        if len(tried) > OPERATORS_KEPT:
            del tried[next(iter(tried))]

    def after(self, status: int, empty: bool) -> None:
        """Flower has answered."""
        self.since, self.first = time.monotonic(), None


def is_local(scope: Scope) -> bool:
    """Does a request come from this machine? Then its address is a loopback address, or that of the server itself."""
    client, server = scope.get("client") or ("",), scope.get("server") or ("",)
    try:
        return ipaddress.ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False


async def _nobody_hangs_up() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("this event is never set")


def _replay(body: bytes, then: Receive) -> Receive:
    """A `receive` that gives a body which was read before, and then what `then` gives."""
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await then()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _summary(parts: list[Message]) -> tuple[int, bool]:
    """The status of a response, and whether it has no body: that of a SuperLink without a message."""
    status = next((part["status"] for part in parts if part["type"] == "http.response.start"), 0)
    return status, not any(part.get("body") for part in parts)


def serve(settings: FederationSettings, say: Callable[[str], object] = print) -> None:
    """Run the SuperLink until it is interrupted."""
    settings.check_keys()
    host, port = settings.listen
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as problem:
        code = problem.errno or 0
        reason = os.strerror(code) if code > 0 else problem.strerror  # Python's own words repeat the address
        way_out = "Does `compfed federation serve` run already? Otherwise change `listen`."
        raise InputError(f"{host}:{port} cannot be opened ({reason}). {way_out}") from None
    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it reports the errors of others as its own
    connections = CONNECTIONS + PER_SITE * len(settings.names)
    if (files := _open_files(connections + FILES_BESIDE)) < connections + FILES_BESIDE:
        connections = max(files - FILES_BESIDE, 1)
        say(
            f"WARNING: this process may open {files} files (ulimit -n), and takes {connections} connections at once. A site needs two, "
            "and a third for a moment. Raise the hard limit for more sites."
        )
    gate = Gate(superlink_app(host, port, settings.keys), read_secret(settings.keys))
    config = uvicorn.Config(
        gate, ssl_keyfile=str(settings.keys / "server.key"),
        ssl_certfile=str(settings.keys / "server.pem"), log_level="critical", access_log=False, timeout_graceful_shutdown=1,
        timeout_keep_alive=60, server_header=False, ws="none", proxy_headers=False,
        limit_concurrency=connections,
    )  # fmt: skip
    server = _Server(config, gate)
    threading.Thread(target=_admit, args=(server, settings, say), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run([listening])
    say("The SuperLink has stopped.")


def _open_files(wanted: int) -> int:
    """How many files this process may open, after the limit was raised to what is wanted, as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return wanted if soft == resource.RLIM_INFINITY else soft


class _Server(uvicorn.Server):
    """Ends the requests that are held open before it ends itself."""

    def __init__(self, config: uvicorn.Config, gate: Gate):
        super().__init__(config)
        self.gate = gate

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.gate.stop()
        super().handle_exit(sig, frame)


def _admit(server: uvicorn.Server, settings: FederationSettings, say: Callable[[str], object]) -> None:
    """Register the keys of all sites once the SuperLink listens."""
    while not server.started:
        time.sleep(0.05)
    link, (host, port) = FlowerLink(settings.dial, settings.keys, settings.admitted), settings.listen
    try:
        link.register()
        say(f"The SuperLink listens at {host}:{port}; sites dial {settings.superlink}. Interrupt to stop.")
        admitted = join_names(list(settings.admitted), most=12) or "nobody yet"
        say(f"Admitted: {admitted}. Sites reach eight paths of Flower's fleet API; all else is for this machine.")
        if missing := [name for name in settings.names if name not in settings.admitted]:
            say(f"No key yet: {join_names(missing, most=12)}. `compfed federation admit` works while this runs.")
    except LinkError as problem:
        say(f"The keys of the sites could not be registered: {problem}.")
    finally:
        link.close()
