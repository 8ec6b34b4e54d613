"""The ServerApp: fits the estimator of a federation.toml over the sites, and leaves the run folder."""

from __future__ import annotations

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from compfed.deployment import model_files
from compfed.deployment.settings import FederationSettings
from compfed.errors import InputError
from compfed.federation.flower import Remote
from compfed.tools import durable


def server_app() -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = FederationSettings.read(str(context.run_config["settings"]))
        fit(grid, settings, Path(str(context.run_config["folder"])))

    return app


def fit(grid: Grid, settings: FederationSettings, folder: Path) -> None:
    """Fit, or go on with a fit; what happened is in the folder, also if it ended with an error."""
    durable.write(folder / "config.json", json.dumps(settings.resolved(), indent=2, default=str).encode())
    try:
        with Remote(grid, settings.sites, folder=folder, patience=settings.patience) as federation:
            model = settings.new_estimator().fit_federation(federation)
    except InputError as problem:
        durable.write(folder / "ended.json", json.dumps({"error": str(problem)}).encode())
        raise
    model.trace_.save(folder / "trace.npz")
    model_files.save(model, folder)
    cost = model.communication_
    said = {"rounds": cost.rounds, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    durable.write(folder / "ended.json", json.dumps(said | {"certificate": str(model.certificate_)}).encode())
