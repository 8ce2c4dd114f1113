"""The manifest and files of an index: embeddings in memory-mapped safetensors; ids, titles and texts in Parquet."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.collection import Document
from bixse.errors import InputError, OutputExistsError, first_fault
from bixse.files.files import atomic_file, file_hash, read_text
from bixse.files.parquet import checked_file, open_table, reading, table_writer
from bixse.progress import size
from bixse.scale.index.index_settings import StoredType
from bixse.search.exact import TopK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt


FILE_NAME = r"(embeddings-\d{5,}|documents)-[0-9a-f]{16}\.[a-z]+"
MANIFEST_FILE = "manifest.json"
"""File name of the manifest; it is written last, so a folder without it holds no index."""
TENSOR = "documents"
SHARD_ROWS = 65_536
"""Maximum number of documents per file of embeddings."""
SHARD_NUMBERS = 1 << 25
"""Maximum number of values per file of embeddings: 128 MiB as float32, in memory while the file is written."""
GROUP_ROWS = 256
"""Minimum number of documents per row group of Parquet; a shard holds a multiple of it."""
MOST_GROUPS = 1 << 18
"""Maximum number of row groups: each shard reads the footer of all; Parquet with more than 10^6 is not opened."""
SCHEMA = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StoredFile(_Record):
    """A file of the index. Its name holds its hash, so that two versions never share a name."""

    name: Annotated[str, Field(pattern=rf"^{FILE_NAME}$")]
    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> StoredFile:
        """Rename a file after its hash."""
        digest = file_hash(path)
        path = path.replace(path.with_name(f"{path.stem}-{digest[:16]}{path.suffix}"))
        return cls(name=path.name, size=path.stat().st_size, sha256=digest)

    def check_size(self, folder: Path) -> None:
        path = folder / self.name
        size = path.stat().st_size if path.is_file() else None
        if size != self.size:
            found = "no such file" if size is None else f"{size} bytes"
            raise damaged(path, found, f"the {self.size} bytes that were written")

    def check(self, folder: Path) -> None:
        """Raise InputError if the file differs from its hash."""
        try:
            digest = file_hash(folder / self.name)
        except OSError as error:
            raise damaged(folder / self.name, error.strerror or str(error), "a readable file") from error
        if digest != self.sha256:
            raise damaged(folder / self.name, f"SHA-256 {digest[:12]}...", f"{self.sha256[:12]}...")


class EncoderIdentity(_Record):
    """The properties that an encoder must have to search an index."""

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


class AnnSettings(_Record):
    """The approximate index of a vector database, in the terms of the database."""

    factory: str
    """Kind of index: "HNSW32", "IVF316,SQ8", ..."""
    parameters: str
    """Search effort: "hnsw_ef=128", "nprobe=79", ..."""


class Recall(_Record):
    """The share of the documents of exact search that an approximate search finds, 0 to 1."""

    at_10: float
    at_100: float
    queries: int
    source: str
    """Description of the queries."""


class Manifest(_Record):
    """The description of an index: encoder, settings, measured recall, and every file with its hash."""

    format: Literal[2] = 2
    created: str
    encoder: EncoderIdentity
    corpus: str
    """SHA-256 of the corpus file."""
    dtype: StoredType
    precision: str
    """Precision in which the encoder computed."""
    documents: Annotated[int, Field(ge=1)]
    embeddings: tuple[StoredFile, ...] = ()
    """Files of (n, D) embeddings, in the order of the corpus."""
    texts: StoredFile | None = None
    """File of ids, titles and texts; None only while the index is made."""
    ann: AnnSettings | None = None
    """Approximate index; None if every document is scored."""
    recall: Recall | None = None

    @property
    def files(self) -> list[StoredFile]:
        return [*self.embeddings, *([self.texts] if self.texts is not None else [])]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def check_same(self, wanted: Manifest, place: object, fix: str, corpus: bool = False) -> None:
        """Raise OutputExistsError for another encoder or dtype than `wanted`, and with `corpus` for another corpus."""
        fields = {"dtype", "precision", *(("corpus", "documents") if corpus else ())}
        one, other = (
            {**manifest.model_dump(include=fields), **manifest.encoder.model_dump(exclude={"name"})}
            for manifest in (self, wanted)
        )
        if different := [name for name in one if one[name] != other[name]]:
            raise OutputExistsError(
                f"{place}: got an index of {self.encoder.name!r} with another {' and '.join(different)}; expected one "
                f"of the same {'corpus, ' if corpus else ''}encoder and settings; fix: {fix}"
            )

    def lines(self, folder: Path | str) -> list[str]:
        kind = "exact" if self.ann is None else f"{self.ann.factory} ({self.ann.parameters})"
        stored = f", {size(self.size)}" if self.files else ""
        found = [
            f"{folder}: {self.documents:,} documents, {kind}, {self.dtype}{stored}",
            f"model: {self.encoder.name}, {self.encoder.dimensions} dimensions",
        ]
        return [*found, *self.recall_lines()]

    def recall_lines(self) -> list[str]:
        if self.recall is None:
            return []
        recall = self.recall
        found = f"{recall.at_10:.3f} at 10, {recall.at_100:.3f} at 100 ({recall.queries} {recall.source})"
        return [f"recall against exact search: {found}"]

    def figures(self) -> dict[str, Any]:
        return {**self.model_dump(include={"documents", "dtype", "encoder", "ann", "recall"}), "bytes": self.size}


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest in a folder; raise InputError if it is missing, damaged or of another version."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        found = "a folder without an index" if folder.is_dir() else "a file" if folder.exists() else "no such folder"
        raise InputError(
            f"{folder}: got {found}; expected a finished index; fix: check the path, or run "
            "`bixse index MODEL --collection DIR --out INDEX`"
        )
    try:
        return Manifest.model_validate_json(read_text(path))
    except ValidationError as error:
        raise damaged(path, first_fault(error), "the JSON that this version writes") from error


def is_index(folder: Path) -> bool:
    """Return True if a folder holds a finished index."""
    return (folder / MANIFEST_FILE).is_file()


def damaged(path: Path, found: str, expected: str) -> InputError:
    """Return the error for a file that differs from what was written."""
    return InputError(
        f"{path}: got a damaged file of the index ({found}); expected {expected}; fix: copy the index from where "
        "it is whole, or delete its folder and run `bixse index` again"
    )


def shard_rows(dimensions: int, documents: int, shards: int = 1) -> int:
    """Return the number of documents per file of embeddings, a multiple of `GROUP_ROWS`, for about `shards` files."""
    most = min(SHARD_ROWS, SHARD_NUMBERS // dimensions) // GROUP_ROWS
    wanted = -(-documents // (shards * GROUP_ROWS)) if shards > 1 else most
    return max(1, min(most, wanted)) * GROUP_ROWS


def group_rows(documents: int) -> int:
    """Return the number of documents per row group: `GROUP_ROWS`, for a large corpus twice, four times, ... as many."""
    return GROUP_ROWS << (max(0, documents - 1) // (GROUP_ROWS * MOST_GROUPS)).bit_length()


def write_texts(path: Path, documents: Iterable[tuple[str, Document]], number: int) -> None:
    """Write ids, titles and texts of `number` documents; the file appears complete or not at all."""
    together = group_rows(number)
    rows = ({"id": name, "title": document.title, "text": document.text} for name, document in documents)
    with atomic_file(path) as file, table_writer(file, SCHEMA) as writer:
        while group := list(islice(rows, together)):
            writer.write_table(pa.Table.from_pylist(group, SCHEMA))


def read_texts(path: Path, start: int, number: int) -> list[str]:
    """Read the texts to encode of `number` documents, from document `start` on."""
    with open_table(path) as file:
        size = file.metadata.row_group(0).num_rows
        groups = range(start // size, min(file.num_row_groups, -(-(start + number) // size)))
        table = file.read_row_groups(list(groups), columns=["title", "text"])
    columns = table.slice(start % size, number).to_pydict()
    return [Document(*found).content for found in zip(columns["title"], columns["text"], strict=True)]


def stream_texts(path: Path) -> Iterator[tuple[str, Document]]:
    """Yield ids and documents one by one, in file order."""
    with open_table(path) as file:
        for group in range(file.num_row_groups):
            columns = file.read_row_group(group).to_pydict()
            for name, title, text in zip(columns["id"], columns["title"], columns["text"], strict=True):
                yield name, Document(title, text)


def embeddings_content(embeddings: npt.NDArray[np.float32], dtype: StoredType) -> bytes:
    """Return the file content of (n, D) embeddings."""
    return bytes(save({TENSOR: np.ascontiguousarray(embeddings, dtype=dtype)}))


class IndexFiles:
    """The open files of an index: embeddings are memory-mapped, texts are read on request.

    The hash of a file of embeddings is checked at its first use, the checksum of a page of texts at every read; a
    missing or damaged file raises InputError.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        for file in manifest.files:
            file.check_size(folder)
        self._shards = [self._mapped(file) for file in manifest.embeddings]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._used: set[int] = set()
        if manifest.texts is None or self._starts[-1] != manifest.documents:
            raise damaged(folder, f"{self._starts[-1]} embeddings", f"{manifest.documents}, and texts")
        self._texts_path = folder / manifest.texts.name
        with reading(self._texts_path):
            self._texts = checked_file(self._texts_path)
        self._ids: pa.ChunkedArray | None = None

    def exact(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Return scores and rows, each (Q, k), of the best documents for (Q, D) queries, as `exact_search` does."""
        best = TopK(queries, top)
        for number in range(len(self._shards)):
            best.add(self.shard(number))
        return best.result()

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        found = np.empty((len(rows), self.manifest.encoder.dimensions), dtype=np.float32)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard_of):
            own = np.flatnonzero(shard_of == number)
            found[own] = self.shard(number)[torch.from_numpy(rows[own] - self._starts[number])].float().numpy()
        return found

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Return ids and documents of the rows, in the order of `rows`."""
        found: dict[int, tuple[str, Document]] = {}
        size = self._texts.metadata.row_group(0).num_rows
        for group in sorted({row // size for row in rows}):
            wanted = [row for row in set(rows) if row // size == group]
            with reading(self._texts_path):
                table = self._texts.read_row_group(group).take([row % size for row in wanted])
            for row, values in zip(wanted, table.to_pylist(), strict=True):
                found[row] = values["id"], Document(values["title"], values["text"])
        return [found[row] for row in rows]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """Return the document ids of the rows; the ids of all documents then stay in memory."""
        if self._ids is None:
            with reading(self._texts_path):
                self._ids = self._texts.read(columns=["id"]).column("id")
        ids: list[str] = self._ids.take(pa.array(rows, pa.int64())).to_pylist()
        return ids

    def check(self) -> None:
        for file in self.manifest.files:
            file.check(self.folder)

    def close(self) -> None:
        """Close the files; the embeddings stay mapped as long as they are used."""
        self._texts.close()

    @property
    def rows(self) -> int:
        """Return the number of documents per file of embeddings; the last file may hold fewer."""
        return len(self._shards[0])

    def shard(self, number: int) -> torch.Tensor:
        """Return the memory-mapped (n, D) embeddings of one file."""
        file = self.manifest.embeddings[number]
        if number not in self._used and (self.folder / file.name).exists():  # a replaced file stays mapped
            file.check(self.folder)
        self._used.add(number)
        return self._shards[number]

    def _mapped(self, file: StoredFile) -> torch.Tensor:
        path, dimensions = self.folder / file.name, self.manifest.encoder.dimensions
        try:
            with safe_open(str(path), framework="pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(TENSOR)
        except (SafetensorError, OSError) as error:
            raise damaged(path, str(error), "the tensor that was written") from error
        if tensor.ndim != 2 or tensor.shape[1] != dimensions:
            raise damaged(path, f"shape {tuple(tensor.shape)}", f"(n, {dimensions})")
        return tensor


def open_files(folder: Path) -> IndexFiles:
    """Open the index in a folder, even while another process replaces it."""
    manifest = read_manifest(folder)
    try:
        return IndexFiles(folder, manifest)
    except InputError:
        if read_manifest(folder) == manifest:
            raise
        return open_files(folder)  # replaced between manifest and files
