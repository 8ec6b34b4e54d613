"""Settings files: federation.toml, which the operator's commands read, and what site.toml has in common with it.

Every key of a settings file is known, and every error names the file, the key and a way out.
"""

from __future__ import annotations

import difflib
import importlib
import re
import tomllib
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compfed._utils.files import write_private
from compfed._utils.text import join_names
from compfed._utils.validation import check_bool, check_int, check_positive
from compfed.errors import InputError
from compfed.network import keys
from compfed.report.words import ERRORS

if TYPE_CHECKING:
    from compfed.estimators.base import FederatedModel

T = TypeVar("T")

LONGEST_KEYS = 2**20  # bytes of a file of public keys: thousands of sites
LONGEST_REASON = 500  # characters
SITE_BLOCK = """
[[site]]
name = "{name}"
key = "{key}"
"""


# --- any settings file ---


def read_toml(path: Path, way_out: str) -> dict[str, object]:
    """The tables of a file; `way_out` says what to do where there is none."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}. {way_out}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InputError(f"{path} is not TOML: {problem}.") from None


def template(name: str) -> str:
    """A settings file to fill in."""
    return files("compfed.network").joinpath(f"{name}.template.toml").read_text(encoding="utf-8")


def check_table(given: object, known: Collection[str], where: str) -> dict[str, object]:
    """A table of a settings file; a key that is not known is refused with the nearest name."""
    if not isinstance(given, dict):
        raise InputError(f"{where} must be a table with the keys {', '.join(known)}; got {given!r}.")
    for name in given:
        if name not in known:
            raise InputError(f"{where}: {name!r} is not a setting. {there_are(name, known)}")
    return given


def there_are(name: str, known: Collection[str]) -> str:
    """The names that there are, and the one that may have been meant."""
    near = difflib.get_close_matches(name, known, 1)
    return f"{f'Did you mean {near[0]!r}? ' if near else ''}There are {', '.join(known)}."


def parse_address(text: object, where: str) -> tuple[str, int]:
    """(host, port) of "host:port"."""
    found = re.fullmatch(r"([A-Za-z0-9.:\[\]-]+):([0-9]{1,5})", text) if isinstance(text, str) else None
    if not found or not 0 < int(found[2]) < 2**16:
        raise InputError(f"{where} = {text!r} must be HOST:PORT, such as fed.example.org:8443.")
    return found[1].strip("[]"), int(found[2])


def check_text(value: object, where: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{where} = {value!r} must be text.")
    return value


def read_numbers(cls: type[T], given: dict[str, object], path: Path) -> T:
    """A record of positive numbers from a table; the type of each field says which are integers."""
    known = {f.name: f.type for f in fields(cls)}  # pyright: ignore[reportArgumentType]  # a dataclass
    chosen = {name: value for name, value in given.items() if name in known}
    for name, value in chosen.items():
        if known[name] == "int":
            check_int(value, f"{path}: {name}", 1)
        else:
            check_positive(value, f"{path}: {name}")
    return cls(**chosen)


# --- federation.toml ---


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a reply and how often to resend.

    Parameters
    ----------
    timeout : float, default=120
        Seconds to wait for a reply before a message is sent again. A site that signs in again gets its message at once.
    attempts : int, default=20
        How often a message is sent before the run stops.
    wait : float, default=600
        Seconds to wait for a site that is not connected before the run stops.
    pause : float, default=1
        Seconds between two checks while no site can be reached.
    approval : float, default=1209600
        Seconds, two weeks, to wait for the people at sites who have to approve a run before the run stops.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.network.RetryPolicy(timeout=30.0).attempts
    20
    """

    timeout: float = 120.0
    attempts: int = 20
    wait: float = 600.0
    pause: float = 1.0
    approval: float = 14 * 86_400.0


@dataclass(frozen=True)
class FederationSettings:
    """The settings of a federation, from its federation.toml.

    Parameters
    ----------
    path : path
        The file. Other paths are relative to its folder.
    estimator : str
        The name of an estimator of compfed.
    public_keys : dict of str
        The public key of each site by name, in the order of the file; "" for a site that has sent none yet.
    superlink : str
        The address that sites dial, HOST:PORT.
    listen : tuple of (host, port)
        Where the SuperLink listens.
    keys : path
        The folder of `compfed federation keys`.
    parameters : dict, optional
        The parameters of the estimator.
    retry : RetryPolicy, optional
        How long to wait for replies and how often to resend.
    evaluate : bool or int, default=False
        Whether a run also measures how well its model predicts the rows that it was fitted to. A number K: by K fits without
        a fold each, so that every row is scored by a model that has not seen it.
    summary : str, default=""
        Standard errors that a run asks for after its fit: "model", "HC0", "HC1" or "cluster"; "" for none. Of a penalised fit they are
        those of a refit, naive after selection.
    why : str, default=""
        The reason for computing in full what would release more numbers than a rule may approve; a person at each site reads it.
        Without one a choice of alpha takes a cheaper way where there is one.

    Examples
    --------
    >>> import compfed as cf
    >>> settings = cf.network.FederationSettings.read("clinics/federation.toml")  # doctest: +SKIP
    >>> settings.names  # doctest: +SKIP
    ('clinic-0', 'clinic-1', 'clinic-2', 'clinic-3')
    """

    path: Path
    estimator: str
    public_keys: dict[str, str]
    superlink: str
    listen: tuple[str, int]
    keys: Path
    parameters: dict[str, object] = field(default_factory=dict)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    evaluate: bool | int = False
    summary: str = ""
    why: str = ""

    @classmethod
    def read(cls, path: str | Path, check_estimator: bool = True) -> FederationSettings:
        """Read the settings from a file or its folder. Checking the estimator imports JAX, which takes seconds."""
        path = Path(path)
        path = path / "federation.toml" if path.is_dir() else path
        given = read_toml(path, "Give the folder of `compfed federation new DIR`.")
        known = ("estimator", "parameters", "summary", "evaluate", "why", "network", "retry", "site")
        check_table(given, known, str(path))
        network = check_table(given.get("network", {}), ("superlink", "listen", "keys"), f"{path}, [network]")
        if "superlink" not in network:
            raise InputError(f"{path}, [network]: 'superlink' is missing: the address that sites dial, HOST:PORT.")
        host, port = parse_address(network["superlink"], f"{path}: superlink")
        listen = network.get("listen", default_listen(host, port))
        folder = check_text(network.get("keys", "keys"), f"{path}: keys")
        parameters: Any = given.get("parameters", {})  # checked with the estimator
        retry = check_table(given.get("retry", {}), [f.name for f in fields(RetryPolicy)], f"{path}, [retry]")
        settings = cls(
            path.absolute(), check_text(given.get("estimator"), f"{path}: estimator"), _sites(path, given.get("site", [])),
            str(network["superlink"]), parse_address(listen, f"{path}: listen"), path.parent.absolute() / folder, parameters,
            read_numbers(RetryPolicy, retry, path), _check_evaluate(given.get("evaluate", False), f"{path}: evaluate"),
            _check_summary(given.get("summary", False), f"{path}: summary"), _check_why(given.get("why", ""), f"{path}: why"),
        )  # fmt: skip
        if check_estimator:
            settings.check_steps(settings.new_estimator())
        return settings

    @property
    def home(self) -> Path:
        """The folder of the file."""
        return self.path.parent

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sites, in order."""
        return tuple(self.public_keys)

    @property
    def host(self) -> str:
        """The host name of the SuperLink."""
        return parse_address(self.superlink, "superlink")[0]

    @property
    def dial(self) -> str:
        """Where the operator's own processes reach the SuperLink: on this machine."""
        host, port = self.listen
        if host in ("0.0.0.0", "::", "localhost") or host.startswith("127."):
            return f"127.0.0.1:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @cached_property
    def roster(self) -> dict[str, keys.PublicKey]:
        """The public key of every site, by name and in order."""
        if missing := [name for name in self.names if name not in self.admitted]:
            named = join_names([repr(name) for name in missing], most=12)
            which = f"site {named} has" if len(missing) == 1 else f"sites {named} have"
            command = f"compfed federation admit {self.home} {missing[0]} 'LINE'"
            way_out = f"Admit the line that `compfed site init` prints there: {command}"
            raise InputError(f"{self.path}: {which} no key yet. {way_out}")
        owners: dict[str, str] = {}
        for name, key in self.admitted.items():
            if owners.setdefault(keys.fingerprint(key), name) != name:
                raise InputError(f"{self.path}: site {name!r} has the key of another site. Every site makes its own.")
        return self.admitted

    @cached_property
    def admitted(self) -> dict[str, keys.PublicKey]:
        """The public keys of those sites that have sent one."""
        lines = {name: line for name, line in self.public_keys.items() if line}
        return {name: keys.parse_public_line(line, f"{self.path}, site {name!r}") for name, line in lines.items()}

    def check_keys(self) -> None:
        """Raise an error that names the file of `compfed federation keys` which is missing."""
        for name in ("ca.crt", "server.pem", "server.key", keys.SECRET):
            if not (self.keys / name).exists():
                raise InputError(f"there is no {self.keys / name}. Run: compfed federation keys {self.home}")

    def new_estimator(self) -> FederatedModel:
        """Make the estimator, not fitted; an error says what is wrong with its name or its parameters."""
        estimators = importlib.import_module("compfed.estimators")
        names = [name for name in estimators.__all__ if name.startswith("Federated")]
        if self.estimator not in names:
            wrong = f"{self.path}: estimator = {self.estimator!r} is not an estimator."
            raise InputError(f"{wrong} {there_are(self.estimator, names)}")
        cls = getattr(estimators, self.estimator)
        check_table(self.parameters, [*cls().get_params()], f"{self.path}, [parameters]")
        return cls(**self.parameters)

    def check_steps(self, model: FederatedModel) -> None:
        """Refuse before the fit what this estimator does not have after it."""
        from compfed.estimators.programs.inference import check_clusters

        if self.summary:
            try:
                model._check_summary(self.summary)
                check_clusters(self.summary, len(self.names))
            except InputError as problem:
                raise InputError(f"{self.path}: summary = {self.summary!r}: {problem}") from None
        if self.evaluate is not False and self.evaluate is not True and not model.evaluates_folds:
            raise InputError(
                f"{self.path}: evaluate = {self.evaluate}: {type(model).__name__} is evaluated over a network by its concordance on all "
                "rows: sites with a disclosure policy do not count pairs of a fold. Write evaluate = true or evaluate = false."
            )

    def resolved(self) -> dict[str, object]:
        """Everything that a run was started with, for its folder, without any private key."""
        return {
            "sites": {name: keys.fingerprint(key) for name, key in self.roster.items()},
            "estimator": self.estimator,
            "parameters": self.new_estimator().get_params(),
            "superlink": self.superlink,
            "retry": asdict(self.retry),
        }


def default_listen(host: str, port: int) -> str:
    """Loopback for a federation on one machine, all addresses of this machine otherwise."""
    local = host == "localhost" or host.startswith("127.") or host == "::1"
    return f"127.0.0.1:{port}" if local else f"0.0.0.0:{port}"


def _sites(path: Path, given: object) -> dict[str, str]:
    if not isinstance(given, list) or not given:
        raise InputError(f"{path}: there is no site. Every site has a block [[site]] with its name and its key.")
    found: dict[str, str] = {}
    for block in given:
        block = check_table(block, ("name", "key"), f"{path}, [[site]]")
        name = keys.check_site_name(block.get("name"), f"{path}, [[site]]")
        if name in found:
            raise InputError(f"{path}: two sites are called {name!r}. Every site needs a name of its own.")
        line = block.get("key", "")
        if not isinstance(line, str):
            raise InputError(f"{path}, site {name!r}: key = {line!r} must be text.")
        found[name] = line
    return found


# --- new federations ---


def _check_why(value: object, where: str) -> str:
    """A reason that a person at a site reads in one line."""
    if not isinstance(value, str) or len(value) > LONGEST_REASON:
        raise InputError(f"{where} must be a sentence of at most {LONGEST_REASON} characters.")
    return value


def _check_evaluate(value: object, where: str) -> bool | int:
    """True, false, or a number of folds."""
    return check_int(value, where, 2) if isinstance(value, int) and value > 1 else check_bool(value, where)


def _check_summary(value: object, where: str) -> str:
    """The standard errors that a run asks for; "" for none."""
    if value is True or value is False:
        return "model" if value else ""
    if value not in ERRORS:
        raise InputError(f"{where} = {value!r} must be {join_names([repr(name) for name in ERRORS])}, true or false.")
    return str(value)


def new_federation(folder: Path, sites: Collection[str], superlink: str = "127.0.0.1:8443") -> Path:
    """Write a federation.toml; an existing one is never overwritten."""
    host, port = parse_address(superlink, "--superlink")
    for name in sites:
        keys.check_site_name(name, "--sites")
    if len(set(sites)) < len(sites):
        raise InputError(f"--sites {','.join(sites)}: every site needs a name of its own.")
    path = folder / "federation.toml"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = template("federation").format(superlink=superlink, listen=default_listen(host, port))
    keys.write_new(path, (text + "".join(SITE_BLOCK.format(name=name, key="") for name in sites)).encode())
    return path


def admit(path: Path, name: str, line: str, new: bool = False) -> tuple[keys.PublicKey, str | None]:
    """Write the public key of a site into federation.toml; return the key, and the site that had it before, if any."""
    settings = FederationSettings.read(path, check_estimator=False)
    keys.check_site_name(name, "the name of the site")
    key = keys.parse_public_line(line, f"the key of {name!r}")
    comment = " ".join(line.split()[2:])
    if comment and comment != name and keys.SITE_NAME.fullmatch(comment):
        raise InputError(f"this line is from site {comment!r}, not {name!r}. Did you mean: admit ... {comment} ...?")
    if name not in settings.public_keys and not new:
        known = join_names(settings.names, most=12)
        raise InputError(f"{settings.path}: there is no site {name!r}; there are {known}. To add one, say --new.")
    text, other = _admitted(settings.path, settings.path.read_text(), dict(settings.public_keys), name, key)
    write_private(settings.path, text.encode())
    return key, other


def _admitted(
    path: Path, text: str, public_keys: dict[str, str], name: str, key: keys.PublicKey
) -> tuple[str, str | None]:
    """The text of a federation.toml with the key of a site, and the site that had it before; `public_keys` follows."""
    line, other = keys.public_line(key), None
    for known, old in list(public_keys.items()):
        if known != name and old.split()[1:2] == line.split()[1:2]:
            text, other = _with_key(path, text, known, ""), known  # two sites were exchanged
            public_keys[known] = ""
    added = text.rstrip("\n") + "\n" + SITE_BLOCK.format(name=name, key=line)
    text = _with_key(path, text, name, line) if name in public_keys else added
    public_keys[name] = line
    return text, other


def admit_all(path: Path, given: Path, new: bool = False) -> dict[str, keys.PublicKey]:
    """Write the public keys in a file, or in the .pub files of a folder and those below, into federation.toml; return them.

    A line is what `compfed site init` prints: the key, and the name of its site. Nothing is written unless all can be used.
    """
    lines, found = dict[str, str](), dict[str, keys.PublicKey]()
    for file in sorted(given.rglob("*.pub")) if given.is_dir() else [given]:
        for number, line in enumerate(_few_lines(file), 1):
            if not line.strip() or line.startswith("#"):
                continue
            where, words = f"{file}, line {number}", line.split()
            key = keys.parse_public_line(line, where)
            name = keys.check_site_name(words[2] if len(words) > 2 else "", where)
            if lines.setdefault(name, line) != line:
                raise InputError(
                    f"{where}: another key of site {name!r} came before. Ask the site which one is its own."
                )
            found[name] = key
    settings = FederationSettings.read(path, check_estimator=False)
    if not lines:
        raise InputError(
            f"{given} has no public key: a file with a line per site, or a folder with their node.key.pub."
        )
    if unknown := [name for name in lines if name not in settings.public_keys and not new]:
        raise InputError(
            f"{settings.path} has no site {join_names(unknown, most=12)}. To add {'it' if len(unknown) == 1 else 'them'}, say --new."
        )
    owners: dict[str, str] = {}
    for name, line in lines.items():
        if (owner := owners.setdefault(line.split()[1], name)) != name:
            raise InputError(f"{given}: sites {owner!r} and {name!r} have the same key. Every site makes its own.")
    text, public_keys = settings.path.read_text(), dict(settings.public_keys)
    for name, key in found.items():
        text, _ = _admitted(settings.path, text, public_keys, name, key)
    write_private(settings.path, text.encode())
    return found


def _few_lines(file: Path) -> list[str]:
    """The lines of a file of public keys; a file that is larger than any roster is refused."""
    try:
        with file.open("rb") as opened:
            data = opened.read(LONGEST_KEYS + 1)
    except OSError as problem:
        raise InputError(
            f"{file}: {problem.strerror}. Give a file of public keys, or a folder of .pub files."
        ) from None
    if len(data) > LONGEST_KEYS or not data.isascii():
        raise InputError(
            f"{file} is no file of public keys: it is not plain text, or larger than {LONGEST_KEYS} bytes."
        )
    return data.decode("ascii").splitlines()


def _with_key(path: Path, text: str, name: str, line: str) -> str:
    """The text of a federation.toml with another key for a site."""
    pattern = rf'(\[\[site\]\]\s*\n\s*name\s*=\s*"{re.escape(name)}"[^\n]*\n\s*key\s*=\s*)"[^"\n]*"'
    text, found = re.subn(pattern, lambda match: f'{match[1]}"{line}"', text)
    if not found:
        block = SITE_BLOCK.format(name=name, key=line)
        raise InputError(f"{path}: the block of site {name!r} has another form. Write this into it yourself:\n{block}")
    return text
