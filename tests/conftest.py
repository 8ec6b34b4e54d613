"""Settings and problems shared by the tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

os.environ["COMPFED_CACHE"] = "off"  # tests compile what they test, and leave nothing in the user's cache
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tests run side by side: more threads would wait for each other
THOROUGH = bool(os.environ.get("COMPFED_THOROUGH"))
if not THOROUGH:
    # Most of the time goes to compiling. LLVM's level 0 and XLA's older fusion emitters need half the time for the same
    # arithmetic. `make test-all` compiles as users do. (XLA stops a process that names a flag which it does not know.)
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: runs with `make test-all` only; minutes of compilation")
    config.addinivalue_line(
        "markers",
        "identity(row, *algorithms): verifies row `row` of the table of identities for these algorithms; the table "
        "of algorithms is generated from these marks",
    )


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Deselect what only `make test-all` runs."""
    if THOROUGH:
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def pytest_collection_finish() -> None:
    """Take the modules imported so far out of the garbage collector's sight: it would visit them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def compilations() -> Callable[[], int]:
    """How many programs for rounds were compiled since the test began.

    The count is that of the programs in memory, which are dropped when there are too many. So the test starts with none, and
    what other tests compiled in this process before does not matter.
    """
    from compfed._utils.compilation import limit_programs
    from compfed.simulation.xla import compiled, grid_rounds, single_rounds

    limit_programs(most=0)
    single, grid = compiled(single_rounds, "options"), compiled(grid_rounds, "options", "varies", "shape", grid=True)
    return lambda: single._cache_size() + grid._cache_size()  # JAX has no public count


@pytest.fixture
def double_precision():
    """JAX in double precision; a file asks for it with `pytestmark`."""
    import jax

    with jax.enable_x64(True):
        yield
