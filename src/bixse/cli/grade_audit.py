"""`bixse grade audit`: measure judges against human labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.label_arguments import SCALE_SETTINGS, add_label_arguments, impossible_lines, read_both
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from bixse.grading.audit.audit_report import AuditReport

NAMED = 3
"""Judges that the title names; more are counted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("--judge", type=Path, required=True, nargs="+", action="extend", metavar="FILE",
                        help="the judge's labels: judgements.parquet of `bixse grade`, graded pairs, or qrels; give "
                        "several to compare judges")  # fmt: skip
    add_label_arguments(parser)
    parser.add_argument("--runs", type=Path, nargs="+", action="extend", default=[], metavar="FILE",
                        help="TREC runs to rank by nDCG@10 under human and under judge labels")  # fmt: skip
    texts = parser.add_mutually_exclusive_group()
    texts.add_argument("--pairs", type=Path, metavar="FILE", help="graded pairs with texts, to show disagreements")
    texts.add_argument("--collection", type=Path, metavar="DIR", help="collection with texts, to show disagreements")
    parser.add_argument("--samples", type=int, default=1000, metavar="N",
                        help="resamples of the queries for the intervals (default: 1000)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the resampling (default: 0)")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"), metavar="DIR",
                        help="write audit.json, audit.html and run.json here (default: runs/audit)")  # fmt: skip


def run(args: argparse.Namespace) -> CommandResult:
    """Read, join, measure, write the page."""
    from bixse.cli.seed import check_seed

    check_seed(args.seed)
    from bixse.data.io.files import file_hash, write_atomically
    from bixse.data.run_record import open_run
    from bixse.data.trec import read_run
    from bixse.grading.audit.audit import audit
    from bixse.grading.audit.audit_words import describe
    from bixse.report.audit_page import write_audit

    human, judges = read_both(args, args.judge)
    runs = {name: read_run(path) for name, path in _named(args.runs).items()}
    report = audit(judges, human, args.relevant_from, runs, args.samples, args.seed)
    texts, text_files = _texts(args, report)
    files = {"human": args.human, **_numbered("judge", args.judge), **_numbered("run", args.runs), **text_files}
    config = {key: getattr(args, key) for key in (*SCALE_SETTINGS, "samples", "seed", "judge", "runs")}
    paths = {"human": args.human, "pairs": args.pairs, "collection": args.collection}
    record = open_run(
        args.out,
        "grade audit",
        {**config, **paths},
        {name: file_hash(path) for name, path in files.items()},
        paths=("judge", "runs", *paths),
    )
    record.save("running")
    described = describe(report)
    if args.scale is None:
        low, high = report.scale
        described["warnings"].append(
            f"the scale {low:g} to {high:g} is that of the human labels found; state --scale where it is wider"
        )
    names = [judge.name for judge in judges]
    content = {
        "title": f"Audit of {', '.join(names) if len(names) <= NAMED else f'{len(names)} judges'}",
        "created": record.started,
        **report.to_plain(),
        **described,
        "texts": texts,
    }
    written = {"audit": args.out / "audit.json", "page": args.out / "audit.html"}
    write_atomically(written["audit"], json.dumps(content, indent=2, allow_nan=False) + "\n")
    write_audit(content, written["page"])
    metrics = {judge.name: _figures(judge.name, report) for judge in report.judges}
    record.results = {"metrics": metrics, "impossible_labels": len(report.impossible)}
    record.save("finished")
    artifacts = {name: str(path) for name, path in written.items()}
    text = _text(report, content, written["page"])
    return CommandResult(text, metrics, artifacts, content["warnings"], exit_code=3 if report.impossible else 0)


def _named(paths: Iterable[Path]) -> dict[str, Path]:
    """Runs by the names of their files; by their paths where two have one name."""
    taken = list(paths)
    stems = [path.stem for path in taken]
    return {path.stem if stems.count(path.stem) == 1 else str(path): path for path in taken}


def _numbered(kind: str, paths: Iterable[Path]) -> dict[str, Path]:
    return {f"{kind} {number}": path for number, path in enumerate(paths, start=1)}


def _texts(args: argparse.Namespace, report: AuditReport) -> tuple[dict[str, dict[str, str]], dict[str, Path]]:
    """Texts of the worst pairs and queries by id, and the files that they were read from."""
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    files: dict[str, Path] = {}
    if args.pairs is not None:
        from bixse.data.pairs_files import load_graded_pairs

        pairs = load_graded_pairs(args.pairs)
        queries = dict(zip(pairs.query_ids, pairs.queries, strict=True))
        documents = dict(zip(pairs.document_ids, pairs.documents, strict=True))
        files = {"pairs": args.pairs}
    elif args.collection is not None:
        from bixse.data.collection_files import load_collection

        collection = load_collection(args.collection, splits=[])
        queries = dict(collection.queries)
        documents = {identifier: document.content for identifier, document in collection.corpus.items()}
        files = {name: args.collection / f"{name}.jsonl" for name in ("corpus", "queries")}
    shown = {pair.document_id for judge in report.judges for pair in judge.worst_pairs}
    asked = {query.query_id for judge in report.judges for query in judge.worst_queries}
    return {
        "queries": {identifier: queries[identifier] for identifier in sorted(asked & queries.keys())},
        "documents": {identifier: documents[identifier] for identifier in sorted(shown & documents.keys())},
    }, files


def _figures(name: str, report: AuditReport) -> dict[str, Any]:
    """One judge's figures for machines."""
    judge = next(judge for judge in report.judges if judge.name == name)
    return {
        "pairs": judge.pairs,
        **{measure: estimate.value for measure, estimate in judge.measures.items()},
        "brier": judge.calibration.brier,
        "brier_constant": judge.calibration.base_rate_brier,
        "ece": judge.calibration.ece,
        "impossible_labels": len(judge.impossible),
    }


def _text(report: AuditReport, content: dict[str, Any], page: Path) -> str:
    """The table, what it means, and what is impossible."""
    from bixse.report.table import format_interval, format_number, format_table

    rows: list[list[str | int | float | None]] = []
    for judge in report.judges:
        values = {name: format_number(estimate.value) for name, estimate in judge.measures.items()}
        kappa, calibration = judge.measures["kappa"], judge.calibration
        brier = f"{format_number(calibration.brier)} ({format_number(calibration.base_rate_brier)})"
        rows.append(
            [judge.name, judge.pairs, values["exact"], f"{values['kappa']} {format_interval(kappa.low, kappa.high)}",
             values["quadratic_kappa"], values["binary_kappa"], values["kendall"], brier, calibration.ece]
        )  # fmt: skip
    head = ["judge", "pairs", "same", "kappa", "quadratic", "binary", "tau-b", "Brier (constant)", "ECE"]
    low, high = report.scale
    lines = [
        f"{report.human_pairs} human labels of {report.human_queries} queries on {low:g} to {high:g}, relevant from "
        f"{report.relevant_from:g}; intervals 95 % over queries",
        "",
        format_table(rows, head),
    ]
    for name, findings in content["findings"].items() if len(report.judges) == 1 else ():
        lines += ["", name, *(f"  {finding}" for finding in findings)]
    if content["comparison"]:
        lines += ["", *content["comparison"]]
    if report.impossible:
        lines += ["", "impossible labels, left out:", *impossible_lines(report.impossible)]
    return "\n".join([*lines, "", f"page: {page}"])
