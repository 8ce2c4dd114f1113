"""The checks before training (pairs that teach nothing, leaks, texts that are cut) and after it (divergence)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.lengths import KINDS, sampled
from bixse.errors import DivergedError, InputError, StorageError
from bixse.progress import size
from bixse.relevance import normal_form
from bixse.training.config import CHECKPOINT_FOLDER
from bixse.training.dev_evaluation import EvalCorpus, dev_figures, sets_of
from bixse.training.distributed import raise_together
from bixse.training.loop.batches import prompts_of
from bixse.training.loop.trainer import FIX

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import Pairs
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.losses.base import GradedLoss
    from bixse.relevance import Kind
    from bixse.training.loop.trainer import GradedTrainer

TEXTS_COMPARED = 32
"""Distinct queries, and distinct documents, whose embeddings are compared."""
SMALLEST_SPREAD = 1e-3
"""Embeddings have collapsed if no cosine is further from 1 than this, and some cosine was before."""
LOSS_FACTOR = 10.0
"""The loss has exploded if its last value exceeds its first value times this factor."""
FEWEST_LOSSES = 3
"""Minimum number of log entries whose median is the first or last loss: a tenth of all, at least 3, at most half."""


@raise_together()
def check_space(out: Path, trainer: GradedTrainer) -> None:
    """Refuse, by a StorageError, a disk too small for the model and its checkpoints, or for the tokens of the texts."""
    parameters = list(trainer.loss.model.parameters())
    weights = sum(part.numel() * part.element_size() for part in parameters)
    moments = 8 * sum(part.numel() for part in parameters if part.requires_grad)  # two float32 numbers of Adam
    written = sum(path.stat().st_size for path in (out / CHECKPOINT_FOLDER).rglob("*") if path.is_file())
    # the third checkpoint is written before the first is deleted
    needed = {out: max(0, weights + 3 * (weights + moments) - written)}
    if trainer.token_cache is not None:
        needed[trainer.token_cache] = 0
        for kind in KINDS.values():
            rows, number = sampled(trainer.pairs.distinct(kind).tolist())
            letters = sum(map(len, trainer.pairs.texts(kind, rows)))
            needed[trainer.token_cache] += letters * number // len(rows)  # a token has four letters, and four bytes
    disks: dict[int, list[tuple[Path, int]]] = {}
    for folder, number in needed.items():
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        disks.setdefault(existing.stat().st_dev, []).append((existing, number))
    for entries in disks.values():
        free, wanted = shutil.disk_usage(entries[0][0]).free, sum(number for _, number in entries)
        if free < wanted:
            raise StorageError(
                f"{out}: got {size(free)} of free space in {entries[0][0]}; expected {size(wanted)} for checkpoints, "
                "model and tokens; fix: free disk space, or choose another --out folder or BIXSE_CACHE_DIR"
            )


def check_pairs(where: object, word: str, loss: GradedLoss, pairs: Pairs, documents_per_query: int | None) -> list[str]:
    """Refuse pairs of a file `where` that teach the loss nothing; warn if only some queries can be used."""
    groups = pairs.groups()
    relevance = np.split(pairs.relevance[groups.order], groups.offsets[1:-1])
    # the documents of a query that teach most: its best one and its least relevant ones
    ascending = (sorted(grades.tolist()) for grades in relevance)
    usable = sum(loss.is_informative([*z[-1:], *z[:-1]][:documents_per_query]) for z in ascending)
    if usable == 0:
        raise InputError(
            f"{where}: got {len(groups)} queries of which loss {word!r} can use none; expected queries with "
            f"{loss.requires}; fix: check the relevance column and documents_per_query, or choose another loss"
        )
    if usable < len(groups):
        return [
            f"{len(groups) - usable} of {len(groups)} queries lack {loss.requires}: loss {word!r} learns "
            f"{loss.learned_otherwise} from them"
        ]
    return []


def check_held_out(eval_corpora: Sequence[EvalCorpus], queries: Iterable[str], allowed: bool) -> list[str]:
    """Return the warnings of dev and guard, and refuse their queries as `check_not_trained_on` does."""
    named = {f"{part.role} {part.name}": part.queries for _, part in sets_of(eval_corpora)}
    of_ids = [f"{each.name}/{line}" for each in eval_corpora for line in each.warnings]
    return of_ids + check_not_trained_on(named, queries, allowed)


def check_not_trained_on(held_out: Mapping[str, Mapping[str, str]], queries: Iterable[str], allowed: bool) -> list[str]:
    """Refuse held-out queries among the training queries, or return warnings where they are allowed.

    Texts are compared by their `normal_form`, as in `bixse convert --dedup`.
    """
    forms = {normal_form(text) for texts in held_out.values() for text in texts.values()}
    trained = forms.intersection(map(normal_form, queries)) if forms else forms
    leaks = []
    for name, texts in held_out.items():
        shared = [query for query, text in texts.items() if normal_form(text) in trained]
        if shared:
            leaks.append(
                f"{name}: got {len(shared)} of {len(texts)} queries that are training queries too (such as "
                f"{shared[0]!r})"
            )
    if leaks and not allowed:
        raise InputError(
            f"{'; '.join(leaks)}; expected none, as a model looks better on its training queries; fix: take them "
            "out of the pairs, or allow them (`allow_shared_queries: true`, --allow-shared-queries)"
        )
    return leaks


def check_max_length(model: RelevanceModel) -> list[str]:
    """Warn of a limit below the model's own: base and saved model then read less than they could."""
    native, limit = model.native_max_length, model.max_seq_length
    if native is None or limit is None or limit >= native:
        return []
    return [
        f"max_length: got {limit}; expected {native}, the limit of the model itself: with a lower limit, the saved "
        f"model and the base model of these figures read less; fix: set `train_max_length: {limit}` to train as fast, "
        "and leave max_length out"
    ]


def prompts_before(model: SentenceTransformer, pairs: Pairs) -> dict[Kind, list[str]]:
    """Return every prompt that may precede a query or a document in training."""
    prompts = prompts_of(model, None, pairs)
    if not isinstance(prompts, Instructions):
        return {kind: [prompts.get(kind, "")] for kind in KINDS.values()}
    choices = [(task, n) for task in pairs.tasks[0] for n in range(prompts.choices(task))]
    return {kind: [prompts.prompt(task, kind, n) for task, n in choices] for kind in KINDS.values()}


def embedding_spreads(model: SentenceTransformer, pairs: Pairs) -> dict[Kind, float]:
    """Return 1 minus the smallest cosine between distinct texts of a kind, without prompts."""
    spreads: dict[Kind, float] = {}
    for kind in KINDS.values():
        rows = pairs.distinct(kind)
        texts = pairs.texts(kind, rows[:: -(-len(rows) // TEXTS_COMPARED)])
        # rounding to bf16 makes equal embeddings differ by more than `SMALLEST_SPREAD`
        embeddings = encode_texts(model, texts, kind, "float32", prompt="")
        spreads[kind] = 1 - float((embeddings @ embeddings.T).min())
    return spreads


def check_learned(
    before: Mapping[Kind, float], after: Mapping[Kind, float], losses: Sequence[float], chosen_on_dev: bool
) -> None:
    """Refuse a model that training has made useless."""
    # a loss says little by itself: for most objectives the loss of a collapsed encoder is near its start
    for kind, spread in after.items():
        if spread < SMALLEST_SPREAD <= before[kind]:
            raise DivergedError(
                f"training: got nearly the same embedding for every {kind}; expected embeddings that differ, as before "
                f"training; the run has diverged; fix: {FIX}"
            ).of_all_processes()
    if not losses or chosen_on_dev:  # an exploded loss matters only if dev chose no checkpoint
        return
    compared = min(max(FEWEST_LOSSES, len(losses) // 10), max(1, len(losses) // 2))
    first, last = median(losses[:compared]), median(losses[-compared:])
    if last > LOSS_FACTOR * first > 0:
        raise DivergedError(
            f"training: got a loss of {last:.3g} at the end and {first:.3g} at first; expected it to fall; the run has "
            f"diverged; fix: {FIX}"
        ).of_all_processes()


def warn_of_no_gain(history: Sequence[Mapping[str, Any]], best: int | None) -> list[str]:
    """Return a warning if the best checkpoint is worse than the untrained encoder."""
    figures = dev_figures(history)
    if best not in figures or 0 not in figures or figures[best] >= figures[0]:
        return []
    return [
        f"on dev the best checkpoint (nDCG@10 {figures[best]:.4f}) is below the untrained encoder "
        f"({figures[0]:.4f}): a lower learning_rate or more graded queries may help"
    ]
