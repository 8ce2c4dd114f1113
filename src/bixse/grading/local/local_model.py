"""Load a causal language model and its tokenizer from a folder, a package, a GGUF file or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bixse.data.io.files import file_hash
from bixse.encoders.identity import model_hashes
from bixse.encoders.loading.build import quiet_loading
from bixse.encoders.loading.precision import default_device, resolve_precision
from bixse.errors import InputError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.grading.judge import Dtype

UNLIMITED = 10**9
"""Tokenizers without a length of their own write a larger one."""


@dataclass(frozen=True)
class LocalModel:
    """A causal language model whose weights are read when they are used for the first time."""

    tokenizer: Any
    name: str
    """The hub name, or the name of the folder or file."""
    revision: str
    """Commit of the hub, or SHA-256 over the files of a folder."""
    device: str
    dtype: str
    load: Callable[[], Any]
    """Reads the weights."""

    @cached_property
    def model(self) -> Any:
        """The model of transformers in evaluation mode.

        Raises:
            InputError: a device that this PyTorch does not have.
            ModelError: no causal language model, weights that are missing, or no room for them.
        """
        return self.load()

    def free(self) -> None:
        """Free the weights; they are read again when they are used again."""
        vars(self).pop("model", None)


def load_local_model(
    name_or_path: str | Path,
    device: str | None = None,
    dtype: Dtype = "auto",
    revision: str | None = None,
    gguf_file: str | None = None,
    trust_remote_code: bool = False,
) -> LocalModel:
    """Find a judge's model and load its tokenizer; its weights are read when they are used.

    Args:
        name_or_path: model folder, GGUF file, installed Python package that carries a GGUF file, or hub name.
        device: "cpu", "cuda", ...; None: the best there is.
        dtype: number type of the weights.
        revision: branch, tag or commit of a hub name.
        gguf_file: name of the GGUF file in the folder or on the hub; its quantised weights are expanded.
        trust_remote_code: run code that comes with the model; only for sources you trust.

    Raises:
        InputError: no such device.
        ModelError: no such model, or no tokenizer.
    """
    source, file = _resolve(name_or_path, gguf_file)
    place = judge_device(device)
    number = weights_dtype(dtype, place)
    local = Path(source).is_dir()
    settings: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
    if file is not None:
        settings["gguf_file"] = file
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(source, **settings)
            commit = None if local else AutoConfig.from_pretrained(source, **settings)._commit_hash
    except Exception as error:
        raise unusable(name_or_path, error) from error
    return LocalModel(
        tokenizer=tokenizer,
        name=(file or Path(source).name) if local else "/".join(part for part in (source, file) if part),
        revision=content_hash(Path(source), file) if local else str(commit or revision or "main"),
        device=str(place),
        dtype=str(number).removeprefix("torch."),
        load=partial(_load_weights, name_or_path, source, place, number, settings),
    )


def _load_weights(
    name_or_path: str | Path, source: str, place: torch.device, number: torch.dtype, settings: dict[str, Any]
) -> Any:
    try:
        with quiet_loading():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=number, output_loading_info=True, **settings
            )
    except Exception as error:
        raise unusable(name_or_path, error) from error
    model, loading = loaded
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelError(
            f"judge {str(name_or_path)!r}: got no weights for {len(missing)} of its parameters "
            f"({', '.join(missing[:3])}); expected all of a causal language model; "
            "fix: name a model that writes text, not an encoder or a part of one"
        )
    try:
        return model.to(place).eval()
    except (RuntimeError, AssertionError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise ModelError(
                f"judge {str(name_or_path)!r}: got no room for its weights on {place}; expected a device with more "
                "memory; fix: choose a smaller model, or --device cpu"
            ) from error
        raise InputError(
            f"device: got {str(place)!r} ({_first_line(error)}); expected one that this PyTorch has; fix: leave it out"
        ) from error


def unusable(name_or_path: str | Path, error: Exception, expected: str = "a causal language model") -> ModelError:
    """The error of a model that cannot be loaded."""
    return ModelError(
        f"judge {str(name_or_path)!r}: got {type(error).__name__}: {_first_line(error)}; expected {expected} of "
        "transformers; fix: check the name, that the folder holds config.json, the weights and the tokenizer, and that "
        "a hub name can be reached"
    )


def _resolve(name_or_path: str | Path, gguf_file: str | None) -> tuple[str, str | None]:
    """Folder or hub name, and the GGUF file in it."""
    path = Path(name_or_path)
    if path.is_file() and path.suffix == ".gguf":
        return str(path.parent), path.name
    text = str(name_or_path)
    if not path.is_dir() and text.isidentifier():
        found = importlib.util.find_spec(text)
        if found is not None and found.submodule_search_locations:
            path = Path(next(iter(found.submodule_search_locations)))
    if path.is_dir():
        files = sorted(file.name for file in path.glob("*.gguf"))
        if gguf_file is None and not (path / "config.json").is_file() and len(files) == 1:
            return str(path), files[0]
        wanted = gguf_file or "config.json"
        if not (path / wanted).is_file():
            raise ModelError(
                f"judge {text!r}: got a folder without {wanted}; expected a model; fix: "
                + (f"name one of its files: {', '.join(files)}" if files else "name the folder that holds it")
            )
        return str(path), gguf_file
    if path.exists() or text.count("/") > 1 or text.startswith((".", "/", "~")) or "\\" in text:
        what = "a file" if path.exists() else "no such folder"
        raise ModelError(
            f"judge {text!r}: got {what}; expected a model folder, a .gguf file or a hub name (owner/name); "
            "fix: check the path"
        )
    return text, gguf_file


def judge_device(name: str | None) -> torch.device:
    """Where a judge computes; None: the best device there is.

    Raises:
        InputError: no such device.
    """
    best = "mps" if torch.backends.mps.is_available() else default_device()
    try:
        return torch.device(name or best)
    except RuntimeError as error:
        raise InputError(f"device: got {name!r}; expected cpu, cuda, cuda:0 or mps; fix: leave it out") from error


def weights_dtype(name: Dtype, device: torch.device) -> torch.dtype:
    """The number type of a judge's weights."""
    found: torch.dtype = getattr(torch, resolve_precision(device=device) if name == "auto" else name)
    return found


def content_hash(folder: Path, gguf_file: str | None = None) -> str:
    """SHA-256 over the contents of a model's files."""
    if gguf_file is not None:
        return file_hash(folder / gguf_file)
    return hashlib.sha256(json.dumps(model_hashes(folder), sort_keys=True).encode("utf-8")).hexdigest()


def longest_input(config: Any, *limits: int | None) -> int | None:
    """Most tokens that a model reads by its table of positions and these limits; None where nothing limits it."""
    limits = (*limits, getattr(config.get_text_config(), "max_position_embeddings", None))
    return min((int(limit) for limit in limits if limit and 0 < limit < UNLIMITED), default=None)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:200]
