"""Federations from files: CSV, Parquet and svmlight; also the table of one site, for its own node."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from compfed._utils.arrays import group_rows, set_readonly
from compfed._utils.text import join_names, shapes_shown
from compfed._utils.validation import check_choice, check_dense_size, check_int
from compfed.data.columns import check_roles
from compfed.data.encoding import (
    AUTO,
    BLANKS,
    DROP,
    DROPPED,
    LEFT_OUT,
    WORDS,
    Encoded,
    encode,
    encode_all,
    numeric_schema,
    propose,
    resolve,
    select_columns,
    with_events,
    with_positive_class,
)
from compfed.data.frames import as_schema, text_columns
from compfed.data.raw_table import RawTable, joined
from compfed.data.sites import Sites, from_arrays, from_table
from compfed.data.table_files import ENDINGS, MISSING, UNREADABLE, Format, ending_of, first_line, read_table
from compfed.data.table_problems import Problems, TableError, quoted
from compfed.errors import InputError, LeftOutWarning
from compfed.schema import CategoricalColumn, Label, Schema, check_date_meaning

if TYPE_CHECKING:
    from compfed.data.columns import ColumnLike

Names = str | Sequence[str]
Paths = str | Path | Sequence[str | Path]

TABLE_ENDINGS = (*ENDINGS["csv"], *ENDINGS["parquet"])
SVMLIGHT_ENDINGS = (".svmlight", ".libsvm", ".svm")
SCHEMA_NEEDED = "Name a schema in site.toml, agreed with the other sites, or leave the column out."
BYTES_PER_COLUMN = 100  # its name, mean and spread


# --- federations ---


def from_files(
    paths: Paths,
    label: Names | None = None,
    features: Names | None = None,
    drop: Names = (),
    *,
    site: str | None = None,
    schema: Schema | str | Path | None = None,
    weight: str | None = None,
    offset: str | None = None,
    stratum: str | None = None,
    positive_class: object = None,
    events: bool = False,
    dates: Mapping[str, str] | None = None,
    keep: Names = (),
    unlabelled: Literal["refuse", "drop"] = "refuse",
    format: Format | None = None,
    sep: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    missing: Sequence[str] = MISSING,
) -> Sites:
    """Read a federation from CSV or Parquet files: one site per file, named by the file without its ending.

    All files need the same columns. Their order may differ; that of the first file is kept. Without a schema all values must
    be numbers.

    Parameters
    ----------
    paths : path or list of paths
        Files, or a folder, which stands for all its .csv, .csv.gz and .parquet files in the order of their names, hidden
        ones aside.
    label : str or list of str
        The column of labels; several columns are several outputs. Optional where the schema names it.
    features : str or list of str, optional
        The columns to use; all but ``label``, ``site`` and ``drop`` by default.
    drop : str or list of str, default=()
        Columns to leave out.
    site : str, optional
        A column that names the site of each row. The files are then parts of one table.
    schema : "auto", Schema or path, optional
        How words and missing values become numbers. "auto" proposes a schema from all files: `Sites.schema`. With a Schema
        its columns are used, whatever else is in the files.
    weight, offset, stratum : str, optional
        Columns with the weight, the offset and, for a Cox model, the stratum of a row.
    positive_class : optional
        The class of the label that is the event: the coefficients are those of its log-odds. By default the last one; of two such as
        no and yes, yes. With ``schema="auto"``; a Schema says it by the order of its classes.
    events : bool, default=False
        Whether the last column of `label` says if an event happened (survival data): its two values become 0 and 1. The event is
        `positive_class`; by default 1, true, or yes of no and yes. With ``schema="auto"``; a Schema names both as ``events``.
    dates : dict of str to str, optional
        Columns of dates to use with ``schema="auto"``, which leaves others out: "year", or a date such as "2019-03-01" to count the
        days from.
    keep : str or list of str, default=()
        Columns to use although they look like identifiers, names, codes or free text, which ``schema="auto"`` leaves out.
    unlabelled : {"refuse", "drop"}, default="refuse"
        What becomes of rows without a label. `Sites.notes` counts those that are dropped.
    format : {"csv", "parquet"}, optional
        By the ending of each file by default.
    sep, decimal, encoding : str, optional
        The separator, the decimal mark and the encoding of CSV files; found in each file by default.
    missing : sequence of str
        The cells that mean "no value"; by default empty ones, NA, N/A, NaN, nan, null, None, ?, . and -.

    Returns
    -------
    Sites

    Raises
    ------
    InputError
        With all problems of all files, by line of the file (1 is the header), column and file.

    Warns
    -----
    LeftOutWarning
        Where ``schema="auto"`` leaves columns out. `Sites.notes` says which, and why.
    MissingExtra
        If pandas with pyarrow is not installed, for Parquet.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for town, rows in {"rome": "50,no,1\\n61,yes,0\\n", "oslo": "70,no,1\\n"}.items():
    ...     _ = Path(folder.name, f"{town}.csv").write_text("age,smoker,ill\\n" + rows)
    >>> sites = from_files(folder.name, label="ill", schema="auto")
    >>> sites.names, sites.columns, sites.sizes.tolist()
    (('oslo', 'rome'), ('age', 'smoker=yes'), [1, 2])
    >>> folder.cleanup()
    """
    given = None if schema is None or schema == "auto" else as_schema(schema)
    label = check_label(label, given)
    if not isinstance(site, str | None) or site == "":
        raise InputError(f"site={site!r} is not the name of a column; name the one with the site of a row, or none.")
    if format is not None:
        check_choice(format, "format", tuple(ENDINGS), " svmlight files go to from_svmlight.")
    chosen, dropped = None if features is None else names_of(features, "features"), names_of(drop, "drop")
    of_schema: Any = given or Schema({})
    check_roles(
        label=label,
        site=site,
        weight=weight or of_schema.weight,
        offset=offset or of_schema.offset,
        stratum=stratum or of_schema.stratum,
        drop=dropped,
    )
    files = _expand(paths, ENDINGS[format] if format else TABLE_ENDINGS)
    text = (*text_columns(given), *((site,) if site else ()))
    reading: Any = {"missing": missing, "sep": sep, "decimal": decimal, "encoding": encoding, "format": format}
    tables = _read_all(files, text=text, **reading)
    if empty := [table.name for table in tables if not table.rows]:
        raise InputError(f"{join_names(empty)} has a header and no rows. Leave the file out, or export it again.")
    check_choice(unlabelled, "unlabelled", ("refuse", "drop"))
    tables, dropped_rows = _labelled(tables, label) if unlabelled == "drop" else (tables, ())
    parts = [(k, table, None) for k, table in enumerate(tables)] if site is None else _by_site(tables, site)
    columns: dict[str, Any] = {
        "features": chosen,
        "drop": dropped,
        "weight": weight,
        "offset": offset,
        "stratum": stratum,
    }
    if positive_class is not None and (given is not None or schema is None):
        raise InputError(
            f"positive_class={positive_class!r} is for schema='auto'; a Schema names the event as the last of its classes."
        )
    columns["classifies"] = None if positive_class is None else True
    columns |= {"dates": dates, "keep": names_of(keep, "keep")}
    if (dates or keep) and (given is not None or schema is None):
        raise InputError("dates= and keep= are for schema='auto'; a Schema says what every column is.")
    for name, meaning in (dates or {}).items():
        check_date_meaning(meaning, f"dates={name!r}")
    used = _chosen_schema(schema, given, [part for _, part, _ in parts], label, [site] if site else [], columns)
    if events and schema == "auto":
        used = with_events(used, tables, positive_class)
    elif positive_class is not None:
        used = with_positive_class(used, positive_class)
    way_out = f"{AUTO}, or leave the column out with drop=." if schema is None else None
    encoded = encode_all(tables, used, way_out=way_out, unlabelled=f"{DROP[:-1]}, or say unlabelled='drop'.")
    source = {"name": "from_files", "files": [path.name for path in files], "label": label, "site": site}
    kept = None if schema is None else used
    if site is None:
        made = sites_of_parts(_site_names(files, TABLE_ENDINGS), tables, encoded, kept, source)
    else:
        made = _grouped(tables, encoded, site, kept, source)
    read = [note for table in tables for note in table.notes]
    left_out = [note for note in used.notes if LEFT_OUT in note] if given is None else []
    if left_out:
        warnings.warn(" ".join(f"{note}." for note in left_out), LeftOutWarning, stacklevel=2)
    return replace(made, notes=(*read, *left_out, *dropped_rows))


def _labelled(tables: Sequence[RawTable], label: Names) -> tuple[list[RawTable], tuple[str, ...]]:
    """The rows that have a label, and how many of each table have none, in a sentence."""
    names, found, counts = names_of(label, "label"), [], {}
    for table in tables:
        missing = np.zeros(table.rows, bool)
        for name in names:
            missing |= table.columns[name].missing if name in table.columns else False
        if missing.all():
            raise InputError(f"{table.name}: no row has a label ({join_names(names)}). Leave the file out.")
        counts |= {table.name: int(missing.sum())} if missing.any() else {}
        found.append(table.take(np.flatnonzero(~missing)) if missing.any() else table)
    each = join_names([f"{count} of {name}" for name, count in counts.items()], most=12)
    return found, (f"{sum(counts.values())} {DROPPED}: {each}",) if counts else ()


def read_tables(
    paths: Paths, *, site: str | None = None, drop: Names = (), format: Format | None = None
) -> list[RawTable]:
    """The tables of CSV or Parquet files as they are, one for each site, without encoding anything: for Table 1.

    Parameters
    ----------
    paths, site, drop, format
        As in `from_files`.
    """
    files = _expand(paths, ENDINGS[format] if format else TABLE_ENDINGS)
    tables = _read_all(files, text=(site,) if site else (), format=format)
    problems, dropped = Problems(), names_of(drop, "drop")
    for name in dropped:
        if not any(name in table.columns for table in tables):
            problems.add(
                f"drop={name!r}: no file has this column; {tables[0].name} has {join_names(list(tables[0].columns))}"
            )
    problems.check()
    if site is None:
        found = [replace(t, name=name) for t, name in zip(tables, _site_names(files, TABLE_ENDINGS), strict=True)]
    else:
        by_name: dict[str, list[RawTable]] = {}
        for _, part, name in _by_site(tables, site):
            by_name.setdefault(name, []).append(part)
        found = [joined(by_name[name], name) for name in sorted_sites(list(by_name))]
    left_out = {*dropped, *((site,) if site else ())}
    return [replace(t, columns={name: c for name, c in t.columns.items() if name not in left_out}) for t in found]


def _read_all(files: Sequence[Path], **reading: Any) -> list[RawTable]:
    """All files as tables; the problems of all of them in one error."""
    problems, tables = Problems(), []
    for path in files:
        try:
            tables.append(read_table(path, **reading))
        except InputError as problem:
            problems.extend(problem)
    problems.check()
    return tables


def _chosen_schema(
    asked: object,
    given: Schema | None,
    tables: Sequence[RawTable],
    label: Names,
    others: list[str],
    columns: dict[str, Any],
) -> Schema:
    """The schema given, proposed from the tables, or, without one, that of numbers without missing values."""
    if given is not None:
        taken = [name for name in ("features", "weight", "offset", "stratum") if columns[name] is not None]
        taken += ["drop"] * bool(set(columns["drop"]) & set(given.columns))
        if taken:
            raise InputError(f"{taken[0]}=: the schema names the columns; change it there, or give one of the two.")
        named = Label(label if isinstance(label, str) else tuple(label))
        return resolve(given if given.label is not None else replace(given, label=named), tables)
    if asked == "auto":
        return propose(tables, label, leave_out=others, leaves_out=True, **columns)
    problems, rows = Problems(), {name: columns[name] for name in ("weight", "offset", "stratum")}
    labels = [label] if isinstance(label, str) else list(label)
    reserved = [*labels, *(name for name in rows.values() if name is not None)]
    names = select_columns(tables, reserved, columns["features"], columns["drop"], others, problems)
    problems.check()
    return numeric_schema(names, label if isinstance(label, str) else tuple(label), **rows)


def _by_site(tables: Sequence[RawTable], site: str) -> list[tuple[int, RawTable, str]]:
    """(number of the file, rows, site) for each site in each file."""
    problems, found = Problems(), []
    for k, table in enumerate(tables):
        column = table.columns.get(site)
        if column is None:
            has = join_names(list(table.columns), most=12)
            problems.add(f"{table.name} has no column {site!r}; it has {has}")
        elif column.missing.any():
            problems.add(
                f"{table.name}: column {site!r} names no site on {table.place(np.flatnonzero(column.missing))}"
            )
        else:
            names, rows = group_rows(column.words().astype(str))
            found += [
                (k, table.take(r, f"{table.name}, site {str(n)!r}"), str(n)) for n, r in zip(names, rows, strict=True)
            ]
    problems.check()
    return found


def sites_of_parts(
    names: Sequence[str],
    tables: Sequence[RawTable],
    encoded: Sequence[Encoded],
    schema: Schema | None,
    source: dict[str, Any],
) -> Sites:
    """The sites of encoded tables, one for each."""
    weights: Any = None if encoded[0].weights is None else [part.weights for part in encoded]
    labels: Any = [part.y for part in encoded]
    features = [set_readonly(part.A) for part in encoded]  # so that they are not copied
    made = from_arrays(features, labels, names, source, sample_weight=weights, columns=encoded[0].columns)
    offsets: Any = None if encoded[0].offset is None else tuple(part.offset for part in encoded)
    strata: Any = None if encoded[0].strata is None else tuple(part.strata for part in encoded)
    return replace(made, schema=schema, raw=tuple(tables), offsets=offsets, strata=strata)


def _grouped(
    tables: Sequence[RawTable],
    encoded: Sequence[Encoded],
    site: str,
    schema: Schema | None,
    source: dict[str, Any],
) -> Sites:
    """The sites of one table in several files, by its column of sites."""
    raw = joined(tables, "the table")
    fields = ("A", "y", "weights", "offset", "strata")
    parts: Any = {name: [getattr(part, name) for part in encoded] for name in fields}
    whole = replace(encoded[0], **{name: np.concatenate(v) for name, v in parts.items() if v[0] is not None})
    found, rows = group_rows(np.concatenate([table.columns[site].words() for table in tables]).astype(str))
    of_site = {str(name): r for name, r in zip(found, rows, strict=True)}
    names = sorted_sites(list(of_site))
    takes = [raw.take(of_site[name], name) for name in names]
    return sites_of_parts(names, takes, [whole.take(of_site[name]) for name in names], schema, source)


def sorted_sites(names: Sequence[str]) -> list[str]:
    """Names of sites in order: by number where all are whole numbers in their plain form, by letter otherwise."""
    plain = all(name.isdecimal() and name.isascii() and str(int(name)) == name for name in names)
    return sorted(names, key=int) if plain else sorted(names)


def from_csv(
    path: str | Path, label: Names | None, site: str, features: Names | None = None, drop: Names = (), **options: Any
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
    **options
        Further options of `from_files`, such as ``schema="auto"``.

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
    return from_files([path], label, features, drop, site=site, format="csv", **options)


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
                raise InputError(f"{path.name} cannot be read as svmlight: {first_line(problem)}") from None
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


@dataclass(frozen=True, eq=False, repr=False)
class SiteTable:
    """The table of one site: as it is in its file, the schema, and the rows encoded with it."""

    raw: RawTable
    schema: Schema
    encoded: Encoded
    automatic: bool  # whether the schema was proposed from this table alone
    __repr__ = shapes_shown


def read_site(
    path: Path,
    label: Names | None,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    *,
    schema: Schema | Path | None = None,
    **reading: Any,
) -> SiteTable:
    """The table of one site, from its CSV or Parquet file.

    Without a schema it is proposed from this table alone, and labels that are words stay words: only an agreed schema numbers
    classes alike at every site. `reading` is passed on to `read_table`.
    """
    try:
        if not path.exists():
            raise InputError(f"there is no file {path}; correct `data` in site.toml, or put the table there.")
        agreed = None if schema is None else as_schema(schema)
        label = check_label(label, agreed)
        check_roles(label=label, drop=drop)
        raw = read_table(path, text=text_columns(agreed), **reading)
        if agreed is None:
            used = propose([raw], label, features=features, drop=drop)
            used = replace(used, label=Label(label if isinstance(label, str) else tuple(label)))
        else:
            used = _check_resolved(agreed)
        return SiteTable(raw, used, encode(raw, used, word_labels=agreed is None), agreed is None)
    except TableError:
        raise
    except InputError as problem:
        raise TableError(str(problem), "its table cannot be read; `compfed site check` says why there.") from None


def check_complete(table: SiteTable) -> None:
    """Refuse words and missing values in a table without an agreed schema: other sites would encode theirs differently."""
    if not table.automatic:
        return
    problems, columns = Problems(), table.schema.columns
    for name, column in columns.items():
        raw = table.raw.columns[name]
        if isinstance(column, CategoricalColumn):
            row = int(np.flatnonzero(~raw.missing)[0])
            found = f"has words, such as {quoted([raw.values[row]])} on {table.raw.place([row])}"
            problems.add(f"{table.raw.name}: column {name!r} {found}", WORDS, name, SCHEMA_NEEDED)
        elif raw.missing.any():
            rows = np.flatnonzero(raw.missing)
            found = f"has {len(rows)} missing value(s), on {table.raw.place(rows)}"
            problems.add(f"{table.raw.name}: column {name!r} {found}", BLANKS, name, SCHEMA_NEEDED)
    problems.check()


def _check_resolved(schema: Schema) -> Schema:
    if schema.unresolved:
        names = join_names([repr(name) for name in schema.unresolved])
        raise TableError(
            f"the schema does not say yet what stands for missing values of {names}. Agree on it with the other sites "
            "(Schema.agree), and write the numbers and levels into the file.",
            f"its schema is not agreed in column {names}.",
        )
    return schema


# --- schemas ---


def check_label(label: Names | None, schema: Schema | None) -> str | list[str]:
    """The column of labels, or several: as given, or as the schema says."""
    said = None if schema is None or schema.label is None else schema.label.column
    if label is None and said is not None:
        return said if isinstance(said, str) else list(said)
    names = names_of(() if label is None else label, "label")
    if not any(names):
        raise InputError(f"label={label!r}: name the column of labels, or several.")
    if said is not None and names != ([said] if isinstance(said, str) else list(said)):
        raise InputError(f"label={label!r}, and the schema has the label {said!r}; give one of the two.")
    return names[0] if isinstance(label, str) else names


# --- files and names ---


def _expand(paths: Paths, endings: Sequence[str]) -> list[Path]:
    """The files named, folders replaced by the files in them."""
    files = []
    for given in _as_list(paths):
        if not isinstance(given, (str, Path)):
            raise InputError(f"{given!r} is not a path; give the name of a file or of a folder, or a list of names.")
        if not str(given).strip():
            raise InputError(
                f"{given!r} is not a path; give the name of a file or of a folder ('.' is the current one)."
            )
        path = Path(given)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if ending_of(p, endings) and not p.name.startswith("."))
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
        name = path.name.removesuffix(ending_of(path, endings))
        if name in seen:
            raise InputError(f"{seen[name]} and {path} would both be site {name!r}; rename one of them.")
        seen[name] = path
    return list(seen)


def _as_list(given: Any) -> list[Any]:
    return [given] if isinstance(given, (str, Path)) or not np.ndim(given) else list(given)


def names_of(names: Names, what: str) -> list[str]:
    """Names of columns, each once."""
    found = _as_list(names)
    for k, name in enumerate(found):
        if not isinstance(name, str):
            raise InputError(f"{name!r} is not the name of a column; give names as they are in the header.")
        if name in found[:k]:
            raise InputError(f"{what}={found!r} names the column {name!r} twice; name each once.")
    return found
