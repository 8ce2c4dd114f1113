"""`bixse index`: make a search index of a collection, add and delete documents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.process_arguments import add_process_arguments, chosen_devices
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.retrieval.index_kind import KindSettings
    from bixse.retrieval.index_manifest import Manifest, StoredType

UNKNOWN_SHOWN = 10
"""Unknown ids that the text shows; --json holds all."""
KNOBS = ("links", "ef_construction", "ef_search", "lists", "nprobe")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    make = parser.add_argument_group("make an index")
    parser.add_argument("model", metavar="MODEL", nargs="?",
                        help="model folder, Hugging Face name, or demo (the small model of bixse[demo]); with --to: "
                        "that of the index, where it has moved")  # fmt: skip
    make.add_argument("--collection", type=Path, metavar="DIR", help="folder with corpus.jsonl")
    make.add_argument(
        "--out", type=Path, metavar="INDEX", help="folder of the index; run again after a kill, it goes on"
    )
    make.add_argument(
        "--dtype", metavar="NAME", help="of stored embeddings: float32, or float16 for half the disk (default: float32)"
    )
    make.add_argument("--task", metavar="NAME", help="task whose instructions stand before the texts")
    make.add_argument("--max-length", type=int, metavar="TOKENS", help="read only the first TOKENS of a text")
    make.add_argument("--shard-size", type=int, metavar="N",
                      help="documents between two savings (default: 1024, or a 64th of a large corpus)")  # fmt: skip
    add_process_arguments(parser)
    change = parser.add_argument_group("change an index, or see what it is")
    change.add_argument("--to", type=Path, metavar="INDEX", help="the index; alone it is described")
    change.add_argument("--add", type=Path, metavar="FILE",
                        help="add documents, one JSON {_id, title, text} a line; a known id is replaced")  # fmt: skip
    change.add_argument("--delete", nargs="+", metavar="ID", help="delete documents")
    change.add_argument("--delete-from", type=Path, metavar="FILE", help="delete documents, one id per line")
    change.add_argument("--compact", action="store_true", help="write the index anew without deleted documents")
    change.add_argument("--check", action="store_true", help="hold every file against its checksum")
    kind = parser.add_argument_group("how documents are found")
    kind.add_argument("--kind", metavar="NAME",
                      help="exact: all are scored; hnsw or ivf: most are found, faster, by FAISS "
                      "(default: exact; with --to: as it is)")  # fmt: skip
    kind.add_argument("--ef-search", type=int, metavar="N", help="hnsw: candidates of a query (default: 128)")
    kind.add_argument("--links", type=int, metavar="M", help="hnsw: neighbours of a document (default: 32)")
    kind.add_argument("--ef-construction", type=int, metavar="N",
                      help="hnsw: candidates when a document is put in (default: 200)")  # fmt: skip
    kind.add_argument("--nprobe", type=int, metavar="N", help="ivf: lists of a query (default: a quarter of them)")
    kind.add_argument("--lists", type=int, metavar="N", help="ivf: lists (default: 4 times the root of the documents)")
    kind.add_argument("--recall-target", type=float, metavar="R",
                      help="warn where fewer of the exact 10 or 100 best are found (default: 0.95)")  # fmt: skip
    kind.add_argument("--queries", type=Path, metavar="FILE",
                      help="queries to measure recall on (default: titles of documents)")  # fmt: skip
    kind.add_argument("--recall-queries", type=int, metavar="N", help="how many of them (default: 200)")
    kind.add_argument("--seed", type=int, default=0, help="seed of their draw (default: 0)")


def run(args: argparse.Namespace) -> CommandResult:
    """Make an index, or change one."""
    from bixse.cli.seed import check_seed
    from bixse.errors import InputError

    check_seed(args.seed)
    made_of = {"--collection": args.collection, "--out": args.out, "--dtype": args.dtype, "--task": args.task,
               "--max-length": args.max_length, "--shard-size": args.shard_size}  # fmt: skip
    changed_by = {"--add": args.add, "--delete": args.delete, "--delete-from": args.delete_from,
                  "--compact": args.compact, "--check": args.check}  # fmt: skip
    if args.to is None:
        wrong = [flag for flag, value in changed_by.items() if value]
        if wrong:
            raise InputError(f"{wrong[0]}: got no index; expected --to; fix: add --to INDEX")
        lacking = [name for name, value in {"MODEL": args.model, **made_of}.items() if value is None]
        needed = [name for name in lacking if name in ("MODEL", "--collection", "--out")]
        if needed:
            raise InputError(
                f"bixse index: got no {' and no '.join(needed)}; expected MODEL --collection DIR --out INDEX to make "
                "an index, or --to INDEX to change one; fix: add what is missing"
            )
        return _make(args)
    wrong = [flag for flag, value in made_of.items() if value is not None]
    if wrong:
        raise InputError(
            f"{wrong[0]}: got it with --to; expected it only where an index is made; fix: leave one of the two out"
        )
    return _change(args)


def _make(args: argparse.Namespace) -> CommandResult:
    from bixse.errors import InputError
    from bixse.progress import progress_bar
    from bixse.retrieval.index_build import make_index

    devices, too_many = chosen_devices(args)
    dtype: StoredType = "float16" if args.dtype == "float16" else "float32"
    if args.dtype not in (None, dtype):
        raise InputError(f"--dtype: got {args.dtype!r}; expected float32 or float16; fix: leave it out")
    change = make_index(
        args.model,
        args.collection,
        args.out,
        _kind(args, None),
        dtype,
        args.shard_size,
        args.task,
        args.max_length,
        progress_bar,
        devices,
    )
    said = "this index was made before: nothing was encoded, and its own settings stay"
    warnings = [*too_many, *change.warnings, *([said] if change.reused else [])]
    speed = change.added / max(change.seconds, 1e-9)
    lines = (
        []
        if change.reused
        else [f"indexed {change.added:,} documents in {change.seconds:.1f} s ({speed:.0f} a second)"]
    )
    lines += [*_described(args.out, change.manifest, change.documents), f'search it: bixse search {args.out} "a query"']
    metrics = {**_metrics(change.manifest, change.documents), "seconds": change.seconds, "reused": change.reused}
    return CommandResult("\n".join(lines), metrics, {"index": str(args.out)}, warnings)


def _change(args: argparse.Namespace) -> CommandResult:
    """Delete, add, rewrite, in this order; each is there whole before the next begins."""
    from bixse.progress import progress_bar
    from bixse.retrieval.index_changes import add_documents, delete_documents, rewrite_index
    from bixse.retrieval.index_contents import Contents
    from bixse.retrieval.index_files import read_manifest

    devices, too_many = chosen_devices(args)
    kind = _kind(args, read_manifest(args.to))
    bars = progress_bar
    lines: list[str] = []
    warnings: tuple[str, ...] = ()
    metrics: dict[str, Any] = {}
    ids = _ids_to_delete(args)
    if ids:
        deleted = delete_documents(args.to, ids)
        metrics |= {"deleted": deleted.deleted, "unknown": list(deleted.unknown)}
        lines.append(f"deleted {_documents(deleted.deleted)}")
        warnings = deleted.warnings
    if args.add is not None:
        added = add_documents(args.to, args.add, args.model, bars, devices)
        metrics |= {"added": added.added, "replaced": added.replaced, "unchanged": added.unchanged}
        lines.append(
            f"added {_documents(added.added)}, replaced {added.replaced:,}, left {added.unchanged:,} as they are"
        )
        warnings = added.warnings
    if args.compact or kind is not None:
        rewritten = rewrite_index(args.to, args.compact, kind, args.model, bars)
        lines.append(f"{'rewritten' if args.compact else 'changed'} in {rewritten.seconds:.1f} s")
        warnings = rewritten.warnings
    contents = Contents(args.to)
    try:
        if args.check:
            contents.check()
            lines.append("every file is as it was written")
        documents, manifest = len(contents), contents.manifest
    finally:
        contents.close()
    unknown = metrics.get("unknown", [])
    errors = [_unknown(unknown)] if unknown else []
    metrics |= _metrics(manifest, documents)
    text = "\n".join([*lines, *_described(args.to, manifest, documents)])
    return CommandResult(text, metrics, {"index": str(args.to)}, [*too_many, *warnings], errors, 3 if unknown else 0)


def _ids_to_delete(args: argparse.Namespace) -> list[str]:
    from bixse.data.io.files import read_text

    lines = read_text(args.delete_from).split("\n") if args.delete_from is not None else []
    return [*(args.delete or []), *(line.strip() for line in lines if line.strip())]


def _kind(args: argparse.Namespace, manifest: Manifest | None) -> KindSettings | None:
    """How to search, from the flags over what an index has; None where an index is left as it is."""
    from dataclasses import replace

    from pydantic import ValidationError

    from bixse.errors import InputError
    from bixse.retrieval.approximate import check_kind
    from bixse.retrieval.index_kind import KindSettings
    from bixse.retrieval.index_manifest import Knobs

    knobs = {name: getattr(args, name) for name in KNOBS if getattr(args, name) is not None}
    measured = {"target": args.recall_target, "queries": args.queries, "sample": args.recall_queries}
    given = {name: value for name, value in measured.items() if value is not None}
    if manifest is not None and args.kind is None and not knobs and not given:
        return None
    settings = KindSettings() if manifest is None else KindSettings.of(manifest)
    kind = args.kind if args.kind is not None else settings.kind
    check_kind(kind)
    own = {"hnsw": KNOBS[:3], "ivf": KNOBS[3:], "exact": ()}[kind]
    wrong = [name for name in knobs if name not in own] or ([*given] if kind == "exact" and given else [])
    if wrong:
        flag = {"target": "recall-target", "sample": "recall-queries"}.get(wrong[0], wrong[0]).replace("_", "-")
        raise InputError(
            f"--{flag}: got it for kind {kind}, which has no use for it; expected --kind hnsw or ivf; fix: add "
            f"--kind, or leave --{flag} out"
        )
    try:
        kept = settings.knobs.model_dump() if kind == settings.kind else {}
        if "lists" in knobs and "nprobe" not in knobs:
            kept["nprobe"] = None  # a quarter of the new lists
        return replace(settings, kind=kind, knobs=Knobs(**{**kept, **knobs}), seed=args.seed, **given)
    except ValidationError as error:
        (fault, *_) = error.errors()
        raise InputError(
            f"--{str(fault['loc'][0]).replace('_', '-')}: got {fault['input']}; expected a number above it "
            f"({fault['msg']}); fix: leave it out"
        ) from error


def _described(folder: Path, manifest: Manifest, documents: int) -> list[str]:
    """What an index is, in a few lines."""
    size = sum(file.size for file in manifest.files())
    deleted = f", {manifest.rows - documents:,} deleted ones on the disk" if manifest.rows > documents else ""
    lines = [
        f"{folder}: {_documents(documents)}{deleted}, kind {manifest.kind}, {manifest.precision}, {size / 1e6:,.1f} MB",
        f"model: {manifest.model.name}, {manifest.model.dimensions} dimensions",
    ]
    if manifest.graph is not None and manifest.recall is not None:
        own = KNOBS[:3] if manifest.kind == "hnsw" else KNOBS[3:]
        knobs = ", ".join(f"--{name.replace('_', '-')} {getattr(manifest.graph.knobs, name)}" for name in own)
        recall = manifest.recall
        lines += [
            f"{manifest.kind}: {knobs}",
            f"recall against exact search: {recall.at_10:.3f} at 10, {recall.at_100:.3f} at 100 "
            f"({recall.queries} {recall.source}; target {recall.target:g})",
        ]
    return lines


def _metrics(manifest: Manifest, documents: int) -> dict[str, Any]:
    recall = manifest.recall.model_dump() if manifest.recall is not None else None
    knobs = manifest.graph.knobs.model_dump() if manifest.graph is not None else None
    return {
        "documents": documents,
        "stored": manifest.rows,
        "kind": manifest.kind,
        "dtype": manifest.precision,
        "bytes": sum(file.size for file in manifest.files()),
        "model": manifest.model.model_dump(),
        "knobs": knobs,
        "recall": recall,
    }


def _unknown(ids: list[str]) -> str:
    shown = ", ".join(repr(name) for name in ids[:UNKNOWN_SHOWN])
    rest = f" and {len(ids) - UNKNOWN_SHOWN} more" if len(ids) > UNKNOWN_SHOWN else ""
    number = f"{len(ids)} {'id' if len(ids) == 1 else 'ids'}"
    return (
        f"--delete: got {number} that the index does not hold ({shown}{rest}); expected ids of its documents; fix: "
        "check their spelling (the others were deleted)"
    )


def _documents(count: int) -> str:
    return f"{count:,} document{'s' if count != 1 else ''}"
