"""Data sets of the package ir_datasets by their names, where it is installed."""

from __future__ import annotations

import hashlib
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.collection import Document
from bixse.data.sources.judgement_files import Judgement, JudgementSource, placed
from bixse.errors import InputError, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bixse.data.sources.reading import RowErrors


class IrDataset(JudgementSource):
    """The judgements of a data set of ir_datasets, such as `nfcorpus/train`; the name is the task.

    The package is optional and fetches data from the web by itself, so that must be allowed.

    Args:
        path: the name.
        scale: of the grades; None takes the lowest (not below 0) to the highest grade that the data set defines.
        download: whether data may be fetched.

    Raises:
        InputError: the package is not installed, fetching is not allowed, no such data set, or one without judgements.
    """

    name = "ir_datasets"
    file_format = "name of a data set of ir_datasets, for example nfcorpus/train"
    citation = "MacAvaney et al. 2021, ir_datasets, arXiv:2103.02280; and that of the data set"
    licence = "that of the data set"

    def __init__(self, path: str | Path, scale: GradeScale | None = None, download: bool = False) -> None:
        self.dataset_name = str(path)
        self.path = Path(path)
        self.files = [self.path]
        self.statuses, self.notes = Counter(), Counter()
        self._data = _load(self.dataset_name, download)
        self.scale = scale or _scale(self.dataset_name, self._data)
        self._store: Any = None
        self._queries: dict[str, str] = {}

    def inputs(self) -> dict[str, Path]:
        """No file of ours."""
        return {}

    def hashes(self, step: Callable[[int], None] | None = None) -> dict[str, str]:
        """The hash of the judgements."""
        return {f"ir_datasets/{self.dataset_name}": self.content_hash()}

    def content_hash(self) -> str:
        """SHA-256 over name and judgements."""
        digest = hashlib.sha256(self.dataset_name.encode())
        for judged in self._data.qrels_iter():
            digest.update(f"{judged.query_id}\0{judged.doc_id}\0{judged.relevance}\n".encode())
        return digest.hexdigest()

    def prepare(self, faults_of: Any) -> None:
        """Read the queries and open the store of documents."""
        self._queries = {query.query_id: _text(query) for query in self._data.queries_iter()}
        self._store = self._data.docs_store()

    def all_documents(self) -> Iterator[tuple[str, Document]]:
        """The whole corpus."""
        for document in self._data.docs_iter():
            if text := _text(document).strip():
                yield document.doc_id, Document("", text)

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        for number, judged in enumerate(self._data.qrels_iter(), start=1):
            query = self._queries.get(judged.query_id)
            try:
                document = _text(self._store.get(judged.doc_id))
            except KeyError:
                document = ""
            for key, text, identifier in (
                ("query_id", query, judged.query_id),
                ("doc_id", document, judged.doc_id),
            ):
                if not (text or "").strip():
                    faults.add(number, key, f"{shorten(identifier)} without a text", "a text", "leave the pair out")
            if not query or not document or not query.strip() or not document.strip():
                continue
            grade, status, detail = placed(float(judged.relevance), self.scale)
            yield Judgement(
                judged.query_id, judged.doc_id, self.scale, query, document, grade, status,
                judge=self.name, task=self.dataset_name, text=f"{judged.relevance}", detail=detail, row=number,
            )  # fmt: skip


def _load(name: str, download: bool) -> Any:
    try:
        package = import_module("ir_datasets")
    except ImportError as error:
        raise InputError(
            "ir_datasets: got no such package; expected it for the names of its data sets; fix: pip install ir_datasets"
        ) from error
    if not download:
        raise InputError(
            f"ir_datasets {name}: got no leave to fetch data; expected it, as the package fetches what is not there "
            f"yet; fix: bixse convert ir_datasets {name} --download"
        )
    try:
        found = package.load(name)
    except KeyError as error:
        raise InputError(
            f"ir_datasets: got {name!r}; expected the name of a data set; fix: see https://ir-datasets.com"
        ) from error
    for part in ("qrels", "queries", "docs"):
        if not getattr(found, f"has_{part}")():
            raise InputError(
                f"ir_datasets {name}: got a data set without {part}; expected queries, documents and judgements; "
                "fix: name a part with judgements, such as nfcorpus/train"
            )
    return found


def _scale(name: str, data: Any) -> GradeScale:
    """From the lowest grade, not below 0, to the highest that the data set defines."""
    defined: Mapping[int, str] = data.qrels_defs() or {}
    grades = [grade for grade in defined if grade >= 0]
    if not grades or max(grades) == 0:
        raise InputError(
            f"ir_datasets {name}: got a data set that defines no grades; expected a scale; fix: --scale LOW HIGH"
        )
    return GradeScale(min(0, *grades), max(grades))


def _text(record: Any) -> str:
    """The text of a query or a document, title first."""
    if hasattr(record, "default_text"):
        return str(record.default_text())
    parts = [getattr(record, key, "") for key in ("title", "text", "body")]
    return " ".join(str(part) for part in parts if part)
