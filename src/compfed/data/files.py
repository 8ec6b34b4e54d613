"""Federations from files: one per site, or one table with a column that names the site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compfed.data.sites import Sites, from_arrays, from_table
from compfed.data.tables import (
    ENDINGS,
    UNREADABLE,
    Format,
    Names,
    agreed,
    ending_of,
    first_line,
    format_of,
    in_list,
    is_numeric,
    listed,
    numbers,
    read_frame,
)
from compfed.errors import InputError
from compfed.tools.checks import one_of, whole
from compfed.tools.memory import check_written_out

Paths = str | Path | Sequence[str | Path]

ALL_ENDINGS = (*ENDINGS["csv"], *ENDINGS["parquet"])
SVMLIGHT_ENDINGS = (".svmlight", ".libsvm", ".svm")
NAME = 100  # bytes of a column's name, mean and spread


def from_files(
    paths: Paths,
    label: Names,
    features: Names | None = None,
    drop: Names = (),
    *,
    site: str | None = None,
    format: Format | None = None,
    **read: Any,
) -> Sites:
    """A federation from CSV or Parquet files: one site per file, named by the file without its ending.

    All files need the same columns; their order may differ, the first file's is kept. Everything must be a number.

    - `paths`: files, or a folder, which stands for all its .csv, .csv.gz and .parquet files in the order of their names.
    - `label`: the column of labels, or several for several outputs.
    - `features`: the columns to use; without it, all but `label`, `site` and `drop`.
    - `site`: a column that names the site of each row; the files are then parts of one table.
    - `format`: "csv" or "parquet"; without it, by the ending of each file.
    - `read`: passed on to pandas.read_csv or read_parquet, such as sep=";" or na_values="?".

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for town, rows in {"rome": "50,1\\n61,0\\n", "oslo": "70,1\\n"}.items():
    ...     _ = Path(folder.name, f"{town}.csv").write_text("age,ill\\n" + rows)
    >>> sites = from_files(folder.name, label="ill")
    >>> sites.names, sites.columns, sites.sizes.tolist()
    (('oslo', 'rome'), ('age',), [1, 2])
    >>> folder.cleanup()
    """
    labels, aside = listed(() if label is None else label), listed(drop)
    if not any(labels):
        raise InputError(f"label={label!r}: name the column of labels, or several.")
    if site is not None and not isinstance(site, str):
        raise InputError(f"site={site!r} is no name of a column; name the one that says at which site a row lives.")
    if site == "":
        raise InputError("site='' names no column; name the one that says at which site a row lives, or leave it out.")
    if format is not None:
        one_of(format, "format", tuple(ENDINGS), " svmlight files go to from_svmlight.")
    files = _expanded(paths, ENDINGS[format] if format else ALL_ENDINGS)
    frames = {path: read_frame(path, format or format_of(path), read) for path in files}
    chosen = None if features is None else listed(features)
    columns = agreed(frames, [*labels, *listed(site or ())], chosen, aside)
    X = [np.column_stack([numbers(path, frame[c], True) for c in columns]) for path, frame in frames.items()]
    Y = [np.column_stack([numbers(path, frame[c], False) for c in labels]) for path, frame in frames.items()]
    Y = [y[:, 0] for y in Y] if isinstance(label, str) else Y
    source = {"name": "from_files", "files": [path.name for path in files], "label": label, "site": site}
    if site is None:
        return from_arrays(X, Y, _site_names(files, ALL_ENDINGS), source, columns=columns)
    parts = [frame[site] for frame in frames.values()]
    if not all(is_numeric(part) for part in parts):
        parts = [part.map(str, na_action="ignore") for part in parts]  # "7" in one file may be 7 in another
    where = np.concatenate([part.to_numpy(object) for part in parts])
    return replace(from_table(np.concatenate(X), np.concatenate(Y), where), source=source, columns=tuple(columns))


def from_csv(
    path: str | Path, label: Names, site: str, features: Names | None = None, drop: Names = (), **read: Any
) -> Sites:
    """A federation from one CSV file with a column `site` that says at which site each row lives.

    The rest is as in `from_files`.
    """
    return from_files([path], label, features, drop, site=site, format="csv", **read)


def from_svmlight(paths: Paths, sites: Any = None, features: int | None = None) -> Sites:
    """A federation from files of lines `label index:value ...` (svmlight, LIBSVM): one file per site.

    Indices count from 1, or from 0 when any file has an index 0.

    - `sites`: the site of each row; the files are then parts of one table.
    - `features`: how many columns there are, where the last ones may be empty in all files; without it, the largest
      index says.
    """
    from sklearn.datasets import load_svmlight_files

    if features is not None:
        whole(features, "features", 1, " It is how many columns there are.")
    files = _expanded(paths, SVMLIGHT_ENDINGS)
    try:
        loaded = load_svmlight_files([str(path) for path in files], n_features=features)
    except UNREADABLE as problem:
        _blame_svmlight(files, features)
        raise InputError(f"{', '.join(path.name for path in files)}: {first_line(problem)}") from None
    _check_size(files, loaded[::2], features)
    X, Y = [x.toarray() for x in loaded[::2]], loaded[1::2]
    source = {"name": "from_svmlight", "files": [path.name for path in files]}
    if sites is None:
        return from_arrays(X, Y, _site_names(files, SVMLIGHT_ENDINGS), source)
    return replace(from_table(np.concatenate(X), np.concatenate(Y), sites), source=source)


def _check_size(files: Sequence[Path], loaded: Sequence[Any], features: int | None) -> None:
    """Refuse a table too large to write out, before it is: a single large index makes it as wide as that."""
    rows, width = sum(x.shape[0] for x in loaded), loaded[0].shape[1]
    if features is not None:
        check_written_out((rows, width), f"features={features}", "Give fewer features, or fewer rows.", NAME)
    widest = max(range(len(files)), key=lambda i: int(loaded[i].indices.max(initial=-1)))
    check_written_out(
        (rows, width), f"{files[widest].name} has the largest feature index, so there are {width} columns",
        "If that index is a mistake, mend the file; if not, sklearn.datasets.load_svmlight_files reads the rows without "
        "their zeros, and an estimator's fit(X, y, sites=...) takes them as they are.", NAME,
    )  # fmt: skip


def _blame_svmlight(files: Sequence[Path], features: int | None) -> None:
    """Refuse the first file that cannot be read alone, which the loader of many does not name."""
    from sklearn.datasets import load_svmlight_file

    for path in files:
        try:
            load_svmlight_file(str(path), n_features=features)
        except UNREADABLE as problem:
            raise InputError(f"{path.name} cannot be read as svmlight: {first_line(problem)}") from None


def _expanded(paths: Any, endings: Sequence[str]) -> list[Path]:
    files = []
    given = in_list(paths)
    for path in given:
        if not isinstance(path, (str, Path)):
            raise InputError(f"{path!r} is no path; give the name of a file or of a folder, or a list of names.")
    for path in map(Path, given):
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if ending_of(p, endings))
            if not inside:
                kinds = ", ".join(endings[:-1]) + (" or " if endings[1:] else "") + endings[-1]
                raise InputError(f"the folder {path} has no {kinds} file; name the files one by one.")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"there is no file {path}; mend the name or write the file first.")
    if not files:
        raise InputError("no file was given; a federation needs at least one.")
    return files


def _site_names(files: Sequence[Path], endings: Sequence[str]) -> list[str]:
    names = [path.name.removesuffix(ending_of(path, endings)) for path in files]
    seen: dict[str, Path] = {}
    for path, name in zip(files, names, strict=True):
        if name in seen:
            raise InputError(f"{seen[name]} and {path} would both be site {name!r}; rename one of them.")
        seen[name] = path
    return names
