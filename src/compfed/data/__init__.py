"""Federations: data that stays at its site."""

from compfed.data import bundled, partition
from compfed.data.files import from_csv, from_files, from_svmlight
from compfed.data.generator import synthetic
from compfed.data.lazy import LazySites, lazy_sites, mapped_sites
from compfed.data.sites import Sites, from_arrays, from_table
from compfed.data.summary import describe
from compfed.tools.site_facts import Summary

__all__ = [
    "LazySites", "Sites", "Summary", "bundled", "describe", "from_arrays", "from_csv", "from_files", "from_svmlight",
    "from_table", "lazy_sites", "mapped_sites", "partition", "synthetic",
]  # fmt: skip
