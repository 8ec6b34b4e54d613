"""`import compfed` is quick, has every name it promises, and does not need to be installed."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import declared_versions
import pytest
from packaging.requirements import Requirement

import compfed as cf

NOTHING_YET = """
import importlib.metadata as metadata, sys
real = metadata.version
def version(name):
    if name == "compfed":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
import compfed
from compfed._utils.text import versions
print(compfed.__version__, versions()["compfed"], *(name for name in ("jax", "numpy", "scipy", "sklearn") if name in sys.modules))
"""


def test_without_package_metadata_the_version_is_unknown_and_nothing_is_imported_yet():
    said = subprocess.run([sys.executable, "-c", NOTHING_YET], capture_output=True, text=True)
    assert said.stdout.split() == ["0+unknown", "0+unknown"], said.stderr


def test_every_name_that_is_promised_is_there():
    for name in cf.__all__:
        assert getattr(cf, name) is getattr(cf, name)
    assert set(cf.__all__) <= set(dir(cf))
    with pytest.raises(AttributeError, match="module 'compfed' has no attribute 'Lasso'"):
        cf.Lasso  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]  # the mistake


def test_the_versions_that_are_declared_are_those_that_are_tried():
    """Oracle: the requirements that the installed package states."""
    of_core = [Requirement(line) for line in metadata.requires("compfed") or () if "extra ==" not in line]
    lowest = dict(line.split("==") for line in declared_versions.requirements("lowest"))
    assert {r.name: str(r.specifier) for r in of_core}.items() <= {n: f">={v}" for n, v in lowest.items()}.items()
    assert {"matplotlib", "bokeh", "pandas", "pyarrow"} <= set(lowest)
    assert set(declared_versions.requirements("newest")) == set(lowest)
