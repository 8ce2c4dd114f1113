"""`bixse calibrate`: probabilities of relevance that can be believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags."""
    parser.add_argument("model", metavar="MODEL", help="model folder, hub name or demo")
    parser.add_argument("--pairs", type=Path, required=True, metavar="FILE", help="graded pairs not trained on")
    parser.add_argument("--out", type=Path, metavar="DIR", help="save the calibrated model here; without it the "
                        "head inside the model folder is replaced")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the split into two halves (default: 0)")


def run(args: argparse.Namespace) -> CommandResult:
    """Fit on half of the queries, measure on the other half; keep the map only if it helps there."""
    import numpy as np

    from bixse.data.files import write_atomically
    from bixse.data.pairs_files import load_graded_pairs
    from bixse.encoders.build import build_encoder, quiet_loading
    from bixse.encoders.encode import encode_texts
    from bixse.errors import InputError, OutputExistsError
    from bixse.evaluation.head_fit import fit_head, held_out_check
    from bixse.report.table import format_table

    if args.out is None and not Path(args.model).is_dir():
        raise InputError(
            f"calibrate: got model {args.model!r} and no --out; expected a model folder or --out DIR; "
            "to mend: add --out, the calibrated model is saved there"
        )
    if args.out is not None and args.out.exists() and any(args.out.iterdir()):
        raise OutputExistsError(
            f"{args.out}: got a folder with files; expected a new one; to mend: choose another --out"
        )
    pairs = load_graded_pairs(args.pairs)
    model = build_encoder(args.model)
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
    metrics = {name: {"brier": r.brier, "ece": r.ece} for name, r in reports if r is not None}
    if not check.helps:
        return CommandResult(
            f"{table}\n\nnot kept: on held-out queries the calibration does not lower the Brier score", metrics,
            warnings=["the model is left as it was"],
        )  # fmt: skip
    fitted = fit_head(head, cosines, pairs.relevance, f"{len(pairs)} pairs of {args.pairs.name}")
    folder = args.out / "model" if args.out is not None else Path(args.model)
    if args.out is not None:
        model.head = fitted  # type: ignore[assignment,unused-ignore]
        args.out.mkdir(parents=True, exist_ok=True)
        with quiet_loading():
            model.save_pretrained(str(folder))
        write_atomically(args.out / "calibration.json", json.dumps(metrics, indent=2) + "\n")
    else:
        fitted.save(folder)
    return CommandResult(f"{table}\n\nsaved: {folder / 'relevance_head.json'}", metrics, {"model": str(folder)})
