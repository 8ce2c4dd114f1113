"""`--precision`: the numbers that models compute in, for every verb that computes with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.encoders.loading.precision import PRECISION_VARIABLE, SETTINGS, check_setting
from bixse.errors import InputError

if TYPE_CHECKING:
    import argparse

COMPUTING_VERBS = (
    "quickstart",
    "mine",
    "grade",
    "grade rank",
    "merge",
    "evaluate",
    "calibrate",
    "index",
    "search",
    "doctor",
)
"""Verbs that compute with a model, and the one that says how; others have it among their settings."""
OTHER_FLAGS = {"calibrate": "--at-precision", "search": "--at-precision", "index": "--dtype"}
"""What a number (or the type of stored embeddings) is asked for with."""


def add_precision_argument(parser: argparse.ArgumentParser, verb: str) -> None:
    """The flag of a verb; the others have none."""
    if verb not in COMPUTING_VERBS:
        return

    def setting(text: str) -> str:
        try:
            return check_setting(text, "--precision")
        except InputError as error:
            other = f", or {OTHER_FLAGS[verb]} {text}" if verb in OTHER_FLAGS else ""
            raise InputError(f"{error}{other}") from None

    parser.add_argument(
        "--precision",
        type=setting,  # says more than the choices, which settings from a file are held against
        choices=SETTINGS,
        metavar="NAME",
        help=f"numbers that models compute in: {', '.join(SETTINGS)} (default: as {PRECISION_VARIABLE} says, else "
        "auto: bfloat16 where the processor or GPU is fast at it)",
    )
