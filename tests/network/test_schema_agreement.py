"""Table 1 and the agreement of a schema over a network in memory: CSV files with words and blanks, and the service of each site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from network.memory_link import MemoryLink, approving, exact, fields_of, logged, remote, share_roster, signed

import compfed as cf
from compfed.cli import main
from compfed.federation import InProcess, Moments, Tabulate, ask
from compfed.network import keys
from compfed.network.site_settings import SiteSettings, check

NAMES = ("north", "south", "east")


def frame(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({
        "age": rng.normal(60, 12, rows).round(1), "sex": rng.choice(["female", "male"], rows), "patient": np.arange(rows),
        "died": rng.choice(["no", "yes"], rows),
    })  # fmt: skip
    found.loc[rng.random(rows) < 0.1, "age"] = np.nan
    return found


FRAMES = [frame(k, rows) for k, rows in enumerate((60, 45, 50))]


def furnish(
    folder: Path, frames: list[pd.DataFrame] = FRAMES, *, secure_sum: bool = True, more: str = ""
) -> list[Path]:
    """A folder per site with its CSV file, its key, its site.toml and the roster."""
    paths = []
    for name, rows in zip(NAMES, frames, strict=True):
        home = folder / name
        home.mkdir(parents=True)
        rows.to_csv(home / "rows.csv", index=False)
        keys.write_identity(home / "node.key", keys.new_identity())
        head = f'name = "{name}"\ndata = "rows.csv"\nlabel = "died"\ndrop = ["patient"]\nsecure_sum = {str(secure_sum).lower()}'
        allowed = "[approval]\nby_rule = true\n[disclosure]\nshare_by_rule = inf\nmax_share = inf"  # few numbers are in these tables
        network = f'{allowed}\n[network]\nsuperlink = "127.0.0.1:1"\nca = "ca.crt"\nkey = "node.key"'
        (home / "site.toml").write_text(f"{head}\n{more}\n{network}\n")
        paths.append(home / "site.toml")
    share_roster(paths)
    return paths


def adopt(paths: list[Path], schema: cf.Schema) -> None:
    """Give every site the schema, as the operator sends it."""
    for path in paths:
        (path.parent / "schema.toml").write_text(schema.to_toml())
        path.write_text('schema = "schema.toml"\n' + path.read_text())


def test_a_schema_is_agreed_on_where_a_person_approves_every_run(tmp_path):
    paths = furnish(tmp_path)
    by_rule = cf.Schema.agree(remote(paths)[0])
    for path in paths:
        path.write_text(path.read_text().replace("by_rule = true", "by_rule = false"))
    federation, link = remote(paths)
    approving(link)
    assert cf.Schema.agree(federation) == by_rule
    (asked,) = SiteSettings.read(paths[0]).approvals().all()
    assert asked.sentence["stated"]["kind"] == "Schema.agree"
    assert 0 < federation.numbers <= asked.sentence["stated"]["numbers"]


def test_from_words_and_blanks_to_a_fit(tmp_path):
    """Agree, adopt, fit: under masks and the default policy, with the bits of the same sites in one process."""
    paths = furnish(tmp_path)
    with remote(paths)[0] as federation:
        assert federation.schema is None
        with pytest.raises(
            cf.InputError, match=r"site 'north' cannot encode its table without a schema: .*words in column 'sex'"
        ):
            cf.FederatedLogisticRegression(alpha=0.01).fit_federation(federation)
    with remote(paths)[0] as federation:
        schema = cf.Schema.agree(federation)
        assert federation.number == 2  # the enrolment and one message
    pooled = pd.concat(FRAMES)
    assert schema.columns["age"].impute == pytest.approx(pooled["age"].mean(), rel=1e-2)  # pyright: ignore[reportAttributeAccessIssue]
    assert schema.columns["sex"] == cf.CategoricalColumn(("female", "male"))
    assert schema.label == cf.Label("died", ("no", "yes"))
    adopt(paths, schema)
    with remote(paths)[0] as federation:
        assert federation.schema == schema
        model = cf.FederatedLogisticRegression(alpha=0.01).fit_federation(federation)
    assert model.schema_ == schema
    assert model.classes_.tolist() == ["no", "yes"]
    np.testing.assert_array_equal(
        model.coef_, cf.FederatedLogisticRegression(alpha=0.01).fit_federation(exact(paths)).coef_
    )
    table = cf.data.from_table(pooled.drop(columns="patient"), "died", np.repeat(NAMES, [60, 45, 50]), schema=schema)
    together = cf.FederatedLogisticRegression(alpha=0.01).fit_federation(InProcess(table))
    np.testing.assert_allclose(model.coef_, together.coef_, rtol=1e-7, atol=1e-9)


def test_table_one_over_a_network(tmp_path):
    paths = furnish(tmp_path)
    with remote(paths)[0] as federation:
        masked = cf.describe(federation)
    assert masked.sites is None
    assert "patient" not in masked.overall.columns
    assert "the sums are masked" in str(masked)
    counting: Any = exact(paths)
    counting.state, counting.why, counting.numbers = (
        lambda stated: None,
        "",
        0.0,
    )  # sites that count what leaves are asked for fewer thresholds
    assert masked.overall == cf.describe(counting).overall
    shown, ages = cf.describe(exact(paths)), pd.concat(FRAMES)["age"].dropna()
    for name, column in masked.overall.columns.items():
        free: Any = shown.overall.columns[name]
        assert replace(free, quantiles={}) == replace(column, quantiles={}) if name == "age" else free == column
    for table in (masked, shown):
        age: Any = table.overall.columns["age"]
        assert all(low <= np.quantile(ages, q) <= high for q, (low, high) in age.quantiles.items())
    open_paths = furnish(tmp_path / "open", secure_sum=False)
    with remote(open_paths)[0] as federation:
        found = cf.describe(federation)
    assert found.overall == masked.overall
    assert found.sites is not None
    for table, rows in zip(found.sites, FRAMES, strict=True):
        assert table.columns["age"].mean == pytest.approx(rows["age"].mean(), rel=1e-12)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_column_that_is_left_out_is_not_answered(tmp_path):
    paths = furnish(tmp_path, secure_sum=False)
    with remote(paths)[0] as federation, pytest.raises(cf.InputError, match="it refuses a query of run"):
        ask(federation, Tabulate(("patient",), (np.empty(0),)))
    assert "the site has no column 'patient'" in logged(paths[0])


def test_sites_with_different_columns_can_describe_what_they_share(tmp_path):
    frames = [FRAMES[0], FRAMES[1].assign(extra=1.0), FRAMES[2]]
    paths = furnish(tmp_path, frames)
    with remote(paths)[0] as federation:
        table = cf.describe(federation)
        assert "left out, as a site has no such column: extra" in str(table)
        with pytest.raises(cf.InputError, match=r"site\(s\) north, east have no column 'extra'"):
            cf.Schema.agree(federation)


def test_a_site_that_lies_about_the_others_cannot_get_round_the_rules(tmp_path):
    """Enrolments that do not fit leave nothing but `Tabulate`, whatever else is asked."""
    paths = furnish(tmp_path)
    service = MemoryLink(paths).service("north")
    refused: Any = service.open().reply([Moments()])[0]
    assert "it cannot encode its table without a schema" in refused.reason


@pytest.mark.parametrize("text", ["[columns", "#" * (2**20 + 1), "# \x1b[2J"])
def test_a_hostile_schema_is_not_used(tmp_path, text):
    paths = furnish(tmp_path, secure_sum=False)
    federation, link = remote(paths)

    def meddle(name, data, reply):
        sent = reply()
        if name != "south":
            return sent
        fields = fields_of(link, name, sent)
        object.__setattr__(fields["enrolment"], "schema", text)
        return signed(link, name, fields)

    link.meddle = meddle
    with pytest.raises(cf.InputError, match="site 'south' sent 3 replies to message 1 that cannot be used"), federation:
        cf.Schema.agree(federation)


def test_different_schema_files_are_refused(tmp_path):
    paths = furnish(tmp_path)
    with remote(paths)[0] as federation:
        schema = cf.Schema.agree(federation)
    adopt(paths, schema)
    file = paths[1].parent / "schema.toml"
    file.write_text(file.read_text().replace('["female", "male"]', '["male", "female"]'))
    with (
        remote(paths)[0] as federation,
        pytest.raises(cf.InputError, match=r"schema files of the sites differ: \[columns.sex\]"),
    ):
        cf.FederatedLogisticRegression(alpha=0.01).fit_federation(federation)


def test_check_says_how_the_table_is_read(tmp_path):
    paths, lines = furnish(tmp_path), list[str]()
    check(paths[0], lines.append)
    said = "\n".join(lines)
    missing = FRAMES[0]["age"].isna().sum()
    assert f"  age: numbers; {missing} missing" in said
    assert "  sex: words, 2 levels: female, male" in said
    assert "compfed federation schema DIR" in said
    assert "patient:" not in said
    assert (
        SiteSettings.read(paths[0]).site(bytes(32)).rows.file.not_encoded.endswith("`compfed federation schema DIR`.")
    )


def test_describe_of_files(tmp_path, capsys):
    for name, rows in zip(NAMES, FRAMES, strict=True):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    assert main(["describe", str(tmp_path), "--label", "died", "--drop", "patient"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 site(s), 155 rows, 3 columns")
    women = pd.concat(FRAMES)["sex"].eq("female").sum()
    assert f"{women} ({100 * women / 155:.1f})" in shown
    pd.concat([rows.assign(town=name) for name, rows in zip(NAMES, FRAMES, strict=True)]).to_csv(
        tmp_path / "all.csv", index=False
    )
    assert main(["describe", str(tmp_path / "all.csv"), "--site", "town", "--drop", "patient"]) == 0
    assert "died, n (%)" in capsys.readouterr().out
    assert main(["describe", str(tmp_path / "all.csv"), "--label", "ill"]) == 2
    assert "has no column 'ill'" in capsys.readouterr().err


def test_describe_says_which_column_it_left_out(tmp_path, capsys):
    rows = FRAMES[0].drop(columns="patient")
    rows.to_csv(tmp_path / "north.csv")  # with the index of pandas, which has no name
    assert main(["describe", str(tmp_path / "north.csv")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"1 site(s), 60 rows, {rows.shape[1]} columns")
    assert "note: north.csv: the first column has no name and numbers the rows; it was left out." in shown
