"""The leaderboard: a suite of problems, every method tuned on one budget, ranks by four costs, a file that others can add to.

`suite` has the problems, `run` the runs, `results` the file and its checks, `ranks` who comes first and the record for the page.
"""
