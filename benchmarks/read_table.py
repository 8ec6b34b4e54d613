"""Seconds to read a CSV file of 50,000 rows and 41 columns: compfed's reader against pandas.

    python benchmarks/read_table.py

Both are measured side by side, three times, in seconds of the processor; the ratio is that of the medians.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from compfed.data.table_files import read_table

ROWS, NUMBERS, REPEATS = 50_000, 36, 3
FILES: Any = (
    ("3 digits", 3, {}), ("3 digits, ; and decimal comma", 3, {"sep": ";", "decimal": ","}), ("all digits", None, {}),
)  # fmt: skip


def make_frame(digits: int | None) -> pd.DataFrame:
    """36 columns of numbers, four of words (one with blanks) and a label; `digits` after the point, all of them for None."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(ROWS, NUMBERS))
    numbers[rng.random(ROWS) < 0.1, 0] = np.nan
    frame = pd.DataFrame(numbers if digits is None else numbers.round(digits)).add_prefix("x")
    for k in range(4):
        frame[f"word{k}"] = rng.choice(["yes", "no", "unknown"] if k else ["yes", "no", ""], ROWS)
    return frame.assign(label=rng.integers(0, 2, ROWS))


def seconds(read: Callable[[], object]) -> float:
    """Seconds of the processor for one call."""
    began = time.process_time()
    read()
    return time.process_time() - began


def main() -> None:
    """Print one line per file."""
    print("| file | compfed, s | pandas, s | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, digits, marks in FILES:
            path = Path(folder, "table.csv")
            make_frame(digits).to_csv(path, index=False, **marks)
            readers = (partial(read_table, path), partial(pd.read_csv, path, **marks))
            taken = np.array([[seconds(read) for read in readers] for _ in range(REPEATS)])
            ours, theirs = np.median(taken, axis=0)
            print(f"| {name} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.1f} |")


if __name__ == "__main__":
    main()
