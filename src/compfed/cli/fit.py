"""`compfed fit` and `compfed predict`: from CSV or Parquet files to a model, and from a model to predictions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compfed._utils.files import check_writable
from compfed.cli.local_commands import Commands, integer
from compfed.errors import InputError

if TYPE_CHECKING:
    from compfed.data import Sites
    from compfed.estimators.base import FederatedModel
    from compfed.estimators.evaluation import Evaluation

# the word of --model, the estimator, and the l1_ratio that the word implies
MODELS = {
    "lasso": ("FederatedLasso", None),
    "elastic-net": ("FederatedElasticNet", None),
    "ridge": ("FederatedElasticNet", 0.0),
    "logistic": ("FederatedLogisticRegression", None),
    "poisson": ("FederatedPoissonRegressor", None),
    "gamma": ("FederatedGammaRegressor", None),
    "huber": ("FederatedHuber", None),
}
MOST_SITES = 8  # with a column of their own on the screen
EXAMPLES = """examples:
  compfed fit rome.csv oslo.csv lyon.csv --label died --model logistic
  compfed fit all.csv --site hospital --label cost --model lasso --alpha 0.1 --schema schema.toml
  compfed fit rome.csv oslo.csv --label falls --model poisson --offset log_years --drop years
  compfed predict results/fit new.csv --out predictions.csv"""


def add_commands(commands: Commands) -> None:
    """Add `fit` and `predict`."""
    _add_fit(commands)
    _add_predict(commands)


# --- fit ---


def _add_fit(commands: Commands) -> None:
    parser = commands.add_parser(
        "fit",
        help="from CSV or Parquet files to a model: one file per site",
        description="Fit a model to the rows of several sites as if they were pooled. One file per site; with --site, the files "
        "are one table whose column COL names the site. Words, blanks, semicolons and decimal commas are read as they are.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("paths", type=Path, nargs="+", metavar="FILE", help="files, or a folder of them")
    add("--label", required=True, metavar="COL", help="column to predict")
    add("--model", required=True, choices=list(MODELS), help="what to fit")
    add("--alpha", default="cv", metavar="cv|NUMBER", help="weight of the penalty (default: by cross-validation)")
    add("--folds", type=integer, default=5, metavar="K", help="folds of the cross-validation (default: %(default)s)")
    rule = "largest alpha within one standard error of the best (glmnet's lambda.1se)"
    add("--one-standard-error", action="store_true", help=rule)
    add("--l1-ratio", type=float, metavar="R", help="share of the l1 norm in the penalty, 0 to 1")
    add("--standardize", action="store_true", help="penalise standardised coefficients, as glmnet does")
    add("--schema", default="auto", metavar="auto|FILE", help="what the columns are (default: %(default)s)")
    add("--site", metavar="COL", help="column that names the site of each row")
    add("--features", metavar="A,B,...", help="columns to use (default: all others)")
    add("--drop", metavar="A,B,...", help="columns to leave out")
    add(
        "--penalty-factors",
        metavar="A=0,B=2,...",
        help="multiply the penalty of columns; 0: not penalised, inf: left out",
    )
    add("--offset", metavar="COL", help="column that is added to the linear predictor, such as the log of the exposure")
    add("--weight", metavar="COL", help="column with the weight of each row")
    add("--class-weight", choices=["balanced"], help="let every class count the same (logistic)")
    add("--relax", action="store_true", help="refit the chosen variables without a penalty")
    add("--site-effects", action="store_true", help="an intercept of its own for every site")
    how = "score every row by a model without its fold (cv) or its site, or by the model itself (rows) (default: %(default)s)"
    add("--evaluate", choices=["cv", "leave-one-site-out", "rows", "none"], default="cv", help=how)
    add("--out", type=Path, default=Path("results/fit"), metavar="RUN", help="run folder (default: %(default)s)")
    add("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=fit)


def fit(args: argparse.Namespace) -> int:
    """Run `compfed fit`; return its exit status."""
    from compfed import data
    from compfed.cli.result_text import result_text
    from compfed.estimators.run_files import write_run

    model = _new_model(args)
    check_writable(args.out, f"--out {args.out}")  # before anything is read
    sites = data.from_files(
        args.paths, args.label, _words(args.features), _words(args.drop) or (), site=args.site, schema=args.schema,
        weight=args.weight, offset=args.offset,
    )  # fmt: skip
    model.fit_sites(sites)
    evaluation = _evaluate(model, sites, args)
    write_run(model, args.out, _config(args, model, sites), evaluation, args.label)
    if args.json:
        sys.stdout.write((args.out / "result.json").read_text())
        return 0
    print(f"{_rows_text(sites)}\n\n{result_text(model)}\n")
    if evaluation is not None:
        print(f"{evaluation}\n")
    print(f"Run folder: {args.out}, with report.html")
    print(f"Next: compfed predict {args.out} NEW.csv")
    return 0


def _new_model(args: argparse.Namespace) -> FederatedModel:
    """The estimator that the options describe, not fitted; options that it does not have are refused by name."""
    import compfed

    name, l1_ratio = MODELS[args.model]
    chooses = args.alpha == "cv"
    model = getattr(compfed, f"{name}CV" if chooses else name)
    given: dict[str, Any] = {} if chooses else {"alpha": _number(args.alpha, "--alpha")}
    if chooses:
        given |= {"cv": args.folds, "rule": "one_standard_error" if args.one_standard_error else "best"}
    elif args.one_standard_error:
        raise InputError("--one-standard-error chooses among several values of alpha. Leave out --alpha.")
    l1_ratio = l1_ratio if args.l1_ratio is None else args.l1_ratio
    options = {
        "l1_ratio": l1_ratio, "standardize": args.standardize or None, "class_weight": args.class_weight,
        "relax": args.relax or None, "site_effects": "profile" if args.site_effects else None,
        "penalty_factors": _factors(args.penalty_factors), "verbose": sys.stderr.isatty() or None,
    }  # fmt: skip
    known = model().get_params()
    for option, value in options.items():
        if value is None:
            continue
        if option not in known:
            raise InputError(f"--{option.replace('_', '-')} is not for --model {args.model}. Leave it out.")
        given[option] = value
    return model(**given)


def _evaluate(model: FederatedModel, sites: Sites, args: argparse.Namespace) -> Evaluation | None:
    """How well the model predicts, of every site too where a table has room for them."""
    if args.evaluate == "none":
        return None
    cv = {"cv": args.folds, "rows": None}.get(args.evaluate, args.evaluate)
    return model.evaluate(sites, cv=cv, per_site=len(sites) <= MOST_SITES)


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text}: give a number, or cv.") from None


def _factors(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name and sign for name, sign, _ in pairs):
        raise InputError(f"--penalty-factors {text}: give COLUMN=NUMBER, separated by commas.")
    return {name.strip(): _number(value, "--penalty-factors") for name, _, value in pairs}


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",")]


def _config(args: argparse.Namespace, model: FederatedModel, sites: Sites) -> dict[str, Any]:
    """What the run was started with, for its folder."""
    return {
        "command": "fit", "estimator": type(model).__name__, "parameters": model.get_params(), "label": args.label,
        "sites": dict(zip(sites.names, map(int, sites.sizes), strict=True)), "files": [str(path) for path in args.paths],
    }  # fmt: skip


def _rows_text(sites: Sites) -> str:
    return f"{int(sites.sizes.sum())} rows at {len(sites)} site(s), {sites.width} features"


# --- predict ---


def _add_predict(commands: Commands) -> None:
    parser = commands.add_parser(
        "predict",
        help="predictions of a fitted model for new rows",
        description="Predict the outcome of every row of a file with the model of a run folder. Columns are found by name.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", type=Path, metavar="RUN", help="run folder of `compfed fit` or `compfed federation run`"
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="CSV or Parquet file of new rows")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write (default: standard output)")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per row")
    parser.set_defaults(run=predict)


def predict(args: argparse.Namespace) -> int:
    """Run `compfed predict`; return its exit status."""
    import compfed
    from compfed.data.frames import text_columns
    from compfed.data.readers import read_table

    model = compfed.load_model(args.model)
    columns = predictions(model, read_table(args.path, text=text_columns(getattr(model, "schema_", None))))
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    as_json = "".join(f"{json.dumps(row)}\n" for row in rows)
    text = as_json if args.json else _csv([list(columns), *(list(row.values()) for row in rows)])
    if args.out is None:
        sys.stdout.write(text)
    else:
        from compfed._utils.files import write_text

        write_text(args.out, text)
        print(f"{len(rows)} predictions: {args.out}")
    return 0


def predictions(model: FederatedModel, table: Any) -> dict[str, list[Any]]:
    """The columns of a prediction: the outcome, and for a classifier the probability of every class."""
    found = {"prediction": model.predict(table).tolist()}
    if hasattr(model, "predict_proba"):
        probabilities = model.predict_proba(table)  # pyright: ignore[reportAttributeAccessIssue]
        names = [f"probability of {c}" for c in model.classes_]  # pyright: ignore[reportAttributeAccessIssue]
        found |= {name: probabilities[:, k].tolist() for k, name in enumerate(names)}
    return found


def _csv(rows: Sequence[Sequence[object]]) -> str:
    import csv
    import io

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
