"""`compfed federation new DIR`: a federation.toml and the Flower app, ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compfed.deployment.settings import TEMPLATE
from compfed.errors import InputError

APP = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "compfed-federation"
version = "1.0.0"
description = "Questions of compfed, and the answers of its sites"
license = "Apache-2.0"
dependencies = ["compfed[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["federation_app"]

[tool.flwr.app]
publisher = "compfed"

[tool.flwr.app.components]
serverapp = "federation_app.server:app"
clientapp = "federation_app.site:app"

[tool.flwr.app.config]
settings = ""
folder = ""
""",
    "federation_app/__init__.py": "",
    "federation_app/server.py": "from compfed.deployment.server_app import server_app\n\napp = server_app()\n",
    "federation_app/site.py": "from compfed.deployment.courier import client_app\n\napp = client_app()\n",
}
SITE = """\
# A site of the federation. This file, the rows and the state stay on this machine.

name = "{name}"
index = {index}
data = "rows.csv"           # CSV or Parquet; everything in it must be a number
label = "label"             # the column of labels
# drop = ["patient"]        # columns to leave out
state = "state"             # memory of the rounds, and answered.jsonl: every message answered, with sizes and hashes
# accepts = ["module:object"]   # losses and methods that are not compfed's and that you have installed here

[refuses]
# least_rows = 50           # answer nothing with fewer rows
# curvature_share = 0.2     # no second derivatives on more coordinates than this share of the rows
# questions = ["Curvature"] # never answer these

[network]
superlink = "{superlink}"
ca = "ca.crt"               # from the operator
key = "node.key"            # yours; the operator registers node.key.pub
port = {port}                 # of this node's own API, on this machine only
"""


def new(folder: Path, sites: Sequence[str], superlink: str = "127.0.0.1:8000") -> list[Path]:
    """Write the files; never over one that is there."""
    files = {"federation.toml": TEMPLATE.format(sites=", ".join(f'"{name}"' for name in sites), superlink=superlink)}
    files |= {f"app/{name}": text for name, text in APP.items()}
    for i, name in enumerate(sites):
        text = SITE.format(name=name, index=i, superlink=superlink, port=9100 + i)
        files[f"sites/{name}/site.toml"] = text
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise InputError(f"{folder / there[0]} is there already; give another folder, or remove it.")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return [folder / name for name in files]
