"""Where things are: the repository, and the real data that may lie beside it."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
