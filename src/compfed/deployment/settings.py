"""federation.toml: what is fitted, over which sites, through which SuperLink. Read by the operator's commands."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import compfed
from compfed.errors import InputError
from compfed.federation.flower.nodes import Patience
from compfed.tools.checks import positive, whole

TEMPLATE = """\
# A federation, for its operator. Sites have a site.toml of their own, which stays with them.

sites = [{sites}]          # names, in order: the first is index 0 in its site.toml
estimator = "FederatedLogisticRegressionCV"     # any estimator of compfed

[parameters]                                    # those of the estimator
# n_alphas = 50
# cv = 5

[network]
superlink = "{superlink}"                 # what sites dial, and nothing else
keys = "keys"                                   # of `compfed federation keys`: CA, server certificate, node keys

[patience]
timeout = 120.0                                 # seconds until a message is sent again
attempts = 20                                   # so often, then the run stops; started again it goes on
wait = 600.0                                    # seconds for a site that is not connected, then the run stops too
"""


@dataclass(frozen=True)
class FederationSettings:
    """The settings of a federation; paths are relative to the file they are in."""

    home: Path
    sites: list[str]
    estimator: str
    superlink: str
    keys: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)

    @classmethod
    def read(cls, path: str | Path) -> FederationSettings:
        path = Path(path)
        path = path / "federation.toml" if path.is_dir() else path
        try:
            with path.open("rb") as file:
                given = tomllib.load(file)
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}. Give the folder of `compfed federation new DIR`.") from None
        except tomllib.TOMLDecodeError as problem:
            raise InputError(f"{path} is not TOML: {problem}.") from None
        known = ("sites", "estimator", "parameters", "network", "patience")
        for name in given.keys() - set(known):
            raise InputError(f"{path}: {name!r} is no setting of a federation; there are {', '.join(known)}.")
        network = {"superlink": "127.0.0.1:8000", "keys": "keys"} | given.get("network", {})
        home = path.parent.absolute()
        settings = cls(
            home, given.get("sites", []), given.get("estimator", ""), network["superlink"], home / network["keys"],
            given.get("parameters", {}), _patience(path, given.get("patience", {})),
        )  # fmt: skip
        if not settings.sites or not all(isinstance(name, str) for name in settings.sites):
            raise InputError(f"{path}: sites must be a list of names; got {settings.sites!r}.")
        settings.new_estimator()
        return settings

    @property
    def host(self) -> str:
        return self.superlink.rpartition(":")[0]

    @property
    def port(self) -> str:
        return self.superlink.rpartition(":")[2]

    def new_estimator(self) -> Any:
        """The estimator, not fitted; says what is wrong with its name or its parameters."""
        names = [name for name in compfed.__all__ if name.startswith("Federated")]
        if self.estimator not in names:
            raise InputError(f"estimator = {self.estimator!r}: there are {', '.join(names)}.")
        return getattr(compfed, self.estimator)(**self.parameters)

    def resolved(self) -> dict[str, Any]:
        """Everything a run was started with, for its folder. No key is in it."""
        return {
            "sites": self.sites,
            "estimator": self.estimator,
            "parameters": self.new_estimator().get_params(),
            "superlink": self.superlink,
            "patience": asdict(self.patience),
        }


def _patience(path: Path, given: dict[str, Any]) -> Patience:
    for name in given.keys() - {f.name for f in fields(Patience)}:
        raise InputError(f"{path}: {name!r} is no setting of [patience].")
    for name, value in given.items():
        if name == "attempts":
            whole(value, f"{path}: attempts", 1)
        else:
            positive(value, f"{path}: {name}")
    return Patience(**given)
