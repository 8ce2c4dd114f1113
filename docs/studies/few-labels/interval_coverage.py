"""Do the intervals from few labels hold what they say? Labels are drawn from pairs that people labelled in full.

    python docs/studies/few-labels/interval_coverage.py --data DIR --out docs/studies/few-labels

DIR holds `human.qrels.txt` and `judges/*.txt` (TREC qrels, grades 0 to 3), as LLMJudge's. There are no runs in it, so
two made-up systems rank each query's labelled documents by a judge's grades and noise; the pool is what either shows
among its first ten. In each of the draws queries are resampled with replacement, as many as there are, and labels are
drawn from their documents: pairs, or whole queries. The interval `labels` should hold the value that all labels of
these resampled queries give, the interval `queries` that of all queries. Writes coverage.csv and coverage.svg.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from bixse.audit.labels import read_labels
from bixse.evaluation.metrics import evaluate_run
from bixse.lab.few_labels import evaluate_few_labels
from bixse.relevance import GradeScale, ranked

SCALE = GradeScale(0, 3)
SYSTEMS = {"A": ("RMITIR-llama70B", 1.5), "B": ("TREMA-4prompts", 3.0)}
"""Name -> the judge by whose grades it ranks, and the noise (standard deviation, in grades) that it adds."""
JUDGES = ("willia-umbrela1", "RMITIR-llama38b", "constant")
"""The judges whose grades correct nothing, little and more; a constant knows nothing."""
METRICS = ("ndcg@10", "precision@10")
UNITS = ("pairs", "queries")
DEPTH, POSITIVE_FROM = 10, 2 / 3

Pairs = dict[tuple[str, str], float]


def systems(data: Path, human: Pairs, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """The made-up runs, over the documents that people labelled."""
    generator = np.random.default_rng(seed)
    runs: dict[str, dict[str, dict[str, float]]] = {}
    for name, (judge, noise) in SYSTEMS.items():
        grades = read_labels(data / "judges" / f"{judge}.txt", otherwise=SCALE).grades
        runs[name] = {}
        for query, document in sorted(human):
            score = grades.get((query, document), 0.0) + noise * generator.standard_normal()
            runs[name].setdefault(query, {})[document] = score
    return runs


def shown(runs: dict[str, dict[str, dict[str, float]]]) -> set[tuple[str, str]]:
    """Pairs among the first ten of a system."""
    return {(query, document) for run in runs.values() for query in run for document in ranked(run[query])[:DEPTH]}


def resampled(pairs: Pairs, chosen: list[str]) -> Pairs:
    """The pairs of drawn queries; each draw of a query is a query of its own."""
    own = defaultdict(list)
    for query, document in pairs:
        own[query].append(document)
    return {(f"{n}-{q}", document): pairs[q, document] for n, q in enumerate(chosen) for document in own[q]}


def draw(human: Pairs, labels: int, unit: str, generator: np.random.Generator) -> Pairs:
    """So many labels, or whole queries with about so many."""
    pairs = sorted(human)
    if unit == "pairs":
        return {pairs[place]: human[pairs[place]] for place in generator.choice(len(pairs), labels, replace=False)}
    queries = sorted({query for query, _ in pairs})
    count = max(2, round(labels / len(pairs) * len(queries)))
    chosen = set(generator.choice(queries, count, replace=False))
    return {pair: human[pair] for pair in pairs if pair[0] in chosen}


def values(runs: Any, human: Pairs) -> dict[tuple[str, str | None], dict[str, float]]:
    """What all labels say of each query."""
    qrels: dict[str, dict[str, float]] = {}
    for (query, document), relevance in human.items():
        qrels.setdefault(query, {})[document] = relevance
    a, b = (evaluate_run(qrels, runs[name], METRICS, POSITIVE_FROM) for name in runs)
    alone = {(metric, None): a[metric] for metric in METRICS}
    return alone | {
        (metric, "B"): {query: a[metric][query] - b[metric][query] for query in qrels} for metric in METRICS
    }


def simulate(data: Path, judge: str, sizes: list[int], draws: int, seed: int) -> list[dict[str, Any]]:
    """A row for each unit, number of labels and estimate."""
    human = dict(read_labels(data / "human.qrels.txt", SCALE).relevance)
    runs = systems(data, human, seed)
    pool = shown(runs)
    human = {pair: human[pair] for pair in sorted(pool)}
    runs = {
        name: {query: {own: run[query][own] for own in run[query] if (query, own) in pool} for query in run}
        for name, run in runs.items()
    }
    graded = {} if judge == "constant" else read_labels(data / "judges" / f"{judge}.txt", otherwise=SCALE).relevance
    grades = {pair: 0.5 if judge == "constant" else graded.get(pair, 0.0) for pair in human}
    queries = sorted({query for query, _ in human})
    truth = values(runs, human)
    rows = []
    for unit in UNITS:
        for size in sizes:
            generator = np.random.default_rng(seed)
            records = defaultdict(list)
            for _ in range(draws):
                chosen = list(generator.choice(queries, len(queries)))
                of_all, of_judge = resampled(human, chosen), resampled(grades, chosen)
                ranking = {
                    name: {f"{n}-{query}": run[query] for n, query in enumerate(chosen)} for name, run in runs.items()
                }
                labels = draw(of_all, size, unit, generator)
                metrics = METRICS if unit == "queries" else METRICS[1:]
                found = evaluate_few_labels(ranking, of_judge, labels, metrics=metrics, positive_from=POSITIVE_FROM)
                for own in found.estimates:
                    if own.system == "A":
                        target = float(np.mean([truth[own.metric, own.baseline][query] for query in chosen]))
                        records[own.metric, own.baseline].append((own, target, len(labels)))
            for (metric, baseline), own in records.items():
                name = f"{metric} A" + (" - B" if baseline else "")
                rows.append(
                    summary(own, float(np.mean(list(truth[metric, baseline].values()))))
                    | {"estimate": name, "draws": draws}
                )
                rows[-1] |= {"judge": judge, "drawn": unit, "labels": round(float(np.mean([n for *_, n in own])))}
                print(rows[-1], flush=True)
    return rows


def summary(records: list[Any], truth: float) -> dict[str, Any]:
    """Bias, coverage and widths over the draws; widths are medians, since few labels give some very wide intervals."""
    target = np.array([target for _, target, _ in records])
    value, low, high = np.array([[r.labels.value, r.labels.low, r.labels.high] for r, *_ in records], float).T
    plain_low, plain_high = np.array([[r.plain.low, r.plain.high] for r, *_ in records], float).T
    wide_low, wide_high = np.array([[r.queries.low, r.queries.high] for r, *_ in records], float).T
    worth = [np.nan if r.labels_worth is None else r.labels_worth for r, *_ in records]
    width, plain = np.nanmedian(high - low), np.nanmedian(plain_high - plain_low)
    return {
        "bias": float(np.nanmean(value - target)),
        "coverage_labels": float(np.mean((low <= target + 1e-12) & (target - 1e-12 <= high))),
        "coverage_plain": float(np.mean((plain_low <= target + 1e-12) & (target - 1e-12 <= plain_high))),
        "coverage_queries": float(np.mean((wide_low <= truth) & (truth <= wide_high))),
        "width_labels": float(width),
        "width_plain": float(plain),
        "ratio": float(width / plain),
        "labels_worth": float(np.nanmedian(worth)),
        "width_queries": float(np.nanmedian(wide_high - wide_low)),
        "undefined": int(np.isnan(low).sum()),
    }


def plot(rows: list[dict[str, str]], path: Path) -> None:
    """Coverage and width against the number of labels, a column for each estimate from pairs, then from queries."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bixse"
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(row["estimate"] for row in rows))
    figure, axes = plt.subplots(4, len(names), figsize=(12, 9.5), layout="constrained", sharex="row", sharey="row")
    for top, unit in ((0, "pairs"), (2, "queries")):
        for column, name in enumerate(names):
            coverage, width = axes[top][column], axes[top + 1][column]
            if not any((row["estimate"], row["drawn"]) == (name, unit) for row in rows):  # nDCG needs whole queries
                coverage.set_axis_off()
                width.set_axis_off()
                continue
            for judge in dict.fromkeys(row["judge"] for row in rows):
                own = [r for r in rows if (r["estimate"], r["drawn"], r["judge"]) == (name, unit, judge)]
                labels = [float(r["labels"]) for r in own]
                line = coverage.plot(labels, [float(r["coverage_labels"]) for r in own], marker="o", ms=4, label=judge)
                shade = line[0].get_color()
                coverage.plot(labels, [float(r["coverage_queries"]) for r in own], "--", marker="s", ms=3, color=shade)
                width.plot(labels, [float(r["width_labels"]) for r in own], marker="o", ms=4, color=shade)
            plain = [r for r in rows if (r["estimate"], r["drawn"], r["judge"]) == (name, unit, own[0]["judge"])]
            at = [float(r["labels"]) for r in plain]
            width.plot(at, [float(r["width_plain"]) for r in plain], "k:", marker="x", ms=5, label="labels alone")
            coverage.axhline(0.95, color="black", lw=0.8)
            coverage.set(ylim=(0.8, 1.0), title=f"{name}, {unit} drawn")
            coverage.title.set_fontsize(10)
            width.set_xlabel("labels")
            for axis in (coverage, width):
                axis.grid(alpha=0.3)
        axes[top][0].set_ylabel("coverage of 95 %")
        axes[top + 1][0].set_ylabel("median width")
        axes[top + 1][0].set_ylim(bottom=0)
    handles, labels_shown = axes[2][0].get_legend_handles_labels()
    extra, words = axes[3][0].get_legend_handles_labels()
    style = [mpl.lines.Line2D([], [], color="grey", ls=ls, marker=m) for ls, m in (("-", "o"), ("--", "s"))]
    figure.legend(
        handles + extra + style,
        [*labels_shown, *words, "these queries", "queries like these"],
        loc="outside lower center",
        ncols=6,
        frameon=False,
    )
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="without it the figure alone is drawn again, from coverage.csv")
    parser.add_argument("--out", type=Path, default=Path("runs/few-labels"))
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--labels", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--judges", nargs="+", default=list(JUDGES))
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.data is not None:
        table = [
            row
            for judge in chosen.judges
            for row in simulate(chosen.data, judge, chosen.labels, chosen.draws, chosen.seed)
        ]
        first = ["judge", "drawn", "labels", "estimate"]
        with (chosen.out / "coverage.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, [*first, *(key for key in table[0] if key not in first)])
            writer.writeheader()
            for row in table:
                writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    with (chosen.out / "coverage.csv").open(encoding="utf-8") as stream:
        plot(list(csv.DictReader(stream)), chosen.out / "coverage.svg")
