"""CSV files as people send them, from one random generator: what spreadsheets, R, pandas and hands make of a table."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

SPACES = (" ", "  ", "\t", "\u00a0", "\u3000", "\u2003", "\x1f", "\x0b", "\x85")
WORDS = ("yes", "no", "Oslo", "größe", "東京", "a b", "O'Brien", "x;y", "1 mg", "📈", "None of these", "<0.1", "#N/A")
BLANKS = ("", "NA", "N/A", "NaN", "nan", "null", "None", "?", ".", "-", " ", " NA ", "\t")
ODD_NUMBERS = (
    "inf", "-inf", "Infinity", "+inf", "INF", "nan", "-nan", "+NaN", "nan(1)", "nan()", "1e400", "-1e400", "1e-400", "4.9e-324", "-0",
    "-0.0", "1.", ".5", "-.5", "+1", "+-1", "1e", "e5", "0x10", "1_000", "1e5.3", "1e+05", "1E5", "--", "٣", "\uff11", "1d5", "1f", "1 000",
    "1,5", "1,500", "1.500", "1.234,5", "1,234.5", "12,5e3", ",5", "5,", "1,5,0", "True", "False", "TRUE", "false", "t", "0.1" * 9,
    "123456789012345678901234567890.5", "9" * 400,
)  # fmt: skip
BIG = (2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**63, 10**18, 10**18 + 1, 10**22, 12345678901234567890)
CELLS: dict[str, Callable[[Random], str]] = {
    "whole": lambda r: str(r.randint(-50, 50)),
    "code": lambda r: str(r.randint(0, 2)),
    "float": lambda r: repr(r.gauss(0, 1) * 10.0 ** r.randint(-30, 30)),
    "digits": lambda r: f"{r.gauss(50, 20):.2f}",
    "comma": lambda r: f"{r.gauss(50, 20):.2f}".replace(".", ","),
    "comma or whole": lambda r: r.choice([f"{r.gauss(5, 2):.1f}".replace(".", ","), str(r.randint(0, 9))]),
    "thousands": lambda r: f"{r.randint(0, 3_000_000):,}",
    "padded": lambda r: r.choice(SPACES) + f"{r.gauss(0, 1):.3f}" + r.choice(("", *SPACES)),
    "zeros": lambda r: f"{r.randint(0, 999):05d}",
    "big": lambda r: str(r.choice(BIG)),
    "big float": lambda r: repr(float(r.choice(BIG))),
    "odd": lambda r: r.choice(ODD_NUMBERS),
    "truth": lambda r: r.choice(["True", "False"]),
    "TRUTH": lambda r: r.choice(["TRUE", "FALSE", "true", " false"]),
    "date": lambda r: f"20{r.randint(10, 30)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}",
    "german date": lambda r: f"{r.randint(1, 28):02d}.{r.randint(1, 12):02d}.20{r.randint(10, 30)}",
    "time": lambda r: f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}",
    "word": lambda r: r.choice(WORDS),
    "level": lambda r: r.choice(["f", "m"]),
    "padded word": lambda r: r.choice(SPACES) + r.choice(WORDS[:3]) + r.choice(SPACES),
    "blank": lambda r: r.choice(BLANKS),
    "text": lambda r: "".join(r.choice('ab ,;"\n\r\t.1') for _ in range(r.randint(0, 8))),
    "identifier": lambda r: f"id{r.randint(0, 10**6)}",
}
USUAL = ("whole", "code", "float", "digits", "padded", "word", "level", "zeros")
NAMES = ("x", "y", "age", "bmi", " z", "größe", "a b", "x,1", 'the "best"', "1", "NA", "", "", "Unnamed: 0", "t", "y ")


@dataclass
class DirtyFile:
    """The bytes of a file, how it is read, and the names of its columns."""

    content: bytes
    ending: str
    reading: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)

    def write(self, path: Path) -> Path:
        path = path.with_name(path.name + self.ending)
        path.write_bytes(gzip.compress(self.content, mtime=0) if self.ending.endswith(".gz") else self.content)
        return path


def dirty_file(seed: int | str) -> DirtyFile:
    """One file, the same for the same seed."""
    r = Random(seed)

    def often(share: float) -> bool:
        return r.random() < share

    width = r.choice([1, 2, 2, 3, 3, 4, 6])
    rows = r.choice([0, 1, 2, 5, 8, 8, 12, 20, 30]) if often(0.97) else 1100
    kinds = [r.choice(USUAL if often(0.7) else list(CELLS)) for _ in range(width)]
    if often(0.2):
        kinds = [r.choice(["comma", "comma or whole", "code", "level"]) for _ in kinds]
    names = [f"c{j}" for j in range(width)] if often(0.6) else [r.choice(NAMES) for _ in range(width)]
    dirt = r.choice([0.0, 0.0, 0.02, 0.2])
    calm = 0
    if often(0.15):  # a clean beginning, and dirt behind it
        rows, calm, dirt = 40, 30, 0.3
    table = [[_cell(r, kind, dirt * (i >= calm)) for kind in kinds] for i in range(rows)]
    if often(0.1):  # row numbers
        names[0], table = r.choice(["", "Unnamed: 0", " "]), [[str(i), *line[1:]] for i, line in enumerate(table)]
    sep = r.choice([",", ",", ",", ";", ";", "\t", "|"]) if often(0.95) else r.choice([" ", "§", ":", "x"])
    quotes = r.choice(["none", "none", "needed", "needed", "header", "all", "any"])
    lines = [sep.join(_quoted(r, cell, sep, quotes, k == 0) for cell in line) for k, line in enumerate([names, *table])]
    if often(0.12):  # a line with another number of fields
        at = r.randrange(len(lines))
        lines[at] = (
            lines[at] + sep * r.randint(1, 2) + r.choice(["", "9"]) if often(0.6) else lines[at].rpartition(sep)[0]
        )
    if often(0.08):  # every line ends with a separator, or all but the header
        lines = [line + sep * (k > 0 or often(0.5)) for k, line in enumerate(lines)]
    if often(0.2):
        for _ in range(r.randint(1, 3)):
            lines.insert(r.randrange(len(lines) + 1), r.choice(["", "", sep * (width - 1), "  ", " " + sep]))
    end = r.choice(["\n", "\n", "\n", "\r\n", "\r\n", "\r"])
    ends = [r.choice(["\n", "\r\n", "\r"]) if often(0.02) else end for _ in lines]
    ends[-1] = r.choice(["", ends[-1], ends[-1], ends[-1] * 3, ends[-1] + " "])
    text = "".join(line + mark for line, mark in zip(lines, ends, strict=True))
    if often(0.06):  # an accident
        at = r.randrange(len(text) + 1)
        text = (
            text[:at] + r.choice(['"', ",", ";", "\n", "\r", "\x00", "é", " ", "\u2028"]) + text[at + r.randint(0, 2) :]
        )
    if often(0.004):
        text = text.replace(names[-1], names[-1] + "w" * 140_000, 1)  # longer than the csv module lets a quoted cell be
    encoding = r.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16", "latin-1", "cp1252"])
    reading = {
        "sep": r.choice([None, None, None, sep]) if sep in ",;\t|" else sep,
        "decimal": r.choice([None, None, None, None, ".", ","]),
        "encoding": r.choice([None, None, None, encoding]),
        "missing": r.choice([None, None, None, ["NA"], ["-999", "9", "1"], ["nan", "inf", "yes"], []]),
        "text": r.choice([None, None, [name.strip() for name in names if often(0.5)]]),
    }
    reading = {name: value for name, value in reading.items() if value is not None}
    if reading.get("sep") == reading.get("decimal"):
        reading.pop("decimal", None)
    return DirtyFile(text.encode(encoding, "replace"), ".csv.gz" if often(0.1) else ".csv", reading, names)


def _cell(r: Random, kind: str, dirt: float) -> str:
    if r.random() < dirt:
        kind = r.choice(["blank", "blank", "blank", *CELLS])
    return CELLS[kind](r)


def _quoted(r: Random, cell: str, sep: str, how: str, in_header: bool) -> str:
    if how == "any" and r.random() < 0.05:  # quotes that are not where they should be
        return r.choice([f'"{cell}', f'{cell}"', f' "{cell}"', f'"{cell}"1', f'"{cell}" ', f'a"{cell}"', '""', '"""'])
    needed = any(mark in cell for mark in (sep, '"', "\n", "\r"))
    if (
        how == "all"
        or (how == "header" and in_header)
        or (how == "any" and r.random() < 0.3)
        or (needed and how != "none")
    ):
        return '"' + cell.replace('"', '""') + '"'
    return cell if how != "none" or r.random() < 0.05 else cell.translate(dict.fromkeys(map(ord, f'{sep}"\n\r'), None))
