"""Audit judges from files: read the labels, measure, write the page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from bixse.data.collection_files import load_collection
from bixse.data.io.files import file_hash
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.run_record import open_run
from bixse.data.trec import read_run
from bixse.errors import SEEDS
from bixse.grading.audit.audit import audit
from bixse.grading.audit.audit_page import write_audit
from bixse.grading.audit.label_settings import LabelSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from bixse.grading.audit.audit_report import AuditReport


class AuditSettings(LabelSettings):
    """Settings of `bixse grade audit`.

    Example:
        >>> AuditSettings(human="qrels.txt", judge=["judgements.parquet"]).samples
        1000
    """

    judge: Annotated[tuple[Path, ...], Field(min_length=1), Flag(metavar="FILE")]
    """The judge's labels: judgements.parquet of `bixse grade`, graded pairs, or qrels; several are compared."""
    runs: Annotated[tuple[Path, ...], Flag(metavar="FILE")] = ()
    """TREC runs to rank by nDCG@10 under human and under judge labels."""
    pairs: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs with texts, to show disagreements."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Collection with texts, to show disagreements."""
    samples: int = Field(default=1000, ge=1)
    """Resamples of the queries for the intervals."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Of the resampling."""

    @model_validator(mode="after")
    def _one_source_of_texts(self) -> Self:
        if self.pairs is not None and self.collection is not None:
            raise ValueError("got pairs and collection; expected at most one of them; fix: drop one")
        return self


@dataclass(frozen=True)
class AuditResult:
    """What an audit found and wrote."""

    report: AuditReport
    """Every figure."""
    artifacts: dict[str, str]
    """Name -> path."""
    warnings: list[str]
    """What a reader must know."""


def audit_judges(settings: AuditSettings, out: str | Path) -> AuditResult:
    """Measure judges against human labels and write audit.json, audit.html and run.json.

    Raises:
        InputError: a file cannot be used, or see `bixse.grading.audit.audit.audit`.
        OutputExistsError: `out` holds another run.
    """
    out = Path(out)
    people, graded = settings.read(settings.judge)
    found = {name: read_run(path) for name, path in _by_name(settings.runs).items()}
    report = audit(graded, people, settings.relevant_from, found, settings.samples, settings.seed)
    queries, documents, text_files = _texts(settings)
    files = {
        "human": settings.human,
        **_numbered("judge", settings.judge),
        **_numbered("run", settings.runs),
        **text_files,
    }
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


def _texts(settings: AuditSettings) -> tuple[Mapping[str, str], Mapping[str, str], dict[str, Path]]:
    """Texts of queries and documents by id, and the files that they were read from."""
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
