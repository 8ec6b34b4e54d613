"""site.toml: what a site is, where its rows are, what it refuses. Read at the site, and nowhere else."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from compfed.data.site_file import read_site
from compfed.errors import InputError
from compfed.federation.flower.desk import Desk
from compfed.federation.questions import QUESTIONS
from compfed.federation.refusals import Refusals
from compfed.federation.site import Site
from compfed.tools.checks import nonnegative, whole

QUESTION_NAMES = [question.__name__ for question in QUESTIONS]


@dataclass(frozen=True)
class SiteSettings:
    """The settings of a site; paths are relative to the file they are in."""

    name: str
    index: int  # its place among the sites, counted from 0; agreed with the operator
    data: Path  # CSV or Parquet
    label: str | list[str]
    state: Path  # a folder of its own: memory of the rounds, and the log of what left
    features: list[str] | None = None
    drop: list[str] = field(default_factory=list)
    accepts: list[str] = field(default_factory=list)  # "module:object" of losses and methods that are not compfed's
    refuses: Refusals = field(default_factory=Refusals)

    @classmethod
    def read(cls, path: str | Path) -> SiteSettings:
        path = Path(path)
        try:
            with path.open("rb") as file:
                given = tomllib.load(file)
        except OSError as problem:
            raise InputError(f"{path}: {problem.strerror}. Give the path of a site.toml.") from None
        except tomllib.TOMLDecodeError as problem:
            raise InputError(f"{path} is not TOML: {problem}.") from None
        given.pop("network", None)  # for the supervisor of the site's Flower node
        known = {f.name: f for f in fields(cls)}
        for name in given.keys() - known.keys():
            raise InputError(f"{path}: {name!r} is no setting of a site; there are {', '.join(known)} and [network].")
        for name in ("name", "index", "data", "label", "state"):
            if name not in given:
                raise InputError(f"{path}: {name!r} is missing.")
        whole(given["index"], f"{path}: index", 0)
        for name in ("data", "state"):
            given[name] = (path.parent / given[name]).absolute()
        return cls(**{**given, "refuses": _refusals(path, given.get("refuses", {}))})

    def rows(self) -> Site:
        """The site, with its rows."""
        A, y, columns = read_site(self.data, self.label, self.features, self.drop)
        return Site(A, y, name=self.name, index=self.index, columns=columns, refuses=self.refuses)

    def desk(self) -> Desk:
        return Desk(self.index, self.name, self.rows, self.state, self.accepts)


def _refusals(path: Path, given: dict[str, Any]) -> Refusals:
    for name in given.keys() - {f.name for f in fields(Refusals)}:
        raise InputError(f"{path}: {name!r} is nothing a site can refuse; see least_rows, curvature_share, questions.")
    for name in set(given.get("questions", ())) - set(QUESTION_NAMES):
        raise InputError(f"{path}: {name!r} is no question; the questions are {', '.join(QUESTION_NAMES)}.")
    whole(given.get("least_rows", 1), f"{path}: least_rows", 0)
    nonnegative(given.get("curvature_share", 1.0), f"{path}: curvature_share")
    return Refusals(**given)
