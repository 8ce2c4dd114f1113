"""`bixse calibrate`: probabilities of relevance that can be believed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument(
        "model", metavar="MODEL", help="model folder, Hugging Face name, or demo (the small model of bixse[demo])"
    )
    parser.add_argument(
        "--pairs",
        type=Path,
        required=True,
        metavar="FILE",
        help="graded pairs that were not trained on (.parquet .jsonl .csv .tsv)",
    )
    parser.add_argument("--task", metavar="NAME", help="task whose instructions stand before queries (and documents)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="save the calibrated model here; without it the "
                        "head inside the model folder is replaced")  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the split of the queries into two halves (default: 0)"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Fit on half of the queries, measure on the other half; keep the map only if it helps there."""
    from bixse.cli.seed import check_seed

    check_seed(args.seed)
    import numpy as np

    from bixse.data.files import file_hash, storage_errors
    from bixse.data.pairs_files import load_graded_pairs
    from bixse.data.run_record import open_run
    from bixse.encoders.build import build_encoder, quiet_loading
    from bixse.encoders.encode import encode_texts
    from bixse.encoders.head import HEAD_FILE
    from bixse.encoders.instructions import use_task
    from bixse.errors import InputError
    from bixse.evaluation.head_fit import fit_head, held_out_check
    from bixse.evaluation.local import model_hashes, model_path_settings
    from bixse.report.table import format_table

    if args.out is None and not Path(args.model).is_dir():
        raise InputError(
            f"calibrate: got model {args.model!r} and no --out; expected a model folder or --out DIR; "
            "to mend: add --out, the calibrated model is saved there"
        )
    pairs = load_graded_pairs(args.pairs)
    record = None
    if args.out is not None:
        inputs = {"pairs": file_hash(args.pairs), **model_hashes(args.model)}
        if (Path(args.model) / HEAD_FILE).is_file():
            inputs["head"] = file_hash(Path(args.model) / HEAD_FILE)
        config = {"model": args.model, "pairs": args.pairs, "seed": args.seed, "task": args.task}
        record = open_run(args.out, "calibrate", config, inputs, paths=("pairs", *model_path_settings(args.model)))
        if record.status == "finished":
            return CommandResult(**record.results, warnings=["this run was finished before: its results are shown"])
    model = build_encoder(args.model)
    use_task(model, args.task)
    if record is not None:
        record.save("running")
    texts = {"query": dict(zip(pairs.query_ids, pairs.queries, strict=True)),
             "document": dict(zip(pairs.document_ids, pairs.documents, strict=True))}  # fmt: skip
    rows = {kind: {identifier: row for row, identifier in enumerate(found)} for kind, found in texts.items()}
    queries = encode_texts(model, list(texts["query"].values()), "query")
    documents = encode_texts(model, list(texts["document"].values()), "document")
    cosines = np.einsum(
        "md,md->m",
        queries[[rows["query"][q] for q in pairs.query_ids]].astype(np.float64),
        documents[[rows["document"][d] for d in pairs.document_ids]].astype(np.float64),
    )
    head = getattr(model, "head", None)
    check = held_out_check(head, cosines, pairs.relevance, pairs.query_ids, args.seed)
    reports = [("before", check.before), ("calibrated", check.after)]
    table = format_table(
        [[name, r.brier, r.ece, r.base_rate_brier] for name, r in reports if r is not None],
        ["held-out half", "Brier", "ECE", "Brier of a constant"],
    )
    metrics: dict[str, Any] = {name: {"brier": r.brier, "ece": r.ece} for name, r in reports if r is not None}
    metrics["kept"] = check.helps
    if check.helps:
        fitted = fit_head(head, cosines, pairs.relevance, f"{len(pairs)} pairs of {args.pairs.name}")
        folder = args.out / "model" if args.out is not None else Path(args.model)
        if args.out is not None:
            model.head = fitted  # type: ignore[assignment,unused-ignore]
            with storage_errors(args.out), quiet_loading():
                model.save_pretrained(str(folder))
        else:
            fitted.save(folder)
        outcome, artifacts = f"saved: {folder / HEAD_FILE}", {"model": str(folder)}
    else:
        outcome = "not kept, nothing is changed: on held-out queries the calibration does not lower the Brier score"
        artifacts = {}
    text = f"{table}\n\n{outcome}"
    if record is not None:
        record.results = {"text": text, "metrics": metrics, "artifacts": artifacts}
        record.save("finished")
    return CommandResult(text, metrics, artifacts)
