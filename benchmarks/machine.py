"""Which machine, which versions, when: what every table of figures needs."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def described() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    load = os.getloadavg()[0]
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load before": round(load, 1),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("compfed", "jax", "jaxlib", "numpy")},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # the source folder on a path, not installed
        return "unknown"
