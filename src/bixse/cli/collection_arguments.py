"""Arguments of the verbs that read collections: where embeddings are kept, what is done without a document."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_cache_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flag; its value goes to `bixse.data.io.cache.cache_folder`."""
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="folder for document embeddings, so that a corpus is encoded once a model; none keeps nothing (default: "
        "BIXSE_CACHE_DIR, else the user's cache folder, see `bixse doctor`)",
    )


def add_missing_argument(parser: argparse.ArgumentParser, default: str | None = "refuse") -> None:
    """Add `--missing-documents`, for `bixse.data.collection_files.load_collection`; default None: as a file says."""
    parser.add_argument(
        "--missing-documents",
        choices=("refuse", "drop"),
        default=default,
        help="judgements that name a document which the corpus lacks: stop (default), or leave them out and count them",
    )
