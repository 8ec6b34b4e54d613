"""What everybody uses and what knows nothing of federations: records, checks, arrays, compiled programs, files, text."""
