from __future__ import annotations

import json

import pytest

from bixse.data.trec import write_qrels

VERBS = "copy move delete open read write list find sort join".split()  # noqa: SIM905
THINGS = "file folder tree disk path".split()  # noqa: SIM905
QUERIES = {f"q-{verb}": f"how do i {verb} a file" for verb in VERBS}


@pytest.fixture
def collection(tmp_path):
    """Fifty documents of a verb and a thing, an empty one, a copy, and ten queries of which eight are judged."""
    folder = tmp_path / "toy"
    documents = {f"{verb}-{thing}": f"{verb} the {thing}" for verb in VERBS for thing in THINGS}
    documents |= {"empty": " ", "copy-file-again": "copy  the file"}
    write_rows(folder / "corpus.jsonl", [{"_id": name, "title": "", "text": text} for name, text in documents.items()])
    write_rows(folder / "queries.jsonl", [{"_id": name, "text": text} for name, text in QUERIES.items()])
    judged = {query_id: {f"{query_id[2:]}-file": 3, f"{query_id[2:]}-disk": 0} for query_id in QUERIES}
    write_qrels(folder / "qrels" / "train.tsv", dict(list(judged.items())[:6]))
    write_qrels(folder / "qrels" / "test.tsv", dict(list(judged.items())[6:8]))
    return folder


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
