"""One page per method, the table of all methods and the bibliography, from the classes themselves."""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import jax
import numpy as np
from formulas import NotAFormula, as_latex, as_legend, has_words, latex

import compfed as cf
from compfed._utils.text import markdown_table
from compfed.algorithms import ALGORITHMS, Algorithm, default_steps
from compfed.algorithms.counting import KINDS
from compfed.algorithms.round import message_shapes
from compfed.solvers.second_order import SOLVERS
from compfed.studies.method_table import HEADER, SOLVER_HEADER, TAU, Entry, entries, references, solver_rows, table_rows

D = 1000  # coefficients of the model whose messages are measured
ROUNDS = 300

INDEX = """---
html_theme.sidebar_secondary.remove: true
---

# Methods

After reading this page you can see what each method sends, computes and promises, and open its own page.

`compfed list algorithms` prints the same table, and `--markdown` prints it as Markdown. To compare methods on your problem use
`cf.compare_methods` or `compfed compare`; to write one of your own, see [](../../howto/new-method.md).

## Local-update algorithms

:::{{div}} methods-table
{table}
:::

- *paper*: the whole citation is in the [bibliography](../bibliography.md). *ours, after*: our own method, made after theirs.
  *reconstruction of*: meant to be theirs, whose pseudo-code was not at hand. Two names for one method share a row.
- *composite*: it handles a regulariser g that is not smooth.
- Costs are counted on one round with five local steps, per participating client. *up / down* are vectors of d numbers.
  *gradients* counts evaluations, over a mini-batch or over all rows (a trace also counts the rows they read). *prox* counts evaluations
  at a client, that of its last local model included, and at the server.
- **Evidence.** *proved*: by the theorem named, under its condition on the steps. *observed*: by our tests, on small problems. *ours*:
  the claim is ours and no paper's.
- *some clients*: whether a round may use a sample of the clients; a proof is for equal weights. Then follows how the sample stands for
  all where weights differ (`sampling=`, see [sampling](../sampling.md)).
- *exact*: whether the limit is the minimiser, with full gradients. *yes* holds with a sample of the clients too, where one is allowed;
  *as 1/t*: steps, and with them the error, fall like 1/t. After the semicolon: what the paper proves instead, and where our runs
  are outside its theory.
- *verified by*: rows of our table of identities (two methods that must coincide, a fixed point, a special case with a known
  answer), and a run to the minimiser, to its floor, or along its rate, on small problems.

## Second-order solvers

`cf.solve_federated` and the estimators use these; `cf.compare_methods` takes them by name too. [](../../explanation/few-rounds.md)
says when to use which.

{solvers}

```{{toctree}}
:hidden:

{names}
```
"""


def pages(figures: dict[str, str]) -> dict[str, str]:
    """The text of every page by its file name."""
    listed = entries(ALGORITHMS.values())
    found = {f"{entry.name}.md": page(entry, entry.name in figures) for entry in listed}
    found |= {f"{name}.md": solver_page(name) for name in SOLVERS}
    return found | {"index.md": index(listed)}


def index(listed: list[Entry]) -> str:
    """The page with the tables of methods and solvers."""
    file = HEADER.index("file")  # on the page of the method
    cut = [
        [cell for i, cell in enumerate(row) if i != file]
        for row in (HEADER, *table_rows(listed, "[{name}]({name}.md)"))
    ]
    head, rows = cut[0], cut[1:]
    solvers = [[f"[{row[0]}]({row[0]}.md)", *row[1:]] for row in solver_rows()]
    names = "\n".join([*(entry.name for entry in listed), *SOLVERS])
    return INDEX.format(table=markdown_table(head, rows), solvers=markdown_table(SOLVER_HEADER, solvers), names=names)


def page(entry: Entry, has_figure: bool) -> str:
    """The page of one method."""
    cls = entry.method
    text = Described(inspect.getmodule(cls).__doc__ or "")  # pyright: ignore[reportOptionalMemberAccess]  # a class has one
    parts = [
        f"# {entry.name}", first_line(cls), facts(entry), "## The method", with_formulas(text.body),
        "## What travels", travels(cls), "## What a round costs", costs(entry),
        *(["## Convergence", figure(cls)] if has_figure else []),
        "## What is proved, observed and ours", evidence(entry, text),
        "## Default steps", default_rule(cls),
        "## Parameters", f"```{{eval-rst}}\n.. autoclass:: compfed.algorithms.{entry.name}\n```",
        "## Source", source(cls),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def solver_page(name: str) -> str:
    """The page of a second-order solver."""
    cls = SOLVERS[name]
    document = inspect.getmodule(cls).__doc__ or ""  # pyright: ignore[reportOptionalMemberAccess]
    own = re.search(rf"^\*\*{name}\*\*.*?(?=^\*\*|\Z)", document, re.DOTALL | re.MULTILINE)
    (row,) = [row for row in solver_rows() if row[0] == name]
    text = Described(own.group() if own else document)
    rows = [["a site sends per message", row[2]], ["citation", row[3]], ["file", f"`solvers/{row[1]}`"]]
    parts = [
        f"# {name}", first_line(cls), markdown_table(["", ""], rows), "## The method", with_formulas(text.body),
        "## What is proved, observed and ours", labelled(text),
        "## When to use it", "[](../../explanation/few-rounds.md) compares rounds and bytes, and says what `auto` takes.",
        "## Source", source(cls),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


class Described:
    """The docstring of a method's file: its body as Markdown, and the paragraphs that begin with a label."""

    LABELS = ("Reference", "Reconstruction", "Deviations", "Sampling")

    def __init__(self, document: str):
        lines = document.strip().split("\n", 1)
        head = "" if lines[0].startswith("**") else lines[0]
        rest = textwrap.dedent(lines[1]) if head and len(lines) > 1 else document
        body, *labelled = re.split(rf"\b({'|'.join(self.LABELS)}):", rest)
        self.body = body.strip("\n")
        self.labelled = {
            label: " ".join(text.split()) for label, text in zip(labelled[::2], labelled[1::2], strict=True)
        }


def with_formulas(body: str) -> str:
    """The body with indented blocks of formulas as mathematics, and lists of symbols as lists."""
    made = []
    for part in re.split(r"\n[ ]*\n", body):
        lines = part.strip("\n").split("\n")
        indented = all(line.startswith("    ") for line in lines)
        if indented and (formula := as_latex(lines)) is not None:
            made.append(f"$$\n{formula}\n$$")
        elif indented and (legend := as_legend(lines)) is not None:
            made.append("\n".join(f"- ${symbol}$: {_in_code(meaning)}" for symbol, meaning in legend))
        else:
            made.append(part if indented else _with_symbols(part))
    return "\n\n".join(made)


SYMBOL = re.compile(
    r"(?<![\w`{$(])[xyz]hat(?:_(?:[a-z]|tau))?(?![\w(])|(?<![\w`{$(])eta~(?: = eta eta_g tau)?(?![\w(]| g)"
)
PROBLEMS = {
    "min_x sum_i p_i f_i(x) + g(x)": r"$\min_x \sum_i p_i f_i(x) + g(x)$",
    "min_x sum_i p_i f_i(x)": r"$\min_x \sum_i p_i f_i(x)$",
}


def _in_code(meaning: str) -> str:
    """A meaning with its formulas as mathematics, or as code: their underscores are no emphasis."""
    return "".join(map(_clause, re.split(r"([;,] )(?![^({]*[)}])", meaning)))


def _clause(clause: str) -> str:
    if not re.search(r"[_~{}]", clause):
        return clause
    try:
        return f"`{clause}`" if has_words(clause) else f"${latex(clause)}$"
    except NotAFormula:
        return f"`{clause}`"


def _with_symbols(prose: str) -> str:
    """Prose with symbols such as zhat_t as mathematics."""
    for problem, shown in PROBLEMS.items():
        prose = prose.replace(problem, shown)
    return SYMBOL.sub(lambda found: f"${latex(found[0])}$", prose)


def first_line(cls: type) -> str:
    """The first paragraph of the class docstring."""
    return (inspect.getdoc(cls) or "").split("\n\n")[0]


def facts(entry: Entry) -> str:
    """What the class says of itself, as a table."""
    cls, cells = entry.method, dict(zip(HEADER, entry.cells(), strict=True))
    rows = [
        ["paper", str(cls.citation or "unknown")],
        ["handles a non-smooth g", cells["composite"]],
        ["limit is the minimiser", cells["exact"]],
        ["some of the clients", cells["some clients"]],
        ["verified by", cells["verified by"]],
        ["file", f"`algorithms/{cells['file']}`"],
    ]
    return markdown_table(["", ""], rows)


def travels(cls: type[Algorithm]) -> str:
    """The messages of a round, exchange by exchange, with their sizes for a model of d coefficients."""
    problem = smallest(D)
    algorithm = default_steps(cls, problem, TAU).bind(problem, problem.n)
    shapes = message_shapes(algorithm, problem.regulariser, D, np.float64)
    legend = legend_of(inspect.getmodule(cls).__doc__ or "")  # pyright: ignore[reportOptionalMemberAccess]
    rows = []
    for number, exchange in enumerate(shapes, start=1):
        which = f"{number}: " if len(shapes) > 1 else ""
        for way, message in (("server to client", exchange.broadcast), ("client to server", exchange.update)):
            rows += [[f"{which}{way}", *field] for field in fields(message, legend)]
    total = "Over a network a message has some bytes of names and sizes beside these numbers."
    return f"d is the number of coefficients.\n\n{markdown_table(['', 'field', 'numbers', 'meaning'], rows)}\n\n{total}"


def legend_of(document: str) -> dict[str, str]:
    """The symbols that a file explains in indented lines such as "x   global model      y   local model"."""
    found = {}
    for line in document.splitlines():
        if line.startswith("    ") and "=" not in line.split("   ")[1:2]:
            pieces = re.split(r" {2,}", line.strip())
            found |= dict(zip(pieces[::2], pieces[1::2], strict=False))
    return {name.strip(): said for names, said in found.items() for name in names.split(",")}


def fields(message: Any, legend: dict[str, str]) -> list[list[str]]:
    """Name, size and meaning of each field of a message."""
    said = legend | comments(type(message))
    return [[f"`{name}`", size(part), said.get(name, "")] for name, part in message._asdict().items()]


def size(part: Any) -> str:
    """The numbers of a part of a message, in words."""
    if hasattr(part, "dense"):
        share = part.values.shape[0] / D
        return f"{share:g} d values and as many indices"
    sizes = [leaf.size for leaf in jax.tree.leaves(part)]
    return " and ".join({1: "1", D: "d"}.get(n, f"{n / D:g} d") for n in sizes)


def comments(cls: type) -> dict[str, str]:
    """The comment behind each field of a record."""
    return dict(re.findall(r"^\s+(\w+): [^#\n]*#\s*(.*)$", inspect.getsource(cls), flags=re.MULTILINE))


def smallest(d: int) -> cf.Problem:
    """A problem of d coefficients with one row: messages do not depend on the rows."""
    row = np.zeros((1, d))
    row[0, 0] = 1.0
    return cf.Problem(cf.losses.Squared(ridge=1.0), cf.regularisers.Zero(), cf.data.from_arrays([row], [np.ones(1)]))


def costs(entry: Entry) -> str:
    """What one round of five local steps costs, counted by running it."""
    c = entry.cost
    if c is None:
        return "Unknown: the method has no rule for its steps."
    full = 0 if c.calls is None else c.calls[KINDS.index("full_grad")]
    rows = [
        ["vectors up / down", f"{c.vectors_up:.3g} / {c.vectors_down:.3g}"],
        [
            "gradients",
            f"{c.gradients:.3g}" + (f", of which {full} over all rows whatever the batch size" if full else ""),
        ],
        ["proximal steps at a client / at the server", f"{c.client_proxes:.3g} / {c.server_proxes:.3g}"],
    ]
    return "Per participating client, with five local steps; counted by running a round.\n\n" + markdown_table(
        ["", ""], rows
    )


def evidence(entry: Entry, text: Described) -> str:
    """What is proved, what our tests observe, what is ours, and how it differs from the paper."""
    cls = entry.method
    proved = (
        f"Proved: {cls.proof}."
        if cls.sampling == "proved"
        else "Not proved for the way we run it; observed by our tests."
    )
    sampled = "A round needs every client." if cls.sampling == "no" else f"{proved} Schemes: {', '.join(cls.schemes)}."
    lines = [
        f"- **Whose.** {whose(cls)}",
        f"- **Limit.** {LIMITS[cls.exact]}"
        + (" The error falls like 1/t." if cls.slow else "")
        + f" Evidence: {entry.limit}.",
        f"- **Some of the clients.** {sampled}",
        f"- **Tests.** {entry.verified_by[:1].upper()}{entry.verified_by[1:]}.",
        labelled(text),
    ]
    return "\n".join(lines)


LIMITS = {
    True: "With full gradients of all clients it is the minimiser; our tests run it there.",
    False: "It is not the minimiser where the sites' data differ; our tests measure the distance that stays.",
    None: "Unknown.",
}


def whose(cls: type[Algorithm]) -> str:
    """Whether a method is a paper's, ours, or a paper's as far as we could reconstruct it."""
    citation = cls.citation
    if citation is None:
        return "Unknown."
    if citation.reconstructed:
        return f"Meant to be the method of {citation.authors} ({citation.year}), whose pseudo-code was not at hand."
    if citation.ours:
        return f"Ours, after {citation.authors} ({citation.year}); it says nothing about theirs."
    return f"The method of {citation.authors} ({citation.year})."


def labelled(text: Described) -> str:
    """Reference, deviations and the like, as the file says them."""
    return "\n".join(f"- **{label}.** {said[:1].upper()}{said[1:]}" for label, said in text.labelled.items())


def default_rule(cls: type[Algorithm]) -> str:
    """The rule for step sizes, as the class has it."""
    code = textwrap.dedent(inspect.getsource(cls.from_bounds))
    note = "`b.L` bounds the curvature of f, `b.L_max` that of every f_i, `b.mu` is the ridge, `b.tau` the number of local steps."
    return f'`cf.algorithms.default_steps("{cls.__name__}", problem)` uses this rule.\n\n```python\n{code}```\n\n{note}'


def source(cls: type) -> str:
    """The class without its docstring, after the base class that it shares with its variants."""
    own = [
        base for base in reversed(cls.__mro__) if base.__module__.startswith("compfed.") and base not in (Algorithm,)
    ]
    shared = [base for base in own if base.__module__.split(".")[-1] != "base"]
    return "\n\n".join(f"```python\n{without_docstring(inspect.getsource(base))}```" for base in shared)


def without_docstring(code: str) -> str:
    """The source of a class without its docstring."""
    (definition,) = ast.parse(code).body
    assert isinstance(definition, ast.ClassDef)
    lines = code.splitlines(keepends=True)
    if ast.get_docstring(definition) is None:
        return code
    first = definition.body[0]
    assert first.end_lineno is not None
    rest = lines[first.end_lineno :]
    while rest and not rest[0].strip():
        rest = rest[1:]
    return "".join(lines[: first.lineno - 1] + rest)


def bibliography() -> str:
    """Every paper with the methods that come from it."""
    by_paper: dict[str, list[str]] = {}
    for name, citation in references([*ALGORITHMS.values(), *SOLVERS.values()]):
        paper = citation.removeprefix("ours, after ").removeprefix("reconstruction of ")
        mark = " (ours, after it)" if citation.startswith("ours") else " (reconstruction)" if paper != citation else ""
        by_paper.setdefault(paper, []).append(f"[{name}](methods/{name}.md){mark}")
    lines = [f"- {paper}. {', '.join(names)}" for paper, names in sorted(by_paper.items())]
    return (
        "# Bibliography\n\nAfter reading this page you can cite the paper behind a method. `compfed list references` prints the same.\n"
        "*Ours, after it* means: the idea is theirs; the method is another one, and says nothing about theirs. A *reconstruction* is\n"
        "meant to be theirs, whose pseudo-code was not at hand.\n\n"
        + "\n".join(lines)
        + "\n\nTo cite compfed itself, see `CITATION.cff` in the repository.\n"
    )


# --- figures: one small problem, every method with its default steps ---


def figure(cls: type[Algorithm]) -> str:
    """The figure of a method and what it shows."""
    g = "an l1 penalty" if cls.composite else "no penalty, because the method has no place for one"
    return (
        f"```{{image}} {cls.__name__}.svg\n:alt: Distance to the minimiser against rounds, {cls.__name__} and proximal gradient\n"
        ":class: convergence\n:width: 100%\n```\n\n"
        f"Logistic regression with {g}: 10 sites of 50 rows whose data differ, 20 coefficients, full gradients, five local steps, "
        "default steps. The grey line is proximal gradient, one step per round, on the same problem."
    )


def figures(cache: Path) -> dict[str, str]:
    """The convergence figure of every method as SVG; drawn again only where the source of the package has changed."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(Path(inspect.getfile(cf)).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    folder = cache / digest.hexdigest()[:16]
    if not folder.exists():
        drawn = {name: draw(name) for name in ALGORITHMS}
        folder.mkdir(parents=True)
        for name, svg in drawn.items():
            (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.svg"))}


_yardsticks: dict[bool, tuple[cf.Problem, Any, cf.Trace]] = {}


def yardstick(composite: bool) -> tuple[cf.Problem, Any, cf.Trace]:
    """The problem of the figures, its minimiser, and the trace of proximal gradient."""
    if composite not in _yardsticks:
        sites = cf.data.synthetic(alpha=1.0, beta=1.0, clients=10, samples=50, features=20, seed=0)
        g = cf.regularisers.L1(5e-3) if composite else cf.regularisers.Zero()
        problem = cf.Problem(cf.losses.Logistic(ridge=0.02), g, sites)
        x_star = cf.solve_pooled(problem)
        _yardsticks[composite] = problem, x_star, run("ProximalGradient", problem, x_star)
    return _yardsticks[composite]


def run(name: str, problem: cf.Problem, x_star: Any) -> cf.Trace:
    """A run with default steps."""
    return cf.simulate(problem, default_steps(name, problem, TAU), ROUNDS, x_star=x_star, record_every=5)


def draw(name: str) -> str:
    """The figure of one method, readable on light and dark pages."""
    import io

    from matplotlib.figure import Figure

    problem, x_star, grey = yardstick(bool(ALGORITHMS[name].composite))
    trace = run(name, problem, x_star)
    canvas = Figure(figsize=(6.4, 2.6), layout="constrained")
    axes = canvas.add_subplot()
    ink, teal = "#7d868c", "#2a8f98"
    axes.semilogy(grey["round"], np.maximum(grey["optimality"], 1e-15), color=ink, lw=1.2, label="proximal gradient")
    axes.semilogy(trace["round"], np.maximum(trace["optimality"], 1e-15), color=teal, lw=2.2, label=name)
    axes.set_ylim(3e-16, 3)
    axes.set_xlabel("communication rounds", color=ink)
    axes.set_ylabel("‖x - x*‖ / ‖x*‖", color=ink)
    axes.tick_params(colors=ink, which="both")
    axes.grid(alpha=0.25)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(ink)
    axes.legend(frameon=False, labelcolor=ink, fontsize=8)
    out = io.StringIO()
    canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()
