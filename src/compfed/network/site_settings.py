"""site.toml: the name of a site, its rows and its disclosure policy. It is written, read and checked at the site only."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import re
import socket
import ssl
import stat
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from cryptography import x509

from compfed._utils.text import PROMISE, is_printable, join_names
from compfed._utils.validation import check_bool, check_int, check_nonnegative
from compfed.data.encoding import numeric_schema
from compfed.data.raw_table import used_columns
from compfed.data.readers import SiteTable, check_complete, read_site
from compfed.data.table_files import MISSING, check_reading, read_table
from compfed.data.table_problems import TableError
from compfed.errors import InputError
from compfed.federation.limits import QueryLimits
from compfed.federation.numbers import percent
from compfed.federation.queries import LEAVES
from compfed.federation.site.disclosure import DisclosurePolicy, rare_class
from compfed.federation.site.ledger import Ledger
from compfed.federation.site.rows import FileTable, Rows
from compfed.federation.site.site import Site
from compfed.network import keys
from compfed.network.approvals import ApprovalRules, Approvals
from compfed.network.roster import ASK, check_masked, check_member, read_roster, roster_fingerprint
from compfed.network.settings import check_table, check_text, parse_address, read_numbers, read_toml, template
from compfed.schema import sorted_levels

READING = ("sep", "decimal", "encoding", "missing")  # keys about CSV files
LOG_DAYS = 730
MAX_LINES = 100  # columns that `compfed site check` lists
LONGEST_TABLE_NAME = 100  # characters
ENROLMENT = (
    "the number of its rows and of its buckets, the names of the columns, the kind of its labels and the classes, the power of "
    "two (in steps of 16) that bounds each column, which columns vary, whether rows have weights or offsets and their total weight, "
    "the levels of words that min_level_rows of its rows have, which columns have missing values or rarer levels, its policy, the "
    "version of compfed, and the rule by which it refuses. The other sites of a run receive this too"
)
AGREE = "Agree on a schema with the other sites: the operator runs `compfed federation schema DIR`."
WEAKER = {
    "min_rows": -1,
    "min_level_rows": -1,
    "max_hessian_share": 1,
    "allow_minibatches": 1,
    "share_by_rule": 1,
    "max_share": 1,
}


@dataclass(frozen=True)
class SiteBudget:
    """Limits of a site on one message and on one run, beside `QueryLimits`.

    Parameters
    ----------
    max_seconds : float, default=600
        Time for the reply to one message.
    max_state_bytes : int, default=2**30
        Disk space for the state of all runs.
    """

    max_seconds: float = 600.0
    max_state_bytes: int = 2**30


@dataclass(frozen=True)
class SiteSettings:
    """The settings of a site, from its site.toml.

    Parameters
    ----------
    path : path
        The file. Other paths are relative to its folder.
    name : str
        The name of the site, as agreed with the operator.
    data : path
        The table, CSV or Parquet.
    label : str or list of str, optional
        The column of labels, or several for several outcomes; that of the schema where it is not given.
    state : path
        The folder for the state of runs, and for log.jsonl.
    superlink : str
        The address of the SuperLink, HOST:PORT.
    ca, key : path
        The certificate of the operator's CA, and the identity key of the site.
    features, drop : list of str, optional
        The columns to use, in this order, or those to leave out.
    accepts : list of str, optional
        "module:object" of losses and methods that are not compfed's and may be imported here.
    approval : ApprovalRules, optional
        Which runs are approved without a person.
    disclosure : DisclosurePolicy, optional
        What the site refuses to reveal. Its `accepts` are those above.
    limits : QueryLimits, optional
        Limits on one message and on each query in it.
    budget : SiteBudget, optional
        Limits on time and disk space.
    roster : path
        The roster.txt of the operator: the sites whose totals this site takes part in.
    secure_sum : bool, default=True
        Whether replies are masked, so that the operator reads totals over all sites of the roster only.
    table : str
        The name of the table in the ledger; the name of its file, without the ending, unless given.
    retention_days : int, optional
        Days for which replies are kept.
    log_days : int, default=730
        Days for which the logs of single days are kept. The ledger is kept for ever.
    enforce : bool, default=True
        Whether the disclosure policy is enforced. Without it a server that chooses its queries can read rows: for trials with
        public data.
    schema : path, optional
        The schema of the table, agreed with the other sites. Without one the table must hold numbers only.
    reading : dict
        How to read a CSV file: `sep`, `decimal`, `encoding` and `missing` of `compfed.data.from_files`, where given.
    """

    path: Path
    name: str
    data: Path
    label: str | list[str] | None
    state: Path
    superlink: str
    ca: Path
    key: Path
    features: list[str] | None = None
    drop: list[str] = field(default_factory=list)
    accepts: list[str] = field(default_factory=list)
    approval: ApprovalRules = field(default_factory=ApprovalRules)
    disclosure: DisclosurePolicy = field(default_factory=DisclosurePolicy)
    limits: QueryLimits = field(default_factory=QueryLimits)
    budget: SiteBudget = field(default_factory=SiteBudget)
    roster: Path = Path("roster.txt")
    secure_sum: bool = True
    table: str = ""
    retention_days: int | None = None
    enforce: bool = True
    schema: Path | None = None
    reading: dict[str, Any] = field(default_factory=dict)
    log_days: int = LOG_DAYS

    @classmethod
    def read(cls, path: str | Path) -> SiteSettings:
        """Read the settings from a file."""
        path = Path(path)
        given = read_toml(path, "Give the path of a site.toml; `compfed site init` writes one.")
        known = (
            "name", "data", "label", "state", "features", "drop", "accepts", "secure_sum", "table", "retention_days",
            "log_days", "schema", *READING, "network", "approval", "disclosure", "limits",
        )  # fmt: skip
        check_table(given, known, str(path))
        network = check_table(given.get("network", {}), ("superlink", "ca", "key", "roster"), f"{path}, [network]")
        needed = ("name", "data") if "schema" in given else ("name", "data", "label")
        required = {"": (given, needed), ", [network]": (network, ("superlink", "ca", "key"))}
        for where, (table, names) in required.items():
            for name in names:
                if name not in table:
                    raise InputError(f"{path}{where}: {name!r} is missing.")
        parse_address(network["superlink"], f"{path}: superlink")
        given, label = {"state": "state", "drop": [], "accepts": [], "secure_sum": True, **given}, given.get("label")
        places = {"roster": "roster.txt", **network, **{name: given[name] for name in ("data", "state")}}
        data, state, ca, key, roster = (
            path.parent.absolute() / check_text(places[name], f"{path}: {name}")
            for name in ("data", "state", "ca", "key", "roster")
        )
        names = [f.name for kind in (QueryLimits, SiteBudget) for f in fields(kind)]
        limits = check_table(given.get("limits", {}), names, f"{path}, [limits]")
        accepts, disclosure = _names(path, "accepts", given["accepts"]), given.get("disclosure", {})
        enforce = disclosure.pop("enforce", True) if isinstance(disclosure, dict) else True
        days = given.get("retention_days")
        return cls(
            path.absolute(), keys.check_site_name(given["name"], str(path)), data,
            _label(path, label),
            state, str(network["superlink"]), ca, key,
            _names(path, "features", given["features"]) if "features" in given else None,
            _names(path, "drop", given["drop"]), accepts, _approval(path, given.get("approval", {})),
            _disclosure(path, disclosure, accepts),
            read_numbers(QueryLimits, limits, path), read_numbers(SiteBudget, limits, path),
            roster, check_bool(given["secure_sum"], f"{path}: secure_sum"), _table_name(path, given.get("table", data.stem)),
            None if days is None else check_int(days, f"{path}: retention_days", 1),
            check_bool(enforce, f"{path}: enforce"),
            path.parent.absolute() / check_text(given["schema"], f"{path}: schema") if "schema" in given else None,
            _reading(path, given), check_int(given.get("log_days", LOG_DAYS), f"{path}: log_days", 1),
        )  # fmt: skip

    def site(self, secret: bytes | None = None) -> Site:
        """The site with its rows. It deals them with `secret`; with its own unless given."""
        secret = self.secret() if secret is None else secret
        policy = self.disclosure if self.enforce else None
        options: Any = {"secret": secret, "secure_sum": self.secure_sum, "limits": self.limits, "policy": policy}
        try:
            found = self.read_table()
            check_complete(found)
        except TableError as problem:
            return self._site_to_agree(problem, options)
        part = found.encoded
        assert part.y is not None
        try:
            given = None if found.automatic else found.schema
            file = FileTable(used_columns(found.raw, found.schema), given, found.schema, agreed=given is not None)
            rows = Rows(
                part.A, part.y, name=self.name, index=0, columns=part.columns, sample_weight=part.weights, offset=part.offset,
                strata=part.strata, file=file,
            )  # fmt: skip
            return Site(rows, **options)
        except InputError as problem:  # its text may hold a number of the rows
            raise TableError(str(problem), "its numbers are too large, too small or missing.") from None

    def _site_to_agree(self, problem: TableError, options: Any) -> Site:
        """The site of a table that needs a schema which it does not have yet; raises `problem` if that is not what is wrong."""
        if self.schema is not None or self.label is None:
            raise problem
        try:
            raw = read_table(self.source, **self.reading)
        except (InputError, OSError):
            raise problem from None
        labels = (self.label,) if isinstance(self.label, str) else tuple(self.label)
        left_out = {*labels, *self.drop}
        names = [name for name in raw.columns if name not in left_out] if self.features is None else self.features
        if not names or not {*names, *labels} <= set(raw.columns):
            raise problem
        proposal = numeric_schema(names, self.label if isinstance(self.label, str) else labels)
        reason = f"cannot encode its table without a schema: {_first_sentence(problem.public_reason)}. {AGREE}"
        return Site(Rows.to_agree(used_columns(raw, proposal), proposal, reason, name=self.name, index=0), **options)

    def read_table(self) -> SiteTable:
        """The table of the site, its schema, and its rows encoded."""
        return read_site(self.source, self.label, self.features, self.drop, schema=self.schema, **self.reading)

    @property
    def extract_folder(self) -> Path:
        """The folder of the extracts of the table (`network.extract`)."""
        return self.state / "extracts" / self.table

    def extracts(self) -> list[Path]:
        """The extracts of the table, the one that the site answers from last; none before its first run."""
        return sorted(self.extract_folder.glob("[0-9]*")) if self.enforce else []

    @property
    def source(self) -> Path:
        """The file that the site answers from: the last extract, and before there is one the file itself."""
        kept = self.extracts()
        return kept[-1] if kept else self.data

    def secret(self) -> bytes:
        """32 bytes that only this site knows, with which it deals the rows of its extract into buckets.

        The next extract is dealt anew: dealt alike, its buckets would differ from the earlier ones by a row or two each.
        """
        kept = self.extracts()
        number = int(kept[-1].name.partition(".")[0]) if kept else 1
        return derived_secret(keys.read_identity(self.key), f"compfed/buckets/{number}")

    def ledger(self) -> Ledger:
        """The ledger of the table."""
        return Ledger(
            self.state / "ledger", self.table, derived_secret(keys.read_identity(self.key), "compfed/ledger/1")
        )

    def approvals(self) -> Approvals:
        """What persons at this site were asked about, and what they decided."""
        return Approvals(self.state / "approvals", self.approval)

    def read_roster(self) -> dict[str, keys.PublicKey]:
        """The public keys of all sites by name and in order.

        Raises
        ------
        InputError
            If the roster is missing, damaged, without this site or with another key for it; and if `secure_sum` has fewer
            than three sites.
        """
        if not self.roster.exists():
            needed = ", which secure_sum = true needs" if self.secure_sum else ""
            raise InputError(
                f"there is no {self.roster}{needed}. {ASK}, put it beside site.toml, and compare its "
                "fingerprint by telephone (`compfed site roster`)."
            )
        roster = read_roster(self.roster)
        check_member(roster, self.name, keys.read_identity(self.key).public_key(), self.roster)
        if self.secure_sum:
            check_masked(roster, self.roster)
        return roster

    def check_files(self) -> None:
        """Raise an error that names the file which is missing: the certificate or the key."""
        for name, way_out in (("ca", "The operator sends ca.crt."), ("key", "`compfed site init` makes it.")):
            file: Path = getattr(self, name)
            if not file.exists():
                raise InputError(f"{self.path}: {name} = {file.name!r} is not there. {way_out}")


def table_hash(site: Site, key: keys.PrivateKey) -> str:
    """A hash of the table, keyed with a secret of the site: without it nobody can confirm a guess of the rows.

    The secret is derived from the identity key: it survives the loss of the state.
    """
    A, y = site.rows.features, site.rows.labels
    made = hmac.new(
        derived_secret(key, "compfed/table/1"),
        repr((site.rows.columns or (), A.shape, y.shape, y.dtype.str)).encode(),
        hashlib.sha256,
    )
    for values in (A, y, site.rows.weights, site.rows.offset, site.rows.strata):
        if values is not None:
            made.update(np.ascontiguousarray(values).tobytes())
    for name, column in (
        () if site.rows.file.raw is None else site.rows.file.raw.columns.items()
    ):  # not encoded yet: no features
        made.update(repr((name, column.is_numeric)).encode())
        made.update(column.values.tobytes() if column.is_numeric else repr(column.values.tolist()).encode())
    made.update(b"" if site.rows.file.schema is None else site.rows.file.schema.to_toml().encode())
    return made.hexdigest()


def derived_secret(key: keys.PrivateKey, purpose: str) -> bytes:
    """HMAC-SHA256(identity key, purpose): a secret of the site that survives the loss of its state."""
    return hmac.digest(key.private_numbers().private_value.to_bytes(48, "big"), purpose.encode(), "sha256")


def _first_sentence(text: str) -> str:
    """The first sentence without its full stop. A dot in a quoted name ends none.

    >>> _first_sentence("words in the columns 'bmi. kg', 'sex'. Give them a schema.")
    "words in the columns 'bmi. kg', 'sex'"
    """
    found = re.match(r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^.]|\.(?=\S))*""", text)
    return found[0] if found else text


def _table_name(path: Path, given: object) -> str:
    name = check_text(given, f"{path}: table")
    if len(name) > LONGEST_TABLE_NAME or not is_printable(name) or re.search(r"^[.\s]|/|\s$", name):
        rule = f"A name has 1 to {LONGEST_TABLE_NAME} characters, no '/', no dot in front and no control characters."
        raise InputError(f"{path}: table = {name[:LONGEST_TABLE_NAME]!r} is not a name for a table. {rule}")
    return name


def _label(path: Path, given: object) -> str | list[str] | None:
    if given is None:
        return None
    return _names(path, "label", given) if isinstance(given, list) else check_text(given, f"{path}: label")


def _reading(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    reading = {name: given[name] for name in READING if name in given}
    try:
        check_reading(**{"missing": MISSING, "sep": None, "decimal": None, "encoding": None, **reading})
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    return reading


def _names(path: Path, what: str, given: object) -> list[str]:
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InputError(f"{path}: {what} = {given!r} must be a list of names.")
    if len(set(given)) < len(given):
        raise InputError(f"{path}: {what} = {given!r} names a column twice.")
    return given


def _approval(path: Path, given: object) -> ApprovalRules:
    where = f"{path}, [approval]"
    table = check_table(given, [f.name for f in fields(ApprovalRules)], where)
    for name, value in table.items():
        if name == "by_rule":
            check_bool(value, f"{path}: {name}")
        elif name in ("numbers_per_month", "days"):
            check_int(value, f"{path}: {name}", 1)
        elif name == "tell":  # a command may have the same word twice
            if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
                raise InputError(
                    f'{path}: tell = {value!r} must be a command as a list of words, such as ["/usr/bin/notify"].'
                )
        else:
            _names(path, name, value)
    rules: Any = {
        name: [value] if name in ("kinds", "columns") and isinstance(value, str) else value
        for name, value in table.items()
    }
    return ApprovalRules(**rules)


def _disclosure(path: Path, given: object, accepts: list[str]) -> DisclosurePolicy:
    where = f"{path}, [disclosure]"
    known = {f.name: f.type for f in fields(DisclosurePolicy) if f.name != "accepts"}  # which is at the top of the file
    table = check_table(given, [*known], where)
    for name, value in table.items():
        if known[name] == "int":
            check_int(value, f"{path}: {name}", 1)
        elif known[name] == "bool":
            check_bool(value, f"{path}: {name}")
        elif known[name] == "float" and value != np.inf:
            check_nonnegative(value, f"{path}: {name}")
    names = _names(path, "queries", table.get("queries", []))
    for name in names:
        if name not in LEAVES:
            raise InputError(f"{where}: {name!r} is not a query; the queries are {', '.join(LEAVES)}.")
    policy: Any = {**table, "queries": tuple(names), "accepts": tuple(accepts)}
    return DisclosurePolicy(**policy)


# --- new sites ---


def init(folder: Path, name: str, superlink: str) -> tuple[list[Path], str, str]:
    """Write an identity key and a site.toml; return the files, the public key and its fingerprint."""
    keys.check_site_name(name, "--name")
    parse_address(superlink, "--superlink")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths = [folder / "node.key", folder / "node.key.pub", folder / "site.toml"]
    for path in paths:
        if path.exists():
            raise InputError(f"{path} is there already. Move it away, or give another folder (--folder).")
    key = keys.new_identity()
    line = keys.public_line(key.public_key())
    keys.write_identity(paths[0], key)
    keys.write_new(paths[1], f"{line} {name}\n".encode(), 0o644)
    keys.write_new(paths[2], template("site").format(name=name, superlink=superlink).encode())
    return paths, line, keys.fingerprint(key.public_key())


# --- before a site takes part (`compfed site check`) ---


def disclosure_text(settings: SiteSettings) -> str:
    """A paragraph about what protects the rows of this site, and a list of what can leave it."""
    rules = settings.disclosure
    if not settings.enforce:
        asked = "A person here approves each run (by_rule = false). " if not settings.approval.by_rule else ""
        return (
            f"WARNING: site {settings.name!r} enforces no disclosure policy (enforce = false in site.toml). Whoever operates the "
            f"federation can read rows of {settings.data} by choosing queries, with masks or without. Use this for public data "
            f"only. {asked}Every reply is written down in {settings.state / 'log.jsonl'} before it leaves. No code of others runs here."
        )
    few = f"fewer than {rules.min_rows} rows" if rules.min_rows > 1 else "no row at all"
    seen = "The operator sees this site's own sums over rows (secure_sum = false)."
    if settings.secure_sum:
        seen = (
            "The operator receives only totals over all sites of the roster: what this site adds to them is masked, and stays so "
            "unless all other sites work together with the operator."
        )
    folds = (
        f"Folds and hold-outs are unions of buckets of at least {rules.min_rows} rows, assigned here with a secret of this site."
        if rules.min_rows > 1
        else "Folds and hold-outs may have single rows (min_rows = 1)."
    )
    lines = [
        f"Site {settings.name!r}: the rows of {settings.data} stay here. {seen} {folds} A model that rests on {few} is "
        f"refused. Every reply is written down in {settings.state / 'log.jsonl'} before it leaves. No code of others runs "
        f"here. Enough sums tell rows, masked or not. {PROMISE}",
        "",
        f"Known of this site alone: {ENROLMENT}.",
        "As totals over all sites the operator can ask for:" if settings.secure_sum else "The operator can ask for:",
    ]
    for name, what in LEAVES.items():
        lines.append(f"  never {name}: refused" if name in rules.queries else f"  {name}: {what}")
    lines += [
        "Rules of this site:",
        f"  With fewer than {rules.min_rows} rows: nothing at all.",
        f"  Classes, and the rarer value of a column with two values, have at least {rules.min_level_rows} rows.",
        *(
            [f"  Hessians on at most {rules.max_hessian_share:g} x rows columns."]
            if rules.max_hessian_share < np.inf
            else []
        ),
        f"  Mini-batches: {f'at least {rules.min_rows} rows, drawn here' if rules.allow_minibatches else 'none'}.",
        f"  {released_text(settings)}",
    ]
    default = DisclosurePolicy()
    weaker = [
        f"{name} = {getattr(rules, name):g} (default {getattr(default, name):g})"
        for name, sign in WEAKER.items()
        if sign * (getattr(rules, name) - getattr(default, name)) > 0
    ]
    if weaker:
        lines.append(f"  WEAKER than the defaults, which were tested against attacks: {'; '.join(weaker)}.")
    return "\n".join(lines)


def released_text(settings: SiteSettings) -> str:
    """How many numbers have left about the table, and how many more may."""
    rules, ledger = settings.disclosure, settings.ledger() if settings.key.exists() else None
    before, numbers = (0.0, 0) if ledger is None else (ledger.share(), ledger.numbers)
    tables = [entry.table for entry in (ledger.runs.values() if ledger else ()) if entry.table is not None]
    seen = "the rows of all sites but the largest other one" if settings.secure_sum else "the rows of this site"
    counted = f"{seen}, times the columns"
    person = (
        ""
        if settings.approval.by_rule
        else " By rule no run of this site begins: a person approves each (by_rule = false)."
    )
    if tables:
        counted = f"{tables[-1].rows:,} x {tables[-1].columns:,} = {tables[-1].cells:,} ({seen} x columns)"
    return (
        f"Numbers released about the table {settings.table!r}, over all runs: {numbers:,}, {before:.0%} of the numbers in "
        f"{counted}. Up to {percent(rules.share_by_rule)} a rule approves a run before it begins; beyond that a person here has to, up to "
        f"{percent(rules.max_share)} (`compfed site runs`).{person}"
    )


def check(path: Path, say: Callable[[str], object] = print) -> bool:
    """Print what would happen if this site took part; return whether everything is in order."""
    settings = SiteSettings.read(path)
    problems: list[str] = []
    say(f"{path}: the settings of site {settings.name!r} can be read.")
    _check_state(settings, problems)
    for step in (_check_table, _check_files, _check_roster):
        try:
            step(settings, say, problems)
        except InputError as problem:
            problems.append(str(problem))
    say(disclosure_text(settings))
    for problem in problems:
        say(f"PROBLEM  {problem}")
    if not problems:
        next_step = f"Next: compfed site run --config {path} (restart it if it runs: settings are read once)"
        say(f"Everything is in order. {next_step}")
    return not problems


def _check_state(settings: SiteSettings, problems: list[str]) -> None:
    there = next((path for path in (settings.state, *settings.state.parents) if path.exists()), Path("/"))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or there.is_relative_to("/proc"):
        problems.append(f"state = {str(settings.state)!r} cannot be written by this user.")


def _check_table(settings: SiteSettings, say: Callable[[str], object], problems: list[str]) -> None:
    site = settings.site(bytes(32))  # any secret: how many buckets there are does not depend on it
    rows, least, label = len(site.rows.labels), settings.disclosure.min_rows, settings.label
    if label is None and site.rows.file.schema is not None and site.rows.file.schema.label is not None:
        label = site.rows.file.schema.label.column
    columns = list(site.rows.columns or ())
    if site.rows.file.not_encoded:
        labels = [settings.label] if isinstance(settings.label, str) else settings.label or []
        columns = [name for name in site.rows.table.columns if name not in labels]
    say(f"{settings.data}: {rows} rows, {len(columns)} columns: {join_names(columns, most=12)}.")
    for note in () if site.rows.file.raw is None else site.rows.file.raw.notes:
        say(f"NOTE     {note}")
    if (kept := settings.extracts()) and kept[-1].read_bytes() != settings.data.read_bytes():
        say(
            f"NOTE     the file has changed since extract {len(kept)}, which this site answers from and which is shown here. To take "
            "the file as it is now: compfed site extract"
        )
    for line in table_lines(site):
        say(f"  {line}")
    if site.rows.file.not_encoded:
        say(f"NOTE     this site {site.rows.file.not_encoded} Until then it answers nothing but Tabulate.")
        if settings.enforce and rows < least:
            problems.append(f"there are {rows} rows and min_rows = {least}: every query would be refused.")
        return
    for what in ("weight", "offset"):
        if (column := getattr(site.rows.file.schema, what, None)) is not None:
            say(f"Column {column!r} is the {what} of each row, no feature.")
    values, counts = np.unique(site.rows.labels, return_counts=True)
    classes = (
        site.rows.file.schema.label.classes
        if site.rows.file.schema is not None and site.rows.file.schema.label is not None
        else None
    )
    values = values if classes is None else [classes[int(code)] for code in values]
    if site.rows.labels.ndim == 1 and len(values) <= 20:
        listed = ", ".join(f"{value} ({count} rows)" for value, count in zip(values, counts, strict=True))
        say(f"Label {label!r}: {listed}. A classifier takes these as classes; all sites must have the same.")
        if settings.enforce and (rare := rare_class(site.guard, settings.disclosure)) is not None:
            say(f"NOTE     a classifier would be refused: {rare}.")
    else:
        say(f"Label {label!r}: numbers, for a regression.")
    if not settings.enforce:
        return
    if rows < least:
        problems.append(f"there are {rows} rows and min_rows = {least}: every query would be refused.")
        return
    say(
        f"Its rows make {site.rows.buckets} buckets of at least {least} rows. The cv of a cross-validation divides the number of "
        "buckets of the site with the fewest."
    )
    problems += [f"every query would be refused: {problem}." for problem in site.guard.table_problems]
    for why in site.guard.withheld.values():
        say(f"NOTE     withheld, and left out at all sites: {why}.")


def table_lines(site: Site) -> list[str]:
    """How the columns of the file are read, a line for each: numbers or words, levels, missing values. For the site alone."""
    lines = []
    for name, column in site.rows.table.columns.items():
        missing = int(column.missing.sum())
        words = column.words()[~column.missing]
        levels = sorted_levels(set(words.tolist())) if not column.is_numeric else []
        kind = f"words, {len(levels)} levels: {join_names(levels, most=8)}" if levels else "numbers"
        lines.append(f"{name}: {kind}{f'; {missing} missing' if missing else ''}")
    return lines[:MAX_LINES] + ([f"and {len(lines) - MAX_LINES} more columns"] if len(lines) > MAX_LINES else [])


def _check_files(settings: SiteSettings, say: Callable[[str], object], problems: list[str]) -> None:
    settings.check_files()
    mine = keys.fingerprint(keys.read_identity(settings.key).public_key())
    say(f"{settings.key}: the identity key, fingerprint {mine}. The operator must have the same.")
    if settings.key.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        problems.append(f"others can read {settings.key}: chmod 600 {settings.key}")
    try:
        ca = x509.load_pem_x509_certificate(settings.ca.read_bytes())
    except ValueError:
        raise InputError(f"{settings.ca} is not a certificate. The operator sends ca.crt.") from None
    begins, ends, now = ca.not_valid_before_utc, ca.not_valid_after_utc, datetime.datetime.now(datetime.UTC)
    if not begins <= now <= ends:
        problems.append(f"{settings.ca} is valid from {begins} to {ends}; today is {now:%Y-%m-%d}.")
    address, (host, port) = settings.superlink, parse_address(settings.superlink, "superlink")
    try:
        context = ssl.create_default_context(cafile=str(settings.ca))
        with socket.create_connection((host, port), 5) as plain, context.wrap_socket(plain, server_hostname=host):
            say(f"{address}: the SuperLink can be reached, and its certificate is signed by {settings.ca.name}.")
    except ssl.SSLError as problem:
        way_out = "Ask the operator for their ca.crt."
        problems.append(f"{address}: the certificate is not accepted ({problem.reason}). {way_out}")
    except OSError as problem:
        reason = problem.strerror or problem
        say(f"NOTE     {address} cannot be reached now ({reason}); the operator may not have started it.")


def _check_roster(settings: SiteSettings, say: Callable[[str], object], problems: list[str]) -> None:
    if not settings.secure_sum:
        say("NOTE     secure_sum = false: replies are not masked, and the operator sees the sums of this site.")
    if settings.key.exists() and (settings.secure_sum or settings.roster.exists()):
        roster = settings.read_roster()
        say(f"{settings.roster}: {len(roster)} sites: {join_names(list(roster), most=12)}.")
        say(f"Its fingerprint, to compare by telephone: {roster_fingerprint(roster)}")
