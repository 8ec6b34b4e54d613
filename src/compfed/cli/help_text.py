"""Help that teaches by example: the commands in groups, examples below the options of each; mistakes in one line."""

from __future__ import annotations

import argparse
import difflib
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from compfed._utils.text import printable

GROUPS = {
    "from files to a model": ("fit", "predict", "describe", "survival", "report"),
    "across a network": ("federation", "site"),
    "methods and studies": ("list", "compare", "leaderboard", "reproduce", "worker"),
    "the shell": ("completion",),
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


class OneLineParser(argparse.ArgumentParser):
    """A parser that says a mistake in one line, and what was probably meant."""

    def error(self, message: str) -> NoReturn:
        """End the process with one line and status 2."""
        asked = re.sub(r"^the following arguments are required: (.*)", r"missing: \1", message)
        text = printable(re.sub(r"^argument (?=-)", "", asked)).rstrip(".")
        self.exit(
            2, f"{self.prog}: {text}{'' if text.endswith('?') else '.'} `{self.prog} --help` shows the options.\n"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  # overloads
        """Refuse here what this command does not know, with its own options at hand for a hint."""
        if args is not None and (typos := self._unknown_options(args)):
            self.error(self._unknown_text(typos))  # before what is missing: it was meant
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown_text(unknown))
        return found, unknown

    def _unknown_options(self, args: Sequence[str]) -> list[str]:
        """The words that look like options and are none; not where commands or a script take what follows."""
        if any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions):
            return []
        words = args[: args.index("--")] if "--" in args else args
        known = self._option_string_actions
        return [
            word for word in words
            if word.startswith("--") and not any(name.startswith(word.partition("=")[0]) for name in known)
        ]  # fmt: skip

    def _unknown_text(self, unknown: Sequence[str]) -> str:
        option = next((word for word in unknown if word.startswith("-")), None)
        if option is None:
            return f"{unknown[0]!r} is one argument too many"
        name = option.partition("=")[0]
        return f"there is no option {name}{_meant(name, list(self._option_string_actions))}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = list(map(str, action.choices))
        what = "a command" if isinstance(action, argparse._SubParsersAction) else "one of its values"
        head = f"{'/'.join(action.option_strings)} " if action.option_strings else ""
        hint = _meant(str(value), known) or f": {', '.join(known)}"
        raise argparse.ArgumentError(None, f"{head}{value!r} is not {what}{hint}")


def _meant(word: str, known: Sequence[str]) -> str:
    """What was probably meant by a word that is not known; nothing if no other is like it.

    >>> _meant("logit", ["lasso", "logistic"])
    '. Did you mean logistic?'
    """
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f". Did you mean {near[0]}?" if near else ""


class GroupedParser(OneLineParser):
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
