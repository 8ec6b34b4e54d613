"""The frozen extract: a site answers from the file as its first run found it, until a person takes a new one that differs by enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import furnish, remote

import compfed as cf
from compfed.data.raw_table import RawColumn, RawTable, words_array
from compfed.network.extract import fewest_apart, take
from compfed.network.site_settings import SiteSettings

NAMES = ("north", "east", "south", "west")


def sites(rows: int = 60) -> cf.data.Sites:
    rng = np.random.default_rng(4)
    A = [rng.standard_normal((rows, 3)) for _ in NAMES]
    return cf.data.from_arrays(A, [a[:, 0] + 0.1 * rng.standard_normal(rows) for a in A], list(NAMES))


def coefficients(paths: list[Path]) -> np.ndarray:
    return cf.FederatedLasso(alpha=0.01).fit_federation(remote(paths)[0]).coef_


def said(settings: SiteSettings, agrees: bool = True) -> tuple[bool, str]:
    lines: list[str] = []
    return take(settings, lambda: agrees, lines.append), "\n".join(lines)


def test_a_site_answers_from_its_extract_until_a_person_takes_a_new_one(tmp_path):
    paths = furnish(tmp_path, sites(), "", "", secure_sum=True)
    settings = SiteSettings.read(paths[0])
    assert said(settings) == (
        True,
        f"No run of the table 'rows' yet: its first run freezes {settings.data} as it is then.",
    )
    dealt = settings.secret()
    first = coefficients(paths)
    assert settings.secret() == dealt
    before = settings.data.read_text()
    assert settings.extracts()[0].read_text() == before
    assert settings.ledger().numbers > 0
    more = ["0.5,0.5,0.5,0.5", *(f"{k / 7},{k / 5},{-k / 9},{k / 3}" for k in range(12))]
    settings.data.write_text(before + more[0] + "\n")  # one patient joined
    np.testing.assert_array_equal(coefficients(paths), first)
    with pytest.raises(
        cf.InputError, match=r"differs from extract 1 of the table by fewer than its min_rows = 10 rows in "
    ):
        said(settings)
    settings.data.write_text(before + "\n".join(more) + "\n")
    numbers = settings.ledger().numbers
    taken, text = said(settings, agrees=False)
    assert not taken
    assert "Nothing was changed." in text
    np.testing.assert_array_equal(coefficients(paths), first)
    assert said(settings)[0]
    assert [file.name for file in settings.extracts()] == ["0001.csv", "0002.csv"]
    assert settings.secret() != dealt  # or groups would differ from earlier ones by a row or two
    assert not np.array_equal(coefficients(paths), first)
    ledger = settings.ledger()
    assert ledger.numbers > numbers  # those about the old extract count together with these
    assert ledger.share() >= ledger.numbers / (192 * 3) * 0.99
    settings.data.write_text(before + more[1] + "\n")
    with pytest.raises(cf.InputError, match="differs from extract 1"):  # of all earlier ones, not of the last alone
        said(settings)


def raw(**columns: Any) -> RawTable:
    made = {
        name: RawColumn(words_array(list(values)) if isinstance(values[0], str) else np.asarray(values, float))
        for name, values in columns.items()
    }
    return RawTable("t", made, np.arange(len(next(iter(columns.values())))))


def test_rows_that_differ_are_found_whatever_else_was_changed_with_them():
    rng = np.random.default_rng(0)
    age, dose = np.rint(rng.uniform(20, 90, 100)), rng.standard_normal(100)
    sex = ["f" if k % 3 else "m" for k in range(100)]
    old = raw(age=age, dose=dose, sex=sex)
    assert fewest_apart(old, raw(age=age, dose=dose, sex=sex))[0] == 0
    order = rng.permutation(100)
    assert fewest_apart(old, raw(age=age[order], dose=dose[order], sex=[sex[k] for k in order]))[0] == 0
    # one column in other units, and one patient left: by hashes of whole rows another table
    assert fewest_apart(old, raw(age=age[1:], dose=1000 * dose[1:], sex=sex[1:]))[0] == 1
    assert fewest_apart(old, raw(age=age[1:], dose=dose[1:], sex=["w" if s == "f" else "k" for s in sex[1:]]))[0] == 1
    changed = dose.copy()
    changed[:4] += 1
    assert fewest_apart(old, raw(age=age, dose=changed, sex=sex))[0] == 4  # a changed row is one row, not two
    many = np.r_[dose, rng.standard_normal(15)]
    apart, _ = fewest_apart(old, raw(age=np.r_[age, age[:15]], dose=many, sex=[*sex, *sex[:15]]))
    assert apart == 15
