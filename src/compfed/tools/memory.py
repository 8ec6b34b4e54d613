"""How much memory an array may take that nobody asked for by name: rows that come without their zeros, written out."""

from __future__ import annotations

from compfed.errors import InputError

LARGEST = 2**31  # bytes


def check_written_out(shape: tuple[int, int], what: str, way_out: str, beside: int = 0) -> None:
    """Refuse, before anything is allocated, to write out sparse rows that would be too large.

    `beside`: bytes of a column that are not its numbers, such as its name.
    """
    rows, columns = shape
    size = columns * (8 * rows + beside)
    if size > LARGEST:
        raise InputError(
            f"{what}: {rows} x {columns} sparse rows would take {size / 1e9:.3g} GB written out, which this needs; at "
            f"most {LARGEST / 1e9:.3g} GB are. {way_out}"
        )
