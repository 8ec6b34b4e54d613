"""What is collected: modules that need an extra which is not installed cannot be looked through for examples."""

from importlib.util import find_spec

FLOWER = ["src/compfed/federation/flower/*", "src/compfed/deployment/*", "tests/federation/flower/fake_grid.py"]
collect_ignore_glob = [] if find_spec("flwr") else FLOWER
