"""`bixse index`: make a search index of a collection, or say what one is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.collection_arguments import add_cache_argument
from bixse.cli.process_arguments import add_process_arguments, chosen_devices
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.retrieval.index.manifest import Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("model", metavar="MODEL", nargs="?",
                        help="model folder, Hugging Face name, or demo (the small model of bixse[demo])")  # fmt: skip
    parser.add_argument("--collection", type=Path, metavar="DIR", help="folder with corpus.jsonl")
    parser.add_argument("--out", type=Path, metavar="INDEX",
                        help="folder of the index; of a changed corpus only the new texts are encoded")  # fmt: skip
    parser.add_argument("--describe", type=Path, metavar="INDEX", help="say what an index is, and make none")
    parser.add_argument("--check", action="store_true", help="with --describe: verify the checksum of every file")
    parser.add_argument("--dtype", default="float32", metavar="NAME",
                        help="of stored embeddings: float32, or float16 for half the disk")  # fmt: skip
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before the texts")
    parser.add_argument("--max-length", type=int, metavar="TOKENS", help="read only the first TOKENS of a text")
    add_process_arguments(parser)
    add_cache_argument(parser)
    found = parser.add_argument_group("how documents are found")
    found.add_argument("--index-type", default="exact", metavar="NAME",
                       help="exact: all are scored; hnsw, ivf or a string of faiss.index_factory: most are found, "
                       "faster, by FAISS (default: exact)")  # fmt: skip
    found.add_argument("--parameters", metavar="NAME=N,...",
                       help="of FAISS: efSearch=256 for hnsw, nprobe=64 for ivf; more finds more, slower")  # fmt: skip
    found.add_argument("--recall-target", type=float, default=0.95, metavar="R",
                       help="warn where fewer of the exact 10 or 100 best are found (default: 0.95)")  # fmt: skip
    found.add_argument("--recall-queries", type=Path, metavar="FILE",
                       help="queries to measure that on (default: titles of documents)")  # fmt: skip


def run(args: argparse.Namespace) -> CommandResult:
    """Make an index, or describe one."""
    from bixse.errors import InputError

    if args.describe is not None:
        return _describe(args)
    needed = {"MODEL": args.model, "--collection": args.collection, "--out": args.out}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        raise InputError(
            f"bixse index: got no {' and no '.join(missing)}; expected MODEL --collection DIR --out INDEX, or "
            "--describe INDEX; fix: add what is missing"
        )
    if args.check:
        raise InputError("--check: got no index to check; expected --describe INDEX; fix: add it")
    from bixse.progress import progress_bar
    from bixse.retrieval.index.make_index import make_index

    devices, warnings = chosen_devices(args)
    report = make_index(
        args.model,
        args.collection,
        args.out,
        index_type=args.index_type,
        parameters=args.parameters,
        dtype=args.dtype,
        task=args.task,
        max_length=args.max_length,
        recall_target=args.recall_target,
        recall_queries=args.recall_queries,
        progress=progress_bar,
        devices=devices,
        cache=args.cache,
    )
    documents = report.manifest.documents
    done = "this index is there already: nothing was done" if report.reused else (
        f"indexed {documents:,} documents in {report.seconds:.1f} s; {report.encoded:,} texts were encoded"
    )  # fmt: skip
    lines = [done, *_described(args.out, report.manifest), f'search it: bixse search {args.out} "a query"']
    metrics = {
        **_metrics(report.manifest), "seconds": report.seconds, "encoded": report.encoded, "reused": report.reused,
    }  # fmt: skip
    return CommandResult("\n".join(lines), metrics, {"index": str(args.out)}, [*warnings, *report.warnings])


def _describe(args: argparse.Namespace) -> CommandResult:
    from bixse.retrieval.index.index_files import open_files

    files = open_files(args.describe)
    try:
        if args.check:
            files.check()
    finally:
        files.close()
    lines = [*_described(args.describe, files.manifest), *(["every file is as it was written"] if args.check else [])]
    return CommandResult("\n".join(lines), _metrics(files.manifest), {"index": str(args.describe)})


def _described(folder: Path, manifest: Manifest) -> list[str]:
    """What an index is, in a few lines."""
    size = sum(file.size for file in manifest.files)
    kind = "exact" if manifest.ann is None else f"{manifest.ann.factory} ({manifest.ann.parameters})"
    lines = [
        f"{folder}: {manifest.documents:,} documents, {kind}, {manifest.dtype}, {size / 1e6:,.1f} MB",
        f"model: {manifest.encoder.name}, {manifest.encoder.dimensions} dimensions",
    ]
    if manifest.recall is not None:
        recall = manifest.recall
        lines.append(
            f"recall against exact search: {recall.at_10:.3f} at 10, {recall.at_100:.3f} at 100 "
            f"({recall.queries} {recall.source})"
        )
    return lines


def _metrics(manifest: Manifest) -> dict[str, Any]:
    size = sum(file.size for file in manifest.files)
    return {**manifest.model_dump(include={"documents", "dtype", "encoder", "ann", "recall"}), "bytes": size}
