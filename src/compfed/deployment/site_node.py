"""`compfed site`: the desk of a site and its Flower node, kept running. The node only dials out."""

from __future__ import annotations

import functools
import signal
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from compfed.deployment.courier import DESK
from compfed.deployment.open_desk import OpenDesk
from compfed.deployment.processes import end, end_left_behind, environment, program, start
from compfed.errors import InputError
from compfed.federation.flower.site_app import SETTING
from compfed.federation.flower.site_settings import QUESTION_NAMES, SiteSettings

SAY = functools.partial(print, flush=True)  # a log shows what was said at once
AGAIN = 5.0  # seconds until a node that was not admitted tries again

SAID = {
    "Describe": "how many rows, the names of the columns, the labels there are and how many rows have each",
    "Moments": "mean and mean square of every column",
    "Steepness": "one number: how curved its loss is",
    "ValueAndGradient": "its loss at a model and the derivative: one number per coefficient, a weighted sum over all rows",
    "Curvature": "second derivatives on a set of coefficients: a weighted sum over all rows",
    "HeldOut": "the loss of models on rows held out, summed",
    "Round": "the model after local steps, or its change",
    "Result": "nothing but that it was heard",
}


def what_leaves(settings: SiteSettings) -> str:
    """In plain words, before anything leaves."""
    lines = [f"Site {settings.name!r}: rows of {settings.data} stay here. What the server can be told, if it asks:"]
    for name in QUESTION_NAMES:
        refused = name in settings.refuses.questions
        lines.append(f"  {'never ' if refused else ''}{name}: {'refused' if refused else SAID[name]}")
    lines.append(f"  With fewer than {settings.refuses.least_rows} rows: nothing at all.")
    if settings.refuses.curvature_share < float("inf"):
        lines.append(f"  Curvature on at most {settings.refuses.curvature_share:g} x rows coefficients.")
    lines.append(f"Every message is written down in {settings.state / 'answered.jsonl'} before its reply leaves.")
    return "\n".join(lines)


def command(path: Path, desk: str = "") -> tuple[list[str], dict[str, str], SiteSettings]:
    """The command of the node, its environment, and the settings it is made from; `desk` is where messages are answered."""
    settings = SiteSettings.read(path)
    network = tomllib.loads(path.read_text()).get("network", {})
    for name in ("superlink", "ca", "key", "port"):
        if name not in network:
            raise InputError(f"{path}: [network] needs {name!r}.")
    home = path.parent.absolute()
    for name in ("ca", "key"):
        if not (home / network[name]).exists():
            raise InputError(
                f"{path}: {name} = {network[name]!r} is not there. The operator hands out ca.crt; the key is yours."
            )
    made = [
        program("flower-supernode"), "--root-certificates", str(home / network["ca"]), "--superlink", network["superlink"],
        "--auth-supernode-private-key", str(home / network["key"]), "--port", str(network["port"]),
        "--node-config", f'{SETTING}="{path.absolute()}"' + (f' {DESK}="{desk}"' if desk else ""),
    ]  # fmt: skip
    here = {name.upper(): str(value) for name, value in compiled(settings).items()}  # for a message that finds no desk
    return made, environment(settings.state / "flower", here), settings


def compiled(settings: SiteSettings) -> dict[str, Any]:
    """Settings of JAX: local steps are compiled once at a site, not once in every process, and on its CPU."""
    return {
        "jax_compilation_cache_dir": str(settings.state / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_platforms": "cpu",
    }


def configure_jax(path: Path) -> None:
    """For this whole process: the desk is in it."""
    for name, value in compiled(SiteSettings.read(path)).items():
        jax.config.update(name, value)


def keep_running(path: Path, say: Callable[[str], Any] = SAY) -> None:
    """Start the node; when it ends, for whatever reason, start it again. Until told to stop."""
    _, _, settings = command(path)
    say(what_leaves(settings))
    settings.rows()  # what is wrong with the rows is better known now than in a round

    def stop(*_: Any) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    with OpenDesk(path) as desk:
        _keep_node(*command(path, desk.place), say)


def _keep_node(made: list[str], env: dict[str, str], settings: SiteSettings, say: Callable[[str], Any]) -> None:
    log, pid_file = settings.state / "node.log", settings.state / "node.pid"
    end_left_behind(
        pid_file, made[-1].partition(" ")[0]
    )  # of a supervisor that was killed; its site.toml is in the command
    while True:
        process = start(made, env, log)
        try:
            pid_file.write_text(str(process.pid))
            say(f"{time.strftime('%H:%M:%S')} node started, dialling {made[4]}")
            code = process.wait()
        finally:
            end(process)
        say(f"{time.strftime('%H:%M:%S')} node ended with code {code}: {reason(log)} Again in {AGAIN:g} s.")
        time.sleep(AGAIN)


def reason(log: Path) -> str:
    """What a person can do about a node that ended."""
    text = log.read_text(errors="replace")[-4000:] if log.exists() else ""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "the server's certificate is not signed by `ca`: ask the operator for the ca.crt of this federation."
    if "2004" in text or "activate" in text.lower():  # Flower says the same in both cases
        return (
            "it was not admitted. Either its key is not registered yet (the operator does that when a run starts), or the "
            "server still counts the node that was here before, for up to a minute."
        )
    return f"see {log}."
