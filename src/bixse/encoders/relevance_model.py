"""`RelevanceModel`: a SentenceTransformer that also gives probabilities of relevance, and how it is saved."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import fullname, load_file_path

from bixse.data.task_instructions import RESERVED, Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import HEAD_FILE, RelevanceHead, load_heads, save_heads
from bixse.encoders.instructions import INSTRUCTIONS_FILE, read_instructions
from bixse.encoders.loading.backbones import BidirectionalTransformer
from bixse.encoders.serving import saved_for_servers
from bixse.errors import InputError, ModelError, shorten
from bixse.files.files import drop_hashes, is_unicode, storage_errors, write_atomically, write_hashes
from bixse.relevance import best_first


class RelevanceModel(SentenceTransformer):
    """A SentenceTransformer with a relevance head; saved folders load in plain SentenceTransformer too.

    `head` and `instructions` (a table of task instructions) are None where the model folder does not hold them.
    """

    backbone_files: dict[str, Any] | None = None
    """Arguments of `from_pretrained` to read a bare backbone again, pooled by sentence-transformers; else None."""
    was_decoder = False
    """True for a bare decoder that was made an encoder in this process."""
    native_max_length: int | None = None
    """Tokens per text that the model read before another limit was set; else None."""

    def __init__(self, model_name_or_path: str | None = None, **kwargs: Any) -> None:
        # sentence-transformers imports only its own modules unless told to trust: this class is given by name
        self._module_classes = {fullname(BidirectionalTransformer): BidirectionalTransformer, **self._module_classes}
        super().__init__(model_name_or_path, **kwargs)
        source: dict[str, Any] = {name: kwargs.get(name) for name in ("token", "cache_folder", "revision")}
        source["local_files_only"] = kwargs.get("local_files_only", False)
        files = [
            load_file_path(model_name_or_path, name, **source) if model_name_or_path is not None else None
            for name in (HEAD_FILE, INSTRUCTIONS_FILE)
        ]
        self.heads: dict[int | None, RelevanceHead] = load_heads(Path(files[0]).parent) if files[0] else {}
        """Dimensions that embeddings are cut to -> head; None: of the whole embedding."""
        self.instructions: Instructions | None = read_instructions(Path(files[1]).parent) if files[1] else None
        self.task: str | None = None
        """Task whose instructions are in use; None: the table's default."""

    @classmethod
    def copy_of(cls, model: SentenceTransformer, device: str | None = None) -> Self:
        """Return what saving and loading a model would give, without files; the model stays as it is."""
        # not a copy of the model itself: a trainer leaves a wrapped `forward` on it
        made = cls(
            modules=[copy.deepcopy(module) for module in model],
            device=device or str(model.device),
            prompts=dict(model.prompts),
            default_prompt_name=model.default_prompt_name,
            similarity_fn_name=model.similarity_fn_name,
            truncate_dim=model.truncate_dim,
            trust_remote_code=model.trust_remote_code,
        )
        made.module_kwargs = copy.deepcopy(model.module_kwargs)
        made.heads, made.instructions = dict(getattr(model, "heads", {})), getattr(model, "instructions", None)
        return made

    @property
    def head(self) -> RelevanceHead | None:
        """The relevance head for embeddings as long as the model gives them now, or None."""
        return self.heads.get(self._cut)

    @head.setter
    def head(self, head: RelevanceHead | None) -> None:
        self.heads.pop(self._cut, None)
        if head is not None:
            self.heads[self._cut] = replace(head, dimensions=self._cut)

    @property
    def _cut(self) -> int | None:
        """The dimensions that embeddings are cut to; None if they are not shortened."""
        given = self.get_embedding_dimension()
        with self.truncate_embeddings(None):
            return given if given != self.get_embedding_dimension() else None

    def _load_default_modules(self, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        # sentence-transformers calls this, and only this, for files without modules of its own
        self.backbone_files = {
            "pretrained_model_name_or_path": model_name_or_path,
            "cache_dir": kwargs.get("cache_folder"),
            "revision": kwargs.get("revision"),
            "local_files_only": kwargs.get("local_files_only", False),
        }
        return super()._load_default_modules(model_name_or_path, *args, **kwargs)

    def relevance(self, query: str, documents: Sequence[str]) -> NDArray[np.float64]:
        """Return (N,) probabilities, in [0, 1], that N documents are relevant for a query."""
        check_texts(query, documents)
        if self.head is None:
            other = ", ".join(str(cut or "all") for cut in self.heads)
            raise ModelError(
                f"relevance: got a model without a relevance head for embeddings of {self.get_embedding_dimension()} "
                f"dimensions{f' (it has one for {other})' if other else ''}; expected one trained or calibrated by "
                "bixse; fix: run `bixse calibrate MODEL --collection DIR`, with --dimensions if embeddings are cut"
            )
        return self.head.probability(self._cosines(query, documents))

    def _cosines(self, query: str, documents: Sequence[str]) -> NDArray[np.float64]:
        queries = encode_texts(self, [query], "query")
        cosines: NDArray[np.float64] = (queries @ encode_texts(self, documents, "document").T)[0].astype(np.float64)
        return cosines

    def rank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, return_documents: bool = False
    ) -> list[dict[str, Any]]:
        """Rank documents as `CrossEncoder.rank` does; scores are probabilities, or cosines without a head."""
        check_texts(query, documents)
        scores = self._cosines(query, documents) if self.head is None else self.relevance(query, documents)
        return best_first(scores.tolist(), documents, top_k, return_documents)

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Preprocess as sentence-transformers does; raises InputError for numbers."""
        # its trainer takes labels from the column `label` alone, and tokenises a column of another name as texts
        if len(inputs) and isinstance(inputs[0], (int, float)):
            raise InputError(
                f"model: got the number {inputs[0]!r} as a text; expected a text; fix: name the relevance column of "
                "the data set `label`; every other column is read as text (Pairs.to_dataset() names it so)"
            )
        features: dict[str, Any] = super().preprocess(inputs, prompt=prompt, **kwargs)
        return features

    def save(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Save the model with its head, instructions and the settings for older servers; raises StorageError."""
        drop_hashes(Path(path))  # they belong to the older files
        prompts = self.prompts
        if self.instructions is not None and self.task is not None:  # the chosen task is not part of the model
            others = {name: text for name, text in prompts.items() if name not in RESERVED}
            self.prompts = {**others, **self.instructions.prompts()}
        try:
            with saved_for_servers(Path(path)):
                super().save(path, *args, **kwargs)
        finally:
            self.prompts = prompts
        if self.instructions is not None:
            text = json.dumps(self.instructions.model_dump(), indent=2, ensure_ascii=False)
            write_atomically(Path(path) / INSTRUCTIONS_FILE, f"{text}\n")
        save_heads(self.heads, Path(path))


def check_texts(query: Any, documents: Any) -> None:
    """Refuse, by an InputError, arguments of `relevance` that are no text and no list of texts."""
    if isinstance(documents, (str, bytes, Mapping, Set)) or not isinstance(documents, Collection):
        got, fix = shorten(documents), "[document]"
        if isinstance(documents, Mapping | Set):
            fix = "list(documents.values())" if isinstance(documents, Mapping) else "list(documents)"
        raise InputError(f"relevance: got {got} as documents; expected a list of texts; fix: write {fix}")
    if isinstance(query, list | tuple):
        got = shorten(query)
        raise InputError(f"relevance: got {got} as query; expected one text; fix: call it once per query")
    others = [text for text in (query, *documents) if not isinstance(text, str) or not is_unicode(text)]
    if others:
        got = shorten(others[0])
        raise InputError(f"relevance: got {got} as a text; expected strings, in UTF-8; fix: correct it or leave it out")


def save_whole(model: RelevanceModel, folder: Path, card: str = "") -> None:
    """Replace `folder` by a model with hashes and a Markdown section of its card; raises StorageError."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a killed process; renaming leaves no half-written model
    with storage_errors(folder):
        part.parent.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(str(part))
        if card:
            path = part / "README.md"
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            write_atomically(path, f"{text.rstrip()}\n\n{card}".lstrip())
        write_hashes(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
