"""One file as a table, and the columns of tables that shall be one: read, agreed on, and turned into numbers.

A CSV file as a pandas DataFrame, if it is a table: one name per column, and as many fields in every line.

pandas alone takes a line with one field more than the header for a line that begins with a row's name, fills up a shorter
one with holes, and calls a second column `y` "y.1". Each of these puts numbers under the wrong name.

Federations from files: one per site, or one table with a column that names the site.

The table of one site, from one file. What is wrong with it is said twice: in full to its owner, and without a value.
"""

from __future__ import annotations

import csv
import lzma
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import check_words, check_written_out, one_of, whole
from compfed.data.sites import Sites, from_arrays, from_table
from compfed.data.validation import as_float, check_names, check_no_category, one_per_row
from compfed.errors import InputError, MissingExtra

Format = Literal["csv", "parquet"]
Names = str | Sequence[str]

ENDINGS: dict[str, tuple[str, ...]] = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet",)}
# What readers of files raise, their decompressors included, when a file is not what its name says.
UNREADABLE = (ValueError, TypeError, OSError, OverflowError, EOFError, MemoryError, zlib.error, lzma.LZMAError)


def read_frame(path: Path, format: Format, read: dict[str, Any]) -> Any:
    """The file as a pandas DataFrame whose columns have words for names."""
    extra, what = ("pandas", "CSV") if format == "csv" else ("parquet", "Parquet")
    try:
        import pandas as pd

        frame = pd.read_parquet(path, **read) if format == "parquet" else read_table(path, read)
    except ImportError:
        raise MissingExtra(
            "pandas" + (" with pyarrow" if extra == "parquet" else ""), extra, f"Reading {what}"
        ) from None
    except InputError:
        raise
    except UNREADABLE as problem:
        raise InputError(f"{path.name} cannot be read as {what}: {first_line(problem)}") from None
    check_names(path.name, frame.columns)
    return frame.set_axis([str(c) for c in frame.columns], axis=1)


def agreed(
    frames: dict[Path, Any], aside: Sequence[str], chosen: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    """The feature columns that every file has, in the order of the first; refuses a file that differs."""
    first, frame = next(iter(frames.items()))
    for name in drop:
        if not any(name in other.columns for other in frames.values()):
            raise InputError(f"drop={name!r}: no file has this column; {first.name} has {_some(frame.columns)}.")
    left_out = {*aside, *drop}
    columns = [c for c in frame.columns if c not in left_out] if chosen is None else list(chosen)
    if not columns or left_out.intersection(columns):
        raise InputError(
            f"features={_some(columns) or 'none'}: {first.name} needs at least one feature column, and none of them "
            f"may be the label, the site or dropped ({_some(sorted(left_out))})."
        )
    nameless = [c for c in columns if c.startswith("Unnamed: ")]
    if nameless and chosen is None:
        raise InputError(
            f"{first.name} has a column without a name, {nameless[0]!r}, as a table has that was written with its row "
            f"numbers. Leave it out with drop={nameless[0]!r}, or read it as row numbers with index_col=0."
        )
    for path, other in frames.items():
        missing = [c for c in [*aside, *columns] if c not in other.columns]
        if missing:
            spaced = [c for c in other.columns if c.strip() == missing[0].strip()]
            hint = (
                f" Or is {spaced[0]!r} meant? Read with skipinitialspace=True, or give the name as it is."
                if spaced
                else ""
            )
            raise InputError(f"{path.name} has no column {missing[0]!r}; it has {_some(other.columns)}.{hint}")
        extra = [c for c in other.columns if c not in left_out and c not in columns]
        if extra and chosen is None:
            raise InputError(
                f"{path.name} has a column {extra[0]!r} that {first.name} has not; all files need the same columns. "
                f"Leave it out with drop={extra[0]!r}, or name the columns to use with features=."
            )
    return columns


def numbers(path: Path, column: Any, feature: bool) -> np.ndarray:
    """One column as floats; refuses words and holes, naming the first."""
    way_out = f", or leave the column out with drop={column.name!r}." if feature else "."
    check_no_category(column, path.name, column.name)
    empty = column.isna().to_numpy()
    values = np.full(len(column), np.nan)
    if is_numeric(column):
        values = column.to_numpy(float, na_value=np.nan)
    else:
        for i in np.flatnonzero(~empty):
            value = column.iloc[i]
            number = as_float(value)
            if number is None:
                raise InputError(
                    f"{path.name}: column {column.name!r} has {value!r} in row {i} (the first is 0), which is not a "
                    f"number. Encode it as numbers{way_out}"
                )
            values[i] = number
    bad = ~np.isfinite(values)
    if bad.any():
        raise InputError(
            f"{path.name}: column {column.name!r} has {bad.sum()} missing or infinite value(s), the first in row "
            f"{bad.argmax()} (the first is 0). Drop these rows, impute them{way_out}"
        )
    return values


def is_numeric(column: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return is_numeric_dtype(column) or is_bool_dtype(column)


def listed(names: Names) -> list[str]:
    listed = in_list(names)
    for name in listed:
        if not isinstance(name, str):
            raise InputError(f"{name!r} is no name of a column; give its name as in the header, or a list of names.")
    return listed


def in_list(given: Any) -> list[Any]:
    return [given] if isinstance(given, (str, Path)) or not np.ndim(given) else list(given)


def format_of(path: Path) -> Format:
    if ending_of(path, ENDINGS["csv"]):
        return "csv"
    if ending_of(path, ENDINGS["parquet"]):
        return "parquet"
    raise InputError(f"{path.name} ends neither in .csv nor in .parquet; say its format: csv, parquet or svmlight.")


def ending_of(path: Path, endings: Sequence[str]) -> str:
    """The ending that the name of the file has, in capitals or not; "" for none of them."""
    return next((path.name[-len(ending) :] for ending in endings if path.name.lower().endswith(ending)), "")


def first_line(problem: BaseException) -> str:
    if isinstance(problem, OverflowError):
        return "a feature index is too large; the largest there can be is 2147483647"
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


def _some(names: Iterable[Any]) -> str:
    return join_names([str(name) for name in names], most=12)


# Options of pandas.read_csv that say how lines are cut into fields, and so what the header says.
CUTTING = (
    "comment", "compression", "delimiter", "doublequote", "encoding", "encoding_errors", "engine", "escapechar",
    "quotechar", "quoting", "sep", "skip_blank_lines", "skipinitialspace", "skiprows",
)  # fmt: skip


def read_table(path: Path, read: dict[str, Any]) -> Any:
    """The DataFrame of a CSV file; `read` are options of pandas.read_csv."""
    import pandas as pd

    # before 3.1 pandas' default may be off by the last bit, and only its C reader can be asked for more
    old = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
    exact = {"float_precision": "round_trip"} if old and "engine" not in read else {}
    given: dict[str, Any] = {"index_col": False} | exact | read  # no column is the rows' names unless somebody says so
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            frame = pd.read_csv(path, **given)
        except pd.errors.ParserError:
            _check_lines(path, read)
            raise
    lost = any(issubclass(w.category, pd.errors.ParserWarning) and "loss of data" in str(w.message) for w in caught)
    hole = frame.shape[1] and frame.iloc[:, -1].isna().any()  # a line that is too short lacks its last field
    if lost or hole or "usecols" in read:
        _check_lines(path, read)
    if lost:
        raise InputError(f"{path.name} has lines with more fields than its header; mend them, or name all columns.")
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    _check_header(path, read)
    ended = [c for c in frame.columns[-1:] if str(c).startswith("Unnamed: ") and frame[c].isna().all()]
    return frame.drop(columns=ended)  # every line, the header too, ends with a delimiter: there is no such column


def _check_header(path: Path, read: dict[str, Any]) -> None:
    """Refuse a name that stands twice in the file: pandas gives the second one another name."""
    import pandas as pd

    row = read.get("header", 0)
    if "names" in read or not (row == "infer" or isinstance(row, int)):
        return
    row = 0 if row == "infer" else int(row)
    cutting = {name: value for name, value in read.items() if name in CUTTING}
    top = pd.read_csv(path, header=None, nrows=row + 1, dtype=str, keep_default_na=False, **cutting)
    check_names(path.name, [name for name in top.iloc[row] if isinstance(name, str) and name.strip()])


def _check_lines(path: Path, read: dict[str, Any]) -> None:
    """Refuse the first line whose number of fields is not that of the first one, where that can be told."""
    header = "names" not in read and read.get("header", 0) is not None
    names_of_rows = read.get("index_col") not in (None, False)
    try:
        lines = _lines(path, read)
        _, first = next(lines, (0, []))
        width = len(first)
        for place, (number, fields) in enumerate(lines):
            if place == 0 and header and names_of_rows and len(fields) == width + 1:
                width += 1  # the column of row names has no name itself
            fits = len(fields) == width or (len(fields) > width and not any(f.strip() for f in fields[width:]))
            if not fits:  # a delimiter at the end of a line adds nothing; all else does
                raise InputError(
                    f"{path.name}: line {number} has {len(fields)} field(s), {'the header' if header else 'the first line'} "
                    f"{len(first)} ({', '.join(first[:8])}{', ...' if len(first) > 8 else ''}): which column each value belongs "
                    f"to cannot be told. Mend the line; a value that holds {_separator(read)!r} itself needs quotes around it."
                )
    except (csv.Error, UnicodeError, OSError):  # pandas reads more than this does, and says itself what is wrong
        return


def _separator(read: dict[str, Any]) -> Any:
    return read.get("sep", read.get("delimiter", ","))


def _lines(path: Path, read: dict[str, Any]) -> Iterator[tuple[int, list[str]]]:
    """The lines of the file, numbered from 1 and cut into fields; none where the options are beyond this."""
    from pandas.io.common import get_handle

    sep, skipped = _separator(read), read.get("skiprows", 0)
    if not (isinstance(sep, str) and len(sep) == 1 and isinstance(skipped, int)) or set(read) & {
        "comment", "on_bad_lines", "skipfooter", "nrows", "dialect", "lineterminator",
    }:  # fmt: skip
        return
    quotes = {
        name: read[name] for name in ("quotechar", "doublequote", "escapechar", "skipinitialspace") if name in read
    }
    compression, encoding = read.get("compression", "infer"), read.get("encoding") or "utf-8"
    with get_handle(path, "r", encoding=encoding, compression=compression) as handles:
        reader = csv.reader(handles.handle, delimiter=sep, **quotes)  # pyright: ignore[reportArgumentType]  # text, opened as such
        for fields in reader:
            if reader.line_num > skipped and any(f.strip() for f in fields):
                yield reader.line_num, fields


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
        f"{what} {join_names([repr(c) for c in which])}"
        for what, which in (
            ("it has no column", absent),
            ("words in column", words),
            ("values missing in column", holes),
        )
        if which
    ]
    return f"{'; '.join(said)}. {WAY_OUT}" if said else "its table cannot be used; `compfed site check` says why there."
