"""`bixse convert`: outside formats to graded pairs or a collection, and transforms of graded pairs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from bixse.data.conversion.convert import ConvertResult
    from bixse.data.conversion.convert_settings import ConvertSettings

COLUMNS = ("query", "document", "grade", "query_id", "document_id", "task")
"""Columns of a table that have a flag each."""
OUT = Path("runs/convert")
"""Output folder where none is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("source", nargs="?", metavar="SOURCE",
                        help="lightblue, e5, flagembedding, tevatron, sentence-transformers, arctic, nvidia, umbrela, "
                        "beir, trec, table, or pairs for files of bixse")  # fmt: skip
    parser.add_argument("path", nargs="?", type=Path, metavar="PATH",
                        help="file or folder; hub:owner/name of the Hub")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="show the sources: what they are, licence, citation")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR",
                        help=f"folder for what is written (default: {OUT})")  # fmt: skip
    parser.add_argument("--as", dest="form", default="pairs", choices=("pairs", "collection"),
                        help="graded pairs for training, or a collection folder (default: pairs)")  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="read all, write nothing: counts, relevance, faults")
    reading = parser.add_argument_group("what is read")
    reading.add_argument("--scale", nargs=2, type=float, metavar=("LOW", "HIGH"), help="lowest and highest grade")
    reading.add_argument("--score-map", metavar="MAP",
                         help="what a teacher's scores are: prob, percent, logit, platt:SLOPE,INTERCEPT, or binary to "
                         "take the labels")  # fmt: skip
    reading.add_argument("--corpus", type=Path, metavar="FILE", help="documents, where rows hold ids")
    reading.add_argument("--queries", type=Path, metavar="FILE", help="queries, where rows hold ids")
    reading.add_argument("--qrels", metavar="SPLIT", help="which qrels/SPLIT.tsv of a collection folder")
    for name in COLUMNS:
        flag = f"--{name.replace('_', '-')}-column"
        reading.add_argument(flag, metavar="NAME", help=f"column of a table (default: {name})")
    reading.add_argument("--task", metavar="NAME", help="task of every row, in the place of what the source says")
    reading.add_argument("--text-ids", action="store_true", help="make ids from the texts")
    reading.add_argument("--limit", type=int, metavar="N", help="read only N judgements")
    reading.add_argument("--skip-faulty", action="store_true",
                         help="leave out rows that cannot be read, and list them in faults.jsonl")  # fmt: skip
    reading.add_argument("--download", action="store_true", help="fetch data sets of the Hub")
    done = parser.add_argument_group("what is done to the pairs, in this order")
    done.add_argument("--dedup", action="store_true", help="one row per pair of texts, with the mean relevance")
    done.add_argument("--noise", type=float, metavar="P",
                      help="swap the labels of a query's best and worst document with probability P")  # fmt: skip
    done.add_argument("--cutoff", type=float, metavar="C", help="keep pairs with relevance C and above")
    done.add_argument("--size", type=int, metavar="N", help="keep exactly N pairs, tasks and grades in proportion")
    done.add_argument("--binarise", type=float, metavar="T", help="relevance 1 from T up, 0 below")
    done.add_argument("--split", nargs="+", metavar="PART=SHARE",
                      help="parts that share no query text, as in train=0.8 dev=0.1 test=0.1")  # fmt: skip
    done.add_argument("--seed", type=int, default=0, help="of noise, sample and split (default: 0)")


def run(args: argparse.Namespace) -> CommandResult:
    """Convert, look, or list the sources."""
    if args.list:
        return _list()
    from bixse.data.conversion.convert import convert
    from bixse.progress import progress_bar

    settings = _settings(args)

    def bar(title: str, total: int) -> Callable[[int], None]:
        return progress_bar(title, total, "B")

    result = convert(settings, None if args.dry_run else args.out, bar)
    reused = ["this run was finished before: its results are shown"] if result.reused else []
    skipped = []
    if result.faults and not args.dry_run:
        skipped = [f"{result.faults} faulty rows were left out: see {args.out / 'faults.jsonl'}"]
    metrics = {name: getattr(result, name) for name in ("judgements", "statuses", "faults", "parts", "transforms",
               "source")}  # fmt: skip
    artifacts = {} if args.dry_run else {name: str(args.out / name) for name in result.files}
    if not args.dry_run:
        artifacts["record"] = str(args.out / "run.json")
    text = _text(result, settings, None if args.dry_run else args.out)
    return CommandResult(
        text, metrics, artifacts, [*result.warnings, *skipped, *reused], exit_code=3 if result.faults else 0
    )


def _settings(args: argparse.Namespace) -> ConvertSettings:
    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.errors import InputError

    if args.source is None or args.path is None:
        raise InputError(
            f"bixse convert: got no {'source' if args.source is None else 'path'}; expected both, as in "
            "`bixse convert lightblue DIR`; fix: see `bixse convert --list`"
        )
    return ConvertSettings(
        source=args.source,
        path=_where(args),
        task=args.task,
        scale=tuple(args.scale) if args.scale is not None else None,
        score_map=args.score_map,
        corpus=args.corpus,
        queries=args.queries,
        qrels=args.qrels,
        columns={name: value for name in COLUMNS if (value := getattr(args, f"{name}_column")) is not None},
        text_ids=args.text_ids,
        limit=args.limit,
        dedup=args.dedup,
        noise=args.noise,
        cutoff=args.cutoff,
        size=args.size,
        binarise=args.binarise,
        split=_shares(args.split or []),
        seed=args.seed,
        form=args.form,
        skip_faulty=args.skip_faulty,
        download=args.download,
    )


def _where(args: argparse.Namespace) -> str | Path:
    """The path, or the name of a data set of the Hub, which stands as it was written also in a settings file."""
    from bixse.data.sources.hub import HUB

    text = str(args.path)
    return text[text.index(HUB) :] if HUB in text else Path(args.path)


def _shares(words: list[str]) -> dict[str, float]:
    """Parts and shares of `train=0.8 dev=0.1 test=0.1`."""
    from bixse.errors import InputError, shorten

    shares: dict[str, float] = {}
    for word in words:
        name, _, share = word.partition("=")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1 or name in shares:
            raise InputError(
                f"--split: got {shorten(word)}; expected PART=SHARE, each part once and its share above 0 and up to 1; "
                "fix: as in train=0.8 dev=0.1 test=0.1"
            )
        shares[name] = value
    return shares


def _text(result: ConvertResult, settings: ConvertSettings, out: Path | None) -> str:
    """What was read, done and written, and what comes next."""
    graded = result.statuses.get("graded", 0)
    lines = [f"{result.judgements} judgements read, {graded} of them with a grade"]
    lines += [_done(done) for done in result.transforms]
    for name, part in result.parts.items():
        lines += ["", f"{name}: {part['rows']} pairs of {part['queries']} queries", *_histogram(part["histogram"])]
        if len(part["tasks"]) > 1:
            lines.append("tasks: " + ", ".join(f"{task} {count}" for task, count in part["tasks"].items()))
    if out is None:
        told = [result.faults_shown] if result.faults else []
        return "\n".join([*lines, "", *told, "dry run: nothing was written"])
    lines += ["", *(f"{what}: {out / name}" for name, what in result.files.items())]
    if settings.form == "pairs":
        following = f"next: bixse train --config {shlex.quote(str(out / 'train.yaml'))} --out runs/mine"
    else:
        split = next(iter(result.parts))
        following = f"next: bixse evaluate bm25 --collection {shlex.quote(str(out))} --split {split}"
    return "\n".join([*lines, following])


def _done(done: Any) -> str:
    """One line for a transform, from its record."""
    from bixse.data.transforms.column_transforms import Applied

    return str(Applied(**done))


def _histogram(counts: list[int], width: int = 40) -> list[str]:
    """A bar for each tenth of relevance."""
    most = max([*counts, 1])
    size = len(counts)
    bars = ["#" * -(-count * width // most) + " " * bool(count) for count in counts]
    return [
        f"  relevance {place / size:.1f} to {(place + 1) / size:.1f} | {bar}{counts[place]}"
        for place, bar in enumerate(bars)
    ]


def _list() -> CommandResult:
    """The sources."""
    from bixse.data.sources.formats import FORMATS
    from bixse.data.sources.source import option_flag

    rows = {
        name: {
            "about": form.about,
            "files": form.files,
            "options": [option_flag(option) for option in form.options if option != "columns"],
            "licence": form.licence,
            "citation": form.citation,
        }
        for name, form in FORMATS.items()
    }
    lines = []
    for name, row in rows.items():
        lines += [name, f"  {row['about']}", f"  files: {row['files']}"]
        lines += [f"  options: {', '.join(row['options'])}"] if row["options"] else []
        lines += [f"  licence: {row['licence']}"]
        lines += [f"  cite: {row['citation']}"] if row["citation"] else []
    return CommandResult("\n".join(lines), {"sources": rows})
