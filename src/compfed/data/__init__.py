"""Federations: data that several sites hold."""

from compfed.data import bundled, partition
from compfed.data.bundled import synthetic
from compfed.data.readers import from_csv, from_files, from_svmlight
from compfed.data.sites import LazySites, Sites, from_arrays, from_table, lazy_sites, mapped_sites
from compfed.splits import held_out

__all__ = [
    "LazySites", "Sites", "bundled", "from_arrays", "from_csv", "from_files", "from_svmlight",
    "from_table", "held_out", "lazy_sites", "mapped_sites", "partition", "synthetic",
]  # fmt: skip
