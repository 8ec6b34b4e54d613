"""One of several processes that run the same script: its devices and the others' form one mesh (`jax.devices()`)."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from compfed._utils.validation import check_int
from compfed.errors import InputError

WAIT = 300  # seconds for all processes to come


def run_script(
    script: Path, arguments: Sequence[str], *, coordinator: str, process_id: int, processes: int, wait: int = WAIT
) -> None:
    """Join the other processes at `coordinator`, the address of process 0, and run the script as if it were called alone.

    Sums cross by gloo between CPUs and by NCCL between GPUs.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--coordinator {coordinator} must be HOST:PORT, the address of process 0.")
    processes, process_id = check_int(processes, "--processes ", 1), check_int(process_id, "--process-id ", 0)
    if process_id >= processes:
        raise InputError(
            f"--process-id {process_id} must be one of 0 to {processes - 1}: there are --processes {processes}."
        )
    if not script.is_file():
        raise InputError(f"{script}: there is no such script.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(coordinator, processes, process_id, initialization_timeout=wait)
    except RuntimeError as problem:
        raise InputError(
            f"process {process_id} of {processes} could not meet the others at {coordinator} within {wait} s. Start all of "
            f"them with the same --coordinator and --processes, each with its own --process-id. ({problem!s:.200})"
        ) from None
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))  # as `python SCRIPT` does
    runpy.run_path(str(script), run_name="__main__")
