"""`result.json`: the result of a run as plain data, the same for a fit, a comparison and the reproduction of the paper.

    FOLDER/result.json   numbers, words and lists; null for a number that is not defined
    FOLDER/result.npz    arrays of more than 64 numbers; result.json has {"npz": name} in their place

Every record has `kind` and `created`. All other fields are optional: a report leaves out what is missing.
`place` is "one process" where the rows of all sites were in one process (a rehearsal), and "network" otherwise; `exact_sums` says
whether sums were exact, as over a network, or in double precision.

kind "fit" (`compfed.estimators.export.result_of`)
    place, exact_sums, estimator, parameters, label, features, classes, coef (outputs, features), intercept, feature_scale, alpha, theta,
    ratios {name, values (outputs, features)}: exp(coef), with the word for it; comparisons: "per unit" or "against ..." for each
    feature; event: the class whose log-odds are modelled; survival {entry, time, event, stratum}: columns of a Cox model,
    path {alphas, coefs (alphas, outputs, features)},
    cv {alphas, losses (alphas, splits), best, one_standard_error, rule, leave_one_out},
    certificate {holds, relative, tol, duality_gap, unique, minimiser_exists, claim, words, ...},
    table {rows, sites {name: rows}, columns, features, missing [{column, missing, instead}], references {column: level},
           dropped [note about rows], notes, table_one {header, rows, notes}},
    run {command, files [{name, bytes, sha256}], commit}: how to run it again,
    communication {rounds, bytes_up, bytes_down, queries [{query, models, bytes_up, bytes_down, leaves}]},
    summary {kind, errors, level, terms, compared, classes, coefficients, standard_errors, statistics, p_values, low, high, ratio_name,
             ratios, ratio_low, ratio_high, why_no_errors, log_likelihood, deviance, aic, bic, null_test, notes, ...},
    trace {column: array}, algorithm, sites, schema (text), provenance, versions,
    evaluation {weight, events, how, brier, r2, ..., intervals {measure: [low, high]},
                concordance, pairs {concordant, discordant, same}: of a Cox model,
                auc {value, rounding_low, rounding_high, confidence_low, confidence_high},
                roc {false_positive_low, false_positive_high, true_positive_low, true_positive_high},
                calibration {weight_low, predicted_low, observed_low, ..._high}, per_site {site: evaluation}}
kind "methods" (`compare_methods`)
    problem, unit, results {method: ...}, runs {group: {method: {column: array}}}
kind "sites" (`compare_local_federated`)
    place, exact_sums, models, features, sites, coefficients (features, models), scale, scores, own, notes, communication
kind "paper" (`compfed reproduce`)
    title, lead, claims, figures [{file, caption}], runs, settings
kind "leaderboard" (`compfed leaderboard`)
    suite, mode, by, work {runs, programs, cpu_seconds}, paper, added, standings [{problem, words, terms, level, methods [...]}],
    totals [{method, applies, arrives, first {unit}, behind {unit}}]
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.files import atomic_path, write_text
from compfed._utils.plain import JsonObject, Record
from compfed.errors import InputError

NAME = "result.json"
ARRAYS = "result.npz"
ONE_PROCESS, NETWORK = "one process", "network"  # where the rows of a run were
MOST_INLINE = 64  # numbers of an array that are written into the JSON
KINDS = ("fit", "methods", "sites", "paper", "leaderboard")


def write_result(folder: str | Path, result: Record) -> Path:
    """Write a record into a run folder, which is made if it is missing; return the path of result.json."""
    target, arrays = Path(folder), dict[str, np.ndarray]()
    target.mkdir(parents=True, exist_ok=True)
    content = _without_arrays(dict(result), "", arrays)
    with atomic_path(target / ARRAYS) as unfinished, unfinished.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    write_text(target / NAME, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return target / NAME


def _without_arrays(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """The value as JSON has it; long arrays of numbers go to `arrays` under the names of their fields."""
    if isinstance(value, Mapping):
        return {str(name): _without_arrays(each, f"{place}/{name}", arrays) for name, each in value.items()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.size > MOST_INLINE:
        arrays[f"array-{len(arrays)}"] = value
        return {"npz": f"array-{len(arrays) - 1}"}
    if isinstance(value, (np.ndarray, np.generic)):
        return _without_arrays(value.tolist(), place, arrays)
    if isinstance(value, (list, tuple)):
        return [_without_arrays(each, place, arrays) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such number
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def read_result(run: str | Path) -> JsonObject:
    """Read the record of a run folder, or of a result.json.

    Raises
    ------
    InputError
        Where there is no record, or it is damaged.
    """
    path = Path(run)
    path = path / NAME if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("kind") not in KINDS:
            raise InputError(f"{path} is not the result of a run: its kind must be one of {', '.join(KINDS)}.")
        arrays = {}
        if (path.parent / ARRAYS).exists():
            with np.load(path.parent / ARRAYS, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        return _with_arrays(found, arrays)
    except FileNotFoundError:
        way_out = "Give the folder of a run that has finished; `compfed fit`, `compare` and `federation run` write one."
        raise InputError(f"{path} does not exist. {way_out}") from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, RecursionError, zipfile.BadZipFile) as problem:
        raise InputError(
            f"{path} is damaged ({type(problem).__name__}). Run the command that wrote it again."
        ) from None


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"npz"}:
            return arrays[value["npz"]]
        return {name: _with_arrays(each, arrays) for name, each in value.items()}
    return [_with_arrays(each, arrays) for each in value] if isinstance(value, list) else value
