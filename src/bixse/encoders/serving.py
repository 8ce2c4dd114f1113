"""Settings under their older names, which embedding servers read from a model's folder.

sentence-transformers 5.4 renamed keys and module types in the folders it saves. The rules here come from
text-embeddings-inference (`router/src/lib.rs` and `backends/src/lib.rs` of July 2026), vLLM (`get_pooling_config`, pull
request 54533) and llama.cpp (`_try_set_pooling_type`, pull request 22087).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bixse.errors import ModelError, shorten
from bixse.files.files import storage_errors, usual_modes, write_with_hash

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
OLD_TYPE = r"sentence_transformers.models.\1"
"""These types before 5.4; later versions of sentence-transformers load them too."""
NO_LIMIT = 2**31
"""Lowest length limit that means no limit: transformers saves 10^30, which servers cannot read."""


def older_settings(folder: Path) -> dict[str, Any]:
    """Return file name -> content with the keys that servers need, for the files of a model's folder that lack them.

    Raises ModelError for a file that is not JSON of the right kind.
    """
    changed: dict[str, Any] = {}
    modules: list[dict[str, Any]] = _read(folder / "modules.json", list) or []
    for module in modules:
        if not {"type", "path"} <= set(module) or ".." in module["path"].split("/"):
            raise ModelError(
                f"{folder}/modules.json: got {shorten(module)}; expected a type and a path inside; "
                "fix: restore the file"
            )
        name = f"{module['path']}/config.json"
        pooling = _read(folder / name) if module["type"].rpartition(".")[2] == "Pooling" else None
        if pooling is not None and not set(NEEDED_KEYS) <= pooling.keys():
            modes = pooling.get("pooling_mode") or "mean"
            modes = [modes] if isinstance(modes, str) else modes
            # No word_embedding_dimension: next to embedding_dimension it makes sentence-transformers warn. The new keys
            # come last: vLLM of 2024 took the first key that is true, include_prompt too, for the pooling.
            changed[name] = {**{key: mode in modes for mode, key in POOLING_KEYS.items()}, **pooling}
    text = _read(folder / "sentence_bert_config.json")
    if text is not None and not {"max_seq_length", "do_lower_case"} <= text.keys():
        length = text.get("max_seq_length")
        if length is None:  # sentence-transformers 6 reads the lower of two limits
            config, tokenizer = (_read(folder / name) or {} for name in ("config.json", "tokenizer_config.json"))
            limits = (config.get("max_position_embeddings"), tokenizer.get("model_max_length"))
            length = min((limit for limit in limits if limit and 0 < limit < NO_LIMIT), default=None)
        if length is not None:
            changed["sentence_bert_config.json"] = {"max_seq_length": int(length), "do_lower_case": False, **text}
    # keys are added and none is changed; all versions know the older name of the same class
    older = [{**module, "type": NEW_TYPE.sub(OLD_TYPE, module["type"])} for module in modules]
    if older != modules:
        changed["modules.json"] = older
    return changed


def _read(path: Path, kind: type = dict) -> Any:
    try:
        content = json.loads(path.read_bytes()) if path.is_file() else None
    except ValueError as error:
        raise ModelError(f"{path}: got no JSON ({error}); expected settings; fix: restore the file") from error
    if content is not None and not isinstance(content, kind):
        raise ModelError(f"{path}: got a {type(content).__name__}; expected a {kind.__name__}; fix: restore the file")
    return content


@contextmanager
def saved_for_servers(folder: Path) -> Iterator[None]:
    """Save a model inside the block with usual modes and settings for older servers; raises StorageError."""
    with storage_errors(folder), usual_modes(folder):  # safetensors has an error of its own for a full disk
        yield
    add_older_settings(folder)


def add_older_settings(folder: Path) -> list[str]:
    """Write the settings for older servers into a model's folder, update its hashes, and return the changed files."""
    # a later `save` of plain sentence-transformers drops these settings again
    changed = older_settings(folder)
    for name, content in changed.items():
        write_with_hash(folder / name, json.dumps(content, indent=2) + "\n", folder)
    return list(changed)
