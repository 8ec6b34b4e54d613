"""Federations: data that stays at its site."""

from compfed.data.sites import Sites, from_arrays, from_table
from compfed.data.synthetic import synthetic

__all__ = ["Sites", "from_arrays", "from_table", "synthetic"]
