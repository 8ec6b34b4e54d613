"""The result of a fit in words: alpha, the coefficients that are not zero, and how sure we are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compfed._utils.text import printable, text_table

if TYPE_CHECKING:
    from compfed.estimators.base import FederatedModel

MOST_COEFFICIENTS = 200  # that are listed


def result_text(model: FederatedModel) -> str:
    """The result of a run: alpha, the coefficients that are not zero, and one sentence about the certificate."""
    import numpy as np

    coef = np.atleast_2d(model.coef_)
    alpha = getattr(model, "alpha_", getattr(model, "alpha", None))
    lines = [f"alpha = {alpha:.6g}"] if isinstance(alpha, (int, float)) else []
    used = np.flatnonzero(coef.any(axis=0))
    lines.append("All coefficients are zero.")
    if len(used):
        lines[-1] = f"{len(used)} of {coef.shape[1]} coefficients {'is' if len(used) == 1 else 'are'} not zero:"
        names = getattr(model, "feature_names_in_", [f"column {j}" for j in range(coef.shape[1])])
        classes = [printable(str(c), 20) for c in getattr(model, "classes_", ())]
        heads = classes if len(classes) == len(coef) > 1 else ["coefficient"] * len(coef)
        shown = used[:MOST_COEFFICIENTS]
        rows = [[printable(str(names[j]), 60), *(f"{value: .6g}" for value in coef[:, j])] for j in shown]
        lines.append(text_table(["column", *heads], rows))
    if len(used) > MOST_COEFFICIENTS:
        lines.append(f"... and {len(used) - MOST_COEFFICIENTS} more")
    intercept = np.ravel(getattr(model, "intercept_", ()))
    if intercept.size:
        lines.append(f"intercept: {', '.join(f'{value:.6g}' for value in intercept[:20])}")
    return "\n".join([*lines, model.certificate_.words])
