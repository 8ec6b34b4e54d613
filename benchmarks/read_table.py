"""What does it cost to read CSV files? compfed's reader, with pyarrow and without, and pandas, side by side.

    python benchmarks/read_table.py [--quick]

200,000 rows in eight files, in several dialects. The readers take turns, three times after a turn that is not counted; a cell is the median
of the seconds of the processor (all threads) and their range, and the ratio is that of the medians to pandas'. `from_files` also makes the
federation: rows as one array of floats per site. Where words or missing values are among the columns it has `schema="auto"`.
Peak memory is that of a process of its own which does nothing but read, above what it had before, and which keeps what it has read.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compfed.data import compiled_csv, from_files
from compfed.data.table_files import read_table

ROWS, COLUMNS, SITES, REPEATS = 200_000, 60, 8, 3
AS_IT_IS = compiled_csv.COMPILED_FROM
DIALECTS: dict[str, dict[str, Any]] = {
    "61 columns of numbers": {},
    "the same, names in quotes": {"quoted": True},
    "the same, ; and decimal comma": {"marks": {"sep": ";", "decimal": ","}},
    "the same, all digits": {"digits": None},
    "4 of 61 columns words, one with holes": {"words": 4},
}


def write_files(
    folder: Path, rows: int, *, digits: int | None = 6, words: int = 0, quoted: bool = False, marks: Any = None
) -> list[Path]:
    """Eight files of normal numbers with `digits` after the point, and a label of 0 and 1."""
    rng, paths = np.random.default_rng(0), []
    for site in range(SITES):
        numbers = rng.standard_normal((rows // SITES, COLUMNS - words))
        frame = pd.DataFrame(numbers if digits is None else numbers.round(digits)).add_prefix("x")
        for k in range(words):
            frame[f"word{k}"] = rng.choice(["yes", "no", "unknown"] if k else ["yes", "no", ""], len(frame))
        paths.append(folder / f"site{site}.csv")
        frame.assign(label=rng.integers(0, 2, len(frame))).to_csv(paths[-1], index=False, **(marks or {}))
        if quoted:
            header, rest = paths[-1].read_text().split("\n", 1)
            paths[-1].write_text(",".join(f'"{name}"' for name in header.split(",")) + "\n" + rest)
    return paths


def readers(paths: Sequence[Path], *, words: int = 0, marks: Any = None, **_: Any) -> dict[str, Callable[[], object]]:
    """Each way to read all files."""

    def ours(read: Callable[[], object], least: float) -> object:
        compiled_csv.COMPILED_FROM = least  # pyright: ignore[reportAttributeAccessIssue]
        return read()

    def tables() -> object:
        return [read_table(path) for path in paths]

    given: Any = marks or {}
    federation = partial(from_files, paths, "label", schema="auto" if words else None)
    return {
        "pandas.read_csv": lambda: [pd.read_csv(path, **given) for path in paths],
        "read_table": partial(ours, tables, AS_IT_IS),
        "from_files": partial(ours, federation, AS_IT_IS),
        "read_table, no pyarrow": partial(ours, tables, math.inf),
        "from_files, no pyarrow": partial(ours, federation, math.inf),
    }


def seconds(read: Callable[[], object]) -> float:
    """Seconds of the processor for one call."""
    began = time.process_time()
    read()
    return time.process_time() - began


def peak_megabytes(folder: Path, dialect: str, reader: str) -> float:
    """How much memory a process takes to read the files."""
    command = [sys.executable, __file__, "--measure", str(folder), dialect, reader]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def measure(folder: str, dialect: str, reader: str) -> None:
    """Print the peak of this process while it reads, in MB above what it has before."""
    read = readers(sorted(Path(folder).glob("*.csv")), **DIALECTS[dialect])[reader]
    before = peak_kilobytes()
    kept = read()
    print((peak_kilobytes() - before) / 1024)
    del kept


def peak_kilobytes() -> int:
    """The most memory that this process had so far, as Linux tells it. (What `resource` tells counts the parent's.)"""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(*given.measure)
        return
    print("| files | reader | CPU seconds | to pandas | peak MB |\n|---|---|---|---|---|")
    for dialect, made in DIALECTS.items():
        with tempfile.TemporaryDirectory() as name:
            paths = write_files(Path(name), ROWS // 10 if given.quick else ROWS, **made)
            size = sum(path.stat().st_size for path in paths) / 1e6
            ways = readers(paths, **made)
            taken = np.array([[seconds(read) for read in ways.values()] for _ in range(REPEATS + 1)])[1:]
            medians = np.median(taken, axis=0)
            for reader, median, each in zip(ways, medians, taken.T, strict=True):
                spread = f"{median:.2f} ({each.min():.2f} to {each.max():.2f})"
                peak = peak_megabytes(Path(name), dialect, reader)
                print(
                    f"| {dialect}, {size:.0f} MB | {reader} | {spread} | {median / medians[0]:.1f} | {peak:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
