"""Batches of graded pairs: query groups, shuffled by seed and epoch alone, documents deduplicated."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch.utils.data import Dataset, Sampler

from bixse.data.graded_pairs import GradedPairs, QueryGroup
from bixse.errors import InputError
from bixse.losses.targets import GradedTargets

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from bixse.losses.base import InBatch

EpochIndex: TypeAlias = tuple[int, int]
"""(epoch, group): which documents of a group are drawn depends on both and on the seed alone."""


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
                f"documents_per_query: got {documents_per_query}; expected at least 1; to mend: leave it out for all"
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


class GroupBatchSampler(Sampler[list[EpochIndex]]):
    """Batches of query groups, every group once an epoch; the order is a function of (seed, epoch).

    Args:
        groups: number of groups, at least 1.
        batch_size: queries a batch, at least 1; the last batch may be smaller.
        seed: of the order.
    """

    def __init__(self, groups: int, batch_size: int, seed: int = 0) -> None:
        self.groups = groups
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer at the start of each epoch, also after a resume."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-self.groups // self.batch_size)

    def __iter__(self) -> Iterator[list[EpochIndex]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(self.groups)
        for start in range(0, self.groups, self.batch_size):
            yield [(self.epoch, int(number)) for number in order[start : start + self.batch_size]]


class GradedCollator:
    """Query groups to what the trainer feeds a loss: two tokenised columns and the table of known relevance.

    Args:
        preprocess: tokenises texts: `model.preprocess`.
        pairs: all training pairs; their grades fill the in-batch cells when `in_batch` is "known".
        in_batch: see `bixse.losses.GradedLoss`.
        prompts: prompt of the columns "query" and "document".

    A batch of B groups holds `query_*` (B rows), `document_*` (N distinct documents) and `label` (M, 3).

    Texts count, not ids: one text under two ids is one column, and what is known of it under one id holds under all.
    Grades of one (query text, document text) that differ between ids are averaged over the training pairs.
    """

    def __init__(
        self,
        preprocess: Callable[..., Mapping[str, Any]],
        pairs: GradedPairs,
        in_batch: InBatch = "known",
        prompts: Mapping[str, str] | None = None,
    ) -> None:
        self.preprocess = preprocess
        self.in_batch: InBatch = in_batch
        self.prompts = dict(prompts or {})
        grades: dict[str, dict[str, list[float]]] = {}
        for group in pairs.groups():
            known = grades.setdefault(group.query, {})
            for document, relevance in zip(group.documents, group.relevance, strict=True):
                known.setdefault(document, []).append(relevance)
        self.graded: dict[Hashable, dict[Hashable, float]] = {
            query: {document: sum(given) / len(given) for document, given in known.items()}
            for query, known in grades.items()
        }
        self.valid_label_columns = ["label"]

    def __call__(self, groups: Sequence[QueryGroup]) -> dict[str, Any]:
        """One batch of B groups."""
        queries = [group.query for group in groups]
        documents = list(dict.fromkeys(document for group in groups for document in group.documents))
        column_of = {document: column for column, document in enumerate(documents)}
        targets = GradedTargets.from_ids(
            queries,
            documents,
            self.graded,
            own=[[column_of[document] for document in group.documents] for group in groups],
            in_batch=self.in_batch,
        )
        batch: dict[str, Any] = {"label": targets.table()}
        for name, column in (("query", queries), ("document", documents)):
            features = self.preprocess(column, prompt=self.prompts.get(name), task=name)
            batch.update({f"{name}_{key}": value for key, value in features.items()})  # prompt_length is no tensor
        return batch
