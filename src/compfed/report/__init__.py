"""Reports: figures, tables and pages. They read traces and nothing else."""
