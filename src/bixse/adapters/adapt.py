"""Learn a low-rank map of queries from graded pairs and stored vectors, and keep it only if it is better on dev."""

from __future__ import annotations

import hashlib
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor
from torch.nn.functional import normalize

from bixse.data.joined import Unjoined, check_joined, warn_of, without_relevant
from bixse.data.run import open_run
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError, InvalidFileError
from bixse.evaluation.metrics import PRIMARY_METRIC, evaluate_run, mean
from bixse.evaluation.statistics import difference_of, paired_differences, third_moment
from bixse.files.files import hash_files, write_atomically
from bixse.files.rows import read_blocks, read_rows
from bixse.files.values import FileColumn
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce
from bixse.relevance import DEPTH
from bixse.search.exact import exact_search, to_run

if TYPE_CHECKING:
    from bixse.adapters.adapt_settings import AdaptSettings
    from bixse.progress import ProgressBars
    from bixse.results import Difference

ADAPTER_FILE = "adapter.safetensors"
DEV_SHARE = 0.3
RATE_OF_HEAD = 0.05  # of log alpha and beta, which change more than the map
BATCH_SIZE = 256
SHRINKAGE = (0.25, 0.5, 0.75, 1.0)
"""Factors of B A that dev chooses from."""
FEWEST_QUERIES = 4
"""Fewest queries with a relevant document, of pairs and of dev: two to choose on, two to check."""
SPLITS = 20  # with a single split, chance would decide
VECTOR_COLUMNS = (FileColumn("id", "id", unique=True), FileColumn("vector", "numbers", other_names=("embedding",)))
PAIR_COLUMNS = (
    FileColumn("query_id", "id"),
    FileColumn("document_id", "id"),
    FileColumn("relevance", "number", low=0, high=1),
)
Graded: TypeAlias = dict[Any, dict[Any, float]]
"""Query id -> document id -> relevance in [0, 1]."""
_Candidate: TypeAlias = tuple[int, float]
"""Number of steps, and shrinkage; its scores are nDCG@10 per query id."""
BASE: _Candidate = (0, 0.0)


@dataclass(frozen=True)
class AdaptResult:
    """The vectors as they are on dev, and what the adapter changes."""

    documents: int
    dimensions: int
    train_queries: int
    base: dict[str, float]
    """Mean nDCG@10 and recall@100 of the vectors."""
    ceiling: float
    """Mean nDCG@10 of a perfect order of the first 100 documents."""
    gain: dict[str, Any]
    """Gain in nDCG@10 with its interval and verdict; half of the queries has the adapter that the other half chose."""
    steps: int
    shrinkage: float
    seconds: float = 0.0
    artifacts: dict[str, str] = field(default_factory=dict)
    """The adapter, only if it is better on dev."""
    warnings: list[str] = field(default_factory=list)
    reused: bool = False


def adapt(settings: AdaptSettings, out: Path, progress: ProgressBars | None = None) -> AdaptResult:
    """Learn q' = normalise(q + B A q) by `graded_bce` over all documents, and save it if it is better on dev.

    B starts at zero, so the first answer is the base's. The number of steps and the shrinkage of B A are those of the
    highest nDCG@10 on dev. `out` gets run.json, and A, B, alpha and beta (fitted on dev) if the verdict is "better".

    Raises:
        InputError: vectors that differ in length, are zero or not finite; unknown ids; too few queries.
        OutputExistsError: `out` holds another run.
    """
    started, paths = time.monotonic(), settings.path_settings()
    files = {name: path for name in paths if (path := getattr(settings, name)) is not None}
    record = open_run(out, "adapt", settings.model_dump(), hash_files(files), paths)
    if record.status == "finished":
        return record.result(AdaptResult, lambda result: [ADAPTER_FILE] if result.artifacts else [])
    rows, documents = read_vectors(settings.vectors)
    query_rows, queries = read_vectors(settings.queries)
    width = documents.shape[1]
    if queries.shape[1] != width or settings.rank > width:
        raise InputError(
            f"{settings.queries}: got {queries.shape[1]} dimensions and rank {settings.rank}; expected {width} as in "
            f"{settings.vectors} and a rank up to it; fix: embed both with one model, or lower --rank"
        )
    train, dev = _split(settings, query_rows, rows)
    record.save("running")  # after all checks, but before the adapter: a killed run leaves a record

    ids, dev_queries = list(rows), queries[[query_rows[query] for query in dev]]
    base, run = _search(dev, dev_queries, documents, ids)
    perfect = {query: {name: dev[query].get(name, 0.0) for name in hits} for query, hits in run.items()}
    scores, maps = {BASE: base[PRIMARY_METRIC]}, {}
    ceiling = mean(evaluate_run(dev, perfect, [PRIMARY_METRIC]))[PRIMARY_METRIC]
    title = f"adapt, from nDCG@10 {mean(base)[PRIMARY_METRIC]:.3f} (perfect order of the first {DEPTH}: {ceiling:.3f})"
    step = progress(title, settings.steps) if progress else None
    train_queries = queries[[query_rows[query] for query in train]]
    targets = GradedTargets.from_ids(list(train), ids, train)
    for number, down, up in train_map(settings, train_queries, documents, targets):
        if number in {settings.steps >> halving for halving in range(6)}:
            maps[number] = down.clone(), up.clone()
            for factor in SHRINKAGE:
                moved = adapted(dev_queries, down, factor * up)
                scores[number, factor] = _search(dev, moved, documents, ids)[0][PRIMARY_METRIC]
        if step is not None:
            step(1)
    difference = cross_difference(scores, settings.seed)
    steps, shrinkage = _best(scores, scores[BASE])
    gain, artifacts = {**asdict(difference), "verdict": difference.verdict, "few": difference.few}, {}
    if difference.verdict == "better" and steps:
        down, up = maps[steps][0], shrinkage * maps[steps][1]
        scale, bias = fit_head(adapted(dev_queries, down, up), documents, GradedTargets.from_ids(list(dev), ids, dev))
        save_adapter(out / ADAPTER_FILE, down, up, scale, bias, settings.vectors_of)
        artifacts["adapter"] = str(out / ADAPTER_FILE)
    seconds = round(time.monotonic() - started, 1)
    warnings = warn_of(settings.dev or settings.pairs, without_relevant(dev))
    result = AdaptResult(
        len(rows), width, len(train), mean(base), ceiling, gain, steps, shrinkage, seconds, artifacts, warnings
    )
    record.results = asdict(result)
    record.save("finished")
    return result


def read_vectors(path: Path) -> tuple[dict[str, int], Tensor]:
    """Return id -> row, and (N, D) L2-normalised float32 vectors; refuse other lengths, zero, NaN and infinity."""
    errors, ids, parts, width = InvalidFileError(path), [], [], 0
    for block in read_blocks(path, VECTOR_COLUMNS, errors):
        vectors = block.columns["vector"]
        width = width or len(vectors[0])
        for row, vector in zip(block.rows, vectors, strict=True):
            if len(vector) != width or not any(vector):
                got = f"{len(vector)} numbers" if len(vector) != width else "the zero vector"
                errors.add(row, "vector", got, f"{width} numbers, not all 0", "export it again, or drop the row")
        if not errors.total:
            values = np.array(vectors, dtype=np.float64)
            values /= np.abs(values).max(axis=1, keepdims=True)  # squares of any finite number are then finite
            ids += block.columns["id"]
            parts.append((values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float32))
    errors.raise_any()
    return {name: row for row, name in enumerate(ids)}, torch.from_numpy(np.concatenate(parts))


def read_pairs(path: Path, queries: Mapping[str, int], documents: Mapping[str, int]) -> Graded:
    """Return the relevance of the pairs of a file; refuse ids without a vector, and two relevances of one pair."""
    errors, graded = InvalidFileError(path), defaultdict[str, dict[str, float]](dict)
    for row, pair in read_rows(path, PAIR_COLUMNS, errors):
        query, document, relevance = pair.values()
        if graded[query].setdefault(document, relevance) != relevance:
            errors.add(row, "relevance", f"{relevance:g}", "one relevance per pair", "keep one of the rows")
    errors.raise_any()
    judged = dict.fromkeys(name for row in graded.values() for name in row)
    parts = (Unjoined.of("queries without a vector", graded, queries),
             Unjoined.of("documents without a vector", judged, documents))  # fmt: skip
    check_joined(path, parts, "export their vectors with the ids of the pairs, or drop the rows", every=True)
    return dict(graded)


def train_map(
    settings: AdaptSettings, queries: Tensor, documents: Tensor, targets: GradedTargets
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the number of each step, and A (rank, D) and B (D, rank) after it; alpha and beta are learned too."""
    width, generator = documents.shape[1], torch.Generator().manual_seed(settings.seed)
    down = torch.randn(settings.rank, width, generator=generator) / width**0.5
    up = torch.zeros(width, settings.rank)
    scale, bias = fit_head(queries, documents, targets)
    head = torch.tensor([math.log(scale), bias])
    optimizer = torch.optim.Adam([down, up], lr=settings.learning_rate)
    optimizer.add_param_group({"params": [head], "lr": RATE_OF_HEAD})
    for tensor in (down, up, head):
        tensor.requires_grad_()
    batches = cycle(list(targets.tiles(BATCH_SIZE)))
    for number, (block, _, known) in enumerate(islice(batches, settings.steps), start=1):
        optimizer.zero_grad()
        loss = graded_bce(adapted(queries[block], down, up), documents, known, head[0].exp(), head[1])
        loss.backward()
        optimizer.step()
        yield number, down.detach(), up.detach()


def adapted(queries: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """Return q' = normalise(q + B A q) of (B, D) queries, with A (rank, D) and B (D, rank).

    Example:
        >>> adapted(torch.eye(2), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0], [1.0]])).tolist()
        [[0.7071..., 0.7071...], [0.0, 1.0]]
    """
    return normalize(queries + queries @ down.T @ up.T, dim=1)


def fit_head(queries: Tensor, documents: Tensor, targets: GradedTargets) -> tuple[float, float]:
    """Return alpha, at least 1, and beta, fitted to all entries of evenly spaced queries."""
    cosines, relevance, _ = targets.sample(queries, documents)
    slope, intercept = fit_platt(cosines.flatten(), relevance.flatten())
    return max(slope, 1.0), intercept


def cross_difference(scores: Mapping[_Candidate, dict[str, float]], seed: int) -> Difference:
    """Return the gain over the base if each half of the queries has what the other half chose: mean of `SPLITS` splits.

    The scatter is the mean scatter of a split. That of the queries' means over splits is too small, as they average
    over several candidates: a useless map would be "better" in up to 4.4 % of samples instead of 2.5 %.
    """
    generator, queries = np.random.default_rng(seed), sorted(scores[BASE])
    gains = {each: paired_differences(of_query, scores[BASE]) for each, of_query in scores.items()}
    chosen = np.empty((SPLITS, len(queries)))
    for split in chosen:
        order = generator.permutation(len(queries))
        for half, other in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            split[half] = gains[_best(scores, [queries[position] for position in other])][half]
    means = chosen.mean(axis=0)
    error = math.sqrt(float(chosen.var(axis=1, ddof=1).mean()) / len(queries))
    skewness = third_moment(means) / error**3 if error else 0.0
    return difference_of(float(means.mean()), error, len(queries) - 1, skewness, len(queries))


def save_adapter(path: Path, down: Tensor, up: Tensor, scale: float, bias: float, vectors_of: str) -> None:
    """Write A and B as safetensors; alpha, beta, dimensions, the model and a hash of both are its metadata."""
    digest = hashlib.sha256(down.numpy().tobytes() + up.numpy().tobytes()).hexdigest()
    facts = {"alpha": repr(scale), "beta": repr(bias), "dimensions": str(down.shape[1]), "vectors_of": vectors_of}
    write_atomically(path, save({"A": down, "B": up}, {**facts, "sha256": digest}))


def _search(
    graded: Graded, queries: Tensor, documents: Tensor, ids: Sequence[str]
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
    """Return nDCG@10 and recall@100 per query, and the run; a document of any relevance above 0 is relevant."""
    run = to_run(list(graded), ids, *exact_search(queries, documents, DEPTH))
    return evaluate_run(graded, run, (PRIMARY_METRIC, f"recall@{DEPTH}"), min_relevant_grade=1e-9), run


def _best(scores: Mapping[_Candidate, dict[str, float]], queries: Iterable[str]) -> _Candidate:
    """Return the steps and the shrinkage with the highest mean over these queries; the first of equals."""
    listed = list(queries)
    return max(scores, key=lambda candidate: sum(scores[candidate][query] for query in listed))


def _split(settings: AdaptSettings, queries: Mapping[str, int], documents: Mapping[str, int]) -> tuple[Graded, Graded]:
    """Return the pairs to learn from and those of dev; refuse shared queries, and few with a relevant document."""
    graded = read_pairs(settings.pairs, queries, documents)
    order = np.random.default_rng(settings.seed).permutation(sorted(graded)).tolist()
    number = 0 if settings.dev else round(DEV_SHARE * len(order))
    train, dev = ({query: graded[query] for query in part} for part in (order[number:], order[:number]))
    if settings.dev:
        dev = read_pairs(settings.dev, queries, documents)
    if both := train.keys() & dev.keys():
        raise InputError(
            f"dev: got {len(both)} queries that are also in pairs, such as {min(both)!r}; expected other queries; fix: "
            "leave --dev out, or drop them from one of the files"
        )
    for name, part in (("pairs", train), ("dev", dev)):
        number = sum(any(judged.values()) for judged in part.values())
        if number < FEWEST_QUERIES:
            raise InputError(
                f"{name}: got {number} queries with a relevant document; expected at least {FEWEST_QUERIES}, and about "
                "50 for a verdict; fix: grade documents of more queries"
            )
    return train, dev
