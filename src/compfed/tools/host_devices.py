"""The cores of this machine as devices of JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax

from compfed.errors import InputError
from compfed.tools.checks import whole

LATENCY = "/dev/cpu_dma_latency"  # how soon a core must be awake, in us, as Linux is told by whoever has it open


def use_all_cores(count: int | None = None) -> int:
    """Let `simulate` and `grid` share out the clients over the cores of this machine (or over `count` of them); says how many.

    JAX sees one CPU device unless told otherwise, and must be told before it computes anything in this process: call this
    first. It is a setting of JAX, and holds for the whole process: `jax.devices()` then lists that many CPU devices, and
    programs that use every device they find use them. Programs that name no device run on the first, as before, and so does
    all of compfed but rounds of every client that read more than a megabyte of rows. A GPU is used as before.

    After a round the cores wait for each other. One that has nothing to do may be put to sleep meanwhile, and take as long to
    wake as a third of a round of mini-batches, in a virtual machine above all. Where this process may (`/dev/cpu_dma_latency`, for
    root unless it is opened to others), it asks Linux to let none sleep while such rounds are worked out.
    """
    # the cores this process may use, where the system says so
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = cores if count is None else whole(count, "count", 1)
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError as error:
        there = jax.local_device_count("cpu")
        if there != wanted:
            raise InputError(
                f"use_all_cores: JAX has started in this process already, with {there} CPU device{'s' * (there > 1)} where "
                f"{wanted} are asked for. Call it before anything else that uses JAX, or set JAX_NUM_CPU_DEVICES={wanted} in "
                "the environment."
            ) from error
    return wanted


@contextmanager
def awake() -> Iterator[None]:
    """No core sleeps while this lasts, if this process may ask for that."""
    try:
        file = os.open(LATENCY, os.O_WRONLY)
    except OSError:  # not Linux, or not allowed: rounds take longer, and nothing else changes
        yield
        return
    try:
        with suppress(OSError):
            os.write(file, bytes(4))  # 0 us, until it is closed
        yield
    finally:
        os.close(file)
