"""The attacks of `by_protocol` read nothing from sites with the default policy. What each read before is in README.md."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="a network runs on Flower: pip install '.[flower]'")

from attacks.by_protocol import ATTACKS, run

READ = {  # how the answer begins where nothing is read; other answers
    "T4": "0 of 143 rows of one site, 0 of 569",
    "T4, constant columns": "0 of 143 rows",
    "T5, the first step": "honest sites answer 0 of",
    "T7": "1 answers that tell something",
    "T8, no columns": "0 of 143 labels",
    "T8, `terms`": "0 of 143 labels",
    "T9, not stated": "the gradient at 6 models",  # what a run states is the operator's word: the count ends it
}
LONG = ("T8, held-out rows", "T1, asked for")


@pytest.mark.parametrize(
    "name", [name if name not in LONG else pytest.param(name, marks=pytest.mark.thorough) for name in ATTACKS]
)
def test_nothing_is_read(name):
    found = run(name)
    if name == "T8, held-out rows":  # rounded, not refused
        assert float(found.rpartition(" ")[2]) > 1e-6
    elif name == "T9, not stated":
        assert "then it waits for a person at the site" in found
        assert found.startswith(READ[name]), found
    else:
        assert found.startswith(READ.get(name, "nothing")), found
