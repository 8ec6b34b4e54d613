"""What the fuzzer draws: tables of every shape and unit, parameters and files, and how each may be damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from scipy import sparse

EXPONENTS = [-300, -160, -100, -69, -40, -12, -6, 6, 12, 40, 69, 100, 160, 300]
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([10.0**e for e in EXPONENTS])
# What may be given where a number, a word or a truth value is expected.
ODD: list[Any] = [
    None, True, False, 0, -0.0, 1, 2, -1, 0.5, 1.5, -1e-300, 5e-324, 1e-300, 1e-12, 1e300, float("nan"), float("inf"),
    -float("inf"), "", "auto", "nan", "1", "ä$", "x" * 300, b"1", [], [1.0], (), {}, {"a": 1}, 1j, np.float32(0.5), np.int64(3),
    np.array(0.1), np.array([0.1, 0.2]), np.nan, np.bool_(True), object, 10**400, pd.NA, slice(None),
]  # fmt: skip
odd = st.sampled_from(ODD)


def mostly(usual: Any, *others: Any, of: int = 8) -> st.SearchStrategy[Any]:
    """`usual`, and one time in `of` something else."""
    return st.integers(1, of).flatmap(lambda k: st.sampled_from(others) if k == of else st.just(usual))


# --- tables ---


@dataclass
class Rows:
    """A table as it is, and as it is given: `plain` says that nothing is odd about it, so that an answer is due."""

    X: np.ndarray
    signal: np.ndarray
    where: np.ndarray  # the site of every row
    weights: np.ndarray | None
    given_X: Any
    given_sites: Any
    given_weights: Any
    plain: bool


COLUMNS = ["plain"] * 8 + [
    "constant", "zero", "copy", "nearly a copy", "scaled", "offset", "two values", "whole", "sum", "one row", "opposite"
]  # fmt: skip


def _column(draw: Any, kind: str, before: list[np.ndarray], rng: np.random.Generator, n: int) -> np.ndarray:
    plain = rng.standard_normal(n)
    of = before[draw(st.integers(0, len(before) - 1))] if before else plain
    made = {
        "constant": lambda: np.full(n, draw(st.sampled_from([1.0, -3.0, 0.1, 1e9, 1e-9, 1 / 3]))),
        "zero": lambda: np.zeros(n),
        "copy": lambda: of.copy(),
        "nearly a copy": lambda: of + 10.0 ** -draw(st.integers(3, 17)) * plain,
        "scaled": lambda: plain * draw(SCALES),
        "offset": lambda: plain + 10.0 ** draw(st.integers(2, 17)),
        "two values": lambda: (plain > 0).astype(float),
        "whole": lambda: np.round(3 * plain),
        "sum": lambda: np.sum(before, axis=0) if before else plain,
        "one row": lambda: np.where(np.arange(n) == 0, plain, 0.0),
        "opposite": lambda: -2.0 * of,
    }
    with np.errstate(all="ignore"):
        return made[kind]() if kind in made else plain


def _layout(draw: Any, X: np.ndarray) -> tuple[Any, np.ndarray]:
    """(X as given, the numbers that this is)."""
    kind = draw(
        mostly("array", "F", "strided", "reversed", "list", "csr", "csc", "coo", "frame", "float32", "float16", "int", "bool",
               "object", "strings", "longdouble", "big-endian", "read-only", of=3)
    )  # fmt: skip
    with np.errstate(all="ignore"):
        if kind in ("float32", "float16", "longdouble", "bool"):
            X = np.asarray(X, kind)
        elif kind == "big-endian":
            X = np.asarray(X, ">f8")
        elif kind == "int":
            X = np.clip(np.round(10 * X), -(2**62), 2**62).astype(np.int64)
    truth = np.asarray(X, float)
    made = {
        "F": lambda: np.asfortranarray(X),
        "strided": lambda: np.repeat(X, 2, axis=0)[::2],
        "reversed": lambda: X[::-1].copy()[::-1],
        "list": lambda: X.tolist(),
        "csr": lambda: sparse.csr_matrix(X),
        "csc": lambda: sparse.csc_array(X),
        "coo": lambda: sparse.coo_array(X),
        "frame": lambda: pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])]),
        "object": lambda: X.astype(object),
        "strings": lambda: np.array([[repr(float(v)) for v in row] for row in X], dtype=object).reshape(X.shape),
    }
    given = made[kind]() if kind in made else X
    if kind == "read-only":
        given = X.copy()
        given.flags.writeable = False
    return given, truth


def _sites(draw: Any, n: int) -> tuple[Any, np.ndarray]:
    """(sites as given, the site of every row as a number)."""
    kind = draw(st.sampled_from(["three"] * 4 + ["none", "every row", "words", "floats", "skewed", "frame"]))
    k = np.arange(n)
    where = {"none": 0 * k, "every row": k, "skewed": (k > n // 4).astype(int)}.get(kind, k % 3)
    if kind == "words":
        return [f"site {chr(228 + i)}$ {i}" for i in where], where
    if kind == "frame":
        return pd.Series(where), where
    return None if kind == "none" else (where / 2 if kind == "floats" else where), where


def _weights(draw: Any, n: int, where: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    kind = draw(mostly("none", "some", "zeros", "a site of weight 0", "scaled", "uneven", "whole", of=3))
    w = rng.uniform(0.5, 2.0, n)
    if kind == "zeros":
        w[rng.random(n) < 0.3] = 0.0
    elif kind == "a site of weight 0" and n:
        w[where == where[-1]] = 0.0
    elif kind == "scaled":
        w = w * draw(SCALES)
    elif kind == "uneven":
        w = w * 10.0 ** rng.integers(-12, 12, n)
    elif kind == "whole":
        w = np.round(2 * w).astype(int)
    return None if kind == "none" else w


ROWS, WIDTHS = st.sampled_from([0, 1, 2, 3, 5, 8, 12, 12, 20, 20, 40]), st.integers(0, 6)


@st.composite
def tables(draw: Any, rows: Any = ROWS, columns: Any = WIDTHS) -> Rows:
    n, d, rng = draw(rows), draw(columns), np.random.default_rng(draw(SEEDS))
    kinds = [draw(st.sampled_from(COLUMNS)) for _ in range(d)] if draw(st.integers(0, 3)) else ["plain"] * d
    before: list[np.ndarray] = []
    for kind in kinds:
        before.append(_column(draw, kind, before, rng, n))
    given, X = _layout(draw, np.column_stack(before) if before else np.empty((n, 0)))
    sites, where = _sites(draw, n)
    weights = _weights(draw, n, where, rng)
    with np.errstate(all="ignore"):
        size = np.abs(X).max(axis=0, initial=0.0)
        signal = (X / np.where((size > 0) & np.isfinite(size), size, 1.0)) @ rng.standard_normal(
            d
        ) + 0.3 * rng.standard_normal(n)
    plain = (
        set(kinds) <= {"plain", "two values", "whole"} and n > 2 * d > 0 and weights is None and np.ptp(X, axis=0).all()
    )
    return Rows(X, np.nan_to_num(signal), where, weights, given, sites, weights, bool(plain))


DAMAGES = [
    "nan", "inf", "word", "complex", "dates", "3-D", "1-D", "short y", "short sites", "short weights", "negative weight",
    "nan weight", "no weight", "hole in sites", "masked", "ragged", "None", "huge", "categories", "sparse y", "2-D y", "third",
    "sites by name", "y of words", "spaces in sites", "not rows",
]  # fmt: skip


def damaged(kind: str, rows: Rows, y: Any) -> tuple[list[Any], dict[str, Any]]:
    """Arguments of `fit` with one thing wrong."""
    X, n = np.array(rows.X, float), len(rows.X)
    given: dict[str, Any] = {"sites": rows.given_sites, "sample_weight": rows.given_weights}
    some = X.astype(object)
    corner = {"nan": np.nan, "inf": np.inf, "huge": 1e308, "word": "red", "None": None, "complex": 1j}
    if kind in corner:
        some[:1, :1] = corner[kind]
        return [some.astype(complex) if kind == "complex" else some, y], given
    shaped = {
        "dates": lambda: np.zeros(X.shape, "datetime64[s]"), "3-D": lambda: X[None], "1-D": lambda: X.ravel(),
        "masked": lambda: np.ma.masked_greater(X, 0.0),
        "ragged": lambda: [[1.0], *X.tolist()], "not rows": lambda: object(),
        "categories": lambda: pd.DataFrame(X).astype("category"),
    }  # fmt: skip
    if kind in shaped:
        return [shaped[kind](), y], given
    about_y = {
        "short y": lambda: y[:-1], "sparse y": lambda: sparse.csr_matrix(np.ones((n, 1))), "2-D y": lambda: np.stack([y, y], axis=1),
        "y of words": lambda: np.array(["a", "b"])[np.arange(n) % 2],
    }  # fmt: skip
    if kind in about_y:
        return [X, about_y[kind]()], given
    weights = np.ones(n)
    changes: dict[str, dict[str, Any]] = {
        "short sites": {"sites": np.arange(n + 1)}, "hole in sites": {"sites": [None, *range(n - 1)]},
        "spaces in sites": {"sites": ["a", "a "] * n}, "sites by name": {"sites": "town"},
        "short weights": {"sample_weight": weights[1:]}, "negative weight": {"sample_weight": -weights},
        "nan weight": {"sample_weight": weights * np.nan}, "no weight": {"sample_weight": 0 * weights},
    }  # fmt: skip
    return [X, y] + ([weights] if kind == "third" else []), given | changes.get(kind, {})


# --- damaged files ---


@st.composite
def spoiled(draw: Any, content: bytes) -> bytes:
    """Bytes of a file after an accident: cut short, a byte changed, doubled, a piece lost, or none."""
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    kind = draw(st.sampled_from(["whole", "cut", "changed", "lost", "doubled", "added", "empty", "bom", "zeros"]))
    return {
        "whole": content,
        "cut": content[:at],
        "changed": content[:at] + bytes([draw(st.integers(0, 255))]) + content[at + 1 :],
        "lost": content[:at] + content[at + draw(st.integers(1, 9)) :],
        "doubled": content + content,
        "added": content[:at] + draw(st.sampled_from([b",", b"\n", b'"', b"\xff", b"\x00", b"1e999", b" ", b";", b"nan"])) + content[at:],
        "empty": b"",
        "bom": b"\xef\xbb\xbf" + content,
        "zeros": content[:at] + bytes(len(content) - at),
    }[kind]  # fmt: skip
