"""The problems of tables, collected so that one message names all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from compfed._utils.text import join_names, shorten
from compfed.errors import InputError

MOST_PROBLEMS = 10  # listed in one message
MOST_WAYS_OUT = 3
UNREADABLE = "its table cannot be read"


class TableError(InputError):
    """A table cannot be used. The message is for the owner of the rows and may quote a value.

    `public_reason` may leave the site: it names columns, and no value.
    """

    def __init__(self, reason: str, public_reason: str):
        super().__init__(reason)
        self.public_reason = public_reason


@dataclass
class Problems:
    """Problems found so far: each with the sentence for the owner, and the kind and column that others may know."""

    found: list[tuple[str, str, str]] = field(default_factory=list)  # (sentence, kind, column)
    ways_out: dict[str, None] = field(default_factory=dict)  # in the order found

    def add(self, sentence: str, kind: str = UNREADABLE, column: str = "", way_out: str = "") -> None:
        """Note a problem; the sentence has no full stop, and a way out is said once however many problems share it."""
        self.found.append((sentence, kind, column))
        if way_out:
            self.ways_out[way_out] = None

    def extend(self, problem: TableError | InputError) -> None:
        """Note an error that another step raised."""
        if isinstance(problem, _Collected):
            self.found += problem.problems.found
            self.ways_out |= problem.problems.ways_out
        else:
            self.add(str(problem).removesuffix("."))

    def check(self) -> None:
        """Raise one error with all problems, if there are any."""
        if self.found:
            raise _Collected(self)

    @property
    def reason(self) -> str:
        """All problems, and the ways out."""
        sentences = list(dict.fromkeys(sentence for sentence, _, _ in self.found))  # each once, of several files
        ways_out = "".join(f" {text}" for text in list(self.ways_out)[:MOST_WAYS_OUT])
        if len(sentences) == 1:
            return f"{sentences[0]}.{ways_out}"
        listed = "".join(f"\n  {sentence}." for sentence in sentences[:MOST_PROBLEMS])
        more = len(sentences) - MOST_PROBLEMS
        rest = f"\n  And {more} more." if more > 0 else ""
        return f"{len(sentences)} problems:{listed}{rest}" + (f"\n{ways_out.strip()}" if ways_out else "")

    @property
    def public_reason(self) -> str:
        """The kinds of problems and their columns, without a value."""
        columns: dict[str, dict[str, None]] = {}
        for _, kind, column in self.found:
            columns.setdefault(kind, {})[column] = None
        kinds = [
            f"{kind} {join_names([repr(c) for c in names if c])}" if any(names) else kind
            for kind, names in columns.items()
        ]
        hint = (
            "`compfed site check` says why there."
            if all(kind == UNREADABLE for kind in columns)
            else "Give words and missing values a schema, or leave the column out: alike at every site."
        )
        return f"{'; '.join(kinds)}; {hint}" if hint.startswith("`") else f"{'; '.join(kinds)}. {hint}"


class _Collected(TableError):
    """The error of `Problems.check`."""

    def __init__(self, problems: Problems):
        super().__init__(problems.reason, problems.public_reason)
        self.problems = problems


def quoted(values: Sequence[object]) -> str:
    """A few values of a table, shortened."""
    return join_names([repr(shorten(str(value), 40)) for value in values], most=3)
