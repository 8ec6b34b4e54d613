"""The API reference, the queries and the command line, from the public names, their docstrings and the parser."""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import compfed as cf
from compfed._utils.text import markdown_table
from compfed.algorithms import ALGORITHMS
from compfed.cli import _parser
from compfed.cli.help_text import EXIT_CODES
from compfed.federation import QUERIES


@dataclass(frozen=True)
class Topic:
    """A page of the API: the top-level names of some modules, and all public names of some packages."""

    title: str
    opening: str
    homes: tuple[str, ...] = ()  # top-level names that come from these modules
    packages: tuple[str, ...] = ()  # with all their public names
    more: tuple[str, ...] = ()  # further names, written out
    members: bool = True  # list methods too
    leave_out: frozenset[str] = field(default_factory=frozenset)


ROOT = Path(__file__).parents[2]
MOST_PARAMETERS = 6  # of a signature that is shown whole
BASES = (
    "FederatedModel",
    "Evaluation",
    "Summary",
    "Loss",
    "Regulariser",
)  # whose methods are listed on pages that leave methods out

TOPICS = {
    "estimators": Topic(
        "Estimators", "Classes with scikit-learn's habits. :doc:`/howto/estimators` shows them at work.",
        homes=("estimators",), more=("compfed.estimators.Path", "compfed.estimators.base.FederatedModel"), members=False,
        leave_out=frozenset(["family", "fit_options", "make_table"]),
    ),
    "problem": Topic(
        "Problems and solutions", "The problem min_x sum_i p_i f_i(x) + g(x), and its minimiser with a certificate.",
        homes=("problem", "problem_spec", "solve", "solvers", "stopping"), more=("compfed.stopping.Certificate",),
    ),
    "losses": Topic(
        "Losses", "The loss of a site. :doc:`/howto/problems` shows how to bring your own.", packages=("losses",), members=False
    ),
    "penalties": Topic(
        "Penalties", "Regularisers g: a value and a proximal operator.", packages=("regularisers",), members=False
    ),
    "algorithms": Topic(
        "The contract of a method", "Base class, fields and default steps. The methods have pages of their own: :doc:`../methods/index`.",
        homes=("algorithms",), packages=("algorithms",), leave_out=frozenset(["ALGORITHMS", *ALGORITHMS]),
    ),
    "simulation": Topic(
        "Simulation", "Rounds of a method on one machine or several, and the trace of a run.",
        homes=("simulation", "trace", "_utils"), more=("compfed.simulation.run_plain", "compfed.simulation.Simulated"),
    ),
    "data": Topic(
        "Data", "Rows at their sites: readers, schemas, bundled tables, splits. :doc:`/howto/tables` shows a schema at work.",
        homes=("data", "schema", "splits"), packages=("data", "data.bundled", "data.partition"),
    ),
    "federation": Topic(
        "Federation", "Queries, rules and programs, and Table 1. :doc:`../queries` lists the queries with their replies.",
        homes=("federation",), packages=("federation",)
    ),
    "network": Topic(
        "Network", "A federation across a network, for its operator (extra ``flower``). :doc:`/howto/deploy` sets one up.",
        homes=("network",), packages=("network",),
    ),
    "studies": Topic(
        "Comparisons, figures and checks", "Compare methods or sites, draw, write reports, and hold a method to its claims.",
        homes=("studies", "report"), packages=("testing",),
    ),
    "errors": Topic("Errors and warnings", "What compfed raises.", homes=("errors",)),
}  # fmt: skip


def pages() -> dict[str, str]:
    """The text of every page of the API by its file name: a page for each topic, and one for each class and function."""
    homes = {name: home.removeprefix("compfed.") for name, home in cf._HOME.items()}
    claimed = {home for topic in TOPICS.values() for home in topic.homes}
    lost = sorted(name for name, home in homes.items() if home.split(".")[0] not in claimed)
    if lost:
        raise ValueError(
            f"public names without a page: {', '.join(lost)}; add their module to TOPICS in docs/_ext/api_pages.py"
        )
    found, used = {"index.rst": index()}, uses()
    for key, topic in TOPICS.items():
        names = list(names_of(topic, homes))
        apart = [name for name in names if has_page(get(name))]
        found[f"{key}.rst"] = page(key, topic, names, apart)
        found |= {f"{page_name(key, name)}.rst": own_page(topic, name, used) for name in apart}
    return found


def has_page(found: object) -> bool:
    """Whether an object has a page of its own: every class and function but errors and warnings, which are short."""
    return not (inspect.isclass(found) and issubclass(found, BaseException))


def page_name(key: str, name: str) -> str:
    """The name of the page of a class or a function."""
    return f"{key}.{name.rpartition('.')[2]}"


def uses() -> dict[str, list[str]]:
    """The examples of the gallery and the pages whose code uses a name, as links, by the name."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "examples" / "gallery").glob("plot_*.py")):
        text = path.read_text(encoding="utf-8")
        for name in set(re.findall(r"\b[A-Za-z_]\w+", text)):
            found.setdefault(name, []).append(f":doc:`/gallery/{path.stem}`")
    for path in sorted((ROOT / "docs").glob("*/*.md")):
        code = " ".join(
            re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        )
        for name in set(re.findall(r"\b[A-Za-z_]\w+", code)):
            found.setdefault(name, []).append(f":doc:`/{path.relative_to(ROOT / 'docs').with_suffix('').as_posix()}`")
    return found


def index() -> str:
    """The page that lists the others."""
    lines = [f"   {key}" for key in TOPICS]
    about = [f"- :doc:`{key}`: {topic.opening.split('. ')[0].rstrip('.')}." for key, topic in TOPICS.items()]
    text = "Every public name, with its parameters and an example, from its docstring. ``import compfed as cf`` is meant throughout."
    return "\n".join([*title("API"), text, "", *about, "", ".. toctree::", "   :hidden:", "", *lines, ""])


def names_of(topic: Topic, homes: dict[str, str]) -> Iterator[str]:
    """The full names on a page, each object once."""
    seen: list[object] = []
    listed = [f"compfed.{name}" for name, home in homes.items() if home.split(".")[0] in topic.homes]
    for package in topic.packages:
        module = importlib.import_module(f"compfed.{package}")
        listed += [f"compfed.{package}.{name}" for name in public(module) if name not in topic.leave_out]
    for name in [*listed, *topic.more]:
        found = get(name)
        if (
            any(found is other for other in seen)
            or isinstance(found, ModuleType)
            or not getattr(found, "__doc__", None)
        ):
            continue
        if not (inspect.isclass(found) or callable(found)):
            continue
        seen.append(found)
        yield name


def public(module: ModuleType) -> list[str]:
    """The public names of a module: its `__all__`, or what it defines."""
    own = [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and name[0] != "_"
    ]
    return sorted(getattr(module, "__all__", own))


def get(name: str) -> object:
    """The object with this full name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def page(key: str, topic: Topic, names: list[str], apart: list[str]) -> str:
    """The page of a topic: a table of all names, then each error with its docstring."""
    lines = [*title(topic.title), topic.opening, ""]
    lines += [".. autosummary::", "   :nosignatures:", "", *(f"   ~{name}" for name in names), ""]
    if apart:
        lines += [".. toctree::", "   :hidden:", "", *(f"   {page_name(key, name)}" for name in apart), ""]
    for name in names:
        if name not in apart:
            lines += [f".. autoexception:: {name}", ""]
    return "\n".join(lines)


def own_page(topic: Topic, name: str, used: dict[str, list[str]]) -> str:
    """The page of a class or a function: its docstring with parameters and example, its methods, and where it is used."""
    found, last = get(name), name.rpartition(".")[2]
    lines = [*title(last), f".. currentmodule:: {name.rpartition('.')[0]}", ""]
    if not inspect.isclass(found):
        lines += [f".. autofunction:: {name}", ""]
    else:
        lines += [f".. autoclass:: {name}{short_signature(found)}", "", *methods(topic, name, found)]
    if places := used.get(last):
        lines += [".. rubric:: Used in", "", *(f"- {place}" for place in places), ""]
    return "\n".join(lines)


def methods(topic: Topic, name: str, found: type) -> list[str]:
    """The methods of a class, or where they are."""
    last = found.__name__
    if topic.members or last in BASES:
        shown = [(member, role) for member, role in documented(found) if member not in topic.leave_out]
        return [line for member, role in shown for line in (f"   .. auto{role}:: {name}.{member}", "")]
    if last.startswith("Federated"):
        base = ":class:`compfed.estimators.base.FederatedModel`"
        return [f"Methods are those of {base}: ``fit``, ``predict``, ``evaluate`` and more.", ""]
    return []


def short_signature(cls: type) -> str:
    """The first parameters of a class with many: all of them are listed below. Empty for a class with few."""
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return ""
    if len(parameters) <= MOST_PARAMETERS:
        return ""
    first = [str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters[:2] if p.kind is not p.KEYWORD_ONLY]
    return f"({', '.join([*first, '...'])})"


def documented(cls: type) -> list[tuple[str, str]]:
    """The public methods and properties that classes of this package define and document, with the directive for each."""
    found = {}
    for base in cls.__mro__:
        if base.__module__.startswith("compfed."):
            found |= {name: value for name, value in vars(base).items() if name not in found}
    listed = []
    for name, value in sorted(found.items()):
        role = "property" if isinstance(value, property | functools.cached_property) else "method"
        method = inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
        if name[0] != "_" and (method or role == "property") and inspect.getdoc(value):
            listed.append((name, role))
    return listed


def title(text: str) -> list[str]:
    """A heading in reStructuredText."""
    return [text, "=" * len(text), ""]


# --- queries ---


def queries() -> str:
    """Every query with its fields, and what a site adds to the sum."""
    parts = [
        "# Queries",
        "After reading this page you know every question that a server may ask, and every number in a reply.",
        "The list is closed: a site answers nothing else. The server receives the weighted sum of the replies over all sites, never a "
        "list of them. [](../explanation/what-leaves-a-site.md) says what this protects, and what it does not.",
    ]
    for query in sorted(QUERIES, key=lambda cls: cls.__name__):
        document = inspect.getdoc(query) or ""
        source = inspect.getsource(query)
        reply = inspect.getsource(query.Reply) if hasattr(query, "Reply") else ""
        parts += [f"## {query.__name__}", document, "The server sends:", table_of(source.split("class Reply")[0])]
        parts += ["A site replies:", table_of(reply)]
    return "\n\n".join(parts) + "\n"


def table_of(source: str) -> str:
    """The fields of a record as a table: name, type, comment."""
    found = re.findall(r"^ +(\w+): ([^#=\n]+?)(?: = [^#\n]+?)?(?:\s+#\s*(.*))?$", source, flags=re.MULTILINE)
    rows = [
        [f"`{name}`", f"`{kind.strip()}`".replace("|", r"\|"), comment.replace("|", r"\|")]
        for name, kind, comment in found
    ]
    return markdown_table(["field", "type", "meaning"], rows) if rows else "nothing."


# --- the command line ---


def command_line() -> str:
    """The help of every command."""
    codes = EXIT_CODES | {141: "the program that read the output has ended, as in a pipe to `head`"}
    parts = [
        "# Command line",
        "After reading this page you know every command with its options. `compfed COMMAND --help` prints the same text.",
        "## Exit codes",
        markdown_table(["code", "meaning"], [[str(code), text] for code, text in codes.items()]),
        f"## compfed\n\n```text\n{_parser().format_help().rstrip()}\n```",
    ]
    for name, parser in commands(_parser()):
        level = "##" if name.count(" ") <= 1 else "###"
        parts += [f"{level} {name}", f"```text\n{parser.format_help().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands below a parser, in order."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield child.prog, child
                yield from commands(child)
