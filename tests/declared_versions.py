"""Does compfed work with the lowest and the newest versions that pyproject.toml declares? Each in an environment of its own.

    python tests/declared_versions.py lowest newest [--keep FOLDER]

Installs compfed from this checkout with its core and the extras report, pandas and parquet, at the versions in question, and runs
tests/smoke.py there. Flower, which allows few versions, has a target of its own: `make test-flower-versions`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("report", "pandas", "parquet")


def declared() -> dict[str, list[str]]:
    """The requirements of the core and of the extras, by package: its lower bounds."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    given = [*project["dependencies"], *(line for name in EXTRAS for line in project["optional-dependencies"][name])]
    found: dict[str, list[str]] = {}
    for line in given:
        parts = re.fullmatch(r"([\w-]+)>=([\d.]+)", line)
        if parts is None:
            raise ValueError(f"pyproject.toml: {line!r} must be name>=version, and no more.")
        found.setdefault(parts[1], []).append(parts[2])
    return found


def requirements(which: str) -> list[str]:
    """What pip is asked for: each package at its lower bound, or without any bound, for the newest."""
    bounds = {name: max(versions, key=_as_numbers) for name, versions in declared().items()}
    return [f"{name}=={bound}" if which == "lowest" else name for name, bound in bounds.items()]


def _as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def check(which: str, folder: Path) -> None:
    """Make the environment and run the smoke test in it."""
    venv.create(folder / which, with_pip=True)
    python = str(folder / which / ("Scripts" if os.name == "nt" else "bin") / "python")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *requirements(which)], check=True, env=clean)
    # whatever was installed must satisfy what compfed declares: pip checks it here
    subprocess.run([*pip, f"{ROOT}[{','.join(EXTRAS)}]"], check=True, env=clean)
    subprocess.run([python, str(ROOT / "tests" / "smoke.py")], check=True, env=clean, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="+", choices=["lowest", "newest"])
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make the environments there, and leave them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for which in args.which:
            print(f"{which}: {', '.join(requirements(which))}", flush=True)
            check(which, args.keep or Path(folder))


if __name__ == "__main__":
    sys.exit(main())
