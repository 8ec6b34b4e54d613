"""`compfed completion`: what a shell offers after Tab, written from the parser that reads the commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from compfed.cli.help_text import example_text
from compfed.cli.local_commands import Commands

EXAMPLES = (
    ("for this user, in bash", "compfed completion bash > ~/.local/share/bash-completion/completions/compfed"),
    ("in zsh, below compinit in ~/.zshrc: source <(compfed completion zsh)", "compfed completion zsh"),
    ("in fish", "compfed completion fish > ~/.config/fish/completions/compfed.fish"),
)
# $1 is the path of the command, such as "federation run"; $2 the word before the cursor
BASH = """\
# compfed: commands, options and their values; files elsewhere
_compfed_words() {{
  case "$1 $2" in
{values}
  esac
  case "$1" in
{words}
  esac
}}
_compfed() {{
  local path="" word found
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case " $(_compfed_words "$path" "") " in *" $word "*) [[ $word == -* ]] || path="${{path:+$path }}$word";; esac
  done
  found=$(_compfed_words "$path" "${{COMP_WORDS[COMP_CWORD-1]}}")
  COMPREPLY=($(compgen -W "$found" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _compfed compfed
"""
ZSH = "autoload -U +X compinit bashcompinit && {{ (( $+functions[compdef] )) || compinit -u; bashcompinit; }}\n"


class Command(NamedTuple):
    """A command, by the words after `compfed`, with what may follow it."""

    path: str
    below: dict[str, str]  # commands below it, and their help
    options: dict[str, str]  # and their help
    values: dict[str, list[str]]  # of options that have a few, and of "" for a word without an option


def add_command(commands: Commands, whole: argparse.ArgumentParser) -> None:
    """Add `completion`, for the commands of a whole parser."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes commands and options in bash, zsh or fish",
        description="Print a script for the shell. It has the commands, options and values of this version: print it again after an "
        "upgrade.",
        **example_text(EXAMPLES),
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], metavar="SHELL", help="bash, zsh or fish")

    def run(args: argparse.Namespace) -> int:
        print(script(args.shell, whole), end="")
        return 0

    parser.set_defaults(run=run)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script that completes the commands of a parser in a shell."""
    found = list(_walk(parser, ""))
    if shell == "fish":
        return "".join(f"{line}\n" for command in found for line in _fish(command))
    words = [
        f"    {shlex.quote(c.path)}) echo {shlex.quote(' '.join([*c.below, *c.values.get('', ()), *c.options]))};;"
        for c in found
    ]
    values = [
        f"    {shlex.quote(f'{c.path} {option}')}) echo {shlex.quote(' '.join(given))}; return;;"
        for c in found
        for option, given in c.values.items()
        if option
    ]
    text = BASH.format(words="\n".join(words), values="\n".join(values))
    return ZSH.format() + text if shell == "zsh" else text


def _walk(parser: argparse.ArgumentParser, path: str) -> Iterator[Command]:
    """The commands of a parser, itself first."""
    below, options, values, children = dict[str, str](), dict[str, str](), dict[str, list[str]](), []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = {str(each.dest): str(each.help) for each in action._choices_actions}
            children = list(action.choices.items())
            continue
        options |= {
            name: (action.help or "").replace("%(default)s", str(action.default)) for name in action.option_strings
        }
        if action.choices is not None:
            values |= {name: list(map(str, action.choices)) for name in action.option_strings or [""]}
    yield Command(path, below, options, values)
    for name, child in children:
        yield from _walk(child, f"{path} {name}".strip())


def _fish(command: Command) -> Iterator[str]:
    """The lines of a command in fish's own form, which shows the help of each word."""
    words = command.path.split()
    seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in words) or "true"
    if command.below:
        seen += f"; and not __fish_seen_subcommand_from {' '.join(command.below)}"
    head = f"complete -c compfed -n '{seen}'"
    for name, text in command.below.items():
        yield f"{head} -f -a {name} -d {_quoted(text)}"
    for value in command.values.get("", ()):
        yield f"{head} -f -a {_quoted(value)}"
    for name, text in command.options.items():
        form = f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
        given = f" -x -a {_quoted(' '.join(command.values[name]))}" if name in command.values else ""
        yield f"{head} {form} -d {_quoted(text)}{given}"


def _quoted(text: str) -> str:
    """A text between single quotes, as fish reads them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
