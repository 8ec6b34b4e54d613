"""Checks of labels: each loss takes those that its formula is written for, and refuses others by name."""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed.errors import InputError


def one_column(labels: np.ndarray, loss: Any) -> np.ndarray:
    """One label per row, as they are."""
    if labels.ndim != 1:
        raise InputError(
            f"{type(loss).__name__} needs one label per row; got labels of shape {labels.shape}. "
            "Use losses.MultiSquared for several numeric outcomes; labels.ravel() makes labels of one column."
        )
    return labels


def two_classes(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels in {0, 1} or {-1, +1}, as {-1, +1}."""
    found = np.unique(one_column(labels, loss))
    if np.isin(found, (-1, 1)).all():
        return labels
    if np.isin(found, (0, 1)).all():
        return 2 * labels - 1
    raise InputError(
        f"{type(loss).__name__} needs labels in {{-1, +1}} or {{0, 1}}; found {_shown(found, 6)}. "
        "Recode the two classes, or use losses.Squared for a numeric outcome, losses.Softmax for more classes."
    )


def counts(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels >= 0, as they are."""
    if one_column(labels, loss).min() < 0:
        raise InputError(
            f"{type(loss).__name__} needs labels >= 0 (counts or rates); the smallest is {labels.min():g}."
        )
    return labels


def numbered_classes(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels in {0, ..., outputs - 1}, as they are."""
    found = np.unique(one_column(labels, loss))
    if not np.isin(found, np.arange(loss.outputs)).all():
        raise InputError(
            f"{type(loss).__name__}(outputs={loss.outputs}) needs labels in 0..{loss.outputs - 1}; "
            f"found {_shown(found, 12)}. "
            "Number the classes from 0 (sklearn.preprocessing.LabelEncoder), or give more outputs."
        )
    return labels


def several_columns(labels: np.ndarray, loss: Any) -> np.ndarray:
    """`outputs` labels per row, as they are; a column of numbers is one label per row."""
    if labels.ndim == 1 and loss.outputs == 1:
        return labels[:, None]
    if labels.ndim != 2 or labels.shape[1] != loss.outputs:
        raise InputError(
            f"{type(loss).__name__}(outputs={loss.outputs}) needs labels of shape (rows, {loss.outputs}); "
            f"got {labels.shape}."
        )
    return labels


def _shown(found: np.ndarray, most: int) -> str:
    """The labels found, where these are a few whole numbers. Others may be somebody's own: they are counted."""
    if (found != np.rint(found)).any() or found.size > most:
        return f"{found.size} different numbers" + (
            "" if (found == np.rint(found)).all() else ", not all of them whole"
        )
    return ", ".join(f"{v:g}" for v in found)
