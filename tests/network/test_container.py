"""The steps of the Containerfile, in a plain folder in place of an image: what is copied suffices, and the commands exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from test_site import site as make_site

IN_IMAGE_ONLY = {"useradd"}  # commands that change the system


def steps() -> list[tuple[str, str]]:
    """The instructions of the Containerfile, in order."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in lines]


def below(root: Path, text: str) -> str:
    """A command of the image with its folders below a root."""
    return re.sub(r"(?<![\w.])/(opt|site)\b", lambda found: f"{root}/{found[1]}", text)


def run(root: Path, command: str | list[str], **options: str) -> subprocess.CompletedProcess[str]:
    # pip takes its build tools, and the packages that compfed needs, from this environment: nothing is downloaded
    paths = os.pathsep.join([*site.getsitepackages(), *(path for path in sys.path if "site-packages" in path)])
    given = {
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONPATH": paths,
        **options,
    }
    shell = isinstance(command, str)
    return subprocess.run(
        command, shell=shell, capture_output=True, text=True, env=os.environ | given, cwd=root / "site"
    )


@pytest.mark.thorough
def test_the_steps_give_a_site_that_says_how_it_is(tmp_path):
    """Its health check fails while no service runs, and names the reason; the installed package is that of the image."""
    root = tmp_path / "image"
    (root / "site").mkdir(parents=True)
    for kind, text in steps():
        if kind == "COPY":
            *sources, target = below(root, text).split()
            for source in sources:
                into = Path(target) if (ROOT / source).is_dir() else Path(target) / source
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                into.parent.mkdir(parents=True, exist_ok=True)
                copy(ROOT / source, into)
        elif kind == "RUN" and text.split()[0] not in IN_IMAGE_ONLY:
            done = run(root, below(root, text.replace("python -m venv", f"{sys.executable} -m venv")))
            assert done.returncode == 0, done.stderr
    found = dict(steps())
    check = json.loads(below(root, found["HEALTHCHECK"].partition("CMD ")[2]))
    started = json.loads(below(root, found["CMD"]))
    installed = next((root / "opt" / "compfed" / "lib").glob("*/site-packages/compfed/__init__.py"))
    version = run(
        root, [started[0], "--version"], PYTHONPATH=os.pathsep.join([str(installed.parents[1]), *sys.path[1:]])
    )
    assert re.fullmatch(r"compfed \S+\n", version.stdout), version.stderr
    made = make_site(tmp_path / "made")
    shutil.copytree(made.parent, root / "site", dirs_exist_ok=True)
    ill = run(root, check)
    assert ill.returncode == 1, ill.stderr
    assert "PROBLEM  the service does not run" in ill.stdout
    refused = run(root, started)  # ca.crt is missing: it says so, and ends
    assert (refused.returncode, "ca = 'ca.crt' is not there" in refused.stderr) == (2, True), refused.stderr


def test_what_is_copied_is_there_and_no_secret_is():
    """And it runs as a user of its own, opens no port, and its commands are those of the parser."""
    from compfed.cli import _parser

    found = steps()
    for kind, text in found:
        if kind == "COPY":
            *sources, _ = text.split()
            assert all((ROOT / source).exists() for source in sources)
            assert not any(source in (".", "./") for source in sources)
    assert ("USER", "compfed") in found
    assert "EXPOSE" not in dict(found)
    for text in (dict(found)["CMD"], dict(found)["HEALTHCHECK"].partition("CMD ")[2]):
        assert callable(_parser().parse_args(json.loads(text)[1:]).run)
    python = re.search(r"python:(\d\.\d+)", dict(found)["FROM"])
    assert python
    assert f'"Programming Language :: Python :: {python[1]}"' in (ROOT / "pyproject.toml").read_text()
