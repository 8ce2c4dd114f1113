"""Exact search by inner product, in chunks. The order of equal scores does not depend on the chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from bixse.encoders.loading.precision import default_device, float32_products
from bixse.errors import InputError, NotFiniteError
from bixse.machine import ahead

Embeddings: TypeAlias = "torch.Tensor | npt.NDArray[Any]"
QUERY_BLOCK: Mapping[str, int] = defaultdict(lambda: 1024, cpu=256)
"""Queries scored at once, per device type. With the default chunk, the block of scores takes 20 MB on a CPU."""
SMALLEST_CHUNK, LARGEST_CHUNK = 16_384, 262_144
"""Documents scored at once: the smallest chunk on a CPU, more on a GPU as its memory allows."""
QUERIES_FOR_GPU = 32
"""Queries from which on documents in host memory are copied to a GPU: for fewer, the CPU has read them sooner."""
SCORES_FOR_GPU = 1 << 22
"""Scores (queries times documents) from which on that is done: fewer take a CPU some 10 ms."""
_PINNED = 1 << 23  # numbers per pinned buffer: pinning memory takes longer than a copy, so few small buffers serve all
_TIED_ROWS = 64  # rows whose scores are all sorted at once, which takes 40 bytes per score
_INDEX_BITS = 32
"""Low bits of a sort key that hold the document's position."""
_NO_KEY = -(1 << 63)  # below the key of every score

DOCUMENTS_PER_BLOCK = 16_384
"""Number of documents encoded per block; at 1,024 dimensions their embeddings take 67 MB."""


def exact_search(
    query_embeddings: Embeddings,
    document_embeddings: Embeddings,
    top_k: int,
    chunk_size: int | None = None,
    device: str | torch.device | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the `top_k` documents with the highest inner product per query, by scoring all documents in float32.

    Memory is bounded by a few chunks of documents and one block of scores, so the documents may be a long memory map.
    The scores (Q, k) are float32, highest first, and the positions (Q, k) int64, where k is `top_k` or N. Equal scores
    are ordered by position, lowest first. The default `device` is that of documents on a GPU, and `search_device` for
    documents in host memory. The default `chunk_size` depends on the device.

    Example:
        >>> import numpy as np
        >>> scores, indices = exact_search(np.eye(2), np.array([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]), top_k=2)
        >>> indices.tolist()
        [[2, 1], [0, 1]]
    """
    home = document_embeddings.device if isinstance(document_embeddings, torch.Tensor) else torch.device("cpu")
    if device is None:
        device = search_device(len(query_embeddings), len(document_embeddings)) if home.type == "cpu" else home
    best = TopK(query_embeddings, top_k, device)
    best.add(document_embeddings, chunk_size)
    return best.result()


def search_device(queries: int, documents: int) -> str:
    """Return the device that searches documents in host memory: a GPU, unless the CPU is done before their copy."""
    large = queries >= QUERIES_FOR_GPU and queries * documents >= SCORES_FOR_GPU
    return default_device() if large else "cpu"


def home_of(size: int) -> str:
    """Return the device for documents of `size` bytes that are searched often: a GPU of which they fill a quarter."""
    device = default_device()
    return device if device != "cpu" and size <= _free_memory(torch.device(device)) // 4 else "cpu"


class TopK:
    """The documents with the highest inner product per query, over successive blocks of one corpus, cut anywhere."""

    def __init__(self, query_embeddings: Embeddings, top_k: int, device: str | torch.device = "cpu") -> None:
        if top_k < 1:
            raise InputError(f"top_k: got {top_k}; expected at least 1; fix: ask for at least one document")
        self.queries = _tensor(query_embeddings).to(device, torch.float32)
        _check_finite(self.queries, "query embeddings")
        self.top_k = top_k
        self.seen = 0
        """Documents seen so far: the position of the next document."""
        self.keys = torch.empty((len(self.queries), 0), dtype=torch.int64, device=self.queries.device)
        """(Q, k) sort keys of the best documents so far: with `seen` the complete state."""

    def add(self, documents: Embeddings, chunk_size: int | None = None) -> None:
        """Add (N, D) documents to the competition; raises InputError for shapes that do not fit."""
        if self.queries.ndim != 2 or documents.ndim != 2 or self.queries.shape[1] != documents.shape[1]:
            raise InputError(
                f"embeddings: got queries {tuple(self.queries.shape)} and documents {tuple(documents.shape)}; expected "
                "(Q, D) and (N, D) with one D; fix: encode both sides with one model"
            )
        device = self.queries.device
        best_keys, together = _BEST_KEYS[device.type], QUERY_BLOCK[device.type]
        chunks = _chunks(documents, chunk_size or _chunk_size(self.queries), device)
        with float32_products(), closing(chunks):
            for chunk in chunks:
                _check_finite(chunk, "document embeddings")
                width = min(self.top_k, self.keys.shape[1] + len(chunk))
                # in place once all are full: the keys of many queries would be in memory twice
                keys = self.keys if width == self.keys.shape[1] else self.keys.new_empty((len(self.queries), width))
                for start in range(0, len(self.queries), together):
                    rows = slice(start, start + together)
                    keys[rows] = best_keys(self.queries[rows] @ chunk.T, self.seen, self.keys[rows], self.top_k)
                self.keys, self.seen = keys, self.seen + len(chunk)

    def result(self, queries: slice = slice(None)) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return scores and positions, each (Q, k), of some queries or of all, see `exact_search`."""
        keys = self.keys[queries]
        if bool((keys == _NO_KEY).any()):
            raise InputError(
                "embeddings: got inner products beyond float32 (infinity minus infinity); expected embeddings of "
                "moderate length; fix: normalise them"
            )
        scores, positions = _from_keys(keys)
        return scores.cpu().numpy(), positions.cpu().numpy()


def to_run(
    query_ids: Sequence[str],
    document_ids: Sequence[str],
    scores: npt.NDArray[np.floating[Any]],
    indices: npt.NDArray[np.integer[Any]],
) -> dict[str, dict[str, float]]:
    """Return scores and positions in `document_ids`, both (Q, k), as query id -> document id -> score."""
    return {
        query_id: {document_ids[index]: score for score, index in zip(row_scores, row_indices, strict=True)}
        for query_id, row_scores, row_indices in zip(query_ids, scores.tolist(), indices.tolist(), strict=True)
    }


def _best_by_bar(scores: torch.Tensor, start: int, known: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` highest sort keys among the known keys and a new chunk's scores, highest first, on a CPU."""
    wanted = min(count, known.shape[1] + scores.shape[1])
    # after the first chunk few scores can be among the best: keys of the others would cost time
    if known.shape[1] == count:  # an equal score has a higher position, so that it comes after the known scores
        bar, equals = _from_keys(known[:, -1:])[0], False
    else:  # all ties with the chunk's own `count`-th score take part
        bar, equals = scores.topk(min(count, scores.shape[1]), dim=1).values[:, -1:], True
    values, bars = scores.numpy(), bar.numpy()  # NumPy finds few true values several times faster than PyTorch
    flat = torch.from_numpy(np.flatnonzero(values >= bars if equals else values > bars))
    rows, columns = flat // scores.shape[1], flat % scores.shape[1]
    numbers = torch.bincount(rows, minlength=len(scores))
    slots = torch.arange(len(rows), device=rows.device) - (numbers.cumsum(0) - numbers)[rows]
    width = max([wanted, *numbers.tolist()])
    keys = torch.full((len(scores), width), _NO_KEY, dtype=torch.int64, device=scores.device)
    keys[rows, slots] = _to_keys(scores[rows, columns], start, columns)
    return torch.cat([known, keys], dim=1).topk(wanted, dim=1).values


def _best_by_topk(scores: torch.Tensor, start: int, known: torch.Tensor, count: int) -> torch.Tensor:
    """Return what `_best_by_bar` returns, by operations that a GPU is fast at; the device is read once."""
    columns = scores.shape[1]
    values, positions = scores.topk(min(count + 1, columns), dim=1)
    keys = torch.cat([known, _to_keys(values, start, positions)], dim=1)
    keys = keys.topk(min(count, keys.shape[1]), dim=1).values
    if columns <= count:
        return keys
    # which of equal scores PyTorch's topk returns is not defined, and NaN counts as the highest score
    last = values[:, count - 1]
    unsure = last == values[:, count]
    if known.shape[1] == count:  # scores up to the last known one come after it
        unsure &= last > _from_keys(known[:, -1])[0]
    for rows in (unsure | values[:, 0].isnan()).nonzero().squeeze(1).split(_TIED_ROWS):
        all_keys = _to_keys(scores[rows], start, torch.arange(columns, device=scores.device))
        keys[rows] = torch.cat([known[rows], all_keys], dim=1).topk(count, dim=1).values
    return keys


_BEST_KEYS: Mapping[str, Callable[[torch.Tensor, int, torch.Tensor, int], torch.Tensor]] = defaultdict(
    lambda: _best_by_topk, cpu=_best_by_bar
)


def _to_keys(scores: torch.Tensor, start: int, columns: torch.Tensor) -> torch.Tensor:
    """Return integers that order as (score descending, position `start + columns` ascending); NaN has `_NO_KEY`."""
    # all keys differ, so a top-k is unique; float32 bits order like integers once a negative number's lower bits flip
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    ordered = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    keys = (ordered << _INDEX_BITS) + ((1 << _INDEX_BITS) - 1 - (start + columns))
    return keys.masked_fill(scores.isnan(), _NO_KEY)


def _from_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = keys >> _INDEX_BITS
    bits = torch.where(ordered >= 0, ordered, ordered ^ 0x7FFFFFFF)
    positions = (1 << _INDEX_BITS) - 1 - (keys & ((1 << _INDEX_BITS) - 1))
    return bits.to(torch.int32).view(torch.float32), positions


def _chunk_size(queries: torch.Tensor) -> int:
    """Return the number of documents scored at once; scores and three chunks take a quarter of a GPU's free memory."""
    if queries.device.type != "cuda":
        return SMALLEST_CHUNK
    bytes_of_one = 8 * min(len(queries), QUERY_BLOCK["cuda"]) + 12 * queries.shape[1] + 1
    return min(max(_free_memory(queries.device) // 4 // bytes_of_one, SMALLEST_CHUNK), LARGEST_CHUNK)


def _free_memory(device: torch.device) -> int:
    reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + reserved


def _chunks(documents: Embeddings, size: int, device: torch.device) -> Generator[torch.Tensor]:
    """Yield the documents as float32 on a device; a thread copies the next chunks to a GPU meanwhile."""
    parts = (documents[start : start + size] for start in range(0, len(documents), size))
    if device.type != "cuda" or (isinstance(documents, torch.Tensor) and documents.is_cuda):
        for part in parts:
            yield _tensor(part).to(device, torch.float32)
        return
    stream, searching = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    rows = max(1, _PINNED // max(1, documents.shape[1]))

    def copied(part: Embeddings) -> torch.Tensor:
        with torch.cuda.stream(stream):
            chunk = torch.empty(part.shape, dtype=torch.float32, device=device)
            for start in range(0, len(part), rows):
                piece = _tensor(part[start : start + rows]).float().pin_memory()
                chunk[start : start + rows].copy_(piece, non_blocking=True)
        stream.synchronize()
        chunk.record_stream(searching)  # its memory is not used for another chunk while this one is searched
        return chunk

    with closing(ahead(copied, parts)) as chunks:
        yield from chunks


def _tensor(embeddings: Embeddings) -> torch.Tensor:
    """Return a tensor, a copy only if needed."""
    if isinstance(embeddings, torch.Tensor):
        return embeddings.detach()
    array = np.ascontiguousarray(embeddings)
    # torch warns of read-only arrays
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _check_finite(values: torch.Tensor, name: str) -> None:
    # a sum is many times faster, and finite only if all terms are; after an overflow each term is checked
    if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
        raise NotFiniteError(
            f"{name}: got NaN or infinity; expected finite numbers; fix: check the model (half precision overflow "
            "or a diverged training run)"
        )
