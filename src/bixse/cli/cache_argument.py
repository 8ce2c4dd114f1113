"""`--cache`: where the verbs that embed a corpus keep its embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_cache_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flag; its value goes to `bixse.data.cache.cache_folder`."""
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="folder for document embeddings, so that a corpus is encoded once a model; none keeps nothing (default: "
        "BIXSE_CACHE_DIR, else the user's cache folder, see `bixse doctor`)",
    )
