"""The table of one site: read, or refused with the column and the way out; the public reason has no value."""

from __future__ import annotations

import numpy as np
import pytest

import compfed as cf
from compfed.data.readers import check_complete, read_site
from compfed.data.table_problems import TableError


def table(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return path


def test_labels_may_be_words(tmp_path):
    found = read_site(table(tmp_path, "age,ill\n1,no\n2,yes\n3.5,no\n"), "ill").encoded
    assert found.y is not None
    assert (found.A.tolist(), found.y.tolist(), found.columns) == ([[1.0], [2.0], [3.5]], ["no", "yes", "no"], ("age",))
    assert found.y.dtype.kind == "U"
    for text, label, labels in (
        ("age,ill\n1,0\n2,1\n", "ill", [0.0, 1.0]),
        ("a,b,c\n1,2,3\n", ["b", "c"], [[2.0, 3.0]]),
    ):
        y = read_site(table(tmp_path, text), label).encoded.y
        assert y is not None
        assert y.tolist() == labels


WRONG = {
    "words": ("age,sex,ill\n41,F,1\n57,M,0\n", "column 'sex' has words, such as 'F' on line 2", "words in column 'sex'"),
    "holes": ("age,sex,ill\n41,0,1\n,1,0\n", "column 'age' has 1 missing", "values missing in column 'age'"),
    "label": ("age,ill\n41,yes\n57,\n", "column 'ill' has no label on line 3", "values missing in column 'ill'"),
    "absent": ("age,sick\n41,1\n57,0\n", "has no column 'ill'", "it has no column 'ill'"),
    "nothing": ("", "cannot be read as CSV", "its table cannot be read; `compfed site check` says why there"),
    "fields": ("age,ill\n41\n", "line 2 has 1 field", "its table cannot be read; `compfed site check` says why there"),
    "free text": (
        "note,ill\n" + "".join(f"F{k}57,0\n" for k in range(41)), "free text or an identifier", "free text in column 'note'",
    ),
    "several": (
        "age,sex,w,ill\n41,F,,1\n,M,2,0\n", "(?s)3 problems.*'age'.*'sex'.*'w'",
        "values missing in column 'age', 'w'; words in column 'sex'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_table_is_told_without_a_value(what, tmp_path):
    text, reason, told = WRONG[what]
    with pytest.raises(TableError, match=reason) as found:
        check_complete(read_site(table(tmp_path, text), "ill"))
    assert told in found.value.public_reason
    assert not any(value in found.value.public_reason for value in ("41", "57", "'F'", "yes"))
    assert isinstance(found.value, cf.InputError)
    if what in ("words", "holes"):
        assert "or leave the column out: alike at every site" in found.value.public_reason


SCHEMA = """
[columns.age]
impute = 50
[columns.sex]
levels = ["F", "M"]
[label]
column = "ill"
classes = ["no", "yes"]
[rows]
weight = "w"
"""


def test_a_schema_file_encodes_words_and_blanks(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    path = table(tmp_path, "ill;w;sex;age\nyes;2;M;41\nno;1,5;F;\n")
    found = read_site(path, None, schema=tmp_path / "schema.toml")
    check_complete(found)
    assert found.encoded.columns == ("age", "sex=M")
    assert found.encoded.A.tolist() == [[41, 1], [50, 0]]
    assert found.encoded.y is not None
    assert found.encoded.weights is not None
    assert (found.encoded.y.tolist(), found.encoded.weights.tolist()) == ([1, 0], [2, 1.5])
    assert found.raw.columns["sex"].values.tolist() == ["M", "F"]
    for row, reason, told in (
        (
            "perhaps;1;M;41",
            "column 'ill' has 'perhaps' on line 2, not one of the classes",
            "does not have in column 'ill'",
        ),
        ("no;1;X;41", "column 'sex' has 'X' on line 2, not one of its levels", "does not have in column 'sex'"),
        ("no;1;;41", "column 'sex' has 1 missing", "values missing in column 'sex'"),
        ("no;-7;F;41", "the weight 'w' is negative on line 2", "negative weights in column 'w'"),
    ):
        with pytest.raises(TableError, match=reason) as error:
            read_site(table(tmp_path, f"ill;w;sex;age\n{row}\n"), None, schema=tmp_path / "schema.toml")
        assert told in error.value.public_reason
        assert not any(value in error.value.public_reason for value in ("perhaps", "'X'", "41", "-7"))


def test_a_schema_that_is_not_agreed_is_refused(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA.replace("50", '"mean"'))
    with pytest.raises(TableError, match=r"what stands for missing values of 'age'\. Agree on it"):
        read_site(table(tmp_path, "ill,w,sex,age\nyes,2,M,41\n"), None, schema=tmp_path / "schema.toml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TableError, match=r"correct `data` in site\.toml"):
        read_site(tmp_path / "no.csv", "ill")


def test_numbers_are_those_of_the_file_to_the_last_bit(tmp_path):
    values = np.random.default_rng(0).standard_normal(50)
    text = "a,y\n" + "".join(f"{v!r},{-v!r}\n" for v in map(float, values))
    found = read_site(table(tmp_path, text), "y").encoded
    np.testing.assert_array_equal(found.A[:, 0], values)
    np.testing.assert_array_equal(found.y, -values)
