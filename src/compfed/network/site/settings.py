"""site.toml: what a site is, where its rows are, what it refuses. Read at the site, and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.validation import check_int, check_nonnegative, check_positive
from compfed.data.readers import TableError, read_site
from compfed.errors import InputError
from compfed.federation.limits import QueryLimits
from compfed.federation.queries import QUERIES
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.site import Site
from compfed.network import keys
from compfed.network.settings_file import check_table, check_text, parse_address, read_toml

QUERY_NAMES = [query.__name__ for query in QUERIES]
TEMPLATE = """\
# A site of a federation. This file, the rows, the key and the state stay on this machine.

name = "{name}"
data = "rows.csv"           # CSV or Parquet; all columns but the label must be numbers
label = "label"             # the column of labels: numbers, or words for classes
# drop = ["patient"]        # columns to leave out
# features = ["age", "bmi"] # or: the columns to use, in this order
state = "state"             # state of the rounds, and log.jsonl: every reply, with sizes and hashes
# accepts = ["module:object"]   # losses and methods that are not compfed's and that you have installed here

[network]
superlink = "{superlink}"   # from the operator
ca = "ca.crt"               # from the operator
key = "node.key"            # yours, and nobody else's

[refuses]
# min_rows = 50           # answer nothing with fewer rows
# max_hessian_share = 0.2     # no second derivatives on more coordinates than this share of the rows
# queries = ["HeldOut"] # never answer these

[limits]
# max_seconds = 600         # for one reply
# max_state_bytes = 1073741824
"""


@dataclass(frozen=True)
class Budget:
    """What one message, or one run, may cost a site beyond `QueryLimits`."""

    max_seconds: float = 600.0
    max_state_bytes: int = 2**30


@dataclass(frozen=True)
class SiteSettings:
    """The settings of a site; paths are relative to the file that they are in."""

    path: Path
    name: str
    data: Path  # CSV or Parquet
    label: str | list[str]
    state: Path
    superlink: str
    ca: Path
    key: Path
    features: list[str] | None = None
    drop: list[str] = field(default_factory=list)
    accepts: list[str] = field(default_factory=list)  # "module:object" of losses and methods that are not compfed's
    refuses: DisclosurePolicy = field(default_factory=DisclosurePolicy)
    limits: QueryLimits = field(default_factory=QueryLimits)
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def read(cls, path: str | Path) -> SiteSettings:
        path = Path(path)
        given = read_toml(path, "Give the path of a site.toml; `compfed site init` writes one.")
        known = ("name", "data", "label", "state", "features", "drop", "accepts", "network", "refuses", "limits")
        check_table(given, known, str(path))
        network = check_table(given.get("network", {}), ("superlink", "ca", "key"), f"{path}, [network]")
        for table, where, names in (
            (given, "", ("name", "data", "label")),
            (network, ", [network]", ("superlink", "ca", "key")),
        ):
            for name in names:
                if name not in table:
                    raise InputError(f"{path}{where}: {name!r} is missing.")
        parse_address(network["superlink"], f"{path}: superlink")
        home = path.parent.absolute()

        def place(value: object, name: str) -> Path:
            return home / check_text(value, f"{path}: {name}")

        limits, budget = _limits(path, given.get("limits", {}))
        return cls(
            path.absolute(), keys.check_site_name(given["name"], str(path)), place(given["data"], "data"),
            _label(path, given["label"]), place(given.get("state", "state"), "state"), network["superlink"],
            place(network["ca"], "ca"), place(network["key"], "key"),
            None if "features" not in given else _names(path, "features", given["features"]),
            _names(path, "drop", given.get("drop", [])), _names(path, "accepts", given.get("accepts", [])),
            _refusals(path, given.get("refuses", {})), limits, budget,
        )  # fmt: skip

    def site(self) -> Site:
        """The site with its rows."""
        A, y, columns = read_site(self.data, self.label, self.features, self.drop)
        try:
            return Site(A, y, name=self.name, index=0, columns=columns, refuses=self.refuses, limits=self.limits)
        except InputError as problem:  # its words may hold a number of the rows
            raise TableError(str(problem), "its numbers are too large, too small or missing.") from None

    def rows(self) -> tuple[Site, str]:
        """The site with its rows, and the keyed hash of its table."""
        site = self.site()
        return site, table_hash(self.secret(), site.features, site.labels, site.columns or ())

    def secret(self) -> bytes:
        """A secret of this site. It is made of the identity key, so that it is the same after the state was lost."""
        return keys.derived_secret(keys.read_identity(self.key), b"compfed/table/1")

    def check_files(self) -> None:
        """Say which of the files that others must provide is missing."""
        if not self.ca.exists():
            raise InputError(f"{self.path}: ca = {self.ca.name!r} is not there. The operator sends ca.crt.")
        if not self.key.exists():
            raise InputError(f"{self.path}: key = {self.key.name!r} is not there. `compfed site init` makes it.")


def table_hash(secret: bytes, A: Any, y: np.ndarray, columns: tuple[str, ...]) -> str:
    """A hash of the table, keyed with the site's secret: without the secret nobody can confirm a guess of the rows."""
    made = hmac.new(secret, repr((columns, A.shape, y.shape, y.dtype.str)).encode(), hashlib.sha256)
    made.update(np.ascontiguousarray(A).tobytes())
    made.update(np.ascontiguousarray(y).tobytes())
    return made.hexdigest()


def _names(path: Path, what: str, given: Any) -> list[str]:
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InputError(f"{path}: {what} = {given!r} must be a list of names.")
    if len(set(given)) < len(given):
        raise InputError(f"{path}: {what} = {given!r} names a column twice.")
    return given


def _label(path: Path, given: Any) -> str | list[str]:
    return _names(path, "label", given) if isinstance(given, list) else check_text(given, f"{path}: label")


def _refusals(path: Path, given: Any) -> DisclosurePolicy:
    where = f"{path}, [refuses]"
    check_table(given, [f.name for f in fields(DisclosurePolicy)], where)
    for name in _names(path, "queries", given.get("queries", [])):
        if name not in QUERY_NAMES:
            raise InputError(f"{where}: {name!r} is not a query; the queries are {', '.join(QUERY_NAMES)}.")
    check_int(given.get("min_rows", 1), f"{path}: min_rows", 0)
    check_nonnegative(given.get("max_hessian_share", 1.0), f"{path}: max_hessian_share")
    return DisclosurePolicy(**given)


def _limits(path: Path, given: Any) -> tuple[QueryLimits, Budget]:
    ours, budget = [f.name for f in fields(QueryLimits)], [f.name for f in fields(Budget)]
    check_table(given, [*ours, *budget], f"{path}, [limits]")
    for name, value in given.items():
        if name == "max_seconds":
            check_positive(value, f"{path}: {name}")
        else:
            check_int(value, f"{path}: {name}", 1)
    chosen = {name: value for name, value in given.items() if name in ours}
    return QueryLimits(**chosen), Budget(**{name: value for name, value in given.items() if name in budget})
