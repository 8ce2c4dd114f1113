"""The command `bixse`: one verb a file, heavy imports only inside the verb that needs them."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from bixse.cli.result import CommandResult
from bixse.errors import BixseError

if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "quickstart": "train and compare four systems on Python's own documentation, with a verdict",
    "train": "train an encoder on your graded pairs",
    "evaluate": "search a collection with a model (or bm25) and score the answers",
    "calibrate": "fit and check a model's probabilities of relevance on graded pairs",
    "search": "search a collection, with probabilities of relevance",
    "doctor": "show what this machine can do and what is missing",
}
"""Verb -> one line of help; `bixse.cli.<verb>` holds `add_arguments` and `run`."""


class _Parser(argparse.ArgumentParser):
    """Wrong usage ends with exit code 2 and, where there is one, the closest right word."""

    def error(self, message: str) -> NoReturn:
        words = [word for word in sys.argv[1:] if word in message]
        known = [*VERBS, *(option for action in self._actions for option in action.option_strings)]
        close = [match for word in words for match in difflib.get_close_matches(word.split("=")[0], known, n=1)]
        hint = f"; did you mean {close[0]!r}?" if close and close[0] not in words else ""
        self.exit(2, f"{self.prog}: {message}{hint}\nSee: {self.prog} --help\n")


def build_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """The command's parser; only the named verb's own arguments are loaded (all when None)."""
    parser = _Parser(
        prog="bixse",
        description="Train dense retrievers from graded relevance: a better retriever whose scores are probabilities.",
        epilog="Begin with: bixse quickstart",
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        sub = verbs.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if verb in (None, name):
            import_module(f"bixse.cli.{name}").add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 ok, 1 failed, 2 wrong usage or input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = next((word for word in words if word in VERBS), None)
    args = build_parser(verb or "").parse_args(words)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        result = import_module(f"bixse.cli.{args.verb}").run(args)
    except BixseError as error:
        result = CommandResult(text="", errors=[str(error)], exit_code=error.exit_code)
    except KeyboardInterrupt:
        result = CommandResult(text="", errors=["stopped by Ctrl-C; the same command starts over"], exit_code=130)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        if args.debug:
            traceback.print_exc()
        message = (
            f"unexpected {type(error).__name__}: {error}; this is a fault of bixse: please report it "
            "with the output of the same command and --debug"
        )
        result = CommandResult(text="", errors=[message], exit_code=1)
    _show(result, args.json)
    code: int = result.exit_code
    return code


def _show(result: CommandResult, as_json: bool) -> None:
    """Text to standard output, warnings and errors to standard error; or one JSON envelope."""
    if as_json:
        sys.stdout.write(json.dumps(result.envelope(), ensure_ascii=False) + "\n")
        return
    for warning in result.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    for error in result.errors:
        sys.stderr.write(f"error: {error}\n")
    if result.text:
        sys.stdout.write(result.text.rstrip("\n") + "\n")


def _version() -> str:
    from bixse import __version__

    return f"bixse {__version__}"


if __name__ == "__main__":
    sys.exit(main())
