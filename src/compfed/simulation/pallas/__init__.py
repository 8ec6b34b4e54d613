"""Rounds on a GPU at the speed its memory is read: kernels made from an algorithm's own client method and a loss's own formulas."""
