"""Attacks on a federation of real processes, set up as `compfed federation new`, `keys`, `admit` and `site init` do it.

A stranger has ca.crt and the address. An insider has the token of the SuperLink's gate as well. A local user has an account
on the machine of a site or of the operator. None of them gets a row, a key, a run or a message, and no code of theirs runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import ssl
import stat
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a network runs on Flower: pip install '.[flower]'")
if not sys.platform.startswith("linux"):
    pytest.skip("processes are watched through /proc", allow_module_level=True)

from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from network.faults import children, in_session, read_lines, wait_for, writable

import compfed as cf
from compfed.cli.demo import Loopback, end_process, rehearsal
from compfed.estimators.model_file import load_model
from compfed.network import flower, keys
from compfed.network.superlink import FLEET_PATHS

NAMES = ("north", "south", "west")
PARAMETERS = "n_alphas = 3\neps = 0.3\ncv = 2"
PUBLIC = {"ca.crt", "server.pem", "node.key.pub"}
SECRETS = ("keys/superlink.secret", "keys/ca.key", "keys/server.key")


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(11)
    A = [rng.standard_normal((m, 3)) for m in (40, 50, 45)]
    y = [(a @ [1.0, -1.0, 0.0] + 0.5 * rng.standard_normal(len(a)) > 0).astype(float) for a in A]
    return cf.data.from_arrays(A, y, list(NAMES), columns=["age", "dose", "bmi"])


def numbers() -> set[bytes]:
    """Numbers of rows, as a process or a file would hold them: in binary, and as text."""
    found = {value.tobytes() for a in sites().features for value in a[:10, 0]}
    return found | {repr(float(value))[:12].encode() for a in sites().features for value in a[:3, 1]}


def new_model() -> Any:
    return cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=2)


class Watch:
    """Looks at the processes of the sites all the time, for children and ports."""

    def __init__(self, federation: Loopback):
        self.federation, self.started, self.ports = federation, set[int](), set[str]()
        self.looks, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while not self._ended.wait(0.02):
            for name in NAMES:
                process = self.federation.processes[name]
                self.started |= children(process.pid) | (in_session(process.pid) - {process.pid})
                self.ports |= listening(process.pid)
            self.looks += 1

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def listening(pid: int) -> set[str]:
    """The addresses at which a process listens, sockets of the file system included."""
    inodes = set()
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(path))
            inodes |= {found[1]} if found else set()
    open_ = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                open_.add(fields[1])
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in inodes and len(fields) > 7:
            open_.add(fields[7])
    return open_


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    home = tmp_path_factory.mktemp("attack") / "federation"
    before = os.umask(0o077)  # as the commands set it; here for the files that the commands' output goes to
    try:
        yield from running(home)
    finally:
        os.umask(before)


def running(home: Path) -> Iterator[Loopback]:
    made = Loopback(home, sites(), NAMES)
    path = made.home / "federation.toml"
    path.write_text(path.read_text().replace("[parameters]", f"[parameters]\n{PARAMETERS}\n#", 1))
    with made:
        made.start()
        fit(made)  # sites have state, and node ids
        yield made


def fit(federation: Loopback) -> Any:
    """A fit by the operator's command: the model of the same messages in this process, bit for bit."""
    number = sum(path.is_dir() for path in federation.home.glob("run-*"))
    folder, log = federation.home / f"run-{number}", federation.home / f"run-{number}.txt"
    process = federation.start_run(folder, log)
    assert process.wait(120) == 0, log.read_text()
    model, here = load_model(folder), new_model().fit_federation(rehearsal(federation))
    for name in ("coef_", "intercept_", "alpha_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(here, name))
    return model


def ca(federation: Loopback) -> Path:
    return federation.home / "keys" / "ca.crt"


def log_of(federation: Loopback, name: str) -> list[dict[str, Any]]:
    return read_lines(federation.site_folder(name) / "state" / "log.jsonl")


def logs(federation: Loopback) -> dict[str, int]:
    return {name: len(log_of(federation, name)) for name in NAMES}


def node_id(federation: Loopback, name: str) -> int:
    return json.loads((federation.site_folder(name) / "state" / "node.json").read_text())["node_id"]


@pytest.fixture
def nothing_obtained(federation: Loopback) -> Iterator[None]:
    """Around an attack: sites get no message, and the nodes and runs of the SuperLink stay those of the operator."""
    before, known = logs(federation), at_superlink(federation)
    yield
    assert logs(federation) == before
    assert at_superlink(federation) == known


def at_superlink(federation: Loopback) -> tuple[set[bytes], set[int]]:
    """The keys and the runs that the SuperLink knows, asked as its operator."""
    with operator_client(federation) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
        runs = client.ListRuns(ListRunsRequest()).run_dict
    return {node.public_key for node in nodes}, set(runs)


def operator_client(federation: Loopback) -> ControlHttpClient:
    """What an insider has who got hold of the token of the gate, and of nothing else."""
    return flower._client(
        ControlHttpClient, federation.settings.superlink, ca(federation), headers=gate_token(federation)
    )


def gate_token(federation: Loopback) -> dict[str, str]:
    return {flower.GATE_HEADER: keys.gate_token(keys.read_secret(federation.settings.keys))}


# --- a stranger with ca.crt and the address ---

THIEF = """
import pathlib, shutil, sys
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

def steal(who):
    loot = pathlib.Path({loot!r}) / who
    loot.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(pathlib.Path({home!r}).rglob("*")):
        if path.is_file():
            shutil.copy(path, loot / f"{{number}}-{{path.name}}")

steal("import")
client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    steal("client")

@server.main()
def main(grid, context):
    steal("server")
"""
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "thief"
version = "1.0.0"
description = "copies files"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "stranger"

[tool.flwr.app.components]
serverapp = "thief.app:server"
clientapp = "thief.app:client"
"""


def thief(federation: Loopback, folder: Path) -> tuple[Path, Path]:
    """An app that copies every file of the federation's folders, and the folder that it copies to."""
    app, loot = folder / "app", folder / "loot"
    (app / "thief").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "thief" / "__init__.py").write_text("")
    (app / "thief" / "app.py").write_text(THIEF.format(loot=str(loot), home=str(federation.home)))
    return app, loot


@pytest.mark.usefixtures("nothing_obtained")
@pytest.mark.thorough
def test_a_stranger_cannot_run_an_app(federation: Loopback, tmp_path: Path) -> None:
    app, loot = thief(federation, tmp_path)
    home = tmp_path / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "target"\n\n[superlink.target]\naddress = "{federation.settings.superlink}"\n'
        f'root-certificates = "{ca(federation)}"\n'
    )
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    program = Path(sys.executable).parent / "flwr"
    for arguments in (["run", str(app), "target"], ["ls", "target"], ["supernode", "list", "target"]):
        done = subprocess.run(
            [str(program), *arguments], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        assert "403" in said or "for the operator" in said or "orbidden" in said, said
    assert not loot.exists()


def request(
    federation: Loopback, method: str, path: str, headers: dict[str, str], body: bytes = b""
) -> tuple[int, bytes]:
    """A request as written here: no client tidies its path up."""
    host, _, port = federation.settings.superlink.rpartition(":")
    trusted = ssl.create_default_context(cafile=str(ca(federation)))
    connection = http.client.HTTPSConnection(host, int(port), context=trusted, timeout=20)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


PLAUSIBLE: dict[str, dict[str, str]] = {
    "none": {},
    "protobuf": {"content-type": "application/protobuf", "accept": "application/protobuf"},
    "from this machine": {
        "content-type": "application/protobuf", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1", "x-real-ip": "::1",
    },
    "wrong token": {"content-type": "application/protobuf", flower.GATE_HEADER: "0" * 64, "authorization": "Bearer 0"},
    "empty token": {"content-type": "application/protobuf", flower.GATE_HEADER: ""},
}  # fmt: skip
OTHERS = (
    "/", "/docs", "/redoc", "/openapi.json", "/health", "/v1/health", "/healthz", "/metrics", "/v1/control", "/v1/runtime/",
    "//v1/control/list-runs", "/v1/control/list-runs/", "/v1/fleet/pull-messages/../../control/list-runs",
    "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/v1/fleet/pull-messages%2f..%2f..%2fcontrol%2flist-runs",
    "/V1/CONTROL/LIST-RUNS", "/v1/control/list-runs;/v1/fleet/pull-messages", "/v1/control/list-runs?path=/v1/fleet/pull-messages",
    "/v1/control/list-runs%00", "/v1/fleet/activate-node/", "https://x/v1/control/list-runs",
)  # fmt: skip


@pytest.mark.usefixtures("nothing_obtained")
def test_a_stranger_reaches_eight_paths_and_needs_a_key_there(federation: Loopback) -> None:
    paths = {path for _, path in PROTOBUF_REQUEST_TYPES} | set(OTHERS)
    assert paths >= FLEET_PATHS
    assert len(paths) > 60
    for name, headers in PLAUSIBLE.items():
        for path in paths - FLEET_PATHS:
            assert request(federation, "POST", path, headers)[0] in (400, 403), (name, path)
        for path in FLEET_PATHS:
            status, body = request(federation, "POST", path, headers)
            assert status in (401, 415), (name, path)
            assert len(body) < 200
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "CONNECT", "TRACE"):
        for path in ("/v1/control/list-nodes", "/docs", "/openapi.json", "/health", "/v1/runtime/acquire-task"):
            assert request(federation, method, path, {})[0] in (400, 403, 404, 405), (method, path)
    upgrade = {
        "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13", "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }  # fmt: skip
    assert request(federation, "GET", "/v1/control/list-nodes", upgrade)[0] in (400, 403)


@pytest.mark.usefixtures("nothing_obtained")
def test_a_stranger_cannot_register_a_key(federation: Loopback) -> None:
    key = keys.new_identity()
    public = public_key_to_bytes(key.public_key())
    with flower._client(ControlHttpClient, federation.settings.superlink, ca(federation)) as control:
        refused(control.RegisterNode, RegisterNodeRequest(public_key=public, name="north"), 403)
    with fleet(federation, key) as client:
        refused(client.RegisterNode, RegisterNodeFleetRequest(public_key=public), 403)
        refused(client.ActivateNode, ActivateNodeRequest(public_key=public, heartbeat_interval=30.0))
        refused(client.ActivateNode, ActivateNodeRequest(public_key=admitted(federation), heartbeat_interval=30.0), 401)


@pytest.mark.parametrize("who", ["a stranger", "another site"])
@pytest.mark.usefixtures("nothing_obtained")
def test_nobody_can_pull_the_messages_of_a_site(federation: Loopback, who: str) -> None:
    south = keys.read_identity(federation.site_folder("south") / "node.key")
    key = keys.new_identity() if who == "a stranger" else south
    with fleet(federation, key) as client:
        refused(client.PullMessages, PullMessagesRequest(node=Node(node_id=node_id(federation, "north"))), 401)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.usefixtures("nothing_obtained")
def test_nobody_can_take_a_run_with_a_wrong_secret(federation: Loopback, gate: bool) -> None:
    method = frozenset({"/flwr.proto.Runtime/AcquireTask"})
    shown: list[Any] = [SuperExecAuthHttpInterceptor(master_secret=bytes(32), protected_methods=method)]
    headers = gate_token(federation) if gate else {}
    address = federation.settings.superlink
    with flower._client(RuntimeHttpClient, address, ca(federation), shown, headers=headers) as client:
        request = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        refused(client.AcquireTask, request, 401 if gate else 403)


def fleet(federation: Loopback, key: Any) -> FleetHttpClient:
    return flower._client(FleetHttpClient, federation.settings.superlink, ca(federation), auth=flower._NodeAuth(key))


def admitted(federation: Loopback) -> bytes:
    return public_key_to_bytes(federation.settings.roster["north"])


def refused(method: Any, request: Any, status: int | None = None) -> None:
    with pytest.raises(flower.Rejected) as caught:
        flower._call("here", method, request)
    assert status is None or caught.value.status == status, caught.value


# --- an insider with the token of the gate ---


def bundle(app: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(app.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(app))
    return packed.getvalue()


def test_the_app_of_an_insider_runs_nowhere_and_the_operator_serves_only_its_own_run(
    federation: Loopback, tmp_path: Path
) -> None:
    app, loot = thief(federation, tmp_path)
    content = bundle(app)
    before = logs(federation)
    with operator_client(federation) as client:
        fab = Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content)
        foreign = client.StartRun(StartRunRequest(fab=fab)).run_id
    assert foreign
    time.sleep(3.0)
    assert logs(federation) == before  # nobody serves it: no message reaches a site
    watch = Watch(federation)
    try:
        fit(federation)
    finally:
        watch.end()
    assert watch.looks > 20
    assert not watch.started  # no site started a process
    assert not watch.ports  # nor opened a port
    with operator_client(federation) as client:
        status = client.ListRuns(ListRunsRequest()).run_dict[foreign].status
    assert (status.status, status.sub_status) == ("finished", "failed")
    runs = {line["run"] for name in NAMES for line in log_of(federation, name)}
    ours = [
        json.loads(path.read_bytes().splitlines()[0].partition(b" ")[2])["run"]
        for path in federation.home.glob("run-*/write_ahead.log")
    ]
    assert runs == set(ours)
    assert not loot.exists()


# --- a local user ---


def test_a_local_user_can_read_nothing_but_public_keys(federation: Loopback) -> None:
    found = [path for path in federation.home.rglob("*") if path.name != "rows.csv"]  # the table is the site's own file
    assert {path.name for path in found} >= {
        "node.key",
        "superlink.secret",
        "log.jsonl",
        "write_ahead.log",
        "lock",
    }
    for path in found:
        mode = path.stat().st_mode
        assert not stat.S_ISSOCK(mode), path
        if path.name not in PUBLIC:
            assert not mode & (stat.S_IRWXG | stat.S_IRWXO), f"{path}: {stat.filemode(mode)}"


def test_no_command_line_and_no_environment_holds_a_secret(federation: Loopback) -> None:
    secrets = [(federation.home / name).read_bytes() for name in SECRETS]
    secrets += [(federation.site_folder(name) / "node.key").read_bytes() for name in NAMES]
    token = gate_token(federation)[flower.GATE_HEADER].encode()
    words = {token, *(form for secret in secrets for form in (secret, secret.hex().encode()))}
    words |= {line for secret in secrets for line in secret.splitlines() if len(line) > 40 and b"-----" not in line}
    process = federation.start_run(federation.home / "run-watched", federation.home / "watched.txt")
    try:
        wait_for(lambda: (federation.home / "run-watched" / "log.jsonl").exists(), 60)
        pids = [federation.processes[name].pid for name in ("superlink", *NAMES)] + [process.pid]
        for pid in pids:
            for name in ("cmdline", "environ"):
                data = Path(f"/proc/{pid}/{name}").read_bytes()
                assert not any(word in data for word in words), (pid, name)
    finally:
        end_process(process)
    for path in federation.home.rglob("*"):
        if path.is_file() and path.name != "superlink.secret" and path.suffix != ".key":
            data = path.read_bytes()
            assert not any(word in data for word in words), path


OPERATOR = """
import gc, sys
gc.disable()
import compfed as cf
with cf.network.connect(sys.argv[1], folder=sys.argv[2]) as federation:
    model = cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=2).fit_federation(federation)
    print(model.coef_.tobytes().hex(), model.trace_["objective"][-1].tobytes().hex(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(not os.environ.get("COMPFED_FAULTS"), reason="a search of two processes: make test-federation")
def test_no_number_of_a_row_is_at_the_operator(federation: Loopback) -> None:
    """Neither in the memory of the operator's process nor of the SuperLink, nor in a file outside the folders of the sites."""
    command = [sys.executable, "-c", OPERATOR, str(federation.home), str(federation.home / "run-memory")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        coef, objective = (bytes.fromhex(part) for part in process.stdout.readline().decode().split())
        regions = list(writable(process.pid))
        regions += list(writable(federation.processes["superlink"].pid))
        regions = [region for region in regions if region.strip(b"\0")]
        process.communicate(b"", timeout=60)
    here = new_model().fit_federation(rehearsal(federation))
    assert coef == here.coef_.tobytes()
    assert any(coef[:8] in region for region in regions)  # what is there is found
    assert any(objective in region for region in regions)
    rows = numbers()
    assert [number for number in rows if any(number in region for region in regions)] == []
    folder = federation.home / "sites"
    for path in federation.home.rglob("*"):
        if path.is_file() and folder not in path.parents:
            data = path.read_bytes()
            assert not any(number in data for number in rows), path
