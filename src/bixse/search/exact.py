"""Exact search by inner product, in chunks. The order of equal scores does not depend on the chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from bixse.errors import InputError, NotFiniteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

Embeddings: TypeAlias = "torch.Tensor | npt.NDArray[Any]"
QUERY_BLOCK = 256
"""Queries scored at once. With the default chunk, the block of scores takes about 20 MB."""
_INDEX_BITS = 32
"""Low bits of a sort key that hold the document's position."""
_NO_KEY = -(1 << 63)  # below the key of every score
DEPTH = 100
"""Default number of documents retrieved per query."""


def exact_search(
    query_embeddings: Embeddings,
    document_embeddings: Embeddings,
    top_k: int,
    chunk_size: int = 16_384,
    device: str | torch.device | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the `top_k` documents with the highest inner product per query, by scoring all documents in float32.

    Memory is bounded by one chunk of documents and one block of queries, so the documents may be a long memory map. The
    scores (Q, k) are float32, highest first, and the positions (Q, k) int64, where k is `top_k` or N. Equal scores are
    ordered by position, lowest first. The default `device` is the documents' device.

    Example:
        >>> import numpy as np
        >>> scores, indices = exact_search(np.eye(2), np.array([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]]), top_k=2)
        >>> indices.tolist()
        [[2, 1], [0, 1]]
    """
    home = document_embeddings.device if isinstance(document_embeddings, torch.Tensor) else "cpu"
    best = TopK(query_embeddings, top_k, device if device is not None else home)
    best.add(document_embeddings, chunk_size)
    return best.result()


class TopK:
    """The documents with the highest inner product per query, over successive blocks of one corpus, cut anywhere."""

    def __init__(self, query_embeddings: Embeddings, top_k: int, device: str | torch.device = "cpu") -> None:
        if top_k < 1:
            raise InputError(f"top_k: got {top_k}; expected at least 1; fix: ask for at least one document")
        self.queries = _float32(query_embeddings, "query embeddings", torch.device(device))
        self.top_k = top_k
        self.seen = 0
        """Documents seen so far: the position of the next document."""
        self.keys = torch.empty((len(self.queries), 0), dtype=torch.int64, device=self.queries.device)
        """(Q, k) sort keys of the best documents so far: with `seen` the complete state."""

    def add(self, documents: Embeddings, chunk_size: int = 16_384) -> None:
        """Add (N, D) documents to the competition; raises InputError for shapes that do not fit."""
        if self.queries.ndim != 2 or documents.ndim != 2 or self.queries.shape[1] != documents.shape[1]:
            raise InputError(
                f"embeddings: got queries {tuple(self.queries.shape)} and documents {tuple(documents.shape)}; expected "
                "(Q, D) and (N, D) with one D; fix: encode both sides with one model"
            )
        for start in range(0, len(documents), chunk_size):
            chunk = _float32(documents[start : start + chunk_size], "document embeddings", self.queries.device)
            parts = [
                _best_keys(block @ chunk.T, self.seen, known, self.top_k)
                for block, known in zip(self.queries.split(QUERY_BLOCK), self.keys.split(QUERY_BLOCK), strict=True)
            ]
            self.keys = torch.cat(parts)
            self.seen += len(chunk)

    def result(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return scores and positions, each (Q, k), see `exact_search`."""
        if bool((self.keys == _NO_KEY).any()):
            raise InputError(
                "embeddings: got inner products beyond float32 (infinity minus infinity); expected embeddings of "
                "moderate length; fix: normalise them"
            )
        scores, positions = _from_keys(self.keys)
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


def _best_keys(scores: torch.Tensor, start: int, known: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` highest sort keys among the known keys and a new chunk's scores, highest first."""
    wanted = min(count, known.shape[1] + scores.shape[1])
    # after the first chunk few scores can be among the best: keys of the others would cost time
    rows, columns = _contenders(scores, known, count)
    numbers = torch.bincount(rows, minlength=len(scores))
    slots = torch.arange(len(rows), device=rows.device) - (numbers.cumsum(0) - numbers)[rows]
    width = max([wanted, *numbers.tolist()])
    keys = torch.full((len(scores), width), _NO_KEY, dtype=torch.int64, device=scores.device)
    keys[rows, slots] = _to_keys(scores[rows, columns], start, columns)
    return torch.cat([known, keys], dim=1).topk(wanted, dim=1).values


def _contenders(scores: torch.Tensor, known: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and columns, in order, of all scores that may be among the `count` best."""
    if known.shape[1] == count:  # an equal score has a higher position, so that it comes after the known scores
        bar, equals = _from_keys(known[:, -1:])[0], False
    else:  # all ties with the chunk's own `count`-th score take part
        bar, equals = scores.topk(min(count, scores.shape[1]), dim=1).values[:, -1:], True
    if scores.device.type != "cpu":
        rows, columns = (scores >= bar if equals else scores > bar).nonzero(as_tuple=True)
        return rows, columns
    values, bars = scores.numpy(), bar.numpy()  # NumPy finds few true values several times faster than PyTorch
    flat = torch.from_numpy(np.flatnonzero(values >= bars if equals else values > bars))
    return flat // scores.shape[1], flat % scores.shape[1]


def _to_keys(scores: torch.Tensor, start: int, columns: torch.Tensor) -> torch.Tensor:
    """Return integers that order as (score descending, position `start + columns` ascending)."""
    # all keys differ, so a top-k is unique; float32 bits order like integers once a negative number's lower bits flip
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes -0.0 equal to 0.0
    ordered = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return (ordered << _INDEX_BITS) + ((1 << _INDEX_BITS) - 1 - (start + columns))


def _from_keys(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = keys >> _INDEX_BITS
    bits = torch.where(ordered >= 0, ordered, ordered ^ 0x7FFFFFFF)
    positions = (1 << _INDEX_BITS) - 1 - (keys & ((1 << _INDEX_BITS) - 1))
    return bits.to(torch.int32).view(torch.float32), positions


def _float32(embeddings: Embeddings, name: str, device: torch.device) -> torch.Tensor:
    """Convert embeddings, with a copy only if needed; refuse NaN and infinity."""
    if not isinstance(embeddings, torch.Tensor):
        array = np.ascontiguousarray(embeddings)
        # torch warns of read-only arrays
        embeddings = torch.from_numpy(array if array.flags.writeable else array.copy())
    values = embeddings.detach().to(device=device, dtype=torch.float32)
    # a sum is many times faster, and finite only if all terms are; after an overflow each term is checked
    if not bool(torch.isfinite(values.sum())) and not bool(torch.isfinite(values).all()):
        raise NotFiniteError(
            f"{name}: got NaN or infinity; expected finite numbers; fix: check the model (half precision overflow "
            "or a diverged training run)"
        )
    return values
