"""What the tests of problems share."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture
def double_precision():
    """JAX in double precision; a file asks for it with `pytestmark`."""
    with jax.enable_x64(True):
        yield
