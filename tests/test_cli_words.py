"""What the command line says to a mistake: one line, with what was meant; and what a shell completes, from the same parser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings

import pytest
from test_cli import all_parsers

from compfed.cli import _parser, main
from compfed.cli.completion import script


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["fti"], "compfed: 'fti' is not a command. Did you mean fit? `compfed --help`"),
        (["federation", "rnu", "x"], "compfed federation: 'rnu' is not a command. Did you mean run?"),
        (["fit", "x.csv", "--label", "y", "--model", "logit"], "--model 'logit' is not one of its values. Did you mean logistic?"),
        (["fit", "x.csv", "--label", "y", "--model", "xyz"], "--model 'xyz' is not one of its values: lasso, elastic-net, "),
        (["fit", "x.csv", "--labl", "y", "--model", "lasso"], "compfed fit: there is no option --labl. Did you mean --label?"),
        (["fit", "x.csv", "--labl=y"], "there is no option --labl. Did you mean --label?"),
        (["fit", "x.csv"], "compfed fit: missing: --model. `compfed fit --help`"),
        (["predict", "run", "a.csv", "b.csv"], "compfed predict: 'b.csv' is one argument too many."),
        (["compare", "--tau", "x"], "compfed compare: --tau: invalid whole number value: 'x'."),
        (["compare", "--rounds", "3", "--bytes", "4"], "not allowed with argument --rounds."),
        (["compare", "--s", "3"], "ambiguous option: --s could match --seeds, --samples, --seed."),
        (["list", "algorithms\x1b[2J"], "'algorithms\\x1b[2J' is not one of its values. Did you mean algorithms?"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_options_is_one_line_with_what_was_meant(argv, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert message.replace("\\x1b", r"\x1b") in error.replace(r"\\x1b", r"\x1b")
    assert error.count("\n") == 1
    assert error.endswith(" --help` shows the options.\n")


@pytest.mark.parametrize("argv", [[], ["federation"], ["site"]])
def test_without_a_command_there_is_the_help(argv, capsys):
    assert main(argv) == 0
    alone = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*argv, "--help"])
    assert alone == capsys.readouterr().out


def test_the_package_is_a_command():
    said = subprocess.run([sys.executable, "-m", "compfed", "--version"], capture_output=True, text=True)
    assert re.fullmatch(r"compfed \S+\n", said.stdout), said.stderr


def test_a_script_gets_its_own_options():
    args = _parser().parse_args(
        ["worker", "--coordinator", "a:1", "--process-id", "0", "--processes", "1", "x.py", "--own"]
    )
    assert args.arguments == ["--own"]


def test_a_warning_is_one_line_without_its_source(capsys, monkeypatch):
    def warn(args: object) -> int:
        warnings.warn("first line\nalpha='x' of it", UserWarning, stacklevel=1)
        return 0

    monkeypatch.setattr("compfed.cli.local_commands.list_methods", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["list", "algorithms"]) == 0
    assert capsys.readouterr().err == "Warning: first line --alpha 'x' of it\n"


# --- completion ---

WORDS = [
    "compfed fe",
    "compfed federation ru",
    "compfed fit --model lo",
    "compfed fit --alp",
    "compfed fit results/ --evalu",
    "compfed list re",
]
MEANT = ["federation", "run", "logistic", "--alpha", "--evaluate", "references"]
ASK = {
    # the words of the line in $line, and the last of them is being typed
    "bash": 'COMP_WORDS=($line); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); COMPREPLY=(); _compfed; echo "${COMPREPLY[@]}"',
    "fish": 'complete -C "$line" | string replace -r "\\t.*" "" | string join " "',
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_options_and_values(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "compfed").write_text(script(shell, _parser()))
    given = "set line $argv[1]" if shell == "fish" else "line=$1"
    for line, meant in zip(WORDS, MEANT, strict=True):
        code = f"source ./compfed; {given}; {ASK[shell]}"
        command = [shell, "-c", code, *([line] if shell == "fish" else ["-", line])]
        said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert said.stdout.split() == [meant], (line, said.stderr)


def test_zsh_reads_the_script(tmp_path):
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / "compfed").write_text(script("zsh", _parser()))
    code = "source ./compfed; echo ${_comps[compfed]}; _compfed_words federation"
    said = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    first, words = said.stdout.splitlines()
    assert "_compfed" in first, said.stderr
    assert {"new", "run", "status"} <= set(words.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_in_the_script(shell, capsys):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for parser in all_parsers(_parser()):
        for action in parser._actions:
            for name in action.option_strings:
                assert (
                    name if shell != "fish" else f"{'-l' if name.startswith('--') else '-s'} {name.lstrip('-')}"
                ) in text
        assert all(word in text for word in parser.prog.split()[1:])


@pytest.mark.parametrize(
    ("process", "awaited"), [("0", "processes 1, 2 at first:9000"), ("2", "process 0 at first:9000")]
)
def test_a_worker_says_whom_it_waits_for(process, awaited, monkeypatch, capsys, tmp_path):
    import jax

    def nobody(*_: object, **__: object) -> None:
        raise RuntimeError("deadline exceeded")

    monkeypatch.setattr(jax.distributed, "initialize", nobody)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    script = tmp_path / "study.py"
    script.write_text("")
    options = ["--coordinator", "first:9000", "--process-id", process, "--processes", "3", "--wait", "7"]
    assert main(["worker", *options, str(script)]) == 2
    waits, missed = capsys.readouterr().err.splitlines()
    assert waits == f"compfed worker: process {process} of 3 waits for {awaited}, at most 7 s."
    assert f"process {process} of 3 could not meet the others at first:9000 within 7 s" in missed
