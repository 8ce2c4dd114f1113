"""The check that the files of a model hold the weights of its config.json: none missing, and no further layers."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING

from bixse.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

log = logging.getLogger(__name__)
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def check_weights(model: SentenceTransformer, name: str, trust_remote_code: bool) -> list[str]:
    """Refuse a model whose files lack weights, or hold layers that its config leaves out; return other unused weights.

    A pooler whose output is not read may lack its weights.
    """
    from bixse.encoders.loading.backbones import backbones

    unused: list[str] = []
    for part in backbones(model):  # transformers fills missing weights at random, and only warns
        backbone = part.auto_model
        _, info = type(backbone).from_pretrained(
            backbone.name_or_path,
            config=deepcopy(backbone.config),
            cache_dir=os.getenv("SENTENCE_TRANSFORMERS_HOME"),
            trust_remote_code=trust_remote_code,
            device_map="meta",  # names and shapes are read, no weights
            output_loading_info=True,
        )
        reads_pooler = getattr(part, "module_output_name", None) == "sentence_embedding"
        lacking = sorted(key for key in info["missing_keys"] if reads_pooler or not key.startswith("pooler."))
        if lacking:
            raise ModelError(
                f"model {name!r}: got no weights for {len(lacking)} of its parameters ({', '.join(lacking[:3])}); "
                "expected all in the model's files; fix: check that config.json and the weights belong together"
            )
        unused += unused_weights(backbone, info["unexpected_keys"], f"model {name!r}")
    return unused


def unused_weights(model: nn.Module, names: Iterable[str], where: str) -> list[str]:
    """Return the names in a model's files that it does not use; refuse layers above those of its config."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    known = {key.removeprefix(prefix) for key in (*model.state_dict(), *dict(model.named_buffers()))}
    unused = sorted(name for name in names if name.removeprefix(prefix) not in known)
    if layers := [name for name in unused if _NUMBER.sub("0", name.removeprefix(prefix)) in known]:
        raise ModelError(
            f"{where}: got weights of layers that its config.json leaves out ({', '.join(layers[:3])}); expected the "
            "layers of the config alone; fix: restore config.json (its number of layers), or save the cut model again"
        )
    return unused


@cache
def warn_of_unused(where: str, *names: str) -> None:
    """Log, once per model, how many weights of its files it does not use, such as heads of its pretraining."""
    if names:
        log.warning("%s: %d weights of its files are not used: %s", where, len(names), ", ".join(names[:3]))
