"""Does a round cost the same among a million clients as among ten thousand, and in how much memory?

    python benchmarks/many_clients.py [--runs 3] [--rounds 200] [--limit 1.2] [--memory 4]

100 clients of 20 rows and 64 columns take part in a round of Scaffold, which remembers a vector for each of them; rows are
made by a function. 10^4 and 10^6 clients take turns, each turn a process of its own; printed are milliseconds per round by
the clock, the ratio of each pair of turns, and that of CPU time, which other work on the machine disturbs less. Exit status 1
where the median ratio by the clock or the peak memory of a process is above its limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

FEW, MANY, COHORT, ROWS, COLUMNS = 10**4, 10**6, 100, 20, 64


def one_run(n: int, rounds: int) -> None:
    """Run, and print milliseconds per round and memory as JSON."""
    import numpy as np

    import compfed as cf

    rng = np.random.default_rng(0)
    pool = rng.standard_normal((1000, ROWS, COLUMNS))
    truth = rng.standard_normal(COLUMNS)

    def rows_of(client: int) -> tuple[np.ndarray, np.ndarray]:
        A = pool[client % 1000]
        return A, np.sign(A @ truth + 0.3 * np.cos(client))

    sites = cf.data.lazy_sites(rows_of, np.full(n, ROWS))
    problem = cf.LazyProblem(cf.losses.Logistic(ridge=0.01), cf.regularisers.Zero(), sites)
    worked: dict[int, float] = {}  # CPU seconds of the process when so many rounds were done; compiled in the first
    trace = cf.simulate_out_of_core(
        problem, cf.algorithms.Scaffold(eta=0.1, tau=5), rounds, participants=COHORT, record_every=rounds,
        progress=lambda done, _: worked.update({done: time.process_time()}),
    )  # fmt: skip
    assert trace.state is not None
    print(
        json.dumps(
            {
                "ms": 1e3 * trace["seconds"][-1] / rounds,
                "cpu": 1e3 * (worked[rounds] - worked[1]) / (rounds - 1),
                "GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
                "seen": len(trace.state.clients[0]) - 1,
            }
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--limit", type=float, default=1.2, help="largest median ratio (default: %(default)s)")
    parser.add_argument("--memory", type=float, default=4.0, metavar="GIB")
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.clients:
        one_run(args.clients, args.rounds)
        return 0
    ratios, of_cpu, peak = [], [], 0.0
    for _ in range(args.runs):
        found = {}
        for n in (FEW, MANY):
            call = [sys.executable, __file__, "--clients", str(n), "--rounds", str(args.rounds)]
            said = subprocess.run(call, check=True, capture_output=True, text=True).stdout
            found[n] = json.loads(said.splitlines()[-1])
            peak = max(peak, found[n]["GiB"])
        few, many = found[FEW], found[MANY]
        ratios.append(many["ms"] / few["ms"])
        of_cpu.append(many["cpu"] / few["cpu"])
        print(
            f"{FEW:,} clients: {few['ms']:6.2f} ms a round, {few['GiB']:.2f} GiB    {MANY:,} clients: {many['ms']:6.2f} ms a "
            f"round, {many['GiB']:.2f} GiB, {many['seen']:,} of them seen    ratio {ratios[-1]:.2f}, of CPU {of_cpu[-1]:.2f}",
            flush=True,
        )
    middle, cpu = (sorted(each)[len(each) // 2] for each in (ratios, of_cpu))
    good = middle <= args.limit and peak < args.memory
    print(
        f"median ratio {middle:.2f}, of CPU time {cpu:.2f} (limit {args.limit}), peak {peak:.2f} GiB (limit {args.memory})"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
