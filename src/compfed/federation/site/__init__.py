"""A site's side of a federation: its rows, its client state, and its disclosure policy."""
