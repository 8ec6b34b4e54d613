"""Dirty CSV files, each read with pyarrow's tokenizer and without: the same values, lines and messages."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from dirty_csv import dirty_file
from oracles import CASES, SEED

from compfed.data import compiled_csv, from_files, table_files
from compfed.data.table_files import read_table
from compfed.errors import InputError

pytest.importorskip("pyarrow", reason="without pyarrow there is one way to read a file")


def said(read: Any) -> Any:
    """What reading gives, in a form that can be compared: the message of a refusal, or types and values."""
    try:
        found = read()
    except InputError as problem:
        return str(problem)
    tables = [found] if hasattr(found, "lines") else list(found.raw)
    told: list[Any] = (
        [] if hasattr(found, "lines") else [found.names, found.columns, *map(as_text, (*found.features, *found.labels))]
    )
    for table in tables:
        told += [table.name, table.notes, table.lines.tolist(), table.lines.dtype.kind]
        told += [(name, column.is_numeric, as_text(column.values)) for name, column in table.columns.items()]
    return told


def as_text(values: np.ndarray) -> list[str]:
    """Values with all their digits; 0 and -0 are the same."""
    return list(map(repr, (values + 0.0 if values.dtype.kind == "f" else values).ravel().tolist()))


@pytest.mark.filterwarnings("ignore::compfed.errors.LeftOutWarning")  # which columns are left out is asked elsewhere
def test_dirty_files_are_read_alike(tmp_path, monkeypatch):
    findings, seen = [], Counter[str]()
    cut = compiled_csv.split_compiled

    def watched(content: str, sep: str) -> Any:
        found = cut(content, sep)
        seen["cut by pyarrow"] += found is not None
        return found

    for case in range(CASES):
        seed = f"{SEED or 0}/{case}"
        dirty = dirty_file(seed)
        path = dirty.write(tmp_path / "north")
        options = {name: value for name, value in dirty.reading.items() if name != "text"}
        label, site = dirty.names[-1].strip() or "y", dirty.names[0].strip() if case % 5 == 0 else None
        schema: Any = "auto" if case % 2 else None
        ways = (
            lambda: read_table(path, **dirty.reading),  # noqa: B023
            lambda: from_files([path], label, site=site or None, schema=schema, **options),  # noqa: B023
        )
        with monkeypatch.context() as patch:
            patch.setattr(table_files, "split_compiled", lambda content, sep: None)
            without = [said(way) for way in ways]
        with monkeypatch.context() as patch:
            patch.setattr(table_files, "split_compiled", watched)
            patch.setattr(compiled_csv, "COMPILED_FROM", 0)
            patch.setattr(
                compiled_csv, "BLOCK", (1 << 22, 64, 200)[case % 3]
            )  # small blocks: their ends are among the lines
            with_pyarrow = [said(way) for way in ways]
        seen["refused"] += isinstance(without[0], str)
        findings += [f"{seed}: {a} and {b}" for a, b in zip(without, with_pyarrow, strict=True) if a != b]
        path.unlink()
    assert not findings, f"{len(findings)} finding(s) of without and with pyarrow:\n" + "\n".join(
        f[:2000] for f in findings[:10]
    )
    assert seen["cut by pyarrow"] > 0.4 * CASES  # of two readings each
    assert 0.05 * CASES < seen["refused"] < 0.6 * CASES
