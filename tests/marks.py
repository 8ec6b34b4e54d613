"""Which identities verify which algorithm, read off the marks in the test files.

python tests/marks.py     writes src/compfed/verified.json, from which the table of algorithms is made
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "src" / "compfed" / "verified.json"


def collect() -> dict[str, list[int]]:
    """Algorithm -> rows of the table of identities, from every `@pytest.mark.identity(row, *algorithms)`."""
    found: dict[str, set[int]] = {}
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.identity":
                row, *algorithms = (ast.literal_eval(argument) for argument in node.args)
                for name in algorithms:
                    found.setdefault(name, set()).add(row)
    return {name: sorted(rows) for name, rows in sorted(found.items())}


def rows() -> set[int]:
    """All rows that some test is marked with."""
    found = set()
    for path in sorted(HERE.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.identity":
                found.add(ast.literal_eval(node.args[0]))
    return found


if __name__ == "__main__":
    TARGET.write_text(json.dumps(collect(), indent=2) + "\n")
