"""Audit judges from files: read the labels, measure, write audit.json and one self-contained HTML page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.collection import load_collection
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run import open_run
from bixse.data.trec import read_run
from bixse.files.files import file_hash, write_atomically
from bixse.judging.audit.audit import audit
from bixse.judging.audit.audit_report import COMPARED, MEASURES
from bixse.judging.audit.labels import labels_of
from bixse.report.page import render_page
from bixse.report.plots import reliability_diagram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.judging.audit.audit_report import AuditReport
    from bixse.judging.audit.audit_settings import AuditSettings

NAMED = 3
"""Judges that the title names; more are counted."""
QUERIES_SHOWN, LABELS_SHOWN = 10, 50
"""How many the page shows; audit.json holds all."""


@dataclass(frozen=True)
class AuditResult:
    """What an audit found, wrote (name -> path) and warns of."""

    report: AuditReport
    artifacts: dict[str, str]
    warnings: list[str]


def audit_judges(settings: AuditSettings, out: str | Path) -> AuditResult:
    """Measure judges against human labels and write audit.json, audit.html and run.json.

    Raises:
        InputError: a file cannot be used, or see `bixse.judging.audit.audit.audit`.
        OutputExistsError: `out` holds another run.
    """
    out = Path(out)
    people, graded = labels_of(settings, settings.judge)
    stems = [path.stem for path in settings.runs]
    runs = {path.stem if stems.count(path.stem) == 1 else str(path): read_run(path) for path in settings.runs}
    report = audit(graded, people, settings.relevant_from, runs, settings.samples, settings.seed)
    queries, documents, files = _texts(settings)
    files["human"] = settings.human
    files |= {f"judge {number}": path for number, path in enumerate(settings.judge, start=1)}
    files |= {f"run {number}": path for number, path in enumerate(settings.runs, start=1)}
    hashes = {name: file_hash(path) for name, path in files.items()}
    record = open_run(out, "grade audit", settings.model_dump(), hashes, paths=settings.path_settings())
    record.save("running")
    warnings = report.warnings()
    if settings.scale is None:
        low, high = report.scale
        warnings.append(
            f"the scale {low:g} to {high:g} is that of the human labels found; state --scale where it is wider"
        )
    asked = {row.query_id for judge in report.judges for row in judge.worst_queries}
    shown = {pair.document_id for judge in report.judges for pair in judge.worst_pairs}
    queries = {identifier: queries[identifier] for identifier in sorted(asked & queries.keys())}
    documents = {identifier: documents[identifier] for identifier in sorted(shown & documents.keys())}
    content = {
        "title": _title(report),
        "created": record.started,
        **asdict(report),
        "measure_names": MEASURES,
        "compared_names": COMPARED,
        "warnings": warnings,
        "texts": {"queries": queries, "documents": documents},
    }
    artifacts = {"audit": out / "audit.json", "page": out / "audit.html"}
    write_atomically(artifacts["audit"], json.dumps(content, indent=2, allow_nan=False) + "\n")
    write_atomically(artifacts["page"], render_audit(report, record.started, warnings, queries, documents))
    record.results = {"figures": report.figures(), "impossible_labels": len(report.impossible)}
    record.save("finished")
    return AuditResult(report, {name: str(path) for name, path in artifacts.items()}, warnings)


def render_audit(
    report: AuditReport,
    created: str,
    warnings: Sequence[str],
    queries: Mapping[str, str] | None = None,
    documents: Mapping[str, str] | None = None,
) -> str:
    """The page as text, with the texts of queries and documents by id where they are known; `created` is ISO 8601."""
    return render_page(
        "audit.html.j2",
        title=_title(report),
        audit=report,
        created=created,
        warnings=warnings,
        measures=MEASURES,
        compared=COMPARED,
        diagrams={judge.name: reliability_diagram(judge.calibration, judge.name) for judge in report.judges},
        queries=queries or {},
        documents=documents or {},
        queries_shown=QUERIES_SHOWN,
        labels_shown=LABELS_SHOWN,
    )


def _title(report: AuditReport) -> str:
    names = [judge.name for judge in report.judges]
    return f"Audit of {', '.join(names) if len(names) <= NAMED else f'{len(names)} judges'}"


def _texts(settings: AuditSettings) -> tuple[Mapping[str, str], Mapping[str, str], dict[str, Path]]:
    if settings.pairs is not None:
        found = load_graded_pairs(settings.pairs)
        queries = dict(zip(found.query_ids, found.queries, strict=True))
        return queries, dict(zip(found.document_ids, found.documents, strict=True)), {"pairs": settings.pairs}
    if settings.collection is not None:
        texts = load_collection(settings.collection, splits=[])
        documents = {identifier: document.content for identifier, document in texts.corpus.items()}
        files = {name: settings.collection / f"{name}.jsonl" for name in ("corpus", "queries")}
        return texts.queries, documents, files
    return {}, {}, {}
