"""Tiny files of every outside format that `bixse convert` reads, with the traps they are known for."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, compression="none")
    return sink.getvalue().to_pybytes()


def put(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def _probabilities(grade, rest=0.0):
    return [0.9 - rest if place == grade else 0.025 for place in range(1, 6)]


LIGHTBLUE = [
    {
        "question": f"question {i // 2}",
        "answer": "an answer",
        "dataset_name": ["lsat", "pubmedqa"][i // 2 % 2],
        "language": ["en", "ja"][i % 2],
        "added_neg": i % 2 == 1,
        "doc_id": None if i == 5 else [f"doc {i // 2}"],
        "row_id": 70 + i // 2,
        "context": f"context {i}",
        "label": i % 2 == 0,
        "32B_score_probs": _probabilities(5 if i % 2 == 0 else 1 + i // 6, rest=0.3 if i == 0 else 0.0),
        "32B_score_probs_rev": _probabilities(4 if i % 2 == 0 else 1),
    }
    for i in range(12)
]
"""Six row_ids with both siblings, two languages, one row whose probabilities sum to less than 1, one without doc_id."""
E5 = {
    name: lines([{"query": f"{name} q{i}", "positive": f"{name} p{i}", "negative": f"{name} n{i}"} for i in range(3)])
    for name in ("allnli_split1", "allnli_split2", "hotpot_qa", "msmarco_passage", "quora_duplicates")
}
"""Files of E5's data; NLI in halves."""
BGE = [
    {
        "query": f"query {i}",
        "pos": [f"positive {i}"],
        "neg": [f"negative {i} a", f"negative {i} b"],
        "pos_scores": [0.9],
        "neg_scores": [0.1 * i, 0.95 if i == 2 else 0.3],
        "prompt": "Given a query",
        "type": "normal",
    }
    for i in range(4)
]
"""Scores as probabilities, a negative above its positive once."""
TEVATRON = [
    {
        "query_id": str(i),
        "query": f"query {i}",
        "positive_passages": [{"docid": f"d{i}", "title": "Title", "text": f"positive {i}"}],
        "negative_passages": [{"docid": f"d{i}{j}", "title": "", "text": f"negative {i} {j}"} for j in range(2)],
    }
    for i in range(3)
]
TEVATRON_IDS = [
    {"query_id": i, "query_text": f"query {i}", "positive_document_ids": [f"d{i}"], "negative_document_ids": ["d9"]}
    for i in range(3)
]
"""Tevatron 2: ids of a corpus."""
CORPUS = [{"docid": f"d{i}", "title": "T" if i else "", "text": f"text {i}"} for i in (0, 1, 2, 9)]
TUPLES = [
    {"anchor": f"anchor {i}", "positive": f"positive {i}", "negative_1": f"negative {i}", "negative_2": f"other {i}"}
    for i in range(3)
]
BEIR = {
    "corpus.jsonl": lines(
        [{"_id": f"d{i}", "title": f"title {i}" if i else "", "text": f"text {i}"} for i in range(4)]
        + [{"_id": "empty", "title": "", "text": ""}]
    ),
    "queries.jsonl": lines([{"_id": f"q{i}", "text": f"query {i}", "metadata": {}} for i in range(3)]),
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq0\td0\t2\nq0\td1\t0\nq1\td2\t1\nq2\td3\t-2\n",
}
"""A judged zero, a grade below 0, an unjudged empty document, a document without title."""
TREC = {
    "2019qrels-pass.txt": "1 Q0 p1 3\n1 Q0 p2 0\n2 0 p1 1\n",
    "topics.tsv": "1\tdog age by teeth\n2\twhat is a flea\n",
    "collection.tsv.gz": gzip.compress(b"p1\tfirst passage\np2\tsecond passage\np3\tunjudged\n", mtime=0),
}
"""Q0 and 0 in the second column; the collection compressed."""
UMBRELA = [
    {
        "model": "m",
        "query": {"text": f"query {i // 2}", "qid": f"q{i // 2}"},
        "passage": {"doc": {"segment": f"passage {i}"}, "docid": f"p{i}"},
        "prediction": f"##final score: {i % 4}",
        "judgment": i % 4,
        "result_status": 0 if i == 3 else 1,
    }
    for i in range(6)
]
"""One prediction that umbrela could not read."""
TABLE = (
    'search,item,stars,department\n"copy, a folder",copytree,5,io\n"copy, a folder",walk,1,io\nsort,sorted,3,lists\n'
)
PAIRS = [
    {
        "query": f"query {i // 4}",
        "document": f"document {i}",
        "relevance": round(0.1 + i % 4 * 0.25, 3),
        "task": "a" if i < 24 else "b",
        "grade": float(i % 4),
        "grade_probs": [0.1, 0.9],
        "judge": "somebody",
    }
    for i in range(48)
]
