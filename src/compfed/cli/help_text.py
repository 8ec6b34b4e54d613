"""Help that teaches by example: the commands in groups, and examples below the options of each."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from typing import Any

GROUPS = {
    "from files to a model": ("fit", "predict", "describe", "report"),
    "across a network": ("federation", "site"),
    "methods and studies": ("list", "compare", "leaderboard", "reproduce", "worker"),
}
EXAMPLES = (
    ("from the files of two hospitals to a model, and to predictions",
     "compfed fit rome.csv oslo.csv --label died --model logistic"),
    ("", "compfed predict results/fit new.csv"),
    ("a whole federation on this machine: a server and four sites", "compfed federation demo"),
)  # fmt: skip
EXIT_CODES = {
    0: "done",
    1: "something was found wrong: a claim fails, a check of a site fails, a server cannot be reached",
    2: "a mistake in the options, the settings or the data; one line on the error stream says which, and what to do",
    130: "interrupted (Ctrl-C); commands that can be continued say how",
}


def example_text(examples: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Keywords for a parser that shows examples, each with what it is for.

    >>> print(example_text([("all methods", "compfed list algorithms")])["epilog"])
    example:
      # all methods
      compfed list algorithms
    """
    return {"epilog": _examples(examples), "formatter_class": ExampleFormatter}


class ExampleFormatter(argparse.HelpFormatter):
    """Wraps text, and leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("example") else super()._fill_text(text, width, indent)


def _examples(examples: Sequence[tuple[str, str]]) -> str:
    lines = [f"  # {text}\n  {command}" if text else f"  {command}" for text, command in examples]
    return "\n".join([f"example{'s' * (len(examples) > 1)}:", *lines])


class GroupedParser(argparse.ArgumentParser):
    """The parser of `compfed`, whose help lists the commands in groups."""

    def format_help(self) -> str:
        found = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        texts = {action.dest: str(action.help) for action in found._choices_actions}
        wide = max(map(len, texts))
        parts = ["usage: compfed COMMAND ...\n       compfed COMMAND --help", str(self.description)]
        for group, names in GROUPS.items():
            lines = [_hanging(f"  {name:<{wide}}  ", texts[name]) for name in names]
            parts.append("\n".join([f"{group}:", *lines]))
        codes = [_hanging(f"  {code:<4}", text) for code, text in EXIT_CODES.items()]
        parts += [_examples(EXAMPLES), "\n".join(["exit codes:", *codes])]
        parts.append("options:\n  -h, --help  show this help\n  --version   show the version")
        return "\n\n".join(parts) + "\n"


def _hanging(head: str, text: str) -> str:
    return textwrap.fill(text, 100, initial_indent=head, subsequent_indent=" " * len(head))
