"""Flower as a post office: every import of Flower's own modules is here, and nowhere else in compfed.

Three parties use it:

- a site (`FleetConnection`): signs in with its identity key, receives messages, sends replies;
- the operator (`FlowerLink`): creates a run at the SuperLink, sends messages to nodes, collects replies;
- the SuperLink itself (`superlink_app`): Flower's server, in memory, behind a gate of ours (`superlink.Gate`).

A message is bytes (`envelope.py`). Flower carries them as one configuration record: inside the request that announces the
message up to `INLINE` bytes, and as an object of its own above. No app is fetched, none is run: the bundle that a run needs
(`EMPTY_APP`) names modules that do not exist.

These are internal modules of Flower, and they change. `TESTED` lists the versions that the tests ran with.
"""

from __future__ import annotations

import contextlib
import email.utils
import functools
import hashlib
import io
import os
import random
import re
import ssl
import threading
import time
import zipfile
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from flwr.app import ConfigRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import SUPERLINK_NODE_ID, TIMESTAMP_HEADER, SubStatus
from flwr.common.serde import message_to_proto
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto import control_pb2, fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
    TaskType,
)
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.inflatable import inflatable_object as objects
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives import asymmetric
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.version import package_version
from flwr.supernode.fleet_http_client import FleetHttpClient
from google.protobuf.message import DecodeError

from compfed._utils.files import locked
from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.network.keys import PrivateKey, Roster, gate_token, read_secret

TESTED = ("1.41", "1.42")  # `flwr>=1.41,<1.43` in pyproject.toml; tests/network/test_flower.py runs with each of them
if not package_version.startswith(tuple(f"{version}." for version in TESTED)):
    raise InputError(
        f"flwr {package_version} is installed; compfed's network was tested with flwr {' and '.join(TESTED)}. "
        f"Install one of these: pip install 'flwr=={TESTED[-1]}.*'."
    )

LARGEST = 2**27  # bytes of one response that is read, and of one request that the SuperLink takes
FRAMING = 2**16  # bytes of these that Flower needs beside the bytes of a message
INLINE = 2**18  # bytes of a message that travels in the request that announces it; a longer one follows it
AT_ONCE = LARGEST // (INLINE + FRAMING)  # messages in one request or response, so that it has at most `LARGEST` bytes
PULLERS = 4  # contents of long replies that are read at the same time
TIMEOUT = 30.0  # seconds for one request
KEEP_ALIVE = 50.0  # seconds that an idle connection is kept: a heartbeat needs no new TLS handshake
ARRIVAL = 20.0  # seconds to wait for the content of a message that is announced
HEARTBEAT = 10.0  # seconds between two heartbeats of a node: the shortest interval that Flower accepts
GATE_HEADER, TASK_HEADER = "x-compfed-operator", TASK_TOKEN_HEADER
KEY = "compfed"  # of the record and of the field that hold the bytes of a message
MESSAGE_TYPE = "query"

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
    if response.status_code == 503:
        words = "all the connections that it takes are in use"
    return Rejected(response.status_code, code, printable(words, 200))


def _why_not_connected(address: str, text: str) -> str:
    reasons = {  # words of OpenSSL or the resolver: the reason for people
        "VERIFY.*(expired|not yet)": "the certificate of {} is not valid today: compare the clocks, or ask the operator for a new one",
        "VERIFY.*(mismatch|not valid for)": "the certificate of {} was made for another host name: dial the name that it was made for",
        "VERIFY_FAILED": "the certificate of {} is not signed by this CA: ask the operator for the ca.crt of the federation",
        "refused": "nothing listens at {}",
        "Name or service|not known|resolution": "the host name of {} cannot be resolved",
    }
    found = next((reason for words, reason in reasons.items() if re.search(words, text)), None)
    return found.format(address) if found else f"{address} cannot be reached ({printable(text, 100)})"


# --- clients ---


def _bound(response: httpx.Response) -> None:
    """Stop reading a response at `LARGEST` bytes; the size of a compressed one would not be known."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx.ReadError("a response that is compressed")
    response.stream = _BoundedStream(response.stream)


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


def _client(kind: type[Client], address: str, ca: Path, interceptors: Sequence[Any] = (), **options: Any) -> Client:
    """A client of Flower's over an HTTP client of ours: bounded responses, no redirects, no retries."""
    context = ssl.create_default_context(cafile=str(ca))
    client = kind(f"https://{address}", interceptors=interceptors, verify=context)
    client._client.close()
    client._client = httpx.Client(
        verify=context, limits=httpx.Limits(max_connections=8, keepalive_expiry=KEEP_ALIVE), timeout=TIMEOUT,
        follow_redirects=False, trust_env=False, event_hooks={"response": [_bound]}, **options,
    )  # fmt: skip
    client._client.headers["accept-encoding"] = "identity"
    return client


class _NodeAuth(httpx.Auth):
    """Signs every request of a node, with the time of the server: the clock of a site may be wrong."""

    def __init__(self, key: PrivateKey):
        self.key, self.public = key, asymmetric.public_key_to_bytes(key.public_key())
        self.ahead = timedelta(0)  # the clock of the server minus that of this machine

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        self._sign(request, self.ahead)
        response = yield request
        if response.status_code != 401:
            return
        try:  # the server says what time it is there
            server = email.utils.parsedate_to_datetime(response.headers.get("date", ""))
            ahead = server - datetime.now(UTC) - timedelta(seconds=1)  # a request from the future is refused
            self._sign(request, ahead)
        except (TypeError, ValueError, OverflowError):
            return
        self.ahead = ahead
        yield request

    def _sign(self, request: httpx.Request, ahead: timedelta) -> None:
        stamp = (datetime.now(UTC) + ahead).isoformat()
        signature = asymmetric.sign_message(self.key, stamp.encode())
        request.headers[FLEET_HTTP_PUBLIC_KEY_HEADER] = b64encode(self.public).decode()
        request.headers[TIMESTAMP_HEADER] = stamp
        request.headers[FLEET_HTTP_SIGNATURE_HEADER] = b64encode(signature).decode()


# --- messages ---


class Reply(NamedTuple):
    """What arrived: bytes, or the problem in words."""

    data: bytes | None
    problem: str = ""


class Outgoing(NamedTuple):
    """A message to be sent."""

    data: bytes
    slot: str  # its id follows from it; of two messages with one slot, the first was answered before the second leaves
    metadata: dict[str, Any]


def _push(address: str, client: Any, request: Callable[..., Any], sender: int, messages: Sequence[Outgoing]) -> Any:
    """Send messages of one run that are all short, or all have the same long content; the response to them.

    Flower keeps an object per message, and asks for its content. A short message travels in the announcement, and nobody reads
    its object. A long one is an object below that of the message, the same one for every message with this content: it is sent
    once. Objects that nobody reads are not sent. The id of a message is used again, so that they do not add up.
    """
    protos, trees, long, content, below = [], [], len(messages[0].data) > INLINE, b"", []
    if long:
        content = ConfigRecord({KEY: messages[0].data}).deflate()
        below = [message_pb2.ObjectTree(object_id=objects.get_object_id(content))]
    for message in messages:
        own = hashlib.sha256(f"compfed/{'long' if long else 'short'}/{message.slot}".encode()).hexdigest()
        trees.append(message_pb2.ObjectTree(object_id=own, children=below))
        carried = RecordDict() if long else RecordDict({KEY: ConfigRecord({KEY: message.data})})
        protos.append(message_to_proto(make_message(Metadata(message_id=own, **message.metadata), carried)))
    pushed = _call(address, client.PushMessages, request(messages_list=protos, message_object_trees=trees))
    if long:
        one = message_pb2.PushObjectRequest(
            node=node_pb2.Node(node_id=sender), run_id=messages[0].metadata["run_id"], session_id=pushed.session_id,
            object_id=below[0].object_id, object_content=content,
        )  # fmt: skip
        _call(address, client.PushObject, one)
    return pushed


def _receive(address: str, client: Any, node_id: int, message: Any, tree: Any, closed: threading.Event) -> Reply:
    """The bytes of a message; of a long one the SuperLink then forgets the content, whether or not it can be used."""
    if message.content.items:
        return _carried(message.content.items)
    node, run = node_pb2.Node(node_id=node_id), message.metadata.run_id

    def pull(object_id: str) -> Any:
        request = message_pb2.PullObjectRequest(node=node, run_id=run, object_id=object_id)
        return _call(address, client.PullObject, request)

    try:
        reply = Reply(_read(pull, tree, closed))
    except InputError as problem:
        reply = Reply(None, str(problem))
    confirm = message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
    _call(address, client.ConfirmMessageReceived, confirm)
    return reply


def _read(pull: Callable[[str], Any], tree: Any, closed: threading.Event) -> bytes:
    """The bytes in the one record below a message, once its sender has sent it."""
    if len(tree.children) != 1 or tree.children[0].children:
        raise InputError("a message that is not one record.")
    name = tree.children[0].object_id
    end, pause = time.monotonic() + ARRIVAL, 0.05
    while not ((response := pull(name)).object_found and response.object_available):
        if not response.object_found or time.monotonic() > end or closed.wait(pause):
            raise InputError("a message whose content did not arrive.")
        pause = min(2 * pause, 0.2)
    if objects.get_object_id(response.object_content) != name:
        raise InputError("a message whose content does not match its hash.")
    try:
        data = ConfigRecord.inflate(response.object_content)[KEY]
    except Exception as problem:
        raise InputError(f"a message that cannot be read ({type(problem).__name__}).") from None
    if not isinstance(data, bytes):
        raise InputError("a message whose content is not bytes.")
    return data


def _carried(records: Any) -> Reply:
    """The bytes that a message carries itself, in the one field of its one record."""
    if len(records) != 1 or len(fields := records[0].config_record.items) != 1:
        return Reply(None, "a message that is not one record.")
    if (records[0].key, fields[0].key) != (KEY, KEY) or fields[0].value.WhichOneof("value") != "bytes":
        return Reply(None, "a message whose content is not bytes.")
    return Reply(fields[0].value.bytes)


# --- a site ---


class FleetConnection:
    """The connection of one site to the SuperLink. It only dials out, fetches no app and runs none."""

    def __init__(self, address: str, ca: Path, key: PrivateKey, node_id: int = 0):
        self.address, self.key, self.node_id = address, key, node_id  # 0: never signed in
        self._client = _client(FleetHttpClient, address, ca, auth=_NodeAuth(key))
        self._closed = threading.Event()
        self.lost: LinkError | None = None  # why heartbeats were refused

    def sign_in(self) -> int:
        """Activate this node, in place of a predecessor that was killed; returns its node id."""
        try:
            self._activate()
        except Rejected as refused:
            if refused.code != ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED or not self.node_id:
                raise
            self._deactivate()  # a predecessor counts as online until its heartbeats expire
            self._activate()
        threading.Thread(target=self._beat, daemon=True, name="compfed-heartbeat").start()
        return self.node_id

    def _activate(self) -> None:
        public = asymmetric.public_key_to_bytes(self.key.public_key())
        request = fleet_pb2.ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT)
        self.node_id = _call(self.address, self._client.ActivateNode, request).node_id

    def _deactivate(self) -> None:
        with contextlib.suppress(LinkError):
            _call(self.address, self._client.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=self.node_id))

    def _beat(self) -> None:
        request = heartbeat_pb2.SendNodeHeartbeatRequest(
            node=node_pb2.Node(node_id=self.node_id), heartbeat_interval=HEARTBEAT
        )
        while self.lost is None and not self._closed.wait(0.6 * HEARTBEAT):
            try:
                if not _call(self.address, self._client.SendNodeHeartbeat, request).success:
                    self.lost = Unreachable("the SuperLink does not know this node any more")
            except Rejected as problem:
                self.lost = problem
            except Unreachable:
                pass  # the next request of the main loop will say so

    def receive(self) -> tuple[Metadata, bytes] | None:
        """The next message, or None. The SuperLink holds the request open for some seconds while there is none."""
        if self.lost is not None:
            raise self.lost
        request = fleet_pb2.PullMessagesRequest(node=node_pb2.Node(node_id=self.node_id))
        pulled = _call(self.address, self._client.PullMessages, request)
        if not pulled.messages_list:
            return None
        try:
            message, tree = pulled.messages_list[0], pulled.message_object_trees[0]
            metadata = metadata_from_proto(message.metadata)
        except Exception as problem:  # a message that no SuperLink of Flower sends
            raise Unreachable(f"{self.address} sent a message that cannot be read ({type(problem).__name__})") from None
        found = _receive(self.address, self._client, self.node_id, message, tree, self._closed)
        if found.data is None:
            raise InputError(found.problem)
        return metadata, found.data

    def reply(self, to: Metadata, data: bytes) -> None:
        """Send the reply to a message."""
        metadata = dict(
            run_id=to.run_id, src_node_id=to.dst_node_id, dst_node_id=to.src_node_id,
            reply_to_message_id=to.message_id, group_id=to.group_id, message_type=to.message_type,
            created_at=to.created_at, ttl=to.ttl,  # of the message: the clock of a site may be wrong
            src_task_id=to.dst_task_id, dst_task_id=to.src_task_id,
        )  # fmt: skip
        node = node_pb2.Node(node_id=self.node_id)
        request = functools.partial(fleet_pb2.PushMessagesRequest, node=node, clientapp_runtime_list=[0.0])
        reply = Outgoing(data, f"reply/{to.message_id}", metadata)
        _push(self.address, self._client, request, self.node_id, [reply])

    def close(self) -> None:
        """Sign out, so that the operator does not wait for this node."""
        self._closed.set()
        if self.node_id:
            self._client._client.timeout = httpx.Timeout(2.0)
            self._deactivate()
        self._client.close()


# --- the operator ---


def _empty_app() -> bytes:
    """The bundle that Flower wants for a run. Nobody unpacks it; its modules do not exist."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        manifest = files("compfed.network").joinpath("empty_app.toml").read_bytes()
        archive.writestr(zipfile.ZipInfo("pyproject.toml", (2026, 1, 1, 0, 0, 0)), manifest)
    return packed.getvalue()


EMPTY_APP = _empty_app()


class NodeState(NamedTuple):
    """A registered node as the SuperLink sees it."""

    online: bool
    since: str  # when it last signed in or out; "" if it never did


class FlowerLink:
    """The operator's side of one SuperLink: knows sites by name, holds one run, carries bytes. `keys` is their folder."""

    def __init__(self, address: str, keys: Path, roster: Roster):
        self.address, self.roster, self._keys, self._secret = address, roster, keys, read_secret(keys)
        self._control = self._client(ControlHttpClient)
        self._runtime: RuntimeHttpClient | None = None
        self._task: Any = None
        self._ended = threading.Event()
        self._nodes: dict[str, int] = {}
        self._attempts: Counter[str] = Counter()  # by site: messages whose id cannot be used again
        self._open: dict[str, str] = {}  # message id -> the site, which has not replied to it

    def _client(self, kind: type[Client], interceptors: Sequence[Any] = ()) -> Client:
        headers = {GATE_HEADER: gate_token(self._secret)}
        return _client(kind, self.address, self._keys / "ca.crt", interceptors, headers=headers)

    # nodes

    def register(self) -> None:
        """Make sure that the keys of all sites are known to the SuperLink."""
        known = {node.public_key: node.node_id for node in self._listed()}
        for name, key in self.roster.items():
            public = asymmetric.public_key_to_bytes(key)
            if public not in known:
                request = control_pb2.RegisterNodeRequest(public_key=public, name=name)
                try:
                    known[public] = _call(self.address, self._control.RegisterNode, request).node_id
                except Rejected as refused:
                    if refused.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                        raise
                    known = {node.public_key: node.node_id for node in self._listed()}  # another process was faster
            self._nodes[name] = known[public]

    def _listed(self) -> list[Any]:
        listed = _call(self.address, self._control.ListNodes, control_pb2.ListNodesRequest())
        return [node for node in listed.nodes_info if node.status != "unregistered"]

    def states(self) -> dict[str, NodeState]:
        """The state of every site that was registered here."""
        found = {
            node.node_id: NodeState(node.status == "online", max(node.last_activated_at, node.last_deactivated_at))
            for node in self._listed()
        }
        if not found.keys() >= set(self._nodes.values()):
            raise LinkError("the SuperLink has forgotten the keys of the sites")
        return {name: found[node] for name, node in self._nodes.items()}

    def connected(self) -> dict[str, str]:
        """The sites that are connected, and when they signed in: a text that changes whenever a site does so again."""
        return {name: state.since for name, state in self.states().items() if state.online}

    # the run

    def open(self) -> None:
        """Create a run and take it, unless there is one; only the run that was created here is used."""
        if self._runtime is not None:
            return
        with locked(self._keys / "operator.lock"):  # of two operators each takes the run that it created
            self.register()
            fab = fab_pb2.Fab(hash_str=hashlib.sha256(EMPTY_APP).hexdigest(), content=EMPTY_APP)
            run_id = _call(self.address, self._control.StartRun, control_pb2.StartRunRequest(fab=fab)).run_id
            if not run_id:
                raise Unreachable(f"{self.address} did not create a run")
            runtime = self._acquired(run_id)
            self._task = _call(self.address, runtime.PullTaskInput, runtime_pb2.PullTaskInputRequest())
        self._runtime, self._ended = runtime, threading.Event()
        threading.Thread(target=self._beat, args=(runtime, self._ended), daemon=True, name="compfed-run").start()

    def _acquired(self, run_id: int) -> RuntimeHttpClient:
        """A client with the token of a run. Runs that somebody else created are ended: nobody serves them."""
        method = frozenset({"/flwr.proto.Runtime/AcquireTask"})
        sign = SuperExecAuthHttpInterceptor(master_secret=self._secret, protected_methods=method)
        request = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        with self._client(RuntimeHttpClient, [sign]) as acquirer:
            while True:
                acquired = _call(self.address, acquirer.AcquireTask, request)
                if not acquired.token:
                    raise Unreachable(f"{self.address} did not hand out the run that was created")
                runtime = self._client(RuntimeHttpClient, [RuntimeTokenHttpInterceptor(acquired.token)])
                if acquired.task.run_id == run_id:
                    return runtime
                with runtime:
                    _call(self.address, runtime.PullTaskInput, runtime_pb2.PullTaskInputRequest())
                    reason = "not a run of this operator"
                    output = runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=reason)
                    _call(self.address, runtime.PushTaskOutput, output)

    def _beat(self, runtime: RuntimeHttpClient, ended: threading.Event) -> None:
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(LinkError):  # the next request of the main thread will say so
                _call(self.address, runtime.SendTaskHeartbeat, runtime_pb2.SendTaskHeartbeatRequest())

    def reset(self) -> None:
        """End the run at the SuperLink, which then forgets its messages."""
        runtime, self._runtime = self._runtime, None
        self._ended.set()
        if runtime is not None:
            self._control._client.timeout = httpx.Timeout(5.0)
            with contextlib.suppress(LinkError):
                _call(self.address, self._control.StopRun, control_pb2.StopRunRequest(run_id=self._task.run.run_id))
            self._control._client.timeout = httpx.Timeout(TIMEOUT)
            runtime.close()
        self._open = {}

    def close(self) -> None:
        """End the run, and the connection."""
        self.reset()
        self._control.close()

    # messages

    def push(self, messages: Mapping[str, bytes], ttl: float) -> dict[str, str]:
        """Send bytes to sites; the id of each message. A site that Flower takes no message for has none."""
        runtime = self._runtime
        assert runtime is not None
        run = self._task.run.run_id
        for message in [message for message, name in self._open.items() if name in messages]:  # a reply may still come
            self._attempts[self._open.pop(message)] += 1
        short, long = list[tuple[str, Outgoing]](), dict[bytes, list[tuple[str, Outgoing]]]()
        for name, data in messages.items():
            metadata = dict(
                run_id=run, src_node_id=SUPERLINK_NODE_ID, dst_node_id=self._nodes[name],
                reply_to_message_id="", group_id="", created_at=time.time(), ttl=ttl, message_type=MESSAGE_TYPE,
                src_task_id=self._task.task_id,
            )  # fmt: skip
            made = name, Outgoing(data, f"{run}/{self._nodes[name]}/{self._attempts[name]}", metadata)
            (short if len(data) <= INLINE else long.setdefault(data, [])).append(made)
        sent: dict[str, str] = {}
        for some in [*(short[k : k + AT_ONCE] for k in range(0, len(short), AT_ONCE)), *long.values()]:
            each = [outgoing for _, outgoing in some]
            pushed = _push(self.address, runtime, runtime_pb2.PushAppMessagesRequest, SUPERLINK_NODE_ID, each)
            sent |= {name: taken for (name, _), taken in zip(some, pushed.message_ids, strict=True) if taken}
        self._open |= {taken: name for name, taken in sent.items()}
        return sent

    def pull(self, ids: Collection[str]) -> dict[str, Reply]:
        """The replies that have arrived, by the id of the message they reply to; waits a moment if there are none."""
        runtime = self._runtime
        assert runtime is not None
        some = random.sample(list(ids), min(len(ids), AT_ONCE))  # every one has its turn
        pulled = _call(self.address, runtime.PullMessages, runtime_pb2.PullAppMessagesRequest(message_ids=some))

        def reply(proto: Any, tree: Any) -> Reply:
            error = proto.error
            if not proto.HasField("error"):
                return _receive(self.address, runtime, SUPERLINK_NODE_ID, proto, tree, self._ended)
            if error.code == 5:  # NODE_UNAVAILABLE
                return Reply(None, "not connected")
            return Reply(None, f"Flower says: {printable(error.reason or f'error {error.code}', 200)}")

        with ThreadPoolExecutor(PULLERS) as pool:  # of these only long replies make further requests
            replies = list(pool.map(reply, pulled.messages_list, pulled.message_object_trees))
        found = {
            proto.metadata.reply_to_message_id: each for proto, each in zip(pulled.messages_list, replies, strict=True)
        }
        for message in [message for message, each in found.items() if each.data is not None]:
            self._open.pop(message, None)
        return found


# --- the SuperLink ---


def superlink_app(host: str, port: int, keys: Path) -> Any:
    """Flower's SuperLink as an ASGI app, in memory: node keys are needed, no app is ever started here."""
    for name in ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"):
        os.environ.pop(name, None)  # these would open ports without a gate
    from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.config_loader import SuperLinkLifespanConfig
    from flwr.superlink.main import create_app

    ca, certificate, key = keys / "ca.crt", keys / "server.pem", keys / "server.key"
    config = SuperLinkLifespanConfig(
        control_address="127.0.0.1:0", health_server_address=None, host=host, port=port, insecure=False,
        certificates=(ca.read_bytes(), certificate.read_bytes(), key.read_bytes()), superexec_auth_secret=read_secret(keys),
        authn_plugin=NoOpControlAuthnPlugin(), event_log_plugin=None, fleet_event_log_plugin=None, enable_event_log=False,
        artifact_provider=None, enable_supernode_auth=True, fleet_api_type=TRANSPORT_TYPE_GRPC_RERE, fleet_api_address=None,
        simulation=False, ssl_ca_certfile=str(ca), ssl_certfile=str(certificate), ssl_keyfile=str(key),
        database=FLWR_IN_MEMORY_DB_NAME, isolation=ISOLATION_MODE_PROCESS, runtime_dependency_install=False,
    )  # fmt: skip
    return create_app(config, SuperLinkLifespan)


def node_of(app: Any, headers: Mapping[bytes, bytes]) -> int | None:
    """The id of the registered node that has signed a request with these headers; None where no such node has."""
    try:
        public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        stamp = headers[TIMESTAMP_HEADER.encode()]
        node = app.state.linkstate_factory.state().get_node_id_by_public_key(public)
        known = node is not None and asymmetric.verify_signature(
            asymmetric.bytes_to_public_key(public), stamp, signature
        )
        return node if known else None
    except (KeyError, ValueError, TypeError):
        return None


def waiting_node(app: Any, headers: Mapping[bytes, bytes], body: bytes) -> int | None:
    """The node that asks for its own messages, and has signed that it does; None for anybody else, whom Flower refuses."""
    try:
        asked = fleet_pb2.PullMessagesRequest.FromString(body).node.node_id
    except DecodeError:
        return None
    return asked if node_of(app, headers) == asked else None


class Announced(NamedTuple):
    """What a request to push messages says."""

    nodes: Sequence[int]  # whom its messages are for
    follows: bool  # whether content follows


def announced(body: bytes, by_site: bool) -> Announced:
    """What a request to push messages says; nothing where it cannot be read."""
    kind = fleet_pb2.PushMessagesRequest if by_site else runtime_pb2.PushAppMessagesRequest
    try:
        messages = kind.FromString(body).messages_list
    except DecodeError:
        return Announced((), False)
    nodes = [message.metadata.dst_node_id for message in messages]
    return Announced(nodes, any(not message.content.items for message in messages))


def ids_asked(body: bytes) -> int:
    """To how many messages a request of the operator asks for replies."""
    try:
        return len(runtime_pb2.PullAppMessagesRequest.FromString(body).message_ids)
    except DecodeError:
        return 0
