import pytest
from source_files import lines, put

from bixse.data.trec import write_qrels

VERBS = "copy move delete open read write list find sort join".split()  # noqa: SIM905
THINGS = "file folder tree disk path".split()  # noqa: SIM905
QUERIES = {f"q-{verb}": f"how do i {verb} a file" for verb in VERBS}


@pytest.fixture
def collection(tmp_path):
    """Fifty documents of a verb and a thing, an empty one, a copy, and ten queries of which eight are judged."""
    documents = {f"{verb}-{thing}": f"{verb} the {thing}" for verb in VERBS for thing in THINGS}
    documents |= {"empty": " ", "copy-file-again": "copy  the file"}
    texts = {"corpus.jsonl": documents, "queries.jsonl": QUERIES}
    files = {name: lines({"_id": key, "text": text} for key, text in rows.items()) for name, rows in texts.items()}
    folder = put(tmp_path / "toy", files)
    judged = {query_id: {f"{query_id[2:]}-file": 3, f"{query_id[2:]}-disk": 0} for query_id in QUERIES}
    write_qrels(folder / "qrels" / "train.tsv", dict(list(judged.items())[:6]))
    write_qrels(folder / "qrels" / "test.tsv", dict(list(judged.items())[6:8]))
    return folder
