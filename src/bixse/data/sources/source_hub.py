"""Data sets of the Hugging Face Hub: fetched when that is asked for, else taken from what was fetched before."""

from __future__ import annotations

from pathlib import Path

from bixse.errors import InputError

HUB = "hub:"
"""What stands before a name of the Hub, as in hub:lightblue/reranker_continuous_filt_max7_train."""


def hub_folder(source: str, name: str, download: bool) -> Path:
    """The folder with the files of a data set.

    Args:
        source: the source that will read it, for the message.
        name: `hub:owner/name`, with `@revision` behind it where another than the newest is wanted.
        download: fetch what is not there yet.

    Raises:
        InputError: it was never fetched and may not be, there is no such data set, or the network fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository, _, revision = name.removeprefix(HUB).partition("@")
    try:
        return Path(
            snapshot_download(repository, repo_type="dataset", revision=revision or None, local_files_only=not download)
        )
    except HFValidationError as error:
        raise InputError(f"{name}: got {repository!r}; expected hub:owner/name; fix: correct the name") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        if isinstance(error, LocalEntryNotFoundError) and not download:
            raise InputError(
                f"{name}: got a data set that is not on this machine; expected its files; fix: "
                f"bixse convert {source} {name} --download"
            ) from error
        raise InputError(
            f"{name}: got {str(error).splitlines()[0]}; expected a data set of the Hub; fix: check the name, the "
            "network, and that HF_HUB_OFFLINE is not set"
        ) from error
