"""The command `bixse`. A verb imports heavy packages itself, so that the command line starts fast."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from bixse.cli.verb import CommandResult, Verb, add_settings
from bixse.errors import (
    BixseError,
    InputError,
    InterruptedRunError,
    did_you_mean,
    first_fault,
    printable,
)
from bixse.settings import flag_of, section_of
from bixse.training.distributed import is_main_process, rank, world_size

VERBS = {
    "quickstart": ("lab:QUICKSTART", "train, and compare with BM25 and the base model on Python's documentation"),
    "collection": ("pairs:COLLECTION", "make a collection of your documents, queries and labels, and split it"),
    "convert": ("pairs:CONVERT", "convert files of other tools into graded pairs; sample and split pairs"),
    "mine": ("pairs:MINE", "find documents worth grading for each query, by BM25 and dense models"),
    "generate": ("pairs:GENERATE", "write queries for the documents of a corpus with a language model"),
    "grade": ("grade:GRADE", "grade pairs with an LLM judge: relevance from the probabilities of its options"),
    "grade audit": ("grade:AUDIT", "compare a judge's grades with human labels"),
    "grade calibrate": ("grade:CALIBRATE", "fit and check a map from a judge's grades to probabilities of relevance"),
    "grade rank": ("grade:RANK", "rank candidates by a judge's grades, and score the ranking"),
    "train": ("train:TRAIN", "train an encoder on your graded pairs"),
    "merge": ("train:MERGE", "average the weights of models, such as a base model and one trained from it"),
    "sweep": ("lab:SWEEP", "train over a grid of settings, and rank them on dev"),
    "study": (
        "lab:STUDY",
        "reproduce a figure or table of the paper on your data: losses, noise, cutoff, batch size and more",
    ),
    "evaluate": ("evaluate", "search a collection with models or bm25, and score the rankings"),
    "report": ("evaluate:REPORT", "make one page of finished runs: verdicts, queries side by side, plots"),
    "calibrate": ("calibrate", "fit and check a model's probabilities of relevance on judged queries"),
    "adapt": ("adapt", "learn a small map of query vectors, for an index whose model cannot be trained"),
    "index": ("search:INDEX", "make a search index of a collection"),
    "search": ("search:SEARCH", "search a collection, with probabilities of relevance"),
    "export": ("export:EXPORT", "write a model for ONNX Runtime or OpenVINO, with a proof that it embeds as before"),
    "push": ("export:PUSH", "send a model to the Hugging Face hub, with a card made from its run"),
    "ui": ("ui", "open pages in the browser: label pairs, see where judge and people differ, edit the rubric"),
    "doctor": ("doctor", "check this machine, or a model's folder for servers"),
}
"""Verb -> (module in `bixse.cli.verbs`, with the `Verb`'s name unless it is `VERB`, and one line of help)."""

OVERWRITE = (
    "Name of the --out folder, without the folders above it, to delete it before the work if it is a run of bixse. "
    "Without this option, a folder of another run is refused."
)


class _Parser(argparse.ArgumentParser):
    """Report wrong usage as an InputError that names the closest valid flag, if there is one."""

    hints: Mapping[str, str] = {}
    """Setting that does not exist -> advice, instead of the closest flag."""

    def __init__(self, **options: Any) -> None:
        wide = partial(argparse.HelpFormatter, max_help_position=32)  # names and explanations in two columns
        super().__init__(formatter_class=wide, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        known = set(re.findall(r"^  (?:-h, )?(--[a-z][\w.-]*)", self.format_help(), re.MULTILINE))
        flags = [word.partition("=")[0].rstrip(":") for word in message.split() if word.startswith("-")]
        # without the dashes, which all flags share
        words = {flag.strip("-"): flag for flag in sorted(known)}
        unknown = [flag.strip("-") for flag in flags if flag not in known]
        close = [words[word] for flag in unknown for word in words if word.startswith(flag)]
        close += [words[word] for flag in unknown for word in difflib.get_close_matches(flag, words, n=1)]
        hints = [self.hints[name] for flag in unknown if (name := flag.replace("-", "_")) in self.hints]
        hints += [f"did you mean {flag!r}? See `{self.prog} --help`" for flag in close]
        raise InputError(f"{self.prog}: {message}; fix: {next(iter(hints), f'see `{self.prog} --help`')}")


def verb_parser(name: str, verb: Verb[Any, Any]) -> argparse.ArgumentParser:
    """Return the parser of one verb, for `parse_intermixed_args`."""
    summary = VERBS[name][1]
    flags = {name: flag for name, info in verb.settings.model_fields.items() if (flag := flag_of(info)) is not None}
    words = {name: flag.metavar or name.upper() for name, flag in flags.items() if flag.positional}
    # argparse would list all options above the first settings
    usage = " ".join(["%(prog)s [options]", *words.values()]) if verb.first else None
    parser = _Parser(prog=f"bixse {name}", usage=usage, description=summary[0].upper() + summary[1:] + ".")
    hints = {name: f"write {word} after the verb, without a flag" for name, word in words.items()}
    parser.hints = {**hints, **verb.settings.renamed}
    add_settings(parser, verb.settings, verb.first)
    add_settings(parser, verb.options)
    if verb.dry_run is not None:
        parser.add_argument("--dry-run", action="store_const", const=True, default=argparse.SUPPRESS, help=verb.dry_run)
    if verb.report:
        report_help = "Write report.html into --out too: one page with verdicts, plots and queries."
        parser.add_argument("--report", action="store_const", const=True, default=argparse.SUPPRESS, help=report_help)
    if verb.out is not None:
        text = f"{verb.out.text} (default: {verb.out.default})" if verb.out.default else verb.out.text
        parser.add_argument("--out", metavar=verb.out.metavar, default=argparse.SUPPRESS, help=text)
        if verb.out.metavar != "FILE":
            parser.add_argument("--overwrite", metavar="NAME", default=argparse.SUPPRESS, help=OVERWRITE)
    if verb.settings.model_fields:
        file_help = "YAML file of these settings. Flags override it."
        parser.add_argument("--config", type=Path, metavar="FILE", action="append", help=file_help)
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of text.")
    parser.add_argument("--debug", action="store_true", help="Show the traceback of an unexpected error.")
    return parser


def parse(words: Sequence[str]) -> tuple[str, Verb[Any, Any], argparse.Namespace]:
    """Return the verb of a command line, and its parsed words. `--help` and `--version` end the process."""
    start = next((number for number, word in enumerate(words) if not word.startswith("-")), None)
    if start is None:
        _main_parser().parse_args(words)
        raise InputError("bixse: got no verb; expected one; fix: see `bixse --help`")
    end = start + (2 if " ".join(words[start : start + 2]) in VERBS else 1)
    name = " ".join(words[start:end])
    if name not in VERBS:
        hint = did_you_mean(name, VERBS, f"one of {', '.join(VERBS)}")
        raise InputError(f"bixse: got {name!r}; expected a verb; fix: {hint} See `bixse --help`")
    module, _, attribute = VERBS[name][0].partition(":")
    verb: Verb[Any, Any] = getattr(import_module(f"bixse.cli.verbs.{module}"), attribute or "VERB")
    parser = verb_parser(name, verb)
    args = parser.parse_intermixed_args([*words[:start], *words[end:]])
    if len(files := getattr(args, "config", None) or ()) > 1:
        parser.error(f"argument --config: got {' and '.join(map(str, files))}; expected one")
    return name, verb, args


def _main_parser() -> argparse.ArgumentParser:
    from bixse import __version__

    parser = _Parser(
        prog="bixse",
        description="Train dense retrievers from graded relevance: a better retriever whose scores are probabilities.",
        epilog="Begin with: bixse quickstart. The options of a verb: bixse VERB --help",
    )
    parser.add_argument("--version", action="version", version=f"bixse {__version__}")
    verbs = parser.add_subparsers(metavar="VERB")
    for name, (_, summary) in VERBS.items():
        verbs.add_parser(name, help=summary)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0 ok, 1 failed, 2 wrong usage or input, 3 done with some items failed, 130 interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # if unset, tokenizers stops its threads with a warning after a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if logging.lastResort is not None:  # standard error, unless logging is set up
        logging.lastResort.setFormatter(_Plain())
    known_to_all, is_main = False, True
    try:
        is_main = is_main_process()
        with _sigterm_as_interrupt(to_the_end=arguments is None):
            result = _run(words)
    except BixseError as error:
        known_to_all = error.known_to_all
        result = CommandResult(text="", errors=[str(error)], exit_code=error.exit_code)
    except KeyboardInterrupt:
        message = "stopped by Ctrl-C or SIGTERM; the same command continues from what is finished"
        result = CommandResult(text="", errors=[message], exit_code=130)
    except Exception as error:
        if "--debug" in words:
            sys.stderr.write(printable(traceback.format_exc()))
        is_wrong_name = getattr(error, "errno", None) == errno.ENAMETOOLONG
        result = CommandResult(text="", errors=[_unexpected(error)], exit_code=2 if is_wrong_name else 1)
    for lines in (result.warnings, result.errors):
        lines[:] = map(_without_long_words, lines)
    if not is_main:  # rank 0 prints shared errors; other ranks print only their own
        for line in [] if known_to_all else result.errors:
            sys.stderr.write(printable(f"error: process {rank()}: {line}\n"))
        return result.exit_code
    try:
        _show(result, "--json" in words)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's flush at exit would fail again
        if not isinstance(error, BrokenPipeError):  # else the reader, such as `head`, has ended
            sys.stderr.write(f"error: standard output: got {error.strerror}; expected to write; fix: redirect it\n")
            return 1
    return result.exit_code


def _run(words: Sequence[str]) -> CommandResult:
    name, verb, args = parse(words)
    if world_size() > 1:
        from bixse.engine import PlaceSettings  # not at the top: it is needed only here

        # a verb that cannot split its work over several processes is refused
        classes = [verb.settings, *filter(None, map(section_of, verb.settings.model_fields.values()))]
        if name != "train" and not any(issubclass(kind, PlaceSettings) for kind in classes):
            raise InputError(
                f"bixse {name}: got {world_size()} processes; expected one; fix: start it without the launcher (only "
                "`bixse train` and verbs with `--engine ranks` use several processes)"
            ).of_all_processes()
    with contextlib.redirect_stdout(sys.stderr):  # standard output has the result alone
        return verb.call(args, tuple(words))


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{error.filename}: got a name that no file can have; expected a path or name; fix: check it"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return (
            "got no more memory; expected the batch to fit; fix: a smaller --global-batch-size, --max-length or model, "
            "or a machine with more memory"
        )
    if world_size() > 1 and ("Connection" in str(error) or type(error).__name__.startswith("Dist")):
        return f"another process ended ({first_fault(error)}); its own message says why"
    return (
        f"unexpected {type(error).__name__}: {error}; this is an error in bixse: please report it "
        "with the output of the same command and --debug"
    )


def _show(result: CommandResult, as_json: bool) -> None:
    """Print text, warnings and errors, or one JSON object in ASCII, because strings may come from data or a server."""
    if as_json:
        sys.stdout.write(json.dumps(result.envelope()) + "\n")
    else:
        for warning in result.warnings:
            sys.stderr.write(printable(f"warning: {warning}\n"))
        for error in result.errors:
            sys.stderr.write(printable(f"error: {error}\n"))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for unknown characters
        if result.text:
            sys.stdout.write(printable(result.text.rstrip("\n") + "\n"))
    sys.stdout.flush()


@contextlib.contextmanager
def _sigterm_as_interrupt(to_the_end: bool) -> Iterator[None]:
    """Treat SIGTERM (from schedulers and `docker stop`) like Ctrl-C, so that finished work is written."""
    # Python sets handlers in the main thread alone; a launcher handles the signals of its processes
    if threading.current_thread() is not threading.main_thread() or world_size() > 1:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal would stop the writing
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except InterruptedRunError:  # training took the first SIGTERM; the second may come while Python shuts down
        if to_the_end:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is interrupt:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _Plain(logging.Formatter):
    """Format log messages like warnings of the command, without control characters from a server."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {super().format(record)}")


def _without_long_words(text: str, longest: int = 500) -> str:
    """Cut words, such as names of models and paths, that would fill the terminal."""
    end = r"(?P<end>[\"'`):;,.]{0,4})(?!\S)"  # of the sentence, which goes on
    cut = lambda word: f"{word[0][:100]}... ({len(word[0]):,} characters){word['end']}"  # noqa: E731
    return re.sub(rf"\S{{{longest},}}?{end}", cut, text)


if __name__ == "__main__":
    sys.exit(main())
