"""Judgements in qrels files (TREC's four columns, BEIR's TSV): ids and grades, the texts from a collection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.data.sources.judgement_files import Judgement, JudgementSource, placed
from bixse.data.trec import read_qrels
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bixse.data.collection import Collection
    from bixse.data.sources.reading import RowErrors
    from bixse.relevance import GradeScale


class QrelsFile(JudgementSource):
    r"""Judgements of people, or of a judge that wrote them as qrels.

    The file does not say its scale, so it must be stated: the grades that occur do not show those that nobody gave. A
    grade off the scale (published judge files hold 10 and 5 on a scale of 0 to 3; TREC's web tracks -2 for spam) comes
    with the status "off-scale".

    Args:
        path: the file; it is held in memory as a whole.
        scale: what its grades mean.
        collection: holds the texts. Without it rows have ids alone.

    Raises:
        InputError: the path is missing, or no scale is stated.

    Example:
        >>> import pathlib, tempfile
        >>> from bixse.relevance import GradeScale
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "judge.txt"
        >>> _ = path.write_text("q1 0 d1 3\nq1 0 d2 10\n")
        >>> [(row.document_id, row.grade, row.status) for row in QrelsFile(path, GradeScale(0, 3)).rows()]
        [('d1', 3.0, 'graded'), ('d2', None, 'off-scale')]
    """

    name = "qrels"
    file_format = "qrels: query id, 0, document id, grade; or BEIR's TSV with its header"
    citation = "TREC qrels as trec_eval reads them; BEIR: Thakur et al. 2021, arXiv:2104.08663"

    def __init__(self, path: str | Path, scale: GradeScale | None, collection: Collection | None = None) -> None:
        if scale is None:
            raise InputError(
                f"{path}: got no scale; expected that of its grades (a grade nobody gave cannot be seen); "
                "fix: state the lowest and the highest grade, for example 0 and 3"
            )
        super().__init__(path, scale)
        self.collection = collection

    @property
    def settings(self) -> Mapping[str, Any]:
        """Also whether texts are known: without them a pair is found by its ids."""
        return {**super().settings, "texts": self.collection is not None}

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        for query_id, judged in read_qrels(file).items():
            for document_id, stated in judged.items():
                query, document = self._texts(query_id, document_id, faults)
                grade, status, detail = placed(stated, self.scale)
                if self.collection is not None and (query is None or document is None):
                    continue
                yield Judgement(
                    query_id,
                    document_id,
                    self.scale,
                    query,
                    document,
                    grade,
                    status,
                    judge=file.stem,
                    text=f"{stated:g}",
                    detail=detail,
                )

    def _texts(self, query_id: str, document_id: str, faults: RowErrors) -> tuple[str | None, str | None]:
        """Texts of a pair; ids that the collection lacks are faults."""
        if self.collection is None:
            return None, None
        query, document = self.collection.queries.get(query_id), self.collection.corpus.get(document_id)
        of = f"{shorten(document_id)}, judged for query {shorten(query_id)}"
        if query is None:
            fix = "add the query, or drop its judgements"
            faults.add(None, "query-id", f"{shorten(query_id)}, not in the collection", "an id of queries.jsonl", fix)
        if document is None:
            fix = "add the document, drop the judgement, or leave the collection out to look pairs up by id"
            faults.add(None, "corpus-id", of, "an id of corpus.jsonl", fix)
        return query, document.content if document is not None else None
