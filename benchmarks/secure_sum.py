"""What exact, masked sums cost over a network: seconds a round and bytes, against another version or without masks.

    python benchmarks/secure_sum.py [--other PATH/TO/OTHER/src] [--turns 3] [--sites 4 16]

A SuperLink and the sites are processes on this machine, TLS and a key per site. Every turn fits the cross-validation of the
README (logistic regression on the breast cancer table) once with each version, in turns. The version before exact sums sent
doubles without masks. Without --other, the same version with `secure_sum = false` is the other one: exact sums, no masks.
Prints the ratio of seconds a round and of bytes on the wire, and the range over the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

RUN = """
import inspect, json, sys, tempfile, time
from pathlib import Path
import numpy as np
from compfed.cli.demo import Loopback
from compfed.data import bundled, from_table
from compfed.network import operator
sites, masked = int(sys.argv[1]), sys.argv[2] == "masked"
table = bundled.breast_cancer()
place = np.random.default_rng(0).permutation(len(table.y)) % sites if sites != 4 else table.sites
rows = from_table(table.X, table.y, place)
# sites of 35 rows have too few for the folds and the Hessian of this fit under the default policy
options = {"secure_sum": masked, "disclosure": "" if sites == 4 else "enforce = false"}
options = options if "secure_sum" in inspect.signature(Loopback).parameters else {}
with tempfile.TemporaryDirectory() as folder, Loopback(Path(folder) / "home", rows, rows.names, **options) as federation:
    federation.start()
    found = operator.run(federation.settings, Path(folder) / "run")
    model = found[0] if isinstance(found, tuple) else found  # with its evaluation
    lines = [json.loads(line) for line in (Path(folder) / "run" / "log.jsonl").read_text().splitlines()]
replies = [line for line in lines if "bytes_up" in line]
ends = {}
for line in replies:
    ends[line["number"]] = max(line["time"], ends.get(line["number"], 0.0))
numbers = sorted(ends)
first = numbers[1] if len(numbers) > len(range(model.n_rounds_)) else numbers[0]
seconds = (ends[numbers[-1]] - ends[first]) / (numbers[-1] - first)
print(json.dumps({
    "seconds a round": seconds, "bytes up": sum(line["bytes_up"] for line in replies),
    "bytes": sum(line["bytes_up"] + line["bytes_down"] for line in replies), "messages": len(numbers),
}))
"""


def measure(source: str, sites: int, masked: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(sites), masked], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", metavar="SRC", help="the src folder of another version")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--sites", type=int, nargs="+", default=[4, 16])
    args = parser.parse_args()
    here = str(Path(__file__).resolve().parent.parent / "src")
    for sites in args.sites:
        ratios: dict[str, list[float]] = {}
        for turn in range(args.turns):
            one = measure(here, sites, "masked")
            other = measure(args.other or here, sites, "masked" if args.other else "plain")
            print(f"{sites} sites, turn {turn + 1} of {args.turns}: {one} against {other}", flush=True)
            for name in one:
                ratios.setdefault(name, []).append(one[name] / other[name])
        for name, found in ratios.items():
            print(f"{sites} sites, {name}: {min(found):.2f} to {max(found):.2f} times", flush=True)


if __name__ == "__main__":
    main()
