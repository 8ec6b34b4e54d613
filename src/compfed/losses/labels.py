"""Checks of labels: each loss takes those that its formula is written for, and refuses others.

A refusal may leave the site that has the labels. It says what is needed, and neither a label nor how many there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed.errors import InputError


def one_column(labels: np.ndarray, loss: Any) -> np.ndarray:
    """One label per row, as they are."""
    if labels.ndim != 1:
        raise InputError(
            f"{type(loss).__name__} needs one label per row; got {_columns(labels)}. "
            "Use losses.MultiSquared for several numeric outcomes; labels.ravel() makes labels of one column."
        )
    return labels


def two_classes(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels in {0, 1} or {-1, +1}, as {-1, +1}."""
    found = np.unique(one_column(labels, loss))
    if np.isin(found, (-1, 1)).all():
        return labels
    if np.isin(found, (0, 1)).all():
        return 2.0 * np.asarray(labels, float) - 1.0  # unsigned zeros would wrap
    raise InputError(
        f"{type(loss).__name__} needs labels in {{-1, +1}} or {{0, 1}}; there are others. "
        "Recode the two classes, or use losses.Squared for a numeric outcome, losses.Softmax for more classes."
    )


def counts(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels >= 0, as they are."""
    if one_column(labels, loss).min() < 0:
        raise InputError(
            f"{type(loss).__name__} needs labels >= 0 (counts or rates); some are below 0. Correct those rows or leave them "
            "out, or use losses.Squared."
        )
    return labels


def numbered_classes(labels: np.ndarray, loss: Any) -> np.ndarray:
    """Labels in {0, ..., outputs - 1}, as they are."""
    found = np.unique(one_column(labels, loss))
    if not np.isin(found, np.arange(loss.outputs)).all():
        raise InputError(
            f"{type(loss).__name__}(outputs={loss.outputs}) needs labels in 0..{loss.outputs - 1}; there are others. "
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
            f"got {_columns(labels)}."
        )
    return labels


def _columns(labels: np.ndarray) -> str:
    """The shape of labels without the number of rows."""
    return f"labels of shape ({', '.join(['rows', *map(str, labels.shape[1:])])})"
