"""Flower as a post office: every import of Flower's own modules is here, and nowhere else in compfed.

Three parties use it:

- a site (`FleetConnection`): signs in with its identity key, receives messages, sends replies;
- the operator (`Operator`, `FlowerLink`): creates a run at the SuperLink, sends messages to nodes, collects replies;
- the SuperLink itself (`superlink_app`): Flower's server, in memory, behind a gate of ours (`superlink.Gate`).

A message is bytes (`envelope.py`). Flower carries them as one configuration record. No app is fetched, none is run: the
bundle that a run needs (`EMPTY_APP`) names modules that do not exist.

These are internal modules of Flower, and they change. `TESTED` lists the versions that the tests ran with.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import hmac
import io
import os
import ssl
import threading
import time
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, TIMESTAMP_HEADER, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import control_pb2, fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    FLWR_IN_MEMORY_DB_NAME,
    TaskType,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.version import package_version
from flwr.supernode.fleet_http_client import FleetHttpClient

from compfed._utils.files import locked
from compfed._utils.text import printable
from compfed.errors import InputError

TESTED = ("1.41", "1.42")  # `flwr>=1.41,<1.43` in pyproject.toml; tests/network/test_flower.py runs with each of them
if not package_version.startswith(tuple(f"{version}." for version in TESTED)):
    raise InputError(
        f"flwr {package_version} is installed; compfed's network was tested with flwr {' and '.join(TESTED)}. "
        "Install the tested range: pip install 'compfed[flower]'."
    )

LARGEST = 2**27  # bytes of one response that is read, and of one request that the SuperLink takes
FRAMING = 2**16  # bytes of these that Flower needs beside the bytes of a message
TIMEOUT = 30.0  # seconds for one request
HOLD = 8.0  # seconds that the SuperLink holds a request for messages open while there are none
HEARTBEAT = 10.0  # seconds between two heartbeats of a node: the shortest interval that Flower accepts
GATE_HEADER = "x-compfed-operator"
KEY = "compfed"  # of the record and of the field that hold the bytes of a message
MESSAGE_TYPE = "query"
FLEET_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip

Response = TypeVar("Response")


# --- errors ---


class LinkError(Exception):
    """A request to the SuperLink failed; the text gives the reason."""


class Unreachable(LinkError):
    """No response, or not the response of a SuperLink."""


class Rejected(LinkError):
    """The SuperLink responded with an error."""

    def __init__(self, status: int, code: int | None, detail: str):
        super().__init__(f"the SuperLink answered {status}: {detail}")
        self.status, self.code = status, code


def _call(address: str, method: Callable[[Any], Response], request: Any) -> Response:
    """One request; whatever goes wrong is a `LinkError` in words."""
    try:
        return method(request)
    except httpx.HTTPStatusError as problem:
        raise _rejected(problem.response) from None
    except httpx.ConnectError as problem:
        raise Unreachable(_why_not_connected(address, str(problem))) from None
    except httpx.TimeoutException:
        raise Unreachable(f"{address} did not answer in time") from None
    except httpx.TransportError as problem:
        raise Unreachable(f"the connection to {address} was lost ({type(problem).__name__})") from None
    except RuntimeError:
        raise Unreachable("the connection was closed") from None
    except (ValueError, httpx.InvalidURL) as problem:
        raise Unreachable(f"{address} answers, but not as a SuperLink ({type(problem).__name__})") from None


def _rejected(response: httpx.Response) -> Rejected:
    """The error in a response of the SuperLink, whatever its text is."""
    text = response.content[:10_000].decode("utf-8", "replace")
    try:
        error = FlowerError.from_json(text)
        code, words = (None, text) if error is None else (int(error.code), str(error.message))
    except Exception:
        code, words = None, "an error that cannot be read"
    return Rejected(response.status_code, code, printable(words, 200))


def _why_not_connected(address: str, text: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "expired" in text or "not yet valid" in text:
            return f"the certificate of {address} is not valid today: compare the clocks, or ask the operator for a new one"
        if "mismatch" in text or "not valid for" in text:
            return f"the certificate of {address} was made for another host name: dial the name that it was made for"
        return (
            f"the certificate of {address} is not signed by this CA: ask the operator for the ca.crt of the federation"
        )
    if "refused" in text:
        return f"nothing listens at {address}"
    if "Name or service" in text or "not known" in text or "resolution" in text:
        return f"the host name of {address} cannot be resolved"
    return f"{address} cannot be reached ({printable(text, 100)})"


# --- clients ---


class _Bounded(httpx.BaseTransport):
    """A transport that stops reading a response at `LARGEST` bytes."""

    def __init__(self, context: ssl.SSLContext):
        self.inner = httpx.HTTPTransport(verify=context, limits=httpx.Limits(max_connections=8))

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":  # its size would not be known
            response.close()
            raise httpx.ReadError("a response that is compressed")
        response.stream = _BoundedStream(response.stream)
        return response

    def close(self) -> None:
        self.inner.close()


class _BoundedStream(httpx.SyncByteStream):
    def __init__(self, stream: Any):
        self.stream = stream

    def __iter__(self) -> Any:
        size = 0
        for part in self.stream:
            size += len(part)
            if size > LARGEST:
                raise httpx.ReadError(f"a response of more than {LARGEST} bytes")
            yield part

    def close(self) -> None:
        self.stream.close()


Client = TypeVar("Client", ControlHttpClient, RuntimeHttpClient, FleetHttpClient)


def _client(kind: type[Client], address: str, ca: Path, interceptors: Sequence[Any]) -> Client:
    """A client of Flower's over an HTTP client of ours: bounded responses, no redirects, no retries."""
    context = ssl.create_default_context(cafile=str(ca))
    client = kind(f"https://{address}", interceptors=interceptors, verify=context)
    client._client.close()
    client._client = httpx.Client(
        transport=_Bounded(context), timeout=TIMEOUT, follow_redirects=False, headers={"accept-encoding": "identity"}
    )
    return client


class _Headers:
    """Adds fixed headers to every request."""

    def __init__(self, headers: Mapping[str, str]):
        self.headers = headers

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        context.request.headers.update(self.headers)
        return call_next(context)


class _NodeAuth:
    """Signs every request of a node, with the time of the server: the clock of a site may be wrong."""

    def __init__(self, key: ec.EllipticCurvePrivateKey):
        self.key, self.public = key, b64encode(public_key_to_bytes(key.public_key())).decode()
        self.ahead = timedelta(0)  # the clock of the server minus that of this machine

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        stamp = (datetime.now(UTC) + self.ahead).isoformat()
        signature = b64encode(sign_message(self.key, stamp.encode())).decode()
        headers = {
            FLEET_HTTP_PUBLIC_KEY_HEADER: self.public,
            TIMESTAMP_HEADER: stamp,
            FLEET_HTTP_SIGNATURE_HEADER: signature,
        }
        context.request.headers.update(headers)
        response = call_next(context)
        if response.status_code == 401:
            self._compare_clocks(response.headers.get("date", ""))
        return response

    def _compare_clocks(self, date: str) -> None:
        try:
            server = email.utils.parsedate_to_datetime(date)
            ahead = server - datetime.now(UTC) - timedelta(seconds=1)  # a request from the future is refused
            _ = datetime.now(UTC) + ahead
        except (TypeError, ValueError, OverflowError):
            return
        self.ahead = ahead


# --- messages ---


def _content(data: bytes) -> RecordDict:
    return RecordDict({KEY: ConfigRecord({KEY: data})})


def _leaf(tree: message_pb2.ObjectTree) -> str:
    """The id of the one record in a message."""
    node, depth = tree, 0
    while node.children:
        if len(node.children) != 1 or depth > 2:
            raise InputError("a message that is not one record.")
        node, depth = node.children[0], depth + 1
    return node.object_id


def _data(object_id: str, content: bytes) -> bytes:
    """The bytes of a message, from the object that holds them."""
    if get_object_id(content) != object_id:
        raise InputError("a message whose content does not match its hash.")
    try:
        record = ConfigRecord.inflate(content)
        data = record[KEY]
    except Exception as problem:
        raise InputError(f"a message that cannot be read ({type(problem).__name__}).") from None
    if not isinstance(data, bytes):
        raise InputError("a message whose content is not bytes.")
    return data


class _Parts(NamedTuple):
    """A message as Flower sends it: the message without content, the tree of its objects, and their contents."""

    proto: Any
    tree: message_pb2.ObjectTree
    objects: dict[str, bytes]


def _parts(message: Message) -> _Parts:
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: item.deflate() for name, item in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
    bare = make_message(metadata=message.metadata, content=RecordDict())
    # the record comes last: its receiver needs nothing else, and the SuperLink then drops the rest of the message
    order = reversed([part.object_id for part in iterate_object_tree(tree)])
    return _Parts(message_to_proto(bare), tree, {name: objects[name] for name in order})


def _pull(pull: Callable[[str], Any], object_id: str, stopped: Callable[[], bool], seconds: float = 20.0) -> bytes:
    """An object, once its sender has sent all of it."""
    end, pause = time.monotonic() + seconds, 0.01
    while True:
        response = pull(object_id)
        if response.object_found and response.object_available:
            return response.object_content
        if not response.object_found or time.monotonic() > end or stopped():
            raise InputError("a message whose content did not arrive.")
        time.sleep(pause)
        pause = min(2 * pause, 0.2)


# --- a site ---


class Delivery(NamedTuple):
    """A message that arrived at a site."""

    message: Message  # without its content
    data: bytes


class FleetConnection:
    """The connection of one site to the SuperLink. It only dials out, fetches no app and runs none."""

    def __init__(self, address: str, ca: Path, key: ec.EllipticCurvePrivateKey, node_id: int = 0):
        self.address, self.key, self.node_id = address, key, node_id  # 0: never signed in
        self._auth = _NodeAuth(key)
        self._client = _client(FleetHttpClient, address, ca, [self._auth])
        self._closed = threading.Event()
        self.lost: LinkError | None = None  # why heartbeats were refused

    def sign_in(self) -> int:
        """Activate this node, in place of a predecessor that was killed; returns its node id."""
        try:
            self._activate()
        except Rejected as refused:
            if refused.status == 401:  # the clock of the server is known now
                self._activate()
            elif refused.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED and self.node_id:
                self._deactivate()  # a predecessor counts as online until its heartbeats expire
                self._activate()
            else:
                raise
        threading.Thread(target=self._beat, daemon=True, name="compfed-heartbeat").start()
        return self.node_id

    def _activate(self) -> None:
        public = public_key_to_bytes(self.key.public_key())
        request = fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
        self.node_id = _call(self.address, self._client.ActivateNode, request).node_id

    def _deactivate(self) -> None:
        with contextlib.suppress(Rejected):
            _call(self.address, self._client.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=self.node_id))

    def _beat(self) -> None:
        request = heartbeat_pb2.SendNodeHeartbeatRequest(
            node=node_pb2.Node(node_id=self.node_id), heartbeat_interval=HEARTBEAT
        )
        while not self._closed.wait(0.6 * HEARTBEAT):
            try:
                if not _call(self.address, self._client.SendNodeHeartbeat, request).success:
                    self.lost = Unreachable("the SuperLink does not know this node any more")
                    return
            except Unreachable:
                continue  # the next request of the main loop will say so
            except LinkError as problem:
                self.lost = problem
                return

    def receive(self) -> Delivery | None:
        """The next message, or None. The SuperLink holds the request open for some seconds while there is none."""
        if self.lost is not None:
            raise self.lost
        node = node_pb2.Node(node_id=self.node_id)
        pulled = _call(self.address, self._client.PullMessages, fleet_pb2.PullMessagesRequest(node=node))
        if not pulled.messages_list:
            return None
        try:
            message, tree = message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0]
        except Exception as problem:  # a message that no SuperLink of Flower sends
            raise Unreachable(f"{self.address} sent a message that cannot be read ({type(problem).__name__})") from None
        run = message.metadata.run_id

        def pull(object_id: str) -> Any:
            request = message_pb2.PullObjectRequest(node=node, run_id=run, object_id=object_id)
            return _call(self.address, self._client.PullObject, request)

        leaf = _leaf(tree)
        data = _data(leaf, _pull(pull, leaf, self._closed.is_set))
        confirm = message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        _call(self.address, self._client.ConfirmMessageReceived, confirm)
        return Delivery(message, data)

    def reply(self, delivery: Delivery, data: bytes) -> None:
        """Send the reply to a message."""
        to = delivery.message.metadata
        metadata = Metadata(
            run_id=to.run_id, message_id="", src_node_id=to.dst_node_id, dst_node_id=to.src_node_id,
            reply_to_message_id=to.message_id, group_id=to.group_id, message_type=to.message_type,
            created_at=to.created_at, ttl=to.ttl,  # of the message: the clock of a site may be wrong
            src_task_id=to.dst_task_id, dst_task_id=to.src_task_id,
        )  # fmt: skip
        parts = _parts(make_message(metadata, _content(data)))
        node = node_pb2.Node(node_id=self.node_id)
        request = fleet_pb2.PushMessagesRequest(
            node=node, messages_list=[parts.proto], message_object_trees=[parts.tree], clientapp_runtime_list=[0.0]
        )
        pushed = _call(self.address, self._client.PushMessages, request)
        for name, content in parts.objects.items():
            if name in pushed.objects_to_push:
                one = message_pb2.PushObjectRequest(
                    node=node, run_id=to.run_id, session_id=pushed.session_id, object_id=name, object_content=content
                )
                _call(self.address, self._client.PushObject, one)

    def close(self) -> None:
        """Sign out, so that the operator does not wait for this node."""
        self._closed.set()
        if self.node_id:
            try:
                self._client._client.timeout = httpx.Timeout(2.0)
                _call(self.address, self._client.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=self.node_id))
            except LinkError:
                pass
        self._client.close()


# --- the operator ---


def _empty_app() -> bytes:
    """The bundle that Flower wants for a run. Nobody unpacks it; its modules do not exist."""
    text = (
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        '[project]\nname = "compfed-queries"\nversion = "1.0.0"\ndescription = "No code: sites of compfed run no app"\n'
        'license = "Apache-2.0"\n\n[tool.flwr.app]\npublisher = "compfed"\n\n[tool.flwr.app.components]\n'
        'serverapp = "compfed_runs_no_app:app"\nclientapp = "compfed_runs_no_app:app"\n'
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml", (2026, 1, 1, 0, 0, 0)), text)
    return packed.getvalue()


EMPTY_APP = _empty_app()


def gate_token(secret: bytes) -> str:
    """The token that the operator shows at the gate of the SuperLink."""
    return hmac.new(secret, b"compfed/gate/1", hashlib.sha256).hexdigest()


class NodeState(NamedTuple):
    """A registered node as the SuperLink sees it."""

    node_id: int
    online: bool
    since: str  # when it last signed in or out; "" if it never did


class Reply(NamedTuple):
    """The reply to a message: bytes, or the problem in words."""

    data: bytes | None
    problem: str = ""


class Operator:
    """The operator's side of one SuperLink: nodes, one run, messages and their replies."""

    def __init__(self, address: str, ca: Path, secret: bytes):
        self.address, self._ca, self._secret = address, ca, secret
        self._gate = _Headers({GATE_HEADER: gate_token(secret)})
        self._control = _client(ControlHttpClient, address, ca, [self._gate])
        self._runtime: RuntimeHttpClient | None = None
        self._task: Any = None
        self._ended = threading.Event()

    # nodes

    def register(self, keys: Mapping[str, ec.EllipticCurvePublicKey]) -> dict[str, int]:
        """Make sure that the keys of all sites are known to the SuperLink; the node id of each site."""
        known = self._registered()
        ids = {}
        for name, key in keys.items():
            public = public_key_to_bytes(key)
            if public not in known:
                request = control_pb2.RegisterNodeRequest(public_key=public, name=name)
                try:
                    known[public] = _call(self.address, self._control.RegisterNode, request).node_id
                except Rejected as refused:
                    if refused.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                        raise
                    known = self._registered()  # another process of the operator was faster
            ids[name] = known[public]
        return ids

    def _registered(self) -> dict[bytes, int]:
        return {node.public_key: node.node_id for node in self._nodes()}

    def _nodes(self) -> list[Any]:
        listed = _call(self.address, self._control.ListNodes, control_pb2.ListNodesRequest())
        return [node for node in listed.nodes_info if node.status != "unregistered"]

    def nodes(self) -> dict[int, NodeState]:
        """The state of all registered nodes."""
        return {
            node.node_id: NodeState(node.node_id, node.status == "online", max(node.last_activated_at, node.last_deactivated_at))
            for node in self._nodes()
        }  # fmt: skip

    # the run

    def start(self) -> int:
        """Create a run and take it; only the run that was created here is used. Returns Flower's run id."""
        fab = fab_pb2.Fab(hash_str=hashlib.sha256(EMPTY_APP).hexdigest(), content=EMPTY_APP)
        run_id = _call(self.address, self._control.StartRun, control_pb2.StartRunRequest(fab=fab)).run_id
        if not run_id:
            raise Unreachable(f"{self.address} did not create a run")
        method = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        sign = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=method)
        with _client(RuntimeHttpClient, self.address, self._ca, [self._gate, sign]) as acquirer:
            while True:
                request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
                acquired = _call(self.address, acquirer.AcquireTask, request)
                if not acquired.token:
                    raise Unreachable(f"{self.address} did not hand out the run that was created")
                runtime = _client(
                    RuntimeHttpClient, self.address, self._ca, [self._gate, RuntimeTokenHttpInterceptor(acquired.token)]
                )
                if acquired.task.run_id == run_id:
                    break
                with runtime:  # a run that somebody else created: nobody serves it
                    _call(self.address, runtime.PullTaskInput, runtime_pb2.PullTaskInputRequest())
                    output = runtime_pb2.PushTaskOutputRequest(
                        sub_status=SubStatus.FAILED, details="not a run of this operator"
                    )
                    _call(self.address, runtime.PushTaskOutput, output)
        self._task = _call(self.address, runtime.PullTaskInput, runtime_pb2.PullTaskInputRequest())
        self._runtime, self._ended = runtime, threading.Event()
        threading.Thread(target=self._beat, args=(runtime, self._ended), daemon=True, name="compfed-run").start()
        return run_id

    def _beat(self, runtime: RuntimeHttpClient, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT):
            try:
                _call(self.address, runtime.SendTaskHeartbeat, runtime_pb2.SendTaskHeartbeatRequest())
            except LinkError:
                continue  # the next request of the main thread will say so

    @property
    def started(self) -> bool:
        return self._runtime is not None

    def finish(self) -> None:
        """End the run at the SuperLink, which then forgets its messages."""
        runtime, self._runtime = self._runtime, None
        self._ended.set()
        if runtime is None:
            return
        try:
            runtime._client.timeout = httpx.Timeout(5.0)
            output = runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            _call(self.address, runtime.PushTaskOutput, output)
        except LinkError:
            pass
        runtime.close()

    def close(self) -> None:
        self.finish()
        self._control.close()

    # messages

    def push(self, messages: Mapping[int, bytes], ttl: float) -> dict[int, str]:
        """Send bytes to nodes; the id of each message. A node that Flower takes no message for has none."""
        assert self._runtime is not None
        assert self._task is not None
        run = self._task.run.run_id
        parts: dict[int, _Parts] = {}
        for node, data in messages.items():
            metadata = Metadata(
                run_id=run, message_id="", src_node_id=SUPERLINK_NODE_ID, dst_node_id=node, reply_to_message_id="",
                group_id="", created_at=time.time(), ttl=ttl, message_type=MESSAGE_TYPE,
                src_task_id=self._task.task_id,
            )  # fmt: skip
            parts[node] = _parts(make_message(metadata, _content(data)))
        request = runtime_pb2.PushAppMessagesRequest(
            messages_list=[p.proto for p in parts.values()], message_object_trees=[p.tree for p in parts.values()]
        )
        pushed = _call(self.address, self._runtime.PushMessages, request)
        wanted, sent = set(pushed.objects_to_push), set()
        for part in parts.values():
            for name, content in part.objects.items():
                if name in wanted and name not in sent:
                    one = message_pb2.PushObjectRequest(
                        node=node_pb2.Node(node_id=SUPERLINK_NODE_ID), run_id=run, session_id=pushed.session_id, object_id=name,
                        object_content=content,
                    )  # fmt: skip
                    _call(self.address, self._runtime.PushObject, one)
                    sent.add(name)
        return {node: name for node, name in zip(parts, pushed.message_ids, strict=True) if name}

    def pull(self, ids: Collection[str]) -> dict[str, Reply]:
        """The replies that have arrived, by the id of the message they reply to."""
        assert self._runtime is not None
        assert self._task is not None
        runtime, run, node = self._runtime, self._task.run.run_id, node_pb2.Node(node_id=SUPERLINK_NODE_ID)
        request = runtime_pb2.PullAppMessagesRequest(message_ids=list(ids))
        pulled = _call(self.address, runtime.PullMessages, request)
        replies = {}
        for proto, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
            to = proto.metadata.reply_to_message_id
            if proto.HasField("error"):
                replies[to] = Reply(None, _flower_error(proto.error))
                continue

            def pull(object_id: str) -> Any:
                one = message_pb2.PullObjectRequest(node=node, run_id=run, object_id=object_id)
                return _call(self.address, runtime.PullObject, one)

            try:
                leaf = _leaf(tree)
                replies[to] = Reply(_data(leaf, _pull(pull, leaf, self._ended.is_set)))
            except InputError as problem:
                replies[to] = Reply(None, str(problem))
            confirm = message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
            _call(self.address, runtime.ConfirmMessageReceived, confirm)
        return replies


def _flower_error(error: Any) -> str:
    if error.code == 5:  # NODE_UNAVAILABLE
        return "not connected"
    return f"Flower says: {printable(error.reason or f'error {error.code}', 200)}"


class FlowerLink:
    """A `Link` through a SuperLink: knows sites by name, holds one run, carries bytes."""

    def __init__(self, address: str, keys: Path, secret: bytes, roster: Mapping[str, ec.EllipticCurvePublicKey]):
        self.address, self._keys, self._roster = address, keys, roster
        self._operator = Operator(address, keys / "ca.crt", secret)
        self._nodes: dict[str, int] = {}

    def open(self) -> None:
        if self._operator.started:
            return
        with locked(self._keys / "operator.lock"):  # of two operators each takes the run that it created
            self._nodes = self._operator.register(self._roster)
            self._operator.start()

    def connected(self) -> dict[str, str]:
        states = self._operator.nodes()
        found: dict[str, NodeState | None] = {name: states.get(node) for name, node in self._nodes.items()}
        if None in found.values():
            raise LinkError("the SuperLink has forgotten the keys of the sites")
        return {name: state.since for name, state in found.items() if state is not None and state.online}

    def push(self, messages: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        names = {self._nodes[name]: name for name in messages}
        sent = self._operator.push({self._nodes[name]: data for name, data in messages.items()}, ttl)
        return {names[node]: message for node, message in sent.items()}

    def pull(self, ids: Collection[str]) -> dict[str, Reply]:
        return self._operator.pull(ids)

    def reset(self) -> None:
        self._operator.finish()

    def close(self) -> None:
        self._operator.close()


# --- the SuperLink ---


def superlink_app(host: str, port: int, keys: Path, secret: bytes) -> Any:
    """Flower's SuperLink as an ASGI app, in memory: node keys are needed, no app is ever started here."""
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(name, None)  # these would open ports without a gate
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    names = ("ca.crt", "server.pem", "server.key")
    ca, certificate, key = (keys / name for name in names)
    config = SuperLinkLifespanConfig(
        control_address="127.0.0.1:0", health_server_address=None, host=host, port=port, insecure=False,
        certificates=(ca.read_bytes(), certificate.read_bytes(), key.read_bytes()), superexec_auth_secret=secret,
        authn_plugin=NoOpControlAuthnPlugin(), event_log_plugin=None, fleet_event_log_plugin=None, enable_event_log=False,
        artifact_provider=None, enable_supernode_auth=True, fleet_api_type=TRANSPORT_TYPE_GRPC_RERE, fleet_api_address=None,
        simulation=False, ssl_ca_certfile=str(ca), ssl_certfile=str(certificate), ssl_keyfile=str(key),
        database=FLWR_IN_MEMORY_DB_NAME, isolation=ISOLATION_MODE_PROCESS, runtime_dependency_install=False,
    )  # fmt: skip
    return create_app(config, SuperLinkLifespan)


def is_registered_node(app: Any, headers: Mapping[bytes, bytes]) -> bool:
    """Are these the headers of a request that a registered node has signed?"""
    try:
        public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        stamp = headers[TIMESTAMP_HEADER.encode()]
        known = app.state.linkstate_factory.state().get_node_id_by_public_key(public) is not None
        return known and verify_signature(bytes_to_public_key(public), stamp, signature)
    except (KeyError, ValueError, TypeError):
        return False
