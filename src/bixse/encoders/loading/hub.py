"""Names of the Hugging Face hub: a wrong one is said at once, not after a minute of retries."""

from __future__ import annotations

import os
import re

from bixse.errors import ModelError, did_you_mean

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
"""What the hub takes as a name: `owner/name`, or the name alone of a few old models."""
OWN_WORDS = ("bm25", "demo")
"""Words that stand for what is on no hub."""
MODEL_FILES = ("modules.json", "config.json")
"""Files that make a folder, or a repository of the hub, a model."""
SECONDS = 10.0
"""How long the hub may take to say whether it has a model."""


def check_hub_name(name: str) -> None:
    """Refuse a name before the libraries begin to fetch, which retry for more than a minute.

    Words close to "bm25" and "demo", and names that the hub cannot have, are refused without the network. Otherwise the
    hub is asked once, unless the model is in its local cache or the network is switched off (HF_HUB_OFFLINE).

    Raises:
        ModelError: the hub has no such model, or cannot be reached.
    """
    if "/" not in name:
        hint = did_you_mean(name.lower(), OWN_WORDS, otherwise="")
        if hint:
            raise ModelError(f"model {name!r}: got no such folder; expected a folder or a hub name; fix: {hint}")
    if not HUB_NAME.fullmatch(name):
        raise ModelError(
            f"model {name!r}: got no such folder, and no name that the hub could have; expected a model folder or a "
            "hub name (owner/name); fix: check the path"
        )
    _ask(name)


def _ask(name: str) -> None:
    """Ask the hub once for a model that is not in the local cache."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    # sentence-transformers looks for a name without owner among its own models, except for a few of transformers'
    candidates = [name] if "/" in name else [f"sentence-transformers/{name}", name]
    folder = os.getenv("SENTENCE_TRANSFORMERS_HOME")  # its cache; None: that of the hub
    cached = any(
        isinstance(try_to_load_from_cache(one, file, folder), str) for one in candidates for file in MODEL_FILES
    )
    if constants.HF_HUB_OFFLINE or cached:
        return
    for candidate in candidates:
        try:
            get_hf_file_metadata(hf_hub_url(candidate, MODEL_FILES[0]), timeout=SECONDS)
        except (EntryNotFoundError, GatedRepoError):  # a gated one is also a RepositoryNotFoundError
            return
        except RepositoryNotFoundError:
            continue
        except HfHubHTTPError:  # an error of the hub: the libraries say it better
            return
        except Exception as error:  # of the HTTP library, whichever it is
            raise ModelError(
                f"model {name!r}: got no such folder, and no answer from the hub ({type(error).__name__}: {error}); "
                "expected a model folder, or a hub that can be reached; fix: check the path, or the network"
            ) from error
        return
    raise ModelError(
        f"model {name!r}: got no such folder, and no such model on the hub; expected a model folder or a hub name "
        "(owner/name); fix: check the spelling; for a private model log in with `hf auth login`"
    )
