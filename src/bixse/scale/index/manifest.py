"""What a search index says of itself: the encoder, the settings, the measured recall, and every file with its hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bixse.errors import InputError, OutputExistsError, first_fault
from bixse.files.files import file_hash, read_text
from bixse.progress import size

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = r"(embeddings-\d{5,}|documents)-[0-9a-f]{16}\.[a-z]+"
MANIFEST_FILE = "manifest.json"
"""Written last: a folder without it holds no index."""
StoredType: TypeAlias = Literal["float32", "float16"]
"""Numbers that embeddings are stored in."""


class _Record(BaseModel):
    """Frozen, closed to unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StoredFile(_Record):
    """A file of the index; its name holds its hash, so that two versions never share a name."""

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
        """Hold the file against its hash; raises InputError."""
        try:
            digest = file_hash(folder / self.name)
        except OSError as error:
            raise damaged(folder / self.name, error.strerror or str(error), "a readable file") from error
        if digest != self.sha256:
            raise damaged(folder / self.name, f"SHA-256 {digest[:12]}...", f"{self.sha256[:12]}...")


class EncoderIdentity(_Record):
    """What an encoder must be to search an index."""

    name: str
    """Folder or hub name it was loaded from; it may be at another place later."""
    weights: str
    """Hash of all that document embeddings depend on: weights, modules, tokenizer, document prompt, length limit."""
    prompts: str
    """Hash of all prompts, those of queries too."""
    document_prompt: str | None
    task: str | None
    """Task whose instructions were used."""
    max_length: int | None
    """Tokens of a text that are read; None is the model's own limit."""
    dimensions: Annotated[int, Field(ge=1)]


class AnnSettings(_Record):
    """The approximate index of a vector database, in its own words."""

    factory: str
    """Kind of index: "HNSW32", "IVF316,SQ8", ..."""
    parameters: str
    """How far it is searched: "hnsw_ef=128", "nprobe=79", ..."""


class Recall(_Record):
    """Share of the documents found by exact search that an approximate one finds, 0 to 1."""

    at_10: float
    at_100: float
    queries: int
    """Number of queries measured on."""
    source: str
    """What they were, in words."""


class Manifest(_Record):
    """What is known of an index."""

    format: Literal[2] = 2
    created: str
    encoder: EncoderIdentity
    corpus: str
    """SHA-256 of the corpus file."""
    dtype: StoredType
    precision: str
    """What the encoder computed in."""
    documents: Annotated[int, Field(ge=1)]
    embeddings: tuple[StoredFile, ...] = ()
    """(n, D) each, in the order of the corpus."""
    texts: StoredFile | None = None
    """Ids, titles and texts; None only while the index is made."""
    ann: AnnSettings | None = None
    """None: every document is scored."""
    recall: Recall | None = None

    @property
    def files(self) -> list[StoredFile]:
        return [*self.embeddings, *([self.texts] if self.texts is not None else [])]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def check_same(self, wanted: Manifest, place: object, fix: str, corpus: bool = False) -> None:
        """Refuse another encoder or other numbers than those wanted, and with `corpus` another corpus.

        Raises:
            OutputExistsError: this is what is at the place; it stays.
        """
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
    """The manifest in a folder; raises InputError where there is none, or one that is damaged or of another version."""
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
    """Whether a folder holds a finished index."""
    return (folder / MANIFEST_FILE).is_file()


def damaged(path: Path, found: str, expected: str) -> InputError:
    """The error for a file that is not as it was written."""
    return InputError(
        f"{path}: got a damaged file of the index ({found}); expected {expected}; fix: copy the index from where "
        "it is whole, or delete its folder and run `bixse index` again"
    )
