"""A federation across a network, carried by Flower: `pip install 'compfed[flower]'`. Nothing else here needs it.

    import compfed as cf

    with cf.network.connect("clinics/federation.toml") as federation:
        model = cf.FederatedLogisticRegressionCV().fit_federation(federation)

See docs/deploy.md and docs/what-leaves-a-site.md.
"""

import os
from importlib.util import find_spec

from compfed.errors import MissingExtra

if find_spec("flwr") is None:
    raise MissingExtra("flwr", "flower", "a federation across a network")

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # before Flower is imported: nothing is sent anywhere
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from compfed.network.model_file import load_model, save_model
from compfed.network.operator import connect
from compfed.network.server.remote import NoReply, RemoteFederation
from compfed.network.server.retry import RetryPolicy
from compfed.network.settings import FederationSettings

__all__ = ["FederationSettings", "NoReply", "RemoteFederation", "RetryPolicy", "connect", "load_model", "save_model"]
