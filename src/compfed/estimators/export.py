"""A fitted estimator as plain data: the record that a run folder keeps (`result.json`) and that a report reads.

`report/run_result.py` lists the fields and writes the files. Parts that an estimator does not have are left out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from compfed._utils.plain import JsonObject, plain
from compfed._utils.text import join_names, versions
from compfed.estimators.base import FederatedModel, comparisons_of
from compfed.federation.queries import LEAVES
from compfed.splits import LEAVE_ONE_OUT

__all__ = ["communication_record", "comparisons_of", "evaluation_of", "event_of", "ratios_of", "result_of"]

FORMAT = 1
MOST_POINTS = 200
FRAMING = "the enrolment, the signatures, and the names of what a message holds; no sum"  # what is no number of a query


def result_of(
    model: FederatedModel, evaluation: Any = None, label: str | None = None, table: JsonObject | None = None
) -> JsonObject:
    """The result of a fit as a dict of numbers, words, lists and arrays.

    Parameters
    ----------
    model : fitted estimator
    evaluation : Evaluation or dict, optional
        How well the model predicts; `evaluation_` of the model unless given.
    label : str, optional
        The name of the outcome, for the report; that of the schema unless given.
    table : dict, optional
        What was made of the tables: `compfed.data.summary.summary_of`.

    Returns
    -------
    dict
        The fields are listed in `compfed.report.run_result`.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedLasso(alpha=1.0).fit(table.X, table.y, sites=table.sites)
    >>> result = result_of(model)
    >>> result["kind"], result["estimator"], result["certificate"]["holds"]
    ('fit', 'FederatedLasso', True)
    """
    coef = np.atleast_2d(model.coef_)
    names = getattr(model, "feature_names_in_", getattr(model, "column_labels_", None))
    alpha = getattr(model, "alpha_", None)
    schema = getattr(model, "schema_", None)
    if label is None and schema is not None and schema.label is not None:
        label = join_names([schema.label.column] if isinstance(schema.label.column, str) else schema.label.column)
    found = {
        "format": FORMAT,
        "kind": "fit",
        "created": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "estimator": type(model).__name__,
        "parameters": {name: _parameter(value) for name, value in model.get_params(deep=False).items()},
        "label": label,
        "survival": survival_of(model),
        "features": [f"feature {j}" for j in range(coef.shape[1])] if names is None else [str(name) for name in names],
        "classes": plain(getattr(model, "classes_", None)),
        "coef": coef,
        "ratios": ratios_of(model),
        "comparisons": list(comparisons_of(model)),
        "event": event_of(model),
        "intercept": np.atleast_1d(model.intercept_),
        "feature_scale": getattr(model, "feature_scale_", None),
        "alpha": plain(getattr(model, "alpha", None) if alpha is None else alpha),
        "theta": getattr(model, "theta_", None),
        "path": _path(model),
        "cv": _cross_validation(model),
        "certificate": _certificate(model),
        "communication": _communication(model),
        "algorithm": plain(getattr(model, "algorithm_", None)),
        "sites": [str(name) for name in getattr(model, "site_names_", ())],
        "schema": None if schema is None else _text(schema),
        "summary": None if (summary := vars(model).get("_summary")) is None else summary.to_dict(),
        "evaluation": evaluation_of(getattr(model, "evaluation_", None) if evaluation is None else evaluation),
        "table": table,
        "versions": versions(),
    }
    trace = getattr(model, "trace_", None)
    if trace is not None:  # a model that was read from a file has none
        found["trace"] = {name: values for name, values in trace.columns.items() if values.ndim == 1}
        place = {name: trace.provenance[name] for name in ("place", "exact_sums") if name in trace.provenance}
        apart = ("versions", *place)
        found |= place
        found["provenance"] = {name: plain(value) for name, value in trace.provenance.items() if name not in apart}
    return {name: value for name, value in found.items() if value is not None}


def ratios_of(model: FederatedModel) -> JsonObject | None:
    """exp(coefficient), per unit or per level, with its name; None where it has no meaning."""
    if (name := getattr(model, "ratio_name", None)) is None:
        return None
    with np.errstate(over="ignore"):
        return {"name": name, "values": np.exp(np.atleast_2d(model.coef_))}


def event_of(model: FederatedModel) -> Any:
    """The class whose log-odds the coefficients add up to; None unless there are two."""
    classes = plain(getattr(model, "classes_", None))
    return classes[1] if getattr(model, "ratio_name", None) == "odds ratio" and classes is not None else None


def survival_of(model: FederatedModel) -> JsonObject | None:
    """The columns of survival data by their parts: entry, time, event, stratum; None where a schema does not name them."""
    schema = getattr(model, "schema_", None)
    if getattr(model, "ratio_name", None) != "hazard ratio" or schema is None or schema.label is None:
        return None
    columns = schema.label.column
    if isinstance(columns, str) or len(columns) not in (2, 3):
        return None
    found: JsonObject = dict(zip(("entry", "time", "event")[-len(columns) :], columns, strict=True))
    return found if schema.stratum is None else found | {"stratum": schema.stratum}


def _path(model: Any) -> JsonObject | None:
    if not hasattr(model, "coef_path_"):
        return None
    coefs = np.asarray(model.coef_path_)
    return {"alphas": model.alphas_, "coefs": coefs.reshape(len(coefs), -1, coefs.shape[-1])}


def _cross_validation(model: Any) -> JsonObject | None:
    if not hasattr(model, "cv_loss_"):
        return None
    within = getattr(model, "alpha_one_standard_error_", np.nan)
    return {
        "alphas": model.alphas_,
        "losses": model.cv_loss_,
        "best": float(model.alpha_best_),
        "one_standard_error": float(within) if np.isfinite(within) else None,
        "rule": getattr(model, "rule", "best"),
        "leave_one_out": by_leave_one_out(model),
        "results": plain(getattr(model, "cv_results_", None)),
        "fits": getattr(model, "n_fits_", None),
        "fits_not_converged": getattr(model, "n_fits_not_converged_", None),
    }


def by_leave_one_out(model: Any) -> bool:
    """Whether approximate leave-one-out chose alpha, rather than folds, which may stand in for it."""
    cv = getattr(model, "cv", None)
    return isinstance(cv, str) and cv == LEAVE_ONE_OUT and np.shape(model.cv_loss_)[1] == 1


def _certificate(model: Any) -> JsonObject | None:
    certificate = getattr(model, "certificate_", None)
    if certificate is None:
        return None
    derived = ("relative", "holds", "within_reach", "claim", "words")
    return plain({**asdict(certificate), **{name: getattr(certificate, name) for name in derived}})


def _communication(model: Any) -> JsonObject | None:
    cost = getattr(model, "communication_", None)
    return None if cost is None else communication_record(cost)


def communication_record(cost: Any) -> JsonObject:
    """Messages and bytes per site, and for every query what it makes leave, in words."""
    queries = [
        {
            "query": kind,
            "models": int(models),
            "bytes_down": float(down),
            "bytes_up": float(up),
            "leaves": {**LEAVES, "framing": FRAMING}.get(kind, ""),
        }
        for kind, (models, down, up) in cost.by_query.items()
    ]
    return {
        "rounds": int(cost.rounds), "bytes_up": float(cost.bytes_up), "bytes_down": float(cost.bytes_down), "queries": queries
    }  # fmt: skip


def evaluation_of(evaluation: Any) -> JsonObject | None:
    """An evaluation as plain data: a dict as it is, otherwise its `to_dict()`."""
    if evaluation is None or isinstance(evaluation, Mapping):
        return evaluation if evaluation is None else dict(evaluation)
    to_dict = getattr(evaluation, "to_dict", None)
    if callable(to_dict):
        return _thinned(plain(to_dict()))
    return plain(asdict(evaluation)) if is_dataclass(evaluation) and not isinstance(evaluation, type) else None


def _thinned(evaluation: JsonObject) -> JsonObject:
    """With at most MOST_POINTS points of each ROC curve: as many as a figure shows."""
    found = dict(evaluation)
    if roc := found.get("roc"):
        every = np.array(list(roc.values()), float)  # thresholds, then rates
        moves = np.append(True, (np.diff(every[1:], axis=1) != 0).any(axis=0))
        kept = np.flatnonzero(moves)
        kept = kept[np.unique(np.linspace(0, len(kept) - 1, min(len(kept), MOST_POINTS)).round().astype(int))]
        found["roc"] = {name: row[kept].tolist() for name, row in zip(roc, every, strict=True)}
    if sites := found.get("per_site"):
        found["per_site"] = {name: _thinned(one) for name, one in sites.items()}
    return found


def _text(schema: Any) -> str:
    """A schema as TOML where it knows how, otherwise in words."""
    to_toml = getattr(schema, "to_toml", None)
    return str(to_toml() if callable(to_toml) else schema)


def _parameter(value: Any) -> Any:
    """A parameter as plain data; infinity, which JSON does not have, as a word."""
    found = plain(value)
    if isinstance(found, dict):
        return {name: _parameter(each) for name, each in found.items()}
    if isinstance(found, list):
        return [_parameter(each) for each in found]
    return str(found) if isinstance(found, float) and not np.isfinite(found) else found
