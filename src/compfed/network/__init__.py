"""A federation across a network, carried by Flower (extra `flower`). Nothing else here needs it.

    import compfed as cf

    with cf.network.connect("clinics/federation.toml") as federation:
        model = cf.FederatedLogisticRegressionCV().fit_federation(federation)

See docs/howto/deploy.md and docs/explanation/what-leaves-a-site.md.
"""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from compfed.errors import MissingExtra

if TYPE_CHECKING:
    from compfed.network.operator import connect
    from compfed.network.server import NoReply, RemoteFederation
    from compfed.network.settings import FederationSettings, RetryPolicy

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: nothing is sent anywhere
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

__all__ = ["FederationSettings", "NoReply", "RemoteFederation", "RetryPolicy", "connect"]

_NAMES = {
    "operator": "connect",
    "server": "NoReply RemoteFederation",
    "settings": "FederationSettings RetryPolicy",
}
_HOME = {name: f"compfed.network.{module}" for module, names in _NAMES.items() for name in names.split()}


def check_installed() -> None:
    """Raise an error that says what to install where Flower is missing."""
    if find_spec("flwr") is None:
        raise MissingExtra("flwr", "flower", "a federation across a network")


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: the command line reads this package without Flower."""
    if name not in _HOME:
        raise AttributeError(f"module 'compfed.network' has no attribute {name!r}")
    check_installed()
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
