"""The comparison of an exported graph with the model in torch: embeddings, ranking and speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from bixse.encoders.encode import by_length, encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.evaluation.evaluate import evaluate_task
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import paired_difference
from bixse.evaluation.systems import EncoderSystem

if TYPE_CHECKING:
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.progress import ProgressBars
    from bixse.relevance import Kind
    from bixse.results import Difference
    from bixse.search.tasks import Task

TextsByKind: TypeAlias = "dict[Kind, list[str]]"
TEXTS = 128
"""Queries, and documents, that both embed."""
MOST_READ = 20_000
"""Documents of a collection among which they are chosen."""
ROUNDS = 5


def of_all_lengths(texts: Sequence[str]) -> list[str]:
    """Return distinct texts from the shortest to the longest one, mixed, so that batches have padding."""
    distinct = list(dict.fromkeys(text for text in texts if text.strip()))
    evenly = np.unique(np.linspace(0, len(distinct) - 1, TEXTS).astype(int))
    return [distinct[row] for row in np.random.default_rng(0).permutation(by_length(distinct)[evenly])]


def disagreement(model: RelevanceModel, exported: RelevanceModel, texts: TextsByKind) -> dict[str, float]:
    """Return the largest 1 - cosine between the graph's and torch's embeddings, per batch size and at full length.

    The graph's embedding counts as it is: if its length is not 1, it disagrees.
    """
    full = "a " * (model.max_seq_length or 512)
    longest: TextsByKind = {"document": [full, full]}
    largest = {}
    for name, batch, of_kind in (("batches of 1", 1, texts), ("batches of 32", 32, texts), ("full length", 2, longest)):
        cosines = []
        for kind, some in of_kind.items():
            reference, prompt = encode_texts(model, some, kind, "float32"), prompt_for(exported, kind)
            for start in range(0, len(some), batch):
                rows = slice(start, start + batch)
                with torch.no_grad():
                    embeddings = exported(exported.preprocess(some[rows], prompt=prompt))["sentence_embedding"]
                cosines.append((embeddings.numpy() * reference[rows]).sum(axis=1))
        largest[name] = float(np.abs(1 - np.concatenate(cosines)).max())
    return largest


def seconds(model: RelevanceModel, exported: RelevanceModel, texts: TextsByKind) -> dict[str, tuple[float, float]]:
    """Return the median seconds of torch and of the graph, for all documents together and per query."""
    measured = {}
    work: list[tuple[str, Kind, list[list[str]]]] = [
        ("all documents", "document", [texts["document"]]),
        ("one query", "query", [[query] for query in texts["query"][:8]]),
    ]
    for name, kind, parts in work:
        times = np.zeros((1 + ROUNDS, 2))
        for round_times in times:
            for column, encoder in enumerate((model, exported)):  # in turn: other work on the machine slows both
                started = time.perf_counter()
                for part in parts:
                    encode_texts(encoder, part, kind, "float32")
                round_times[column] = (time.perf_counter() - started) / len(parts)
        of_torch, of_graph = np.median(times[1:], axis=0).tolist()  # the first round reserves memory
        measured[name] = (of_torch, of_graph)
    return measured


def ranking_difference(
    model: RelevanceModel, exported: RelevanceModel, task: Task, progress: ProgressBars | None = None
) -> Difference:
    """Return nDCG@10 of the graph minus that of torch, paired by query."""
    systems = [EncoderSystem(encoder, cache="none") for encoder in (exported, model)]
    graph, reference = (
        evaluate_task(system, task, progress=progress)[task.name].by_query[PRIMARY_METRIC] for system in systems
    )
    return paired_difference(graph, reference)
