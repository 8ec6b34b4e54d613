"""Attacks by several runs: a table whose export changes between them, and parameters that are a model of the operator's choice.

    PYTHONPATH=src:tests python -m attacks.by_runs

prints what each reads from four masked sites with the default policy, each a real site service with its folder, ledger and masks. The
file imports nothing that came after these attacks: with `PYTHONPATH=OLD/src:OLD/tests python tests/attacks/by_runs.py` the same attacks
run against an earlier version. `by_protocol` has them in its table.
"""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from attacks.by_operator import Operator, Refused, rows
from network.memory_link import MemoryLink, fields_of, furnish, remote

import compfed as cf
from compfed.federation import Moments
from compfed.network.site_settings import SiteSettings
from compfed.splits import Fold

SIZES, NAMES, WIDTH, FOLDS = (143, 121, 113, 150), ("north", "south", "east", "west"), 5, 10
TABLE = cf.data.bundled.breast_cancer()
EXTRA = 12  # rows that come with a new extract: a site allows 10 and more


def sites(label: int | None = None) -> tuple[cf.data.Sites, np.ndarray]:
    """Four sites drawn from the breast cancer table, and rows of it that no site has; the label is the class, or another column."""
    y = TABLE.y.astype(float) if label is None else TABLE.X[:, label]
    order, ends = np.random.default_rng(1).permutation(len(y)), np.cumsum(SIZES)
    chosen = [order[end - size : end] for end, size in zip(ends, SIZES, strict=True)]
    A, more = [TABLE.X[here, :WIDTH] for here in chosen], order[ends[-1] :]
    return cf.data.from_arrays(A, [y[here] for here in chosen], list(NAMES)), np.c_[TABLE.X[more, :WIDTH], y[more]]


def masked(folder: Path, label: int | None = None) -> list[Path]:
    paths = furnish(folder, sites(label)[0], "", "", secure_sum=True)
    for path in paths:  # what other tests let leave is not the default
        path.write_text(path.read_text().replace("share_by_rule = inf\nmax_share = inf\n", ""))
    return paths


# --- a table whose export changes ---


def export(path: Path) -> np.ndarray:
    """The table of a site as its file has it, labels last."""
    return np.loadtxt(path.parent / "rows.csv", delimiter=",", skiprows=1)


def write_export(path: Path, table: np.ndarray) -> None:
    file = path.parent / "rows.csv"
    head = file.read_text().splitlines()[0]
    file.write_text("\n".join([head, *(",".join(map(repr, row)) for row in table.tolist())]) + "\n")


class Sums:
    """What one run tells: rows, sums and sums of squares of every column, over all rows and over the rows of each fold."""

    def __init__(self, paths: list[Path], run: str):
        operator = Operator(paths, run)
        operator.enrol()
        folds = [Fold(k, FOLDS, 0, np.zeros(len(NAMES), int), by_class=False, held_out=True) for k in range(FOLDS)]
        found, _ = operator.totals([rows(Moments()), *(rows(Moments(fold)) for fold in folds)])
        self.rows = np.array([float(np.ravel(each.weight)[0]) for each in found])
        # of each pair of doubles the first
        self.sums = np.array([each.mean[0] for each in found])
        self.squares = np.array([each.square[0] for each in found])


def patient_who_left(folder: Path) -> str:
    """The next export of a site has one column in other units, and one patient less: what two runs differ by is that patient."""
    paths = masked(folder)
    before, table = Sums(paths, "before"), export(paths[0])
    left, new = table[17, :WIDTH], np.delete(table, 17, axis=0)
    new[:, 0] *= 1000.0
    write_export(paths[0], new)
    try:
        after = Sums(paths, "after")
    except Refused as refused:
        return f"nothing: {refused}"
    error = np.abs((before.sums - after.sums)[0] / left - 1)
    known = error < 1e-6
    if not known.any():
        same = np.array_equal(before.sums, after.sums)
        return "nothing: both runs were answered from one extract" if same else "nothing"
    return f"{int(known.sum())} of {WIDTH} values of the patient who left, to {error[known].max():.0e}"


def apart(before: Sums, after: Sums) -> list[np.ndarray]:
    """Rows by which the same fold differs in two runs: one that came or left alone, or one in the place of another."""
    found = list[np.ndarray]()
    for n, d, e in zip(after.rows - before.rows, after.sums - before.sums, after.squares - before.squares, strict=True):
        if n == 0 and np.abs(d).min() > 0:  # d = b - a, e = b^2 - a^2
            found += [(e / d + d) / 2, (e / d - d) / 2]
        elif abs(n) == 1:
            found.append(d * n)
    return found


def read(candidates: list[np.ndarray], truth: np.ndarray) -> tuple[int, float]:
    """How many rows are known in every column, and the largest error of one, relative."""
    errors = np.array([np.abs(np.array(candidates) / row - 1).max(axis=1).min() for row in truth if len(candidates)])
    known = errors[errors < 1e-6]
    return len(known), float(known.max(initial=0.0))


def groups_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a site answers from, and the fold of each: what an attacker is not told."""
    site: Any = SiteSettings.read(path).site()
    own = getattr(site, "rows", site)
    return np.column_stack([own.features, own.labels]), own.buckets_of_rows % FOLDS


def neighbours_changed_places(folder: Path) -> str:
    """The next export has the same rows, and two neighbours in the other order: they change folds where folds go by place."""
    paths = masked(folder)
    before, table = Sums(paths, "before"), export(paths[0])
    found, folds = groups_of(paths[0])
    assert np.array_equal(found, table)
    # an export that moves two rows of one class: the first such pair that is not in one fold
    i = next(i for i in range(len(table) - 1) if folds[i] != folds[i + 1] and table[i, -1] == table[i + 1, -1])
    table[[i, i + 1]] = table[[i + 1, i]]
    write_export(paths[0], table)
    try:
        count, error = read(apart(before, Sums(paths, "after")), table[:, :WIDTH])
    except Refused as refused:
        return f"nothing: {refused}"
    return f"{count} rows, to {error:.0e}" if count else "nothing: no sum over a fold is another one"


def sorted_anew(folder: Path) -> str:
    """The next export has the same rows in the order of another column: the sets that two runs have sums over."""
    paths = masked(folder)
    Sums(paths, "before")
    (old, old_folds), table = groups_of(paths[0]), export(paths[0])
    write_export(paths[0], table[np.argsort(table[:, 2], kind="stable")])
    try:
        Sums(paths, "after")
    except Refused as refused:
        return f"nothing: {refused}"
    new, new_folds = groups_of(paths[0])
    place = [int(np.flatnonzero((new == row).all(axis=1))[0]) for row in old]
    common = np.zeros((FOLDS, FOLDS), int)
    np.add.at(common, (old_folds, new_folds[place]), 1)
    inside = common[(common > 0) & (common < common.sum(axis=1, keepdims=True))]
    if not inside.size:
        return "nothing: every fold has the rows that it had"
    return f"folds of two runs that have {inside.min()} to {inside.max()} rows of one site in common"


def extract_taken(folder: Path) -> str:
    """A person at the site takes a new extract with 12 rows more: the folds are dealt again, by the content of all rows."""
    paths = masked(folder, label=21)
    before = Sums(paths, "before")
    write_export(paths[0], np.concatenate([export(paths[0]), sites(label=21)[1][:EXTRA]]))
    with contextlib.suppress(ImportError):  # earlier versions answer from the new file without a question
        from compfed.network.extract import take

        take(SiteSettings.read(paths[0]), lambda: True, lambda text: None)
    try:
        count, error = read(apart(before, Sums(paths, "after")), export(paths[0])[:, :WIDTH])
    except Refused as refused:
        return f"nothing: {refused}"
    return f"{count} rows, to {error:.0e}" if count else "nothing"


# --- parameters that are a model ---

RUNS = 10


class Waits(Exception):
    """A site waits for a person."""


def bounds_at_a_model(folder: Path, stated: bool = True) -> str:
    """Bounds from 0 to t and no penalty: where each holds the fit ends at t, and tells the gradient there.

    With `stated=False` the operator leaves the bounds out of what it states.
    """
    paths = masked(folder)
    A, y = (np.concatenate(part) for part in (sites()[0].features, sites()[0].labels))
    centre, sd, classes = A.mean(axis=0), A.std(axis=0), 2 * y - 1
    outwards, rng = np.sign((A - centre).T @ classes), np.random.default_rng(0)  # signs, of an earlier fit
    hits, error, waits = 0, 0.0, ""
    for _ in range(RUNS):
        t = outwards * rng.uniform(0.002, 0.01, WIDTH) / sd
        federation, link = remote(paths)
        link.meddle = lambda name, data, reply, link=link: _unless_pending(link, name, reply())
        if not stated and hasattr(federation, "state"):
            _leave_out_parameters(federation)
        seen = _gradients_seen(federation)
        estimator = cf.FederatedLogisticRegression(alpha=0.0, bounds=(np.minimum(t, 0.0), np.maximum(t, 0.0)))
        try:
            model = estimator.fit_federation(federation)
        except Waits as problem:
            waits = str(problem)
            break
        z = classes * (A @ t + np.ravel(model.intercept_)[0])
        # the sum of the slopes is 0, as the intercept is free: no centre matters
        true = -((classes / (1 + np.exp(z))) @ (A - centre)) / len(y)
        near = min(np.abs(g[:WIDTH] / true / k - 1).max() for g in seen for k in (np.ones(WIDTH), 1 / sd))
        if np.allclose(np.ravel(model.coef_), t, rtol=1e-12, atol=0.0) and near < 1e-6:
            hits, error = hits + 1, max(error, near)
    if not hits:
        return f"nothing: {waits or 'no run ended at the model'}"
    then = f", then {waits}" if waits else ""
    return f"the gradient at {hits} models of the operator's choice, one a run, to {error:.0e}{then}"


def _unless_pending(link: MemoryLink, name: str, data: bytes) -> bytes:
    if b'"pending"' in data:
        raise Waits(fields_of(link, name, data)["reason"])
    return data


def _leave_out_parameters(federation: Any) -> None:
    honest = federation.state
    federation.state = lambda stated: honest(replace(stated, parameters=""))


def _gradients_seen(federation: Any) -> list[np.ndarray]:
    seen, exchange = list[np.ndarray](), federation.exchange

    def kept(requests: Any) -> Any:
        sums, cost = exchange(requests)
        seen.extend(g for summed in sums for s in summed if hasattr(s, "gradient") for g in s.gradient)
        return sums, cost

    federation.exchange = kept
    return seen


ATTACKS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "T6, a patient less": ("the next export has one column in other units, and one patient less", patient_who_left),
    "T6, two neighbours": ("the next export has two neighbours in the other order", neighbours_changed_places),
    "T6, sorted anew": ("the next export is sorted by another column", sorted_anew),
    "T6, taken": ("a person takes a new extract with 12 rows more; labels are numbers", extract_taken),
    "T9": ("bounds from 0 to t and no penalty: the model ends at t", bounds_at_a_model),
    "T9, not stated": (
        "the same, and the operator leaves the bounds out of what it states",
        lambda folder: bounds_at_a_model(folder, stated=False),
    ),
}


def run(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ATTACKS[name][1](Path(folder))


def main() -> None:
    print("| attack | how | what it reads |\n|---|---|---|")
    for name, (how, _) in ATTACKS.items():
        print(f"| {name} | {how} | {run(name)} |", flush=True)


if __name__ == "__main__":
    main()
