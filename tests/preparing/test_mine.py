"""Mining end to end: files, reuse, continuing, and independence of a query from the others."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from bixse.data.collection import load_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.task_instructions import Instructions
from bixse.data.trec import read_run
from bixse.encoders.loading.precision import PRECISION_VARIABLE
from bixse.encoders.relevance_model import set_instructions
from bixse.errors import InputError, ModelError, OutputExistsError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.systems import EncoderSystem
from bixse.evaluation.tasks import collection_task
from bixse.preparing import searching
from bixse.preparing.candidates import fuse
from bixse.preparing.mine import WORK, mine
from bixse.preparing.mine_settings import MineConfig
from bixse.preparing.mined_pairs import MINED_FILE, MinedPair
from bixse.relevance import GradeScale
from bixse.scale.index.search import SearchIndex
from bixse.search.bm25 import BM25


def mined(folder):
    return [MinedPair(**row) for row in pq.read_table(folder / MINED_FILE).to_pylist()]


def by_query(folder):
    found = defaultdict(list)
    for pair in mined(folder):
        found[pair.query_id].append(pair)
    return dict(found)


def changed(config, **settings):
    return MineConfig(**{**config.model_dump(), **settings})


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_unknown_retriever_leaves_no_folder(collection, tmp_path):
    for name, error, said in (
        ("bm-25", InputError, "did you mean 'bm25'"),
        ("no/such/model", ModelError, "got no such folder"),
    ):
        with pytest.raises(error, match=said):
            mine(MineConfig(collection=collection, retrievers=("bm25", name)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_candidate_for_any_query(collection, tmp_path):
    queries = tmp_path / "q.jsonl"
    queries.write_text('{"_id": "a", "text": "weather tomorrow"}\n{"_id": "b", "text": "..."}\n')
    config = MineConfig(corpus=collection / "corpus.jsonl", queries=queries)
    with pytest.raises(InputError, match="got no candidate for any of 2 queries"):
        mine(config, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
    assert not (tmp_path / "out" / "pairs.parquet").exists()


def test_a_run_in_other_numbers_is_another_run(collection, tiny_model_path, tmp_path, monkeypatch):
    with_model = MineConfig(collection=collection, retrievers=(str(tiny_model_path),), max_length=16)
    words = MineConfig(collection=collection, retrievers=("bm25",))
    monkeypatch.setenv(PRECISION_VARIABLE, "float32")
    for config, out in ((with_model, tmp_path / "model"), (words, tmp_path / "words")):
        mine(config, out)
    monkeypatch.setenv(PRECISION_VARIABLE, "bfloat16")
    with pytest.raises(OutputExistsError, match="precision"):
        mine(with_model, tmp_path / "model")
    assert mine(words, tmp_path / "words").reused, "BM25 computes with no model"


def test_another_run_is_never_overwritten(collection, tmp_path):
    config, out = MineConfig(collection=collection, split="train"), tmp_path / "out"
    mine(config, out)
    before = files_of(out)
    for other in (changed(config, seed=1), changed(config, strategy="top"), changed(config, per_query=3)):
        with pytest.raises(OutputExistsError, match="changed: "):
            mine(other, out)
    with pytest.raises(OutputExistsError, match="files that are no run of bixse"):
        mine(config, collection)
    assert files_of(out) == before
    (out / "pairs.parquet").unlink()
    with pytest.raises(InputError, match="got missing or damaged results"):
        mine(config, out)


def test_files_columns_runs_and_progress(collection, tmp_path):
    out, bars = tmp_path / "out", {}

    def bar(title, total):
        bars[title] = [total, 0]
        return lambda done: bars[title].append(bars[title].pop() + done)

    result = mine(MineConfig(collection=collection, split="train", task="pages", per_query=4), out, bar)
    assert bars == {"search with bm25": [6, 6]}
    assert sorted(path.name for path in out.iterdir()) == ["pairs.parquet", "run.bm25.trec", "run.json"]
    pairs = mined(out)
    assert {pair.task for pair in pairs} == {"pages"}
    assert result.pairs == len(pairs) == 24
    assert read_run(out / "run.bm25.trec").keys() == {
        f"q-{verb}" for verb in ["copy", "move", "delete", "open", "read", "write"]
    }
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    assert set(record["inputs"]) == {"corpus", "queries", "qrels/train"}


def test_top_is_the_run_without_copies(collection, tmp_path):
    out = tmp_path / "out"
    result = mine(MineConfig(collection=collection, strategy="top", per_query=5), out)
    documents = {row["_id"]: row["text"].strip() for row in map(json.loads, (collection / "corpus.jsonl").open())}
    documents.pop("empty")
    index = BM25(list(documents), list(documents.values()))
    for query_id, pairs in by_query(out).items():
        expected, seen = [], set()
        for rank, name in enumerate(index.search({"q": pairs[0].query}, 100)["q"], start=1):
            text = " ".join(documents[name].split())
            if text not in seen:
                expected.append((name, documents[name], f"bm25:{rank}", rank))
            seen.add(text)
        assert [(p.document_id, p.document, p.source, p.rank) for p in pairs] == expected[:5], query_id
    assert result.copies == 10  # "copy the file" is there twice and has the word of every query


def test_hard_negatives_are_the_best_unknown(collection, tmp_path):
    plain = MineConfig(collection=collection, split="train", strategy="top", per_query=5)
    mine(plain, tmp_path / "top")
    scale = GradeScale(0, 3)
    save_graded_pairs(GradedPairs.from_collection(load_collection(collection), "train", scale), tmp_path / "known.csv")
    result = mine(changed(plain, per_query=3, known=tmp_path / "known.csv"), tmp_path / "hard")
    top, hard = by_query(tmp_path / "top"), by_query(tmp_path / "hard")
    for query_id, pairs in hard.items():
        verb = query_id[2:]
        known = {f"{verb}-file", f"{verb}-disk"}
        assert not known & {pair.document_id for pair in pairs}
        if verb != "copy":
            expected = [pair for pair in top[query_id] if pair.document_id not in known][:3]
            assert pairs == expected  # with the ranks they have among all
    assert "copy-file-again" not in {pair.document_id for pair in hard["q-copy"]}
    assert result.known == 13  # two judged a query, and the copy of one


def test_queries_without_candidates_are_listed_and_few_are_counted(collection, tmp_path):
    with (collection / "queries.jsonl").open("a") as file:
        file.write('{"_id": "strange", "text": "weather"}\n{"_id": "dots", "text": "..."}\n')
        file.write('{"_id": "tree", "text": "tree disk"}\n')
    result = mine(MineConfig(collection=collection, per_query=25, depth=30, strategy="top"), tmp_path / "out")
    assert result.without_candidates == ["strange", "dots"]
    assert result.queries == 13
    assert result.with_fewer == 11
    assert result.empty_documents == 1
    reused = mine(MineConfig(collection=collection, per_query=25, depth=30, strategy="top"), tmp_path / "out")
    assert reused == replace(result, reused=True)


def test_corpus_and_queries_as_files_that_may_be_the_same(collection, tmp_path):
    queries = tmp_path / "q.jsonl"
    queries.write_text('{"_id": "copy-tree", "text": "copy tree"}\n')
    config = MineConfig(corpus=collection / "corpus.jsonl", queries=queries, strategy="top")
    assert not mine(config, tmp_path / "out").warnings
    assert mined(tmp_path / "out")[0].document_id == "copy-tree"


@pytest.mark.parametrize("strategy", ["spread", "one"])
def test_a_query_gets_the_same_documents_in_any_company(collection, tmp_path, strategy):
    config = MineConfig(collection=collection, strategy=strategy, seed=3)
    mine(config, tmp_path / "all")
    lines = (collection / "queries.jsonl").read_text().splitlines()
    (collection / "queries.jsonl").write_text("\n".join(reversed(lines)))
    mine(config, tmp_path / "turned")
    mine(changed(config, split="test"), tmp_path / "two")
    mine(changed(config, max_queries=4), tmp_path / "four")
    everything = by_query(tmp_path / "all")
    assert by_query(tmp_path / "turned") == everything
    for name, count in (("two", 2), ("four", 4)):
        fewer = by_query(tmp_path / name)
        assert len(fewer) == count
        assert fewer.items() <= everything.items()
    mine(changed(config, seed=4), tmp_path / "other")
    assert by_query(tmp_path / "other") != everything


def test_an_encoder_beside_bm25(collection, tmp_path, tiny_model_path, cache_path, monkeypatch):
    config = MineConfig(collection=collection, split="train", retrievers=("bm25", str(tiny_model_path)), depth=20)
    out = tmp_path / "out"
    result = mine(config, out)
    label = tiny_model_path.name
    assert result.runs == {"bm25": "run.bm25.trec", label: f"run.{label}.trec"}
    runs = {name: read_run(out / file) for name, file in result.runs.items()}
    for query_id, pairs in by_query(out).items():
        fused = {c.document_id: c for c in fuse({name: run.get(query_id, {}) for name, run in runs.items()}, 20)}
        for pair in pairs:
            assert (pair.rank, pair.source) == (fused[pair.document_id].rank, fused[pair.document_id].source)
    assert len(list((cache_path / "embeddings").iterdir())) == 1

    from bixse.encoders import encode

    plain, kinds = encode.encode_here, []
    monkeypatch.setattr(encode, "encode_here", lambda m, t, kind, *rest: kinds.append(kind) or plain(m, t, kind, *rest))
    mine(changed(config, seed=9), tmp_path / "again")
    assert set(kinds) == {"query"}  # the embeddings of the documents are there already


def test_where_a_model_lies_does_not_count_but_its_content_does(collection, tmp_path, tiny_model_path):
    shutil.copytree(tiny_model_path, tmp_path / "here" / "model")
    config = MineConfig(collection=collection, split="test", retrievers=(str(tmp_path / "here" / "model"),))
    mine(config, tmp_path / "out")
    (tmp_path / "here").rename(tmp_path / "there")
    config = changed(config, retrievers=(str(tmp_path / "there" / "model"),))
    assert mine(config, tmp_path / "out").reused
    (tmp_path / "there" / "model" / "more.json").write_text("{}")
    with pytest.raises(OutputExistsError, match=r"model/model/more\.json"):
        mine(config, tmp_path / "out")


def test_the_runs_are_those_of_evaluate(collection, tmp_path, tiny_model):
    rows = (collection / "corpus.jsonl").read_text().splitlines(keepends=True)
    (collection / "corpus.jsonl").write_text("".join(row for row in rows if '"empty"' not in row))
    table = Instructions(tasks={"list": {"instructions": ["list the folder"]}})
    set_instructions(tiny_model, table)
    tiny_model.save_pretrained(str(tmp_path / "model"))
    config = MineConfig(collection=collection, split="train", retrievers=("bm25", str(tmp_path / "model")), task="list")
    with pytest.raises(InputError, match="'lists'"):
        mine(changed(config, task="lists"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    mine(config, tmp_path / "out")
    for name, task in (("bm25", None), ("model", "list")):
        system = "bm25" if name == "bm25" else EncoderSystem(tmp_path / "model", task=task)
        found = evaluate(system, collection_task(collection, "train"))
        assert read_run(tmp_path / "out" / f"run.{name}.trec") == found.run


def stop(*_):
    raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_with_the_next_retriever(collection, tmp_path, tiny_model_path, monkeypatch):
    config = MineConfig(collection=collection, retrievers=("bm25", str(tiny_model_path)), max_length=16)
    monkeypatch.setattr(searching, "BLOCK", 3)
    mine(config, tmp_path / "whole")
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(SearchIndex, "search_run", stop)
        mine(config, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [WORK, "run.bm25.trec", "run.json"]
    with pytest.raises(OutputExistsError):
        mine(changed(config, seed=1), tmp_path / "out")
    monkeypatch.setattr(BM25, "search", stop)
    assert not mine(config, tmp_path / "out").reused
    whole, resumed = (files_of(tmp_path / name) for name in ("whole", "out"))
    assert {name: resumed[name] for name in whole if name != "run.json"} == {
        name: content for name, content in whole.items() if name != "run.json"
    }


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["runs/a/model", "runs/b/model"], ["a-model", "b-model"]),
        (["/model", "./bm25/model", "bm25"], ["model", "bm25-model", "bm25"]),
        (["owner/some model,v2:x"], ["some-model-v2-x"]),
        (["."], ["model"]),
    ],
)
def test_labels_are_short_and_tell_retrievers_apart(names, labels):
    assert searching.retriever_labels(names) == dict(zip(labels, names, strict=True))


@pytest.mark.parametrize("names", [[], ["bm25", "bm25"], ["a/m", "./a/m"]])
def test_retrievers_given_twice_or_not_at_all(names):
    with pytest.raises(InputError, match="each once"):
        searching.retriever_labels(names)
