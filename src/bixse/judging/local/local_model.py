"""Load a causal language model and its tokenizer from a folder, a package, a GGUF file or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from bixse.encoders.identity import model_hashes
from bixse.encoders.loading.build import quiet_loading
from bixse.encoders.loading.precision import default_device, resolve_precision
from bixse.errors import InputError, ModelError
from bixse.files.files import file_hash

if TYPE_CHECKING:
    from bixse.judging.judge import Dtype

UNLIMITED = 10**9
"""Tokenizers without a length of their own write a larger one."""


class LocalModel:
    """A judge's model: its tokenizer is loaded at once, its weights when they are used for the first time.

    Arguments as for `LocalJudge`. Quantised weights of a GGUF file are expanded. Raises InputError for no such device,
    and ModelError for no such model or tokenizer.
    """

    def __init__(
        self,
        name_or_path: str | Path,
        device: str | None = None,
        dtype: Dtype = "auto",
        revision: str | None = None,
        gguf_file: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.given = name_or_path
        self.source, file = _resolve(name_or_path, gguf_file)
        """The folder, or the name on the hub."""
        self._place = judge_device(device)
        self._dtype = weights_dtype(dtype, self._place)
        self._settings: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": trust_remote_code}
        if file is not None:
            self._settings["gguf_file"] = file
        local = Path(self.source).is_dir()
        try:
            with quiet_loading():
                self.tokenizer: Any = AutoTokenizer.from_pretrained(self.source, **self._settings)
                config = None if local else AutoConfig.from_pretrained(self.source, **self._settings)
        except Exception as error:
            raise unusable(name_or_path, error) from error
        self.device, self.dtype = str(self._place), str(self._dtype).removeprefix("torch.")
        if config is None:
            self.name, self.revision = file or Path(self.source).name, content_hash(Path(self.source), file)
        else:
            self.name = "/".join(part for part in (self.source, file) if part)
            self.revision = str(config._commit_hash or revision or "main")

    @cached_property
    def model(self) -> Any:
        """In evaluation mode; raises ModelError for what is no whole causal language model or finds no room."""
        try:
            with quiet_loading():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    self.source, dtype=self._dtype, output_loading_info=True, **self._settings
                )
        except Exception as error:
            raise unusable(self.given, error) from error
        model, loading = loaded
        if missing := sorted(loading["missing_keys"]):
            raise ModelError(
                f"judge {str(self.given)!r}: got no weights for {len(missing)} of its parameters "
                f"({', '.join(missing[:3])}); expected all of a causal language model; "
                "fix: name a model that writes text, not an encoder or a part of one"
            )
        try:
            return model.to(self._place).eval()
        except torch.OutOfMemoryError as error:
            raise ModelError(
                f"judge {str(self.given)!r}: got no room for its weights on {self.device}; expected a device with more "
                "memory; fix: choose a smaller model, or --device cpu"
            ) from error
        except (RuntimeError, AssertionError) as error:
            raise InputError(
                f"device: got {self.device!r} ({_first_line(error)}); expected one that this PyTorch has; "
                "fix: leave it out"
            ) from error

    def free(self) -> None:
        """The weights are read again when they are used again."""
        vars(self).pop("model", None)


def unusable(
    name_or_path: str | Path, error: Exception, expected: str = "a causal language model of transformers"
) -> ModelError:
    """The error of a model that cannot be loaded."""
    return ModelError(
        f"judge {str(name_or_path)!r}: got {type(error).__name__}: {_first_line(error)}; expected {expected}; "
        "fix: check the name, that the folder holds config.json, the weights and the tokenizer, and that a hub name "
        "can be reached"
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
    is_no_hub_name = path.suffix == ".gguf" or text.count("/") > 1 or text.startswith((".", "/", "~")) or "\\" in text
    if path.exists() or is_no_hub_name:
        what = "a file" if path.exists() else "no such file or folder"
        raise ModelError(
            f"judge {text!r}: got {what}; expected a model folder, a .gguf file or a hub name (owner/name); "
            "fix: check the path"
        )
    return text, gguf_file


def judge_device(name: str | None) -> torch.device:
    """Where a judge computes; None: the best device there is."""
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
