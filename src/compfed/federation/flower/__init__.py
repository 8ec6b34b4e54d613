"""A federation across a network, carried by Flower: `pip install 'compfed[flower]'`. Nothing else here needs it.

    # at the server, in a ServerApp (grid comes from Flower)
    with cf.flower.connect(grid, sites=["north", "south"]) as federation:
        model = cf.FederatedLogisticRegressionCV().fit_federation(federation)

    # at a site
    app = cf.flower.client_app()

See docs/deploy.md and docs/what-leaves-a-site.md.
"""

from importlib.util import find_spec

from compfed.errors import MissingExtra

if find_spec("flwr") is None:
    raise MissingExtra("flwr", "flower", "a federation across a network")

from compfed.federation.flower.desk import Desk  # after the check, which says what to install
from compfed.federation.flower.nodes import Patience
from compfed.federation.flower.remote import Remote, Unanswered
from compfed.federation.flower.site_app import client_app
from compfed.federation.flower.site_settings import SiteSettings

connect = Remote

__all__ = ["Desk", "Patience", "Remote", "SiteSettings", "Unanswered", "client_app", "connect"]
