"""Mining of objects: retrievers of every kind, ids with white space, and what is refused."""

import json
import tempfile

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import bixse
from bixse.data.trec import read_run
from bixse.errors import InputError, OutputExistsError
from bixse.evaluation.systems import EncoderSystem
from helpers.toy import index_of, save_toy

CORPUS = {
    "copy a\tfile": "copy one file",
    "d 2": {"title": "copy", "text": "a tree of files"},
    "ü%20": "move a file",
    "empty": "",
    "d5": "remove a file",
}
QUERIES = {"q 1": "copy a file", "q\u00a02": "move one file"}
QUIET = {"verbose": False, "per_query": 3}


def documents_of(pairs):
    """Query id -> ids of its mined documents, in order."""
    found = {}
    for row in pairs.rows():
        found.setdefault(row["query_id"], []).append(row["document_id"])
    return found


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    yield
    assert not list((tmp_path / "temporary").iterdir())


def test_ids_with_white_space_are_mined_as_they_are(tmp_path):
    mined = bixse.mine(QUERIES, CORPUS, "bm25", per_query=5, verbose=False)
    found = {query: sorted(names) for query, names in documents_of(mined).items()}
    assert found == {query: sorted(CORPUS.keys() - {"empty"}) for query in QUERIES}
    for row in mined.rows():
        document = CORPUS[row["document_id"]]
        assert row["document"] == (document if isinstance(document, str) else "copy a tree of files")
    with pytest.raises(InputError, match="white space"):  # the run files of a folder cannot hold them
        bixse.mine(QUERIES, CORPUS, "bm25", out=tmp_path / "out", **QUIET)
    assert not (tmp_path / "out").exists()


def test_a_system_that_is_passed_stays_as_it_is(tmp_path):
    system = EncoderSystem("static:demo")
    before = (system.cache, system.max_length, system.task)
    bixse.mine(QUERIES, CORPUS, [system], cache=str(tmp_path), **QUIET)
    assert (system.cache, system.max_length, system.task) == before


def test_documents_in_place_of_queries_are_a_warning(caplog):
    documents = dict.fromkeys(("a", "b"), "a rather long text of a document about files " * 9)
    bixse.mine({"q": "a file"}, documents, "bm25", **QUIET)
    assert "check the order" not in caplog.text
    bixse.mine(documents, {"q": "a file"}, "bm25", **QUIET)
    assert "mine(queries, corpus)" in caplog.text


def test_a_function_may_return_ids_or_scores_and_is_asked_once_per_query():
    asked = []

    def by_hand(query):
        asked.append(query)
        return ["d5", "empty", "d 2"]

    top = {**QUIET, "strategy": "top"}
    assert documents_of(bixse.mine(QUERIES, CORPUS, by_hand, **top)) == {query: ["d5", "d 2"] for query in QUERIES}
    assert asked == list(QUERIES.values())
    scored = bixse.mine(QUERIES, CORPUS, [lambda _: [("d 2", np.float32(0.5)), ("d5", 2)]], **top)
    assert documents_of(scored) == {query: ["d5", "d 2"] for query in QUERIES}
    several = bixse.mine(QUERIES, CORPUS, [by_hand, lambda _: ("d 2",), "bm25"], **top)
    assert all(names[0] == "d 2" for names in documents_of(several).values()), "three retrievers found it"


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "d5",
        3,
        [5],
        ["d5", "d5"],
        [("d5", "high")],
        [("d5", float("nan"))],
        [("d5", 1, 2)],
        {"d5": 1.0},
        ["other"],
    ],
    ids=repr,
)
def test_wrong_answers_of_a_function_are_refused(answer):
    with pytest.raises(InputError, match="retrieve"):
        bixse.mine(QUERIES, CORPUS, [answering(answer)], **QUIET)


def answering(answer):
    def retrieve(_):
        return answer

    return retrieve


def test_no_answer_of_a_function_is_no_candidate():
    assert documents_of(bixse.mine(QUERIES, CORPUS, [answering([]), "bm25"], **QUIET)).keys() == QUERIES.keys()


def test_a_run_is_a_retriever_whose_unknown_documents_do_not_count():
    run = {"q 1": {"d5": 1.0, "elsewhere": 2.0, "empty": 3.0, "d 2": 0.5}, "other": {"d5": 1.0}}
    assert documents_of(bixse.mine(QUERIES, CORPUS, [run], **QUIET)) == {"q 1": ["d5", "d 2"]}
    with pytest.raises(InputError, match="3 of 4 documents"):  # the run of another corpus
        bixse.mine(QUERIES, CORPUS, [{"q 1": dict.fromkeys(["a", "b", "c", "d5"], 1.0)}], **QUIET)
    with pytest.raises(InputError, match="'other'"):
        bixse.mine(QUERIES, CORPUS, [{"other": {"d5": 1.0}}], **QUIET)


def test_models_in_memory_folders_and_systems_find_the_same(tiny_model_path):
    kinds = [SentenceTransformer(str(tiny_model_path)), str(tiny_model_path), tiny_model_path]
    kinds.append(EncoderSystem(tiny_model_path))
    first, *others = [list(bixse.mine(QUERIES, CORPUS, [kind], **QUIET).rows()) for kind in kinds]
    assert all(other == first for other in others) and len(first) == 6


@pytest.mark.parametrize(
    ("retrievers", "reported"),
    [
        ([], "none"),
        (["bm25", "bm25"], "each once"),
        (["bm-25"], "did you mean"),
        ([7], "int"),
        ([{}], r"\{\}"),
        ([str], "type"),
    ],
)
def test_wrong_retrievers_are_refused_at_the_call(retrievers, reported):
    with pytest.raises(InputError, match=reported):
        bixse.mine(QUERIES, CORPUS, retrievers, **QUIET)


def test_a_loaded_model_keeps_its_length(tiny_model):
    with pytest.raises(InputError, match="max_length"):
        bixse.mine(QUERIES, CORPUS, [tiny_model], max_length=8, **QUIET)


def test_an_index_answers_for_its_corpus_in_memory_or_in_a_file(tiny_model_path, tmp_path):
    collection = save_toy(tmp_path / "toy") or tmp_path / "toy"
    index_of(tiny_model_path, collection, tmp_path / "index", cache="none")
    loaded = bixse.load_collection(collection)
    files = [collection / "queries.jsonl", collection / "corpus.jsonl"]
    by_model = bixse.mine(*files, [tiny_model_path], **QUIET)
    for given in (files, [loaded.queries, loaded.corpus]):
        assert documents_of(bixse.mine(*given, [tmp_path / "index"], **QUIET)) == documents_of(by_model)
    objects = (loaded.queries, loaded.corpus, loaded.qrels["test"])
    same = bixse.evaluate(tiny_model_path, objects).metrics
    assert bixse.evaluate(str(tmp_path / "index"), objects).metrics == pytest.approx(same)
    others = {f"other-{name}": document for name, document in loaded.corpus.items()}
    for corpus in (others, dict(list(loaded.corpus.items())[1:])):
        with pytest.raises(InputError, match="corpus"):
            bixse.mine(loaded.queries, corpus, [tmp_path / "index"], **QUIET)


def test_out_makes_the_folder_of_the_command_and_the_same_call_reads_it(tmp_path, tiny_model):
    queries = {"q1": "copy a file"}
    corpus = {f"d{number}": text for number, text in enumerate(CORPUS.values())}
    calls = []

    def by_hand(query):
        calls.append(query)
        return ["d1", "d4"]

    given = ["bm25", tiny_model, by_hand, {"q1": {"d2": 1.0}}]
    mined = [list(bixse.mine(queries, corpus, given, out=tmp_path / "out", **QUIET).rows()) for _ in range(2)]
    assert mined[0] == mined[1] == list(bixse.mine(queries, corpus, given, **QUIET).rows()) and len(calls) == 2
    names = ["bm25", "model-2", "by_hand-3", "run-4"]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.trec")) == sorted(f"run.{n}.trec" for n in names)
    assert read_run(tmp_path / "out" / "run.by_hand-3.trec") == {"q1": {"d1": 0.0, "d4": -1.0}}
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert {"corpus", "queries", "model-2/weights", "by_hand-3/function", "run-4/run"} == set(record["inputs"])
    for changed in ({"corpus": {**corpus, "d9": "more"}}, {"retrievers": [*given[:3], {"q1": {"d1": 1.0}}]}):
        with pytest.raises(OutputExistsError):
            bixse.mine(
                **{"queries": queries, "corpus": corpus, "retrievers": given, **changed}, out=tmp_path / "out", **QUIET
            )


def test_known_pairs_in_memory_are_not_mined_again():
    known = [{"query_id": "q 1", "query": "copy a file", "document_id": "d 2", "document": "x", "relevance": 1.0}]
    mined = bixse.mine(QUERIES, CORPUS, "bm25", known=known, **QUIET)
    assert "d 2" not in documents_of(mined)["q 1"]


def test_a_function_is_evaluated_as_any_system():
    qrels = {"q 1": {"d 2": 1}, "q\u00a02": {"ü%20": 1}}
    figures = bixse.evaluate(lambda query: ["d 2"] if "copy" in query else ["d5", "ü%20"], (QUERIES, CORPUS, qrels))
    assert figures["RR@10"] == 0.75
    with pytest.raises(InputError, match="'nowhere'"):
        bixse.evaluate(lambda _: ["nowhere"], (QUERIES, CORPUS, qrels))
