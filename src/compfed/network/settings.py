"""federation.toml: which estimator, which sites, which SuperLink. Read by the operator's commands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

import compfed
from compfed._utils import files as durable
from compfed._utils.validation import check_int, check_positive
from compfed.errors import InputError
from compfed.network import keys
from compfed.network.server.retry import RetryPolicy
from compfed.network.settings_file import check_table, check_text, parse_address, read_toml

TEMPLATE = """\
# A federation, for its operator. Every site has a site.toml of its own, which stays there.

estimator = "FederatedLogisticRegressionCV"     # any estimator of compfed

[parameters]                                    # of the estimator
# n_alphas = 50
# cv = 5
# standardize = true                            # where columns have different units

[network]
superlink = "{superlink}"                 # the address that sites dial
listen = "{listen}"                       # where `compfed federation serve` listens
keys = "keys"                                   # folder of `compfed federation keys`

[retry]
timeout = 120.0                                 # seconds to wait for a reply before the message is sent again
attempts = 20                                   # how often a message is sent before the run stops
wait = 600.0                                    # seconds to wait for a site that is not connected

# One block per site. The key is the line that `compfed site init` printed there; `compfed federation admit DIR NAME LINE`
# writes it here. Compare its fingerprint with the site by telephone.
"""
SITE_BLOCK = """
[[site]]
name = "{name}"
key = "{key}"
"""


@dataclass(frozen=True)
class FederationSettings:
    """The settings of a federation; paths are relative to the file that they are in."""

    path: Path
    estimator: str
    public_keys: dict[str, str]  # by name of the site, in the order of the file; "" for a site that sent none yet
    superlink: str
    listen: tuple[str, int]
    keys: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    @classmethod
    def read(cls, path: str | Path, check_estimator: bool = True) -> FederationSettings:
        """The settings in a file or its folder. To check the estimator takes seconds: it imports what computes."""
        path = Path(path)
        path = path / "federation.toml" if path.is_dir() else path
        given = read_toml(path, "Give the folder of `compfed federation new DIR`.")
        check_table(given, ("estimator", "parameters", "network", "retry", "site"), str(path))
        network = check_table(given.get("network", {}), ("superlink", "listen", "keys"), f"{path}, [network]")
        if "superlink" not in network:
            raise InputError(f"{path}, [network]: 'superlink' is missing: the address that sites dial, HOST:PORT.")
        host, port = parse_address(network["superlink"], f"{path}: superlink")
        listen = network.get("listen", default_listen(host, port))
        home = path.parent.absolute()
        settings = cls(
            path.absolute(), check_text(given.get("estimator"), f"{path}: estimator"), _sites(path, given.get("site", [])),
            network["superlink"], parse_address(listen, f"{path}: listen"),
            home / check_text(network.get("keys", "keys"), f"{path}: keys"),
            given.get("parameters", {}), _retry(path, given.get("retry", {})),
        )  # fmt: skip
        if check_estimator:
            settings.new_estimator()
        return settings

    @property
    def home(self) -> Path:
        return self.path.parent

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.public_keys)

    @property
    def host(self) -> str:
        return parse_address(self.superlink, "superlink")[0]

    @property
    def dial(self) -> str:
        """Where the operator's own processes reach the SuperLink: on this machine."""
        host, port = self.listen
        if host in ("0.0.0.0", "::", "localhost") or host.startswith("127."):
            return f"127.0.0.1:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @cached_property
    def roster(self) -> dict[str, ec.EllipticCurvePublicKey]:
        """The public key of every site, by name and in order."""
        for name, line in self.public_keys.items():
            if not line:
                raise InputError(
                    f"{self.path}: site {name!r} has no key yet. Ask it to run `compfed site init` and to send the line that "
                    f"this prints, then: compfed federation admit {self.home} {name} 'LINE'"
                )
        roster = {
            name: keys.parse_public_line(line, f"{self.path}, site {name!r}") for name, line in self.public_keys.items()
        }
        prints = [keys.fingerprint(key) for key in roster.values()]
        for name, one in zip(roster, prints, strict=True):
            if prints.count(one) > 1:
                raise InputError(f"{self.path}: site {name!r} has the key of another site. Every site makes its own.")
        return roster

    @property
    def admitted(self) -> dict[str, ec.EllipticCurvePublicKey]:
        """The public keys of those sites that have sent one."""
        given = {name: line for name, line in self.public_keys.items() if line}
        return {name: keys.parse_public_line(line, f"{self.path}, site {name!r}") for name, line in given.items()}

    def check_keys(self) -> None:
        """Say which file of `compfed federation keys` is missing before anything starts."""
        for name in ("ca.crt", "server.pem", "server.key", keys.SECRET):
            if not (self.keys / name).exists():
                raise InputError(f"there is no {self.keys / name}. Run: compfed federation keys {self.home}")

    def secret(self) -> bytes:
        return keys.read_secret(self.keys)

    def new_estimator(self) -> Any:
        """The estimator, not fitted; says what is wrong with its name or its parameters."""
        names = [name for name in compfed.__all__ if name.startswith("Federated")]
        if self.estimator not in names:
            near = difflib.get_close_matches(self.estimator, names, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"{self.path}: estimator = {self.estimator!r} is not an estimator. {hint}There are {', '.join(names)}."
            )
        cls = getattr(compfed, self.estimator)
        check_table(self.parameters, [*cls().get_params()], f"{self.path}, [parameters]")
        return cls(**self.parameters)

    def resolved(self) -> dict[str, Any]:
        """Everything that a run was started with, for its folder. No private key is in it."""
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


def _sites(path: Path, given: Any) -> dict[str, str]:
    if not isinstance(given, list) or not given:
        raise InputError(f"{path}: there is no site. Every site has a block [[site]] with its name and its key.")
    found: dict[str, str] = {}
    for block in given:
        check_table(block, ("name", "key"), f"{path}, [[site]]")
        name = keys.check_site_name(block.get("name"), f"{path}, [[site]]")
        if name in found:
            raise InputError(f"{path}: two sites are called {name!r}. Every site needs a name of its own.")
        line = block.get("key", "")
        if not isinstance(line, str):
            raise InputError(f"{path}, site {name!r}: key = {line!r} must be text.")
        found[name] = line
    return found


def _retry(path: Path, given: Any) -> RetryPolicy:
    known = [f.name for f in fields(RetryPolicy)]
    for name, value in check_table(given, known, f"{path}, [retry]").items():
        if name == "attempts":
            check_int(value, f"{path}: attempts", 1)
        else:
            check_positive(value, f"{path}: {name}")
    return RetryPolicy(**given)


# --- new federations ---


def new_federation(folder: Path, sites: Collection[str], superlink: str = "127.0.0.1:8443") -> Path:
    """Write a federation.toml; never over one that is there."""
    host, port = parse_address(superlink, "--superlink")
    for name in sites:
        keys.check_site_name(name, "--sites")
    if len(set(sites)) < len(sites):
        raise InputError(f"--sites {','.join(sites)}: every site needs a name of its own.")
    path = folder / "federation.toml"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = TEMPLATE.format(superlink=superlink, listen=default_listen(host, port))
    keys.write_new(path, (text + "".join(SITE_BLOCK.format(name=name, key="") for name in sites)).encode(), 0o600)
    return path


def admit(path: Path, name: str, line: str, new: bool = False) -> tuple[ec.EllipticCurvePublicKey, str | None]:
    """Write the public key of a site into federation.toml; the key, and the site that it is taken away from."""
    settings = FederationSettings.read(path, check_estimator=False)
    keys.check_site_name(name, "the name of the site")
    key = keys.parse_public_line(line, f"the key of {name!r}")
    comment = " ".join(line.split()[2:])
    if comment and comment != name and keys.SITE_NAME.fullmatch(comment):
        raise InputError(f"this line is from site {comment!r}, not {name!r}. Did you mean: admit ... {comment} ...?")
    if name not in settings.public_keys and not new:
        raise InputError(
            f"{settings.path}: there is no site {name!r}; there are {', '.join(settings.names)}. To add one, say --new."
        )
    text, other = settings.path.read_text(), None
    for known, old in settings.public_keys.items():
        if known != name and old and keys.fingerprint(keys.parse_public_line(old, known)) == keys.fingerprint(key):
            text, other = _with_key(settings.path, text, known, ""), known  # two sites were exchanged
    if name in settings.public_keys:
        text = _with_key(settings.path, text, name, keys.public_line(key))
    else:
        text = text.rstrip("\n") + "\n" + SITE_BLOCK.format(name=name, key=keys.public_line(key))
    durable.write(settings.path, text.encode())
    return key, other


def _with_key(path: Path, text: str, name: str, line: str) -> str:
    """The text of a federation.toml with another key for a site."""
    pattern = rf'(\[\[site\]\]\s*\n\s*name\s*=\s*"{re.escape(name)}"[^\n]*\n\s*key\s*=\s*)"[^"\n]*"'
    text, found = re.subn(pattern, lambda match: f'{match[1]}"{line}"', text)
    if not found:
        block = SITE_BLOCK.format(name=name, key=line)
        raise InputError(f"{path}: the block of site {name!r} has another form. Write this into it yourself:\n{block}")
    return text
