"""Settings and problems shared by the tests."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "identity(row, *algorithms): verifies row `row` of the table of identities for these algorithms; the table "
        "of algorithms is generated from these marks",
    )
