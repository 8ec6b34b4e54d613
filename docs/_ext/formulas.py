"""Formulas of docstrings, which are written to be read in a terminal, as LaTeX: zhat_{t+1} = zhat_t - eta grad f_i(z_t).

What this does not understand stays as it is: code, tables and pseudo-code with words in it. `as_latex` answers None then.
"""

from __future__ import annotations

import re

from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml

GREEK = {
    "alpha", "beta", "gamma", "delta", "eta", "theta", "lambda", "mu", "nu", "rho", "sigma", "tau", "phi", "omega", "epsilon",
}  # fmt: skip
WORDS = {"lam": r"\lambda", "inf": r"\infty", "grad": r"\nabla ", "eps": r"\varepsilon", "Omega": r"\Omega"}
FUNCTIONS = {"argmin": "argmin", "prox": "prox", "sign": "sign", "diag": "diag"}
KNOWN = {"exp": r"\exp ", "log": r"\log ", "sqrt": r"\sqrt ", "max": r"\max ", "min": r"\min ", "sum": r"\sum "}
ACCENTS = {"hat": r"\hat", "bar": r"\bar", "tilde": r"\tilde"}
SHORT_WORDS = {"as", "at", "be", "by", "in", "is", "it", "no", "of", "on", "or", "to", "that", "what"}
PARAMETERS = {"l1_ratio", "weight"}  # several letters that are one name
MOST_WORDS = 3  # in a formula
GAP = re.compile(r"(,?)\s{3,}|(,)\s\s+")
TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<name>[A-Za-z][A-Za-z0-9]*)|(?P<number>\d+(?:\.\d+)?)|(?P<sign>\|\||<-|<=|>=|\+=|->|\*\*|[-+*/^=<>~|()\[\]{},;.@_'])"
)
SIGNS = {
    "<=": r"\le ", ">=": r"\ge ", "<-": r"\leftarrow ", "->": r"\to ", "+=": "+= ", "*": r"\,", "@": r"\,", "[": "[",
    "]": "]", "{": "{", "}": "}",
}  # fmt: skip


class NotAFormula(Exception):
    """A line with something that is no mathematics."""


def as_latex(lines: list[str]) -> str | None:
    """A block of formulas, one to a line, as LaTeX; None where a line is something else, or docutils cannot read it."""
    shown = [line.strip() for line in lines if line.strip()]
    if as_legend(lines) is not None:
        return None
    try:
        rows = [_row(line) for line in shown]
        if not rows or not any(re.search(r"=|\\le |\\nabla|\\sum|\\leftarrow|\\sim", row) for row in rows):
            return None
        latex = (
            rows[0]
            if len(rows) == 1
            else "\\begin{aligned}\n" + " \\\\\n".join(f"& {row}" for row in rows) + "\n\\end{aligned}"
        )
        tex2mathml(latex, as_block=True)
    except (NotAFormula, MathError):
        return None
    return latex


def _row(line: str) -> str:
    """A line: formulas and words, apart by three spaces or a comma and two."""
    if re.search(r"""[#"`\\$&%:]|\.py|--""", line):
        raise NotAFormula(line)
    line, pieces, at = re.sub(r"\s+(=|\+=)\s+", r" \1 ", line), [], 0
    for gap in GAP.finditer(line):
        pieces.append(line[at : gap.start()] + ("," if gap[1] or gap[2] else ""))
        at = gap.end()
    pieces.append(line[at:])
    return r" \quad ".join(_piece(piece) for piece in pieces if piece)


def _piece(piece: str) -> str:
    """A formula, perhaps with a few words in it, or words alone."""
    count = sum(_is_word(word) for word in re.findall(r"(?<![A-Za-z_])[A-Za-z]+(?![A-Za-z_])", piece))
    if count == 0 or (count <= MOST_WORDS and re.search(r"[=^_<>/]", piece)):
        return latex(piece)
    if re.search(r"[{}^_=<>|]", piece):
        raise NotAFormula(piece)
    return rf"\text{{{piece}}}"


def has_words(piece: str) -> bool:
    """Whether a piece has a word that is no symbol."""
    return any(_is_word(word) for word in re.findall(r"(?<![A-Za-z_])[A-Za-z]+(?![A-Za-z_])", piece))


def _is_word(name: str) -> bool:
    return name in SHORT_WORDS or (len(name) > 2 and name.islower() and _symbol(name) is None)


def as_legend(lines: list[str]) -> list[tuple[str, str]] | None:
    """The symbols that a block explains, x   global model   z   local model, as LaTeX with their meaning; None of another block."""
    found = []
    for line in filter(None, map(str.strip, lines)):
        parts = re.split(r"\s{2,}", line)
        if len(parts) % 2 or not all(re.fullmatch(r"[A-Za-z]\w*~?(?:, [A-Za-z]\w*~?)*", part) for part in parts[::2]):
            return None
        try:
            found += [(latex(name), meaning.strip()) for name, meaning in zip(parts[::2], parts[1::2], strict=True)]
        except NotAFormula:
            return None
    return found if any(" " in meaning and "=" not in meaning[:8] for _, meaning in found) else None


def _symbol(word: str) -> str | None:
    """A word as LaTeX, if it is a symbol."""
    if word in SHORT_WORDS:
        return None
    if word in GREEK:
        return rf"\{word} "
    if word in WORDS | KNOWN:
        return (WORDS | KNOWN)[word]
    if word in FUNCTIONS:
        return rf"\operatorname{{{FUNCTIONS[word]}}}"
    for ending, accent in ACCENTS.items():
        if word.endswith(ending) and (base := word.removesuffix(ending)) and (len(base) == 1 or base in GREEK):
            return rf"{accent}{{{_symbol(base) or base}}}"
    return word if len(word) == 1 else None


def latex(formula: str) -> str:
    """A formula as LaTeX.

    >>> latex("zhat_{t+1} = zhat_t - eta grad f_i(z_t)")
    '\\\\hat{z}_{t+1} = \\\\hat{z}_{t} - \\\\eta  \\\\nabla  f_{i}(z_{t})'
    """
    tokens = [(found.lastgroup or "", found[0]) for found in TOKEN.finditer(formula)]
    if "".join(text for _, text in tokens) != formula:
        raise NotAFormula(formula)
    out, k, open_norms, open_bars = list[str](), 0, 0, 0
    while k < len(tokens):
        kind, text = tokens[k]
        after = tokens[k + 1][1] if k + 1 < len(tokens) else ""
        before = tokens[k - 1][1] if k else ""
        if kind == "name" and after == "_" and k + 2 < len(tokens) and f"{text}_{tokens[k + 2][1]}" in PARAMETERS:
            out.append(rf"\mathrm{{{text}\_{tokens[k + 2][1]}}}")
            k += 3
            continue
        if kind == "name":
            out.append(rf"\text{{ {text} }}" if _is_word(text) and after != "_" else _name(text))
        elif text == "_":
            k, sub = _subscript(tokens, k + 1)
            out.append(f"_{{{sub}}}")
            continue
        elif text == "||":
            open_norms = 1 - open_norms
            out.append(r"\lVert " if open_norms else r"\rVert ")
        elif text == "|":
            given = before.isspace() and after.isspace() and not open_bars
            open_bars = open_bars if given else 1 - open_bars
            out.append(r"\mid " if given else r"\lvert " if open_bars else r"\rvert ")
        elif text in ("^", "**"):
            out.append("^")
            if after.isdigit() or re.fullmatch(r"[A-Za-z]", after):
                pass
            elif after == "-" and k + 2 < len(tokens):
                out.append(f"{{-{tokens[k + 2][1]}}}")
                k += 3
                continue
            elif after != "{":
                raise NotAFormula(formula)
        elif text == "~" and k and not before.isspace():
            out[-1] = rf"\tilde{{{out[-1].strip()}}}"
        elif text == "~":
            out.append(r"\sim ")
        elif text == "+" and k and not before.isspace() and (after in ("", ",", ")") or after.isspace()):
            out.append("^{+}")
        else:
            out.append(SIGNS.get(text, " " if kind == "space" else text))
        k += 1
    if open_norms or open_bars:
        raise NotAFormula(formula)
    return "".join(out).strip()


def _name(text: str) -> str:
    if (symbol := _symbol(text)) is not None:
        return symbol
    if re.fullmatch(r"[A-Za-z]\d", text):
        return f"{text[0]}_{{{text[1]}}}"
    return rf"\mathrm{{{text}}}" if len(text) > 2 else text


def _subscript(tokens: list[tuple[str, str]], k: int) -> tuple[int, str]:
    """The subscript from token k on, and the token after it."""
    if k >= len(tokens):
        raise NotAFormula("_")
    if tokens[k][1] != "{":
        kind, text = tokens[k]
        if text == "*":
            return k + 1, "*"
        if kind not in ("name", "number"):
            raise NotAFormula(text)
        known = _symbol(text)
        return k + 1, rf"\text{{{text}}}" if known is None and len(text) > 2 else known or text
    depth, end = 1, k + 1
    while depth and end < len(tokens):
        depth += {"{": 1, "}": -1}.get(tokens[end][1], 0)
        end += 1
    return end, latex("".join(text for _, text in tokens[k + 1 : end - 1]))
