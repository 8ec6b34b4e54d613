"""site.toml: the name of a site, its rows and its disclosure policy. It is read at the site, and nowhere else."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

from compfed._utils.validation import check_int, check_nonnegative
from compfed.data.readers import TableError, read_site
from compfed.errors import InputError
from compfed.federation.limits import QueryLimits
from compfed.federation.queries import QUERIES
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.federation.site.site import Site
from compfed.network import keys
from compfed.network.settings import check_table, check_text, parse_address, read_numbers, read_toml

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
key = "node.key"            # the private key of this site

[disclosure]
# min_rows = 50             # refuse every query with fewer rows
# max_hessian_share = 0.2   # no second derivatives on more coordinates than this share of the rows; 0 for none at all
# queries = ["HeldOut"]     # always refuse these

[limits]
# max_seconds = 600         # for one reply
# max_state_bytes = 1073741824
"""


@dataclass(frozen=True)
class Budget:
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
    label : str or list of str
        The column of labels, or several for several outcomes.
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
    disclosure : DisclosurePolicy, optional
        The queries that the site refuses.
    limits : QueryLimits, optional
        Limits on one message and on each query in it.
    budget : Budget, optional
        Limits on time and disk space.
    """

    path: Path
    name: str
    data: Path
    label: str | list[str]
    state: Path
    superlink: str
    ca: Path
    key: Path
    features: list[str] | None = None
    drop: list[str] = field(default_factory=list)
    accepts: list[str] = field(default_factory=list)
    disclosure: DisclosurePolicy = field(default_factory=DisclosurePolicy)
    limits: QueryLimits = field(default_factory=QueryLimits)
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def read(cls, path: str | Path) -> SiteSettings:
        """Read the settings from a file."""
        path = Path(path)
        given = read_toml(path, "Give the path of a site.toml; `compfed site init` writes one.")
        known = ("name", "data", "label", "state", "features", "drop", "accepts", "network", "disclosure", "limits")
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

        names = [f.name for kind in (QueryLimits, Budget) for f in fields(kind)]
        limits = check_table(given.get("limits", {}), names, f"{path}, [limits]")
        return cls(
            path.absolute(), keys.check_site_name(given["name"], str(path)), place(given["data"], "data"),
            _label(path, given["label"]), place(given.get("state", "state"), "state"), str(network["superlink"]),
            place(network["ca"], "ca"), place(network["key"], "key"),
            None if "features" not in given else _names(path, "features", given["features"]),
            _names(path, "drop", given.get("drop", [])), _names(path, "accepts", given.get("accepts", [])),
            _disclosure(path, given.get("disclosure", {})), read_numbers(QueryLimits, limits, path),
            read_numbers(Budget, limits, path),
        )  # fmt: skip

    def site(self) -> Site:
        """The site with its rows."""
        A, y, columns = read_site(self.data, self.label, self.features, self.drop)
        try:
            return Site(A, y, name=self.name, index=0, columns=columns, refuses=self.disclosure, limits=self.limits)
        except InputError as problem:  # its text may hold a number of the rows
            raise TableError(str(problem), "its numbers are too large, too small or missing.") from None

    def rows(self) -> tuple[Site, str]:
        """The site with its rows, and the keyed hash of its table."""
        site = self.site()
        return site, table_hash(self.secret(), site.features, site.labels, site.columns or ())

    def secret(self) -> bytes:
        """A secret of this site, derived from the identity key: it survives the loss of the state."""
        return keys.derived_secret(keys.read_identity(self.key), b"compfed/table/1")

    def check_files(self) -> None:
        """Raise an error that names the file which is missing: the certificate or the key."""
        if not self.ca.exists():
            raise InputError(f"{self.path}: ca = {self.ca.name!r} is not there. The operator sends ca.crt.")
        if not self.key.exists():
            raise InputError(f"{self.path}: key = {self.key.name!r} is not there. `compfed site init` makes it.")


def table_hash(secret: bytes, A: np.ndarray, y: np.ndarray, columns: tuple[str, ...]) -> str:
    """A hash of the table, keyed with the secret of the site: without the secret nobody can confirm a guess of the rows."""
    made = hmac.new(secret, repr((columns, A.shape, y.shape, y.dtype.str)).encode(), hashlib.sha256)
    made.update(np.ascontiguousarray(A).tobytes())
    made.update(np.ascontiguousarray(y).tobytes())
    return made.hexdigest()


def _names(path: Path, what: str, given: object) -> list[str]:
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InputError(f"{path}: {what} = {given!r} must be a list of names.")
    if len(set(given)) < len(given):
        raise InputError(f"{path}: {what} = {given!r} names a column twice.")
    return given


def _label(path: Path, given: object) -> str | list[str]:
    return _names(path, "label", given) if isinstance(given, list) else check_text(given, f"{path}: label")


def _disclosure(path: Path, given: object) -> DisclosurePolicy:
    where = f"{path}, [disclosure]"
    table = check_table(given, [f.name for f in fields(DisclosurePolicy)], where)
    names = _names(path, "queries", table.get("queries", []))
    for name in names:
        if name not in QUERY_NAMES:
            raise InputError(f"{where}: {name!r} is not a query; the queries are {', '.join(QUERY_NAMES)}.")
    rows = check_int(table.get("min_rows", 1), f"{path}: min_rows", 0)
    share = np.inf
    if "max_hessian_share" in table:
        share = check_nonnegative(table["max_hessian_share"], f"{path}: max_hessian_share")
    return DisclosurePolicy(rows, share, names)


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
    keys.write_new(paths[2], TEMPLATE.format(name=name, superlink=superlink).encode(), 0o600)
    return paths, line, keys.fingerprint(key.public_key())
