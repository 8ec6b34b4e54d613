"""The figure and the table of attacks that spend a share of the numbers, from the results of `attacks.shares`.

    PYTHONPATH=src:tests python -m attacks.shares_figure RESULTS.json [MORE.json ...]   # keeps them, draws, prints the table
    PYTHONPATH=src:tests python -m attacks.shares_figure                                # draws what is kept

The results are kept in docs/explanation/shares.json. Where a task was run with several seeds or for longer, the most counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attacks.shares import SHARES
from places import ROOT

FOLDER = ROOT / "docs" / "explanation"
KEPT = FOLDER / "shares.json"
FIELDS = (
    "attack", "table", "share", "seed", "rows", "recovered", "three_digits", "tenth", "labels", "share_used", "starts", "seconds",
)  # fmt: skip
WORDS = {
    "gradients": "gradients of chosen models (F2)",
    "class weights": "the same, with weights of classes (F2)",
    "folds": "the same, over folds (F2)",
    "local steps": "rounds of one local step (F2)",
    "a site that lies": "a site that lies (F1)",
    "honest runs": "honest runs, read passively (F4)",
}


def kept() -> list[dict[str, Any]]:
    """The results that the page is made of."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def most(results: Sequence[dict[str, Any]], attack: str, table: str, share: float) -> tuple[int, int] | None:
    """The most rows to three digits that an attack read, of how many; None where it was not run."""
    found = [
        (r["three_digits"], r["rows"])
        for r in results
        if (r["attack"], r["table"], r["share"]) == (attack, table, share)
    ]
    return max(found, default=None)


def tables(results: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(sorted(r["table"] for r in results)))


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Rows read to three digits, by table, attack and share."""
    lines = [f"| table | attack | {' | '.join(f'{share:g}' for share in SHARES)} |", "|---" * (2 + len(SHARES)) + "|"]
    for table in tables(results):
        for attack, words in WORDS.items():
            found = [most(results, attack, table, share) for share in SHARES]
            cells = ["-" if one is None else f"{one[0]} of {one[1]}" if one[0] else "0" for one in found]
            lines.append(f"| {table} | {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: Sequence[dict[str, Any]], path: Path) -> None:
    """One panel for each table: how many of its rows each attack read, by the share that was spent."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "shares", "svg.fonttype": "none", "font.family": "sans-serif"}):
        names = tables(results)
        figure = Figure(figsize=(11.0, 2.6), layout="constrained")
        axes = figure.subplots(1, len(names), sharey=True)
        for panel, table in zip(axes, names, strict=True):
            found = [[most(results, attack, table, share) for share in SHARES] for attack in WORDS]
            parts = [[float("nan") if one is None else one[0] / one[1] for one in row] for row in found]
            panel.imshow(parts, cmap="Oranges", vmin=0, vmax=1.15, aspect="auto")
            for i, row in enumerate(found):
                for j, one in enumerate(row):
                    colour = "white" if one is not None and 2 * one[0] > one[1] else "black"
                    panel.text(
                        j, i, "-" if one is None else f"{one[0]}", ha="center", va="center", fontsize=8, color=colour
                    )
            panel.axvline(SHARES.index(0.5) + 0.5, color="#0b6aa2", linewidth=2)
            panel.set_xticks(range(len(SHARES)), [f"{share:g}" for share in SHARES], fontsize=8)
            panel.set_yticks(range(len(WORDS)), list(WORDS.values()), fontsize=8)
            panel.set_title(f"{table.split(',')[0]},{table.split(',')[1].replace('x', 'rows x')} columns", fontsize=8)
            panel.tick_params(length=0)
            for spine in panel.spines.values():
                spine.set_visible(False)
        figure.supxlabel(
            "numbers that have left, as a share of those in the table; left of the line a rule may approve", fontsize=9
        )
        figure.savefig(path, metadata={"Date": None})


def main(files: Sequence[str]) -> None:
    if files:
        found = [each for file in files for each in json.loads(Path(file).read_text(encoding="utf-8"))]
        plain = [{name: each[name] for name in FIELDS if name in each} for each in found if each["attack"] in WORDS]
        plain = [{k: round(v, 3) if isinstance(v, float) else v for k, v in each.items()} for each in plain]
        plain.sort(key=lambda each: [str(each[name]) for name in FIELDS[:4]])
        KEPT.write_text("[\n" + ",\n".join(json.dumps(each) for each in plain) + "\n]\n", encoding="utf-8")
    draw(kept(), FOLDER / "shares.svg")
    sys.stdout.write(markdown(kept()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
