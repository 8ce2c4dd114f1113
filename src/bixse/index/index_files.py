"""The files of an index: run.json, texts in Parquet, and one safetensors file of embeddings per shard.

Name of the folder: hash of all that its files depend on. So a file that exists belongs to the index, several processes
may write it, and the files of another version are never touched. run.json is written last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.corpus import Document
from bixse.errors import InputError, first_fault
from bixse.files.files import atomic_file, read_text, write_atomically
from bixse.files.parquet import checked_file, open_table, reading, row_batches, table_writer
from bixse.files.run_folder import RUN_FILE

if TYPE_CHECKING:
    import torch

    from bixse.search.hits import Match

FILES = "files-"
"""Beginning of the name of the folder with texts and embeddings."""
TEXTS = "documents.parquet"
TENSOR = "documents"
SHARD_ROWS = 32_768
"""Maximum number of documents per file of embeddings, which is in memory while it is written."""
GROUP_ROWS = 1024
"""Documents per row group of Parquet: a search reads whole groups, and Parquet with more than 10^6 is not opened."""
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
NO_TEXT = Document("", "")
SCHEMA = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])


class EncoderIdentity(BaseModel):
    """The properties that an encoder must have to search an index."""

    model_config = STRICT
    name: str
    """Folder or hub name at load time; the encoder may be elsewhere later."""
    weights: str
    """Hash of all that document embeddings depend on: weights, modules, tokenizer, document prompt, length limit."""
    prompts: str
    """Hash of all prompts, including prompts of queries."""
    document_prompt: str | None
    task: str | None
    max_length: int | None
    """Tokens read per text; None is the limit of the model."""
    dimensions: Annotated[int, Field(ge=1)]


class Manifest(BaseModel):
    """The description of an index, in run.json and in vector databases."""

    model_config = STRICT
    encoder: EncoderIdentity
    corpus: str
    """SHA-256 of the corpus file."""
    precision: str
    """Precision in which the encoder computed."""
    documents: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=1)]
    """Documents per file of embeddings; the last file may hold fewer."""
    too_long: int | None = None
    """Documents that are longer than the encoder reads; None if it is not known."""

    @property
    def shards(self) -> range:
        """Return the numbers of the files of embeddings."""
        return range(-(-self.documents // self.rows))

    @property
    def folder(self) -> str:
        """Return the name of the folder with the files, which differs with all but the place of the encoder."""
        content = json.dumps(self.model_dump(exclude={"encoder": {"name"}, "too_long": True}), sort_keys=True)
        return f"{FILES}{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def differences(self, wanted: Manifest, fields: set[str]) -> list[str]:
        """Return the names of properties of the encoder and of other `fields` that differ from `wanted`."""
        this, other = (
            {**manifest.model_dump(include=fields), **manifest.encoder.model_dump(exclude={"name"})}
            for manifest in (self, wanted)
        )
        return [name for name in this if this[name] != other[name]]


def read_manifest(folder: Path) -> Manifest:
    """Read run.json in the folder of an index; raise InputError if it is missing or damaged."""
    if not is_index(folder):
        got = "a folder without an index" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
        raise InputError(
            f"{folder}: got {got}; expected a finished index; fix: check the path, or run "
            "`bixse index MODEL --collection DIR --out INDEX`"
        )
    path = folder / RUN_FILE
    try:
        return Manifest.model_validate(json.loads(read_text(path))["results"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise damaged(path, fault, "the JSON that this version writes") from error


def is_index(folder: Path) -> bool:
    """Return True if a folder holds a finished index."""
    return (folder / RUN_FILE).is_file() and any(folder.glob(f"{FILES}*"))


def damaged(path: Path, got: str, expected: str) -> InputError:
    """Return the error for a file that differs from what was written."""
    return InputError(
        f"{path}: got a damaged file of the index ({got}); expected {expected}; fix: copy the index from where "
        "it is complete, or delete its folder and run `bixse index` again"
    )


def shard_rows(documents: int, shards: int | None = None) -> int:
    """Return the number of documents per file of embeddings, for at least `shards` files of nearly equal size."""
    return min(SHARD_ROWS, -(-documents // (shards or 1)))


def write_texts(path: Path, documents: Iterable[tuple[str, Document]]) -> None:
    """Write ids, titles and texts of documents; the file appears complete or not at all."""
    rows = ({"id": name, "title": document.title, "text": document.text} for name, document in documents)
    with atomic_file(path) as file, table_writer(file, SCHEMA) as writer:
        while group := list(islice(rows, GROUP_ROWS)):
            writer.write_table(pa.Table.from_pylist(group, SCHEMA))


def read_texts(path: Path, start: int, number: int) -> list[str]:
    """Read the texts to encode of `number` documents, from document `start` on."""
    with open_table(path) as file:
        batches = row_batches(file, ["title", "text"], GROUP_ROWS, range(start, start + number))
        columns = pa.Table.from_batches([batch for _, batch in batches]).to_pydict()
    return [Document(*row).content for row in zip(columns["title"], columns["text"], strict=True)]


def embeddings_file(folder: Path, shard: int) -> Path:
    """Return the file of embeddings of a shard."""
    return folder / f"{shard:05d}.safetensors"


def write_embeddings(path: Path, embeddings: NDArray[np.float32]) -> None:
    """Write (n, D) embeddings with their SHA-256."""
    content = np.ascontiguousarray(embeddings, dtype=np.float32)
    write_atomically(path, save({TENSOR: content}, {"sha256": hashlib.sha256(content.data).hexdigest()}))


class IndexFiles:
    """The open files of an index: embeddings are memory-mapped or on a GPU, texts are read on request.

    A missing or damaged file raises InputError: the hash of embeddings is checked at their first use, the checksum of
    a page of texts at every read.
    """

    approximate = ""
    """Kind of approximate search: every document is scored."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder / manifest.folder, manifest
        self._shards = [self._mapped(shard) for shard in manifest.shards]
        self._unchecked = set(manifest.shards)
        self._path = self.folder / TEXTS
        with reading(self._path):
            self._texts = checked_file(self._path)
        if self._texts.metadata.num_rows != manifest.documents:
            raise damaged(self._path, f"{self._texts.metadata.num_rows} documents", f"{manifest.documents}")
        self._ids: pa.ChunkedArray | None = None
        self._searched: dict[int, torch.Tensor] = {}
        """Embeddings of shards on the device where they stay, `_home`."""

    def search(
        self, queries: NDArray[np.float32], top: int, exact: bool = True, texts: bool = True
    ) -> list[list[Match]]:
        """Return the best documents of (Q, D) queries, highest first; equal scores are in the order of the corpus.

        Every search is exact. Without `texts` the documents are empty.
        """
        from bixse.search.exact import TopK, search_device  # not at the top: it imports torch

        home = self._home if self._home != "cpu" else search_device(len(queries), self.manifest.documents)
        best = TopK(queries, top, home)
        for shard in self.manifest.shards:
            if shard not in self._searched:
                self._searched[shard] = self._shard(shard).to(self._home)
            best.add(self._searched[shard])
        scores, rows = best.result()
        wanted = rows.ravel().tolist()
        documents = iter(self.documents(wanted) if texts else [(name, NO_TEXT) for name in self._names(wanted)])
        return [
            [(name, score, document) for score, (name, document) in zip(line, documents, strict=False)]
            for line in scores.tolist()
        ]

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Return ids and documents of the rows, in the order of `rows`."""
        documents: dict[int, tuple[str, Document]] = {}
        size = self._texts.metadata.row_group(0).num_rows
        for group in sorted({row // size for row in rows}):
            wanted = [row for row in set(rows) if row // size == group]
            with reading(self._path):
                table = self._texts.read_row_group(group).take([row % size for row in wanted])
            for row, values in zip(wanted, table.to_pylist(), strict=True):
                documents[row] = values["id"], Document(values["title"], values["text"])
        return [documents[row] for row in rows]

    def embeddings(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the embeddings of rows from `start` to `stop`."""
        import torch

        rows = self.manifest.rows
        shards = range(start // rows, -(-stop // rows))
        parts = [self._shard(shard)[max(0, start - shard * rows) : stop - shard * rows] for shard in shards]
        return torch.cat(parts).numpy()

    def close(self) -> None:
        """Close the file of texts; the embeddings stay mapped as long as they are used."""
        self._texts.close()

    @cached_property
    def _home(self) -> str:
        from bixse.search.exact import home_of

        return home_of(4 * self.manifest.documents * self.manifest.encoder.dimensions)

    def _mapped(self, shard: int) -> tuple[torch.Tensor, str]:
        """Return the memory-mapped (n, D) embeddings of a shard, and their SHA-256 as written."""
        import torch

        path, manifest = embeddings_file(self.folder, shard), self.manifest
        shape = (min(manifest.rows, manifest.documents - shard * manifest.rows), manifest.encoder.dimensions)
        try:
            with safe_open(str(path), framework="pt") as file:
                tensor, digest = file.get_tensor(TENSOR), (file.metadata() or {}).get("sha256", "")
        except (SafetensorError, OSError) as error:
            raise damaged(path, str(error), "the tensor that was written") from error
        if tensor.shape != shape or tensor.dtype != torch.float32:
            raise damaged(path, f"{tensor.dtype} {tuple(tensor.shape)}", f"float32 {shape}")
        return tensor, digest

    def _shard(self, shard: int) -> torch.Tensor:
        tensor, written = self._shards[shard]
        # Hashed at the first use and not when opened, so that a large index opens at once.
        if shard in self._unchecked:
            if (digest := hashlib.sha256(tensor.numpy().data).hexdigest()) != written:
                path = embeddings_file(self.folder, shard)
                raise damaged(path, f"SHA-256 {digest[:12]}...", f"{written[:12]}...")
            self._unchecked.remove(shard)
        return tensor

    def _names(self, rows: Sequence[int]) -> list[str]:
        """Return the document ids of the rows; the ids of all documents then stay in memory."""
        if self._ids is None:
            with reading(self._path):
                self._ids = self._texts.read(columns=["id"]).column("id")
        names: list[str] = self._ids.take(pa.array(rows, pa.int64())).to_pylist()
        return names


def open_files(folder: Path) -> IndexFiles:
    """Open the index in a folder, even while another process replaces it."""
    manifest = read_manifest(folder)
    try:
        return IndexFiles(folder, manifest)
    except InputError:
        if read_manifest(folder) == manifest:
            raise
        return open_files(folder)  # replaced between run.json and the files
