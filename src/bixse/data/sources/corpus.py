"""`CorpusSource`: a source whose rows name documents (and maybe queries) by id, with the texts in other files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.data.sources.judgement_files import JudgementSource
from bixse.data.sources.reading import files_of
from bixse.data.sources.tables import TABLES
from bixse.data.sources.text_store import TextStore, documents_in, queries_in
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.data.collection import Document
    from bixse.data.sources.reading import RowErrors
    from bixse.relevance import GradeScale


class CorpusSource(JudgementSource):
    """Rows of ids, with the texts looked up in a temporary file that `prepare` fills.

    Args:
        path: the rows.
        scale: of the grades.
        corpus: files of documents; empty where the rows hold the texts.
        queries: files of queries; likewise.

    Raises:
        InputError: a file is missing.
    """

    def __init__(
        self, path: str | Path, scale: GradeScale, corpus: Sequence[Path] = (), queries: Sequence[Path] = ()
    ) -> None:
        super().__init__(path, scale)
        self.corpus, self.query_files = list(corpus), list(queries)
        for file in (*self.corpus, *self.query_files):
            if not file.is_file():
                found = "a folder" if file.is_dir() else "no such file"
                raise InputError(f"{file}: got {found}; expected a file of texts; fix: check the path")
        self.documents: TextStore | None = None
        self.queries: TextStore | None = None

    def inputs(self) -> dict[str, Path]:
        """Also the files of texts."""
        found = super().inputs()
        for kind, files in (("corpus", self.corpus), ("queries", self.query_files)):
            for file in files:
                twice = [other for other in files if other.name == file.name]
                found[f"{kind}/{file.name}" if len(twice) == 1 else f"{kind}/{twice.index(file)}/{file.name}"] = file
        return found

    def prepare(self, faults_of: Callable[[Path], RowErrors]) -> None:
        """Read the texts.

        Raises:
            InputError: a file cannot be read.
            StorageError: no room for the texts.
        """
        self.close()
        if self.corpus:
            self.documents = TextStore()
            for file in self.corpus:
                faults = faults_of(file)
                self.documents.add(documents_in(file, faults), faults)
        if self.query_files:
            self.queries = TextStore()
            for file in self.query_files:
                faults = faults_of(file)
                self.queries.add(queries_in(file, faults), faults)

    def all_documents(self) -> Iterator[tuple[str, Document]] | None:
        """The corpus, where there is one."""
        return None if self.documents is None else self.documents.items()

    def document_text(self, number: int | None, key: str, identifier: str, faults: RowErrors) -> str | None:
        """The text of a document, title first; a fault and None where the corpus lacks it."""
        found = None if self.documents is None else self.documents.get(identifier)
        if found is not None and found.content.strip():
            return found.content
        if found is not None:
            fix = "fill the document in, or drop it here"
            faults.add(number, key, f"{shorten(identifier)}, an empty document", "a text", fix)
        elif self.documents is None:
            fix = "give the corpus too (--corpus FILE)"
            faults.add(number, key, f"the id {shorten(identifier)} without a text", "a text, or a corpus", fix)
        else:
            fix = "add the document to the corpus, or drop it here"
            faults.add(number, key, f"{shorten(identifier)}, not in the corpus", "an id of the corpus", fix)
        return None

    def query_text(self, number: int | None, key: str, identifier: str, faults: RowErrors) -> str | None:
        """The text of a query; a fault and None where the queries lack it."""
        found = None if self.queries is None else self.queries.get(identifier)
        if found is None:
            fix = "add the query, or drop its rows"
            faults.add(number, key, f"{shorten(identifier)}, not among the queries", "the id of a query", fix)
            return None
        return found.content

    def close(self) -> None:
        """Close the temporary files."""
        for store in (self.documents, self.queries):
            if store is not None:
                store.close()
        self.documents = self.queries = None


def corpus_files(corpus: Path | None) -> list[Path]:
    """The file of a corpus, or those of its folder, by name.

    Raises:
        InputError: a folder without such files.
    """
    if corpus is None or not corpus.is_dir():
        return [] if corpus is None else [corpus]
    return files_of(corpus, TABLES, "the documents of a corpus")


def need_scale(path: object, scale: GradeScale | None) -> GradeScale:
    """The stated scale.

    Raises:
        InputError: there is none.
    """
    if scale is None:
        raise InputError(
            f"{path}: got no scale; expected that of its grades (a grade nobody gave cannot be seen); "
            "fix: state the lowest and the highest grade, for example --scale 0 3"
        )
    return scale


def listed(number: int, key: str, row: Mapping[str, Any], faults: RowErrors) -> list[Any]:
    """The list under a key that may be absent or null; a fault where it is something else."""
    value = row.get(key)
    if value is None:
        return []
    if isinstance(value, list):
        return value
    faults.add(number, key, shorten(value), "a list", f'write it as {{"{key}": [...]}}')
    return []
