"""Training files of NVIDIA's NeMo retriever: ids of a Parquet corpus, or texts in place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import text_id
from bixse.data.io.files import read_text
from bixse.data.sources.binary_labels import BINARY, labelled
from bixse.data.sources.corpus import CorpusSource, corpus_files
from bixse.data.sources.reading import RowErrors, json_rows, kind_of, stem_of
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bixse.data.sources.judgement_files import Judgement

_SIDES = {"pos_doc": True, "neg_doc": False}
"""Key of the documents -> whether they are relevant."""


class NvidiaFile(CorpusSource):
    r"""`question_id`, `question`, `corpus_id`, `pos_doc`, `neg_doc`: a JSON file with a list `data`, or JSONL.

    Documents are `{"id"}` or ids of a corpus (a folder of Parquet with `id` and `text`), or in JSONL also texts in
    place, as strings or `{"text"}`. A row is a task of the name of its `corpus_id`, or of the file.

    Args:
        path: the file; a .json is held in memory as a whole.
        corpus: file or folder of the documents, where rows hold ids; a file of one corpus.

    Raises:
        InputError: a path is missing, or the .json is none.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "training.jsonl"
        >>> _ = path.write_text(json.dumps({"query": "copy a folder", "pos_doc": "copytree", "neg_doc": ["walk"]}))
        >>> [(row.document, row.relevance) for row in NvidiaFile(path).rows()]
        [('copytree', 1.0), ('walk', 0.0)]
    """

    name = "nvidia"
    file_format = "JSON or JSONL of NeMo retriever: question, pos_doc, neg_doc"
    citation = "NVIDIA NeMo Automodel, github.com/NVIDIA-NeMo/Automodel, docs: retrieval dataset"

    def __init__(self, path: str | Path, corpus: Path | None = None) -> None:
        super().__init__(path, BINARY, corpus_files(corpus))

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        rows = _json_list(file, faults) if kind_of(file) == ".json" else json_rows(file, faults)
        for number, row in rows:
            before = faults.total
            query = faults.text(number, "question" if "question" in row else "query", row)
            query_id = faults.identifier(number, "question_id", row)
            task = faults.identifier(number, "corpus_id", row) or stem_of(file)
            documents = [
                (found, relevant)
                for key, relevant in _SIDES.items()
                for document in _as_list(row.get(key))
                if (found := self._document(number, key, document, faults)) is not None
            ]
            if not any(relevant for _, relevant in documents) and faults.total == before:
                faults.add(number, "pos_doc", shorten(row.get("pos_doc")), "at least one document", "drop the row")
            if query is None or faults.total > before:
                continue
            for (document_id, text), relevant in documents:
                yield labelled(query, text, relevant, number, query_id=query_id, document_id=document_id, task=task)

    def _document(self, number: int, key: str, document: Any, faults: RowErrors) -> tuple[str, str] | None:
        """Id and text; a string is an id where there is a corpus, else a text."""
        if isinstance(document, dict) and "text" in document:
            text = faults.text(number, key, {key: document["text"]})
            identifier = faults.identifier(number, "id", document)
            return None if text is None else (identifier or text_id(text), text)
        if not self.corpus and isinstance(document, str):
            text = faults.text(number, key, {key: document})
            return None if text is None else (text_id(text), text)
        row = document if isinstance(document, dict) else {"id": document}
        identifier = faults.identifier(number, "id", row)
        if identifier is None:
            if row.get("id") in (None, ""):
                faults.add(number, key, shorten(document), "a document {id} or a text", "correct the entry")
            return None
        text = self.document_text(number, key, identifier, faults)
        return None if text is None else (identifier, text)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _json_list(path: Path, faults: RowErrors) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The entries of the list `data` with their places from 1."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path}: got no valid JSON ({error}); expected one object with a list 'data'; fix: correct the file"
        ) from error
    rows = content.get("data") if isinstance(content, dict) else content
    if not isinstance(rows, list):
        raise InputError(f"{path}: got {shorten(content)}; expected an object with a list 'data'; fix: check it")
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield number, row
        else:
            faults.add(number, None, shorten(row), "a JSON object", "write {...} with its keys")
