"""The table of one site: read, or refused with the column and the way out; the public reason has no value."""

from __future__ import annotations

import numpy as np
import pytest

import compfed as cf
from compfed.data.readers import TableError, read_site

pytest.importorskip("pandas")


def table(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return path


def test_labels_may_be_words(tmp_path):
    A, y, columns = read_site(table(tmp_path, "age,ill\n1,no\n2,yes\n3.5,no\n"), "ill")
    assert (A.tolist(), y.tolist(), columns) == ([[1.0], [2.0], [3.5]], ["no", "yes", "no"], ("age",))
    assert y.dtype.kind == "U"
    numbers = read_site(table(tmp_path, "age,ill\n1,0\n2,1\n"), "ill")[1]
    assert numbers.tolist() == [0.0, 1.0]
    assert read_site(table(tmp_path, "a,b,c\n1,2,3\n"), ["b", "c"])[1].tolist() == [[2.0, 3.0]]


WRONG = {
    "words": ("age,sex,ill\n41,F,1\n57,M,0\n", "column 'sex' has 'F' in row 0", "words in column 'sex'"),
    "holes": ("age,sex,ill\n41,0,1\n,1,0\n", "column 'age'", "values missing in column 'age'"),
    "label": ("age,ill\n41,yes\n57,\n", "needs a label for every row; 1 row", "values missing in column 'ill'"),
    "absent": ("age,sick\n41,1\n57,0\n", "has no column 'ill'", "it has no column 'ill'"),
    "nothing": ("", "cannot be read as CSV", "its table cannot be read; `compfed site check` says why there"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_table_is_told_without_a_value(what, tmp_path):
    text, reason, told = WRONG[what]
    with pytest.raises(TableError, match=reason) as found:
        read_site(table(tmp_path, text), "ill")
    assert told in found.value.public_reason
    assert not any(value in found.value.public_reason for value in ("41", "57", "'F'", "yes"))
    assert isinstance(found.value, cf.InputError)
    if what in ("words", "holes"):
        assert "or leave the column out: alike at every site" in found.value.public_reason


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TableError, match=r"correct `data` in site\.toml"):
        read_site(tmp_path / "no.csv", "ill")


def test_numbers_are_those_of_the_file_to_the_last_bit(tmp_path):
    values = np.random.default_rng(0).standard_normal(50)
    text = "a,y\n" + "".join(f"{v!r},{-v!r}\n" for v in map(float, values))
    A, y, _ = read_site(table(tmp_path, text), "y")
    np.testing.assert_array_equal(A[:, 0], values)
    np.testing.assert_array_equal(y, -values)
