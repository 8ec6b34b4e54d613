"""What a result was made with."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import version


@functools.cache  # a look into the files of four packages
def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("compfed", "jax", "jaxlib", "numpy")}
    return found | {"python": platform.python_version()}
