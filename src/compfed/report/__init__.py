"""Reports: figures and the HTML page. They read traces and results only."""
