"""Federations: data that stays at its site."""

from compfed.data import bundled, partition
from compfed.data.lazy import LazySites, lazy_sites, mapped_sites
from compfed.data.readers import from_csv, from_files, from_svmlight
from compfed.data.sites import Sites, describe, from_arrays, from_table
from compfed.data.splits import held_out
from compfed.data.synthetic import synthetic
from compfed.site_summary import Summary

__all__ = [
    "LazySites", "Sites", "Summary", "bundled", "describe", "from_arrays", "from_csv", "from_files", "from_svmlight",
    "from_table", "held_out", "lazy_sites", "mapped_sites", "partition", "synthetic",
]  # fmt: skip
