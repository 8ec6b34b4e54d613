"""`compfed fit` and `compfed predict`: from CSV or Parquet files to a model, and from a model to predictions."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compfed._utils.files import check_writable, write_private
from compfed._utils.plain import JsonObject
from compfed._utils.text import working
from compfed.cli.help_text import example_text
from compfed.cli.json_text import json_text
from compfed.cli.local_commands import Commands, integer
from compfed.cli.option_text import as_options, option_text
from compfed.cli.overwriting import add_overwrite, check_new
from compfed.errors import Divergence, InputError

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
    "negative-binomial": ("FederatedNegativeBinomialRegressor", None),
    "gamma": ("FederatedGammaRegressor", None),
    "huber": ("FederatedHuber", None),
    "cox": ("FederatedCox", None),
}
N_ALPHAS = 50  # that a cross-validation tries, unless the best is at their end
MOST_SITES = 60  # that are evaluated one by one, too
EXAMPLES = (
    ("one file per hospital, alpha by cross-validation", "compfed fit rome.csv oslo.csv --label died --model logistic"),
    ("one table, alpha given, sex not penalised",
     "compfed fit all.csv --site town --label cost --model lasso --alpha 0.1 --penalty-factors sex=0"),
    ("survival: hazard ratios, stratified by site", "compfed fit wards/ --model cox --time months --event died --alpha 0"),
    ("rates: the log of the time at risk as offset", "compfed fit wards/ --label falls --model poisson --offset log_days"),
)  # fmt: skip
PREDICT_EXAMPLES = (
    ("a CSV file of predictions", "compfed predict results/fit new.csv --out predictions.csv"),
    ("for another program", "compfed predict results/fit new.csv --json"),
)


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
        "are one table whose column COL names the site. Words, blanks, semicolons and decimal commas are read as they are. The model is "
        "saved before it is evaluated; exit status 1 where it is saved and could not be evaluated.",
        **example_text(EXAMPLES),
    )
    parser.add_argument("paths", type=Path, nargs="+", metavar="FILE", help="files, or a folder of them")
    _add_table(parser.add_argument_group("the table").add_argument)
    _add_reading(parser)
    _add_model(parser.add_argument_group("the model").add_argument)
    add = parser.add_argument_group("the result").add_argument
    how = "score every row by a model without its fold (cv) or its site, or by the model itself (rows) (default: %(default)s)"
    add("--evaluate", choices=["cv", "leave-one-site-out", "rows", "none"], default="cv", help=how)
    errors = "standard errors, tests and intervals: of the model, robust (HC0, HC1) or clustered by site (default with --alpha 0: model). "
    errors += "Of a penalised fit they are those of a refit of the columns it chose: naive, and labelled so"
    add("--summary", nargs="?", const="model", choices=["model", "HC0", "HC1", "cluster", "none"], help=errors)
    add("--out", type=Path, default=Path("results/fit"), metavar="RUN", help="run folder (default: %(default)s)")
    add_overwrite(add)
    add("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=fit)


def _add_table(add: Callable[..., object]) -> None:
    add("--label", metavar="COL", help="column to predict (cox: --time and --event instead)")
    add("--time", metavar="COL", help="column of the time of the event, or until which the row was followed (cox)")
    add("--event", metavar="COL", help="column of whether the event happened: 0 and 1, or two words (cox)")
    add("--entry", metavar="COL", help="column of the time from which the row was followed, if not 0 (cox)")
    add("--strata", metavar="COL", help="column of strata within sites, each with a baseline hazard of its own (cox)")
    add("--site", metavar="COL", help="column that names the site of each row")
    add("--features", metavar="A,B,...", help="columns to use (default: all others)")
    add("--drop", metavar="A,B,...", help="columns to leave out")
    dates = "columns of dates to use: their year, or the days since a date (default: dates are left out)"
    add("--dates", metavar="A=year,B=2019-03-01,...", help=dates)
    add("--keep", metavar="A,B,...", help="columns to use although they look like identifiers, names or codes")
    add(
        "--drop-unlabelled",
        action="store_true",
        help="leave out rows without a label, and count them (default: an error)",
    )
    add("--weight", metavar="COL", help="column that says how much each row counts")
    add(
        "--offset",
        metavar="COL",
        help="column that is added to the linear predictor, such as the log of a time at risk",
    )
    event = "class of the label whose odds are modelled, or value of --event: the event (default: the last one; of no and yes, yes)"
    add("--positive-class", metavar="CLASS", help=event)
    add("--schema", default="auto", metavar="auto|FILE", help="what the columns are (default: %(default)s)")


def _add_model(add: Callable[..., object]) -> None:
    add("--model", required=True, choices=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    add("--alpha", default="cv", metavar="cv|NUMBER", help="weight of the penalty (default: by cross-validation)")
    folds = "folds of the cross-validation, or approximate leave-one-out (default: %(default)s)"
    add("--folds", type=_folds_or_loo, default=5, metavar="K|loo", help=folds)
    rule = "largest alpha within one standard error of the best (glmnet's lambda.1se)"
    add("--one-standard-error", action="store_true", help=rule)
    add("--l1-ratio", type=float, metavar="R", help="share of the l1 norm in the penalty, 0 to 1")
    add("--theta", metavar="NUMBER", help="size of the negative binomial distribution (default: estimated)")
    add("--standardize", action="store_true", help="penalise standardised coefficients, as glmnet does")
    factors = "multiply the penalty of columns, of all levels of a column of words; 0: not penalised, inf: left out"
    add("--penalty-factors", metavar="A=0,B=2,...", help=factors)
    add("--class-weight", choices=["balanced"], help="let every class count the same (logistic)")
    add("--ties", choices=["efron", "breslow"], help="how events at the same time count (cox; default: efron)")
    times = "times for baseline hazards: 12,24,36 or START:STOP:STEP (cox; default: none)"
    add("--times", metavar="TIMES", help=times)
    add("--relax", action="store_true", help="refit the chosen variables without a penalty")
    add("--site-effects", action="store_true", help="an intercept of its own for every site")


def _folds_or_loo(text: str) -> int | str:
    return text if text == "loo" else integer(text)


_folds_or_loo.__name__ = integer.__name__  # argparse: invalid whole number value: 'x'


def _add_reading(parser: argparse.ArgumentParser) -> None:
    """The options of the reader, for files that can be read in two ways."""
    add = parser.add_argument_group("files that can be read in two ways").add_argument
    add("--sep", metavar="C", help="separator of CSV files (default: found)")
    add("--decimal", choices=[".", ","], help="decimal mark of CSV files (default: found)")
    add("--encoding", metavar="NAME", help="encoding of CSV files (default: UTF-8, or else Windows-1252)")
    add("--missing", metavar="A,B,...", help="cells without a value, beside empty ones (default: NA, ?, . and others)")


def _reading(args: argparse.Namespace) -> JsonObject:
    """The options of `_add_reading` that were given, for the reader."""
    found = {name: getattr(args, name) for name in ("sep", "decimal", "encoding")}
    missing = _words(args.missing)
    return found if missing is None else found | {"missing": missing}


def fit(args: argparse.Namespace) -> int:
    """Run `compfed fit`; return its exit status: 1 where there is a model, and its evaluation failed."""
    from compfed import data
    from compfed.cli.result_text import result_text
    from compfed.estimators.model_file import NAME as MODEL
    from compfed.estimators.run_files import check_run_folder, write_evaluation, write_fit

    with as_options():
        label = label_columns(args)
        args.label = label if isinstance(label, str) else ", ".join(label)
        model = _new_model(args)
        check_run_folder(args.out)
        check_new(args.out, args, holds=MODEL)
        check_writable(args.out, f"--out {args.out}")  # before anything is read
        with working("[1/4] reading"):
            sites = data.from_files(
                args.paths, label, _words(args.features), _words(args.drop) or (), site=args.site, schema=args.schema,
                weight=args.weight, offset=args.offset, stratum=args.strata, positive_class=args.positive_class,
                events=args.model == "cox", dates=_dates(args.dates), keep=_words(args.keep) or (),
                unlabelled="drop" if args.drop_unlabelled else "refuse", **_reading(args),
            )  # fmt: skip
        _check_evaluation(sites, args)
        table = _table(sites)
        if not args.json:  # before the fit, which may take long
            print(f"{_table_text(table)}\n", flush=True)
        with working(f"[2/4] fitting{_search_text(args)}") as progress:
            model._progress = progress  # for this fit alone
            try:
                model.fit_sites(sites)
            finally:
                model._progress = None
        no_errors = _summarise(model, args)
        with working("[2/4] writing the model"):  # an evaluation takes longer than the fit, and may fail
            write_fit(model, args.out, _config(args, model, sites), args.label, table)
        evaluation, failed = _evaluate(model, sites, args)
        with working("[4/4] writing"):
            write_evaluation(model, args.out, evaluation, args.label, table)
    if args.json:
        print(json_text(_summary(model, sites, evaluation, args.out) | {"table": table}))
    else:
        print(f"{result_text(model, args.label)}\n")
        if no_errors:
            print(f"No standard errors: {no_errors}\n")
        if evaluation is not None:
            print(f"{evaluation}\n")
        print(f"Run folder: {args.out}{', with report.html' if (args.out / 'report.html').exists() else ''}")
        print(f"Next: compfed predict {args.out} NEW.csv")
    if failed:
        print(f"compfed fit: {failed}", file=sys.stderr)
    return 1 if failed else 0


def _summarise(model: FederatedModel, args: argparse.Namespace) -> str:
    """Make the summary that was asked for, or that of a fit without a penalty; return why there is none that was expected."""
    wanted = args.summary or ("model" if args.alpha != "cv" and _number(args.alpha, "--alpha") == 0 else "none")
    if wanted == "none":
        return ""
    penalised = args.alpha == "cv" or _number(args.alpha, "--alpha") > 0
    try:
        with working("[2/4] standard errors"):
            model.summary(se=wanted, refit=penalised)
    except InputError as problem:
        return option_text(str(problem))
    return ""


def _summary(model: FederatedModel, sites: Sites, evaluation: Evaluation | None, folder: Path) -> JsonObject:
    """The result in a few numbers, for another program; result.json of the folder has everything."""
    from compfed.estimators.export import result_of

    result = result_of(model)
    measured = {} if evaluation is None else evaluation.to_dict()
    curves = ("roc", "calibration", "communication")
    if evaluation is not None:
        each = measured.pop("per_site", None) or {}
        measured = {name: value for name, value in measured.items() if name not in curves}
        measured["per_site"] = {
            site: {name: value for name, value in found.items() if name not in curves} for site, found in each.items()
        }
    same = ("alpha", "theta", "classes", "event", "features", "coef", "ratios", "comparisons", "intercept")
    return {
        "folder": str(folder), "estimator": result["estimator"], "rows": int(sites.sizes.sum()),
        "sites": dict(zip(sites.names, map(int, sites.sizes), strict=True)), **{name: result.get(name) for name in same},
        "certificate": result["certificate"]["words"], "summary": result.get("summary"), "evaluation": measured or None,
    }  # fmt: skip


def _new_model(args: argparse.Namespace) -> FederatedModel:
    """The estimator that the options describe, not fitted; options that it does not have are refused by name."""
    import compfed

    name, l1_ratio = MODELS[args.model]
    chooses = args.alpha == "cv"
    model = getattr(compfed, f"{name}CV" if chooses else name)
    given: JsonObject = {} if chooses else {"alpha": _number(args.alpha, "--alpha")}
    if args.folds != "loo" and args.folds < 2:
        raise InputError(f"--folds {args.folds} must be at least 2.")
    if chooses:
        given |= {"cv": args.folds, "rule": "one_standard_error" if args.one_standard_error else "best"}
    elif args.one_standard_error:
        raise InputError("--one-standard-error chooses among several values of alpha. Leave out --alpha.")
    l1_ratio = l1_ratio if args.l1_ratio is None else args.l1_ratio
    options = {
        "l1_ratio": l1_ratio, "standardize": args.standardize or None, "class_weight": args.class_weight,
        "relax": args.relax or None, "site_effects": "profile" if args.site_effects else None,
        "penalty_factors": _factors(args.penalty_factors), "theta": _theta(args), "ties": args.ties,
        "times": None if args.times is None else agreed_times(args.times),
    }  # fmt: skip
    known = model().get_params()
    for option, value in options.items():
        if value is None:
            continue
        if option not in known:
            raise InputError(f"--{option.replace('_', '-')} is not for --model {args.model}. Leave it out.")
        given[option] = value
    return model(**given)


def _check_evaluation(sites: Sites, args: argparse.Namespace) -> None:
    """Refuse an evaluation that these sites cannot have, before the fit."""
    from compfed.splits import LEAVE_ONE_SITE_OUT, cv_splits

    if args.model == "cox" and args.evaluate == LEAVE_ONE_SITE_OUT:
        raise InputError(
            f"--evaluate {LEAVE_ONE_SITE_OUT} is not for --model cox. Take --evaluate rows, or cv: the concordance."
        )
    if args.evaluate == LEAVE_ONE_SITE_OUT and len(sites) < 2:
        way_out = "Give a file for every site, name the column of the sites (--site), or take --evaluate cv."
        raise InputError(f"--evaluate {LEAVE_ONE_SITE_OUT} needs at least two sites; there is one. {way_out}")
    if (cv := _folds(args)) is not None:
        cv_splits(cv, 0, sites.sizes.tolist(), by_class=False)


def _folds(args: argparse.Namespace) -> int | str | None:
    """What --evaluate means as the `cv` of `evaluate`; None for the fitted model, or for no evaluation."""
    folds = 5 if args.folds == "loo" else args.folds
    return {"cv": folds, "rows": None, "none": None}.get(args.evaluate, args.evaluate)


def _evaluate(model: FederatedModel, sites: Sites, args: argparse.Namespace) -> tuple[Evaluation | None, str]:
    """How well the model predicts, of every site too where they are not too many; or why that is not known."""
    if args.evaluate == "none":
        return None, ""
    saved = f"the model is saved in {args.out}, and was not evaluated"
    scored: Any = model
    folds = f" by {_folds(args)} fits without their folds" if args.evaluate == "cv" else ""
    try:
        if args.model == "cox":
            with working(f"[3/4] evaluating{folds}"):
                return scored.evaluate(sites, cv=_folds(args)), ""
        with working(f"[3/4] evaluating{folds}"):
            return model.evaluate(sites, cv=_folds(args), per_site=len(sites) <= MOST_SITES), ""
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{saved[0].upper()}{saved[1:]}.") from None
    except (InputError, Divergence, MemoryError) as problem:
        return None, f"{saved}: {option_text(str(problem))}"
    except Exception as problem:
        problem.add_note(f"{saved[0].upper()}{saved[1:]}.")
        raise


def _search_text(args: argparse.Namespace) -> str:
    """What is fitted, in words."""
    how = "by leave-one-out" if args.folds == "loo" else f"in {args.folds} folds"
    return f" {N_ALPHAS} values of alpha {how}" if args.alpha == "cv" else ""


def label_columns(args: argparse.Namespace) -> str | list[str]:
    """The columns of the outcome: that of --label, or those of survival data in their order."""
    survival = {"--time": args.time, "--event": args.event, "--entry": args.entry}
    given = [option for option, value in survival.items() if value is not None]
    if getattr(args, "model", "cox") != "cox":
        if given or args.strata is not None:
            raise InputError(f"{(given or ['--strata'])[0]} is for --model cox. Leave it out.")
        if args.label is None:
            raise InputError("--label is missing: name the column to predict.")
        return args.label
    if getattr(args, "label", None) is not None:
        raise InputError(
            f"--label {args.label} is not for --model cox, whose outcome has two columns. Give --time COL --event COL."
        )
    if args.time is None or args.event is None:
        raise InputError("--model cox needs --time COL and --event COL.")
    return [name for name in (args.entry, args.time, args.event) if name is not None]


def agreed_times(text: str) -> list[float]:
    """The times of --times: numbers separated by commas, or START:STOP:STEP."""
    import numpy as np

    way_out = "give numbers separated by commas, or START:STOP:STEP"
    if ":" not in text:
        return [_number(part, "--times", way_out) for part in text.split(",")]
    parts = [_number(part, "--times", way_out) for part in text.split(":")]
    if len(parts) != 3 or not parts[2] > 0 or not 0 <= parts[1] - parts[0] <= 10_000 * parts[2]:
        raise InputError(f"--times {text}: {way_out}, with START below STOP and STEP above 0.")
    return (parts[0] + parts[2] * np.arange(int((parts[1] - parts[0]) / parts[2] + 1e-9) + 1)).tolist()


def _theta(args: argparse.Namespace) -> float | str | None:
    """theta as given, or "ml", which estimates it, for the model that has it."""
    if args.theta is None:
        return "ml" if args.model == "negative-binomial" else None
    return _number(args.theta, "--theta", "give a number > 0")


def _number(text: str, option: str, way_out: str = "give a number, or cv") -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {text}: {way_out}.") from None


def _factors(text: str | None) -> dict[str, float] | None:
    if text is None:
        return None
    pairs = _pairs(text, "--penalty-factors", "NUMBER")
    return {
        name.strip(): _number(value, f"--penalty-factors {name}=", "give a number >= 0, or inf")
        for name, value in pairs
    }


def _pairs(text: str, option: str, what: str) -> list[tuple[str, str]]:
    """COLUMN=VALUE pairs, separated by commas; each column once."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name and sign for name, sign, _ in pairs):
        raise InputError(f"{option} {text}: give COLUMN={what}, separated by commas.")
    names = [name.strip() for name, _, _ in pairs]
    if twice := [name for k, name in enumerate(names) if name in names[:k]]:
        raise InputError(f"{option} {text}: column {twice[0]} has two factors. Give one of them.")
    return [(name, value) for name, (_, _, value) in zip(names, pairs, strict=True)]


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",")]


def _config(args: argparse.Namespace, model: FederatedModel, sites: Sites) -> JsonObject:
    """What the run was started with, for its folder."""
    return {
        "command": "fit", "estimator": type(model).__name__, "parameters": model.get_params(), "label": args.label,
        "sites": dict(zip(sites.names, map(int, sites.sizes), strict=True)), "files": [str(path) for path in args.paths],
    }  # fmt: skip


def _dates(text: str | None) -> dict[str, str] | None:
    """What the dates of each column become."""
    return None if text is None else {name: value.strip() for name, value in _pairs(text, "--dates", "year or a date")}


def _table(sites: Sites) -> JsonObject:
    """What was made of the tables, in the words of the command line, and Table 1."""
    from compfed.data.summary import summary_of
    from compfed.federation.tables import table_one_record

    found = summary_of(sites)
    told = {name: [option_text(note) for note in found[name]] for name in ("dropped", "notes")}
    return found | told | {"table_one": table_one_record(sites)}


def _table_text(table: JsonObject) -> str:
    from compfed.report.words import REHEARSAL, table_sentences

    return "\n".join([*table_sentences(table), REHEARSAL])


# --- predict ---


def _add_predict(commands: Commands) -> None:
    parser = commands.add_parser(
        "predict",
        help="predictions of a fitted model for new rows",
        description="Predict the outcome of every row of a file with the model of a run folder. Columns are found by name.",
        **example_text(PREDICT_EXAMPLES),
    )
    parser.add_argument(
        "model", type=Path, metavar="RUN", help="run folder of `compfed fit` or `compfed federation run`"
    )
    parser.add_argument("path", type=Path, metavar="FILE", help="CSV or Parquet file of new rows")
    parser.add_argument("--out", type=Path, metavar="FILE", help="CSV file to write (default: standard output)")
    add_overwrite(parser.add_argument)
    parser.add_argument("--json", action="store_true", help="print JSON, one object per row")
    _add_reading(parser)
    parser.set_defaults(run=predict)


def predict(args: argparse.Namespace) -> int:
    """Run `compfed predict`; return its exit status."""
    import compfed
    from compfed.data.frames import text_columns
    from compfed.data.table_files import read_table

    if args.path.is_dir():
        raise InputError(f"{args.path} is a folder; name one CSV or Parquet file.")
    if args.out is not None:
        check_writable(args.out.parent, f"--out {args.out}")
        check_new(args.out, args)
    with as_options(), working("predicting"):
        model = compfed.load_model(args.model)
        table = read_table(args.path, text=text_columns(getattr(model, "schema_", None)), **_reading(args))
        columns = predictions(model, table)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    as_json = "".join(f"{json_text(row)}\n" for row in rows)
    text = as_json if args.json else _csv([list(columns), *(list(row.values()) for row in rows)])
    if args.out is None:
        sys.stdout.write(text)
    else:
        write_private(args.out, text.encode())
        print(f"{len(rows)} predictions: {args.out}")
    return 0


def predictions(model: FederatedModel, table: Any) -> dict[str, list[Any]]:
    """The columns of a prediction: the outcome, and for a classifier the probability of every class."""
    found = {"prediction": model.predict(table).tolist()}
    if hasattr(model, "predict_proba"):
        probabilities = model.predict_proba(table)  # pyright: ignore[reportAttributeAccessIssue]
        found["prediction"] = [_whole(value) for value in found["prediction"]]
        names = [f"probability of {_whole(c)}" for c in model.classes_.tolist()]  # pyright: ignore[reportAttributeAccessIssue]
        found |= {name: probabilities[:, k].tolist() for k, name in enumerate(names)}
    return found


def _whole(value: Any) -> Any:
    """A class as it is in a file: 1, not 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _csv(rows: Sequence[Sequence[object]]) -> str:
    import csv
    import io

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
