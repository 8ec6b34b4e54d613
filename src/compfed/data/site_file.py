"""The table of one site, from one file. What is wrong with it is said twice: in full to its owner, and without a value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compfed.data.reading import as_float, one_per_row
from compfed.data.tables import agreed, format_of, is_numeric, listed, numbers, read_frame
from compfed.errors import InputError
from compfed.tools.checks import check_words
from compfed.tools.text import some

WAY_OUT = (
    "Encode words as numbers and drop or impute what is missing, in the same way at every site; or leave the column out, "
    "at every site."
)


class UnfitRows(InputError):
    """A table that cannot be used. `told` says why in words that may leave the site: columns are named, no value is."""

    def __init__(self, reason: str, told: str):
        super().__init__(reason)
        self.told = told


def read_site(
    path: Path, label: str | Sequence[str], features: Sequence[str] | None = None, drop: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """(rows, labels, columns) of a CSV or Parquet file. One column of labels may hold words: they are classes then."""
    frame, labels = None, listed(label)
    try:
        if not path.exists():
            raise InputError(f"there is no file {path}; mend `data` in site.toml, or put the table there.")
        frame = read_frame(path, format_of(path), {})
        columns = agreed({path: frame}, labels, features, drop)
        A = np.column_stack([numbers(path, frame[c], True) for c in columns])
        if len(labels) == 1 and not _all_numbers(frame[labels[0]]):
            y = one_per_row(
                f"{path.name}: column {labels[0]!r} needs a label for every row", frame[labels[0]].to_numpy()
            )
            y = y.astype(str)
            check_words(f"{path.name}: column {labels[0]!r} has the classes of rows", np.unique(y))
        else:
            y = np.column_stack([numbers(path, frame[c], False) for c in labels])
            y = y[:, 0] if isinstance(label, str) else y
        return A, y, tuple(columns)
    except InputError as problem:
        raise UnfitRows(str(problem), _told(frame, labels, features, drop)) from None


def _all_numbers(column: Any) -> bool:
    return is_numeric(column) or all(as_float(value) is not None for value in column.unique())


def _told(frame: Any, labels: Sequence[str], features: Sequence[str] | None, drop: Sequence[str]) -> str:
    """What is wrong with a table, column by column, without a value of it."""
    if frame is None:
        return "its table cannot be read; `compfed site check` says why there."
    wanted = (
        [*(c for c in frame.columns if c not in drop and c not in labels), *labels]
        if features is None
        else [*features, *labels]
    )
    absent = [c for c in wanted if c not in frame.columns]
    words = [c for c in wanted if c in frame.columns and c not in labels and not _all_numbers(frame[c])]
    holes = [c for c in wanted if c in frame.columns and frame[c].isna().any()]
    said = [
        f"{what} {some([repr(c) for c in which])}"
        for what, which in (
            ("it has no column", absent),
            ("words in column", words),
            ("values missing in column", holes),
        )
        if which
    ]
    return f"{'; '.join(said)}. {WAY_OUT}" if said else "its table cannot be used; `compfed site check` says why there."
