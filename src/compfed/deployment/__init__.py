"""A federation as processes: settings, keys, the server's run and the sites' nodes. What the command line calls."""
