"""The settings that embedding servers read from a model's folder, and the older keys that some servers need.

sentence-transformers 5.4 renamed keys and module types in the folders it saves. The rules here come from
text-embeddings-inference (`router/src/lib.rs` and `backends/src/lib.rs` of July 2026), vLLM (`get_pooling_config`, pull
request 54533) and llama.cpp (`_try_set_pooling_type`, pull request 22087).
"""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bixse.errors import ModelError, shorten
from bixse.files.files import storage_errors, usual_modes, write_with_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
"""Pooling -> its key before sentence-transformers 5.4."""
NEEDED_KEYS = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")
"""Keys without which text-embeddings-inference refuses a pooling."""
NEW_TYPE = re.compile(
    r"sentence_transformers\.(?:base|sentence_transformer)\.modules\.\w+\.(Transformer|Pooling|Dense|Normalize)"
)
"""Types in modules.json since sentence-transformers 5.4, for the modules that servers know."""
OLD_TYPE = "sentence_transformers.models."
"""Beginning of these types before 5.4; later versions of sentence-transformers load it too."""
NO_LIMIT = 2**31
"""Lowest length limit that means no limit: transformers saves 10^30, which servers cannot read."""
POSITIONS_BEFORE = ("roberta", "xlm-roberta", "camembert")
"""Types of models that count positions from the number of the padding token + 1 on."""


@dataclass(frozen=True)
class Reading:
    """A model's folder as one reader understands it."""

    pooling: str = ""
    """Pooling (several are joined by "+"); "default" for the architecture's own, "" for none."""
    length: int | None = None
    """Tokens read per text; None for no limit."""
    normalised: bool = True
    left_out: tuple[str, ...] = ()
    """Folders of modules after the pooling that the reader does not apply."""
    prompts: bool = False
    """True if the reader applies the model's prompts; else the client writes them before the text."""
    refused: str = ""
    """Reason why the reader refuses the folder."""

    def differs_from(self, right: Reading, files: ModelFiles) -> list[str]:
        """Describe the differences from `right`, the reading of sentence-transformers, to a user."""
        if self.refused:
            return [f"refuses the folder: {self.refused}"]
        differences: list[str] = []
        if self is right:
            return differences
        if self.pooling != right.pooling:
            differences.append(f"pooling {self.pooling or 'none'} instead of {right.pooling or 'none'}")
        if self.length != right.length:
            differences.append(
                f"reads {self.length or 'any number of'} tokens instead of {right.length or 'any number'}"
            )
        if right.normalised and not self.normalised:
            differences.append("does not normalise")
        if self.left_out:
            differences.append(f"leaves out {', '.join(self.left_out)}")
        if files.prompts and not self.prompts:
            differences.append("the client must write the prompts")
        if files.prompts and files.pooling and not files.pooling.get("include_prompt", True):
            differences.append("pools the prompt too")
        return differences


class ModelFiles:
    """The settings in a model's folder; raises ModelError for a file that is not JSON of the right kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: dict[str, Any] = self.read("config.json") or {}
        self.text: dict[str, Any] | None = self.read("sentence_bert_config.json")
        self.modules: list[dict[str, Any]] = self.read("modules.json", list) or []
        for module in self.modules:
            if not {"type", "path"} <= set(module) or ".." in module["path"].split("/"):
                raise ModelError(
                    f"{folder}/modules.json: got {shorten(module)}; expected a type and a path inside; "
                    "fix: restore the file"
                )
        prompts = (self.read("config_sentence_transformers.json") or {}).get("prompts") or {}
        self.prompts = {name: text for name, text in prompts.items() if text}
        pooling = self.module("Pooling")
        self.pooling_file = f"{pooling['path']}/config.json" if pooling else None
        self.pooling: dict[str, Any] | None = self.read(self.pooling_file) if self.pooling_file else None

    def read(self, name: str, kind: type = dict) -> Any:
        path = self.folder / name
        try:
            content = json.loads(path.read_bytes()) if path.is_file() else None
        except ValueError as error:
            raise ModelError(f"{path}: got no JSON ({error}); expected settings; fix: restore the file") from error
        if content is not None and not isinstance(content, kind):
            raise ModelError(f"{path}: got a {type(content).__name__}; expected a {kind.__name__}; fix: restore it")
        return content

    def module(self, name: str, *, old: bool = True, new: bool = True) -> dict[str, Any] | None:
        """Return the entry of modules.json for a class, in the older or newer spelling of its type."""
        for module in self.modules:
            kind = NEW_TYPE.fullmatch(module["type"])
            if (old and module["type"] == OLD_TYPE + name) or (new and kind is not None and kind[1] == name):
                return module
        return None

    def left_out(self, *types: str) -> tuple[str, ...]:
        """Return the folders of the modules after the pooling, except these types and Normalize."""
        return tuple(m["path"] for m in self.modules[2:] if m["type"].rpartition(".")[2] not in ("Normalize", *types))

    @property
    def positions(self) -> int | None:
        """Number of tokens that have a position, from config.json."""
        number = self.config.get("max_position_embeddings", self.config.get("max_trained_positions"))
        before = self.config.get("model_type") in POSITIONS_BEFORE and (self.config.get("pad_token_id") or 0) + 1
        return number - before if number and number > 0 else None


def sentence_transformers(files: ModelFiles) -> Reading:
    """Read a folder as sentence-transformers 6 does."""
    pooling = files.pooling or {}
    mode = pooling.get("pooling_mode") or [name for name, key in POOLING_KEYS.items() if pooling.get(key)] or "mean"
    modes = [] if files.pooling is None else [mode] if isinstance(mode, str) else mode
    length = (files.text or {}).get("max_seq_length")
    if length is None:
        tokenizer = files.read("tokenizer_config.json") or {}
        limits = (files.config.get("max_position_embeddings"), tokenizer.get("model_max_length"))
        length = min((limit for limit in limits if limit and 0 < limit < NO_LIMIT), default=None)
    return Reading("+".join(modes), length, files.module("Normalize") is not None, prompts=True)


def text_embeddings_inference(files: ModelFiles) -> Reading:
    """Read a folder as text-embeddings-inference does, which normalises unless a request says otherwise."""
    for name in ("config.json", "tokenizer.json"):
        if not (files.folder / name).is_file():
            return Reading(refused=f"no {name}")
    pooling, length = files.read("1_Pooling/config.json"), files.positions
    if length is None:
        return Reading(refused="config.json without max_position_embeddings")
    if files.text is not None:
        length = files.text.get("max_seq_length")
        if length is None:
            return Reading(refused="sentence_bert_config.json without max_seq_length")
    if pooling is None and "bert" not in str(files.config.get("model_type")):
        return Reading(refused="no 1_Pooling/config.json")
    missing = [key for key in NEEDED_KEYS if pooling is not None and key not in pooling]
    if missing:
        return Reading(refused=f"1_Pooling/config.json without {' and '.join(missing)}")
    mode = "cls" if pooling is None else _first_old(pooling, "cls", "mean", "lasttoken")
    if mode is None:
        return Reading(refused="a pooling other than cls, mean and lasttoken")
    # with one type that it does not know, it applies no module after the pooling
    known = {OLD_TYPE + name for name in ("Transformer", "Pooling", "Dense", "Normalize")}
    left_out = () if {module["type"] for module in files.modules} <= known else files.left_out()
    return Reading(mode, length, True, left_out, prompts=True)


def vllm(files: ModelFiles, new: bool) -> Reading:
    """Read a folder as vLLM does, since or before September 2026."""
    length = files.positions
    if files.text is not None and {"max_seq_length", "do_lower_case"} <= files.text.keys():
        length = files.text["max_seq_length"]
    left_out = files.left_out("Dense") if new or files.module("Dense", new=False) else files.left_out()
    if not files.config:
        return Reading(refused="no config.json")
    if files.module("Pooling", new=new) is None or files.pooling is None:
        return Reading("default", length, left_out=left_out)
    mode = "default"
    for key, value in files.pooling.items():  # the last one counts
        name = value if new and key == "pooling_mode" else key.removeprefix("pooling_mode_") if value is True else ""
        mode = next((known for known in ("mean", "cls", "lasttoken") if str(name).split("_")[0] == known), mode)
    return Reading(mode, length, files.module("Normalize", new=new) is not None, left_out)


def llama_cpp(files: ModelFiles, new: bool) -> Reading:
    """Read a folder as llama.cpp's converter does, since or before April 2026; its server normalises."""
    left_out = files.left_out()
    if not files.config:
        return Reading(refused="no config.json")
    if files.module("Pooling", new=new) is None or files.pooling is None:
        return Reading("", files.positions, left_out=left_out)
    mode = _first_old(files.pooling, "mean", "cls", "lasttoken")
    if not new and POOLING_KEYS["mean"] not in files.pooling:
        return Reading(refused=f"{files.pooling_file} without {POOLING_KEYS['mean']}")
    if new and mode is None and files.pooling.get("pooling_mode") in ("mean", "cls", "lasttoken"):
        mode = files.pooling["pooling_mode"]
    if mode is None:
        return Reading(refused="a pooling other than mean, cls and lasttoken")
    return Reading(mode, files.positions, left_out=left_out)


def _first_old(pooling: Mapping[str, Any], *modes: str) -> str | None:
    return next((mode for mode in modes if pooling.get(POOLING_KEYS[mode])), None)


READERS: dict[str, Callable[[ModelFiles], Reading]] = {
    "sentence-transformers": sentence_transformers,
    "text-embeddings-inference": text_embeddings_inference,
    "vLLM before September 2026": partial(vllm, new=False),
    "vLLM since": partial(vllm, new=True),
    "llama.cpp before April 2026": partial(llama_cpp, new=False),
    "llama.cpp since": partial(llama_cpp, new=True),
}


def older_settings(files: ModelFiles) -> dict[str, Any]:
    """Return file name -> content with the keys that servers need, for the files that lack them and can have them."""
    changed: dict[str, Any] = {}
    right = sentence_transformers(files)
    if files.pooling is not None and files.pooling_file and not set(NEEDED_KEYS) <= files.pooling.keys():
        modes = {key: mode in right.pooling.split("+") for mode, key in POOLING_KEYS.items()}
        # No word_embedding_dimension: next to embedding_dimension it makes sentence-transformers warn. The new keys
        # come last: vLLM of 2024 took the first key that is true, include_prompt too, for the pooling.
        changed[files.pooling_file] = {**modes, **files.pooling}
    limits = {"max_seq_length": right.length, "do_lower_case": False}
    if files.text is not None and right.length is not None and not limits.keys() <= files.text.keys():
        changed["sentence_bert_config.json"] = {**limits, **files.text}
    # keys are added and none is changed; all versions know the older name of the same class
    modules = [{**module, "type": NEW_TYPE.sub(rf"{OLD_TYPE}\1", module["type"])} for module in files.modules]
    if modules != files.modules:
        changed["modules.json"] = modules
    return changed


@contextmanager
def saved_for_servers(folder: Path) -> Iterator[None]:
    """Save a model inside the block with usual modes and settings for older servers; raises StorageError."""
    with storage_errors(folder), usual_modes(folder):  # safetensors has an error of its own for a full disk
        yield
    add_older_settings(folder)


def add_older_settings(folder: Path) -> list[str]:
    """Write the settings for older servers into a model's folder, update its hashes, and return the changed files."""
    # a later `save` of plain sentence-transformers drops these settings again
    changed = older_settings(ModelFiles(folder))
    for name, content in changed.items():
        write_with_hash(folder / name, json.dumps(content, indent=2) + "\n", folder)
    return list(changed)
