"""How a site is: service.json, which its service writes, and what `compfed site status` makes of it, in words, JSON or metrics.

STATE/service.json   the connection, the message under way, and what was replied since the start; nothing of the rows
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from cryptography import x509

import compfed
from compfed._utils import files
from compfed._utils.plain import JsonObject
from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.network.run_folder import is_alive
from compfed.network.site_settings import SiteSettings

FILE = "service.json"
WRITTEN_EVERY = 10.0  # seconds, unless something else than the time has changed
SILENT = 120.0  # seconds without an answer of the SuperLink after which a site counts as not connected
EXPIRES_SOON = 14.0  # days


class Health:
    """What the service of a site writes about itself, for other processes of its machine."""

    def __init__(self, state: Path):
        self.path, self._written = state / FILE, 0.0
        now = time.time()
        self.facts: JsonObject = {
            "started": now, "updated": now, "connected": False, "reason": "it has just started", "last_contact": None,
            "working_since": None, "run": "", "replies": 0, "refused": 0, "bytes_out": 0, "version": compfed.__version__,
        }  # fmt: skip

    def connected(self) -> None:
        """The SuperLink has let the site in, or has answered."""
        self._note(connected=True, reason="", last_contact=time.time(), working_since=None)

    def lost(self, reason: str) -> None:
        """There is no connection."""
        self._note(connected=False, reason=reason, working_since=None)

    def working(self) -> None:
        """A message has come."""
        self._note(working_since=time.time(), last_contact=time.time())

    def replied(self, run: str, refused: str, size: int) -> None:
        """A reply is about to leave."""
        replies, before = int(self.facts["replies"]) + 1, int(self.facts["bytes_out"])
        count = int(self.facts["refused"]) + bool(refused)
        self._note(run=run, replies=replies, refused=count, bytes_out=before + size, working_since=None)

    def _note(self, **facts: object) -> None:
        times = ("last_contact",)
        changed = any(self.facts[name] != value for name, value in facts.items() if name not in times)
        self.facts |= facts
        if changed or time.monotonic() - self._written > WRITTEN_EVERY:
            self.facts["updated"], self._written = time.time(), time.monotonic()
            with contextlib.suppress(OSError):  # a full disk is said elsewhere, and must not end the service
                files.write_private(self.path, json.dumps(self.facts).encode(), flush=False)


@dataclass(frozen=True)
class SiteStatus:
    """How a site is, from its state folder: the service is not asked, and no row is read.

    Attributes
    ----------
    problems : list of str
        What is wrong; empty where the service runs and is connected.
    """

    site: str
    problems: list[str]
    process: int | None
    connected: bool
    started: float | None
    last_contact: float | None
    run: str
    replies: int
    refused: int
    bytes_out: int
    numbers: int
    share: float
    share_by_rule: float
    state_bytes: int
    state_bytes_allowed: int
    log_bytes: int
    oldest_log: float | None
    ca_expires: float | None
    version: str

    @property
    def healthy(self) -> bool:
        """Whether the service runs, is connected, and will be next week."""
        return not self.problems

    def to_dict(self) -> JsonObject:
        """The same as plain data."""
        return {"healthy": self.healthy, **asdict(self)}


def site_status(settings: SiteSettings, now: float | None = None) -> SiteStatus:
    """How the site with these settings is."""
    now = time.time() if now is None else now
    process, facts, expires = is_alive(settings.state), _facts(settings.state / FILE), _ca_expires(settings)
    connected, problems = False, list[str]()
    if process is None:
        problems.append("the service does not run; start it with `compfed site run`")
    else:
        problem = _silent(facts, settings.budget.max_seconds, now)
        connected = not problem
        problems += [problem] if problem else []
    if expires is not None and expires - now < 86_400 * EXPIRES_SOON:
        day = time.strftime("%Y-%m-%d", time.gmtime(expires))
        problems.append(
            f"{settings.ca.name} {'was' if expires < now else 'is'} valid until {day}; ask the operator for the next one"
        )
    ledger, logs = settings.ledger(), [*settings.state.glob("log*.jsonl")]
    share, by_rule = ledger.share(), settings.disclosure.share_by_rule
    if settings.enforce and share >= by_rule:
        problems.append(
            f"{share:.0%} of the numbers in the table have left: from now on a person approves each run (share_by_rule)"
        )
    return SiteStatus(
        site=settings.name, problems=problems, process=process, connected=connected, started=_time(facts, "started"),
        last_contact=_time(facts, "last_contact"), run=printable(str(facts.get("run", "")), 100),
        replies=_count(facts, "replies"), refused=_count(facts, "refused"), bytes_out=_count(facts, "bytes_out"),
        numbers=ledger.numbers, share=share, share_by_rule=by_rule, state_bytes=_size(settings.state / "runs"),
        state_bytes_allowed=settings.budget.max_state_bytes, log_bytes=sum(path.stat().st_size for path in logs),
        oldest_log=min((path.stat().st_mtime for path in logs), default=None), ca_expires=expires, version=compfed.__version__,
    )  # fmt: skip


def _silent(facts: JsonObject, longest: float, now: float) -> str:
    """Why a service that runs counts as not connected; empty where it is."""
    if not facts.get("connected"):
        return f"not connected: {printable(str(facts.get('reason') or 'no reason is known'), 300)}"
    working, heard = _time(facts, "working_since"), _time(facts, "updated") or 0.0
    allowed = SILENT if working is None else SILENT + longest
    silent = now - (heard if working is None else working)
    return f"no word from the SuperLink for {silent:.0f} s" if silent > allowed else ""


def _facts(path: Path) -> JsonObject:
    """What the service wrote last; empty where it has not, or the file is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _time(facts: JsonObject, name: str) -> float | None:
    value = facts.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _count(facts: JsonObject, name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0


def _ca_expires(settings: SiteSettings) -> float | None:
    try:
        found = x509.load_pem_x509_certificate(settings.ca.read_bytes())
    except (OSError, ValueError):
        return None
    return found.not_valid_after_utc.replace(tzinfo=datetime.UTC).timestamp()


def _size(folder: Path) -> int:
    found = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # removed meanwhile
            found += path.stat().st_size if path.is_file() else 0
    return found


# --- what is shown ---


def status_text(found: SiteStatus, now: float | None = None) -> str:
    """The status in a few lines."""
    now = time.time() if now is None else now
    where = "does not run" if found.process is None else f"runs as process {found.process}"
    heard = "" if found.last_contact is None else f"; the SuperLink answered {_ago(now - found.last_contact)}"
    lines = [f"Site {found.site!r} {where}{', connected' if found.connected else ''}{heard}."]
    if found.started is not None:
        run = f"; the last run is {found.run}" if found.run else ""
        lines.append(
            f"Since its start {_ago(now - found.started)}: {found.replies} replies, {found.refused} refused{run}."
        )
    lines.append(
        f"{found.numbers:,} numbers left about the table, {found.share:.0%} of those in it; by rule up to {found.share_by_rule:.0%}."
    )
    log = f"{found.log_bytes / 1e6:.1f} MB of logs"
    lines.append(f"Disk: {found.state_bytes / 1e6:.1f} of {found.state_bytes_allowed / 1e6:.0f} MB of state, {log}.")
    return "\n".join([*lines, *(f"PROBLEM  {problem}." for problem in found.problems)])


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


METRICS = {
    "up": ("gauge", "1 where the service runs"),
    "connected": ("gauge", "1 where the SuperLink has answered lately"),
    "healthy": ("gauge", "1 where `compfed site status` finds no problem"),
    "last_contact_timestamp_seconds": ("gauge", "when the SuperLink answered last"),
    "start_timestamp_seconds": ("gauge", "when the service started"),
    "replies_total": ("counter", "replies since the start"),
    "refusals_total": ("counter", "messages refused since the start"),
    "reply_bytes_total": ("counter", "bytes of the replies since the start"),
    "numbers_released_total": ("counter", "numbers that left about the table, over all runs"),
    "share_released": ("gauge", "the share of the table's numbers that they are"),
    "state_bytes": ("gauge", "disk space of the state of runs"),
    "log_bytes": ("gauge", "disk space of the logs"),
    "ca_expiry_timestamp_seconds": ("gauge", "when the certificate of the operator's authority ends"),
}


def prometheus_text(found: SiteStatus) -> str:
    """The status in the text format of Prometheus, for the textfile collector of its node exporter."""
    values = {
        "up": int(found.process is not None), "connected": int(found.connected), "healthy": int(found.healthy),
        "last_contact_timestamp_seconds": found.last_contact, "start_timestamp_seconds": found.started,
        "replies_total": found.replies, "refusals_total": found.refused, "reply_bytes_total": found.bytes_out,
        "numbers_released_total": found.numbers, "share_released": found.share, "state_bytes": found.state_bytes,
        "log_bytes": found.log_bytes, "ca_expiry_timestamp_seconds": found.ca_expires,
    }  # fmt: skip
    escaped = found.site.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    lines = []
    for name, (kind, text) in METRICS.items():
        if (value := values[name]) is not None:
            lines += [f"# HELP compfed_site_{name} {text}", f"# TYPE compfed_site_{name} {kind}"]
            lines.append(f'compfed_site_{name}{{site="{escaped}"}} {value!r}')
    return "\n".join(lines) + "\n"


def write_prometheus(found: SiteStatus, path: Path) -> None:
    """Write the metrics so that a reader sees the old file or the new one; others on the machine may read it."""
    if not path.name.endswith(".prom"):
        raise InputError(f"--prometheus {path}: the collector reads files whose names end in .prom.")
    files.write_text(path, prometheus_text(found))
    path.chmod(0o644)
