"""The result of a fit in words: alpha, the coefficients that are not zero, and how sure we are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compfed._utils.text import printable, text_table

if TYPE_CHECKING:
    from compfed.estimators.base import FederatedModel

MOST_COEFFICIENTS = 200  # that are listed


def result_text(model: FederatedModel, label: str | None = None) -> str:
    """The result of a run: alpha, the coefficients that are not zero, and one sentence about the certificate."""
    import numpy as np

    from compfed.estimators.export import comparisons_of, event_of, ratios_of
    from compfed.estimators.summary import UNPENALISED
    from compfed.report.words import event_text, ratio_text

    coef, schema = np.atleast_2d(model.coef_), getattr(model, "schema_", None)
    if label is None and schema is not None and schema.label is not None and isinstance(schema.label.column, str):
        label = schema.label.column
    alpha = getattr(model, "alpha_", getattr(model, "alpha", None))
    lines = [f"alpha = {alpha:.6g}"] if isinstance(alpha, (int, float)) else []
    if isinstance(theta := getattr(model, "theta_", None), float):
        lines.append(f"theta = {theta:.6g}")
    if (event := event_text({"event": event_of(model), "label": label})) is not None:
        lines.append(f"Event: {printable(event, 80)}. The coefficients add up to its log-odds.")
    if (summary := vars(model).get("_summary")) is not None and summary.kind == UNPENALISED:
        return "\n".join([*lines, str(summary), model.certificate_.words])
    used = np.flatnonzero(coef.any(axis=0))
    lines.append("All coefficients are zero.")
    if len(used):
        lines[-1] = f"{len(used)} of {coef.shape[1]} coefficients {'is' if len(used) == 1 else 'are'} not zero:"
        names = getattr(model, "feature_names_in_", [f"column {j}" for j in range(coef.shape[1])])
        classes = [printable(str(c), 20) for c in getattr(model, "classes_", ())]
        heads = classes if len(classes) == len(coef) > 1 else ["coefficient"] * len(coef)
        shown, ratios, compared = used[:MOST_COEFFICIENTS], ratios_of(model), comparisons_of(model)
        columns = {"column": [printable(str(names[j]), 60) for j in shown]}
        if set(compared) != {"per unit"}:
            columns["compared"] = [printable(compared[j], 40) for j in shown]
        cells = [*columns.values(), *([f"{value: .6g}" for value in row[shown]] for row in coef)]
        if ratios is not None:
            heads, cells = [*heads, ratios["name"]], [*cells, [ratio_text(ratios["values"][0, j]) for j in shown]]
        lines.append(text_table([*columns, *heads], list(zip(*cells, strict=True))))
    if len(used) > MOST_COEFFICIENTS:
        lines.append(f"... and {len(used) - MOST_COEFFICIENTS} more")
    intercept = np.ravel(getattr(model, "intercept_", ()))
    if intercept.size and model.family().has_intercept:
        lines.append(f"intercept: {', '.join(f'{value:.6g}' for value in intercept[:20])}")
    refit = [] if summary is None else ["", str(summary)]
    return "\n".join([*lines, model.certificate_.words, *refit])
