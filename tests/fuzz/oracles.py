"""The one question of the fuzzer: was this a clear refusal, or an answer that is right?"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from optimality import Objective, gradient_mapping
from sklearn.exceptions import NotFittedError

import compfed as cf
from compfed.errors import Divergence, InputError

CASES = int(os.environ.get("FUZZ_CASES", "400"))
SEED = os.environ.get("FUZZ_SEED")  # without one the cases are the same every time
SLACK = 10.0  # the certificate's own bound on rounding is an estimate
counts: Counter[str] = Counter()

ALL_CHECKS: Any = list(HealthCheck)


class Refusal(Exception):
    """A call ended in a clear error."""


def fuzz(percent: float, **drawn: Any) -> Callable[[Any], Any]:
    """A test of so many percent of all cases. All are run, whatever is found; the findings are told together."""

    def decorate(check: Callable[..., None]) -> Any:
        findings: list[str] = []

        def case(**values: Any) -> None:
            counts["cases"] += 1
            try:
                check(**values)
            except Refusal:
                counts["refused"] += 1
            except Exception:
                findings.append(f"{traceback.format_exc(limit=-4)}with {values}")
                _kept(check.__name__, len(findings), values)
            _progress()

        run = settings(
            max_examples=max(1, round(CASES * percent / 100)), deadline=None, derandomize=SEED is None, database=None,
            suppress_health_check=ALL_CHECKS, phases=[Phase.generate],
        )(given(**drawn)(case))  # fmt: skip
        run = run if SEED is None else hypothesis.seed(int(SEED))(run)

        def test() -> None:
            run()
            assert not findings, f"{len(findings)} finding(s):\n\n" + "\n\n".join(findings)

        test.__doc__ = check.__doc__
        return test

    return decorate


def _kept(name: str, number: int, values: dict[str, Any]) -> None:
    """The values of a finding as a file, to work with, where FUZZ_FINDINGS names a folder."""
    folder = os.environ.get("FUZZ_FINDINGS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(Exception):  # not everything can be kept
            Path(folder, f"{name}-{number}.pickle").write_bytes(pickle.dumps(values))


def _progress() -> None:
    """One line on a terminal, one every 100 cases elsewhere; nothing in a run of the tests."""
    if SEED is not None and (counts["cases"] % 100 == 0 or sys.stderr.isatty()):
        said = f"fuzz: {counts['cases']} of about {CASES} cases, {counts['refused']} refused, {counts['certified']} certified and checked"
        sys.stderr.write(f"\r{said}" if sys.stderr.isatty() else f"{said}\n")


def answered(call: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    """(what the call returned, what it warned of). Raises `Refused` for a clear error, fails for any other."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            value = call()
        except Exception as problem:
            if is_clear(problem):
                raise Refusal(str(problem)) from None
            raise AssertionError(f"not a clear error: {type(problem).__name__}: {problem}") from problem
    raw = [w for w in said if issubclass(w.category, RuntimeWarning)]
    assert not raw, f"a warning nobody can act on: {raw[0].message} at {raw[0].filename}:{raw[0].lineno}"
    return value, said


def is_clear(problem: BaseException) -> bool:
    """An error of ours, or of scikit-learn's own checks where its contract asks for them; with words, and not too many."""
    ours = isinstance(problem, (InputError, Divergence))
    last = traceback.extract_tb(problem.__traceback__)[-1].filename
    theirs = isinstance(problem, (ValueError, TypeError)) and any(
        part in last for part in ("sklearn/utils/", "sklearn/metrics/", "sklearn/model_selection/")
    )
    return (ours or theirs or isinstance(problem, NotFittedError)) and 10 < len(str(problem)) < 1500


# --- estimators ---


def row_shares(where: np.ndarray, weights: np.ndarray | None, equal: bool) -> Any:
    """How much every row counts, summing to 1: p_i q_il."""
    q = np.ones(len(where), np.longdouble) if weights is None else np.asarray(weights, np.longdouble)
    q = q / q.max() if q.max() > 0 else q
    if equal:
        totals = np.bincount(where, np.zeros(len(where)))  # how many sites there may be
        for i in range(len(totals)):
            of = where == i
            if q[of].any():
                q[of] = q[of] / q[of].sum()
    return q / q.sum()


def check_certificate(model: Any, of: Objective, X: np.ndarray, y: np.ndarray, q: Any, plain: bool, said: Any) -> None:
    """A certificate that holds is true; one that does not is there for a reason, or the fit has said so."""
    certificate = model.certificate_
    assert np.isfinite(model.coef_).all(), model.coef_
    assert np.isfinite(model.intercept_).all(), model.intercept_
    if certificate.duality_gap is not None:
        assert 0 <= certificate.duality_gap < np.inf
    if certificate.unique is False:
        assert any(issubclass(w.category, cf.NotUniqueWarning) for w in said), "not unique, and nobody said so"
    if not certificate.holds:
        assert not plain, f"nothing is odd here, and the certificate does not hold: {certificate}"
        return
    counts["certified"] += 1
    found = gradient_mapping(of, X, y, q, model.coef_, model.intercept_)
    assert found <= SLACK * certificate.tol, f"{certificate} holds, and the gradient mapping is {found:.1e}"
