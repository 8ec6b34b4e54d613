"""What is collected: modules of an extra that is not installed cannot be looked through for examples."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/compfed/federation/flower/*", "src/compfed/deployment/*"]
