"""What a process has used, from /proc: seconds of processor, memory, open files."""

from __future__ import annotations

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used, with those of the kernel for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int, what: str = "VmRSS") -> float:
    """Megabytes that a process has in memory; `VmHWM`: at most, so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def open_files(pid: int) -> int:
    """How many files a process has open, connections included."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_available() -> float:
    """Megabytes that new processes can have."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / 1024
