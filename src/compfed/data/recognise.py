"""Columns that are no variables as they are: dates, identifiers, names and codes."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from compfed.data.raw_table import RawColumn

TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?\s*(?:Z|[+-]\d{2}:?\d{2})?)?"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# the order of day, month and year, and its form; with dots and hyphens the day comes first
FORMS = (
    ("ymd", re.compile(rf"(\d{{4}})[-/.](\d{{1,2}})[-/.](\d{{1,2}}){TIME}")),
    ("ymd", re.compile(r"([12]\d{3})(\d{2})(\d{2})")),
    ("dmy", re.compile(rf"(\d{{1,2}})[-.](\d{{1,2}})[-.](\d{{4}}){TIME}")),
    ("dmy", re.compile(rf"(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}){TIME}")),
    ("mdy", re.compile(rf"(\d{{1,2}})/(\d{{1,2}})/(\d{{4}}){TIME}")),
    ("dby", re.compile(r"(\d{1,2})[- ]?([A-Za-z]{3})[a-z]*[- ,]*(\d{4})")),
)
FIRST_YEAR, LAST_YEAR = 1850, 2150  # of a date: 20190301 is one, 12345678 is a number
MANY = 20  # different values, from which a column may be an identifier, or names
RARE_ROWS = 5  # a level of fewer rows is rare; where half of them are, they are names or codes
# names of columns that number their rows; a name that ends in Id or ID counts too, and "covid" does not
IDENTIFIERS = re.compile(
    r"(^|[^a-z])(id|ids|pid|patid|patientid|subjectid|studyid|caseid|recordid|rowid|mrn|nr|no|uid|uuid|guid|key|ssn|index|"
    r"case|patient|record|subject|accession|number)([^a-z]|$)"
)


def dates_of(words: Sequence[str | None] | np.ndarray) -> list[np.ndarray]:
    """The days since 1970-01-01 of a column of dates, NaN for a missing one: each reading that is possible, none where it has no dates.

    >>> dates_of(["2019-03-01", None])[0].tolist()
    [17956.0, nan]
    >>> len(dates_of(["03/04/2019"])), len(dates_of(["31/04/2019"])), len(dates_of(["31.12.2019"]))
    (2, 0, 1)
    """
    present = {word for word in words if word is not None}
    found: list[np.ndarray] = []
    for order, form in FORMS if present else ():
        days: dict[str | None, float] = {None: np.nan}
        for word in present:
            day = _day(word, order, form)
            if day is None:
                break
            days[word] = day
        else:
            reading = np.array([days[word] for word in words])
            if not any(np.array_equal(reading, other, equal_nan=True) for other in found):
                found.append(reading)
    return found


def _day(word: str, order: str, form: re.Pattern[str]) -> float | None:
    match = form.fullmatch(word)
    if match is None:
        return None
    parts = dict(zip(order, match.groups(), strict=True))
    try:
        month = MONTHS.index(parts["b"].lower()) + 1 if "b" in parts else int(parts["m"])
        day = datetime.date(int(parts["y"]), month, int(parts["d"]))
    except ValueError:
        return None
    return float((day - datetime.date(1970, 1, 1)).days) if FIRST_YEAR <= day.year <= LAST_YEAR else None


def date_numbers(words: np.ndarray, meaning: str) -> np.ndarray | str:
    """Dates as numbers: their year, or the days since a date; or, in words, why not."""
    readings = dates_of(words)
    if not readings:
        odd = next((word for word in words if word is not None and not dates_of([word])), None)
        return "has no dates" if odd is None else f"has {odd!r}, which is no date"
    if meaning == "year":
        return _years(readings[0])
    if len(readings) > 1:
        return "has dates such as 03/04/2019, whose month may come first or second; write them as 2019-04-03"
    return readings[0] - since(meaning)


def _years(days: np.ndarray) -> np.ndarray:
    found = np.full(len(days), np.nan)
    known = np.isfinite(days)
    found[known] = days[known].astype("datetime64[D]").astype("datetime64[Y]").astype(float) + 1970
    return found


def since(text: str) -> float:
    """The day of a date such as 2019-03-01."""
    return float((datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days)


def span(parts: Sequence[RawColumn]) -> str | None:
    """The first and the last date of a column of dates at all sites, in words; None for a column of anything else."""
    days = []
    for raw in parts:
        words = raw.words()
        if (readings := dates_of(words)) == []:
            return None
        days.append(readings[0])
    every = np.concatenate(days).astype("datetime64[D]")
    every = every[~np.isnat(every)]
    return f"{every.min()} to {every.max()}"


def is_identifier(name: str, parts: Sequence[RawColumn]) -> bool:
    """Whether a column of numbers numbers its rows: whole, all different at each site, and in order or named so."""
    values = [raw.values[~raw.missing] for raw in parts]
    if sum(map(len, values)) <= MANY:
        return False
    if any(len(np.unique(v)) < len(v) or not (v == np.rint(v)).all() for v in values):
        return False
    words = re.sub(r"(?<=[a-z])I[dD]$", "_id", name).lower()
    in_order = all((np.diff(v) > 0).all() for v in values)
    return in_order or IDENTIFIERS.search(words) is not None


def are_names(parts: Sequence[RawColumn]) -> bool:
    """Whether a column of words has many levels, half of which have few rows: names or codes rather than a category."""
    counts = Counter(word for raw in parts for word in raw.words() if word is not None)
    return len(counts) > MANY and sum(count < RARE_ROWS for count in counts.values()) >= len(counts) / 2
