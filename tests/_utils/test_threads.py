"""Threads: BLAS is the caller's own again afterwards, and the bits do not depend on the number of cores."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import compfed as cf
from compfed._utils import threads
from compfed._utils.threads import available_cores, cores, map_in_order, one_blas_thread
from compfed.federation import Describe, InProcess, Request
from compfed.federation.server.program import run_program
from compfed.federation.site import in_process
from compfed.losses import lipschitz, many_models


def blas() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


@pytest.fixture(params=[1, 2])
def chosen(request):
    """The numbers of threads after a caller chose one."""
    with threadpool_limits(request.param, user_api="blas"):
        yield blas()


def two_sites() -> InProcess:
    return InProcess(cf.data.from_arrays([np.eye(3), np.eye(3)], [np.ones(3), np.zeros(3)]))


def test_blas_has_the_threads_of_the_caller_again(chosen):
    def program() -> Any:
        assert set(blas()) == {1}
        return (yield [Request((Describe(),))])

    run_program(two_sites(), program())
    assert blas() == chosen


def test_after_an_error_too(chosen):
    def program() -> Any:
        yield [Request((Describe(),))]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_program(two_sites(), program())
    assert blas() == chosen
    with pytest.raises(ValueError, match="inside"), one_blas_thread(), one_blas_thread():
        raise ValueError("inside")
    assert blas() == chosen


def test_programs_side_by_side_restore_what_the_first_one_found(chosen):
    """The second begins at one thread, which the first one set, and ends last."""
    second_runs, first_ended = threading.Event(), threading.Event()

    def second() -> None:
        with one_blas_thread():
            second_runs.set()
            assert first_ended.wait(10)

    with one_blas_thread():
        other = threading.Thread(target=second)
        other.start()
        assert second_runs.wait(10)
    first_ended.set()
    other.join(10)
    assert blas() == chosen


def test_the_second_of_two_restores_what_the_first_one_found(monkeypatch):
    """The same with a number that is one for all threads, which OpenBLAS may keep for each."""
    number = [4]

    class Limit:
        def __init__(self, **given: Any):
            self.found, number[0] = number[0], given["limits"]

        def restore_original_limits(self) -> None:
            number[0] = self.found

    monkeypatch.setattr(threads, "_controller", lambda: type("Controller", (), {"limit": Limit}))
    test_programs_side_by_side_restore_what_the_first_one_found(blas())
    assert number == [4]
    with one_blas_thread():
        with one_blas_thread():
            assert number == [1]
        assert number == [1]
    assert number == [4]


def test_the_map_keeps_order_settings_and_errors():
    with cores(3), np.errstate(over="raise"):
        assert map_in_order(lambda k: k * k, range(20)) == [k * k for k in range(20)]
        here = threading.get_ident
        # one level of threads
        inner = map_in_order(lambda k: set(map_in_order(lambda j: here(), range(3))) == {here()}, range(4))
        assert inner == [True] * 4
        with pytest.raises(FloatingPointError):
            map_in_order(lambda k: np.float64(1e300) ** 2, range(2))
        with pytest.raises(ZeroDivisionError):
            map_in_order(lambda k: 1 // (k - 3), range(5))
    assert map_in_order(str, range(2)) == ["0", "1"]
    assert available_cores() >= 1


@contextmanager
def using(count: int, patch: pytest.MonkeyPatch) -> Any:
    """All work is divided, however small, over so many cores."""
    patch.setattr(in_process, "WORTH_A_THREAD", 0)
    patch.setattr(in_process, "available_cores", lambda: count)
    patch.setattr(many_models, "CHUNK", 64)
    patch.setattr(lipschitz, "GRAM_CHUNK", 64)
    patch.setattr(lipschitz, "GRAM_ROWS", 16)
    yield


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("sites", [1, 3])
def test_the_same_bits_on_one_core_and_on_several(sites, exact, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 5))
    y = (X[:, 0] + rng.logistic(size=400) > 0).astype(int)
    where = [np.arange(400) % sites == k for k in range(sites)]
    found = []
    used: set[int] = set()
    alone = threads._alone

    def spied(function: Any, item: Any) -> Any:
        used.add(threading.get_ident())
        return alone(function, item)

    monkeypatch.setattr(threads, "_alone", spied)
    for count in (1, 2, 5):
        used.clear()
        federation = InProcess(cf.data.from_arrays([X[k] for k in where], [y[k] for k in where]), exact=exact)
        with using(count, monkeypatch):
            model = cf.FederatedLogisticRegressionCV(n_alphas=4, cv=2).fit_federation(federation)
        assert bool(used) == (count > 1)
        found.append((model.coef_path_, model.intercept_path_, model.cv_loss_))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
