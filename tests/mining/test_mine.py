import json
import re
import shutil
from collections import defaultdict
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

import bixse
from bixse.cli.main import main
from bixse.data.collection import load_collection
from bixse.data.graded_pairs import Pair, Pairs
from bixse.data.pairs_files import load_pairs, save_graded_pairs
from bixse.data.task_instructions import Instructions
from bixse.data.trec import read_run, write_qrels
from bixse.encoders.loading.precision import PRECISION_VARIABLE
from bixse.encoders.weights import set_instructions
from bixse.errors import ConfigError, InputError, InvalidFileError, ModelError, OutputExistsError
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.systems import EncoderSystem
from bixse.mining.candidates import fuse
from bixse.mining.mine import WORK, mine_into
from bixse.mining.mine_settings import MineConfig, read_inputs, sample_queries
from bixse.mining.mined_pairs import MINED_FILE, MinedPair, save_mined_pairs
from bixse.mining.retrievers import retriever_labels
from bixse.progress import Progress
from bixse.relevance import GradeScale
from bixse.search import block_search, tasks
from bixse.search.bm25 import BM25
from helpers.command import call, refused
from helpers.source_files import lines, put
from helpers.toy import index_of

AWKWARD = 'a "quoted", text\nof two lines\twith é, 漢 and , commas'
PAIRS = [
    MinedPair("007", "copy", "1e5", AWKWARD, None, "bm25:3,demo:17", 4),
    MinedPair("q2", "null", "NA", "NaN", "nli", "bm25:1", 1),
    MinedPair("q3", "x" * 3_000_000, "d", "a line longer than a reader's block", None, "run:1:2", 100),
]

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


def mined(folder):
    return [MinedPair(**row) for row in pq.read_table(folder / MINED_FILE).to_pylist()]


def by_query(folder):
    pairs = defaultdict(list)
    for pair in mined(folder):
        pairs[pair.query_id].append(pair)
    return dict(pairs)


def changed(config, **settings):
    return MineConfig(**{**config.model_dump(), **settings})


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_written_pairs_are_read_back_as_mined_and_as_pairs_to_grade(tmp_path):
    save_mined_pairs(PAIRS, tmp_path / MINED_FILE)
    assert mined(tmp_path) == PAIRS
    assert load_pairs(tmp_path / MINED_FILE) == [
        Pair(p.query_id, p.query, p.document_id, p.document, p.task) for p in PAIRS
    ]
    generated = replace(PAIRS[0], source="generated")
    assert [pair.retrievers for pair in (*PAIRS, generated)] == [["bm25", "demo"], ["bm25"], ["run:1"], ["generated"]]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["runs/a/model", "runs/b/model"], ["a-model", "b-model"]),
        (["/model", "./bm25/model", "bm25"], ["model", "bm25-model", "bm25"]),
        (["owner/some model,v2:x"], ["some-model-v2-x"]),
        (["."], ["model"]),
    ],
)
def test_labels_are_short_and_tell_retrievers_apart_unless_one_is_repeated(names, labels):
    assert retriever_labels(names) == dict(zip(labels, names, strict=True))
    for repeated in ([], names * 2, ["a/m", "./a/m"]):
        with pytest.raises(InputError):
            retriever_labels(repeated)


def test_run_without_any_candidate_fails_and_corpus_and_queries_are_separate_files(collection, tmp_path):
    queries = tmp_path / "q.jsonl"
    queries.write_text('{"_id": "a", "text": "weather tomorrow"}\n{"_id": "b", "text": "..."}\n')
    config = MineConfig(corpus=collection / "corpus.jsonl", queries=queries, strategy="top")
    with pytest.raises(InputError, match="2 queries"):
        mine_into(config, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
    assert not (tmp_path / "out" / "pairs.parquet").exists()
    queries.write_text('{"_id": "copy-tree", "text": "copy tree"}\n')
    assert not mine_into(config, tmp_path / "second").warnings
    assert mined(tmp_path / "second")[0].document_id == "copy-tree"


def test_dtype_and_content_of_a_model_count_and_its_folder_does_not(collection, tiny_model_path, tmp_path, monkeypatch):
    shutil.copytree(tiny_model_path, tmp_path / "here" / "model")
    config = MineConfig(collection=collection, retrievers=(str(tmp_path / "here" / "model"),), max_length=16)
    words = changed(config, retrievers=("bm25",))
    monkeypatch.setenv(PRECISION_VARIABLE, "float32")
    for settings, out in ((config, tmp_path / "model"), (words, tmp_path / "words")):
        mine_into(settings, out)
    (tmp_path / "here").rename(tmp_path / "there")
    config = changed(config, retrievers=(str(tmp_path / "there" / "model"),))
    assert mine_into(config, tmp_path / "model").reused
    monkeypatch.setenv(PRECISION_VARIABLE, "bfloat16")
    with pytest.raises(OutputExistsError, match="precision"):
        mine_into(config, tmp_path / "model")
    assert mine_into(words, tmp_path / "words").reused, "bm25 computes in no precision"
    (tmp_path / "there" / "model" / "more.json").write_text("{}")
    with pytest.raises(OutputExistsError, match=r"model/model/more\.json"):
        mine_into(config, tmp_path / "model")


def test_another_run_is_never_overwritten(collection, tmp_path):
    config, out = MineConfig(collection=collection, split="train"), tmp_path / "out"
    mine_into(config, out)
    before = files_of(out)
    for other, folder in ((changed(config, strategy="top"), out), (config, collection)):
        with pytest.raises(OutputExistsError):
            mine_into(other, folder)
    assert files_of(out) == before
    (out / MINED_FILE).unlink()
    with pytest.raises(InputError):
        mine_into(config, out)


def test_verb_writes_files_and_shows_a_finished_run_again(capsys, collection, tmp_path, monkeypatch):
    out, words = tmp_path / "out", ["mine", "--collection", str(collection), "--split", "train", "--task", "pages"]
    assert main([*words, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    for part in ("48 pairs of 6 queries, to be graded", "found by bm25", "empty documents: 1"):
        assert part in shown.out
    assert main([*words, "--out", str(out)]) == 0
    again = capsys.readouterr()
    assert again.out == shown.out and "finished before" in again.err
    assert sorted(path.name for path in out.iterdir()) == ["pairs.parquet", "run.bm25.trec", "run.json"]
    assert {pair.task for pair in mined(out)} == {"pages"}
    assert list(read_run(out / "run.bm25.trec")) == list(by_query(out))
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    assert set(record["inputs"]) == {"corpus", "queries", "qrels/train"}
    assert "depth 3" in refused(capsys, *words, "--depth", "3", "--out", tmp_path / "other")


def test_top_is_the_run_without_copies(collection, tmp_path):
    bars = {}

    def bar(title, total):
        bars[title] = [total, 0]
        return lambda done: bars[title].append(bars[title].pop() + done)

    result = mine_into(MineConfig(collection=collection, strategy="top", per_query=5), tmp_path / "out", bar)
    assert bars == {"search with bm25": [10, 10]}
    documents = {row["_id"]: row["text"].strip() for row in map(json.loads, (collection / "corpus.jsonl").open())}
    documents.pop("empty")
    index = BM25(list(documents), list(documents.values()))
    for query_id, pairs in by_query(tmp_path / "out").items():
        expected, seen = [], set()
        for rank, name in enumerate(index.search({"q": pairs[0].query}, 100)["q"], start=1):
            text = " ".join(documents[name].split())
            if text not in seen:
                expected.append((name, documents[name], f"bm25:{rank}", rank))
            seen.add(text)
        assert [(p.document_id, p.document, p.source, p.rank) for p in pairs] == expected[:5], query_id
    assert result.copies == 10  # "copy the file" is there twice and has the word of every query


def test_hard_negatives_are_the_best_unknown_documents(collection, tmp_path):
    plain = MineConfig(collection=collection, split="train", strategy="top", per_query=5)
    mine_into(plain, tmp_path / "top")
    scale = GradeScale(0, 3)
    save_graded_pairs(Pairs.from_collection(load_collection(collection), "train", scale), tmp_path / "known.csv")
    result = mine_into(changed(plain, per_query=3, known=tmp_path / "known.csv"), tmp_path / "hard")
    top, hard = by_query(tmp_path / "top"), by_query(tmp_path / "hard")
    for query_id, pairs in hard.items():
        verb = query_id[2:]
        known = {f"{verb}-file", f"{verb}-disk"}
        assert not known & {pair.document_id for pair in pairs}
        if verb != "copy":
            assert pairs == [pair for pair in top[query_id] if pair.document_id not in known][:3]
    assert "copy-file-again" not in {pair.document_id for pair in hard["q-copy"]}
    assert result.known == 13  # two judged documents per query, and the copy of one


def test_queries_without_candidates_are_listed_and_end_with_3(capsys, collection, tmp_path):
    with (collection / "queries.jsonl").open("a") as file:
        file.write('{"_id": "tree", "text": "tree disk"}\n')
        file.writelines(f'{{"_id": "strange-{number}", "text": "weather"}}\n' for number in range(12))
    words = ("--per-query", "25", "--depth", "30", "--strategy", "top", "--out", tmp_path / "out")
    for _ in range(2):  # the second time from the record
        code, envelope = call(capsys, "mine", "--collection", collection, *words)
        metrics = envelope["metrics"]
        assert code == 3
        assert metrics["without_candidates"] == [f"strange-{number}" for number in range(12)]
        assert (metrics["queries"], metrics["with_fewer"], metrics["empty_documents"]) == (23, 11, 1)
        assert "strange-9 and 2 more" in envelope["warnings"][-1]


@pytest.mark.parametrize("strategy", ["spread", "one"])
def test_documents_of_a_query_do_not_depend_on_other_queries(collection, tmp_path, strategy):
    config = MineConfig(collection=collection, strategy=strategy, seed=3)
    mine_into(config, tmp_path / "all")
    lines = (collection / "queries.jsonl").read_text().splitlines()
    (collection / "queries.jsonl").write_text("\n".join(reversed(lines)))
    mine_into(config, tmp_path / "reversed")
    mine_into(changed(config, split="test"), tmp_path / "two")
    mine_into(changed(config, max_queries=4), tmp_path / "four")
    everything = by_query(tmp_path / "all")
    assert by_query(tmp_path / "reversed") == everything
    for name, count in (("two", 2), ("four", 4)):
        fewer = by_query(tmp_path / name)
        assert len(fewer) == count
        assert fewer.items() <= everything.items()
    mine_into(changed(config, seed=4), tmp_path / "other")
    assert by_query(tmp_path / "other") != everything


def test_rankings_of_an_encoder_and_bm25_are_fused(collection, tmp_path, tiny_model_path, cache_path, encoded):
    config = MineConfig(collection=collection, split="train", retrievers=("bm25", str(tiny_model_path)), depth=20)
    out, label = tmp_path / "out", tiny_model_path.name
    result = mine_into(config, out)
    assert result.runs == {"bm25": "run.bm25.trec", label: f"run.{label}.trec"}
    runs = {name: read_run(out / file) for name, file in result.runs.items()}
    for query_id, pairs in by_query(out).items():
        fused = {c.document_id: c for c in fuse({name: run.get(query_id, {}) for name, run in runs.items()}, 20)}
        for pair in pairs:
            assert (pair.rank, pair.source) == (fused[pair.document_id].rank, fused[pair.document_id].source)
    assert len(list((cache_path / "embeddings").iterdir())) == 1
    encoded.clear()
    mine_into(changed(config, seed=9), tmp_path / "again")
    assert {kind for kind, _ in encoded} == {"query"}  # the cache holds the embeddings of the documents


def test_index_answers_as_its_model_and_on_its_own_corpus_alone(collection, tiny_model_path, tmp_path):
    config = MineConfig(collection=collection, depth=60, cache="none", retrievers=(str(tiny_model_path),))
    mine_into(config, tmp_path / "model")
    index_of(tiny_model_path, collection, tmp_path / "index", cache="none", shards=3)
    by_index = changed(config, retrievers=(str(tmp_path / "index"),))
    mine_into(by_index, tmp_path / "out")
    run, expected = read_run(tmp_path / "out" / "run.index.trec"), read_run(tmp_path / "model" / "run.model.trec")
    assert run == {query_id: pytest.approx(scores, abs=1e-6) for query_id, scores in expected.items()}
    assert all(len(scores) == 51 and "empty" not in scores for scores in run.values())
    with pytest.raises(InputError, match="max_length"):
        mine_into(changed(by_index, max_length=8), tmp_path / "other")
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "more", "text": "copy a file"}\n')
    with pytest.raises(InputError, match="another corpus"):
        mine_into(by_index, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_runs_equal_those_of_evaluate(collection, tmp_path, tiny_model):
    rows = (collection / "corpus.jsonl").read_text().splitlines(keepends=True)
    (collection / "corpus.jsonl").write_text("".join(row for row in rows if '"empty"' not in row))
    set_instructions(tiny_model, Instructions(tasks={"list": {"instructions": ["list the folder"]}}))
    tiny_model.save_pretrained(str(tmp_path / "model"))
    config = MineConfig(collection=collection, split="train", retrievers=("bm25", str(tmp_path / "model")), task="list")
    with pytest.raises(InputError, match="'lists'"):
        mine_into(changed(config, task="lists"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    mine_into(config, tmp_path / "out")
    for name, system in (("bm25", "bm25"), ("model", EncoderSystem(tmp_path / "model", task="list"))):
        expected = evaluate(system, collection_task(collection, "train"))
        assert read_run(tmp_path / "out" / f"run.{name}.trec") == expected.run


def test_interrupted_run_continues_inside_the_next_retriever(
    collection, tmp_path, tiny_model_path, monkeypatch, encoded
):
    def stop(*_):
        raise KeyboardInterrupt

    config = MineConfig(collection=collection, retrievers=("bm25", str(tiny_model_path)), max_length=16, cache="none")
    monkeypatch.setattr(tasks, "QUERIES_PER_BLOCK", 3)
    monkeypatch.setattr(block_search, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(block_search, "DOCUMENTS_PER_BLOCK", 7)
    mine_into(config, tmp_path / "expected")
    add = block_search.TopK.add

    def stop_in_the_third_block(best, documents, *rest):
        if best.seen > 7:
            stop()
        add(best, documents, *rest)

    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(block_search.TopK, "add", stop_in_the_third_block)
        mine_into(config, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [WORK, "run.bm25.trec", "run.json"]
    with pytest.raises(OutputExistsError):
        mine_into(changed(config, seed=1), tmp_path / "out")
    monkeypatch.setattr(BM25, "search", stop)
    encoded.clear()
    assert not mine_into(config, tmp_path / "out").reused
    assert sum(kind == "document" for kind, _ in encoded) <= 52 - 14, "the search goes on after the last written block"
    expected, resumed = (files_of(tmp_path / name) for name in ("expected", "out"))
    for name in expected.keys() - {"run.json"}:
        assert resumed[name] == expected[name]


def test_warnings_of_finished_retrievers_outlive_an_interruption(collection, tmp_path, tiny_model_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    config = MineConfig(collection=collection, retrievers=(str(tiny_model_path), "bm25"), max_length=4, cache="none")
    expected = mine_into(config, tmp_path / "expected").warnings
    assert any("longer" in line or "cut" in line for line in expected), expected
    with monkeypatch.context() as stopped, pytest.raises(KeyboardInterrupt):
        stopped.setattr(BM25, "search", stop)
        mine_into(config, tmp_path / "out")
    assert mine_into(config, tmp_path / "out").warnings == expected


def read_known(collection, rows, **settings):
    content = lines({"query_id": "q-copy", "query": "x", "relevance": 1.0, **row} for row in rows)
    path = put(collection.parent, {"known.jsonl": content}) / "known.jsonl"
    return read_inputs(MineConfig(collection=collection, known=path, **settings))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"corpus": "c"},
        {"queries": "q"},
        {"collection": "d", "corpus": "c", "queries": "q"},
        {"corpus": "c", "queries": "q", "split": "train"},
        {"collection": "d", "per_query": 11, "depth": 10},
        {"collection": "d", "depth": 7},
        {"collection": "d", "strategy": "one", "per_query": 2},
    ],
)
def test_contradicting_settings_are_refused(settings):
    with pytest.raises(ConfigError, match="1 error"):
        MineConfig.load(None, settings)


def test_default_number_of_documents_depends_on_the_strategy(tmp_path):
    assert MineConfig(collection=tmp_path, strategy="one", depth=1, per_query=1).count == 1
    assert [MineConfig(collection=tmp_path, strategy=name).count for name in ("one", "top", "spread")] == [1, 8, 8]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"collection": "none"}, "none/corpus.jsonl"),
        ({"collection": "toy", "split": "dev"}, "expected one of ['test', 'train']"),
        ({"collection": "toy", "known": "none.jsonl"}, "none.jsonl"),
        ({"collection": "toy", "known": "toy"}, "toy: got"),
        ({"collection": "toy", "retrievers": ("bm25", "bm-25")}, "bm-25"),
        ({"collection": "toy", "retrievers": ("bm25", "no/such/model")}, "no/such/model"),
        ({"corpus": "toy/corpus.jsonl", "queries": "none"}, "none: got"),
    ],
)
def test_missing_files_are_refused(collection, settings, message, tmp_path, monkeypatch):
    monkeypatch.chdir(collection.parent)
    with pytest.raises((InputError, ModelError), match=re.escape(message)):
        mine_into(MineConfig(**settings), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_queries_of_a_split_or_of_all_with_a_warning(collection):
    task, known = read_inputs(MineConfig(collection=collection, split="test"))
    (asked,) = task.query_sets
    assert (task.count, len(asked.left_out), known) == (52, 1, {})
    assert (list(asked.queries), task.warnings) == (["q-list", "q-find"], ())
    (warning,) = read_inputs(MineConfig(collection=collection))[0].warnings
    assert "test, train" in warning
    (collection / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nelsewhere\tcopy-file\t1\n")
    with pytest.raises(InputError, match="dev"):
        read_inputs(MineConfig(collection=collection, split="dev"))


def test_drawn_queries_do_not_depend_on_the_others():
    queries = {f"q{number}": "text" for number in range(200)}
    fifty, hundred = sample_queries(queries, 50, 0), sample_queries(queries, 100, 0)
    assert len(fifty) == 50
    assert set(fifty) < set(hundred)
    assert list(fifty) == [name for name in queries if name in fifty]
    assert set(sample_queries(dict(reversed(queries.items())), 50, 0)) == set(fifty)
    assert set(sample_queries(queries, 50, 1)) != set(fifty)


def test_known_pairs_of_missing_documents_or_other_queries_are_refused(collection):
    rows = [
        {"document_id": "copy-file", "document": "copy the file"},
        {"document_id": "lost", "document": "no such text"},
        {"query_id": "q-move", "query": "y", "document_id": "gone", "document": "nor this"},
    ]
    with pytest.raises(InvalidFileError, match=r"2 of 3 documents .* 'lost'"):
        read_known(collection, rows)
    with pytest.raises(InputError, match="'z'"):
        read_known(collection, [{"query_id": "z", "query": "weather", "document": "copy the file"}])


def test_known_pairs_are_matched_by_their_texts_or_ids(collection, tmp_path):
    path = tmp_path / "known.csv"
    path.write_text("query,document,relevance\nhow do i move a file,move the file,1\nweather,move the file,1\n")
    task, known = read_inputs(MineConfig(collection=collection, split="train", known=path))
    assert known == {"q-move": {"move-file"}}
    assert any("known.csv: 1 of 2 queries that are not mined" in warning for warning in task.warnings)
    queries = {**QUERIES, "q-again": QUERIES["q-move"]}
    put(collection, {"queries.jsonl": lines({"_id": key, "text": text} for key, text in queries.items())})
    _, known = read_inputs(MineConfig(collection=collection, known=path))
    assert known == {"q-move": {"move-file"}, "q-again": {"move-file"}}, "two queries of one text"
    rows = [
        {"document_id": "copy-file", "document": "of another corpus"},
        {"document_id": "copy-disk", "document": "copy the disk"},
    ]
    task, known = read_known(collection, rows, split="train")
    assert known == {"q-copy": {"copy-file", "copy-disk"}}
    assert task.warnings == ("known.jsonl: 1 of 2 pairs have another text than the corpus has under their id",)


def test_one_progress_bar_is_open_at_a_time_and_verbs_of_objects_can_be_quiet(monkeypatch):
    open_bars, titles = [], []

    class Bar(Progress):
        def __init__(self, title, total):
            super().__init__(title, total)
            assert not open_bars, (title, open_bars)
            open_bars.append(title)
            titles.append(title)

        def close(self):
            open_bars.clear()
            super().close()

    for name in ("mining.mine", "evaluation.evaluate_files", "judging.grade", "calibration.calibrate"):
        monkeypatch.setattr(f"bixse.{name}.progress_bar", Bar)
    corpus, queries = {"d1": "copy a file", "d2": "remove a file"}, {"q1": "copy it", "q2": "remove it"}
    collection = (queries, corpus, {"q1": {"d1": 1}, "q2": {"d2": 1}})
    judge = bixse.Judge(lambda query, document: query.split()[0] in document, name="word")
    rows = [{"query": f"{query} {n}", "document": text, "relevance": n % 2}
            for n in range(4) for query in queries.values() for text in corpus.values()]  # fmt: skip
    for verbose in (False, True):
        mined = bixse.mine(queries, corpus, ["bm25", "static:demo"], 2, verbose=verbose)
        bixse.evaluate("static:demo", collection, verbose=verbose)
        bixse.grade(mined, judge, verbose=verbose)
        bixse.calibrate("static:demo", rows, verbose=verbose)
        assert verbose == bool(titles)
    assert titles[:3] == ["search with bm25", "encode documents", "search with static-demo"]
    assert titles[3:] == ["static:demo: collection", "grade", "encode pairs"]
