"""Studies: the paper and its claims, methods compared, and local, federated and pooled models compared."""
