"""How long the pages of `bixse ui` take in a large folder: the first look at each, and later ones.

python benchmarks/bench_ui.py --out docs/results/bench-ui.csv

Makes graded pairs, people's labels, a training log, a collection with a system that has probabilities and one that has
none, held-out pairs and a ledger, opens them as the command does, and asks for the pages in this process over ASGI.
Every later look asks for something else, so that nothing kept answers it. Systems are loaded before the clock runs.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient

from bixse.data.collection import Collection, Document, save_collection
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import load_relevance_model
from bixse.evaluation.metrics import METRICS
from bixse.files.parquet import save_table
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
from bixse.lab.static_student import save_static_student
from bixse.ui.serve import Server
from bixse.ui.ui_settings import UiSettings
from bixse.ui.workspace import open_workspace
from measuring import OUT, Option, middle, options, show, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PORT = 8765
QUERIES_PER_PAIR = 20
PLANNED, LABELLED = 2_000, 1_500
LOOKS = 11
WORDS = 170
"""Of a document: 1 kB."""
SHORT = 60
"""Characters of a document of the collection and of a held-out pair, so that they are encoded in a minute or two."""
PAGES: dict[str, Callable[[int], str]] = {
    "overview": lambda turn: "overview",
    "label": lambda turn: f"label?query=q{turn}",
    "settle": lambda turn: "adjudicate",
    "disagreements": lambda turn: f"disagreements?human={turn % 4}",
    "rubric": lambda turn: "rubric",
    "search": lambda turn: f"compare?query=q{turn}&p=0.5",
    "search, slider moved": lambda turn: f"compare/results?query=q0&p={0.3 + turn / 50:.2f}",
    "wins and losses": lambda turn: f"wins?start={50 * turn}",
    "wins and losses, other metric": lambda turn: f"wins?metric={METRICS[turn % len(METRICS)]}",
    "wins and losses, picture": lambda turn: f"wins/changes.svg?metric={METRICS[turn % len(METRICS)]}",
    "calibration": lambda turn: "calibration",
    "calibration, slider moved": lambda turn: f"calibration/figures?exponent={-3 + turn / 10:.1f}",
    "calibration, picture": lambda turn: f"calibration/diagram.svg?exponent={-3 + turn / 10:.1f}",
    "training": lambda turn: "training",
    "training, picture": lambda turn: "training/loss.svg",
    "batch": lambda turn: f"batch?epoch=1&batch=1&start={turn}",
    "runs": lambda turn: "runs",
}
"""Name -> the address of one of its looks."""


def words(generator: np.random.Generator, count: int) -> list[str]:
    """Texts of 1 kB."""
    vocabulary = np.array([f"word{n}" if n % 3 else f"w{n}" for n in range(5_000)])
    drawn = generator.integers(0, len(vocabulary), (count, WORDS))
    return [" ".join(vocabulary[row]) for row in drawn]


def make(folder: Path, pairs: int, steps: int) -> UiSettings:
    """A run folder that every page fits, with so many pairs, and its settings."""
    generator = np.random.default_rng(0)
    texts = words(generator, pairs)
    query_ids = [f"q{n // QUERIES_PER_PAIR}" for n in range(pairs)]
    document_ids = [f"d{n}" for n in range(pairs)]
    queries = {
        name: " ".join(texts[n * QUERIES_PER_PAIR].split()[:6]) for n, name in enumerate(dict.fromkeys(query_ids))
    }
    relevance = generator.integers(0, 4, pairs) / 3
    ids = {"query_id": query_ids, "document_id": document_ids}
    run = folder / "run"
    run.mkdir()
    table = pa.table({**ids, "query": [queries[name] for name in query_ids], "document": texts, "relevance": relevance})
    save_table(table, run / "pairs.parquet")
    low, high = np.clip(relevance - 0.1, 0, 1), np.clip(relevance + 0.1, 0, 1)
    shares = pa.array(list(generator.dirichlet(np.ones(4), pairs)))
    judged = {"status": ["graded"] * pairs, "judge": ["made-up"] * pairs, "grade_probs": shares, "relevance": relevance,
              "relevance_low": low, "relevance_high": high}  # fmt: skip
    save_table(pa.table({**ids, **judged}), run / "judgements.parquet")
    with (run / "labels.jsonl").open("w", encoding="utf-8") as file:
        for event, row in enumerate(generator.choice(pairs, min(LABELLED, pairs // 2), replace=False).tolist()):
            said = {"event": f"e{event}", "person": f"person {event % 3}", "time": "2026-01-01T00:00:00Z",
                    "status": "graded", "grade": float(event % 4), "query_id": query_ids[row],
                    "document_id": document_ids[row], "probability": 0.02}  # fmt: skip
            file.write(json.dumps(said) + "\n")
    with (run / "log.jsonl").open("w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            line = {"step": step, "epoch": step / steps, "loss": 1 / step, "logit_bias": -5.0, "logit_scale": 20.0,
                    "mean_logit_relevant": 1.0, "mean_logit_irrelevant": -4.0, "grad_norm": 1.0}  # fmt: skip
            file.write(json.dumps(line | ({"eval_dev_ndcg@10": 0.5} if step % 100 == 0 else {})) + "\n")
    optimizer = {"batch_size": 64, "documents_per_query": 4, "epochs": 1}
    config = {"pairs": str(run / "pairs.parquet"), "seed": 0, "loss_options": {}, "optimizer": optimizer}
    (run / "run.json").write_text(json.dumps({"command": "train", "status": "running", "config": config}))
    model = run / "model"
    save_static_student(model, dimensions=384)
    (model / "SHA256SUMS").unlink(missing_ok=True)
    RelevanceHead(10.0, -3.0).save(model)
    load_relevance_model(model)
    regrade = run / "regrade"
    regrade.mkdir()
    asked = min(pairs, 10_000)
    rows = {name: column[:asked] for name, column in ids.items()}
    save_table(pa.table({**rows, "query": rows["query_id"], "document": texts[:asked], "logit": [0.0] * asked}),
               regrade / "epoch-1.asked.parquet")  # fmt: skip
    grading = run / "grading"
    grading.mkdir()
    (grading / "run.json").write_text(json.dumps({"command": "grade", "status": "running"}))
    with Ledger(grading / "ledger") as ledger:
        for number in range(pairs):
            ledger.write(str(number), Answer("graded", "verbal", grade=1.0))
    qrels: dict[str, dict[str, float]] = {}
    for query_id, document_id, value in zip(query_ids, document_ids, relevance.tolist(), strict=True):
        qrels.setdefault(query_id, {})[document_id] = round(3 * value)
    short = [text[:SHORT] for text in texts]
    corpus = {name: Document("", text) for name, text in zip(document_ids, short, strict=True)}
    save_collection(Collection("made-up", corpus, queries, {"test": qrels}), folder / "collection")
    held_out = folder / "held-out.parquet"
    save_table(table.set_column(table.column_names.index("document"), "document", pa.array(short)), held_out)
    systems = ("bm25", str(model))
    return UiSettings(run=run, planned=PLANNED, systems=systems, collection=folder / "collection", held_out=held_out)


def looks(client: TestClient) -> Iterator[dict[str, Any]]:
    """Yield milliseconds of each page: the first look, the median of the later ones, and their processor time."""
    for name, address in PAGES.items():
        runs = [timed(partial(client.get, f"/{address(turn)}")) for turn in range(LOOKS)]
        assert all(run.result.status_code == 200 for run in runs), name
        yield {
            "page": name,
            "first_ms": round(1000 * runs[0].seconds),
            "later_ms": round(1000 * middle(runs[1:])),
            "later_cpu_ms": round(1000 * middle(runs[1:], "cpu_seconds")),
            "kB": round(len(runs[-1].result.content) / 1000),
        }


def main() -> None:
    """Make a folder, open it, and time its pages."""
    given = options(
        __doc__,
        quick={"pairs": 2_000, "steps": 500},
        out=OUT,
        pairs=100_000,
        steps=Option(100_000, "lines of the training log"),
    )
    with tempfile.TemporaryDirectory() as scratch:
        settings = make(Path(scratch), given.pairs, given.steps)
        opened = timed(lambda: open_workspace(settings).__enter__())
        print(f"open: {opened.seconds:.2f} s")
        server = Server(opened.result, PORT)
        if opened.result.systems is not None:
            loaded = timed(lambda: opened.result.systems.wait("compare"))
            print(f"load and evaluate both systems: {loaded.seconds:.0f} s")
        opened.result.batches.start(0, 0).wait()
        client = TestClient(server.guard, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=True)
        with start_blocking_portal() as client.portal:  # one event loop for all requests, as a server has
            client.get("/enter", params={"token": server.sessions.new_token(), "person": "ann"})
            show(looks(client), given.out)


if __name__ == "__main__":
    main()
