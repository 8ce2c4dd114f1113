"""The names of models on the hub, checked before any library asks for them."""

from __future__ import annotations

import itertools
import os
import re

from bixse.errors import ModelError, did_you_mean

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
"""Names on the hub: `owner/name`, or the name alone of a few old models."""
MODEL_WORDS = ("bm25", "demo")
MODEL_FILES = ("modules.json", "config.json")
"""Files that make a folder, or a repository of the hub, a model."""


def check_hub_name(name: str) -> None:
    """Refuse, by a ModelError, a name that the hub lacks; asks once, but not for a cached model or offline."""
    # the libraries would retry for more than a minute
    if "/" not in name:
        hint = did_you_mean(name.lower(), MODEL_WORDS, otherwise="")
        if hint:
            raise ModelError(f"model {name!r}: got no such folder; expected a folder or a hub name; fix: {hint}")
    if not HUB_NAME.fullmatch(name):
        raise ModelError(
            f"model {name!r}: got no such folder, and no name that the hub could have; expected a model folder or a "
            "hub name (owner/name); fix: check the path"
        )
    _ask_hub(name)


def _ask_hub(name: str) -> None:
    from huggingface_hub import constants, repo_exists, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    # sentence-transformers looks for a name without owner among its own models, except for a few of transformers'
    candidates = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    folder = os.getenv("SENTENCE_TRANSFORMERS_HOME")  # its cache; None: the cache of the hub
    files = itertools.product(candidates, MODEL_FILES)
    cached = any(isinstance(try_to_load_from_cache(repo, file, folder), str) for repo, file in files)
    try:
        if constants.HF_HUB_OFFLINE or cached or any(repo_exists(candidate) for candidate in candidates):
            return
    except HfHubHTTPError:  # the libraries explain an error of the hub better
        return
    except Exception as error:  # which HTTP library the hub uses depends on its version
        raise ModelError(
            f"model {name!r}: got no such folder, and no connection to the hub ({type(error).__name__}: {error}); "
            "expected a model folder, or a hub that can be reached; fix: check the path, or the network"
        ) from error
    raise ModelError(
        f"model {name!r}: got no such folder, and no such model on the hub; expected a model folder or a hub name "
        "(owner/name); fix: check the spelling; for a private model log in with `hf auth login`"
    )
