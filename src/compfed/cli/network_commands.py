"""`compfed federation` for an operator and `compfed site` for a site. Nothing of Flower is imported before one of them runs."""

from __future__ import annotations

import argparse
import csv
import io
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from compfed._utils.text import join_names, printable, text_table
from compfed.cli.help_text import ExampleFormatter, example_text
from compfed.cli.json_text import json_text
from compfed.cli.local_commands import Commands
from compfed.cli.overwriting import add_overwrite, check_new
from compfed.cli.result_text import result_text
from compfed.errors import InputError

Command = Callable[[argparse.Namespace], int]
SHOWN = 12  # sites that are told one by one what to do


FIRST_FEDERATION = (
    ("all of it on this machine, for a first look", "compfed federation demo"),
    ("the operator's steps", "compfed federation new ward-study --sites rome,oslo,lyon --superlink fl.example.org:8443"),
    ("", "compfed federation keys ward-study"), ("", "compfed federation admit ward-study rome rome.key"),
    ("", "compfed federation roster ward-study"), ("", "compfed federation serve ward-study"),
    ("", "compfed federation run ward-study"),
)  # fmt: skip
FIRST_SITE = (
    ("the steps of a site", "compfed site init --name rome --superlink fl.example.org:8443"),
    ("", "compfed site roster"), ("", "compfed site check"), ("", "compfed site run"),
    ("a run that waits for a person here", "compfed site runs"), ("", "compfed site approve RUN"),
    ("", "compfed site deny RUN --why TEXT"),
    ("afterwards: what left this site", "compfed site ledger"), ("", "compfed site explain RUN"),
)  # fmt: skip
STEP_EXAMPLES = {
    "compfed federation new": "compfed federation new ward-study --sites rome,oslo,lyon --superlink fl.example.org:8443",
    "compfed federation keys": "compfed federation keys ward-study",
    "compfed federation admit": "compfed federation admit ward-study rome rome.key",
    "compfed federation roster": "compfed federation roster ward-study",
    "compfed federation serve": "compfed federation serve ward-study",
    "compfed federation run": "compfed federation run ward-study --out ward-study/second",
    "compfed federation schema": "compfed federation schema ward-study",
    "compfed federation describe": "compfed federation describe ward-study",
    "compfed federation status": "compfed federation status ward-study --json",
    "compfed federation stop": "compfed federation stop ward-study",
    "compfed federation demo": "compfed federation demo --out results/federation",
    "compfed site init": "compfed site init --name rome --superlink fl.example.org:8443",
    "compfed site check": "compfed site check --config study/site.toml",
    "compfed site roster": "compfed site roster",
    "compfed site run": "compfed site run --config study/site.toml",
    "compfed site status": "compfed site status --json",
    "compfed site ledger": "compfed site ledger --csv > ledger.csv",
    "compfed site allow": "compfed site allow",
    "compfed site extract": "compfed site extract",
    "compfed site runs": "compfed site runs",
    "compfed site approve": "compfed site approve RUN  # a name that `compfed site runs` lists",
    "compfed site deny": "compfed site deny RUN --why 'the ethics board has not agreed'",
    "compfed site explain": "compfed site explain RUN  # a name that `compfed site ledger` lists",
}


def add_commands(commands: Commands) -> None:
    """Add the commands of this file."""
    operator = "a federation across a network, for its operator (extra flower)"
    site = "take part in a federation across a network, as a site (extra flower)"
    for name, text, add, examples in (
        ("federation", operator, _add_federation, FIRST_FEDERATION), ("site", site, _add_site, FIRST_SITE),
    ):  # fmt: skip
        parser = commands.add_parser(name, help=text, description=f"{text}.".capitalize(), **example_text(examples))
        parser.set_defaults(run=lambda _, parser=parser: parser.print_help())  # without a command
        add(parser.add_subparsers(metavar="COMMAND"))


def _add_step(steps: Commands, name: str, run: Command, text: str) -> argparse.ArgumentParser:
    """A command that says what to install where Flower is missing. Files that it writes are for their owner only."""

    def checked(args: argparse.Namespace) -> int:
        from compfed.network import check_installed

        os.umask(0o077)
        check_installed()
        return run(args)

    parser = steps.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.epilog, parser.formatter_class = f"example:\n  {STEP_EXAMPLES[parser.prog]}", ExampleFormatter
    parser.set_defaults(run=checked)
    return parser


def _add_federation(steps: Commands) -> None:
    new = _add_step(steps, "new", _new, "write a federation.toml")
    keys = _add_step(steps, "keys", _keys, "make a CA, a certificate for the SuperLink and the operator's secret")
    admit = _add_step(steps, "admit", _admit, "write the public key of a site into federation.toml")
    roster = _add_step(steps, "roster", _write_roster, "write roster.txt: all sites and their keys, for every site")
    serve = _add_step(steps, "serve", _serve, "run the SuperLink, until interrupted")
    run = _add_step(steps, "run", _run, "fit the estimator of federation.toml, or continue a run that was interrupted")
    schema = _add_step(
        steps, "schema", _schema, "agree on a schema with all sites: kinds, levels, missing values, classes"
    )
    describe = _add_step(steps, "describe", _describe, "Table 1 of all sites")
    status = _add_step(steps, "status", _status, "who is connected, and how the run is getting on")
    stop = _add_step(steps, "stop", _stop, "stop a run; `compfed federation run` continues it later")
    demo = _add_step(steps, "demo", _demo, "everything on this machine: a SuperLink and four sites as processes")
    for parser in (new, keys, admit, roster, serve, run, schema, describe, status, stop):
        parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of `compfed federation new`")
    for parser in (run, status, stop):
        parser.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: DIR/run)")
    status.add_argument("--json", action="store_true", help="as JSON")
    describe.add_argument("--json", action="store_true", help="as JSON")
    schema.add_argument("--out", type=Path, metavar="FILE", help="default: DIR/schema.toml")
    roster.add_argument("--out", type=Path, metavar="FILE", help="default: DIR/roster.txt")
    for parser in (schema, demo):
        add_overwrite(parser.add_argument)
    demo.add_argument(
        "--out", type=Path, default=Path("results/federation"), metavar="DIR", help="default: %(default)s"
    )
    new.add_argument(
        "--sites", required=True, metavar="A,B,...", help="names of the sites, in order, or a file with a name per line"
    )
    dialled = "the address that sites dial (default: %(default)s)"
    new.add_argument("--superlink", default="127.0.0.1:8443", metavar="HOST:PORT", help=dialled)
    keys.add_argument("--demo", action="store_true", help="also make the keys of all sites, for a trial on one machine")
    admit.add_argument("name", metavar="NAME", nargs="?", help="the site")
    key = "the line that `compfed site init` printed there, or a file that holds it"
    admit.add_argument("key", metavar="KEY", nargs="?", help=key)
    admit.add_argument(
        "--all",
        type=Path,
        metavar="PATH",
        help="many sites at once: a file with their lines, or a folder with their .pub files",
    )
    admit.add_argument("--new", action="store_true", help="add a site that federation.toml does not have")


def _add_site(steps: Commands) -> None:
    init = _add_step(steps, "init", _init, "make the key of this site and a site.toml")
    init.add_argument("--name", required=True, help="the name of this site, as agreed with the operator")
    init.add_argument("--superlink", required=True, metavar="HOST:PORT", help="from the operator")
    init.add_argument("--folder", type=Path, default=Path("."), metavar="DIR", help="default: this folder")
    check = _add_step(steps, "check", _check, "read the settings and the table, and say what would happen")
    roster = _add_step(steps, "roster", _show_roster, "show the sites of roster.txt, and the fingerprint to compare")
    run = _add_step(steps, "run", _run_site, "connect to the operator and reply to queries, until interrupted")
    status = _add_step(
        steps, "status", _site_status, "how the service of this site is; exit status 1 where something is wrong"
    )
    status.add_argument("--json", action="store_true", help="as JSON")
    metrics = "write metrics for the textfile collector of Prometheus' node exporter, too"
    status.add_argument("--prometheus", type=Path, metavar="FILE.prom", help=metrics)
    ledger = _add_step(
        steps,
        "ledger",
        _ledger,
        "every run of the table: queries, numbers that left, bytes, and their share of the table",
    )
    allow = _add_step(
        steps, "allow", _allow, "allow another roster than before, after saying whose totals become known"
    )
    extract = _add_step(
        steps, "extract", _extract, "take the file of the table as it is now, after saying how it differs from before"
    )
    runs = _add_step(steps, "runs", _runs, "runs that a person at this site was asked about, and what was decided")
    approve = _add_step(
        steps, "approve", _approve, "approve a run, after saying what will leave and what is not prevented"
    )
    deny = _add_step(steps, "deny", _deny, "deny a run, whichever run of the same sentence asks")
    for parser in (approve, deny):
        parser.add_argument("run_name", metavar="RUN", help="a name that `compfed site runs` lists")
    approve.add_argument("--yes", action="store_true", help="do not ask")
    typed = "with --yes: the parameters that hold numbers of the operator's choice, typed out"
    approve.add_argument("--free", default="", metavar="NAMES", help=typed)
    deny.add_argument("--why", default="", metavar="TEXT", help="the reason, which the operator reads")
    runs.add_argument("--json", action="store_true", help="as JSON")
    explain = _add_step(steps, "explain", _explain, "what left this site in a run, message by message, in words")
    as_table = ledger.add_mutually_exclusive_group()
    as_table.add_argument("--csv", action="store_true", help="as CSV")
    as_table.add_argument("--json", action="store_true", help="as JSON, one object per run")
    for parser in (allow, extract):
        parser.add_argument("--yes", action="store_true", help="do not ask")
    explain.add_argument("run_name", metavar="RUN", help="the name of the run, as `compfed site ledger` lists it")
    for parser in (check, roster, run, status, ledger, allow, extract, runs, approve, deny, explain):
        parser.add_argument(
            "--config", type=Path, default="site.toml", metavar="site.toml", help="default: %(default)s"
        )


# --- the operator ---


def _new(args: argparse.Namespace) -> int:
    from compfed.network.settings import new_federation

    given, names = Path(args.sites), args.sites.split(",")
    if len(names) == 1 and given.is_file():
        names = [line for line in given.read_text(encoding="utf-8").splitlines() if line.strip()]
    path = new_federation(args.folder, [name.strip() for name in names], args.superlink)
    print(f"{path}\nNext: choose the estimator there, then: compfed federation keys {args.folder}")
    return 0


def _keys(args: argparse.Namespace) -> int:
    from compfed.network import keys
    from compfed.network.settings import FederationSettings

    settings = FederationSettings.read(args.folder)
    for path in keys.make_keys(settings.keys, settings.host):
        print(path)
    print(f"\nSend to every site: {settings.keys / 'ca.crt'}, and the address {settings.superlink}. Nothing else.")
    print(f"Stay here: everything else in {settings.keys}.")
    if len(settings.names) > SHOWN and not args.demo:
        print(
            f"Each of {len(settings.names)} sites runs `compfed site init --name NAME --superlink {settings.superlink}` and sends its "
            f"node.key.pub. Put them into one folder, under names of your choice. Then: compfed federation admit {args.folder} --all FOLDER"
        )
        return 0
    for name in settings.names:
        if args.demo:
            from compfed.cli.demo import make_site

            folder = make_site(settings, name)
            print(f"Site {name}: made {folder} with key, ca.crt and roster.txt, for a trial on this machine only.")
        else:
            print(
                f"Site {name}: runs `compfed site init --name {name} --superlink {settings.superlink}` and sends the line "
                f"that it prints. Then: compfed federation admit {args.folder} {name} 'LINE'"
            )
    if args.demo:
        from compfed.cli.demo import share_roster

        share_roster(settings)
    return 0


def _admit(args: argparse.Namespace) -> int:
    from compfed.network import keys
    from compfed.network.settings import FederationSettings, admit, admit_all

    if args.all is not None:
        if args.name is not None:
            raise InputError("--all admits the sites that its lines name. Leave NAME and KEY out.")
        found = admit_all(args.folder, args.all, args.new)
        rows = [[name, keys.fingerprint(key)] for name, key in found.items()]
        print(text_table(["site", "fingerprint of its key"], rows))
        settings = FederationSettings.read(args.folder, check_estimator=False)
        missing = [name for name in settings.names if name not in settings.admitted]
        print("Compare each fingerprint with its site, by telephone.")
        if missing:
            print(f"No key yet: {join_names(missing, most=12)}.")
        else:
            print(f"All sites have a key: compfed federation roster {args.folder}")
        return 0
    if args.name is None or args.key is None:
        raise InputError("a site is admitted by NAME and KEY, many at once by --all PATH.")
    given = Path(args.key)
    line = given.read_text() if len(args.key) < 200 and given.is_file() else args.key
    key, other = admit(args.folder, args.name, line, args.new)
    if other is not None:
        print(f"This was the key of site {other}, which has none now. Admit its own.")
    print(f"Site {args.name} has the key {keys.fingerprint(key)}. Compare this with the site, by telephone.")
    print("A SuperLink that runs admits it when the next run starts.")
    print(f"When all sites have a key: compfed federation roster {args.folder}")
    return 0


def _write_roster(args: argparse.Namespace) -> int:
    from compfed._utils.files import write_text
    from compfed.network.roster import roster_lines, roster_text
    from compfed.network.settings import FederationSettings

    settings = FederationSettings.read(args.folder, check_estimator=False)
    path = args.out or settings.home / "roster.txt"
    write_text(path, roster_text(settings.roster))
    print(path, *roster_lines(settings.roster), sep="\n")
    print(
        "Send this file to every site, which puts it beside its site.toml. Then compare the fingerprint of the roster with"
    )
    print("each of them by telephone: `compfed site roster` must print the same there.")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from compfed.network.settings import FederationSettings
    from compfed.network.superlink import serve

    serve(FederationSettings.read(args.folder, check_estimator=False), lambda text: print(text, flush=True))
    return 0


def _run(args: argparse.Namespace) -> int:
    from compfed.network.operator import run
    from compfed.network.settings import FederationSettings

    for number in (signal.SIGINT, signal.SIGTERM):  # a shell without job control starts processes that ignore SIGINT
        signal.signal(number, signal.default_int_handler)
    folder, settings = _run_folder(args), FederationSettings.read(args.folder)
    try:
        model, evaluation = run(settings, folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Nothing is asked any more. The same command continues the run in {folder}.") from None
    cost = model.communication_
    kilobytes = f"{cost.bytes_up / 1e3:.1f} kB up and {cost.bytes_down / 1e3:.1f} kB down"
    print(f"\n{result_text(model)}\nThe fit took {cost.rounds} messages, {kilobytes} per site.\n")
    if settings.summary and (summary := vars(model).get("_summary")) is not None:
        print(f"The standard errors took {summary.communication.rounds} more.\n")
    if evaluation is not None:
        print(f"{evaluation}\n")
    print(f"Run folder: {folder}" + (", with report.html" if (folder / "report.html").exists() else ""))
    print(f"Next: compfed predict {folder} NEW.csv, or compfed.load_model({str(folder)!r})")
    return 0


def _schema(args: argparse.Namespace) -> int:
    from compfed._utils.files import check_writable
    from compfed.network.operator import connect
    from compfed.schema import Schema

    path = args.folder / "schema.toml" if args.out is None else args.out
    check_writable(path.parent, f"--out {path}")
    check_new(path, args)
    with connect(args.folder) as federation:
        schema = Schema.agree(federation)
    path.write_text(schema.to_toml(), encoding="utf-8")
    print(f"{path}: {len(schema.columns)} columns, {len(schema.feature_names)} features.", *schema.notes, sep="\n")
    print(f"Next: read {path}, and send it to every site. There: put it beside site.toml, write")
    print('    schema = "schema.toml"')
    print("above [network] in site.toml, run `compfed site check`, and restart `compfed site run`.")
    return 0


def _describe(args: argparse.Namespace) -> int:
    from compfed.federation.tables import describe
    from compfed.network.operator import connect

    with connect(args.folder) as federation:
        table = describe(federation)
    print(json_text(table.to_dict()) if args.json else table)
    return 0


def _status(args: argparse.Namespace) -> int:
    from compfed.network.operator import happening, site_states, states_text
    from compfed.network.run_folder import is_alive, read_status
    from compfed.network.settings import FederationSettings

    settings, folder = FederationSettings.read(args.folder, check_estimator=False), _run_folder(args)
    folder, others = _latest_run(folder) if args.out is None else (folder, [])
    sites: dict[str, str] = {}
    problem = ""
    try:
        sites = site_states(settings)
    except InputError as unreachable:
        problem = str(unreachable)
    status, process = read_status(folder), is_alive(folder)
    if not status:
        run = f"There is no run in {folder}."
    elif process is not None:
        run = f"Run in {folder}, process {process}: {happening(status)}"
    else:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(status.get("updated", 0.0)))))
        run = f"{when}: the run in {folder} {_how_it_ended(status, (folder / 'config.json').exists())}."
    if args.json:
        print(json_text({"sites": sites, "problem": problem, "run": run, "process": process, "status": status}))
    else:
        print(problem or states_text(sites))
        print(run)
        if others:
            print(f"Other runs, each with --out: {join_names([str(other) for other in others])}.")
    return 1 if problem else 0


def _how_it_ended(status: dict[str, object], by_command: bool) -> str:
    """How a run that is not going on came to its end, and what continues it."""
    again = "`compfed federation run` continues it" if by_command else "Run the script again to continue it"
    where = f"at message {status.get('message')}"
    reason = f": {printable(str(status['reason'])).rstrip('.')}" if "reason" in status else ""
    return {
        "finished": "has finished",
        "closed": "was ended by its script",
        "failed": f"failed {where}{reason}. {again}",
        "stopped": f"was stopped {where}. {again}",
    }.get(str(status.get("state")), f"was killed {where}. {again}")


def _stop(args: argparse.Namespace) -> int:
    from compfed.network.run_folder import has_run, is_alive, stop

    folder = _run_folder(args)
    elsewhere = [] if args.out is not None else [str(run) for run in _runs_beside(folder) if is_alive(run) is not None]
    hint = f" One goes on elsewhere: --out {elsewhere[0]}." if elsewhere else ""
    if not has_run(folder):
        raise InputError(
            f"there is no run in {folder}. Give the DIR of `compfed federation new`, or the run with --out RUN.{hint}"
        )
    if (process := is_alive(folder)) is not None:
        print(f"Asking process {process} to stop.", flush=True)
    print(f"The run in {folder} is stopped." if stop(folder) else f"There is no run going on in {folder}.{hint}")
    return 0


def _runs_beside(folder: Path) -> list[Path]:
    """The run folders beside the usual one, the latest first."""
    found = {path.parent: path.stat().st_mtime for path in folder.parent.glob("*/status.json") if path.parent != folder}
    return sorted(found, key=lambda path: -found[path])


def _latest_run(usual: Path) -> tuple[Path, list[Path]]:
    """The run to tell about, and the others: one that goes on comes first, then the latest."""
    from compfed.network.run_folder import has_run, is_alive

    runs = [*([usual] if has_run(usual) else []), *_runs_beside(usual)]
    if not runs:
        return usual, []
    changed = {run: (run / "status.json").stat().st_mtime if (run / "status.json").exists() else 0.0 for run in runs}
    first, *others = sorted(runs, key=lambda run: (is_alive(run) is None, -changed[run]))
    return first, others


def _run_folder(args: argparse.Namespace) -> Path:
    """The folder of the run: given, or beside the federation.toml, which DIR holds or is."""
    settings = args.folder / "federation.toml" if args.folder.is_dir() else args.folder
    if not settings.is_file():
        raise InputError(f"{settings}: No such file or directory. Give the folder of `compfed federation new DIR`.")
    return args.out or settings.parent / "run"


def _demo(args: argparse.Namespace) -> int:
    from compfed.cli.demo import demo

    settings = args.out / "federation.toml"
    if args.out.exists() and not settings.exists() and (args.out.is_file() or any(args.out.iterdir())):
        raise InputError(f"--out {args.out} holds other files than those of an earlier demo. Give a new folder.")
    check_new(args.out, args, holds=settings.name)
    return 0 if demo(args.out) else 1


# --- a site ---


def _init(args: argparse.Namespace) -> int:
    from compfed.network.site_settings import init

    paths, line, fingerprint = init(args.folder, args.name, args.superlink)
    print(*paths, sep="\n")
    print(f"\nSend this line to the operator. It is public:\n\n{line} {args.name}\n")
    print(f"Its fingerprint, to compare by telephone: {fingerprint}")
    print(f"Next: put the operator's ca.crt and your table into {args.folder}; write the label column into {paths[2]}.")
    print("Then: put the operator's roster.txt there too, once all sites have sent their keys:")
    print(f"compfed site roster --config {paths[2]}\ncompfed site check --config {paths[2]}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from compfed.network.site_settings import check

    return 0 if check(args.config) else 1


def _show_roster(args: argparse.Namespace) -> int:
    from compfed.network.roster import roster_lines
    from compfed.network.site_settings import SiteSettings

    settings = SiteSettings.read(args.config)
    roster = settings.read_roster()
    print(settings.roster, *roster_lines(roster), sep="\n")
    print(
        "Compare the fingerprint of the roster by telephone, with people whom you know at the other sites: it must be the"
    )
    print(
        "same at all of them. If it is not, somebody may have exchanged a key to read what you send: do not take part."
    )
    return 0


def _site_status(args: argparse.Namespace) -> int:
    from compfed.network.site_settings import SiteSettings
    from compfed.network.site_status import site_status, status_text, write_prometheus

    found = site_status(SiteSettings.read(args.config))
    if args.prometheus is not None:
        write_prometheus(found, args.prometheus)
    print(json_text(found.to_dict()) if args.json else status_text(found))
    return 0 if found.healthy else 1


def _ledger(args: argparse.Namespace) -> int:
    from compfed.network.site_log import ledger_text
    from compfed.network.site_settings import SiteSettings

    settings = SiteSettings.read(args.config)
    if args.json:
        rows = csv.DictReader(io.StringIO(settings.ledger().to_csv()))
        print("".join(f"{json_text(row)}\n" for row in rows), end="")
    else:
        print(settings.ledger().to_csv() if args.csv else f"{ledger_text(settings)}\n", end="")
    return 0


def _allow(args: argparse.Namespace) -> int:
    from compfed.network.site_log import allow_roster
    from compfed.network.site_settings import SiteSettings

    confirm = _confirmed(args, "Allow runs with this roster?", "compfed site allow")
    return 0 if allow_roster(SiteSettings.read(args.config), confirm) else 1


def _extract(args: argparse.Namespace) -> int:
    from compfed.network.extract import take
    from compfed.network.site_settings import SiteSettings

    confirm = _confirmed(args, "Answer from this file from now on?", "compfed site extract")
    return 0 if take(SiteSettings.read(args.config), confirm) else 1


def _runs(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from compfed.network.approvals import runs_text
    from compfed.network.site_settings import SiteSettings

    known = SiteSettings.read(args.config).approvals().all()
    print(json_text([asdict(asked) for asked in known]) if args.json else runs_text(known))
    return 0


def _approve(args: argparse.Namespace) -> int:
    from compfed.network.approvals import approval_text, free_parameters
    from compfed.network.site_settings import SiteSettings

    approvals = SiteSettings.read(args.config).approvals()
    asked = approvals.find(args.run_name)
    print(approval_text(asked, approvals.changes(asked)))
    confirm = _confirmed(args, "Approve this run?", "compfed site approve")
    free = free_parameters(asked)
    if free and not args.yes:
        try:
            args.free = input(f"It sets {free} to numbers of the operator's choice. Type {free} to go on: ")
        except EOFError:
            raise InputError(f"nobody answered. Say --yes --free {free}, or run this at a terminal.") from None
    if free and args.free.strip() != free:
        raise InputError(f"nothing was approved: {free} was not typed (--free {free}).")
    if not confirm():
        print("Nothing was approved: the run waits.")
        return 1
    decided = approvals.approve(asked)
    print(
        f"Approved for {approvals.rules.days} days. The first run with this sentence spends it: {decided.run} begins within seconds."
    )
    return 0


def _deny(args: argparse.Namespace) -> int:
    from compfed.network.site_settings import SiteSettings

    approvals = SiteSettings.read(args.config).approvals()
    asked = approvals.deny(approvals.find(args.run_name), args.why)
    print(f"Denied: run {asked.run}, and every run of the same sentence, until `compfed site approve {asked.short}`.")
    return 0


def _confirmed(args: argparse.Namespace, question: str, command: str) -> Callable[[], bool]:
    """Ask a person at a terminal, unless --yes was given."""

    def confirm() -> bool:
        try:
            return args.yes or input(f"{question} Type yes: ").strip() == "yes"
        except EOFError:
            raise InputError(f"nobody answered. Run `{command}` at a terminal, or say --yes.") from None

    return confirm


def _explain(args: argparse.Namespace) -> int:
    from compfed.network.site_log import explain_text
    from compfed.network.site_settings import SiteSettings

    print(explain_text(SiteSettings.read(args.config), args.run_name))
    return 0


def _run_site(args: argparse.Namespace) -> int:
    from compfed.network.site import run_site

    return run_site(args.config)
