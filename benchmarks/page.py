"""docs/howto/performance.md and its figures, from what the benchmarks left in results/.

    python benchmarks/page.py [--results results] [--out docs/howto/performance.md]

A part whose results are not there stays as the page has it, with its date; results of `--quick` runs are marked as a trial.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

INTRO = """# How fast

After reading this page you can make a simulation faster, and know how fast it and a cross-validation are against other engines and
the machine's limit.
`make bench` writes this page from what it measured; the text is in `benchmarks/page.py`.

Times depend on the machine and on what else runs on it. The load average before a measurement is given with it, and ratios are of
contestants that took turns in one run.

## What to do for speed

- **All cores.** `cf.use_all_cores()`, called before anything else that uses JAX, lets `simulate` and `grid` share out the clients over the cores. JAX reads this setting when it
  starts; it belongs to the process, so compfed does not change it by itself. It is used where every client takes part, without
  `measure`, and a round reads more than a megabyte of rows. It keeps a second copy of the rows.
- **Many settings.** `cf.grid` runs step sizes, penalties and seeds as one program. Members that share a seed share the rows they
  draw, and a pass over the rows is a product of matrices; seeds that nothing draws from are computed once.
- **Fewer records.** A trace has the objective and the gradient mapping of every model it records: two products with all rows, which
  with mini-batches is more work than the round itself. `record_every=10` evaluates every tenth model. The members of a grid are
  evaluated together.
- **New processes.** Compiled programs are kept in the user's cache folder (`~/.cache/compfed` on Linux), up to a gigabyte, and found
  by the next process. `COMPFED_CACHE=PATH` puts them elsewhere, `COMPFED_CACHE=off` keeps none. JAX has one cache for a process: your own
  programs are kept there too, unless JAX has a cache folder of yours already, which is then used for both.
- **Cores that do not sleep.** After a round the cores wait for each other, and an idle core may be put to sleep. Of a round of 170 to
  190 us (30 x 2,000 x 60, b = 20, two cores of a virtual machine) about 60 fetch rows, 20 draw them, 40 are steps, and 55 to 70
  wake the other core. `cf.use_all_cores(awake=True)` asks Linux to let no core sleep while rounds are shared out (it takes power): by
  `/dev/cpu_dma_latency`, which root may write to and opens to others with `chmod o+w`. A machine whose cores wake quickly gains nothing.
  The tables below were measured so, as root, where their heading does not say otherwise.

On a CPU, how clients are visited follows from the shapes:

| rows of all clients | gradients | one device | after `use_all_cores()` |
|---|---|---|---|
| up to 1 MiB | any | everybody at once | the same |
| more | full | as many clients at a time as there are cores | each core visits its own clients, one after another |
| more | full, some clients take part | those one after another, no other | the same |
| more | mini-batches: up to 1 MiB of rows in a round (5 if all are recorded), over all members of a grid | everybody at once | the same |
| more | mini-batches: more | everybody at once | each core all of its own clients at once |

## What was tried and left out

| idea | result |
|---|---|
| compiled code (C++ called by XLA): gradients in one pass over the rows | with full gradients as fast as JAX alone: a core multiplies no faster than its cache sends the rows |
| compiled code: products that read rows in place, prefetched | rows of mini-batches in 55 us where XLA takes 140, but rounds of 190 to 230 us where JAX alone took 230: XLA hands a call over to another thread |
| rows of mini-batches that carry their label and weight, filled up to lines of the cache | 16.5 times the NumPy loop on one device where it is 14, for one more copy of the rows; nothing on two |
| draws and rows of a round ahead of its steps; XLA set not to split its loops among threads | nothing |
| keys computed without loops, weights of rows not fetched where all are equal | 0 to 5 in 100 |
| grids: rows in blocks that stay in the cache | slower, because the products are smaller |
| grids: rows kept transposed too | about 6 in 100, for a third copy of them |
| all local steps as one function of machine code (a mark on the call that XLA has for small loops) | 3 to 7 in 100 on two cores, a fifth on small problems; half as fast with 300 clients on one device, and XLA fails to compile some programs |
| one place that every client's rows are copied to in turn, so that XLA does not split the copy among threads | 5 in 100 in quiet minutes, nothing in others |
| cores kept awake by a process on each that counts at the lowest priority, which anyone may start | less than half of what is gained by asking Linux |
"""  # noqa: E501  # a row of a table is one line


GRIDS = """16 step sizes, and 5 seeds of each. With full gradients one run waits for memory, and 16 runs, products of matrices, for
the multiplications; seeds cost nothing. With mini-batches five seeds draw, fetch and multiply five times. The last column has every
round recorded, by default: with mini-batches the objective and the gradient mapping of a model cost more than its round
(`record_every`)."""


PEERS = (
    "Same rows and local steps, warm; median and range over turns; `benchmarks/against_peers.py` says what each does."
)


PARTICIPATION = """A round in which a tenth of the clients take part, beside a round of a federation that has those alone, in
turns; DecoupledProx, 5 local steps, float32 (`benchmarks/gpu.py --participation`)."""
CV = """A path of 50 alphas and 5 folds, with the same table, alphas, folds and objective (l1 norm, intercept) for everybody; compfed
has the rows at eight sites, in one process (`benchmarks/cv.py`). Tolerances: compfed 1e-12 (its default), glum gradient_tol
1e-6, skglm 1e-6, scikit-learn 1e-5 (saga, logistic) and 1e-8 (`lasso_path`). Where compfed ended too, those give coefficients
within 1e-4 of compfed's largest one; the last column has the difference.

- Each run is a process of its own, and each engine has fitted 400 rows before the clock runs. Ranges are over turns.
- CPU s are seconds of the processor, of all threads together: where a machine is shared, compare those.
- An empty cell was not measured. "of the work": after so much of it the engine was stopped, and the figures are extrapolated.
- Reading: of 200,000 rows from eight CSV files, by pandas for the others. Peak: of the whole process.
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def machine(found: dict[str, Any]) -> str:
    m = found["machine"]
    if "text" in m:
        return m["text"] + "\n"
    what = m["device"] if m.get("platform") == "gpu" else m["processor"]
    versions = f"Python {m['python']}, jax {m['jax']}, NumPy {m['numpy']}"
    trial = found.get("quick") or found.get("size", {}).get("quick")
    warning = " **A trial at small sizes (`--quick`): no figure of merit.**" if trial else ""
    return f"{what}, cores: {m['cores']}, load {m['load before']} before; {m['date']}; {versions}.{warning}\n"


def span(values: list[float], digits: int) -> str:
    low, high = f"{min(values):.{digits}f}", f"{max(values):.{digits}f}"
    return low if low == high else f"{low} to {high}"


def middle(values: list[float], digits: int) -> str:
    """The median, and the range where there is one."""
    between = span(values, digits)
    return f"{np.median(values):.{digits}f} ({between})" if " to " in between else between


def rounds(found: dict[str, Any]) -> str:
    rows = [[r["gradients"], r["engine"], span(r["ms_per_round"], 2), span(r["ratios"], 1)] for r in found["results"]]
    return table(["gradients", "engine", "ms a round", "times the NumPy loop"], rows)


def peers(found: dict[str, Any]) -> str:
    rows = []
    for r in found["results"]:
        took = middle(r["ms_per_round"], 2) if "ms_per_round" in r else f"failed: {r['failed']}"
        ratio = middle(r["ratios"], 1) if "ratios" in r else ""
        same = f"{r['difference']:.0e}" if "difference" in r else ""
        rows.append([r["name"], str(r["version"] or ""), r["note"] or "", took, ratio, same])
    return table(["engine", "version", "", "ms a round", "compfed is so many times as fast", "models differ by"], rows)


def sweep(found: dict[str, Any]) -> str:
    rows = [
        [
            r["gradients"], r["grid"], span(r["one_ms"], 2), span(r["grid_ms"], 2), span(r["ratios"], 1), span(r["call_ratios"], 1),
        ]
        for r in found["results"]
    ]  # fmt: skip
    head = ["one run, ms a round", "grid, ms a round", "cost in runs", "whole call, in whole calls of one run"]
    return table(["gradients", "grid", *head], rows)


def roofline(found: dict[str, Any]) -> str:
    rows = [
        [
            f"{r['n']} x {r['m']} x {r['d']}", f"{r['bytes'] / 1e6:.0f}", f"{r['ms_per_round']:.3f}", f"{r['effective_GB_s']:.0f}",
            f"{r['bandwidth_GB_s']:.0f}", f"{r['fraction']:.2f}",
        ]
        for r in found["results"]
    ]  # fmt: skip
    head = ["n x m x d", "MB of rows", "ms a round", "effective GB/s", "bandwidth GB/s", "fraction"]
    grows = ", ".join(
        f"{g['varied']}^{g['exponent']:.2f} ({g['values'][0]} to {g['values'][-1]})" for g in found["growth"]
    )
    return table(head, rows) + f"\nTime of a round grows like {grows}.\n"


def cv(found: dict[str, Any]) -> str:
    """A row for each engine on each table: all turns, on one core and on all."""
    runs: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for r in found["results"]:
        runs.setdefault((r["table"], r["model"], r["engine"]), []).append(r)
    rows = []
    for (size, model, engine), turns in runs.items():
        good = [t for t in turns if "failed" not in t]
        if not good:
            rows.append([size, model, engine, f"failed: {turns[-1]['failed']}", *[""] * 7])
            continue

        def seconds(kind: str, cores: str, what: str = "fitting", good: Any = good) -> str:
            took = [
                t[what][kind] / (t["part"] if what == "fitting" else 1) for t in good if t["cores"] == cores and t[what]
            ]
            return span(took, 2) if took else ""

        part = min(t["part"] for t in good)
        differ = [t["difference"] for t in good if "difference" in t]
        rows.append(
            [
                size, model, f"{engine} {good[0]['version']}" + (f" ({part:.0%} of the work)" if part < 1 else ""),
                str(len([t for t in good if t["cores"] == "one"])), seconds("cpu", "one"), seconds("wall", "one"), seconds("cpu", "all"),
                seconds("wall", "all"), seconds("cpu", "one", "reading"), span([t["peak"] for t in good], 0),
                f"{max(differ):.0e}" if differ and engine != "compfed" else "",
            ]
        )  # fmt: skip
    head = [
        "rows x columns",
        "model",
        "engine",
        "turns",
        "CPU s, one core",
        "s, one core",
        "CPU s, all cores",
        "s, all cores",
    ]
    text = table([*head, "reading, CPU s", "peak MB", "coefficients differ by"], rows)
    ours = {(r["table"], r["model"]): r for r in found["results"] if r["engine"] == "compfed" and "messages" in r}
    sent = [f"{size}, {model}: {r['messages']} and {r['bytes up'] / 1e6:.2f} MB" for (size, model), r in ours.items()]
    text += f"\nMessages, and what each site sent: {'; '.join(sent)}.\n" if sent else ""
    loads = [r["load"] for r in found["results"]]
    text += f"\nLoad before the turns: {span(loads, 1)}." if loads else ""
    if max(loads, default=0) > found["machine"]["cores"]:
        text += " Other processes had the cores too: the clock, above all that of several threads, shows more than on a quiet machine."
    text += "\n"
    if found["growth"]:
        base = ", ".join(f"{value:,} {name}" for name, value in found["growth"][0]["base"].items())
        text += f"\ncompfed alone, logistic, one thread; from {base} one number is changed at a time:\n\n"
        text += table(
            ["changed", "to: CPU s", "grows like"],
            [
                [
                    g["varied"],
                    "; ".join(f"{v:,}: {span(t, 2)}" for v, t in zip(g["values"], g["cpu"], strict=True)),
                    f"{g['varied']}^{g['exponent']:.2f}",
                ]
                for g in found["growth"]
            ],
        )
    return text


def first_call(found: dict[str, Any]) -> str:
    rows = [[r["what"], f"{r['cold_s']:.3g}", f"{r['warm_s']:.3g}"] for r in found["results"]]
    return table(["", "first time, s", "warm, s"], rows)


def gpu(found: dict[str, Any]) -> str:
    rows = [
        [
            " x ".join(map(str, r["shape"])), r["way"], f"{r['ms']:.3g}", f"{r['rate']:.2f}", f"{r['of copy']:.2f}", r["kind"] or "none",
        ]
        for r in found["times"]
    ]  # fmt: skip
    head = ["n x m x d", "a round of", "ms", "effective TB/s", "of a copy", "kernel"]
    said = [f"A copy ran at {found['copy']:.2f} TB/s. {found.get('said', '')}".strip()]
    wrong = [r for r in found["errors"] if r.get("kind")]
    if wrong:
        methods, losses = {r["method"] for r in wrong}, {r["loss"] for r in wrong}
        said.append(
            f"Kernels of {len(methods)} methods and {len(losses)} losses: at most {max(r['error'] for r in wrong):.0e} from the plain "
            "loop in double precision after 5 rounds (relative)."
        )
    for r in found["errors"]:
        if "limit of rounded rows" in r:
            said.append(
                f"Rows in bfloat16, d = {r['d']}: the limit moves by {r['limit of rounded rows']:.0e} (relative)."
            )
    return table(head, rows) + "\n" + "\n".join(said) + "\n"


def participation(found: dict[str, Any]) -> str:
    rows = [
        [" x ".join(map(str, r["shape"])), span(r["of all"], 3), span(r["alone"], 3), span(r["ratio"], 2), r["kernel"]]
        for r in found["participation"]
    ]
    head = ["n x m x d", "a tenth of n clients, ms", "a federation of that tenth, ms", "ratio", "kernel"]
    return table(head, rows) + ("\n" + found["said"] + "\n" if "said" in found else "")


PARTS = [
    ("rounds", "A round, in one process", "30 x 2,000 x 60, tau = 5, float64; fastest turn of ten, range over runs.", rounds),
    ("rounds-asleep", "With `use_all_cores()` alone: cores may sleep while they wait", "", rounds),
    ("rounds-one-device", "The same without `use_all_cores()`", "", rounds),
    ("rounds-core-taken", "The same beside a process that keeps one core busy", "", rounds),
    ("peers", "Other engines", PEERS, peers),
    ("cv", "Cross-validation", CV, cv),
    ("sweep", "Grids", GRIDS, sweep),
    ("sweep-gpu", "Grids on a GPU", "The same in float32 (`benchmarks/sweep.py --dtype float32`).", sweep),
    ("roofline-cpu", "The memory's limit: CPU", "What the columns mean: `benchmarks/roofline.py`.", roofline),
    ("roofline-gpu", "The memory's limit: GPU", "", roofline),
    ("gpu", "Rounds on a GPU", "Float32, 5 local steps; effective rate: steps x bytes of the rows / time.", gpu),
    ("gpu-participation", "A sample of the clients on a GPU", PARTICIPATION, participation),
    ("first_call", "The first result", "Seconds from the start of a process, imports included; fits in a process.", first_call),
]  # fmt: skip


def dots(names: list[str], values: list[float], label: str, out: Path) -> None:
    """A dot for each name, on a logarithmic scale: the length of a bar would mean nothing there."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "compfed", "font.size": 9}):
        figure, axes = plt.subplots(figsize=(6.4, 0.5 + 0.3 * len(names)), layout="constrained")
        axes.plot(values[::-1], names[::-1], "o", color="#0072B2")
        axes.set_xscale("log")
        axes.set_xlim(10 ** np.floor(np.log10(min(values))), 3 * max(values))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(label)
        axes.grid(axis="y", alpha=0.4)
        for name, value in zip(names, values, strict=True):
            axes.annotate(f"{value:.3g}", (value, name), xytext=(7, 0), textcoords="offset points", va="center")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(out, metadata={"Date": None})
        plt.close(figure)


def growth(found: list[dict[str, Any]], out: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.hashsalt": "compfed", "font.size": 9}):
        figure, all_axes = plt.subplots(
            1, len(found), figsize=(8, 2.2), layout="constrained", sharey=True, squeeze=False
        )
        for axes, g in zip(all_axes[0], found, strict=True):
            axes.loglog(g["values"], g["ms_per_round"], "o-", color="#0072B2")
            axes.set_xticks(g["values"], map(str, g["values"]))
            axes.minorticks_off()
            axes.yaxis.set_major_formatter("{x:g}")
            axes.set_xlabel(f"{g['varied']}  (exponent {g['exponent']:.2f})")
        every = [took for g in found for took in g["ms_per_round"]]
        ticks = [
            t for e in range(-3, 6) for t in (10.0**e, 2 * 10.0**e, 5 * 10.0**e) if min(every) / 2 < t < 2 * max(every)
        ]
        all_axes[0, 0].set_yticks(ticks)
        all_axes[0, 0].set_ylabel("ms a round")
        figure.savefig(out, metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs/howto/performance.md"))
    args = parser.parse_args()
    # a part that was not measured this time stays as it is: it says when and where it was
    before = args.out.read_text().split("\n## ")[1:] if args.out.exists() else []
    kept = {part.splitlines()[0]: f"## {part.rstrip()}\n" for part in before}
    text, missing = [INTRO], []
    for name, title, said, shown in PARTS:
        file = args.results / f"{name}.json"
        if not file.exists():
            missing.append(title)
            text += [kept[title]] if title in kept else []
            continue
        found = json.loads(file.read_text())
        text.append(f"## {title}\n\n{said + ' ' if said else ''}{machine(found)}\n{shown(found)}")
        if name == "peers":
            good = [r for r in found["results"] if "ms_per_round" in r]
            dots(
                [r["name"] for r in good],
                [float(np.median(r["ms_per_round"])) for r in good],
                "ms a round",
                args.out.with_name("performance-engines.svg"),
            )
            text.append("![Time of a round in each engine](performance-engines.svg)\n")
        if name.startswith("roofline"):
            figure = args.out.with_name(f"performance-growth-{name.removeprefix('roofline-')}.svg")
            growth(found["growth"], figure)
            text.append(f"![How the time of a round grows]({figure.name})\n")
    args.out.write_text("\n".join(text))
    print(f"wrote {args.out}" + (f"; not measured now: {'; '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main()
