"""The tokens of the texts that training reads: made once, kept on disk, and read as padded batches by NumPy."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from bixse.encoders.encode import by_length, padded_right, tokenizer_content
from bixse.encoders.loading.backbones import LONG_TEXT, input_parts, parts_of
from bixse.errors import ModelError, StorageError
from bixse.files.files import TOKENS_FOLDER, atomic_file, storage_errors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import Pairs
    from bixse.relevance import Kind

TEXTS_PER_BLOCK = 4096
TEXTS_TOGETHER = 256
"""Texts per call of the tokenizer, of similar length. A fast tokenizer spreads them over the cores."""
TEXTS_CHECKED = 64
"""Texts whose features by the model and by the stored tokens are compared."""


class Form(NamedTuple):
    """The features of a column of texts other than ids and mask, equal for all texts."""

    padding: int
    constants: dict[str, int]
    """Tensors with one value at every token, such as `token_type_ids`."""
    others: dict[str, Any]
    """Values that are no tensors, such as `prompt_length`."""


class Tokens:
    """The tokens of U distinct texts, each after the same prompt.

    `numbers` (U,) are the numbers of the texts in `Pairs`, ascending. `content` holds the ids of all texts in
    this order, then the (U,) number of ids of each text.
    """

    def __init__(self, numbers: NDArray[np.int64], content: NDArray[np.int32], form: Form) -> None:
        self.numbers, self.form, self.nbytes = numbers, form, content.nbytes
        self.ids: NDArray[np.int32] = content[: len(content) - len(numbers)]
        self.lengths: NDArray[np.int64] = np.array(content[len(self.ids) :], dtype=np.int64)
        self.starts: NDArray[np.int64] = np.cumsum(self.lengths) - self.lengths

    def features(self, numbers: NDArray[Any]) -> dict[str, Any] | None:
        """Return the features of N >= 1 texts, padded on the right; None if one is unknown.

        `lengths` (N,) is an array and no tensor, so that it stays on the host.
        """
        rows = np.searchsorted(self.numbers, numbers)
        if not np.array_equal(self.numbers[np.minimum(rows, len(self.numbers) - 1)], numbers):
            return None
        lengths = self.lengths[rows]
        before = np.cumsum(lengths) - lengths
        ids = self.ids[np.repeat(self.starts[rows] - before, lengths) + np.arange(lengths.sum())]
        padded = padded_right(ids, lengths, self.form.padding)
        shape = padded["input_ids"].shape
        constants = {name: torch.from_numpy(np.full(shape, value)) for name, value in self.form.constants.items()}
        return {**padded, **constants, **self.form.others}


class Tokenisation(NamedTuple):
    """A model's tokenisation that reads at most `max_length` tokens per text."""

    model: SentenceTransformer
    max_length: int | None = None

    def __call__(self, texts: list[str], prompt: str | None = None, task: str | None = None) -> Mapping[str, Any]:
        with _reading_at_most(self.model, self.max_length):
            features: Mapping[str, Any] = self.model.preprocess(texts, prompt=prompt, task=task)
            return features

    def tokens(
        self,
        pairs: Pairs,
        kind: Kind,
        prompt: str | None,
        numbers: NDArray[np.int64],
        cache: Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Tokens | None:
        """Return the tokens of the texts with these numbers, from the cache folder if it has them.

        Return None if the features are more than each text's tokens: then the model must make those of every batch.
        """
        rows = pairs.distinct(kind)[numbers]
        sample = np.unique(np.linspace(0, len(rows) - 1, TEXTS_CHECKED).astype(np.int64))
        # next to the long text, the others have padding
        expected = self([*pairs.texts(kind, rows[sample]), "a", LONG_TEXT], prompt, kind)
        form, alone = _form(expected), _form(self(["a"], prompt, kind))
        if form is None or alone is None or form[1:] != alone[1:]:
            return None

        def blocks() -> Iterator[list[str]]:
            for start in range(0, len(rows), TEXTS_PER_BLOCK):
                yield pairs.texts(kind, rows[start : start + TEXTS_PER_BLOCK])

        def write(file: BinaryIO) -> None:
            lengths = []
            for texts in blocks():
                ids, number = self._tokenise(texts, prompt, kind)
                file.write(ids.tobytes())
                lengths.append(number)
                if progress is not None:
                    progress(len(texts))
            file.write(np.concatenate(lengths).tobytes())
            file.flush()

        path = None if cache is None else cache / TOKENS_FOLDER / f"{self._key(kind, prompt, blocks())}.tokens"
        tokens = Tokens(numbers, _stored(path, len(rows), write), form)
        ours = tokens.features(numbers[sample])
        return tokens if ours is not None and _equal(ours, expected) else None

    def _tokenise(self, texts: list[str], prompt: str | None, kind: Kind) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of all texts, one text after the other, and the number of ids of each."""
        order, ids = by_length(texts), [np.zeros(0, dtype=np.int32)] * len(texts)
        for start in range(0, len(texts), TEXTS_TOGETHER):
            together = order[start : start + TEXTS_TOGETHER]
            features = self([texts[row] for row in together], prompt, kind)
            mask = features["attention_mask"].bool()
            ends = mask.sum(dim=1).cumsum(0)[:-1].numpy()
            parts = np.split(features["input_ids"][mask].numpy().astype(np.int32), ends)
            for row, part in zip(together, parts, strict=True):
                ids[row] = part
        return np.concatenate(ids), np.array([len(part) for part in ids], dtype=np.int32)

    def _key(self, kind: Kind, prompt: str | None, blocks: Iterator[list[str]]) -> str:
        """Hash everything that the ids depend on, the texts included."""
        digest = hashlib.sha256(repr((tokenizers.__version__, kind, prompt)).encode())
        with _reading_at_most(self.model, self.max_length):
            for module in parts_of(self.model):
                limits = [getattr(module, f"{name}_length", None) for name in ("max_seq", "query", "document")]
                options: dict[str, Any] = getattr(module, "get_config_dict", dict)()
                digest.update(pformat([type(module).__name__, options, limits]).encode())
                digest.update(tokenizer_content(getattr(module, "tokenizer", None)).encode())
        for texts in blocks:
            encoded = [text.encode() for text in texts]
            digest.update(np.array([len(text) for text in encoded]).tobytes())
            digest.update(b"".join(encoded))
        return digest.hexdigest()[:32]


def _form(features: Mapping[str, Any]) -> Form | None:
    """Return the form of a padded batch, None if another feature differs between its texts."""
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor) or ids.shape != mask.shape:
        return None
    form = Form(int(ids[mask == 0][0]) if bool((mask == 0).any()) else 0, {}, {})
    for name, value in features.items():
        if not isinstance(value, torch.Tensor):
            form.others[name] = value
        elif value is not ids and value is not mask:
            if value.shape != ids.shape or value.dtype != torch.long or bool((value != value[0, 0]).any()):
                return None
            form.constants[name] = int(value[0, 0])
    return form


def _equal(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return True if the ids of the first texts of a batch are those of `ours`, without padding."""
    number = len(ours["input_ids"])
    masks = ours["attention_mask"].bool(), expected["attention_mask"][:number].bool()
    ids = ours["input_ids"][masks[0]], expected["input_ids"][:number][masks[1]]
    return torch.equal(masks[0].sum(dim=1), masks[1].sum(dim=1)) and torch.equal(*ids)


def _stored(path: Path | None, number: int, write: Callable[[BinaryIO], None]) -> NDArray[np.int32]:
    """Return the content of a file of `number` texts, which is written first if it is missing or damaged."""
    if path is not None:
        # without a cache folder that can be written, the tokens are in a file that is deleted with the process
        with suppress(StorageError), storage_errors(path):
            for _ in range(2):
                if not path.is_file():
                    with atomic_file(path) as file:
                        write(file)
                with suppress(ValueError):  # of an empty file, or of one that ends inside a number
                    content = np.memmap(path, np.int32, "r")
                    if content[-number:].sum() == len(content) - number:
                        return content
                path.unlink(missing_ok=True)
    folder = Path(tempfile.gettempdir())
    with storage_errors(folder), tempfile.TemporaryFile(dir=folder) as file:
        write(file)
        return np.memmap(file, np.int32, "r")


@contextmanager
def _reading_at_most(model: SentenceTransformer, max_length: int | None) -> Iterator[None]:
    """Let the model read at most `max_length` tokens per text inside the block; None changes nothing."""
    parts: list[Any] = input_parts(model) if max_length is not None else []
    if any(isinstance(part, StaticEmbedding) for part in parts):  # its length has no setter
        raise ModelError(
            f"train_max_length: got {max_length} for static embeddings, which read texts of any length; expected none; "
            "fix: leave it out"
        )
    limits = [part.max_seq_length for part in parts]
    try:
        for part, length in zip(parts, limits, strict=True):
            part.max_seq_length = max_length if length is None else min(length, max_length)
        yield
    finally:
        for part, length in zip(parts, limits, strict=True):
            part.max_seq_length = length
