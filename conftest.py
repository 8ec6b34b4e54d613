"""What is collected: modules that need an extra which is not installed cannot be looked through for examples."""

from importlib.util import find_spec

FLOWER = ["src/compfed/network/*", "tests/network/*"]
collect_ignore_glob = [] if find_spec("flwr") else FLOWER
