"""Federations from files: CSV and Parquet through pandas, and svmlight; also the table of one site, for its own node.

A table is read in three steps: `_read_dataframe` (one name per column, as many fields in every line), `_feature_columns`
(the same columns in every file) and `_numbers` (finite numbers only).
"""

from __future__ import annotations

import csv
import lzma
import warnings
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from compfed._utils.text import join_names
from compfed._utils.validation import as_row_labels, check_choice, check_dense_size, check_distinct_names, check_int
from compfed.data.columns import check_column_names, column_as_floats, is_numeric, parse_float
from compfed.data.sites import Sites, from_arrays, from_table
from compfed.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import pandas as pd

    from compfed.data.columns import ColumnLike

Format = Literal["csv", "parquet"]
Names = str | Sequence[str]
Paths = str | Path | Sequence[str | Path]
Options = Mapping[str, Any]  # of pandas.read_csv or read_parquet

ENDINGS: dict[str, tuple[str, ...]] = {"csv": (".csv", ".csv.gz"), "parquet": (".parquet",)}
NEEDED = {"csv": ("CSV", "pandas", "pandas"), "parquet": ("Parquet", "pandas with pyarrow", "parquet")}
TABLE_ENDINGS = (*ENDINGS["csv"], *ENDINGS["parquet"])
SVMLIGHT_ENDINGS = (".svmlight", ".libsvm", ".svm")
BYTES_PER_COLUMN = 100  # its name, mean and spread
# raised by readers, decompressors included, when a file is not what its name says
UNREADABLE = (ValueError, TypeError, OSError, OverflowError, EOFError, MemoryError, zlib.error, lzma.LZMAError)
# options of pandas.read_csv that decide how lines are cut into fields, and so what the header is
FIELD_OPTIONS = (
    "comment", "compression", "delimiter", "doublequote", "encoding", "encoding_errors", "engine", "escapechar",
    "quotechar", "quoting", "sep", "skip_blank_lines", "skipinitialspace", "skiprows",
)  # fmt: skip
UNCHECKED_OPTIONS = {"comment", "on_bad_lines", "skipfooter", "nrows", "dialect", "lineterminator"}


# --- federations ---


def from_files(
    paths: Paths,
    label: Names,
    features: Names | None = None,
    drop: Names = (),
    *,
    site: str | None = None,
    format: Format | None = None,
    **read: object,
) -> Sites:
    """Read a federation from CSV or Parquet files: one site per file, named by the file without its ending.

    All files need the same columns. Their order may differ; that of the first file is kept. All values must be numbers.

    Parameters
    ----------
    paths : path or list of paths
        Files, or a folder, which stands for all its .csv, .csv.gz and .parquet files in the order of their names.
    label : str or list of str
        The column of labels; several columns are several outputs.
    features : str or list of str, optional
        The columns to use; all but ``label``, ``site`` and ``drop`` by default.
    drop : str or list of str, default=()
        Columns to leave out.
    site : str, optional
        A column that names the site of each row. The files are then parts of one table.
    format : {"csv", "parquet"}, optional
        By the ending of each file by default.
    **read
        Passed on to ``pandas.read_csv`` or ``read_parquet``, such as ``sep=";"`` or ``na_values="?"``.

    Returns
    -------
    Sites

    Raises
    ------
    InputError
        If a file cannot be read as a table of numbers. The message names the file, the column and the row.
    MissingExtra
        If pandas (or pyarrow, for Parquet) is not installed.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for town, rows in {"rome": "50,1\\n61,0\\n", "oslo": "70,1\\n"}.items():
    ...     _ = Path(folder.name, f"{town}.csv").write_text("age,ill\\n" + rows)
    >>> sites = from_files(folder.name, label="ill")
    >>> sites.names, sites.columns, sites.sizes.tolist()
    (('oslo', 'rome'), ('age',), [1, 2])
    >>> folder.cleanup()
    """
    labels, dropped = _names(() if label is None else label), _names(drop)
    if not any(labels):
        raise InputError(f"label={label!r}: name the column of labels, or several.")
    if not isinstance(site, str | None) or site == "":
        raise InputError(f"site={site!r} is not the name of a column; name the one with the site of a row, or none.")
    if format is not None:
        check_choice(format, "format", tuple(ENDINGS), " svmlight files go to from_svmlight.")
    files = _expand(paths, ENDINGS[format] if format else TABLE_ENDINGS)
    frames = {path: _read_dataframe(path, format or _format(path), read) for path in files}
    chosen = None if features is None else _names(features)
    columns = _feature_columns(frames, [*labels, *_names(site or ())], chosen, dropped)
    X = [_numbers(path, frame, columns, droppable=True) for path, frame in frames.items()]
    Y = [_labels(path, frame, label) for path, frame in frames.items()]
    source = {"name": "from_files", "files": [path.name for path in files], "label": label, "site": site}
    if site is None:
        return from_arrays(X, Y, _site_names(files, TABLE_ENDINGS), source, columns=columns)
    parts = [_column(frame, site) for frame in frames.values()]
    as_text = not all(map(is_numeric, parts))  # "7" in one file may be 7 in another
    where = np.concatenate([(p.map(str, na_action="ignore") if as_text else p).to_numpy(object) for p in parts])
    return replace(from_table(np.concatenate(X), np.concatenate(Y), where), source=source, columns=tuple(columns))


def from_csv(
    path: str | Path, label: Names, site: str, features: Names | None = None, drop: Names = (), **read: object
) -> Sites:
    """Read a federation from one CSV file with a column that names the site of each row.

    Parameters
    ----------
    path : path
        The file.
    label : str or list of str
        The column of labels; several columns are several outputs.
    site : str
        The column that names the site of each row.
    features : str or list of str, optional
        The columns to use; all but ``label``, ``site`` and ``drop`` by default.
    drop : str or list of str, default=()
        Columns to leave out.
    **read
        Passed on to ``pandas.read_csv``.

    Returns
    -------
    Sites

    See Also
    --------
    from_files : one file per site, or several files with a site column.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "all.csv")
    >>> _ = path.write_text("town,age,ill\\nrome,50,1\\noslo,70,1\\nrome,61,0\\n")
    >>> from_csv(path, label="ill", site="town")
    Sites(2 site(s), 3 rows, 1 columns: 'oslo' (1), 'rome' (2))
    >>> folder.cleanup()
    """
    return from_files([path], label, features, drop, site=site, format="csv", **read)


def from_svmlight(paths: Paths, sites: ColumnLike | None = None, features: int | None = None) -> Sites:
    """Read a federation from files of lines ``label index:value ...`` (svmlight, LIBSVM): one file per site.

    Indices count from 1, or from 0 when any file has an index 0.

    Parameters
    ----------
    paths : path or list of paths
        Files, or a folder, which stands for all its .svmlight, .libsvm and .svm files in the order of their names.
    sites : array-like of shape (n_rows,), optional
        The site of each row. The files are then parts of one table.
    features : int, optional
        The number of columns; the largest index by default.

    Returns
    -------
    Sites

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "north.svm")
    >>> _ = path.write_text("1 1:0.5 3:2\\n-1 2:1\\n")
    >>> from_svmlight(path).features[0].tolist()
    [[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]]
    >>> folder.cleanup()
    """
    from sklearn.datasets import load_svmlight_files

    if features is not None:
        check_int(features, "features", 1, " It is how many columns there are.")
    files = _expand(paths, SVMLIGHT_ENDINGS)
    try:
        loaded = load_svmlight_files([str(path) for path in files], n_features=features)
    except UNREADABLE:
        for path in files:  # the loader of many files does not name the one that it cannot read
            try:
                load_svmlight_files([str(path)], n_features=features)
            except UNREADABLE as problem:
                raise InputError(f"{path.name} cannot be read as svmlight: {_first_line(problem)}") from None
        raise
    _check_svmlight_size(files, loaded[::2], features)
    X, Y = [x.toarray() for x in loaded[::2]], loaded[1::2]
    source = {"name": "from_svmlight", "files": [path.name for path in files]}
    if sites is None:
        return from_arrays(X, Y, _site_names(files, SVMLIGHT_ENDINGS), source)
    return replace(from_table(np.concatenate(X), np.concatenate(Y), sites), source=source)


def _check_svmlight_size(files: Sequence[Path], loaded: Sequence[Any], features: int | None) -> None:
    """Refuse a table too large to write out before it is: one large index makes it as wide as that."""
    rows, width = sum(x.shape[0] for x in loaded), loaded[0].shape[1]
    what, way_out = f"features={features}", "Give fewer features, or fewer rows."
    if features is None:
        widest = max(range(len(files)), key=lambda i: int(loaded[i].indices.max(initial=-1)))
        what = f"{files[widest].name} has the largest feature index, so there are {width} columns"
        sparse = "read the rows with sklearn.datasets.load_svmlight_files for an estimator's fit(X, y, sites=...)"
        way_out = f"If that index is a mistake, correct the file; if not, {sparse}."
    check_dense_size((rows, width), what, way_out, BYTES_PER_COLUMN)


# --- the table of one site ---


class TableError(InputError):
    """A site's table cannot be used. The message is for the site's owner and may quote a value.

    `public_reason` may leave the site: it names columns, and no value.
    """

    def __init__(self, reason: str, public_reason: str):
        super().__init__(reason)
        self.public_reason = public_reason


def read_site(
    path: Path, label: Names, features: Sequence[str] | None = None, drop: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """(rows, labels, columns) of a CSV or Parquet file. A single column of labels may hold words, which are classes."""
    frame, labels = None, _names(label)
    try:
        if not path.exists():
            raise InputError(f"there is no file {path}; correct `data` in site.toml, or put the table there.")
        frame = _read_dataframe(path, _format(path), {})
        columns = _feature_columns({path: frame}, labels, features, drop)
        A = _numbers(path, frame, columns, droppable=True)
        if len(labels) > 1 or _all_numbers(_column(frame, labels[0])):
            return A, _labels(path, frame, label), tuple(columns)
        what = f"{path.name}: column {labels[0]!r}"
        y = as_row_labels(f"{what} needs a label for every row", _column(frame, labels[0]).to_numpy()).astype(str)
        check_distinct_names(f"{what} has the classes of rows", np.unique(y))
        return A, y, tuple(columns)
    except InputError as problem:
        raise TableError(str(problem), _public_reason(frame, labels, features, drop)) from None


def _all_numbers(column: pd.Series) -> bool:
    return is_numeric(column) or all(parse_float(value) is not None for value in column.unique())


def _public_reason(
    frame: pd.DataFrame | None, labels: Sequence[str], features: Sequence[str] | None, drop: Sequence[str]
) -> str:
    """The reason why a table cannot be used, column by column, without a value of it."""
    if frame is None:
        return "its table cannot be read; `compfed site check` says why there."
    others = [c for c in frame.columns if c not in (*drop, *labels)] if features is None else features
    wanted = [*others, *labels]
    present = [c for c in wanted if c in frame.columns]
    reasons = {
        "it has no column": [c for c in wanted if c not in present],
        "words in column": [c for c in present if c not in labels and not _all_numbers(_column(frame, c))],
        "values missing in column": [c for c in present if _column(frame, c).isna().any()],
    }
    found = [f"{what} {join_names([repr(c) for c in names])}" for what, names in reasons.items() if names]
    if not found:
        return "its table cannot be used; `compfed site check` says why there."
    way_out = "Encode words as numbers, drop or impute what is missing, or leave the column out: alike at every site."
    return f"{'; '.join(found)}. {way_out}"


# --- files and names ---


def _expand(paths: Paths, endings: Sequence[str]) -> list[Path]:
    """The files named, folders replaced by the files in them."""
    files = []
    for given in _as_list(paths):
        if not isinstance(given, (str, Path)):
            raise InputError(f"{given!r} is not a path; give the name of a file or of a folder, or a list of names.")
        path = Path(given)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if _ending(p, endings))
            if not inside:
                kinds = ", ".join(endings[:-1]) + (" or " if endings[1:] else "") + endings[-1]
                raise InputError(f"the folder {path} has no {kinds} file; name the files one by one.")
            files += inside
        elif path.exists():
            files.append(path)
        else:
            raise InputError(f"there is no file {path}; correct the name or write the file first.")
    if not files:
        raise InputError("no file was given; a federation needs at least one.")
    return files


def _site_names(files: Sequence[Path], endings: Sequence[str]) -> list[str]:
    seen: dict[str, Path] = {}
    for path in files:
        name = path.name.removesuffix(_ending(path, endings))
        if name in seen:
            raise InputError(f"{seen[name]} and {path} would both be site {name!r}; rename one of them.")
        seen[name] = path
    return list(seen)


def _format(path: Path) -> Format:
    for format in get_args(Format):
        if _ending(path, ENDINGS[format]):
            return format
    raise InputError(f"{path.name} ends neither in .csv nor in .parquet; say its format: csv, parquet or svmlight.")


def _ending(path: Path, endings: Sequence[str]) -> str:
    """The one of the endings that a file name has, in capitals or not; "" for none."""
    return next((path.name[-len(ending) :] for ending in endings if path.name.lower().endswith(ending)), "")


def _as_list(given: Any) -> list[Any]:
    return [given] if isinstance(given, (str, Path)) or not np.ndim(given) else list(given)


def _names(names: Names) -> list[str]:
    found = _as_list(names)
    for name in found:
        if not isinstance(name, str):
            raise InputError(f"{name!r} is not the name of a column; give names as they are in the header.")
    return found


def _first_line(problem: BaseException) -> str:
    if isinstance(problem, OverflowError):
        return "a feature index is too large; the largest there can be is 2147483647"
    return next(iter(str(problem).strip().splitlines()), type(problem).__name__)


def _shown(names: Iterable[Hashable]) -> str:
    return join_names([str(name) for name in names], most=12)


# --- columns ---


def _feature_columns(
    frames: Mapping[Path, pd.DataFrame], reserved: Sequence[str], chosen: Sequence[str] | None, drop: Sequence[str]
) -> list[str]:
    """The feature columns, which every file must have, in the order of the first file; `reserved` are labels and site."""
    first, frame = next(iter(frames.items()))
    for name in drop:
        if not any(name in other.columns for other in frames.values()):
            raise InputError(f"drop={name!r}: no file has this column; {first.name} has {_shown(frame.columns)}.")
    left_out = {*reserved, *drop}
    columns = [c for c in frame.columns if c not in left_out] if chosen is None else list(chosen)
    if not columns or left_out.intersection(columns):
        need = (
            f"at least one feature column, and none may be the label, the site or dropped ({_shown(sorted(left_out))})"
        )
        raise InputError(f"features={_shown(columns) or 'none'}: {first.name} needs {need}.")
    nameless = [c for c in columns if c.startswith("Unnamed: ")]
    if nameless and chosen is None:
        way_out = f"Leave it out with drop={nameless[0]!r}, or read it as row numbers with index_col=0."
        raise InputError(f"{first.name} has a column without a name, {nameless[0]!r}: row numbers? {way_out}")
    for path, other in frames.items():
        missing = [c for c in [*reserved, *columns] if c not in other.columns]
        if missing:
            spaced = next((c for c in other.columns if c.strip() == missing[0].strip()), None)
            hint = f" Or is {spaced!r} meant? Read with skipinitialspace=True, or give that name." if spaced else ""
            raise InputError(f"{path.name} has no column {missing[0]!r}; it has {_shown(other.columns)}.{hint}")
        extra = [c for c in other.columns if c not in left_out and c not in columns]
        if extra and chosen is None:
            way_out = f"Leave it out with drop={extra[0]!r}, or name the columns to use with features=."
            raise InputError(f"{path.name} has a column {extra[0]!r} that {first.name} has not. {way_out}")
    return columns


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    return frame[name]  # pyright: ignore[reportReturnType]  # not a DataFrame: names are unique


def _labels(path: Path, frame: pd.DataFrame, label: Names) -> np.ndarray:
    """Labels of shape (rows,), or (rows, outputs) where the columns are given as a list."""
    y = _numbers(path, frame, _names(label), droppable=False)
    return y[:, 0] if isinstance(label, str) else y


def _numbers(path: Path, frame: pd.DataFrame, columns: Sequence[str], droppable: bool) -> np.ndarray:
    """Columns as an array of finite floats; an error names the column, the row and, if `droppable`, drop=."""
    found = np.empty((len(frame), len(columns)))
    for j, name in enumerate(columns):
        drop = f", or leave the column out with drop={name!r}." if droppable else "."
        way_out, column = f"Encode it as numbers{drop}", _column(frame, name)
        found[:, j] = column_as_floats(column, path.name, way_out, " (the first is 0)")
        if (bad := ~np.isfinite(found[:, j])).any():
            rows = f"{bad.sum()} missing or infinite value(s), the first in row {bad.argmax()} (the first is 0)"
            raise InputError(f"{path.name}: column {name!r} has {rows}. Drop these rows, impute them{drop}")
    return found


# --- one file as a DataFrame ---


def _read_dataframe(path: Path, format: Format, options: Options) -> pd.DataFrame:
    """The file as a DataFrame whose column names are words, each once."""
    what, package, extra = NEEDED[format]
    try:
        import pandas as pd

        frame = pd.read_parquet(path, **options) if format == "parquet" else _read_csv(path, options)
    except ImportError:
        raise MissingExtra(package, extra, f"Reading {what}") from None
    except InputError:
        raise
    except UNREADABLE as problem:
        raise InputError(f"{path.name} cannot be read as {what}: {_first_line(problem)}") from None
    check_column_names(path.name, frame.columns)
    return frame.set_axis([str(c) for c in frame.columns], axis=1)


def _read_csv(path: Path, options: Options) -> pd.DataFrame:
    """A CSV file as a DataFrame, if it is a table.

    pandas alone takes the first field of lines with one field more than the header for row names, fills shorter lines up
    with missing values, and renames a second column "y" to "y.1". Each of these puts numbers under the wrong name.
    """
    import pandas as pd

    # before 3.1 pandas' default may be off by the last bit, and only its C reader has another
    old = tuple(int(part) for part in pd.__version__.split(".")[:2]) < (3, 1)
    exact = {"float_precision": "round_trip"} if old and "engine" not in options else {}
    given: dict[str, Any] = {"index_col": False, **exact, **options}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            frame = pd.read_csv(path, **given)
        except pd.errors.ParserError:
            _check_fields_per_line(path, options)
            raise
    lost = any(issubclass(w.category, pd.errors.ParserWarning) and "loss of data" in str(w.message) for w in caught)
    short_line = frame.shape[1] and frame.iloc[:, -1].isna().any()  # its last field is missing
    if lost or short_line or "usecols" in options:
        _check_fields_per_line(path, options)
    if lost:
        raise InputError(f"{path.name} has lines with more fields than its header; correct them, or name all columns.")
    for w in caught:
        warnings.warn_explicit(w.message, w.category, w.filename, w.lineno)
    _check_header(path, options)
    # a delimiter at the end of every line, the header included, makes no column
    empty = [c for c in frame.columns[-1:] if str(c).startswith("Unnamed: ") and frame[c].isna().all()]
    return frame.drop(columns=empty)


def _check_header(path: Path, options: Options) -> None:
    """Refuse a repeated name in the header, which pandas would rename."""
    import pandas as pd

    row = options.get("header", 0)
    if "names" in options or not (row == "infer" or isinstance(row, int)):
        return
    row = 0 if row == "infer" else int(row)
    fields: dict[str, Any] = {name: value for name, value in options.items() if name in FIELD_OPTIONS}
    top = pd.read_csv(path, header=None, nrows=row + 1, dtype=str, keep_default_na=False, **fields)
    check_column_names(path.name, [name for name in top.iloc[row] if isinstance(name, str) and name.strip()])


def _check_fields_per_line(path: Path, options: Options) -> None:
    """Refuse the first line that has another number of fields than the first one, as far as the csv module can tell."""
    header = "names" not in options and options.get("header", 0) is not None
    row_names = options.get("index_col") not in (None, False)
    try:
        lines = _lines(path, options)
        _, first = next(lines, (0, []))
        width = len(first)
        for place, (number, fields) in enumerate(lines):
            if place == 0 and header and row_names and len(fields) == width + 1:
                width += 1  # the column of row names has no name itself
            extra = fields[width:]
            if len(fields) < width or any(f.strip() for f in extra):  # a delimiter at the end of a line is harmless
                top = f"{'the header' if header else 'the first line'} {len(first)} ({join_names(first, most=8)})"
                raise InputError(
                    f"{path.name}: line {number} has {len(fields)} field(s), {top}: which column each value belongs to is not "
                    f"clear. Mend the line; a value that holds {_separator(options)!r} itself needs quotes around it."
                )
    except (csv.Error, UnicodeError, OSError):  # pandas reads more than this does, and reports its own errors
        return


def _separator(options: Options) -> Any:
    return options.get("sep", options.get("delimiter", ","))


def _lines(path: Path, options: Options) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file that are not blank, numbered from 1 and cut into fields; none for options beyond the csv module."""
    from pandas.io.common import get_handle

    sep, skipped = _separator(options), options.get("skiprows", 0)
    if not (isinstance(sep, str) and len(sep) == 1 and isinstance(skipped, int)) or UNCHECKED_OPTIONS & set(options):
        return
    quotes = {k: options[k] for k in ("quotechar", "doublequote", "escapechar", "skipinitialspace") if k in options}
    compression, encoding = options.get("compression", "infer"), options.get("encoding") or "utf-8"
    with get_handle(path, "r", encoding=encoding, compression=compression) as handles:
        reader = csv.reader(handles.handle, delimiter=sep, **quotes)  # pyright: ignore[reportArgumentType]  # text, opened as such
        for fields in reader:
            if reader.line_num > skipped and any(f.strip() for f in fields):
                yield reader.line_num, fields
