"""The command line: each command parses its options, calls the library and prints."""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from compfed import __version__
from compfed.cli import completion, fit, local_commands, network_commands, report_command, survival_command
from compfed.cli.help_text import GroupedParser, OneLineParser
from compfed.cli.option_text import option_text
from compfed.errors import Divergence, InputError, MissingExtra


def _parser() -> argparse.ArgumentParser:
    parser = GroupedParser(
        prog="compfed", description="Regression models over data that several sites hold and do not share."
    )
    parser.add_argument("--version", action="version", version=f"compfed {__version__}")
    parser.set_defaults(run=lambda _: parser.print_help())  # without a command
    commands: local_commands.Commands = parser.add_subparsers(  # pyright: ignore[reportAssignmentType]  # a subclass of its parser
        dest="command", metavar="COMMAND", parser_class=OneLineParser
    )
    fit.add_commands(commands)
    survival_command.add_commands(commands)
    local_commands.add_commands(commands)
    report_command.add_commands(commands)
    network_commands.add_commands(commands)
    completion.add_command(commands, parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `compfed`; a user's mistake ends with a message on stderr and status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the locale does not have is written as its number
            stream.reconfigure(errors="backslashreplace")
    args = _parser().parse_args(argv)
    try:
        with _warnings_in_one_line(args.command):
            status = args.run(args) or 0
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


@contextmanager
def _warnings_in_one_line(command: str | None) -> Iterator[None]:
    """Show warnings without the line of the source that they come from; a worker's script is the user's own source."""
    with warnings.catch_warnings():
        if command != "worker":
            warnings.showwarning = lambda message, *_, **__: print(
                f"Warning: {_on_one_line(option_text(str(message)))}", file=sys.stderr
            )
        yield


def _on_one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())


def _in_words(problem: Exception) -> str:
    """A problem in one line, whether the user, the disk or the memory caused it; several problems of files in a line each."""
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename or 'the output'}: {problem.strerror}."
    if isinstance(problem, MemoryError):
        return f"there is not enough memory ({str(problem) or 'none left'}); give smaller sizes."
    several = isinstance(problem, InputError) and "problems:\n" in str(problem)
    return str(problem) if several else _on_one_line(str(problem))
