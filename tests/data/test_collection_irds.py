"""Collections of ir_datasets: an object, or a name."""

import sys
from collections import namedtuple

import pytest

import bixse
from bixse.data.corpus import as_collection
from bixse.errors import InputError

Judged = namedtuple("Judged", "query_id doc_id relevance")


class Text(namedtuple("Text", "query_id doc_id text")):
    def default_text(self):
        return self.text


class DataSet:
    """The methods of a data set of ir_datasets that are called."""

    def docs_iter(self):
        yield from (Text("", "d1", "shutil.copytree: copy a tree"), Text("", "d2", "os.remove: remove a file"))

    def queries_iter(self):
        yield Text("q1", "", "copy a tree")

    def qrels_iter(self):
        yield from (Judged("q1", "d1", 2), Judged("q1", "d2", 0))


def test_a_data_set_is_a_collection():
    collection = as_collection(DataSet(), "dev")
    assert collection.corpus["d1"].content == "shutil.copytree: copy a tree" and len(collection.corpus) == 2
    assert (collection.queries, collection.qrels["dev"]) == ({"q1": "copy a tree"}, {"q1": {"d1": 2, "d2": 0}})
    assert bixse.evaluate("bm25", DataSet())["nDCG@10"] == 1.0


def test_a_data_set_without_judgements_is_refused():
    documents = type("Documents", (), {"docs_iter": DataSet.docs_iter, "queries_iter": DataSet.queries_iter})
    with pytest.raises(InputError, match="without qrels"):
        bixse.evaluate("bm25", documents())


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(InputError, match="pip install ir_datasets"):
        bixse.evaluate("bm25", "irds:vaswani")


def test_a_name_is_looked_up_by_the_package(tmp_path):
    ir_datasets = pytest.importorskip("ir_datasets")
    files = {"docs_tsv": "d1\tcopy a tree\nd2\tremove\n", "queries_tsv": "q1\tcopy\n", "qrels_trec": "q1 0 d1 2\n"}
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    made = ir_datasets.create_dataset(**{name: str(tmp_path / name) for name in files})
    ir_datasets.registry.register("bixse-toy", made)
    assert bixse.evaluate("bm25", "irds:bixse-toy")["nDCG@10"] == 1.0
    with pytest.raises(InputError, match="an id of ir_datasets"):
        bixse.evaluate("bm25", "irds:no-such-data-set")
