"""`compfed survival`: Kaplan-Meier curves and the log-rank test of the rows of several sites."""

from __future__ import annotations

import argparse
from pathlib import Path

from compfed._utils.files import check_writable
from compfed._utils.text import join_names, working
from compfed.cli.fit import agreed_times, label_columns
from compfed.cli.help_text import example_text
from compfed.cli.json_text import json_text
from compfed.cli.local_commands import Commands
from compfed.cli.option_text import as_options
from compfed.errors import InputError

EXAMPLES = (
    ("curves by treatment, every month of five years, with a figure",
     "compfed survival wards/ --time months --event died --by arm --times 1:60:1 --figure curves.svg"),
)  # fmt: skip


def add_commands(commands: Commands) -> None:
    """Add `survival`."""
    parser = commands.add_parser(
        "survival",
        help="Kaplan-Meier curves and the log-rank test of several sites",
        description="Print Kaplan-Meier curves over the rows of all sites, by group, with 95 %% intervals, the rows at risk and the "
        "log-rank test. Rows have their time rounded up to the next of the agreed times.",
        **example_text(EXAMPLES),
    )
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="FILE", help="files, or a folder of them")
    add(
        "--time",
        required=True,
        metavar="COL",
        help="column of the time of the event, or until which the row was followed",
    )
    add("--event", required=True, metavar="COL", help="column of whether the event happened: 0 and 1, or two words")
    add(
        "--positive-class",
        metavar="VALUE",
        help="value of --event where it happened (default: 1, true; of no and yes, yes)",
    )
    add("--entry", metavar="COL", help="column of the time from which the row was followed, if not 0")
    add("--times", required=True, metavar="TIMES", help="agreed times: 12,24,36 or START:STOP:STEP")
    add("--by", metavar="COL", help="column of groups: words, or 0 and 1")
    add("--site", metavar="COL", help="column that names the site of each row")
    add("--weight", metavar="COL", help="column that says how much each row counts")
    add("--figure", type=Path, metavar="FILE", help="draw the curves (.svg, .pdf or .png)")
    add("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=survival)


def survival(args: argparse.Namespace) -> int:
    """Run `compfed survival`; return its exit status."""
    import compfed
    from compfed import data
    from compfed.report.style import ENDINGS

    with as_options():
        label, times = label_columns(args), agreed_times(args.times)
        if args.figure is not None:
            check_writable(args.figure.parent, f"--figure {args.figure}")
        with working("reading"):
            features = None if args.by is None else [args.by]
            sites = data.from_files(
                args.paths, label, features, site=args.site, schema="auto", weight=args.weight, events=True,
                positive_class=args.positive_class,
            )  # fmt: skip
        with working("adding up"):
            curves = compfed.kaplan_meier(sites, times=times, by=args.by)
        if args.figure is not None:
            ending = args.figure.suffix.removeprefix(".")
            if ending not in ENDINGS:
                raise InputError(f"--figure {args.figure} must end in {join_names([f'.{e}' for e in ENDINGS])}.")
            compfed.save_figure(curves.plot(), args.figure.with_suffix(""), [ending])
    print(json_text(curves.to_dict()) if args.json else curves)
    if args.figure is not None and not args.json:
        print(f"Figure: {args.figure}")
    return 0
