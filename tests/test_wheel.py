"""The wheel: it holds the package and nothing else, and the README's first example runs from it in a new environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# the core install: jax, numpy, scipy, scikit-learn, narwhals and what these need
CORE = {
    "cloudpickle",
    "jax",
    "jaxlib",
    "joblib",
    "ml-dtypes",
    "narwhals",
    "numpy",
    "opt-einsum",
    "scikit-learn",
    "scipy",
    "threadpoolctl",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("compfed-*.whl")
    return path


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    """Oracle: the files that git knows below src/compfed."""
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    listed = subprocess.run(["git", "ls-files", "src/compfed"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    known = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    assert known <= names
    assert all(name.startswith("compfed/") for name in names)


@pytest.mark.skipif(not os.environ.get("COMPFED_WHEEL"), reason="downloads the core install: run `make wheel`")
def test_the_readme_s_example_runs_from_the_wheel_in_a_new_environment(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    run(python, "-W", "error", "-c", block[1])
    assert run(str(tmp_path / "env" / "bin" / "compfed"), "--version").startswith("compfed ")
    found = {
        line.split("==")[0].lower().replace("_", "-")
        for line in run(python, "-m", "pip", "list", "--format", "freeze").split()
    }
    assert found - {"pip", "setuptools", "compfed"} <= CORE
