"""E5's public training data as echo-embeddings gave them out: a file a task, a query with a positive and a negative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.sources.binary_labels import BINARY, labelled
from bixse.data.sources.judgement_files import Judgement, JudgementSource
from bixse.data.sources.reading import RowErrors, json_rows, stem_of
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TASKS = {
    "allnli": "nli",
    "dureader": "dureader",
    "eli5_question_answer": "eli5",
    "fever": "fever",
    "hotpot_qa": "hotpotqa",
    "miracl": "miracl",
    "mrtydi": "mrtydi",
    "msmarco_passage": "msmarco_passage",
    "msmarco_document": "msmarco_document",
    "nq": "nq",
    "quora_duplicates": "quora_duplicates",
    "squad": "squad",
    "t2ranking": "t2ranking",
    "trivia_qa": "triviaqa",
}
"""Name of a file -> its task in the BiXSE paper's table of instructions."""
SHARES = {"eli5": 0.1, "msmarco_passage": 0.5, "msmarco_document": 0.2, "quora_duplicates": 0.1, "t2ranking": 0.5}
"""Task -> share of its queries in an epoch."""
_PARTS = ("_split1", "_split2")


class E5Files(JudgementSource):
    r"""`echo-data/`: `allnli.jsonl`, `msmarco_passage.jsonl` and so on, or one of them; rows are binary labels.

    The tasks are those of the paper's table of instructions, where NLI and Quora are symmetric with two instructions
    each. Their files also come in halves (`_split1`, `_split2`), one for each instruction: both halves are one task
    here, since training chooses an instruction for each batch. Where the whole file lies beside its halves, the whole
    is read and the halves are left aside. The shares of the tasks in an epoch are those of the E5-Mistral recipe.

    Example:
        >>> import json, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "hotpot_qa.jsonl"
        >>> _ = path.write_text(json.dumps({"query": "copy a folder", "positive": "copytree", "negative": "walk"}))
        >>> [(row.document, row.relevance, row.task) for row in E5Files(path).rows()]
        [('copytree', 1.0, 'hotpotqa'), ('walk', 0.0, 'hotpotqa')]
    """

    name = "e5"
    file_format = "JSONL of echo-embeddings' training data: query, positive, negative"
    citation = "Springer et al. 2024, arXiv:2402.15449, after Wang et al. 2024 (E5-Mistral), arXiv:2401.00368"
    licence = "that of each part (MS MARCO: non-commercial research)"
    suffixes = (".jsonl",)
    task_shares = SHARES
    instructions = "paper"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path, BINARY)
        names = {stem_of(file) for file in self.files}
        halves = [file for file in self.files if _whole(file) != stem_of(file) and _whole(file) in names]
        self.files = [file for file in self.files if file not in halves]
        self._halves = [file.name for file in halves]
        if not any(_whole(file) in TASKS for file in self.files):
            raise InputError(
                f"{path}: got {', '.join(file.name for file in self.files[:3])}; expected files of E5's data "
                f"({', '.join(f'{name}.jsonl' for name in TASKS)}); fix: check the path, or give other triplets to "
                "the source sentence-transformers"
            )

    def warnings(self) -> list[str]:
        """Also which files were left aside, and which belong to no task of E5."""
        found = super().warnings()
        if self._halves:
            found.append(f"{', '.join(self._halves)}: left aside, as the whole file lies beside its halves")
        if other := [file.name for file in self.files if _whole(file) not in TASKS]:
            found.append(f"{', '.join(other)}: no file of E5; its name is the task, which has the default instruction")
        return found

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        task = TASKS.get(_whole(file), _whole(file))
        for number, row in json_rows(file, faults):
            texts = [faults.text(number, key, row) for key in ("query", "positive", "negative")]
            query, positive, negative = texts
            if query is not None and positive is not None and negative is not None:
                yield labelled(query, positive, True, number, task=task)
                yield labelled(query, negative, False, number, task=task)


def _whole(file: Path) -> str:
    """The name of a file without the part it is."""
    name = stem_of(file)
    return next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), name)
