"""`compfed federation` and `compfed site`: what is printed, exit codes, and errors in one line."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

import compfed as cf
from compfed import network
from compfed.cli import main
from compfed.cli.demo import free_port
from compfed.federation.numbers import About, Table
from compfed.federation.queries import LEAVES
from compfed.federation.site.ledger import Roster
from compfed.network import keys
from compfed.network.roster import read_roster, roster_fingerprint
from compfed.network.settings import FederationSettings
from compfed.network.site_settings import SiteSettings


class Done(NamedTuple):
    status: int
    out: str
    error: str


Command = Callable[..., Done]


@pytest.fixture
def compfed(capsys) -> Iterator[Command]:
    """Runs a command; its error, if there is one, has one line and no traceback."""

    def run(*arguments: Any) -> Done:
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert said.err.count("\n") <= 1, said.err
        assert "Traceback" not in said.err
        assert (status == 2) == bool(said.err)
        return Done(status, said.out, said.err)

    before = os.umask(0o022)
    yield run
    os.umask(before)


@pytest.fixture
def federation(compfed, tmp_path) -> Path:
    """A federation with keys of the operator and of all sites, whose SuperLink does not run."""
    folder = tmp_path / "clinics"
    compfed("federation", "new", folder, "--sites", "north,south", "--superlink", f"127.0.0.1:{free_port()}")
    compfed("federation", "keys", folder, "--demo")
    return folder


# --- without Flower ---


@pytest.mark.parametrize("arguments", [("federation", "new", "f", "--sites", "a"), ("site", "check")])
def test_without_flower_a_command_says_what_to_install(arguments, compfed, monkeypatch):
    monkeypatch.setattr(network, "find_spec", lambda name: None)
    done = compfed(*arguments)
    assert done.status == 2
    assert "needs flwr, which is not installed. In a clone of compfed, run: pip install '.[flower]'" in done.error
    with pytest.raises(ImportError, match=r"\.\[flower\]"):
        _ = network.connect


def test_other_commands_do_not_need_flower():
    code = "import sys; sys.modules['flwr'] = None; from compfed.cli import main; sys.exit(main(['describe', 'x']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "there is no file x" in done.stderr
    assert done.returncode == 2


# --- new ---


def test_new_writes_settings_and_says_what_is_next(compfed, tmp_path):
    folder = tmp_path / "clinics"
    done = compfed("federation", "new", folder, "--sites", "north,south", "--superlink", "fed.example.org:8443")
    assert done.status == 0
    assert done.out.splitlines()[0] == str(folder / "federation.toml")
    assert f"compfed federation keys {folder}" in done.out
    assert FederationSettings.read(folder).names == ("north", "south")
    again = compfed("federation", "new", folder, "--sites", "a")
    assert again.status == 2
    assert again.error == f"compfed federation: {folder / 'federation.toml'} is there already. Move it away first.\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sites", "a,a"), "every site needs a name of its own"),
        (("--sites", "a,,b"), "'' is not a name for a site"),
        (("--sites", "../evil"), "is not a name for a site"),
        (("--sites", "ca"), "reserved"),
        (("--sites", "a", "--superlink", "host"), "must be HOST:PORT"),
    ],
)
def test_new_refuses_mistakes(options, message, compfed, tmp_path):
    done = compfed("federation", "new", tmp_path / "f", *options)
    assert done.status == 2
    assert message in done.error
    assert not (tmp_path / "f").exists()


# --- keys ---


def test_keys_never_writes_a_private_key_of_a_site(compfed, tmp_path):
    compfed("federation", "new", tmp_path, "--sites", "north,south", "--superlink", "fed.example.org:8443")
    done = compfed("federation", "keys", tmp_path)
    assert done.status == 0
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "federation.toml", "ca.crt", "ca.key", "server.pem", "server.key", "superlink.secret",
    }  # fmt: skip
    assert (
        f"Send to every site: {tmp_path / 'keys' / 'ca.crt'}, and the address fed.example.org:8443. Nothing else."
        in done.out
    )
    assert "compfed site init --name south --superlink fed.example.org:8443" in done.out
    assert "PRIVATE" not in done.out
    again = compfed("federation", "keys", tmp_path)
    assert (again.status, "has keys already" in again.error) == (2, True)


def test_keys_for_a_demo_make_sites_that_are_admitted(federation):
    settings = FederationSettings.read(federation)
    settings.check_keys()
    for name in ("north", "south"):
        site = SiteSettings.read(federation / "sites" / name / "site.toml")
        assert keys.fingerprint(keys.read_identity(site.key).public_key()) == keys.fingerprint(settings.roster[name])
        assert site.ca.read_bytes() == (federation / "keys" / "ca.crt").read_bytes()
    private = [path for path in federation.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]
    assert {path.name for path in private} == {"ca.key", "server.key", "node.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


# --- admit ---


@pytest.mark.parametrize("given_as", ["line", "file"])
def test_admit_takes_the_line_that_a_site_printed(given_as, compfed, tmp_path):
    compfed("federation", "new", tmp_path / "f", "--sites", "north")
    printed = compfed("site", "init", "--name", "north", "--superlink", "h:1", "--folder", tmp_path / "s").out
    (line,) = [line for line in printed.splitlines() if line.startswith("ecdsa-sha2-nistp384 ")]
    (fingerprint,) = [line.split()[-1] for line in printed.splitlines() if "fingerprint" in line]
    given = line if given_as == "line" else tmp_path / "s" / "node.key.pub"
    done = compfed("federation", "admit", tmp_path / "f", "north", given)
    assert done.status == 0
    assert f"Site north has the key {fingerprint}. Compare this with the site, by telephone." in done.out
    assert list(FederationSettings.read(tmp_path / "f").roster) == ["north"]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("north", "nonsense", "is not a site's public key"),
        ("north", "", "is not a site's public key"),
        ("../north", "x", "is not a name for a site"),
    ],
)
def test_admit_refuses_mistakes(name, line, message, compfed, tmp_path):
    compfed("federation", "new", tmp_path / "f", "--sites", "north")
    done = compfed("federation", "admit", tmp_path / "f", name, line)
    assert done.status == 2
    assert message in done.error


def test_a_private_key_given_by_mistake_is_refused_and_not_repeated(compfed, tmp_path):
    compfed("federation", "new", tmp_path / "f", "--sites", "north")
    compfed("site", "init", "--name", "north", "--superlink", "h:1", "--folder", tmp_path / "s")
    private = (tmp_path / "s" / "node.key").read_text()
    done = compfed("federation", "admit", tmp_path / "f", "north", tmp_path / "s" / "node.key")
    assert done.status == 2
    secret = "".join(private.splitlines()[2:-1])
    assert not any(secret[k : k + 20] in done.error for k in range(0, len(secret) - 20, 10))


# --- a hundred sites, in one command each ---


def test_a_hundred_sites_are_named_admitted_and_listed_in_one_command_each(compfed, tmp_path):
    names = [f"clinic-{k:02d}" for k in range(100)]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n\n")
    assert compfed("federation", "new", tmp_path / "f", "--sites", tmp_path / "names.txt").status == 0
    told = compfed("federation", "keys", tmp_path / "f").out
    assert "Each of 100 sites runs `compfed site init --name NAME" in told
    assert len(told.splitlines()) < 15
    made = {name: keys.new_identity().public_key() for name in names}
    (tmp_path / "sent").mkdir()
    for k, name in enumerate(names[:-1]):
        (tmp_path / "sent" / f"{k}.pub").write_text(f"{keys.public_line(made[name])} {name}\n")
    first = compfed("federation", "admit", tmp_path / "f", "--all", tmp_path / "sent")
    assert first.out.splitlines()[-1] == "No key yet: clinic-99."
    assert f"clinic-42  {keys.fingerprint(made['clinic-42'])}" in first.out
    (tmp_path / "keys.txt").write_text("".join(f"{keys.public_line(made[name])} {name}\n" for name in names))
    again = compfed("federation", "admit", tmp_path / "f", "--all", tmp_path / "keys.txt")
    assert again.out.splitlines()[-1].startswith("All sites have a key: compfed federation roster ")
    assert "Fingerprint of the roster: " in compfed("federation", "roster", tmp_path / "f").out
    read = read_roster(tmp_path / "f" / "roster.txt")
    assert {name: keys.fingerprint(key) for name, key in read.items()} == {
        name: keys.fingerprint(made[name]) for name in names
    }
    assert list(read) == names


def lines_of(**identities: Any) -> str:
    return "".join(f"{keys.public_line(key.public_key())} {name}\n" for name, key in identities.items())


ONE, OTHER = keys.new_identity(), keys.new_identity()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no public key"),
        ("nonsense north\n", "line 1: 'nonsense north' is not a site's public key"),
        (keys.public_line(ONE.public_key()), "line 1: '' is not a name for a site"),
        (lines_of(west=ONE), "has no site west. To add it, say --new"),
        (lines_of(north=ONE, south=ONE), "sites 'north' and 'south' have the same key"),
        (lines_of(north=ONE) + lines_of(north=OTHER), "line 2: another key of site 'north' came before"),
        ("\u00e9", "is no file of public keys"),
        ("x" * (2**20 + 1), "is no file of public keys"),
    ],
)
def test_admitting_many_is_all_or_nothing(text, message, compfed, tmp_path):
    compfed("federation", "new", tmp_path / "f", "--sites", "north,south")
    before = (tmp_path / "f" / "federation.toml").read_text()
    (tmp_path / "lines").write_text(text)
    done = compfed("federation", "admit", tmp_path / "f", "--all", tmp_path / "lines")
    assert done.status == 2
    assert message in done.error
    assert (tmp_path / "f" / "federation.toml").read_text() == before


def test_admit_takes_one_site_or_many(compfed, tmp_path):
    compfed("federation", "new", tmp_path / "f", "--sites", "north,south")
    assert "many at once by --all PATH" in compfed("federation", "admit", tmp_path / "f", "north").error
    assert "Leave NAME and KEY out" in compfed("federation", "admit", tmp_path / "f", "north", "--all", tmp_path).error


# --- a SuperLink that does not run ---


def test_a_superlink_that_does_not_run_is_named_at_once(compfed, federation):
    address = FederationSettings.read(federation).superlink
    compfed("federation", "status", federation)  # imports are not part of it
    began = time.monotonic()
    status, run = compfed("federation", "status", federation), compfed("federation", "run", federation)
    assert time.monotonic() - began < 8
    for text in (status.out, run.error):
        assert f"the SuperLink cannot be used: nothing listens at {address}" in text
        assert f"compfed federation serve {federation}" in text
    assert (status.status, run.status) == (1, 2)
    as_json = compfed("federation", "status", federation, "--json")
    found = json.loads(as_json.out)
    assert (as_json.status, found["sites"], found["process"]) == (1, {}, None)
    assert address in found["problem"]
    assert f"There is no run in {federation / 'run'}." in status.out
    assert not (federation / "run" / "write_ahead.log").exists()


@pytest.mark.parametrize("command", ["run", "serve"])
def test_missing_keys_are_named_before_anything_starts(command, compfed, tmp_path):
    compfed("federation", "new", tmp_path, "--sites", "north")
    done = compfed("federation", command, tmp_path)
    assert done.status == 2
    assert "site 'north' has no key yet" in done.error or "Run: compfed federation keys" in done.error


def test_a_port_that_is_taken_is_named(compfed, federation):
    host, port = FederationSettings.read(federation).listen
    with socket.create_server((host, port)):
        done = compfed("federation", "serve", federation)
    assert done.status == 2
    assert (
        f"{host}:{port} cannot be opened (Address already in use). Does `compfed federation serve` run already?"
        in done.error
    )


@pytest.mark.parametrize("command", ["keys", "run", "status", "stop", "serve", "describe", "schema"])
def test_a_folder_that_is_no_federation_is_named(command, compfed, tmp_path):
    done = compfed("federation", command, tmp_path)
    assert done.status == 2
    assert "federation.toml: No such file or directory. Give the folder of `compfed federation new DIR`." in done.error


# --- roster ---


def test_the_roster_needs_the_key_of_every_site(compfed, tmp_path):
    compfed("federation", "new", tmp_path, "--sites", "north,south,west")
    compfed("federation", "admit", tmp_path, "south", keys.public_line(keys.new_identity().public_key()))
    done = compfed("federation", "roster", tmp_path)
    assert done.status == 2
    assert "sites 'north', 'west' have no key yet" in done.error
    assert not (tmp_path / "roster.txt").exists()


@pytest.fixture
def masked(compfed, tmp_path) -> Path:
    """A federation of three sites with keys and a roster."""
    folder = tmp_path / "three"
    compfed("federation", "new", folder, "--sites", "north,south,west", "--superlink", f"127.0.0.1:{free_port()}")
    compfed("federation", "keys", folder, "--demo")
    for name in ("north", "south", "west"):
        (folder / "sites" / name / "rows.csv").write_text(GOOD)
    return folder


def config(federation: Path, name: str = "north") -> tuple[str, Path]:
    return "--config", federation / "sites" / name / "site.toml"


def test_operator_and_sites_see_one_fingerprint(compfed, masked, tmp_path):
    done = compfed("federation", "roster", masked, "--out", tmp_path / "r.txt")
    assert done.status == 0
    digest = hashlib.sha256((tmp_path / "r.txt").read_bytes()).hexdigest()
    said = f"Fingerprint of the roster: {' '.join(digest[i : i + 5] for i in range(0, 40, 5))}\n"
    assert said in done.out
    for name in ("north", "south", "west"):
        shown = compfed("site", "roster", *config(masked, name))
        assert shown.status == 0
        assert said in shown.out
        key = keys.read_identity(masked / "sites" / name / "node.key")
        assert f"  {name:<5}  {keys.fingerprint(key.public_key())}\n" in done.out
        assert "by telephone" in shown.out


def test_an_exchanged_key_changes_the_fingerprint_at_the_site(compfed, masked):
    """An operator who wants to read what north adds gives it a key of their own in the name of south."""
    before = compfed("site", "roster", *config(masked)).out
    path = masked / "sites" / "north" / "roster.txt"
    (line,) = [line for line in path.read_text().splitlines() if line.startswith("south ")]
    path.write_text(path.read_text().replace(line, f"south {keys.public_line(keys.new_identity().public_key())}"))
    after = compfed("site", "roster", *config(masked)).out
    assert before.splitlines()[-3] != after.splitlines()[-3]
    assert after.splitlines()[-3].startswith("Fingerprint of the roster: ")


def test_site_roster_names_a_roster_that_is_not_there(compfed, masked):
    (masked / "sites" / "north" / "roster.txt").unlink()
    done = compfed("site", "roster", *config(masked))
    assert done.status == 2
    assert (
        "Ask the operator for roster.txt (`compfed federation roster DIR` writes it), put it beside site.toml"
        in done.error
    )


def test_site_check_says_the_fingerprint(compfed, masked):
    done = compfed("site", "check", *config(masked))
    assert done.status == 0
    (said,) = [
        line for line in compfed("site", "roster", *config(masked)).out.splitlines() if line.startswith("Finger")
    ]
    assert f"Its fingerprint, to compare by telephone: {said.partition(': ')[2]}" in done.out
    assert "roster.txt: 3 sites: north, south, west." in done.out
    assert "only totals over all sites of the roster" in done.out


# --- status and stop ---


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"state": "running", "message": 7}, "was killed at message 7. `compfed federation run` continues it."),
        ({"state": "finished"}, "has finished."),
        ({"state": "closed"}, "was ended by its script."),
        ({"state": "stopped", "message": 2}, "was stopped at message 2. `compfed federation run` continues it."),
        (
            {"state": "failed", "message": 3, "reason": "no \x1b[2J reply."},
            "failed at message 3: no \\x1b[2J reply. `compfed federation run` continues it.",
        ),
    ],
)
def test_the_status_of_a_run_that_has_ended(state, words, compfed, federation):
    (federation / "run").mkdir()
    (federation / "run" / "status.json").write_text(json.dumps(state))
    (federation / "run" / "config.json").write_text("{}")
    done = compfed("federation", "status", federation)
    assert f"the run in {federation / 'run'} {words}" in done.out
    assert "\x1b" not in done.out


def test_the_status_is_that_of_the_run_that_goes_on_or_of_the_latest(compfed, federation, holder):
    """`federation run --out` may have put it beside DIR/run; and a stop says where it is."""
    for k, name in enumerate(("first", "second", "run")):
        (federation / name).mkdir(exist_ok=True)
        state = {"state": "finished", "message": 3, "link": "", "waiting": {}, "connected": None, "queries": []}
        (federation / name / "status.json").write_text(json.dumps(state))
        os.utime(federation / name / "status.json", (10**9 + k, 10**9 + k))
    assert f"Run in {federation / 'run'}, process {holder.pid}" in compfed("federation", "status", federation).out
    (federation / "second" / "lock").hardlink_to(federation / "run" / "lock")  # the same lock, held there
    (federation / "run" / "lock").unlink()
    done = compfed("federation", "status", federation)
    assert f"Run in {federation / 'second'}, process {holder.pid}" in done.out
    assert f"Other runs, each with --out: {federation / 'run'}, {federation / 'first'}." in done.out
    stopped = compfed("federation", "stop", federation)
    assert (stopped.status, holder.poll()) == (0, None)
    assert (
        f"There is no run going on in {federation / 'run'}. One goes on elsewhere: --out {federation / 'second'}."
        in stopped.out
    )
    holder.kill()
    holder.wait()
    assert f"the run in {federation / 'run'} has finished" in compfed("federation", "status", federation).out
    chosen = compfed("federation", "status", federation, "--out", federation / "first").out
    assert f"the run in {federation / 'first'} has finished" in chosen


def test_a_status_file_that_is_damaged_is_no_run(compfed, federation):
    (federation / "run").mkdir()
    for text in ("", "{", "[1]", "\x00"):
        (federation / "run" / "status.json").write_text(text)
        assert f"There is no run in {federation / 'run'}." in compfed("federation", "status", federation).out


def test_a_finished_run_is_not_written_over(compfed, federation):
    (federation / "other").mkdir()
    (federation / "other" / "status.json").write_text('{"state": "finished"}')
    done = compfed("federation", "run", federation, "--out", federation / "other")
    assert done.status == 2
    assert "holds a run that has finished. Give another folder for a new one (--out)." in done.error


HOLDER = """
import fcntl, os, signal, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(handle, fcntl.LOCK_EX)
os.pwrite(handle, str(os.getpid()).encode(), 0)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(federation) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs in the run folder of the federation."""
    (federation / "run").mkdir()
    command = [sys.executable, "-c", HOLDER, str(federation / "run" / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_one_process_runs_in_a_folder_and_stop_ends_it(compfed, federation, holder):
    state = {"state": "running", "message": 3, "link": "", "waiting": {}, "connected": None, "queries": []}
    (federation / "run" / "status.json").write_text(json.dumps(state))
    status = compfed("federation", "status", federation)
    assert f"process {holder.pid}: Message 3 is complete" in status.out
    second = compfed("federation", "run", federation)
    assert second.status == 2
    assert f"a run is going on in {federation / 'run'} (process {holder.pid})" in second.error
    done = compfed("federation", "stop", federation)
    assert (done.status, done.out) == (
        0,
        f"Asking process {holder.pid} to stop.\nThe run in {federation / 'run'} is stopped.\n",
    )
    assert holder.wait(5) == 130
    again = compfed("federation", "stop", federation)
    assert (again.status, again.out) == (0, f"There is no run going on in {federation / 'run'}.\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("typo",), "{0}/typo: No such file or directory. Give the folder of `compfed federation new DIR`."),
        (("keys",), "{0}/keys/federation.toml: No such file or directory."),
        ((".", "--out", "typo"), "there is no run in {0}/typo. Give the DIR of"),
        ((".", "--out", "."), "there is no run in {0}. Give the DIR of"),
    ],
)
def test_stop_ends_no_run_of_a_folder_that_was_not_named(arguments, words, compfed, federation, holder):
    given = [federation / word if not word.startswith("--") else word for word in arguments]
    done = compfed("federation", "stop", *given)
    assert done.status == 2
    assert words.format(federation) in done.error
    assert holder.poll() is None


# --- ledger, explain, allow ---

HASHES = np.arange(24, dtype=np.uint64)
OLD = Roster("an earlier one", ("north", "south", "west", "east"))


def settings_of(federation: Path, name: str = "north") -> SiteSettings:
    return SiteSettings.read(config(federation, name)[1])


@pytest.fixture
def used(masked) -> Path:
    """A federation of three sites whose site north took part in a run with four, and was asked twice."""
    settings = settings_of(masked)
    ledger = settings.ledger()
    ledger.open_run("run-1", OLD, HASHES, settings.disclosure)
    ledger.begin("run-1", "", "rule", 1000, Table(96, 2, 2))
    ledger.record("run-1", 2, "h2", {"Moments": 1}, {About(0b11, 2): 5}, 1000)
    ledger.record("run-1", 3, "h3", {"Evaluate": 2, "HeldOut": 1}, {About(0b11, 2): 1042}, 2500)
    lines = [
        {"time": 1.7e9, "run": "run-1", "number": 1, "queries": {"Enrol": 1}, "bytes_out": 400, "repeated": False},
        {"time": 1.7e9, "run": "other", "number": 1, "queries": {"Moments": 1}, "bytes_out": 77, "repeated": False},
        {"time": 1.7e9 + 1, "run": "run-1", "number": 2, "queries": {"Moments": 1}, "bytes_out": 1000, "repeated": False},
        {"time": 1.7e9 + 2, "run": "run-1", "number": 3, "queries": {"Evaluate": 2, "HeldOut": 1}, "bytes_out": 2500,
         "refused": {"count": 1, "first": ["site 'north' refuses HeldOut: a rule."]}, "repeated": True},
        {"time": 1.7e9 + 3, "run": "run-1", "number": 4, "kind": "refused", "reason": "no \x1b[2J reason"},
        {"failed": "ValueError", "at": []},
    ]  # fmt: skip
    (masked / "sites" / "north" / "state" / "log.jsonl").write_text(
        "\n".join(map(json.dumps, lines)) + "\n{damaged\n[]\n"
    )
    return masked


def test_the_ledger_of_a_table_without_runs(compfed, masked):
    done = compfed("site", "ledger", *config(masked))
    assert done.status == 0
    assert "No run of the table 'rows' yet." in done.out
    assert "Table 'rows': 0 numbers released, 0.0% of those in the rows whose sums are seen" in done.out
    assert compfed("site", "ledger", "--csv", *config(masked)).out.count("\n") == 1  # the header


def test_the_ledger_as_a_table_and_as_csv(compfed, used):
    done = compfed("site", "ledger", *config(used))
    assert done.status == 0
    (row,) = [line for line in done.out.splitlines() if line.startswith("run-1 ")]
    for cell in ("north, south, west, east", " 24 ", "Evaluate 2, HeldOut 1, Moments 1", " 1047 ", " 3500 ", " 545.3%"):
        assert cell in row
    assert "1,047 numbers released, 545.3% of those" in done.out  # of 96 x 2
    assert "a rule may approve a run up to any share (share_by_rule), a person up to any share (max_share)" in done.out
    (entry,) = csv.DictReader(io.StringIO(compfed("site", "ledger", "--csv", *config(used)).out))
    assert (entry["run"], entry["rows"], entry["numbers"], entry["bytes out"]) == ("run-1", "24", "1047", "3500")
    assert entry["share so far"] == "545.3%"
    lines = compfed("site", "ledger", "--json", *config(used)).out.splitlines()
    assert [json.loads(line) for line in lines] == [entry]


def test_a_damaged_ledger_is_named_in_one_line(compfed, used):
    path = next((used / "sites" / "north" / "state").rglob("*.ledger"))
    path.write_bytes(path.read_bytes().replace(b"Moments", b"Momentz"))
    for command in (["ledger"], ["allow", "--yes"], ["explain", "run-1"]):
        done = compfed("site", *command, *config(used))
        assert done.status == 2
        assert "line 3 is damaged. Restore the file from a backup" in done.error


def test_explain_says_message_by_message_what_left(compfed, used):
    done = compfed("site", "explain", "run-1", *config(used))
    assert done.status == 0
    assert "Run run-1 at site 'north': 3 replies left, 3,900 bytes." in done.out
    assert "with the sites north, south, west, east, and used 24 rows of the table 'rows'" in done.out
    assert "1,047 numbers left in it, 545.3% of 96 x 2 (by rule)" in done.out
    messages = [line.split(maxsplit=4) for line in done.out.splitlines() if line[:1].isdigit()]
    assert [(number, size) for number, _, _, size, _ in messages] == [
        ("1", "400"),
        ("2", "1,000"),
        ("3", "2,500"),
        ("4", "0"),
    ]
    assert messages[1][4] == "Moments x 1"
    assert messages[2][4] == (
        "Evaluate x 2, HeldOut x 1 (the same bytes as before, sent again); refused: site 'north' refuses HeldOut: a rule."
    )
    assert messages[3][4] == "nothing of the rows. refused: no \\x1b[2J reason"
    for name in ("Moments", "Evaluate", "HeldOut"):
        assert f"\n{name}: {LEAVES[name]}.\n" in done.out
    assert "\nEnrol: the number of its rows" in done.out
    assert "\nLipschitz: " not in done.out
    assert "NOTE: 1 lines of the log cannot be read." in done.out
    assert "\x1b" not in done.out


def test_explain_reads_older_logs_too(compfed, used):
    state = used / "sites" / "north" / "state"
    lines = (state / "log.jsonl").read_text().splitlines(keepends=True)
    (state / "log-1700.jsonl").write_text("".join(lines[:2]))
    (state / "log.jsonl").write_text("".join(lines[2:]))
    assert "3 replies left, 3,900 bytes." in compfed("site", "explain", "run-1", *config(used)).out


def test_explain_of_a_run_that_is_not_there_names_those_that_are(compfed, used, masked):
    done = compfed("site", "explain", "run-2", *config(used))
    assert done.status == 2
    assert "has no run 'run-2'. The runs there, the latest first: other, run-1." in done.error
    assert "the latest first: none yet." in compfed("site", "explain", "run-2", *config(masked, "south")).error


HOSTILE_LINES = ['{"run": "r", "number": "x", "bytes_out": 1}', '{"run": "r"}', '{"run": "r", "number": 1, "queries": 3}', "null",
                 '{"run": "r", "number": 1, "refused": []}', '{"run": "r", "number": 1e999}', "[" * 100_000, "\x00", "9" * 5000,
                 '{"run": "r", "number": 1, "queries": {"A": "many"}}', "a" * 3_000_000]  # fmt: skip


def test_lines_of_a_log_that_are_none_are_counted(compfed, used):
    path = used / "sites" / "north" / "state" / "log.jsonl"
    path.write_text("\n".join(HOSTILE_LINES) + "\n" + path.read_text())
    done = compfed("site", "explain", "run-1", *config(used))
    assert done.status == 0
    assert "3 replies left, 3,900 bytes." in done.out


def test_allow_says_whose_totals_become_known(compfed, used, monkeypatch):
    settings = settings_of(used)
    now = Roster(roster_fingerprint(settings.read_roster()), ("north", "south", "west"))
    with pytest.raises(cf.InputError, match="compfed site allow"):
        settings.ledger().open_run("run-2", now, HASHES, settings.disclosure)
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    refused = compfed("site", "allow", *config(used))
    assert refused.status == 1
    assert "Since the roster east, north, south, west: east left." in refused.out
    assert "By subtraction the operator can then learn the totals of east alone." in refused.out
    assert "Nothing was changed" in refused.out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "or say --yes" in compfed("site", "allow", *config(used)).error
    assert now.fingerprint not in settings.ledger().rosters
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    done = compfed("site", "allow", *config(used))
    assert (done.status, done.out.splitlines()[-1]) == (
        0,
        "Allow runs with this roster? Type yes: Allowed. The ledger has it.",
    )
    settings.ledger().open_run("run-2", now, HASHES, settings.disclosure)
    assert "This roster is allowed already." in compfed("site", "allow", *config(used)).out


def test_allow_of_the_same_names_asks_about_the_key(compfed, masked):
    settings = settings_of(masked)
    settings.ledger().open_run("run-1", Roster("before", ("north", "south", "west")), HASHES, settings.disclosure)
    done = compfed("site", "allow", "--yes", *config(masked))
    assert done.status == 0
    assert "the same sites and another key or order. Ask by telephone" in done.out
    assert "By subtraction" not in done.out


def test_the_first_run_needs_no_permission(compfed, masked):
    done = compfed("site", "allow", *config(masked))
    assert done.status == 0
    assert "its first run may have any roster. Nothing to allow." in done.out
    assert not settings_of(masked).ledger().rosters


# --- a site ---


def test_site_init_prints_the_line_for_the_operator(compfed, tmp_path):
    done = compfed("site", "init", "--name", "north", "--superlink", "fed.example.org:8443", "--folder", tmp_path)
    assert done.status == 0
    assert (tmp_path / "node.key.pub").read_text().strip() in done.out.splitlines()
    assert "PRIVATE" not in done.out
    assert f"compfed site check --config {tmp_path / 'site.toml'}" in done.out
    again = compfed("site", "init", "--name", "north", "--superlink", "fed.example.org:8443", "--folder", tmp_path)
    assert (again.status, "is there already" in again.error) == (2, True)
    for name in ("A", "ca", "../x"):
        bad = compfed("site", "init", "--name", name, "--superlink", "h:1", "--folder", tmp_path / "other")
        assert bad.status == 2
    assert not (tmp_path / "other").exists()


GOOD = "age,dose,label\n" + "".join(f"{i + 0.125},{i * i % 13 + 0.25},{int(i > 7)}\n" for i in range(24))


@pytest.fixture
def site(federation) -> Path:
    folder = federation / "sites" / "north"
    (folder / "rows.csv").write_text(GOOD)
    return folder


@contextlib.contextmanager
def listening(federation: Path) -> Iterator[None]:
    """A server with the certificate of the SuperLink, at its address."""
    settings = FederationSettings.read(federation)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.keys / "server.pem", settings.keys / "server.key")
    with socket.create_server(settings.listen) as server:

        def accept() -> None:
            plain, _ = server.accept()
            with plain, contextlib.suppress(OSError):
                context.wrap_socket(plain, server_side=True).close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield
        thread.join(5)


def test_site_check_of_a_site_that_is_in_order(compfed, federation, site):
    with listening(federation):
        done = compfed("site", "check", "--config", site / "site.toml")
    assert done.status == 0
    assert "24 rows, 2 columns: age, dose." in done.out
    assert "0.0 (8 rows), 1.0 (16 rows)" in done.out
    assert "Its rows make 2 buckets of at least 10 rows" in done.out
    assert "the SuperLink can be reached, and its certificate is signed by ca.crt" in done.out
    assert "Every reply is written down" in done.out
    assert f"Everything is in order. Next: compfed site run --config {site / 'site.toml'}" in done.out
    assert "PROBLEM" not in done.out
    assert ".125" not in done.out  # no value of a row
    assert not (site / "state").exists()  # nothing is written


def test_site_check_names_a_superlink_that_cannot_be_reached(compfed, site):
    done = compfed("site", "check", "--config", site / "site.toml")
    assert done.status == 0  # a site may be ready before the operator is
    (note,) = [line for line in done.out.splitlines() if line.startswith("NOTE") and "secure_sum" not in line]
    assert "cannot be reached now (Connection refused); the operator may not have started it" in note


def _words(site: Path) -> None:
    """Words in a column that the schema calls numbers; without a schema they are no problem yet."""
    (site / "rows.csv").write_text("age,dose,label\nErika,2.5,0\n")
    (site / "schema.toml").write_text('[columns.age]\n[columns.dose]\n[label]\ncolumn = "label"\n')
    toml = site / "site.toml"
    toml.write_text(f'schema = "schema.toml"\n{toml.read_text()}')


def _others_ca(site: Path) -> None:
    keys.make_keys(site / "other", "127.0.0.1")
    (site / "ca.crt").write_bytes((site / "other" / "ca.crt").read_bytes())


def _few_rows(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("# min_rows = 10 ", "min_rows = 50 "))


def _masked(site: Path) -> None:
    text = (site / "site.toml").read_text()
    (site / "site.toml").write_text(text.replace("secure_sum = false", "secure_sum = true"))


def _masked_without_roster(site: Path) -> None:
    _masked(site)
    (site / "roster.txt").unlink()


def _new_key(site: Path) -> None:
    (site / "node.key").unlink()
    keys.write_identity(site / "node.key", keys.new_identity())


PROBLEMS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "words": (_words, "column 'age'"),
    "no table": (lambda site: (site / "rows.csv").unlink(), "there is no file"),
    "no label": (lambda site: (site / "rows.csv").write_text("age\n1\n"), "label"),
    "no ca": (lambda site: (site / "ca.crt").unlink(), "The operator sends ca.crt"),
    "a ca that is none": (lambda site: (site / "ca.crt").write_text("x"), "is not a certificate"),
    "another ca": (_others_ca, "the certificate is not accepted (CERTIFICATE_VERIFY_FAILED)"),
    "no key": (lambda site: (site / "node.key").unlink(), "`compfed site init` makes it"),
    "a key that others can read": (lambda site: (site / "node.key").chmod(0o644), "others can read"),
    "two masked sites": (
        _masked,
        "secure_sum = true needs three sites or more, and there are 2: with two sites each would",
    ),
    "no roster": (_masked_without_roster, "roster.txt, which secure_sum = true needs. Ask the operator for roster.txt"),
    "another key": (_new_key, "roster.txt has the key"),
    "few rows": (_few_rows, "there are 24 rows and min_rows = 50: every query would be refused"),
}


def test_site_check_names_a_column_that_is_withheld(compfed, federation, site):
    (site / "rows.csv").write_text(GOOD + "10,1e6,1\n")
    with listening(federation):
        done = compfed("site", "check", "--config", site / "site.toml")
    assert done.status == 0
    assert (
        "NOTE     withheld, and left out at all sites: column 'dose' has over 83% of its variance from one row"
        in done.out
    )


@pytest.mark.parametrize("what", PROBLEMS)
def test_site_check_names_every_problem(what, compfed, federation, site):
    change, message = PROBLEMS[what]
    change(site)
    connects = what not in ("no ca", "a ca that is none", "no key")
    with listening(federation) if connects else contextlib.nullcontext():
        done = compfed("site", "check", "--config", site / "site.toml")
    assert done.status == 1
    (problem,) = [line for line in done.out.splitlines() if line.startswith("PROBLEM")]
    assert message in problem
    assert "Everything is in order" not in done.out


def test_site_check_of_settings_that_are_not_there(compfed, tmp_path):
    done = compfed("site", "check", "--config", tmp_path / "site.toml")
    assert done.status == 2
    assert "`compfed site init` writes one" in done.error
