"""The batches of graded pairs: one task per batch, documents drawn, known grades filled in, texts tokenised."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from bixse.data.columns import first_rows, numbered
from bixse.data.task_instructions import Instructions
from bixse.encoders.instructions import prompt_for
from bixse.encoders.lengths import KINDS
from bixse.errors import InputError, check_known
from bixse.losses.targets import GradedTargets
from bixse.progress import Progress
from bixse.training.loop.tokens import Tokenisation, Tokens

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import Pairs
    from bixse.losses.catalogue import InBatchLabels
    from bixse.relevance import Kind

EpochIndex: TypeAlias = tuple[int, int]
"""(epoch, group): the drawn documents of a group depend on both and on the seed alone."""
COUNTS = ("queries", "pairs", "duplicate_documents", "filled_entries", "masked_entries", "tokens")
"""Counts of a batch in one process, under its key `counts`; tokens without padding."""
BATCHES_AHEAD = 3
"""Batches that a thread makes while the last ones are trained on."""


class BatchPlan(Sampler[list[EpochIndex]]):
    """The batches of query groups of one task each; a function of (seed, epoch), the same on every process.

    All processes read the same plan and each takes its part of every batch. So tasks agree at every step, and the
    result does not depend on the number of processes. A task's last batch may be smaller. `shares` maps a task to the
    share of its queries per epoch, in (0, 1], drawn anew each epoch.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int = 0, shares: Mapping[str, float] | None = None) -> None:
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        tasks = pairs.groups().tasks
        self.members: dict[str | None, NDArray[np.int64]] = {
            name: np.flatnonzero(tasks == number) for number, name in enumerate(pairs.tasks[0])
        }
        self.shares = dict(shares or {})
        known = [task for task in self.members if task is not None]
        for task, share in self.shares.items():
            check_known("task_shares", task, known, "check the column `task` of the pairs")
            if not 0 < share <= 1:
                raise InputError(
                    f"task_shares: got {share} for {task!r}; expected one in (0, 1]; fix: leave it out for 1"
                )

    def queries_per_epoch(self, task: str | None) -> int:
        """Return the number of a task's queries per epoch, its share rounded, at least 1."""
        return max(1, round(len(self.members[task]) * self.shares.get(task or "", 1.0)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; the trainer calls this at the start of each epoch, also after a resume."""
        self.epoch = epoch

    def of_epoch(self, epoch: int) -> BatchPlan:
        plan = copy.copy(self)
        plan.set_epoch(epoch)
        return plan

    def __len__(self) -> int:
        return sum(-(-self.queries_per_epoch(task) // self.batch_size) for task in self.members)

    def __iter__(self) -> Iterator[list[EpochIndex]]:
        generator = np.random.default_rng((self.seed, self.epoch))
        batches: list[NDArray[np.int64]] = []
        for task, groups in self.members.items():
            drawn = groups[generator.permutation(len(groups))][: self.queries_per_epoch(task)]
            batches += [drawn[start : start + self.batch_size] for start in range(0, len(drawn), self.batch_size)]
        if len(self.members) > 1:  # otherwise all batches of a task would follow one another
            batches = [batches[index] for index in generator.permutation(len(batches))]
        for batch in batches:
            yield [(self.epoch, int(number)) for number in batch]


class DrawnGroup(NamedTuple):
    """A query, by the number of its group, and its documents in a batch."""

    number: int
    rows: NDArray[np.intp]
    """(K,) rows of the table."""


class GroupDataset(Dataset[DrawnGroup]):
    """The query groups of a table; each access draws at most `documents_per_query` documents.

    The document with the highest relevance always stays; the others are drawn anew each epoch. The draw is a function
    of (seed, epoch, group), so that a resumed run sees the same batches.
    """

    def __init__(self, pairs: Pairs, documents_per_query: int | None = None, seed: int = 0) -> None:
        if documents_per_query is not None and documents_per_query < 1:
            raise InputError(
                f"documents_per_query: got {documents_per_query}; expected at least 1; fix: leave it out for all"
            )
        self.documents_per_query = documents_per_query
        self.seed = seed
        self.pairs, self.groups = pairs, pairs.groups()

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: EpochIndex) -> DrawnGroup:
        epoch, number = index
        rows = self.groups.rows(number)
        limit = self.documents_per_query
        if limit is None or len(rows) <= limit:
            return DrawnGroup(number, rows)
        best = int(np.argmax(self.pairs.relevance[rows]))
        others = np.delete(np.arange(len(rows)), best)
        drawn = np.random.default_rng((self.seed, epoch, number)).permutation(others)[: limit - 1]
        return DrawnGroup(number, rows[[best, *sorted(drawn)]])


class KnownGrades:
    """The relevance of every (query text, document text) of a task, as sorted arrays.

    Different grades of one pair are averaged. The grades of one task say nothing about another task.
    """

    def __init__(self, pairs: Pairs) -> None:
        groups = pairs.groups()
        texts = pairs.numbers("query")[groups.first_rows].astype(np.int64)
        self.query_of_group: NDArray[np.int32] = numbered(texts * len(pairs.tasks[0]) + groups.tasks)
        """(G,) query number of each group; groups of one task and query text share a number."""
        queries = np.repeat(self.query_of_group, np.diff(groups.offsets)).astype(np.int64)
        documents = pairs.numbers("document")[groups.order]
        entries = numbered(queries * (int(documents.max(initial=0)) + 1) + documents)
        first = first_rows(entries)
        means = np.bincount(entries, weights=pairs.relevance[groups.order]) / np.bincount(entries)
        by_query = np.argsort(queries[first], kind="stable")
        self.documents: NDArray[np.int32] = documents[first][by_query]
        """(E,) document of each entry, grouped by query in the given order."""
        self.relevance: NDArray[np.float32] = means[by_query].astype(np.float32)
        """(E,) mean relevance of each entry."""
        numbers = np.bincount(queries[first], minlength=int(queries.max(initial=-1)) + 1)
        self.offsets: NDArray[np.int64] = np.concatenate([[0], np.cumsum(numbers)]).astype(np.int64)
        """(Q + 1,) first entry of each query, and the end of the last."""

    def of(self, groups: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (P,) positions in `groups` and (P,) entries: all known entries of these groups' queries."""
        queries = self.query_of_group[np.asarray(groups, dtype=np.int64)]
        numbers = self.offsets[queries + 1] - self.offsets[queries]
        rows = np.repeat(np.arange(len(queries)), numbers)
        before = np.repeat(np.cumsum(numbers) - numbers, numbers)
        return rows, np.repeat(self.offsets[queries], numbers) + np.arange(len(rows)) - before


class GradedCollator:
    """Collate drawn groups into the inputs of a loss: two tokenised columns and the known relevance.

    The queries of the batch choose one of a task's instructions, the same in every process.

    A batch of B groups holds `query_*` (B rows), `document_*` (N distinct documents), `label` (the tensors of
    `GradedTargets`), `counts`, and in `numbers` the numbers of all its groups and documents. Each of several processes
    collates the same batch and tokenises its part: every W-th query, and documents dealt out by length.
    `document_order` (N,) is then the position of each column among the gathered documents.

    Texts count, not ids: one text under two ids is one column, and its grades under one id are valid under all
    (`KnownGrades`).
    """

    def __init__(
        self,
        preprocess: Callable[..., Mapping[str, Any]] | Tokenisation,
        pairs: Pairs,
        in_batch_labels: InBatchLabels = "known",
        prompts: Mapping[str, str] | Instructions | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.preprocess = preprocess
        self.in_batch_labels: InBatchLabels = in_batch_labels
        self.prompts = prompts if isinstance(prompts, Instructions) else dict(prompts or {})
        self.rank = rank
        self.world_size = world_size
        self.valid_label_columns = ["label"]
        self.pairs, self.known = pairs, KnownGrades(pairs)
        self.tokens: dict[tuple[Kind, str | None], Tokens | None] = {}
        """Tokens of each kind and prompt, after `tokenise`; None if the model must tokenise every batch."""

    def prompted(self, rows: NDArray[np.intp] | None = None) -> dict[tuple[Kind, str | None], NDArray[np.int64]]:
        """Return the numbers of the texts in some rows of the table, or in all, per kind and prompt before them."""
        tasks = self.pairs.tasks[1] if rows is None else self.pairs.tasks[1][rows]
        parts: dict[tuple[Kind, str | None], list[NDArray[np.int64]]] = {}
        for kind in KINDS.values():
            numbers = self.pairs.numbers(kind)
            numbers = numbers if rows is None else numbers[rows]
            if not isinstance(self.prompts, Instructions):
                parts[kind, self.prompts.get(kind)] = [np.unique(numbers)]
                continue
            for task, name in enumerate(self.pairs.tasks[0]):
                of_task = np.unique(numbers[tasks == task])
                for choice in range(self.prompts.choices(name) if len(of_task) else 0):
                    parts.setdefault((kind, self.prompts.prompt(name, kind, choice) or None), []).append(of_task)
        return {key: np.unique(np.concatenate(numbers)).astype(np.int64) for key, numbers in parts.items()}

    def tokenise(
        self, rows: NDArray[np.intp] | None = None, cache: Path | None = None, title: str | None = None
    ) -> None:
        """Tokenise the texts in some rows of the table, or in all, with progress under `title`."""
        if not isinstance(self.preprocess, Tokenisation):
            return
        prompted = self.prompted(rows)
        bar = Progress(title, sum(map(len, prompted.values())), "text") if title is not None else None
        self.tokens = {
            key: self.preprocess.tokens(self.pairs, *key, part, cache, bar) for key, part in prompted.items()
        }
        if bar is not None:
            bar.close()

    @property
    def is_tokenised(self) -> bool:
        """True if no batch needs the tokenizer."""
        return bool(self.tokens) and None not in self.tokens.values()

    def token_bytes(self) -> int:
        """Estimate the bytes of the tokens of all texts from those of the texts that are tokenised."""
        made: dict[Kind, list[int]] = {}
        for (kind, _), part in self.tokens.items():
            if part is not None:
                size, texts = made.get(kind, (0, 0))
                made[kind] = [size + part.nbytes, texts + len(part.numbers)]
        parts = ((len(numbers), made[kind]) for (kind, _), numbers in self.prompted().items() if kind in made)
        return sum(number * size // texts for number, (size, texts) in parts)

    def __call__(self, groups: Sequence[DrawnGroup]) -> dict[str, Any]:
        rows = np.concatenate([group.rows for group in groups])
        numbers = self.pairs.numbers("document")[rows]
        first = np.sort(np.unique(numbers, return_index=True)[1])
        mine = groups[self.rank :: self.world_size]
        targets, drawn_entries = self._targets(mine, numbers[first])
        shares = self._shares(rows[first])
        chosen: dict[Kind, NDArray[np.intp]] = {
            "query": self._first_rows(mine),
            "document": rows[first][shares[self.rank]],
        }
        batch: dict[str, Any] = {}
        for kind, part in chosen.items():
            for key, value in self._features(part, self._prompt(groups, kind), kind).items():
                batch[f"{kind}_{key}"] = value  # prompt_length is no tensor, and pooling needs it
        if self.world_size > 1:
            # the position of each column among the gathered documents, padded to the first process's rows
            order = torch.zeros(len(first), dtype=torch.long)
            for process, columns in enumerate(shares):
                order[torch.tensor(columns, dtype=torch.long)] = process * len(shares[0]) + torch.arange(len(columns))
            batch["document_order"] = order
        counts = (
            len(mine),
            sum(len(group.rows) for group in mine),
            len(rows) - len(first) if self.rank == 0 else 0,
            len(targets.relevance) - drawn_entries,
            int(targets.relevance.isnan().sum()),
            sum(int(mask.numpy().sum()) for name, mask in batch.items() if name.endswith("_attention_mask")),
        )
        entries = (
            torch.tensor([group.number for group in groups], dtype=torch.long),
            torch.from_numpy(numbers[first]).long(),
        )
        return {**batch, "label": targets.tensors(), "counts": torch.tensor(counts), "numbers": entries}

    def _targets(self, groups: Sequence[DrawnGroup], columns: NDArray[np.int32]) -> tuple[GradedTargets, int]:
        """Return the known entries of queries against (N,) documents, and the number of drawn entries."""
        if not groups:
            return GradedTargets.from_entries([], [], [], (0, len(columns))), 0
        by_number = np.argsort(columns)

        def column_of(documents: NDArray[np.int32]) -> NDArray[np.intp]:
            return by_number[np.searchsorted(columns, documents, sorter=by_number)]

        drawn_rows = np.repeat(np.arange(len(groups)), [len(group.rows) for group in groups])
        drawn_columns = column_of(self.pairs.numbers("document")[np.concatenate([group.rows for group in groups])])
        drawn_keys = drawn_rows * len(columns) + drawn_columns
        drawn_keys = drawn_keys[np.sort(np.unique(drawn_keys, return_index=True)[1])]

        rows, entries = self.known.of([group.number for group in groups])
        inside = np.isin(self.known.documents[entries], columns)
        rows, entries = rows[inside], entries[inside]
        keys = rows * len(columns) + column_of(self.known.documents[entries])
        if self.in_batch_labels == "paper":
            by_key = np.argsort(keys)
            entries = entries[by_key[np.searchsorted(keys, drawn_keys, sorter=by_key)]]
            keys = drawn_keys
        rows, indices = np.divmod(keys, len(columns))
        known = self.known.relevance[entries]  # checked when the pairs were read
        rows_of, columns_of, relevance = (torch.from_numpy(part) for part in (rows, indices, known))
        return GradedTargets(rows_of, columns_of, relevance, (len(groups), len(columns))), len(drawn_keys)

    def _first_rows(self, groups: Sequence[DrawnGroup]) -> NDArray[np.intp]:
        table = self.pairs.groups()
        return table.order[table.offsets[np.array([group.number for group in groups], dtype=np.int64)]]

    def _shares(self, rows: NDArray[np.intp]) -> list[list[int]]:
        """Return the columns of each process, dealt out from the longest text on to balance the encoding."""
        if self.world_size == 1:
            return [list(range(len(rows)))]
        lengths = [len(text) for text in self.pairs.texts("document", rows)]
        by_length = sorted(range(len(lengths)), key=lambda column: -lengths[column])
        return [by_length[rank :: self.world_size] for rank in range(self.world_size)]

    def _prompt(self, groups: Sequence[DrawnGroup], kind: Kind) -> str | None:
        if not isinstance(self.prompts, Instructions):
            return self.prompts.get(kind)
        task = self.pairs.tasks[0][self.pairs.groups().tasks[groups[0].number]]
        ids = "\n".join(self.pairs.query_ids[row] for row in self._first_rows(groups))
        choice = zlib.crc32(ids.encode()) % self.prompts.choices(task)
        return self.prompts.prompt(task, kind, choice) or None

    def _features(self, rows: NDArray[np.intp], prompt: str | None, kind: Kind) -> Mapping[str, Any]:
        """Return the features of the texts in some rows of the table."""
        if not len(rows):  # fewer texts than processes
            nothing = torch.zeros(0, 1, dtype=torch.long)
            return {"input_ids": nothing, "attention_mask": nothing}
        numbers = self.pairs.numbers(kind)
        tokens = self.tokens.get((kind, prompt))
        features = None if tokens is None else tokens.features(numbers[rows])
        return features or self.preprocess(self.pairs.texts(kind, rows), prompt=prompt, task=kind)


def prompts_of(
    model: SentenceTransformer, changes: str | dict[str, Any] | None, pairs: Pairs
) -> Mapping[str, str] | Instructions:
    """Return the model's table of task instructions, or else its prompts updated with `changes`, a text for both."""
    table: Instructions | None = getattr(model, "instructions", None)
    if table is not None:
        table.check_tasks("instructions", pairs.tasks[0])
        return table
    prompts = {"query": prompt_for(model, "query"), "document": prompt_for(model, "document")}
    prompts |= dict.fromkeys(prompts, changes) if isinstance(changes, str) else changes or {}
    return {name: text for name, text in prompts.items() if isinstance(text, str)}
