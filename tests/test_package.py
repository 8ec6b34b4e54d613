"""`import compfed` is quick, has every name it promises, and does not need to be installed."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib import metadata

import declared_versions
import pytest
from packaging.requirements import Requirement
from places import ROOT

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


def test_no_private_module_of_another_package_is_imported():
    """What may change without notice: docs/start/install.md says what we use beyond public names. Flower has one file."""
    found = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            found |= {(path.name, name) for name in names if not name.startswith(("compfed", "__future__"))}
    assert len(found) > 100
    private = {(file, name) for file, name in found if any(part.startswith("_") for part in name.split("."))}
    assert private == {("table.py", "sklearn.utils.validation._check_sample_weight")}  # its words, which users know
    assert {file for file, name in found if name.startswith("flwr")} == {"flower.py"}


STARTED = """
from compfed._utils.compilation import has_started
import jax
before = jax.config.jax_num_cpu_devices
first = has_started(), jax.config.jax_num_cpu_devices == before
jax.numpy.ones(2).sum()
print(*first, has_started(), jax.config.jax_num_cpu_devices == before, len(jax.devices()))
"""


def test_whether_jax_has_started_is_known_and_asking_changes_nothing():
    """Oracle: JAX itself, before and after its first computation."""
    said = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True)
    assert said.stdout.split() == ["False", "True", "True", "True", "1"], said.stderr


def test_every_address_of_the_package_is_that_of_the_citation():
    """The repository has no public address yet: the only one is the paper's."""
    addresses = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert all(address in (ROOT / "CITATION.cff").read_text(encoding="utf-8") for address in addresses.values())


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
