"""Table 1 and the agreement of a schema, against pandas on the pooled rows and on those of each site."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from federation.wired import replies

import compfed as cf
from compfed.data.encoding import encode, propose
from compfed.data.table_files import table_of_frame
from compfed.federation import DisclosurePolicy, InProcess, Moments, QueryLimits, Refusal, Site, Tabulate, ask
from compfed.federation.enrolment import Agreement
from compfed.federation.server.arrivals import enrolment_fault
from compfed.federation.server.tabulation import CategoricalSummary, NumericSummary
from compfed.federation.site.rows import Rows
from compfed.federation.table_one import standardised_difference

POLICY = DisclosurePolicy()
NAMES = ("north", "south", "east")


def frame(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({
        "age": rng.normal(60 + seed, 12, rows).round(1), "crp": 1e6 + rng.lognormal(0, 0.5, rows),
        "sex": rng.choice(["female", "male"], rows), "stage": rng.choice(["I", "II", "III"], rows, p=[0.5, 0.3, 0.2]),
        "died": rng.choice(["no", "yes"], rows),
    })  # fmt: skip
    found.loc[rng.random(rows) < 0.1, "age"] = np.nan
    found.loc[rng.random(rows) < 0.1, "sex"] = None
    return found


FRAMES: list[Any] = [frame(k, rows) for k, rows in enumerate((150, 90, 120))]


def sites(frames: list[Any] = FRAMES, policy: DisclosurePolicy | None = None, **options: Any) -> list[Site]:
    """Sites whose tables are not encoded yet."""
    proposal = cf.Schema({name: cf.NumericColumn() for name in frames[0] if name != "died"}, cf.Label("died"))
    made = []
    for i, (name, rows) in enumerate(zip(NAMES, frames, strict=False)):
        mine = cf.Schema({c: cf.NumericColumn() for c in rows if c != "died"}, proposal.label)
        options = {"limits": QueryLimits(), **options}
        raw = table_of_frame(rows, name)
        made.append(Site(Rows.to_agree(raw, mine, "has no schema.", name=name, index=i), policy=policy, **options))
    return made


def federation(policy: DisclosurePolicy | None = None, exact: bool = False, **options: Any) -> InProcess:
    return InProcess(sites(policy=policy, **options), exact=exact)


@pytest.mark.parametrize("exact", [False, True], ids=["doubles", "exact sums"])
def test_table_one_is_that_of_pandas(exact):
    table = cf.describe(federation(exact=exact))
    pooled: Any = pd.concat(FRAMES)
    assert table.sites is not None
    for found, rows in zip((table.overall, *table.sites), (pooled, *FRAMES), strict=True):
        assert found.rows == len(rows)
        for name in ("age", "crp"):
            column, values = found.columns[name], rows[name]
            assert isinstance(column, NumericSummary)
            assert column.missing == (values.isna().sum(),) * 2
            assert column.values == values.count()
            np.testing.assert_allclose((column.mean, column.sd), (values.mean(), values.std()), rtol=1e-12)
            for q, (low, high) in column.quantiles.items():
                assert low - 1e-9 <= values.quantile(q) <= high + 1e-9
                assert high - low <= 2e-4 * values.std()
        for name in ("sex", "stage", "died"):
            column, counts = found.columns[name], rows[name].value_counts()
            assert isinstance(column, CategoricalSummary)
            assert {level: low for level, (low, _) in column.levels.items()} == counts.to_dict()
            assert column.missing == (rows[name].isna().sum(),) * 2
            assert column.others == (0, 0)
    assert table.communication.rounds == 5


def test_every_quantile_is_in_its_interval():
    """Ties, outliers, constants and two rows; also the extremes."""
    rng = np.random.default_rng(1)
    columns = {
        "ties": rng.integers(0, 3, 60).astype(float), "heavy": rng.standard_cauchy(60) ** 3, "constant": np.full(60, 7.0),
        "tiny": 1e-9 * rng.standard_normal(60), "shifted": 1e9 + rng.standard_normal(60),
    }  # fmt: skip
    rows = pd.DataFrame({**columns, "died": 0.0})
    quantiles = (0.0, 0.1, 0.5, 0.9, 1.0)
    table = cf.describe(InProcess(sites([rows[:2], rows[2:], rows[:30]])), quantiles=quantiles)
    pooled: Any = pd.concat([rows[:2], rows[2:], rows[:30]])
    for name in columns:
        column = table.overall.columns[name]
        assert isinstance(column, NumericSummary)
        for q, (low, high) in column.quantiles.items():
            slack = 1e-12 * abs(pooled[name]).max()
            assert low - slack <= pooled[name].quantile(q) <= high + slack, (name, q)


@pytest.mark.parametrize("exact", [False, True], ids=["doubles", "exact sums"])
def test_under_a_policy_bounds_hold_the_counts_and_quantiles(exact):
    table = cf.describe(federation(POLICY, exact))
    pooled: Any = pd.concat(FRAMES)
    assert table.sites is not None
    for found, rows in zip((table.overall, *table.sites), (pooled, *FRAMES), strict=True):
        for name in ("age", "crp"):
            column, values = found.columns[name], rows[name]
            assert isinstance(column, NumericSummary)
            assert column.missing[0] <= values.isna().sum() <= column.missing[1]
            np.testing.assert_allclose(column.mean, values.mean(), rtol=1e-3 if found is table.overall else 1e-12)
            for q, (low, high) in column.quantiles.items():
                assert low <= values.quantile(q) <= high
        for name in ("sex", "stage", "died"):
            column = found.columns[name]
            assert isinstance(column, CategoricalSummary)
            for level, count in rows[name].value_counts().items():
                low, high = column.levels[str(level)]
                assert low <= count <= high <= low + 2 * (3 if found is table.overall else 1)


def test_masked_sums_have_no_table_of_single_sites():
    found = cf.describe(federation(POLICY, exact=True, secure_sum=True))
    assert found.sites is None
    assert found.differences == {}
    assert "the sums are masked: there is no table of single sites" in str(found)
    assert "SMD" not in str(found)


def test_rows_of_weight_zero_are_not_counted():
    X, y = np.arange(12.0).reshape(6, 2), np.array([0.0, 1, 0, 1, 0, 1])
    data = cf.data.from_arrays([X, X[:3]], [y, y[:3]], sample_weight=[[1, 0, 2, 1, 1, 1], [1, 1, 1]])
    found = cf.describe(data).overall
    used = pd.DataFrame(np.concatenate([X[[0, 2, 3, 4, 5]], X[:3]]))
    assert found.rows == 8
    np.testing.assert_allclose(found.columns["0"].mean, used[0].mean())  # pyright: ignore[reportAttributeAccessIssue]


def test_standardised_differences_are_those_of_austin_and_of_yang_and_dalton():
    table = cf.describe(federation())
    age = [rows["age"] for rows in FRAMES]
    largest = max(abs(a.mean() - b.mean()) / np.sqrt((a.var() + b.var()) / 2) for a, b in combinations(age, 2))
    assert table.differences["age"] == pytest.approx(largest, rel=1e-10)
    shares = [rows["stage"].value_counts(normalize=True).sort_index().to_numpy()[1:] for rows in FRAMES]
    found = []
    for p, q in combinations(shares, 2):  # the matrix of Yang and Dalton, written out, without the first level
        S = -(np.outer(p, p) + np.outer(q, q)) / 2
        S[np.diag_indices(2)] = (p * (1 - p) + q * (1 - q)) / 2
        found.append(np.sqrt((p - q) @ np.linalg.solve(S, p - q)))
    assert table.differences["stage"] == pytest.approx(max(found), rel=1e-8)
    a, b = (CategoricalSummary((0, 0), {"x": (n, n), "y": (10 - n, 10 - n)}, (0, 0)) for n in (10, 0))
    assert standardised_difference(a, b) == np.inf
    assert standardised_difference(a, a) == 0


def test_the_table_as_text_html_frame_and_dict():
    table = cf.describe(federation())
    text = str(table)
    assert text.startswith("3 site(s), 360 rows, 5 columns\n")
    assert [line.split()[0] for line in text.splitlines()[4:8]] == ["rows", "age,", "age,", "age,"]
    assert "died (label), n (%)" in text
    cells = table.to_dataframe()
    assert list(cells.columns) == ["overall", *NAMES, "SMD"]
    female = FRAMES[1]["sex"].eq("female").sum()
    assert cells.loc[("sex", "  female"), "south"] == f"{female} ({female / 90:.1%})".replace("%", "")
    assert (
        table.to_dict()["sites"]["north"]["columns"]["sex"]["levels"]["male"] == [FRAMES[0]["sex"].eq("male").sum()] * 2
    )
    rows = [frame.assign(sex=["<b>"] * len(frame)) for frame in FRAMES]
    assert "&lt;b&gt;" in cf.describe(InProcess(sites(rows)))._repr_html_()


def test_small_cells_are_not_shown():
    rows = [frame.copy() for frame in FRAMES]
    rows[1].loc[:0, "stage"] = "IV"
    shown = cf.describe(InProcess(sites(rows, POLICY)))
    assert "IV" not in str(shown)
    assert "those that no site names are not listed: stage" in str(shown)
    rows[0].loc[:4, "stage"] = "IV"
    assert shown_cell(cf.describe(InProcess(sites(rows, POLICY))), ("stage", "  IV")) == ["3-5 (3)", "<3", "<3"]


def test_the_notes_of_a_table_one_are_true_of_its_rows():
    rows = with_rare_levels()
    constant = np.where(rows[0].index < 5, np.nan, 4.0)
    rows = [frame.assign(same=constant[: len(frame)]) for frame in rows]
    found = cf.describe(InProcess(sites(rows, POLICY)))
    assert "one value in all rows that have one: same" in found.notes
    listed = found.overall.columns["stage"].levels  # pyright: ignore[reportAttributeAccessIssue]
    assert set(listed) == {"I", "II", "III"}  # III is rare at one site, which does not name it; IV nobody names
    (note,) = (note for note in found.notes if note.endswith(": stage"))
    assert "a site does not name all levels" in note
    assert "those that no site names are not listed" in note


def test_a_site_of_one_row_has_no_standard_deviation_and_no_difference():
    ill = [0.0, 1.0, 0.0, 1.0]
    rows: Any = [pd.DataFrame({"age": ages, "died": ill[: len(ages)]}) for ages in ([1.5], [1.5, 2.0, 3.0, 0.0])]
    rows = [frame.assign(ill=frame["died"]) for frame in rows]
    found = cf.describe(InProcess(sites(rows)))
    assert np.isnan(found.differences["age"])
    assert "inf" not in str(found)
    assert "-0.0" not in str(found)  # the median of 0, 1, 0, 1, 0


def shown_cell(table: cf.federation.TableOne, at: tuple[str, str]) -> list[str]:
    return table.to_dataframe().loc[at, list(NAMES)].tolist()


# --- what a site withholds ---


def test_moments_of_few_rows_are_withheld():
    rows = frame(3, 60).assign(few=np.where(np.arange(60) < 2, 1.0, 0.0), outlier=np.where(np.arange(60) < 1, 1e9, 1.0))
    rows["scarce"] = np.where(np.arange(60) < 5, np.arange(60.0), np.nan)
    rows["outlier"] += np.linspace(0, 1, 60)
    for exact in (False, True):
        found = cf.describe(
            InProcess(sites([rows, rows, frame(4, 60).assign(few=1.0, outlier=2.0, scarce=3.0)], POLICY), exact=exact)
        )
        for name in ("few", "outlier", "scarce"):
            column = found.overall.columns[name]
            assert isinstance(column, NumericSummary)
            assert np.isnan(column.mean)
            assert np.isnan(column.sd)
        assert "a site withholds its sums, as they would show few rows: few, outlier, scarce" in str(found)


HOSTILE: dict[str, Any] = {
    "not a number": Tabulate(("age",), (np.array([np.nan]),)),
    "infinite": Tabulate(("age",), (np.array([np.inf]),)),
    "unsorted": Tabulate(("age",), (np.array([1.0, 0.0]),)),
    "twice": Tabulate(("age",), (np.array([1.0, 1.0]),)),
    "a million thresholds": Tabulate(("age",), (np.arange(1e6),)),
    "whole numbers": Tabulate(("age",), (np.arange(3),)),
    "no thresholds": Tabulate(("age",), ()),
    "words": Tabulate(("sex",), (np.empty(0),)),
    "a column that is not there": Tabulate(("name",), (np.empty(0),)),
    "a column twice": Tabulate(("age", "age"), (np.empty(0),) * 2),
    "a list": Tabulate(["age"], [np.empty(0)]),  # pyright: ignore[reportArgumentType]
    "a million levels": Tabulate((), (), ("sex",), (tuple(map(str, range(10**6))),)),
    "a level twice": Tabulate((), (), ("sex",), (("a", "a"),)),
    "a level of numbers": Tabulate((), (), ("sex",), ((1,),)),  # pyright: ignore[reportArgumentType]
    "a long level": Tabulate((), (), ("sex",), (("a" * 1000,),)),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("policy", [None, POLICY], ids=["no policy", "policy"])
def test_hostile_queries_are_refused_without_a_value(name, policy):
    (reply,) = sites(policy=policy)[0].reply([HOSTILE[name]])
    assert isinstance(reply, Refusal)
    assert not any(str(value) in reply.reason for value in FRAMES[0]["age"].dropna())


def test_a_table_that_is_not_encoded_answers_nothing_else():
    (refused,) = replies(sites()[0], Moments())
    assert refused.reason == "site 'north' refuses Moments: it has no schema."
    with pytest.raises(cf.InputError, match="site 'north' has no schema"):
        ask(federation(exact=True), Moments())
    with pytest.raises(cf.InputError, match="has no schema"):
        cf.FederatedLasso(0.1).fit_federation(federation(POLICY, exact=True))


def test_infinite_values_are_named_by_their_column():
    rows = [frame.copy() for frame in FRAMES]
    rows[0].loc[3, "age"] = np.inf
    for exact in (False, True):
        with pytest.raises(
            cf.InputError, match="column 'age' has numbers that are infinite, or too large for a square"
        ):
            cf.describe(InProcess(sites(rows), exact=exact))


def test_only_the_columns_of_the_schema_are_answered():
    raw = table_of_frame(FRAMES[0], "north")
    own = cf.Schema({"age": cf.NumericColumn("mean")}, cf.Label("died"))
    site = Site(Rows.to_agree(raw, own, "has no schema.", name="north", index=0))
    (reply,) = replies(site, Tabulate(("crp",), (np.empty(0),)))
    assert "the site has no column 'crp'" in reply.reason


# --- a schema that all sites agree on ---


@pytest.mark.parametrize("exact", [False, True], ids=["doubles", "exact sums"])
def test_the_agreed_schema_is_the_automatic_one(exact):
    agreed = cf.Schema.agree(federation(exact=exact))
    automatic = propose([table_of_frame(rows, name) for rows, name in zip(FRAMES, NAMES, strict=True)], "died")
    assert tuple(agreed.columns) == tuple(automatic.columns)
    assert agreed.label == automatic.label
    for name, column in automatic.columns.items():
        if name == "age":
            assert agreed.columns[name].impute == pytest.approx(column.impute, rel=1e-14)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            assert agreed.columns[name] == column
    assert not agreed.unresolved
    assert cf.Schema.from_toml(agreed.to_toml()) == agreed


def note_of(schema: cf.Schema, name: str) -> str:
    """What the notes of a schema say about a column."""
    return "\n".join(note for note in schema.notes if note.startswith(f"{name}: "))


def with_rare_levels() -> list[pd.DataFrame]:
    """Two rows of `east` have the stage IV, which nobody else has, and two the stage III, which others have often."""
    rows = [frame.copy() for frame in FRAMES]
    rows[2]["stage"] = np.where(rows[2]["stage"] == "III", "II", rows[2]["stage"])
    rows[2].loc[:1, "stage"], rows[2].loc[2:3, "stage"] = "IV", "III"
    return rows


@pytest.mark.parametrize("exact", [False, True], ids=["doubles", "exact sums"])
def test_what_the_notes_of_a_schema_say_is_how_rows_are_encoded(exact):
    """Every note against the encoded matrix, which is made by hand of the words and numbers of the table."""
    rows = with_rare_levels()
    agreed = cf.Schema.agree(InProcess(sites(rows, POLICY), exact=exact))
    assert agreed.columns["stage"] == cf.CategoricalColumn(("I", "II", "III"), "refuse", "reference")
    assert "site(s) east do not name all levels" in note_of(agreed, "stage")
    assert "those that no site names count as 'I' (other = \"reference\")" in note_of(agreed, "stage")
    assert "those that another site names as themselves" in note_of(agreed, "stage")
    assert "missing values become a level of their own, '(missing)'" in note_of(agreed, "sex")
    found = re.search(
        r"missing values \((\d+) to (\d+) rows\) become ([\d.]+), the mean of the others, as far",
        note_of(agreed, "age"),
    )
    assert found is not None
    for frame in rows:
        encoded = encode(table_of_frame(frame, "rows"), agreed)
        column = dict(zip(encoded.columns, encoded.A.T, strict=True))
        for level in ("II", "III"):  # also the two rows with III at the site that does not name it
            np.testing.assert_array_equal(column[f"stage={level}"], frame["stage"] == level)
        assert not {"stage=IV", "stage=I"} & set(column)  # I is the reference, and IV counts as I
        np.testing.assert_array_equal(column["sex=(missing)"], frame["sex"].isna())
        filled = column["age"][frame["age"].isna()]
        assert set(filled) == {agreed.columns["age"].impute}  # pyright: ignore[reportAttributeAccessIssue]
        assert filled == pytest.approx(float(found[3]), rel=1e-5)
    ages: Any = pd.concat(rows)["age"]
    assert int(found[1]) <= ages.isna().sum() <= int(found[2])
    assert float(found[3]) == pytest.approx(ages.mean(), rel=1e-2)
    assert "IV" not in agreed.to_toml()
    assert "IV" not in sites(rows, POLICY)[2].enrol().schema
    assert "IV" in sites(rows)[2].enrol().schema


def test_without_a_policy_the_mean_and_the_most_frequent_level_are_those_of_all_rows():
    agreed = cf.Schema.agree(federation())
    pooled = pd.concat(FRAMES)
    missing, mean = pooled["age"].isna().sum(), pooled["age"].mean()
    assert note_of(agreed, "age") == f"age: missing values ({missing} rows) become {mean:.6g}, the mean of the others"
    most = pooled["stage"].mode()[0]
    asked = replace(agreed, columns={"stage": replace(agreed.columns["stage"], missing="impute")})  # pyright: ignore[reportArgumentType]
    made = sites([frame[["stage", "died"]] for frame in FRAMES])
    for site in made:
        site.rows.file = replace(site.rows.file, proposal=asked, agreed=True)
    assert note_of(cf.Schema.agree(InProcess(made)), "stage") == (
        f"stage: missing values become {most!r}, the most frequent level"
    )


def test_the_notes_of_labels_say_what_becomes_of_a_rare_class():
    rows = [frame.copy() for frame in FRAMES]
    rows[2]["died"] = rows[2]["died"].where(rows[2].index > 1, "moved")
    agreed = cf.Schema.agree(InProcess(sites(rows, POLICY)))
    assert "rows of a class that no site names cannot be encoded" in note_of(agreed, "died")
    with pytest.raises(cf.InputError, match=r"'moved' .*not one of the classes"):
        encode(table_of_frame(rows[2], "east"), agreed)
    rows[2]["died"] = rows[2]["died"].replace("moved", "no")
    encode(table_of_frame(rows[2], "east"), agreed)  # joined with another class
    numbers = [frame.assign(died=np.where(frame.index < 2, 7, frame.index % 3)) for frame in FRAMES]
    agreed = cf.Schema.agree(InProcess(sites(numbers, POLICY)))
    assert "a regression takes it as a number" in note_of(agreed, "died")
    np.testing.assert_array_equal(encode(table_of_frame(numbers[0], "north"), agreed).y, numbers[0]["died"])


def test_every_disagreement_is_in_one_error():
    rows = [frame.copy() for frame in FRAMES]
    rows[0]["died"] = (rows[0]["died"] == "yes").astype(float)
    rows[1]["died"] = (rows[1]["died"] == "yes") + 1.0
    rows[2]["died"] = (rows[2]["died"] == "yes").astype(float)
    rows[1]["age"] = rows[1]["age"].map(lambda value: "old" if value > 60 else "young")
    rows[2] = rows[2].drop(columns="crp")
    rows[2]["sex"] = rows[2]["sex"].str.upper()
    rows[1]["name"] = [f"patient {i}" for i in range(90)]
    with pytest.raises(cf.InputError) as error:
        cf.Schema.agree(InProcess(sites(rows, POLICY), exact=True))
    for part in (
        "column 'age' holds numbers at site(s) north, east and words at site(s) south", "site(s) east have no column 'crp'",
        "site(s) north, east have no column 'name'", "'female' at site 'north' and 'FEMALE' at site 'east'",
        "labels are 0 and 1 at site 'north'; 1 and 2 at site 'south'; 0 and 1 at site 'east'",
    ):  # fmt: skip
        assert part in str(error.value)


def test_free_text_is_no_column_of_levels():
    rows = [frame.assign(note=[f"note {i}" for i in range(len(frame))]) for frame in FRAMES]
    with pytest.raises(cf.InputError, match="column 'note' has no level that min_level_rows rows of a site have"):
        cf.Schema.agree(InProcess(sites(rows, POLICY)))


def test_a_column_without_values_takes_the_kind_of_the_other_sites():
    rows = [frame.copy() for frame in FRAMES]
    rows[0]["age"], rows[1]["stage"] = np.nan, None
    agreed = cf.Schema.agree(InProcess(sites(rows), exact=True))
    pooled = pd.concat(rows[1:])["age"].mean()
    assert agreed.columns["age"].impute == pytest.approx(pooled, rel=1e-13)  # pyright: ignore[reportAttributeAccessIssue]
    assert agreed.columns["stage"] == cf.CategoricalColumn(("I", "II", "III"), "level")


def test_schema_files_must_be_equal():
    one = cf.Schema.agree(federation())
    other = replace(one, columns={**one.columns, "age": cf.NumericColumn(50.0)})

    def encoded(*schemas: cf.Schema) -> InProcess:
        made = sites()
        for site, schema in zip(made, schemas, strict=False):
            site.rows.file = replace(site.rows.file, proposal=schema, schema=schema, agreed=True)
        return InProcess(made, exact=True)

    assert cf.Schema.agree(encoded(one, one, one)) == one
    with pytest.raises(
        cf.InputError,
        match=r"\[columns.age\] is .* at site 'north' and NumericColumn\(impute=50.0, date=None\) at site 'east'",
    ):
        cf.Schema.agree(encoded(one, one, other))
    with pytest.raises(cf.InputError, match=r"site\(s\) north, south have a schema file, and site\(s\) east have none"):
        cf.Schema.agree(encoded(one, one))


# --- enrolments of hostile sites ---

GOOD = sites(policy=POLICY)[0].enrol()
FAULTS: dict[str, Any] = {
    "huge": ({"schema": "#" * (2**20 + 1)}, "schema is not a text of at most"),
    "not a line of ours": ({"schema": "[columns"}, "a line that no site writes"),
    "dotted, which takes minutes to read": ({"schema": "a" + ".a" * 200_000 + " = 1"}, "a line that no site writes"),
    "deep": ({"schema": "levels = " + "[" * 100_000 + "]" * 100_000}, "a line that no site writes"),
    "not TOML": ({"schema": "impute = 1-x\n"}, "not TOML"),
    "not a schema": ({"schema": '[columns."age"]\nimpute = []\n'}, "impute"),
    "row columns": ({"schema": GOOD.schema + '[rows]\nweight = "\\u001b[2J"\n'}, "printable"),
    "control characters": ({"schema": GOOD.schema + "# \x1b[2J"}, "cannot be printed"),
    "escaped": ({"schema": '[columns."\\u001b[2J"]\n'}, "has shape|printable"),
    "bytes": ({"schema": b""}, "schema is not a text"),
    "reason": ({"not_encoded": "x" * 1001}, "not_encoded is not a text"),
    "bits": ({"table_bits": np.zeros(2, np.int32)}, "table_bits has shape"),
    "large bits": ({"table_bits": np.full(5, 2000, np.int32)}, "table_bits has numbers beyond"),
    "missing": ({"has_missing": np.zeros(5)}, "has_missing is of float64"),
    "classes": ({"label_classes": np.array(["b", "a"])}, "sorted"),
    "agreed": ({"agreed": 1}, "agreed is 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_hostile_enrolments_are_refused(name):
    assert enrolment_fault(GOOD) is None
    change, words = FAULTS[name]
    assert re.search(words, enrolment_fault(replace(GOOD, **change)) or "")


def test_a_site_whose_column_dwarfs_all_others_is_refused():
    every = [site.enrol() for site in sites()]
    bits = every[1].table_bits.copy()
    bits[0] = 900
    agreement = Agreement(NAMES, (every[0], replace(every[1], table_bits=bits), every[2]))
    with pytest.raises(cf.InputError, match=r"column 'age' has numbers at one site that are over 2\*\*64 times"):
        agreement.table_bits(("age",))
