"""The frozen extract of a table: the copy of the file that a site answers from, until a person takes a new one.

    STATE/extracts/TABLE/0001.csv    the file as it was when its first run began; 0002.csv is the one that a person took later

A nightly export that gains a patient would otherwise be another table every day, and the difference of two sums that patient. A new
extract differs from every earlier one by no row or by at least `min_rows` (`fewest_apart`), and its numbers count together with the
old ones'. Its rows are dealt into groups anew (`SiteSettings.secret`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from compfed._utils.files import write_private
from compfed.data.raw_table import RawColumn, RawTable
from compfed.data.table_files import read_table
from compfed.errors import InputError
from compfed.network.site_settings import SiteSettings

SAME = 0.5  # of the values of a column: with fewer in common it counts as another column
MANY = 20  # different values of a column that tell rows apart


def take(settings: SiteSettings, confirm: Callable[[], bool], say: Callable[[str], object] = print) -> bool:
    """Take the file as it is now as the new extract, if a person agrees and it differs by enough; return whether it was taken."""
    kept, least = settings.extracts(), settings.disclosure.min_rows
    if not kept:
        say(f"No run of the table {settings.table!r} yet: its first run freezes {settings.data} as it is then.")
        return True
    new = read_table(settings.data, **settings.reading)
    if settings.data.read_bytes() == kept[-1].read_bytes():
        say(f"{settings.data} is the extract that the site answers from. Nothing to take.")
        return True
    for number, path in enumerate(kept, 1):
        apart, which = fewest_apart(read_table(path, **settings.reading), new)
        if 0 < apart < least:
            raise InputError(
                f"{settings.data} differs from extract {number} of the table by fewer than its min_rows = {least} rows in {which}: "
                f"the difference of two results would be about these rows. Wait until {least} rows differ; the site goes on answering "
                "from the extract."
            )
    say(f"{settings.data}: {new.rows} rows, {len(new.columns)} columns. The site answers from extract {len(kept)}.")
    say("With the new one, the numbers that left about the old one still count, and sums of both can be compared.")
    if not confirm():
        say("Nothing was changed.")
        return False
    freeze(settings, settings.data.read_bytes())
    say(f"Taken, as extract {len(kept) + 1}. Restart `compfed site run` if it runs.")
    return True


def freeze(settings: SiteSettings, content: bytes) -> None:
    """Keep these bytes of the file as the extract that the site answers from."""
    number = len(settings.extracts()) + 1
    name = f"{number:04d}{''.join(settings.data.suffixes)}"
    write_private(settings.extract_folder / name, content)


def fewest_apart(old: RawTable, new: RawTable) -> tuple[int, str]:
    """The fewest rows, but none, by which two extracts differ in some columns; and which columns. 0 if they differ nowhere.

    Compared are: all columns together that have most of their values in common (one that was rescaled would make every row another
    one), the same without each of them, and every column alone that has many values. Rows that left and rows that came count
    apart, and the larger number is taken.
    """
    found = {what: apart for what, apart in _apart(old, new) if apart}
    return min(((apart, what) for what, apart in found.items()), default=(0, ""))


def _apart(old: RawTable, new: RawTable) -> Iterator[tuple[str, int]]:
    ends, sizes = old.rows, max(old.rows, new.rows)
    total = np.zeros(old.rows + new.rows, np.uint64)
    parts: dict[str, np.ndarray] = {}
    for name in old.columns:
        if name not in new.columns or old.columns[name].is_numeric != new.columns[name].is_numeric:
            continue
        values = _codes(old.columns[name], new.columns[name])
        alone, common = _difference(values[:ends], values[ends:])
        if common < SAME * sizes:
            continue
        if len(np.unique(values)) > MANY:
            yield f"column {name!r}", alone
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        parts[name] = np.random.default_rng(seed).integers(0, 2**64, int(values.max(initial=0)) + 1, np.uint64)[values]
        total += parts[name]
    if parts:
        yield "all columns together", _difference(total[:ends], total[ends:])[0]
    for name, part in parts.items() if len(parts) > 1 else ():
        rest = total - part
        yield f"all columns but {name!r}", _difference(rest[:ends], rest[ends:])[0]


def _codes(old: RawColumn, new: RawColumn) -> np.ndarray:
    """A whole number for each value of both columns; equal values have equal ones."""
    values = np.concatenate([old.values, new.values])
    if values.dtype.kind == "O":
        values = np.array(["" if value is None else f"={value}" for value in values.tolist()])
    return np.unique(values + 0.0 if values.dtype.kind == "f" else values, return_inverse=True)[1].ravel()


def _difference(old: np.ndarray, new: np.ndarray) -> tuple[int, int]:
    """Of two multisets: the entries that left or came, whichever are more, and those in common."""
    values, where = np.unique(np.concatenate([old, new]), return_inverse=True)
    before, after = (np.bincount(part, minlength=len(values)) for part in np.split(where.ravel(), [len(old)]))
    common = int(np.minimum(before, after).sum())
    return max(len(old), len(new)) - common, common
