"""Write the queues of many_runs.py, and print the tables of its runs.

    python docs/studies/decoder/queues.py queue scales|rates|variants|final|large-rates|large [--runs RUNS]
    python docs/studies/decoder/queues.py table|rows RUNS

`rates`, `final` and `large` read the runs on dev that are there, which choose scale and rate of each loss and map.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import astuple, fields, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from many_runs import Arm

from bixse.lab.studies.study import crossed_interval

if TYPE_CHECKING:
    from collections.abc import Iterator

    Scores = dict[str, dict[str, float]]

LOSSES, MAPS = ("infonce", "bixse", "soft-infonce"), ("none", "mean-and-deviation", "mean")
CELLS = {6: [*product(MAPS, LOSSES), ("project", "bixse")], 12: [*product(MAPS, LOSSES)]}
SCALES, RATES = (20.0, 10.0, 5.0, 40.0, 3.0), (3e-4, 1e-3, 1e-4)
LARGE = Arm(layers=30, steps=0, epochs=4.0, batch=256, lr=2e-4, data="mixture", length=96, read=256, on="test")
LARGE_CELLS = [("none", "infonce"), ("mean-and-deviation", "bixse"), ("mean-and-deviation", "infonce"),
               ("none", "soft-infonce"), ("none", "bixse"), ("none", "lambdaloss-v2")]  # fmt: skip
LARGE_RATES = (2e-4, 4e-4, 1e-4)
"""Peak rates at 256 queries, four times the rate at 16 (the paper's rule)."""


def finished(runs: Path | None) -> Iterator[tuple[Arm, dict[str, Any]]]:
    """Yield the runs of a folder and their JSON lines."""
    for path in sorted(runs.glob("*.json")) if runs else []:
        row = json.loads(path.read_text(encoding="utf-8"))
        yield Arm.of(row["arm"]), row


def scales() -> Iterator[Arm]:
    """Yield one run per depth, scale, map and loss, on dev."""
    for layers, scale in product(CELLS, SCALES):
        for kind, loss in CELLS[layers]:
            yield Arm(loss, kind, layers, lr=RATES[0], scale=scale)


def rates(chosen: Chosen) -> Iterator[Arm]:
    """Yield the other rates of each depth, map and loss at its best scale, on dev."""
    for layers, rate in product(CELLS, RATES[1:]):
        for kind, loss in CELLS[layers]:
            yield replace(chosen.of(Arm(loss, kind, layers)), lr=rate)


def variants(chosen: Chosen) -> Iterator[Arm]:
    """Yield what BiXSE may lack at twelve layers, on dev: other starts of the bias, hard entries, a growing scale."""
    start = chosen.of(Arm("bixse", "mean-and-deviation", 12))
    for changes in ({"hard": 1.0}, {"bias": "-3"}, {"grow": 0.25}, {"hard": 0.5}, {"bias": "0"}):
        yield replace(start, **changes)


class Chosen:
    """The rate and scale that are best on dev, by data, depth, map and loss."""

    def __init__(self, runs: Path | None) -> None:
        self.best: dict[tuple[str, int, str, str], tuple[float, Arm]] = {}
        for arm, row in finished(runs):
            key, value = (arm.data, arm.layers, arm.map, arm.loss), float(np.mean([*row["ndcg"].values()]))
            if arm.on == "dev" and arm.objective == arm.loss and value > self.best.get(key, (-1.0, arm))[0]:
                self.best[key] = value, arm

    def of(self, arm: Arm) -> Arm:
        """Return the run with its best rate and scale; the rate grows with the root of the batch, as in the paper."""
        _, winner = self.best.get((arm.data, arm.layers, arm.map, arm.loss), (0.0, None))
        if winner is None:  # the mixture without runs on dev takes the scale of twelve layers, and the rate of LARGE
            _, scaled = self.best.get(("pydocs", 12, arm.map, arm.loss), (0.0, arm))
            winner = replace(LARGE if arm.data == "mixture" else arm, scale=scaled.scale)
        rate = float(f"{winner.lr * (arm.batch / winner.batch) ** 0.5:.4g}")
        return replace(arm, lr=rate, scale=winner.scale)


def final(chosen: Chosen) -> Iterator[Arm]:
    """Yield five seeds of each loss and map at its best, on test: first steps and batch of the sweep, then others."""
    for layers, kind in product(CELLS, MAPS):
        yield Arm("none", kind, layers, on="dev+test")
    for (steps, batch), seed, layers in product(((60, 32), (240, 32), (60, 16), (60, 64)), range(5), CELLS):
        for kind, loss in CELLS[layers]:
            yield chosen.of(Arm(loss, kind, layers, steps=steps, batch=batch, seed=seed, on="dev+test"))


def large_rates(chosen: Chosen) -> Iterator[Arm]:
    """Yield half an epoch of each loss at each rate, on dev."""
    for rate, (kind, loss) in product(LARGE_RATES, LARGE_CELLS):
        start = chosen.of(replace(LARGE, loss=loss, map=kind))
        yield replace(start, lr=rate, epochs=0.5, on="dev")


def large(chosen: Chosen) -> Iterator[Arm]:
    """Yield all layers in batches of 256 and 64, on the tests of three collections."""
    for seed, batch in ((0, 256), (0, 64), (1, 256), (1, 64)):
        for kind, loss in LARGE_CELLS[: None if batch == 256 else 2]:
            yield chosen.of(replace(LARGE, loss=loss, map=kind, batch=batch, seed=seed))


def difference(of: dict[int, dict[str, float]], other: dict[int, dict[str, float]]) -> str:
    """Return the mean difference over the seeds of both, with its interval over seeds and queries."""
    seeds = sorted(of.keys() & other.keys())
    if not seeds or of is other:
        return ""
    table = np.array([[of[seed][query] - other[seed][query] for query in of[seed]] for seed in seeds])
    gap = crossed_interval(table, [0] * table.shape[1])
    return f"{gap.mean:+.3f}" + ("" if gap.low is None else f" [{gap.low:+.3f}, {gap.high:+.3f}]")


def table(runs: Path) -> Iterator[str]:
    """Yield the grid on dev, then one table per measured set: means over seeds, differences from InfoNCE and no map."""
    grids: dict[Any, dict[Any, float]] = defaultdict(dict)
    cells: dict[str, dict[Any, dict[int, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    logs: dict[Any, tuple[Arm, dict[str, Any]]] = {}
    for arm, row in finished(runs):
        if arm.on == "dev":
            grids[arm.data, arm.layers, arm.map, arm.objective][arm.lr, arm.scale] = float(
                np.mean([*row["ndcg"].values()])
            )
            continue
        key = (arm.data, arm.layers, arm.steps or f"{arm.epochs:g} epochs", arm.batch, arm.map, arm.objective)
        logs[key] = arm, row
        with np.load(runs / f"{arm.name}.npz") as saved:
            for name in row["ndcg"]:
                scores = dict(zip(saved[f"{name} keys"].tolist(), saved[f"{name} values"].tolist(), strict=True))
                cells[name][key][arm.seed] = scores
    columns = sorted({setting for grid in grids.values() for setting in grid})
    yield (
        "nDCG@10 on dev, by rate/scale\n\n| data | layers | map | loss | best | "
        + " | ".join(f"{rate:g}/{scale:g}" for rate, scale in columns)
        + " |\n|"
        + "---|" * (5 + len(columns))
    )
    for key, grid in sorted(grids.items()):
        rate, scale = max(grid, key=grid.__getitem__)
        figures = [f"{grid[column]:.3f}" if column in grid else "" for column in columns]
        yield "| " + " | ".join([*map(str, key), f"{rate:g}/{scale:g}", *figures]) + " |"
    head = ("data", "layers", "steps", "batch", "map", "loss", "rate", "scale", "seeds", "nDCG@10", "minus InfoNCE",
            "minus no map", "minus no change", "cosines at the end", "r", "share on irrelevant, nearest",
            "s")  # fmt: skip
    for name, of in cells.items():
        yield f"\n{name}\n\n| " + " | ".join(head) + " |\n|" + "---|" * len(head)
        for key, by_seed in sorted(of.items(), key=lambda item: tuple(map(str, item[0]))):
            arm, row = logs[key]
            mean = np.mean([[*scores.values()] for scores in by_seed.values()])
            others = ((*key[:5], "infonce"), (*key[:4], "none", arm.loss), (*key[:5], arm.loss))
            last = row["log"][-1] if row["log"] else None
            seen = [""] * 3 if last is None else [
                f"{last['relevant']:.2f}, {last['irrelevant']:.2f}", f"{last['r']:.2f}",
                f"{last['on_irrelevant']:.2f}, {last['on_nearest']:.2f}"]  # fmt: skip
            figures = [f"{arm.lr:g}", f"{arm.scale:g}", " ".join(map(str, sorted(by_seed))), f"{mean:.3f}"]
            gaps = [difference(by_seed, of.get(other, {})) for other in others]
            yield "| " + " | ".join([*map(str, key), *figures, *gaps, *seen, f"{row['train_s']:.1f}"]) + " |"


def rows(runs: Path) -> Iterator[str]:
    """Yield a CSV line per run: its fields, the mean nDCG@10 of each measured set, and the last cosines."""
    names = [field.name for field in fields(Arm)]
    yield ",".join([*names, "set", "ndcg@10", "relevant", "irrelevant"])
    for arm, row in finished(runs):
        last = row["log"][-1] if row["log"] else {"relevant": "", "irrelevant": ""}
        for name, value in row["ndcg"].items():
            yield ",".join(map(str, [*astuple(arm), name, value, last["relevant"], last["irrelevant"]]))


def main() -> None:
    """Print a queue, the tables, or a row per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_queue = commands.add_parser("queue")
    of_queue.add_argument("name", choices=("scales", "rates", "variants", "final", "large-rates", "large"))
    of_queue.add_argument("--runs", type=Path)
    prints = {"table": table, "rows": rows}
    for name in prints:
        commands.add_parser(name).add_argument("runs", type=Path)
    args = parser.parse_args()
    if args.command in prints:
        print("\n".join(prints[args.command](args.runs)))
        return
    chosen = Chosen(args.runs)
    queues = {
        "scales": lambda _: scales(),
        "rates": rates,
        "variants": variants,
        "final": final,
        "large-rates": large_rates,
        "large": large,
    }
    print("\n".join(arm.line for arm in queues[args.name](chosen)))


if __name__ == "__main__":
    main()
