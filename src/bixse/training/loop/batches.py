"""Batches of graded pairs: documents drawn and deduplicated, known grades filled in, a process's own part tokenised."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from bixse.data.graded_pairs import GradedPairs, QueryGroup
from bixse.data.task_instructions import Instructions
from bixse.errors import InputError
from bixse.losses.targets import GradedTargets, mean_grades

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bixse.encoders.prompts import Kind
    from bixse.losses.base import InBatchLabels
    from bixse.training.loop.batch_plan import EpochIndex

COUNTS = ("queries", "pairs", "duplicate_documents", "filled_entries", "masked_entries")
"""What a batch counts of itself, under the key `counts`."""


class GroupDataset(Dataset[QueryGroup]):
    """The query groups of a table; each access draws at most `documents_per_query` documents.

    The document with the highest relevance always stays; the others are drawn anew each epoch. The draw is a
    function of (seed, epoch, group), so that a resumed run sees the same batches.

    Args:
        pairs: the graded pairs.
        documents_per_query: K at most; None takes every document.
        seed: of the draw.

    Raises:
        InputError: documents_per_query below 1.
    """

    def __init__(self, pairs: GradedPairs, documents_per_query: int | None = None, seed: int = 0) -> None:
        if documents_per_query is not None and documents_per_query < 1:
            raise InputError(
                f"documents_per_query: got {documents_per_query}; expected at least 1; fix: leave it out for all"
            )
        self.groups = pairs.groups()
        self.documents_per_query = documents_per_query
        self.seed = seed

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: EpochIndex) -> QueryGroup:
        epoch, number = index
        group = self.groups[number]
        limit = self.documents_per_query
        if limit is None or len(group.documents) <= limit:
            return group
        best = int(np.argmax(group.relevance))
        others = [i for i in range(len(group.documents)) if i != best]
        drawn = np.random.default_rng((self.seed, epoch, number)).permutation(others)[: limit - 1]
        chosen = [best, *sorted(int(i) for i in drawn)]
        return replace(
            group,
            document_ids=[group.document_ids[i] for i in chosen],
            documents=[group.documents[i] for i in chosen],
            relevance=[group.relevance[i] for i in chosen],
        )


class GradedCollator:
    """Query groups to what the trainer feeds a loss: two tokenised columns and the table of known relevance.

    Args:
        preprocess: tokenises texts: `model.preprocess`.
        pairs: all training pairs; their grades fill the in-batch entries when `in_batch_labels` is "known".
        in_batch_labels: see `bixse.losses.GradedLoss`.
        prompts: prompt of the columns "query" and "document", or a table of task instructions. Of several
            instructions of a task one is chosen by the queries of the batch, the same in every process.
        process: number of this process, from 0.
        processes: W, how many share each batch.

    A batch of B groups holds `query_*` (B rows), `document_*` (N distinct documents), `label` (M, 3) and `counts`.
    Of several processes each collates the same batch and tokenises its part: every W-th query, and documents dealt out
    by length. `document_order` (N,) then says where each column stands among the gathered documents.

    Texts count, not ids: one text under two ids is one column, and what is known of it under one id holds under all.
    Grades of one (query text, document text) that differ between ids are averaged over the training pairs of a task;
    what one task knows says nothing about another.
    """

    def __init__(
        self,
        preprocess: Callable[..., Mapping[str, Any]],
        pairs: GradedPairs,
        in_batch_labels: InBatchLabels = "known",
        prompts: Mapping[str, str] | Instructions | None = None,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        self.preprocess = preprocess
        self.in_batch_labels: InBatchLabels = in_batch_labels
        self.prompts = prompts if isinstance(prompts, Instructions) else dict(prompts or {})
        self.process = process
        self.processes = processes
        self.graded = mean_grades(
            ((group.task, group.query), document, relevance)
            for group in pairs.groups()
            for document, relevance in zip(group.documents, group.relevance, strict=True)
        )
        self.valid_label_columns = ["label"]

    def __call__(self, groups: Sequence[QueryGroup]) -> dict[str, Any]:
        """One batch of B groups, or this process's part of it."""
        documents = list(dict.fromkeys(document for group in groups for document in group.documents))
        column_of = {document: column for column, document in enumerate(documents)}
        own = groups[self.process :: self.processes]
        own_columns = [list(dict.fromkeys(column_of[document] for document in group.documents)) for group in own]
        targets = GradedTargets.from_ids(
            [(group.task, group.query) for group in own], documents, self.graded, own_columns, self.in_batch_labels
        )
        counts = (
            len(own),
            sum(len(group.documents) for group in own),
            sum(len(group.documents) for group in groups) - len(documents) if self.process == 0 else 0,
            len(targets.relevance) - sum(map(len, own_columns)),
            int(targets.relevance.isnan().sum()),
        )
        batch: dict[str, Any] = {"label": targets.table(), "counts": torch.tensor(counts)}
        shares = _deal([len(document) for document in documents], self.processes)
        texts: dict[Kind, list[str]] = {
            "query": [group.query for group in own],
            "document": [documents[column] for column in shares[self.process]],
        }
        for kind, column in texts.items():
            for key, value in self._features(column, self._prompt(groups, kind), kind).items():
                batch[f"{kind}_{key}"] = value  # prompt_length is no tensor
        if self.processes > 1:
            batch["document_order"] = _order(shares)
        return batch

    def _prompt(self, groups: Sequence[QueryGroup], kind: Kind) -> str | None:
        if not isinstance(self.prompts, Instructions):
            return self.prompts.get(kind)
        task = groups[0].task
        choice = zlib.crc32("\n".join(group.query_id for group in groups).encode()) % self.prompts.choices(task)
        return self.prompts.prompt(task, kind, choice) or None

    def _features(self, texts: list[str], prompt: str | None, kind: Kind) -> Mapping[str, Any]:
        if not texts:  # fewer texts than processes
            nothing = torch.zeros(0, 1, dtype=torch.long)
            return {"input_ids": nothing, "attention_mask": nothing}
        return self.preprocess(texts, prompt=prompt, task=kind)


def _deal(lengths: Sequence[int], processes: int) -> list[list[int]]:
    """Columns of each process: dealt out from the longest text on, so that all have as much to encode."""
    if processes == 1:
        return [list(range(len(lengths)))]
    by_length = sorted(range(len(lengths)), key=lambda column: -lengths[column])
    return [by_length[process::processes] for process in range(processes)]


def _order(shares: Sequence[Sequence[int]]) -> torch.Tensor:
    """(N,) place of each column among the gathered documents, where every process has as many rows as the first."""
    order = torch.zeros(sum(map(len, shares)), dtype=torch.long)
    for process, columns in enumerate(shares):
        for row, column in enumerate(columns):
            order[column] = process * len(shares[0]) + row
    return order
