"""Arrays that JAX takes over without a copy."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import compfed as cf
from compfed._utils.arrays import CACHE_LINE_BYTES, empty_aligned


@pytest.mark.parametrize("shape", [(3,), (5, 7), (1000, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_aligned_array_begins_at_a_line_and_is_its_own(shape, dtype):
    first, second = empty_aligned(shape, dtype), empty_aligned(shape, dtype)
    assert first.shape == shape
    assert first.dtype == dtype
    assert first.ctypes.data % CACHE_LINE_BYTES == 0
    first[...], second[...] = 1.0, 2.0
    assert (first == 1.0).all()
    assert (second == 2.0).all()


def test_a_cpu_device_takes_it_over_as_it_is():
    values = empty_aligned((100, 3), "float32")
    values[...] = np.arange(300).reshape(100, 3)
    there = jax.device_put(values, jax.devices("cpu")[0])
    assert there.unsafe_buffer_pointer() == values.ctypes.data
    np.testing.assert_array_equal(there, values)


def test_the_rows_of_a_problem_are_such_arrays(monkeypatch):
    made = []
    monkeypatch.setattr(
        "compfed.problem.padded_dataset.empty_aligned", lambda *how: made.append(empty_aligned(*how)) or made[-1]
    )
    store = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), cf.data.synthetic(clients=2, samples=9)).dataset
    held = {array.ctypes.data for array in made}
    assert {a.unsafe_buffer_pointer() for a in (store.A, store.y, store.q, store.row_weight)} == held
