"""Experiments as code: the paper's figures and claims, each with a quick size."""
