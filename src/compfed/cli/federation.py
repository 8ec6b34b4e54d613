"""`compfed federation`: the commands of an operator. Nothing of Flower is imported before one of them runs."""

from __future__ import annotations

import argparse
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from compfed._utils.text import printable, text_table
from compfed.cli.options import Command, Commands, needs_flower
from compfed.errors import InputError

if TYPE_CHECKING:
    from compfed.estimators.base import FederatedModel
    from compfed.solvers.search import Certificate


def add(commands: Commands) -> None:
    """Add the options of these commands."""
    parser = commands.add_parser("federation", help="a federation across a network, for its operator (compfed[flower])")
    steps = parser.add_subparsers(metavar="COMMAND", required=True)

    def step(name: str, run: Command, text: str, folder: bool = True) -> argparse.ArgumentParser:
        made = steps.add_parser(name, help=text, description=text)
        if folder:
            made.add_argument("folder", type=Path, metavar="DIR", help="the folder of `compfed federation new`")
        made.set_defaults(run=needs_flower(run))
        return made

    new = step("new", _new, "write a federation.toml")
    new.add_argument("--sites", required=True, metavar="A,B,...", help="names of the sites, in order")
    new.add_argument(
        "--superlink",
        default="127.0.0.1:8443",
        metavar="HOST:PORT",
        help="the address that sites dial (default: %(default)s)",
    )
    keys = step("keys", _keys, "make a CA, a certificate for the SuperLink and the operator's secret")
    keys.add_argument("--demo", action="store_true", help="also make the keys of all sites, for a trial on one machine")
    admit = step("admit", _admit, "write the public key of a site into federation.toml")
    admit.add_argument("name", metavar="NAME", help="the site")
    admit.add_argument(
        "key", metavar="KEY", help="the line that `compfed site init` printed there, or a file that holds it"
    )
    admit.add_argument("--new", action="store_true", help="add a site that federation.toml does not have")
    step("serve", _serve, "run the SuperLink, until interrupted")
    run = step("run", _run, "fit the estimator of federation.toml, or continue a run that was interrupted")
    status = step("status", _status, "who is connected, and how the run is getting on")
    stop = step("stop", _stop, "stop a run; `compfed federation run` continues it later")
    for made in (run, status, stop):
        made.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: DIR/run)")
    demo = step("demo", _demo, "everything on this machine: a SuperLink and four sites as processes", folder=False)
    demo.add_argument(
        "--out", type=Path, default=Path("results/federation"), metavar="DIR", help="default: %(default)s"
    )


def _new(args: argparse.Namespace) -> int:
    from compfed.network.settings import new_federation

    names = [name.strip() for name in args.sites.split(",")]
    path = new_federation(args.folder, names, args.superlink)
    print(f"{path}\nNext: choose the estimator there, then: compfed federation keys {args.folder}")
    return 0


def _keys(args: argparse.Namespace) -> int:
    from compfed.network import keys
    from compfed.network.settings import FederationSettings, admit
    from compfed.network.site_settings import init

    settings = FederationSettings.read(args.folder)
    for path in keys.make_keys(settings.keys, settings.host):
        print(path)
    print(f"\nSend to every site: {settings.keys / 'ca.crt'}, and the address {settings.superlink}. Nothing else.")
    print(f"Stay here: everything else in {settings.keys}.")
    for name in settings.names:
        if args.demo:
            folder = settings.home / "sites" / name
            _, line, _ = init(folder, name, settings.superlink)
            admit(args.folder, name, line)
            (folder / "ca.crt").write_bytes((settings.keys / "ca.crt").read_bytes())
            print(f"Site {name}: made {folder} with key and ca.crt, for a trial on this machine only.")
        else:
            print(
                f"Site {name}: runs `compfed site init --name {name} --superlink {settings.superlink}` and sends the line "
                f"that it prints. Then: compfed federation admit {args.folder} {name} 'LINE'"
            )
    return 0


def _admit(args: argparse.Namespace) -> int:
    from compfed.network import keys
    from compfed.network.settings import admit

    given = Path(args.key)
    line = given.read_text() if len(args.key) < 200 and given.is_file() else args.key
    key, other = admit(args.folder, args.name, line, args.new)
    if other is not None:
        print(f"This was the key of site {other}, which has none now. Admit its own.")
    print(f"Site {args.name} has the key {keys.fingerprint(key)}. Compare this with the site, by telephone.")
    print("A SuperLink that runs admits it when the next run starts.")
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
    folder = _run_folder(args)
    try:
        model = run(FederationSettings.read(args.folder), folder)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Nothing is asked any more. The same command continues the run in {folder}.") from None
    cost = model.communication_
    print(f"\n{result_text(model)}")
    print(
        f"{cost.rounds} messages, {cost.bytes_up / 1e3:.1f} kB up and {cost.bytes_down / 1e3:.1f} kB down per site. Run folder: {folder}"
    )
    print(f"Next: compfed.network.load_model({str(folder)!r}) is the fitted estimator.")
    return 0


def _status(args: argparse.Namespace) -> int:
    from compfed.network.operator import happening, site_states
    from compfed.network.run_folder import is_alive, read_status
    from compfed.network.settings import FederationSettings

    settings, folder = FederationSettings.read(args.folder, check_estimator=False), _run_folder(args)
    trouble = ""
    try:
        print(text_table(["site", "state"], [[name, words] for name, words in site_states(settings).items()]))
    except InputError as problem:
        trouble = str(problem)
        print(trouble)
    status, process = read_status(folder), is_alive(folder)
    if not status:
        print(f"There is no run in {folder}.")
    elif process is not None:
        print(f"Run in {folder}, process {process}: {happening(status)}")
    else:
        again = (
            "`compfed federation run` continues it"
            if (folder / "config.json").exists()
            else "Run the script again to continue it"
        )
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(float(str(status.get("updated", 0.0)))))
        reason = f": {printable(str(status['reason'])).rstrip('.')}" if "reason" in status else ""
        words = {
            "finished": "has finished",
            "closed": "was ended by its script",
            "failed": f"failed at message {status.get('message')}{reason}. {again}",
            "stopped": f"was stopped at message {status.get('message')}. {again}",
        }.get(str(status.get("state")), f"was killed at message {status.get('message')}. {again}")
        print(f"{when}: the run in {folder} {words}.")
    return 1 if trouble else 0


def _stop(args: argparse.Namespace) -> int:
    from compfed.network.run_folder import is_alive, stop

    folder = _run_folder(args)
    if not folder.is_dir():
        raise InputError(
            f"there is no run folder {folder}. Give the folder of `compfed federation new DIR`, or --out RUN."
        )
    if (process := is_alive(folder)) is not None:
        print(f"Asking process {process} to stop.", flush=True)
    print(f"The run in {folder} is stopped." if stop(folder) else f"There is no run going on in {folder}.")
    return 0


def _run_folder(args: argparse.Namespace) -> Path:
    return args.out or (args.folder if args.folder.is_dir() else args.folder.parent) / "run"


def _demo(args: argparse.Namespace) -> int:
    from compfed.cli.demo import demo

    return 0 if demo(args.out) else 1


# --- the result of a run, in words ---


def result_text(model: FederatedModel) -> str:
    """The result of a run: alpha, the coefficients that are not zero, and one sentence about the certificate."""
    import numpy as np

    coef = np.atleast_2d(np.asarray(model.coef_))
    names = getattr(model, "feature_names_in_", None)
    names = [f"column {j}" for j in range(coef.shape[1])] if names is None else list(names)
    lines = []
    alpha = getattr(model, "alpha_", getattr(model, "alpha", None))
    if isinstance(alpha, (int, float)):
        lines.append(f"alpha = {alpha:.6g}")
    used = [j for j in range(coef.shape[1]) if (coef[:, j] != 0).any()]
    lines.append(f"{len(used)} of {coef.shape[1]} coefficients are not zero:" if used else "All coefficients are zero.")
    rows = [[printable(str(names[j]), 60), *(f"{value: .6g}" for value in coef[:, j])] for j in used[:200]]
    if rows:
        classes = [printable(str(c), 20) for c in getattr(model, "classes_", ())]
        heads = classes if len(classes) == len(coef) > 1 else ["coefficient"] * len(coef)
        lines.append(text_table(["column", *heads], rows))
    if len(used) > 200:
        lines.append(f"... and {len(used) - 200} more")
    intercept = np.ravel(getattr(model, "intercept_", ()))
    if intercept.size:
        lines.append(f"intercept: {', '.join(f'{value:.6g}' for value in intercept[:20])}")
    lines.append(certificate_text(model.certificate_))
    return "\n".join(lines)


def certificate_text(certificate: Certificate) -> str:
    """A certificate in one sentence."""
    if not certificate.holds:
        return f"NOT certified: the gradient mapping is {certificate.relative:.1e} of its scale; tol = {certificate.tol:.1e}."
    gap = certificate.duality_gap
    within = (
        f"the objective is within {gap:.1e} of its minimum"
        if gap is not None
        else f"relative optimality {certificate.relative:.1e}"
    )
    unique = "; no other model reaches it" if certificate.unique else ""
    return f"Certified: {within}{unique}."
