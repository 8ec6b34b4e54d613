"""The examples of docs/howto/deploy.md run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import furnish, remote

import compfed as cf
from compfed.cli import _parser
from compfed.network import operator

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "deploy.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((m, 3)) * [1.0, 20.0, 0.1] for m in (60, 80)]
    y = [(a[:, 0] + 0.5 * rng.standard_normal(len(a)) > 0).astype(float) for a in A]
    return cf.data.from_arrays(A, y, ["north", "south"])


def test_the_script_of_the_page_runs(tmp_path, monkeypatch, capsys):
    paths = furnish(tmp_path / "sites", sites())
    asked = {}

    def connect(path: str, *, folder: str):
        asked.update(path=path, folder=folder)
        return remote(paths, tmp_path / folder)[0]

    monkeypatch.setattr(operator, "connect", connect)
    monkeypatch.chdir(tmp_path)
    (script,) = blocks("python")
    names: dict = {}
    exec(script, names)
    assert asked == {"path": "clinics/federation.toml", "folder": "my-run"}
    assert "north" in capsys.readouterr().out
    rows = pd.DataFrame(np.vstack(sites().features), columns=["a0", "a1", "a2"])
    again: Any = cf.load_model("my-run")
    np.testing.assert_array_equal(again.predict_proba(rows), names["model"].predict_proba(rows))


@pytest.mark.parametrize("line", [line for block in blocks("sh") for line in block.splitlines() if line.strip()])
def test_every_command_of_the_page_exists(line):
    words = shlex.split(line, comments=True)
    assert words[0] == "compfed"
    assert _parser().parse_args(words[1:]).run is not None
