"""The files of a finished fit: the same whether it ran in one process or over a network.

FOLDER/model.safetensors   the fitted estimator (`model_file.py`)
FOLDER/schema.toml         how raw rows are encoded, where there is a schema
FOLDER/coefficients.csv    one line per feature
FOLDER/summary.csv         standard errors, tests and intervals, where a summary was made
FOLDER/evaluation.json     how well the model predicts, where it was evaluated
FOLDER/config.json         the settings that the run was started with
FOLDER/trace.npz           objective and costs, one row per evaluation
FOLDER/result.json         all of these as plain data, for `compfed report` (`report.run_result`)
FOLDER/result.npz          its long arrays
FOLDER/report.html         the page of the run

All of them are for their owner only.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.files import make_folder, owner_only, write_private
from compfed._utils.plain import JsonObject
from compfed._utils.text import commit, join_names, printable
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.estimators.evaluation import Evaluation
from compfed.estimators.export import comparisons_of, evaluation_of, ratios_of, result_of
from compfed.estimators.model_file import NAME as MODEL
from compfed.estimators.model_file import save_model
from compfed.report.page import write_run_report
from compfed.report.run_result import ARRAYS, read_result, write_result
from compfed.report.run_result import NAME as RESULT

FILES = (
    "config.json",
    "schema.toml",
    "coefficients.csv",
    "summary.csv",
    "evaluation.json",
    "trace.npz",
    ARRAYS,
    RESULT,
    "report.html",
)


def write_run(
    model: FederatedModel, folder: Path, config: Mapping[str, Any], evaluation: Evaluation | None = None,
    label: str | None = None,
) -> None:  # fmt: skip
    """Write the files of a fit into a folder, the model first."""
    write_fit(model, folder, config, label)
    write_evaluation(model, folder, evaluation, label)


def write_fit(
    model: FederatedModel,
    folder: Path,
    config: Mapping[str, Any],
    label: str | None = None,
    table: JsonObject | None = None,
) -> None:
    """Write everything but the evaluation and the page: a run folder that `load_model`, `predict` and `report` can read."""
    make_folder(folder)
    # of an earlier fit: this one may have none, or be stopped before it has
    for name in ("schema.toml", "summary.csv", "evaluation.json", "trace.npz", "report.html"):
        (folder / name).unlink(missing_ok=True)
    save_model(model, folder)
    write_private(folder / "config.json", json.dumps(config, indent=2, default=str).encode())
    schema = getattr(model, "schema_", None)
    if schema is not None:
        write_private(folder / "schema.toml", schema.to_toml().encode())
    write_private(folder / "coefficients.csv", coefficients_csv(model).encode())
    if (summary := vars(model).get("_summary")) is not None:
        summary.to_csv(folder / "summary.csv")
    with owner_only():
        with contextlib.suppress(AttributeError):  # of a model that was read from a file
            model.trace_.save(folder / "trace.npz")
        write_result(folder, result_of(model, label=label, table=table) | {"run": run_record(config)})


def write_evaluation(
    model: FederatedModel,
    folder: Path,
    evaluation: Evaluation | None,
    label: str | None = None,
    table: JsonObject | None = None,
) -> None:
    """Write what an evaluation adds to a run folder, and the page; None where there is no evaluation."""
    if evaluation is not None:
        write_private(folder / "evaluation.json", json.dumps(evaluation_of(evaluation), default=str).encode())
    with owner_only():
        if evaluation is not None:
            run = {"run": read_result(folder).get("run")}  # of `write_fit`
            write_result(folder, result_of(model, evaluation, label, table) | run)
        write_run_report(folder)


def run_record(config: Mapping[str, Any]) -> JsonObject:
    """How a run can be repeated: the command, the files that it read with their hashes, and the commit of compfed."""
    program = Path(sys.argv[0]).name
    command = shlex.join(["compfed", *sys.argv[1:]]) if program in ("compfed", "compfed.exe", "__main__.py") else None
    named = [Path(name) for name in config.get("files", ())]
    files = [each for path in named for each in (sorted(path.iterdir()) if path.is_dir() else [path]) if each.is_file()]
    found = {"command": command, "files": [_file_record(path) for path in files], "commit": commit()}
    return {name: value for name, value in found.items() if value}


def _file_record(path: Path) -> JsonObject:
    with path.open("rb") as file:
        return {
            "name": str(path),
            "bytes": path.stat().st_size,
            "sha256": hashlib.file_digest(file, "sha256").hexdigest(),
        }


def check_run_folder(folder: Path) -> None:
    """Refuse a folder with other files than those of an earlier fit, which a new fit replaces."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(there - {*FILES, MODEL}):
        named = join_names([repr(printable(name, 40)) for name in others], most=3)
        raise InputError(f"--out {folder} holds other files than those of a fit ({named}). Give a new folder (--out).")


def coefficients_csv(model: FederatedModel) -> str:
    """The coefficients as CSV: one line per feature and one for the intercept; coefficients per output, and exp(coefficient)."""
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    names = getattr(model, "feature_names_in_", [f"column {j}" for j in range(coef.shape[1])])
    classes = [str(c) for c in getattr(model, "classes_", ())]
    one, ratios = len(coef) == 1, ratios_of(model)
    heads = (
        ["coefficient"] if one else classes if len(classes) == len(coef) else [f"output {k}" for k in range(len(coef))]
    )
    columns = coef if ratios is None else np.concatenate([coef, ratios["values"]])
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["feature", "compared", *heads, *([] if ratios is None else [ratios["name"]])])
    for name, compared, row in zip(names, comparisons_of(model), columns.T, strict=True):
        lines.writerow([name, compared, *map(repr, map(float, row))])
    lines.writerow(["(intercept)", "", *map(repr, map(float, intercept)), *[""] * (ratios is not None)])
    return out.getvalue()
