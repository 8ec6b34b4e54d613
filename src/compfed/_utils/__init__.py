"""What everybody uses and what knows nothing of federations: records, checks, precision, randomness, progress, text."""
