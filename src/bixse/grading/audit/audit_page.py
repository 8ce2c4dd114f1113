"""The files of an audit: audit.json with every figure, and one self-contained HTML page."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from bixse.data.io.files import write_atomically
from bixse.grading.audit.audit_report import COMPARED, MEASURES
from bixse.report.page import render_page
from bixse.report.plots import reliability_diagram

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.grading.audit.audit_report import AuditReport

NAMED = 3
"""Judges that the title names; more are counted."""
QUERIES_SHOWN = 10
"""Queries listed by disagreement; audit.json holds all."""
LABELS_SHOWN = 50
"""Impossible labels listed; audit.json holds all."""


def render_audit(
    report: AuditReport,
    created: str,
    warnings: Sequence[str],
    queries: Mapping[str, str] | None = None,
    documents: Mapping[str, str] | None = None,
) -> str:
    """The page as text; the same content gives the same page.

    Args:
        report: what was found.
        created: ISO 8601 time.
        warnings: what a reader must know.
        queries: texts by id, where they are known.
        documents: likewise.
    """
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


def write_audit(
    report: AuditReport,
    out: Path,
    created: str,
    warnings: Sequence[str],
    queries: Mapping[str, str],
    documents: Mapping[str, str],
) -> dict[str, Path]:
    """Write audit.json and audit.html; arguments as for `render_audit`.

    Raises:
        StorageError: the folder cannot be made or written, or the disk is full.
    """
    content = {
        "title": _title(report),
        "created": created,
        **asdict(report),
        "measure_names": MEASURES,
        "compared_names": COMPARED,
        "warnings": list(warnings),
        "texts": {"queries": dict(queries), "documents": dict(documents)},
    }
    files = {"audit": out / "audit.json", "page": out / "audit.html"}
    write_atomically(files["audit"], json.dumps(content, indent=2, allow_nan=False) + "\n")
    write_atomically(files["page"], render_audit(report, created, warnings, queries, documents))
    return files


def _title(report: AuditReport) -> str:
    names = [judge.name for judge in report.judges]
    return f"Audit of {', '.join(names) if len(names) <= NAMED else f'{len(names)} judges'}"
