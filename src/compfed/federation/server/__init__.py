"""The server's side of a federation: programs, rounds, and checks of replies. Nothing in here imports what holds rows."""
