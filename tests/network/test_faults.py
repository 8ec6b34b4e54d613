"""A fault matrix with real processes: TLS, node keys, one SuperLink, four sites, an operator.

After every fault the model has the bits of the model without faults, or the run stops with a clear message, has used
nothing that was wrong, and the same command continues it. The whole matrix: `make test-federation`. Its table is printed
at the end, and written to the file that $COMPFED_FAULT_TABLE names. Rows marked `quick` are part of `make test`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("flwr", reason="a network runs on Flower: pip install '.[flower]'")
if not sys.platform.startswith("linux"):
    pytest.skip("faults are done through /proc and signals of Linux", allow_module_level=True)

from network.faults import (
    ALPHA,
    CUT,
    FAULTY,
    NAMES,
    REAL,
    Faults,
    Run,
    can_mount,
    children,
    ends_within,
    in_session,
    small_disk,
    stopped,
    wait_for,
)

from compfed._utils.text import markdown_table, text_table
from compfed.cli.demo import rehearsal

WHOLE = bool(os.environ.get("COMPFED_FAULTS"))
CUT_SECONDS = 60.0
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


class Row(NamedTuple):
    fault: str
    do: Callable[[Faults], str]
    quick: bool


ROWS: list[Row] = []
TABLE: list[list[str]] = []


def row(fault: str, quick: bool = False) -> Callable[[Callable[[Faults], str]], Callable[[Faults], str]]:
    def add(do: Callable[[Faults], str]) -> Callable[[Faults], str]:
        ROWS.append(Row(fault, do, quick))
        return do

    return add


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    made = Faults(tmp_path_factory.mktemp("faults") / "federation")
    with made:
        yield made
    report()


def report() -> None:
    heads = ["fault", "what happened", "seconds", "result"]
    if TABLE and WHOLE:
        print("\n\n" + text_table(heads, TABLE))
    if TABLE and (path := os.environ.get("COMPFED_FAULT_TABLE")):
        Path(path).write_text(markdown_table(heads, TABLE) + "\n")


# --- a process is killed ---

MOMENTS = {"before message 1 is complete": 1, "in the middle": 6, "at the last message": 0}


def kill_site(f: Faults, number: int) -> str:
    run = f.run().start_and_reach(number or f.messages)
    f.kill(FAULTY)  # it has the message and has not replied
    f.behave()
    f.restart(FAULTY)
    run.finish()
    assert any(problem.startswith(FAULTY) for problem in run.problems)
    return problems_of(run)


def kill_superlink(f: Faults, number: int) -> str:
    run = f.run().start_and_reach(number or f.messages, sleep=3.0)
    f.kill("superlink")
    f.restart("superlink")
    run.finish()
    assert any("SuperLink" in problem for problem in run.problems)
    return problems_of(run)


def kill_operator(f: Faults, number: int) -> str:
    run = f.run().start_and_reach(number or f.messages, sleep=3.0)
    run.kill()
    run.start().finish()
    return continued(run, (number or f.messages) - 1)


def problems_of(run: Run) -> str:
    """What the operator saw."""
    return "; ".join(run.problems[:4]) or "the run waited and went on"


def continued(run: Run, message: int) -> str:
    """The same command took the replies to so many messages from the log."""
    found = [line for line in run.said.splitlines() if line.startswith("Continuing run")]
    if not message:
        assert not found, run.said
        return "the same command began anew"
    assert found, run.said
    assert found[-1].endswith(f"after message {message}.") or found[-1].endswith(f"after message {message - 1}."), found
    return f"the same command continued {found[-1].partition(' after ')[2][:-1].replace('message', 'after message')}"


for _moment, _number in MOMENTS.items():
    row(f"SIGKILL of a site, {_moment}", _number == 6)(lambda f, n=_number: kill_site(f, n))
    row(f"SIGKILL of the SuperLink, {_moment}")(lambda f, n=_number: kill_superlink(f, n))
    row(f"SIGKILL of the operator, {_moment}")(lambda f, n=_number: kill_operator(f, n))


# --- a process gets no time ---


@row("a site, the SuperLink and the operator get no CPU for 10 s each, one after another (SIGSTOP)")
def _(f: Faults) -> str:
    return stop_for(f, {3: FAULTY, 5: "superlink", 7: "operator"}, 10.0)


@row("a site gets no CPU for 35 s (SIGSTOP): its heartbeats expire")
def _(f: Faults) -> str:
    happened = stop_for(f, {5: FAULTY}, 35.0)
    assert f"{FAULTY}: not connected" in happened
    return happened


def stop_for(f: Faults, whom: dict[int, str], seconds: float) -> str:
    """Stop a process in the middle of a message, for each message named."""
    run = f.run()
    for number, name in whom.items():
        f.behave(sleep=1.0, at=number)
        if run.process is None:
            run.start()
        run.reach(number)
        process = run.process if name == "operator" else f.processes[name]
        assert process is not None
        with stopped(process):
            time.sleep(seconds)
    run.finish()
    return problems_of(run)


# --- the network ---


@row(f"the network of a site is cut for {CUT_SECONDS:.0f} s in the middle of a message")
def _(f: Faults) -> str:
    happened = cut(f, CUT_SECONDS)
    assert f"{CUT}: not connected" in happened
    return happened


@row("the network of a site is cut for 15 s, within its heartbeats")
def _(f: Faults) -> str:
    return cut(f, 15.0)


def cut(f: Faults, seconds: float) -> str:
    run = f.run().start_and_reach(5, sleep=2.0)
    f.proxy.is_cut.set()
    time.sleep(seconds)
    assert run.replies(6) < len(NAMES)
    f.proxy.is_cut.clear()
    run.finish()
    return problems_of(run)


# --- disks ---


@row("the disk of a site is full for 10 s")
def _(f: Faults) -> str:
    if not can_mount(f.home / "mount"):
        pytest.skip("a small disk needs the right to mount one")
    f.terminate(REAL)
    state = f.site_folder(REAL) / "state"
    with small_disk(state, "4m") as fill:
        f.restart(REAL)
        run = f.run().start_and_reach(4, sleep=2.0)
        fill()
        wait_for(lambda: any("cannot be written" in problem for problem in run.problems), 60, run.said)
        time.sleep(10.0)
        (state / "filler").unlink()
        run.finish()
        f.terminate(REAL)
    return problems_of(run)


@row("the operator's disk is full")
def _(f: Faults) -> str:
    if not can_mount(f.home / "mount"):
        pytest.skip("a small disk needs the right to mount one")
    run = f.run()
    with small_disk(run.folder, "4m") as fill:
        run.start_and_reach(4, sleep=2.0)
        fill()
        said = run.stops("No space left on device", "the run continues")
        (run.folder / "filler").unlink()
        run.start().finish()
    return said.replace(str(f.home) + "/", "") + f"; {continued(run, 4)}"


@row("the state of a site that masks its sums is lost")
def _(f: Faults) -> str:
    run = f.run().start_and_reach(5)
    lose_state(f)
    said = run.stops(f"site {FAULTY!r}", "the session of run", "is lost. Start a new run")
    f.run().start().finish()
    return said[said.find("site ") :] + " A new run completed"


@row("the state of a site is lost, sums not masked, a method without state there")
def _(f: Faults) -> str:
    with f.unmasked():
        run = f.run().start_and_reach(5)
        lose_state(f)
        run.finish()
    assert any("no method under way keeps state there" in problem for problem in run.problems)
    return problems_of(run)


STATEFUL = f"""
import sys, warnings
import compfed as cf
warnings.simplefilter("ignore")
with cf.network.connect(sys.argv[1], folder=sys.argv[2]) as federation:
    model = cf.FederatedLogisticRegression(alpha={ALPHA}, algorithm="DecoupledProx", max_rounds=8)
    model.fit_federation(federation)
cf.save_model(model, sys.argv[2])
"""


@row("the state of a site is lost, sums not masked, a method with state there (DecoupledProx)")
def _(f: Faults) -> str:
    truth = f.new_model(algorithm="DecoupledProx", max_rounds=8).fit_federation(rehearsal(f))
    with f.unmasked():
        run = f.run(STATEFUL).start_and_reach(6)
        lose_state(f)
        assert run.end() == 0, run.said
    run.check(truth)
    assert any("rounds are done again there" in problem for problem in run.problems)
    return problems_of(run)


def lose_state(f: Faults) -> None:
    f.kill(FAULTY)
    shutil.rmtree(f.site_folder(FAULTY) / "state")
    f.behave()
    f.restart(FAULTY)


# --- the write-ahead log ---


def killed(f: Faults, number: int = 6) -> Run:
    """A run whose operator was killed."""
    run = f.run().start_and_reach(number, sleep=3.0)
    run.kill()
    return run


@row("the last line of the write-ahead log is torn, and two operators are started in its folder")
def _(f: Faults) -> str:
    run = killed(f)
    data = run.write_ahead_log.read_bytes()
    run.write_ahead_log.write_bytes(data[: -len(data.splitlines()[-1]) // 2])
    run.start()
    wait_for(lambda: run.federation.lock_owner(run.folder), 60)
    second = Run(f, run.folder)
    second.log = run.log.with_suffix(".second")
    assert second.start().end(60) != 0
    assert "a run is going on in" in second.said
    run.finish()
    return f"{continued(run, 4)}; the second operator: {second.said.strip().replace(str(f.home) + '/', '')}"


@row("a line in the middle of the write-ahead log is damaged: one digit")
def _(f: Faults) -> str:
    run = killed(f)
    data = run.write_ahead_log.read_bytes()
    lines = data.splitlines(keepends=True)
    at = len(lines[2]) // 2
    lines[2] = lines[2][:at] + (b"A" if lines[2][at : at + 1] != b"A" else b"B") + lines[2][at + 1 :]
    run.write_ahead_log.write_bytes(b"".join(lines))
    said = run.start().stops(f"{run.write_ahead_log}, line 3, is damaged")
    run.write_ahead_log.write_bytes(data)
    run.start().finish()
    return said.replace(str(f.home) + "/", "") + "; with the file restored it continued"


# --- clocks ---


@row("the clock of a site is an hour ahead")
def _(f: Faults) -> str:
    return clock(f, 3600.0)


@row("the clock of a site is a day behind")
def _(f: Faults) -> str:
    return clock(f, -86400.0)


def clock(f: Faults, ahead: float) -> str:
    f.terminate(FAULTY)
    f.behave(clock=ahead)
    f.restart(FAULTY)
    run = f.run().start()
    run.finish()
    last = [line["time"] for line in f.replies_of(FAULTY) if "sha256_out" in line][-1]
    assert abs(last - time.time() - ahead) < 120  # its clock was wrong when it replied
    f.terminate(FAULTY)
    assert not run.problems
    return "it took part: it signs with the time of the SuperLink"


@row("the clock of a site is a day behind, and the certificates are an hour old")
def _(f: Faults) -> str:
    if FAKETIME is None:
        pytest.skip("a clock for TLS too needs libfaketime")
    f.terminate(REAL)
    (f.site_folder(REAL) / "site.log").write_text("")
    f.start_site(
        REAL, environment={"LD_PRELOAD": str(FAKETIME), "FAKETIME": "-1d", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    )
    run = f.run().start()
    wait_for(lambda: "compare the clocks" in f.site_log(REAL), 60, f.site_log(REAL))
    wait_for(lambda: run.replies(1) == len(NAMES) - 1, 60)
    said = next(line for line in f.site_log(REAL).splitlines() if "compare the clocks" in line)
    f.terminate(REAL)
    f.restart(REAL)
    run.finish()
    return f"the site says: {said[9:]} With its clock set it took part"


# --- a site that lies ---


def lie(f: Faults, word: str, how: str, restart: bool = False) -> str:
    """Lie after message 4; then be honest, or be replaced by the site as it is installed."""
    f.behave(after=4, lie=how)
    run = f.run().start()
    said = run.stops(FAULTY, word, "cannot be used", "None of them was used")
    assert run.replies(5) == len(NAMES) - 1
    lines = run.write_ahead_log.read_bytes().splitlines()
    assert len(lines) == 1 + 4  # the run and four messages: nothing of the fifth is used
    f.behave()
    if restart:
        f.terminate(FAULTY)
        f.start_site(FAULTY, faulty=False)
    run.start().finish()
    if restart:
        f.terminate(FAULTY)
    return said[said.find("site ") :].partition(" Run the same")[0] + f" Honest again: {continued(run, 4)}"


@row("a site sends NaN in place of masked words")
def _(f: Faults) -> str:
    return lie(f, "it is not an array of", "nan", restart=True)


@row("a site sends a word too few")
def _(f: Faults) -> str:
    return lie(f, "it is not an array of", "shape")


@row("a site sends noise in place of masked words")
def _(f: Faults) -> str:
    f.behave(after=4, lie="noise")
    run = f.run().start()
    said = run.stops("the sum of 4 replies is not valid: its check word is not 4")
    assert run.replies(5) == len(NAMES)
    assert len(run.write_ahead_log.read_bytes().splitlines()) == 1 + 4  # nothing of the fifth message is used
    f.behave()
    run.start().finish()
    return said.partition("compfed federation: ")[2] + f" Honest again: {continued(run, 4)}"


@row("a site replays an earlier reply")
def _(f: Faults) -> str:
    return lie(f, "its reply is for", "replay")


@row("a site replies in the name of another")
def _(f: Faults) -> str:
    return lie(f, "its reply is for site", "name")


@row("a site signs with a key that was not admitted")
def _(f: Faults) -> str:
    return lie(f, "is not signed with its key", "key")


@row("a broken installation computes NaN, and is mended")
def _(f: Faults) -> str:
    f.behave(after=4, broken="nan")
    run = f.run().start()
    said = run.stops(f"site {FAULTY!r}: it refuses a query of run", "ends the run here")
    log = (f.site_folder(FAULTY) / "state" / "log.jsonl").read_text()
    assert "it computed a reply to Evaluate whose gradient is not finite" in log
    assert len(run.write_ahead_log.read_bytes().splitlines()) == 1 + 4
    f.terminate(FAULTY)
    f.start_site(FAULTY, faulty=False)
    run.start().stops(f"site {FAULTY!r}: it refuses a query of run")  # whatever a query failed of
    f.run().start().finish()
    f.terminate(FAULTY)
    return said[said.find("site ") :] + " Mended: a new run completed"


# --- a table that changes ---


@row("rows are appended to a table between two messages")
def _(f: Faults) -> str:
    run = f.run().start_and_reach(4, sleep=2.0)
    path = f.site_folder(REAL) / "rows.csv"
    table = path.read_bytes()
    path.write_bytes(table + b"".join(table.splitlines(keepends=True)[1:81]))
    run.finish()
    path.write_bytes(table)
    return "the site answered from its extract"


# --- two operators, interrupts ---


@row("two operators at once, a folder each")
def _(f: Faults) -> str:
    first, second = f.run().start(), f.run().start()
    first.finish()
    second.finish()
    runs = {
        json.loads(run.write_ahead_log.read_bytes().splitlines()[0].partition(b" ")[2])["run"]
        for run in (first, second)
    }
    assert len(runs) == 2
    return "both completed"


@row("Ctrl-C on the operator (SIGINT)")
def _(f: Faults) -> str:
    run = f.run().start_and_reach(6, sleep=2.0)
    assert run.process is not None
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert ends_within(run.process, 5.0) != 0
    seconds = time.monotonic() - began
    time.sleep(2.5)  # the site that was asked before replies
    before = {name: len(f.replies_of(name)) for name in NAMES}
    time.sleep(5.0)
    assert {name: len(f.replies_of(name)) for name in NAMES} == before  # nobody is asked any more
    assert "Traceback" not in run.said
    run.start().finish()
    return f"ended after {seconds:.1f} s; no query reached a site afterwards; {continued(run, 5)}"


@row("SIGTERM of a site, idle and while it computes")
def _(f: Faults) -> str:
    idle = f.terminate(REAL)
    f.restart(REAL)
    f.behave(compute=30.0, at=4)
    run = f.run().start()
    run.reach(4)
    time.sleep(0.5)
    busy = f.terminate(FAULTY)
    f.behave()
    f.restart(FAULTY)
    run.finish()
    return f"ended after {idle:.1f} s and {busy:.1f} s; {problems_of(run)}"


@row("SIGTERM of the SuperLink")
def _(f: Faults) -> str:
    run = f.run().start_and_reach(5, sleep=3.0)
    leader = f.processes["superlink"].pid
    started = children(leader) | in_session(leader) - {leader}
    seconds = f.terminate("superlink")
    assert not in_session(leader)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    f.restart("superlink")
    run.finish()
    return f"ended after {seconds:.1f} s, with no process left behind; {problems_of(run)}"


SHORT = {
    r"127\.0\.0\.1:\d+": "HOST:PORT",
    r"\d{8}-\d{6}-[0-9a-f]{8}": "RUN",
    r"process \d+": "process PID",
    "compfed federation: ": "",
    r"[|\n]": " ",
}


@pytest.mark.parametrize("case", [case for case in ROWS if WHOLE or case.quick], ids=lambda case: case.fault)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_after_a_fault_the_model_is_the_same_or_the_run_stops_clearly(case: Row, federation: Faults) -> None:
    federation.heal()
    began, result, stops = time.monotonic(), "FAILED", federation.stops
    happened = ""
    try:
        happened = case.do(federation)
        result = "same bits" if federation.stops == stops else "stopped, continued, same bits"
    except pytest.skip.Exception as skipped:
        happened, result = str(skipped), "skipped"
        raise
    finally:
        for pattern, word in SHORT.items():
            happened = re.sub(pattern, word, happened)
        TABLE.append([case.fault, happened, f"{time.monotonic() - began:.0f}", result])
