"""What a result was made with."""

from __future__ import annotations

import functools
import platform
from importlib.metadata import version

from compfed import __version__


@functools.cache  # a look into the files of four packages
def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"compfed": __version__} | found | {"python": platform.python_version()}
