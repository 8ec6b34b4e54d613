"""`compfed federation serve`: Flower's SuperLink in one process, behind a gate.

Flower's control API has no authentication of its own, and shares the port with the API that sites use. The gate lets
anybody reach the eight paths that a site needs (Flower checks the key of the node there), and nothing else; all other
paths are for processes on this machine that know the operator's secret. It also bounds the size of a request, and holds
a request for messages open while there are none, so that nobody has to poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from compfed.errors import InputError
from compfed.network.flower import GATE_HEADER, LARGEST, FlowerLink, LinkError, is_registered_node, superlink_app
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
# a request to the key wakes those who wait at the value
WAKES = {"/v1/runtime/push-messages": SITES_WAIT, "/v1/fleet/push-messages": OPERATOR_WAITS}
HOLD = 8.0  # seconds that a request for messages is held open while there are none
STRANGER = 2**20  # bytes that are read of a request before it is known who sent it
CONNECTIONS = 512  # at once; a stranger may have STRANGER bytes in each
LOOK_AGAIN = 1.0  # seconds after which the operator's request is tried again: a node may have gone


class Gate:
    """An ASGI app in front of Flower's."""

    def __init__(self, app: ASGIApp, secret: bytes):
        self.app, self._token, self._stopping = app, gate_token(secret).encode(), False
        self._wake = {SITES_WAIT: asyncio.Event(), OPERATOR_WAITS: asyncio.Event()}

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
        elif path in self._wake:
            await self._hold(path, scope, body, receive, send)
        else:
            await self.app(scope, _replay(body, receive), send)
            if path in WAKES:
                self._notify(WAKES[path])

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
                known = scope["path"] not in FLEET_PATHS or is_registered_node(self.app, headers)
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

    def _notify(self, path: str) -> None:
        self._wake[path].set()
        self._wake[path] = asyncio.Event()

    def stop(self) -> None:
        """Answer the requests that are held open: the server is about to end."""
        self._stopping = True
        for path in self._wake:
            self._notify(path)

    async def _hold(self, path: str, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request for messages once there are some, or after `HOLD` seconds."""
        gone = asyncio.ensure_future(receive())  # resolves when the other side hangs up
        end = time.monotonic() + HOLD
        try:
            while True:
                event, parts = self._wake[path], list[Message]()

                async def keep(part: Message, parts: list[Message] = parts) -> None:
                    parts.append(part)

                state = dict(scope.get("state", {}))
                await self.app({**scope, "state": state}, _replay(body, _nobody_hangs_up), keep)
                left = end - time.monotonic()
                if left <= 0 or self._stopping or not _is_empty(parts):
                    for part in parts:
                        await send(part)
                    return
                pause = min(left, LOOK_AGAIN) if path == OPERATOR_WAITS else left
                waiting = asyncio.ensure_future(event.wait())
                await asyncio.wait({waiting, gone}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if gone.done():
                    return
        finally:
            gone.cancel()


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


def _is_empty(parts: list[Message]) -> bool:
    """Is this the response of a SuperLink that has no message?"""
    status = next((part["status"] for part in parts if part["type"] == "http.response.start"), 0)
    return status == 200 and not any(part.get("body") for part in parts)


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
    gate = Gate(superlink_app(host, port, settings.keys), read_secret(settings.keys))
    config = uvicorn.Config(
        gate, ssl_keyfile=str(settings.keys / "server.key"),
        ssl_certfile=str(settings.keys / "server.pem"), log_level="critical", access_log=False, timeout_graceful_shutdown=1,
        timeout_keep_alive=60, server_header=False, ws="none", proxy_headers=False, limit_concurrency=CONNECTIONS,
    )  # fmt: skip
    server = _Server(config, gate)
    threading.Thread(target=_admit, args=(server, settings, say), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run([listening])
    say("The SuperLink has stopped.")


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
        admitted = ", ".join(settings.admitted) or "nobody yet"
        say(f"Admitted: {admitted}. Sites reach eight paths of Flower's fleet API; all else is for this machine.")
        if missing := [name for name in settings.names if name not in settings.admitted]:
            say(f"No key yet: {', '.join(missing)}. `compfed federation admit` works while this runs.")
    except LinkError as problem:
        say(f"The keys of the sites could not be registered: {problem}.")
    finally:
        link.close()
