"""Comparison: the result, as plain arrays, as text, as tables and as a figure."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.files import atomic_path, check_writable, write_text
from compfed.errors import MissingExtra
from compfed.report.figures import write
from compfed.report.local_federated_pooled import comparison_figure
from compfed.studies.local_federated_pooled.text import text


@dataclass(frozen=True)
class Comparison:
    """One column per model: those of the sites alone, their average, the federated and the pooled one.

    `str` gives the tables, `figure()` the picture, `save(folder)` both. NaN stands for what there is not: a model that
    cannot be fitted, R^2 of a single row.
    """

    sites: tuple[str, ...]
    models: tuple[str, ...]  # "local: SITE" in the order of the sites, then the three others
    features: tuple[str, ...]  # rows of `coefficients`; "feature [class]" where there are several outputs
    outputs: tuple[str, ...]  # rows of `intercepts`, as they end the names in `features`
    coefficients: np.ndarray  # (features, models), on the original scale
    intercepts: np.ndarray  # (outputs, models)
    scale: np.ndarray  # (features,): standard deviation over all rows that models were fitted to
    used: np.ndarray  # (models,): features with a coefficient that is not zero
    extra: np.ndarray  # (models,): coefficients that are not zero, and zero in the pooled model
    missing: np.ndarray  # (models,): the other way round
    distance: np.ndarray  # (models,): ||s w - s w_pooled|| / ||s w_pooled||, s = scale
    scores: dict[str, np.ndarray]  # measure: (models, sites + 1) on held-out rows, those of all sites together last
    own: dict[str, np.ndarray]  # measure: (sites + 1,), each row predicted by the model of its own site
    rows: np.ndarray  # (sites, 2): fitted to, held out
    status: tuple[str, ...]  # of each model: "" or why it is not what it should be
    pooled_by: str
    estimator: str
    notes: tuple[str, ...]  # warnings of the fits

    def __str__(self) -> str:
        return text(self)

    def to_pandas(self) -> tuple[Any, Any]:
        """(summary, coefficients) as DataFrames: one row per model, and one row per feature with one column per model."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "pandas", "Comparison.to_pandas()") from None
        columns: dict[str, Any] = {
            "status": self.status, "features": self.used, "extra": self.extra, "missing": self.missing,
            "distance": self.distance,
        }  # fmt: skip
        for measure, values in self.scores.items():
            columns |= {f"{measure}: {site}": values[:, i] for i, site in enumerate([*self.sites, "all"])}
        names, values = self._coefficient_rows()
        return (
            pandas.DataFrame(columns, index=pandas.Index(self.models, name="model")),
            pandas.DataFrame(values, index=pandas.Index(names, name="feature"), columns=list(self.models)),
        )

    def figure(self) -> Any:
        """Coefficients per standard deviation, model by model, and held-out scores, site by site (matplotlib)."""
        return comparison_figure(
            sites=self.sites, models=self.models, status=self.status, features=self.features,
            coefficients=self.coefficients * self.scale[:, None], scores=self.scores, own=self.own,
        )  # fmt: skip

    def save(self, folder: str | Path) -> list[Path]:
        """Write table.txt, coefficients.csv, figure.png and figure.svg into a folder, made if it is not there."""
        target = Path(folder)
        check_writable(target, f"save({str(folder)!r})")
        target.mkdir(parents=True, exist_ok=True)
        table, coefficients = target / "table.txt", target / "coefficients.csv"
        write_text(table, f"{self}\n")
        names, values = self._coefficient_rows()
        with atomic_path(coefficients) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(["feature", *self.models])
            out.writerows([name, *row] for name, row in zip(names, values.tolist(), strict=True))
        return [table, coefficients, *write(self.figure(), target / "figure", ("png", "svg"))]

    def _coefficient_rows(self) -> tuple[list[str], np.ndarray]:
        """Coefficients, and the intercepts below them."""
        names = [*self.features, *(f"(intercept){output}" for output in self.outputs)]
        return names, np.vstack([self.coefficients, self.intercepts])
