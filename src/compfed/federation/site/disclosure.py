"""What a site does not answer, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from compfed.federation.queries import QUESTIONS, Curvature, Question, Round


@dataclass(frozen=True)
class Refusals:
    """What a site does not answer.

    - `least_rows`: nothing at all, with fewer rows than this.
    - `curvature_share`: no second derivative on more coordinates than this share of the rows.
    - `questions`: names of questions that are never answered, such as "Curvature".
    """

    least_rows: int = 1
    curvature_share: float = np.inf
    questions: Collection[str] = ()

    def blanket_reason(self, question: Question, rows: int) -> str | None:
        """Why a site does not answer any query of this kind; None if it does. Names the rule, never the number of rows.

        Decided before anything else of a query is looked at: what a limit would say may depend on the rows.
        """
        name = type(question).__name__
        if type(question) not in QUESTIONS:  # a closed list: a subclass is another question
            return f"{name} is not a question it knows"
        if name in self.questions:
            return f"it does not answer {name}"
        if rows < self.least_rows:
            return "it has fewer rows than its least_rows"
        return None

    def reason(self, question: Question, rows: int) -> str | None:
        """Why a site with so many rows does not answer this query; None if it does."""
        if (reason := self.blanket_reason(question, rows)) is not None:
            return reason
        curved = _coordinates(question)
        if curved and "Curvature" in self.questions:
            return "it does not answer Curvature, and a round of this method asks for it"
        if curved > self.curvature_share * rows:
            return (
                f"{curved} coordinates are more than {self.curvature_share:g} of the number of its rows; curvature on so "
                "many says too much about single rows"
            )
        return None


def _coordinates(question: Question) -> int:
    """On how many coordinates a question, or a round of a second-order method, asks for curvature."""
    if isinstance(question, Curvature):
        return np.size(question.W)
    if isinstance(question, Round) and question.job.algorithm.by_questions:
        return np.size(question.d.get("W", ()))
    return 0
