"""Federated standardisation: the pooled mean and standard deviation of every column, from sums over the sites.

A look at a federation before anything is fitted: sizes, labels, and how far its sites differ. One message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.queries import Describe, Moments
from compfed.federation.server.program import Federation, Program, Request, ask, run_program
from compfed.site_summary import Summary, summarised


class Scaling(NamedTuple):
    """Mean and standard deviation of each column; one that never varies has standard deviation 1."""

    mean: np.ndarray
    scale: np.ndarray


def standardisation(federation: Federation, weights: np.ndarray | None = None) -> Scaling:
    """mean = sum_i p_i sum_l q_il a_il, scale^2 = sum_i p_i sum_l q_il (a_il - mean)^2, rows weighted as in the loss.

    `weights` are the p_i; each site's share of the rows unless given. One message: a site sends its own mean, and its
    mean square distance from that.

    >>> from compfed.data import from_arrays
    >>> from compfed.federation import InProcess
    >>> federation = InProcess(from_arrays([[[0.0], [2.0]], [[10.0]]], [[0, 0], [0]]))
    >>> [round(float(v[0]), 3) for v in standardisation(federation)]
    [4.0, 4.32]
    """

    def talk() -> Program[Scaling]:
        (answers,) = yield [Request((Describe(), Moments()))]
        rows = np.array([described.weight for described, _ in answers])
        p = rows / rows.sum() if weights is None else np.asarray(weights, float)
        moments = [moments for _, moments in answers]
        mean = pooled_mean(moments, p)
        return Scaling(mean, spread(moments, mean, p))

    return run_program(federation, talk())[0]


def pooled_mean(moments: Sequence[Moments.Answer], p: np.ndarray) -> np.ndarray:
    """sum_i p_i mean_i, around one of them: a constant column has exactly its value as mean."""
    first = moments[0].mean
    return first + p @ np.array([m.mean - first for m in moments])


def spread(moments: Sequence[Moments.Answer], centre: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The root mean square distance of every column from `centre`; 1 for a column that does not vary."""
    away = [m.mean - centre for m in moments]
    variance = p @ np.array([m.square + 2 * m.rest * a + a**2 for m, a in zip(moments, away, strict=True)])
    # values that differ by rounding only: what is far below the size of a column is no variation
    varies = variance > (10 * np.finfo(float).eps * np.abs(centre)) ** 2
    return np.sqrt(np.where(varies, variance, 1.0))


def describe(federation: Federation) -> Summary:
    """`cf.data.describe` over whoever answers; no row leaves its site.

    >>> import compfed as cf
    >>> t = cf.data.bundled.diabetes()
    >>> sites = cf.data.from_table(t.X, t.y, t.sites)
    >>> str(describe(cf.federation.InProcess(sites))) == str(cf.data.describe(sites))
    True
    """
    answers = [answer for (answer,) in ask(federation, Describe(detail=True))]
    for name, answer in zip(federation.names, answers, strict=True):
        shape, first = (_shape(a) for a in (answer, answers[0]))
        if shape != first:
            raise InputError(
                f"site {name!r} has {shape[0]} columns and {shape[1]} label(s) per row; site {federation.names[0]!r} has "
                f"{first[0]} and {first[1]}. All sites need the same columns and labels."
            )
    return summarised(federation.names, answers[0].columns, [answer.facts for answer in answers])


def _shape(answer: Describe.Answer) -> tuple[int, int]:
    """Columns, and labels per row."""
    assert answer.facts is not None, "asked for in detail"
    return answer.width, answer.facts.label_mean.size
