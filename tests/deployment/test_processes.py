"""Real processes on this machine, TLS and node keys: the model is the one of this process to the last bit, whoever is killed.

One undisturbed run is part of `make test`. Those with kills take minutes each, most of them Flower's own time-outs:
`make test-federation`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a deployment runs on Flower: pip install 'compfed[flower]'")

import compfed as cf
from compfed.deployment import model_files
from compfed.deployment.keys import make_keys
from compfed.deployment.loopback import Loopback, free_ports, wait_for_port
from compfed.deployment.operator import run
from compfed.deployment.processes import end
from compfed.deployment.settings import FederationSettings
from compfed.federation import InProcess

NAMES = ("north", "south")
faults = pytest.mark.skipif(not os.environ.get("COMPFED_FAULTS"), reason="minutes of time-outs: make test-federation")


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(5)
    A = [rng.standard_normal((m, 4)) for m in (20, 30)]
    y = [a @ [1.0, -1.0, 0.0, 0.5] + 0.3 * rng.standard_normal(len(a)) for a in A]
    return cf.data.from_arrays(A, y, list(NAMES), columns=["age", "dose", "bmi", "rate"])


def furnished(home: Path, parameters: str, estimator: str = "FederatedLasso") -> Loopback:
    federation = Loopback(home, sites(), NAMES)
    path = federation.home / "federation.toml"
    text = path.read_text().replace('"FederatedLogisticRegressionCV"', f'"{estimator}"')
    path.write_text(text.replace("[parameters]", f"[parameters]\n{parameters}\n#"))
    return federation


def ours(home: Path) -> dict[int, str]:
    """Processes that belong to a federation: those that name its folder or one of its ports."""
    marks = [str(home)]
    for path in home.rglob("*.toml"):
        marks += [
            f"127.0.0.1:{line.split('=')[1].strip()}" for line in path.read_text().splitlines() if line[:6] == "port ="
        ]
    marks.append(FederationSettings.read(home).superlink)
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(mark in text for mark in marks) and int(folder.name) != os.getpid():
                found[int(folder.name)] = text
    return found


def coefficients(federation: Loopback, meddle: Callable[[], None] | None = None) -> np.ndarray:
    with federation:
        federation.start()
        with ThreadPoolExecutor(1) as pool:
            meddled = pool.submit(meddle or (lambda: None))
            run(federation.settings, federation.home / "run")
            meddled.result()
    assert ours(federation.home) == {}  # no process is left behind
    return model_files.load(federation.home / "run").coef_


def here(federation: Loopback) -> np.ndarray:
    return federation.settings.new_estimator().fit_federation(InProcess(sites())).coef_


def after_message(federation: Loopback, number: int) -> None:
    while not (federation.home / "run" / "journal" / f"{number:08d}").exists():
        time.sleep(0.2)


def kill(federation: Loopback, program: str, mark: str = "", patience: float = 120.0) -> None:
    """SIGKILL to one process of the federation, when it is there."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        for pid, text in ours(federation.home).items():
            if program in text and mark in text:
                os.kill(pid, signal.SIGKILL)
                return
        time.sleep(0.1)
    raise AssertionError(f"no {program} to kill")


def test_a_fit_over_processes_is_the_fit_in_this_process(tmp_path):
    federation = furnished(tmp_path / "f", "alpha = 0.1")
    np.testing.assert_array_equal(coefficients(federation), here(federation))
    # no number of any row is on the server's disk: run folder, journal, logs, the database of the SuperLink
    rows = [np.float64(value).tobytes() for A in sites().features for value in A.ravel()]
    at_the_server = [path for path in files(federation) if federation.home / "sites" not in path.parents]
    assert any(path.name.startswith("superlink.db") for path in at_the_server)
    for path in at_the_server:
        data = path.read_bytes()
        assert not any(number in data for number in rows), path
    no_secret_is_told(federation)
    log = (tmp_path / "f" / "sites" / "north" / "state" / "answered.jsonl").read_text()
    assert sum("sha256_out" in line for line in log.splitlines()) == len(list((tmp_path / "f/run/journal").iterdir()))


def files(federation: Loopback) -> list[Path]:
    return [path for path in federation.home.rglob("*") if path.is_file()]


def no_secret_is_told(federation: Loopback) -> None:
    """A private key is in its own file, which others cannot read, and in no other: no log, no run folder, no app, no database."""
    keys = [path for path in files(federation) if path.suffix == ".key"]
    assert len(keys) == 2 + 2 * len(NAMES)  # CA and server; of every site, at the operator's and at the site
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
    secrets = [line for path in keys for line in path.read_bytes().splitlines() if b"-----" not in line]
    for path in set(files(federation)) - set(keys):
        data = path.read_bytes()
        assert b"PRIVATE KEY" not in data, path
        assert not any(secret in data for secret in secrets), path


METHODS = {
    "stateful": 'alpha = 0.1\nalgorithm = "DecoupledProx"\nmax_rounds = 5',
    "first order": 'alpha = 0.1\nalgorithm = "FISTA"\nmax_rounds = 5',
    "second order": 'alpha = 0.1\nalgorithm = "ProximalNewton"\nmax_rounds = 5',
}


@faults
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_methods_over_processes_take_the_path_of_the_reference_engine(tmp_path):
    """One federation, three runs of up to five rounds: every number of the traces, and the models after them."""
    federation = furnished(tmp_path / "f", "")
    toml = (federation.home / "federation.toml").read_text()
    with federation:
        federation.start()
        for kind, parameters in METHODS.items():
            (federation.home / "federation.toml").write_text(
                toml.replace("[parameters]\n", f"[parameters]\n{parameters}\n")
            )
            folder = federation.home / kind.replace(" ", "-")
            run(federation.settings, folder)
            model = federation.settings.new_estimator().fit_federation(InProcess(sites()))
            np.testing.assert_array_equal(model_files.load(folder).coef_, model.coef_)
            there = cf.Trace.load(folder / "trace.npz")
            assert there["round"][-1] >= (4 if kind == "second order" else 5)  # where it arrives
            for name in set(model.trace_.columns) - {"seconds"}:
                np.testing.assert_array_equal(there[name], model.trace_[name], err_msg=f"{kind}: {name}")
    no_secret_is_told(federation)


@faults
def test_who_is_not_admitted_is_told_why(tmp_path):
    """A key that the operator does not know, and a server whose certificate another authority signed."""
    federation = furnished(tmp_path / "f", "")
    make_keys(tmp_path / "others", "127.0.0.1", NAMES)
    shutil.copy(tmp_path / "others" / "north.key", federation.home / "sites" / "north" / "node.key")
    shutil.copy(tmp_path / "others" / "ca.crt", federation.home / "sites" / "south" / "ca.crt")
    reasons = {
        "north": "it was not admitted. Either its key is not registered yet (the operator does that when a run starts)",
        "south": "the server's certificate is not signed by `ca`: ask the operator for the ca.crt of this federation.",
    }
    with federation:
        federation.start()
        for name, reason in reasons.items():
            log, end = federation.home / "sites" / name / "site.log", time.monotonic() + 180
            while reason not in log.read_text():
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.5)
    assert ours(federation.home) == {}


DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


@faults
@pytest.mark.skipif(not shutil.which("nginx"), reason="the proxy of docs/deploy.md is nginx")
def test_a_federation_through_the_proxy_of_the_documentation(tmp_path):
    """Sites reach the fleet paths and nothing else."""
    federation = furnished(tmp_path / "f", "alpha = 0.1")
    (port,) = free_ports(1)
    text = DEPLOY.read_text().split("```nginx\n")[1].split("```")[0]
    for old, new in {
        "listen 8443 ssl": f"listen 127.0.0.1:{port} ssl", "127.0.0.1:8000": federation.settings.superlink,
        "/etc/compfed/keys": str(federation.home / "keys"),
    }.items():  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "nginx.conf").write_text(
        f"daemon off; pid {tmp_path}/nginx.pid; error_log {tmp_path}/error.log;\n{text}"
    )
    for name in NAMES:
        path = federation.home / "sites" / name / "site.toml"
        path.write_text(path.read_text().replace(federation.settings.superlink, f"127.0.0.1:{port}"))
    command = [str(shutil.which("nginx")), "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    proxy = subprocess.Popen(command, start_new_session=True)
    try:
        wait_for_port(port, proxy)
        np.testing.assert_array_equal(
            coefficients(federation, lambda: only_the_fleet(federation, port)), here(federation)
        )
    finally:
        end(proxy)


def only_the_fleet(federation: Loopback, port: int) -> None:
    trusted = ssl.create_default_context(cafile=str(federation.home / "keys" / "ca.crt"))
    codes = {}
    for path in ("/v1/control/list-runs", "/v1/runtime/pull-task", "/health", "/docs", "/", "/v1/fleet/pull-messages"):
        ask = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data=b"", method="POST")
        try:
            codes[path] = urllib.request.urlopen(ask, context=trusted).status
        except urllib.error.HTTPError as refused:
            codes[path] = refused.code
    fleet = codes.pop("/v1/fleet/pull-messages")
    assert set(codes.values()) == {403}
    assert fleet not in (403, 404)  # it reached Flower, which wants a signature


def _node(f: Loopback) -> None:
    kill(f, "flower-supernode", "/south/")


def _client_app(f: Loopback) -> None:
    kill(f, "flwr-clientapp")


def _server_app(f: Loopback) -> None:
    kill(f, "flwr-serverapp")


def _superlink(f: Loopback) -> None:
    process = f.processes["superlink"]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(2.0)
    f.start_superlink()


def _site(f: Loopback) -> None:
    """The desk and its supervisor; the node they leave behind answers alone, until they are back."""
    process = f.processes["south"]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(10.0)
    f.start_site("south")


def _disk(f: Loopback) -> None:
    shutil.rmtree(f.home / "sites" / "south" / "state" / "runs")


KILLS = {
    "node": _node,
    "client app": _client_app,
    "server app": _server_app,
    "superlink": _superlink,
    "site": _site,
    "disk": _disk,
}


@faults
@pytest.mark.parametrize("fault", KILLS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_whoever_is_killed_the_model_has_the_same_bits(fault, tmp_path):
    federation = furnished(tmp_path / "f", METHODS["stateful"])

    def meddle() -> None:
        after_message(federation, 4)
        KILLS[fault](federation)

    np.testing.assert_array_equal(coefficients(federation, meddle), here(federation))
    if fault == "disk":
        events = (federation.home / "run" / "events.jsonl").read_text()
        assert "rounds are done again there" in events
        told = cf.Trace.load(federation.home / "run" / "trace.npz").provenance["events"]
        assert any("rounds are done again there" in event["what"] for event in told)


# `compfed site`, whose desk spoils its reply to each of three messages, once: numbers that are none, a gradient that is too
# short, and the reply to an earlier message.
LIAR = """
import sys
import numpy as np
from compfed import cli
from compfed.federation.flower.desk import Desk
from compfed.federation.flower.records import from_records, to_records
from compfed.federation.messages import pack, unpack

honest, replies, lies = Desk.reply, {}, {2: "nan", 3: "shape", 4: "round"}

def reply(desk, records):
    number = from_records(records)[0]["number"]
    replies[number] = said = honest(desk, records)
    lie = lies.pop(number, None)
    if lie == "round":
        return replies[2]
    if lie is None:
        return said
    envelope, packed = from_records(said)
    answers = [
        answer._replace(gradient=answer.gradient * np.nan if lie == "nan" else answer.gradient[:, 1:])
        if hasattr(answer, "gradient") else answer
        for answer in unpack(packed)
    ]
    return to_records(envelope, pack(tuple(answers)))

Desk.reply = reply
sys.exit(cli.main(["site", "--config", sys.argv[1]]))
"""


@faults
def test_a_site_that_answers_wrongly_is_named_and_asked_again(tmp_path, monkeypatch):
    federation = furnished(tmp_path / "f", "alpha = 0.1")
    (tmp_path / "liar.py").write_text(LIAR)
    honest = federation.start_site

    def start_site(name: str) -> None:
        if name == "north":
            honest(name)
        else:
            command = [sys.executable, str(tmp_path / "liar.py"), str(federation.home / "sites" / name / "site.toml")]
            federation.processes[name] = subprocess.Popen(command, start_new_session=True)

    monkeypatch.setattr(federation, "start_site", start_site)
    np.testing.assert_array_equal(coefficients(federation), here(federation))
    told = cf.Trace.load(federation.home / "run" / "trace.npz").provenance["events"]
    assert {event["site"] for event in told} == {"south"}
    said = " ".join(event["what"] for event in told)
    assert "ValueAndGradient: gradient has 5 NaN" in said
    assert "gradient has shape (1, 4); expected (1, 5)" in said
    assert "its reply is to number 2, not 4; it was not used" in said
