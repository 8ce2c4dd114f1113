"""The command `bixse`: one verb a file, heavy imports only inside the verb that needs them."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import json
import logging
import os
import signal
import sys
import threading
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from bixse.cli.precision_argument import add_precision_argument
from bixse.cli.result import CommandResult
from bixse.encoders.loading.precision import use_precision
from bixse.errors import BixseError, InputError, printable
from bixse.training.distributed import is_main_process, rank, world_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import FrameType

VERBS = {
    "quickstart": "train, and compare with BM25, the base model and InfoNCE on Python's own documentation",
    "convert": "turn other people's data into graded pairs or a collection; cut, sample, split pairs",
    "mine": "find documents worth grading for each query, by BM25 and dense models",
    "generate": "write queries for the documents of a corpus by a language model",
    "grade": "grade pairs by an LLM judge: relevance from the probabilities of its options",
    "grade audit": "compare a judge's grades with human labels",
    "grade calibrate": "fit and check a map from a judge's grades to probabilities of relevance",
    "grade rank": "put candidates in the order of a judge's grades and score it",
    "train": "train an encoder on your graded pairs",
    "merge": "average the weights of models, such as a base model and one trained from it",
    "sweep": "train over a grid of settings, or random ones, and rank them on dev",
    "study": "a figure or table of the paper on your data: losses, noise, cutoff, batch size, ...",
    "evaluate": "search a collection with a model (or bm25) and score the answers",
    "calibrate": "fit and check a model's probabilities of relevance on graded pairs",
    "index": "make a search index of a collection, add and delete documents",
    "search": "search a collection, with probabilities of relevance",
    "doctor": "show what this machine can do and what is missing",
}
"""Verb -> one line of help; `bixse.cli.<verb>` holds `add_arguments` and `run`, with _ for the space of two words."""
CONFIG_VERBS = ("evaluate", "index", "search")
"""Verbs whose arguments may come from a YAML file and that have no `Settings` of their own yet."""

SHARING_VERBS = ("train",)
"""Verbs whose work several processes share."""

INTERRUPTED = "stopped by Ctrl-C or SIGTERM; the same command goes on with what is finished"
"""Said when a verb without checkpoints is interrupted."""


class _Parser(argparse.ArgumentParser):
    """Wrong usage is an InputError that names, where there is one, the closest right word."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = list(args) if args is not None else []
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"got {' '.join(unknown)}; expected no such argument")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        known = [option for action in self._actions for option in action.option_strings]
        flags = [word.partition("=")[0] for word in self.given if word.startswith("-")]
        close = [match for flag in flags if flag not in known for match in difflib.get_close_matches(flag, known, n=1)]
        verb = next((word for word in self.given if not word.startswith("-")), None)
        if self._subparsers is not None and verb is not None:
            close = [] if verb in VERBS else difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean {close[0]!r}? See" if close else "see"
        raise InputError(f"{self.prog}: {message}; fix: {hint} `{self.prog} --help`")


def build_parser(verb: str | None = None, config: Path | None = None) -> argparse.ArgumentParser:
    """The command's parser; only the named verb's own arguments are loaded (all when None).

    Args:
        verb: the verb that will run.
        config: YAML file with arguments of that verb, see `bixse.cli.config_file`.

    Raises:
        ConfigError: the file cannot be used.
    """
    parser = _Parser(
        prog="bixse",
        description="Train dense retrievers from graded relevance: a better retriever whose scores are probabilities.",
        epilog="Begin with: bixse quickstart. The options of a verb: bixse VERB --help",
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, summary in VERBS.items():
        about = summary[0].upper() + summary[1:] + "."
        sub = verbs.add_parser(name, help=summary, description=about, formatter_class=_Help, allow_abbrev=False)
        if verb in (None, name):
            _module(name).add_arguments(sub)
            add_precision_argument(sub, name)
            if name in CONFIG_VERBS:
                sub.add_argument("--config", metavar="FILE", help="YAML file of these arguments; flags override it")
        if config is not None and name == verb and name in CONFIG_VERBS:
            from bixse.cli.config_file import apply_config

            apply_config(sub, config)
        sub.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        sub.add_argument("--debug", action="store_true", help="show the traceback of an unexpected error")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 ok, 1 failed, 2 wrong usage or input, 3 done with some items failed, 130 interrupted.
    """
    words = _joined(sys.argv[1:] if arguments is None else arguments)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    known_to_all = False
    try:
        with _sigterm_as_interrupt(), _logged_plainly():
            result = _run(words)
    except BixseError as error:
        known_to_all = error.known_to_all
        result = CommandResult(text="", errors=[str(error)], exit_code=error.exit_code)
    except KeyboardInterrupt:
        result = CommandResult(text="", errors=[INTERRUPTED], exit_code=130)
    except Exception as error:
        if "--debug" in words:
            sys.stderr.write(printable(traceback.format_exc()))
        result = CommandResult(text="", errors=[_unexpected(error)], exit_code=1)
    if not is_main_process():  # the first one speaks for all, but a fault of this one only it can tell
        for said in [] if known_to_all else result.errors:
            sys.stderr.write(printable(f"error: process {rank()}: {said}\n"))
        return result.exit_code
    try:
        _show(result, "--json" in words)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return result.exit_code


def _module(verb: str) -> Any:
    """The file of a verb."""
    return import_module(f"bixse.cli.{verb.replace(' ', '_')}")


def _joined(words: Sequence[str]) -> list[str]:
    """The words of a command line, a verb of two words as one."""
    place = next((place for place, word in enumerate(words) if not word.startswith("-")), 0)
    both = " ".join(words[place : place + 2])
    return [*words[:place], both, *words[place + 2 :]] if both in VERBS else list(words)


def _run(words: Sequence[str]) -> CommandResult:
    verb = next((word for word in words if not word.startswith("-")), "")
    config = None
    if verb in CONFIG_VERBS and any(word.partition("=")[0] == "--config" for word in words):
        from bixse.cli.config_file import config_path

        config = config_path(words)
    args = build_parser(verb, config).parse_args(words)
    if world_size() > 1 and args.verb not in SHARING_VERBS:
        raise InputError(
            f"bixse {args.verb}: got {world_size()} processes; expected one; fix: start it without the "
            "launcher (of several processes only `bixse train` makes use)"
        ).of_all_processes()
    with use_precision(getattr(args, "precision", None)), contextlib.redirect_stdout(sys.stderr):
        result: CommandResult = _module(args.verb).run(args)  # standard output holds the result alone
    return result


def _unexpected(error: Exception) -> str:
    """What to say of an error that is no BixseError."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return (
            "got no more memory; expected the batch to fit; fix: a smaller --batch-size, --max-length or model, "
            "or a machine with more memory"
        )
    if world_size() > 1 and ("Connection" in str(error) or type(error).__name__.startswith("Dist")):
        return f"another process ended ({str(error).splitlines()[0]}); its own message says why"
    return (
        f"unexpected {type(error).__name__}: {error}; this is a fault of bixse: please report it "
        "with the output of the same command and --debug"
    )


def _show(result: CommandResult, as_json: bool) -> None:
    """Text to standard output, warnings and errors to standard error; or one JSON envelope, whose strings are ASCII.

    Whatever stands in them may come from data or a server.
    """
    if as_json:
        sys.stdout.write(json.dumps(result.envelope()) + "\n")
    else:
        for warning in result.warnings:
            sys.stderr.write(printable(f"warning: {warning}\n"))
        for error in result.errors:
            sys.stderr.write(printable(f"error: {error}\n"))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal that is not UTF-8 shows ? for what it lacks
        if result.text:
            sys.stdout.write(printable(result.text.rstrip("\n") + "\n"))
    sys.stdout.flush()


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM, which schedulers and `docker stop` send, is taken as Ctrl-C: what was done is written.

    A second one is passed over until the process ends, since it would cut that writing short. Of several processes
    each is left to its launcher, and training looks after both signals by itself.
    """
    if threading.current_thread() is not threading.main_thread() or world_size() > 1:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is interrupt:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _Plain(logging.Formatter):
    """Messages of the log as warnings of the command; what they quote may come from a server."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {super().format(record)}")


@contextlib.contextmanager
def _logged_plainly() -> Iterator[None]:
    """What is logged where nobody has set up logging goes to standard error in this form."""
    last = logging.lastResort
    before = last.formatter if last is not None else None
    if last is not None:
        last.setFormatter(_Plain())
    try:
        yield
    finally:
        if last is not None:
            last.setFormatter(before)


class _Help(argparse.HelpFormatter):
    """Help with names and explanations side by side."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32)
        self._action_max_length = 19  # argparse forgets the indentation of verbs when it measures their names


def _version() -> str:
    from bixse import __version__

    return f"bixse {__version__}"


if __name__ == "__main__":
    sys.exit(main())
