"""Audit judges from files: read the labels, measure, write the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection_files import load_collection
from bixse.data.io.files import file_hash
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import open_run
from bixse.data.trec import read_run
from bixse.grading.audit.audit import audit
from bixse.grading.audit.audit_page import write_audit
from bixse.grading.audit.label_settings import LabelSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bixse.grading.audit.audit_report import AuditReport


@dataclass(frozen=True)
class AuditResult:
    """What an audit found and wrote."""

    report: AuditReport
    """Every figure."""
    artifacts: dict[str, str]
    """Name -> path."""
    warnings: list[str]
    """What a reader must know."""


def audit_judges(
    judges: Sequence[str | Path],
    human: str | Path,
    out: str | Path,
    labels: LabelSettings | None = None,
    runs: Sequence[str | Path] = (),
    pairs: str | Path | None = None,
    collection: str | Path | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> AuditResult:
    """Measure judges against human labels and write audit.json, audit.html and run.json.

    Args:
        judges: files of the judges' labels: judgements.parquet of `grade`, graded pairs, or qrels.
        human: file of the human labels: qrels, or a table of query_id, document_id, grade.
        out: output folder.
        labels: scales, and what counts as relevant.
        runs: TREC runs to rank by nDCG@10 under human and under judge labels.
        pairs: graded pairs with texts, to show disagreements.
        collection: collection with texts, instead of `pairs`.
        samples: resamples of the queries for the intervals.
        seed: of the resampling.

    Raises:
        InputError: a file cannot be used, or see `bixse.grading.audit.audit.audit`.
        OutputExistsError: `out` holds another run.
    """
    labels, out, human = labels or LabelSettings(), Path(out), Path(human)
    judge_files, run_files = [Path(path) for path in judges], [Path(path) for path in runs]
    people, graded = labels.read(human, judge_files)
    found = {name: read_run(path) for name, path in _by_name(run_files).items()}
    report = audit(graded, people, labels.relevant_from, found, samples, seed)
    queries, documents, text_files = _texts(pairs, collection)
    files = {"human": human, **_numbered("judge", judge_files), **_numbered("run", run_files), **text_files}
    paths = {"human": human, "judge": judge_files, "runs": run_files, "pairs": pairs, "collection": collection}
    record = open_run(
        out,
        "grade audit",
        {**labels.plain(), "samples": samples, "seed": seed, **paths},
        {name: file_hash(path) for name, path in files.items()},
        paths=tuple(paths),
    )
    record.save("running")
    warnings = report.warnings()
    if labels.scale is None:
        low, high = report.scale
        warnings.append(
            f"the scale {low:g} to {high:g} is that of the human labels found; state --scale where it is wider"
        )
    asked = {row.query_id for judge in report.judges for row in judge.worst_queries}
    shown = {pair.document_id for judge in report.judges for pair in judge.worst_pairs}
    written = write_audit(report, out, record.started, warnings, _only(queries, asked), _only(documents, shown))
    record.results = {"figures": report.figures(), "impossible_labels": len(report.impossible)}
    record.save("finished")
    return AuditResult(report, {name: str(path) for name, path in written.items()}, warnings)


def _by_name(paths: Sequence[Path]) -> dict[str, Path]:
    """Runs by the names of their files; by their paths where two have one name."""
    stems = [path.stem for path in paths]
    return {path.stem if stems.count(path.stem) == 1 else str(path): path for path in paths}


def _numbered(kind: str, paths: Iterable[Path]) -> dict[str, Path]:
    return {f"{kind} {number}": path for number, path in enumerate(paths, start=1)}


def _only(texts: Mapping[str, str], wanted: set[str]) -> dict[str, str]:
    return {identifier: texts[identifier] for identifier in sorted(wanted & texts.keys())}


def _texts(
    pairs: str | Path | None, collection: str | Path | None
) -> tuple[Mapping[str, str], Mapping[str, str], dict[str, Path]]:
    """Texts of queries and documents by id, and the files that they were read from."""
    if pairs is not None:
        found = load_graded_pairs(pairs)
        queries = dict(zip(found.query_ids, found.queries, strict=True))
        return queries, dict(zip(found.document_ids, found.documents, strict=True)), {"pairs": Path(pairs)}
    if collection is not None:
        texts = load_collection(collection, splits=[])
        documents = {identifier: document.content for identifier, document in texts.corpus.items()}
        return texts.queries, documents, {name: Path(collection) / f"{name}.jsonl" for name in ("corpus", "queries")}
    return {}, {}, {}
