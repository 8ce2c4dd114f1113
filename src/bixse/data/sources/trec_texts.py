"""Judgements in qrels with their texts: a folder in the BEIR layout, or TREC's topics, qrels and collection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.sources.corpus import CorpusSource, need_scale
from bixse.data.sources.judgement_files import Judgement, placed
from bixse.data.sources.tables import plain_lines
from bixse.data.trec import QRELS_HEADER
from bixse.errors import InputError, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.sources.reading import RowErrors
    from bixse.relevance import GradeScale


class TrecFiles(CorpusSource):
    r"""Qrels of TREC (four columns) or BEIR (a TSV with its header), topics and a collection of texts.

    The scale must be stated: the grades that occur do not show those that nobody gave. A grade off the scale (-2 for
    spam, 10 on a scale of 0 to 3) has the status "off-scale" and is no grade. Only judged pairs become rows; unjudged
    documents of the collection are none.

    Args:
        path: the qrels.
        scale: of the grades.
        queries: topics: .tsv (or .txt) of id and text, or a table.
        corpus: files of documents: .tsv of id and text (or id, address, title, body), or tables, as .gz too.

    Raises:
        InputError: a path is missing, or no scale is stated.

    Example:
        >>> import tempfile
        >>> from bixse.relevance import GradeScale
        >>> folder = Path(tempfile.mkdtemp())
        >>> texts = {"qrels.txt": "7 0 d1 2\n", "topics.tsv": "7\tcopy a folder\n", "c.tsv": "d1\tcopytree\n"}
        >>> for name, text in texts.items():
        ...     _ = (folder / name).write_text(text)
        >>> source = TrecFiles(folder / "qrels.txt", GradeScale(0, 3), folder / "topics.tsv", [folder / "c.tsv"])
        >>> [(row.query, row.document, row.grade) for row in source.rows()]
        [('copy a folder', 'copytree', 2.0)]
    """

    name = "trec"
    file_format = "qrels: query id, 0, document id, grade; with topics (--queries) and a collection (--corpus)"
    citation = "TREC qrels as trec_eval reads them; tracks: Craswell et al. 2020, arXiv:2003.07820, and after"

    def __init__(
        self, path: str | Path, scale: GradeScale | None, queries: Path | None, corpus: Sequence[Path]
    ) -> None:
        missing = [flag for flag, given in (("--queries", queries), ("--corpus", corpus)) if not given]
        if missing:
            raise InputError(
                f"{path}: got no {' and no '.join(missing)}; expected the files of topics and of documents, since "
                f"qrels hold ids alone; fix: give {' and '.join(missing)}"
            )
        super().__init__(path, need_scale(path, scale), corpus, [queries] if queries is not None else [])
        self.task: str | None = None

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        is_beir = None
        given: dict[tuple[str, str], float] = {}
        for number, line in plain_lines(file, faults):
            if is_beir is None:
                names = tuple(name.strip().lower().replace("_", "-") for name in line.split("\t"))
                is_beir = names == QRELS_HEADER
                if is_beir:
                    continue
            fields = line.split("\t") if is_beir else line.split()
            if len(fields) != (3 if is_beir else 4) or not all(fields):
                expected = (
                    "query id, document id, grade, tab-separated" if is_beir else "query id, 0, document id, grade"
                )
                faults.add(number, None, shorten(line), expected, "mend the line, or give BEIR files their header")
                continue
            query_id, document_id = fields[0], fields[-2]
            value = faults.number(number, "score", fields[-1])
            if value is None:
                continue
            if given.setdefault((query_id, document_id), value) != value:
                found = f"{value:g} where another line has {given[query_id, document_id]:g} for the same pair"
                faults.add(number, "score", found, "one grade per pair", "keep one of the two lines")
                continue
            query = self.query_text(number, "query-id", query_id, faults)
            document = self.document_text(number, "corpus-id", document_id, faults)
            if query is None or document is None:
                continue
            grade, status, detail = placed(value, self.scale)
            yield Judgement(
                query_id, document_id, self.scale, query, document, grade, status,
                judge=file.stem, task=self.task, text=f"{value:g}", detail=detail, row=number,
            )  # fmt: skip


class BeirFolder(TrecFiles):
    """A folder with `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`; one split is read, the folder is the task.

    BEIR's own copies are often binary where the original is graded (nfcorpus): state the scale of the copy.

    Args:
        path: the folder.
        scale: of the grades.
        split: name of the qrels file; may be None where there is one only.

    Raises:
        InputError: a file is missing, no scale is stated, or there are several splits and none is named.
    """

    name = "beir"
    file_format = "folder in the BEIR layout: corpus.jsonl, queries.jsonl, qrels/<split>.tsv"
    citation = "Thakur et al. 2021, BEIR, arXiv:2104.08663"

    def __init__(self, path: str | Path, scale: GradeScale | None, split: str | None = None) -> None:
        folder = Path(path)
        qrels = split_file(folder, split)
        texts = {name: _one_of(folder, name) for name in ("queries", "corpus")}
        super().__init__(qrels, scale, texts["queries"], [texts["corpus"]])
        self.task = folder.resolve().name
        self.split = qrels.stem

    def inputs(self) -> dict[str, Path]:
        """The three files, by their place in the folder."""
        folder = self.path.parent.parent
        return {str(file.relative_to(folder)): file for file in (*self.files, *self.corpus, *self.query_files)}


def split_file(folder: Path, split: str | None) -> Path:
    """The qrels file of a split.

    Raises:
        InputError: no such folder or split, or several and none is named.
    """
    available = {file.stem: file for file in sorted((folder / "qrels").glob("*.tsv"))}
    if not available:
        found = "no such folder" if not folder.exists() else "a file" if folder.is_file() else "a folder without qrels"
        raise InputError(
            f"{folder}: got {found}; expected corpus.jsonl, queries.jsonl and qrels/<split>.tsv; fix: check the path"
        )
    if split is None and len(available) > 1:
        raise InputError(
            f"{folder / 'qrels'}: got {len(available)} splits; expected one to be named; fix: --qrels and one of "
            f"{', '.join(available)}"
        )
    name = split or next(iter(available))
    if name not in available:
        raise InputError(
            f"{folder / 'qrels'}: got split {name!r}; expected one of {', '.join(available)}; "
            f"fix: {did_you_mean(name, available)}"
        )
    return available[name]


def _one_of(folder: Path, name: str) -> Path:
    """`<name>.jsonl` in a folder, or its compressed form."""
    for suffix in (".jsonl", ".jsonl.gz", ".parquet"):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    raise InputError(f"{folder}: got no {name}.jsonl; expected it beside qrels; fix: add it")
