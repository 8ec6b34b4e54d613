"""The command line: each command parses its options, calls the library and prints."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Sequence

from compfed import __version__
from compfed.cli import fit, local_commands, network_commands, report_command, survival_command
from compfed.cli.help_text import GroupedParser
from compfed.errors import Divergence, InputError, MissingExtra


def _parser() -> argparse.ArgumentParser:
    parser = GroupedParser(
        prog="compfed", description="Regression models over data that several sites hold and do not share."
    )
    parser.add_argument("--version", action="version", version=f"compfed {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser
    )
    fit.add_commands(commands)
    survival_command.add_commands(commands)
    local_commands.add_commands(commands)
    report_command.add_commands(commands)
    network_commands.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `compfed`; a user's mistake ends with a message on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the locale does not have is written as its number
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    try:
        status = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()  # a closed pipe raises here, not when the interpreter ends
        return status
    except BrokenPipeError:  # `compfed list algorithms | head -1`: the reader has gone
        assert sys.stdout is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a program that SIGPIPE ended
    except (InputError, MissingExtra, Divergence, OSError, MemoryError) as problem:
        print(f"compfed {args.command}: {_in_words(problem)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(f"\ncompfed {args.command}: interrupted. {stopped}".rstrip(), file=sys.stderr)
        return 130


def _in_words(problem: Exception) -> str:
    """A problem in one line, whether the user, the disk or the memory caused it; several problems of files in a line each."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename or 'the output'}: {problem.strerror}."
    if isinstance(problem, MemoryError):
        return f"there is not enough memory ({str(problem) or 'none left'}); give smaller sizes."
    several = isinstance(problem, InputError) and "problems:\n" in str(problem)
    return str(problem) if several else re.sub(r"\s*\n\s*", " ", str(problem))
