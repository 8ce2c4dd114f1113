"""`bixse index` and `bixse search INDEX` with a tiny model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file

from bixse.data.task_instructions import Instructions
from bixse.data.trec import read_run
from bixse.encoders.relevance_model import set_instructions
from bixse.files.rows import write_rows
from bixse.search.search_collection import read_queries
from helpers.command import call, refused, result_of

DOCUMENTS = {
    "d1": ("copy", "copy a file to a folder"),
    "d2": ("move", "move a file"),
    "d3": ("sleep", "wait in a thread"),
    "d4": ("", "sort a list of words"),
}


@pytest.fixture
def model(tmp_path, tiny_model_path):
    shutil.copytree(tiny_model_path, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def collection(write_corpus):
    return write_corpus(DOCUMENTS)


@pytest.fixture
def index(tmp_path, model, collection, capsys):
    assert call(capsys, "index", model, "--collection", collection, "--out", tmp_path / "index")[0] == 0
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index"], "model: got nothing"),
        (["index", "demo"], "collection: got nothing"),
        (["index", "demo", "--collection", "c", "--out", "o"], "corpus.jsonl"),
        (["search", "index", "copy", "--collection", "c"], "--collection"),
        (["search", "index", "copy", "--cache", "none"], "--cache"),
        (["search", "index", "copy", "--queries", "q.txt"], "query and queries"),
        (["search", "index", "copy", "--out", "run"], "--out"),
        (["search", "index", "--queries", "-", "--out", "run"], "--out"),
        (["search", "index", "--queries", "none.txt"], "none.txt"),
        (["search", "index", " "], "empty query"),
        (["search", "index", "copy", "--task", "find"], "without task instructions"),
        (["search", "corpus", "copy"], "--collection"),
        (["search", "model", "--collection", "corpus", "--queries", "-"], "--queries"),
        (["search", "model", "--collection", "corpus", "--exact", "copy"], "--exact"),
    ],
)
def test_wrong_usage_is_refused(capsys, index, monkeypatch, words, message):
    monkeypatch.chdir(index.parent)
    before = set(index.parent.iterdir())
    assert message in refused(capsys, *words)
    assert set(index.parent.iterdir()) == before


def test_moved_model_is_used_and_changed_model_is_refused(capsys, index, model, tmp_path):
    found = call(capsys, "search", index, "copy")[1]["metrics"]["results"]
    model.rename(tmp_path / "moved")
    refused(capsys, "search", index, "copy")
    words = ("search", index, "copy", "--model-at", tmp_path / "moved")
    assert call(capsys, *words)[1]["metrics"]["results"] == found
    weights = load_file(tmp_path / "moved" / "model.safetensors")
    name = next(name for name in weights if name.endswith("weight"))
    save_file({**weights, name: weights[name] + 0.01}, tmp_path / "moved" / "model.safetensors", {"format": "pt"})
    assert "other weights" in refused(capsys, *words)


def test_index_answers_as_its_collection(capsys, index, model, collection):
    envelope = call(capsys, "index", model, "--collection", collection, "--out", index)[1]
    assert (envelope["metrics"]["reused"], envelope["metrics"]["encoded"]) == (True, 0)
    for query in ("copy a file", "sort"):
        alone = result_of("search", model, query, "--collection", collection)
        indexed = result_of("search", index, query)
        assert (indexed.text, indexed.metrics) == (alone.text, alone.metrics)


@pytest.mark.parametrize("name", ["queries.jsonl", "queries.jsonl.gz", "queries.csv", "queries.parquet"])
def test_queries_are_read_from_any_table_format(tmp_path, name):
    write_rows(pa.table({"_id": ["q1", "q2"], "text": ["copy a file", "sort"]}), tmp_path / name)
    assert read_queries(tmp_path / name) == {"q1": "copy a file", "q2": "sort"}


def test_run_of_many_queries_has_the_answers_of_each(capsys, index):
    queries = index.parent / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "copy a file"}\n{"_id": "q2", "text": "sort"}\n')
    run = index.parent / "runs" / "out.trec"
    text = result_of("search", index, "--queries", queries, "--out", run, "--top", "3").text
    assert text == f"wrote 6 documents of 2 queries to {run}"
    answers = call(capsys, "search", index, "--queries", queries, "--top", "3")[1]["metrics"]["answers"]
    assert read_run(run) == {
        answer["query_id"]: pytest.approx({hit["document_id"]: hit["cosine"] for hit in answer["results"]}, abs=1e-4)
        for answer in answers
    }
    assert result_of("search", index, "--queries", queries).text.startswith("q1: copy a file\n  1. cos=")


@pytest.mark.slow
def test_each_line_of_standard_input_is_answered_at_once_until_the_pipe_closes(index):
    words = [sys.executable, "-m", "bixse", "search", str(index), "--queries", "-", "--top", "2", "--json"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for query, best in (("copy a file to a folder", "d1"), ("  ", None), ("wait in a thread", "d3")):
        process.stdin.write(query + "\n")
        process.stdin.flush()
        if best is not None:
            answer = json.loads(process.stdout.readline())
            assert answer["query"] == query
            assert (len(answer["results"]), answer["results"][0]["document_id"]) == (2, best)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(rest)["metrics"] == {"queries": 2}
    line = f"yes 'copy a file' | {sys.executable} -m bixse search {index} --queries - --top 1 | head -n 2"
    piped = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    first, second = piped.stdout.splitlines()
    assert first == "copy a file" and second.startswith("  1. cos=")
    assert "Traceback" not in piped.stderr and "error" not in piped.stderr


def test_tasks_with_the_same_document_instruction_share_an_index(capsys, tmp_path, tiny_model, collection):
    tasks = {name: {"instructions": [f"{name} the file"]} for name in ("find", "sort")}
    tasks["match"] = {"instructions": ["match text"], "symmetric": True}
    set_instructions(tiny_model, Instructions(template="{instruction} of\n", tasks=tasks))
    tiny_model.save_pretrained(str(tmp_path / "tasks"), create_model_card=False)
    words = ("index", tmp_path / "tasks", "--collection", collection, "--out", tmp_path / "index")
    assert "got no task" in refused(capsys, *words)
    assert call(capsys, *words, "--task", "find")[0] == 0
    cosines = [
        call(capsys, "search", tmp_path / "index", "copy", *task)[1]["metrics"]["results"][0]["cosine"]
        for task in ((), ("--task", "find"), ("--task", "sort"))
    ]
    assert cosines[0] == cosines[1] != cosines[2]
    message = refused(capsys, "search", tmp_path / "index", "copy", "--task", "match")
    assert "which puts 'match text of\\n' before documents" in message
