"""Help that teaches by example: the commands in groups, and examples below the options of each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def example_text(examples: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Keywords for a parser that shows examples, each with what it is for.

    >>> print(example_text([("all methods", "compfed list algorithms")])["epilog"])
    examples:
      # all methods
      compfed list algorithms
    """
    lines = [f"  # {text}\n  {command}" for text, command in examples]
    return {
        "epilog": "\n".join([f"example{'s' * (len(examples) != 0)}:", *lines]),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
