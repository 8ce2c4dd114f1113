"""The script of a user of sentence-transformers: objects in, objects out, offline, in a fresh home, no file left.

The Python of README.md and docs/python.md runs too.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

import bixse
from bixse.data.collection import load_collection
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError, InterruptedRunError, OutputExistsError
from bixse.training.config import TrainConfig
from bixse.training.loop.checkpoints import StopOnInterrupt
from bixse.training.train import train_into

ACTIONS = """
copy move delete rename open close read write list sort search replace split join parse format encode decode compress
send receive connect listen wait start stop pause resume log test
""".split()  # noqa: SIM905
SCRIPT = """
import numpy as np
import bixse
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments

things = ("folder", "file", "archive", "stream")
corpus = {f"{word}-{thing}": {"title": word, "text": f"to {word} a {thing}"} for word in ACTIONS for thing in things}
corpus["text"] = "a document without a title"
queries = {f"train-{word}-{thing}": f"{word} one {thing}" for word in ACTIONS for thing in things[:2]}
dev_queries = {f"dev-{word}-{thing}": f"{word} the {thing}" for word in ACTIONS for thing in things[:2]}
dev_qrels = {query: {query[4:]: 3, f"{query[4:].split('-')[0]}-stream": 1} for query in dev_queries}
dev = (dev_queries, corpus, dev_qrels)

mined = bixse.mine(queries, corpus, retrievers=["bm25", MODEL], per_query=4)
judge = bixse.Judge(lambda query, document: 3 if query.split()[-1] in document else 1, scale=(0, 3), name="word")
assert judge("copy a folder", "shutil: copy a folder").relevance == 1.0
grades = bixse.grade(mined, judge)
assert set(grades.to_pandas()["relevance"]) == {1 / 3, 1.0}
train_set = grades.to_dataset()
assert train_set.column_names == ["query", "document", "label"]

base = bixse.evaluate(MODEL, dev)
trained = bixse.train(MODEL, grades, dev=dev, num_train_epochs=1, global_batch_size=8, seed=0)
print(trained)
assert trained.model.head is not None and bixse.evaluate(trained.model, dev)["nDCG@10"] > 0.5
model = SentenceTransformer(MODEL)
loss = bixse.BiXSELoss(model)
evaluator = bixse.GradedInformationRetrievalEvaluator(dev_queries, corpus, relevant_docs=dev_qrels, name="dev")
args = SentenceTransformerTrainingArguments("out", eval_strategy="epoch", num_train_epochs=1, learning_rate=2e-3,
                                            per_device_train_batch_size=16, report_to="none")
trainer = SentenceTransformerTrainer(model, args, train_dataset=train_set, loss=loss, evaluator=evaluator,
                                     callbacks=[bixse.SaveRelevanceHead(loss)])
trainer.train()
tuned = bixse.evaluate(model, dev)
logged = [entry["eval_dev_cosine_ndcg@10"] for entry in trainer.state.log_history if "eval_dev_cosine_ndcg@10" in entry]
assert abs(logged[-1] - tuned["nDCG@10"]) < 1e-6
tuned.save("tuned.json")
assert bixse.Evaluation.load("tuned.json") == tuned
assert base.per_query.shape == (60, 4)
print(base)
compared = bixse.compare(tuned, baseline=base)
print(compared)
print(bixse.compare({"base": base, "bixse": tuned}, baseline="base").to_markdown())
assert compared.verdict in ("better", "no difference", "worse")
few = [bixse.evaluate(each, (dev_queries, corpus, dict(list(dev_qrels.items())[:7]))) for each in (model, "bm25")]
assert bixse.compare(few[0], baseline=few[1]).verdict == "cannot tell"

merged = bixse.merge(MODEL, trained.model, dev=dev)
assert merged.table["dev"].max() - merged.table["dev"][merged.weight] < 0.05 and merged.weight in merged.table.index
print(merged)
merged.model.save_pretrained("my-model")
assert merged.model.rank("copy a folder", ["shutil.copytree", "copy a folder"])[0]["corpus_id"] == 1
bixse.merge(MODEL, trained.model, weights=[0.5, 0.5], pairs=grades).model.relevance("copy", ["shutil.copy"])

relevance = [dev_qrels[query].get(name, 0) / 3 for query, hits in tuned.run.items() for name in list(hits)[:10]]
scores = [score for hits in tuned.run.values() for score in list(hits.values())[:10]]
asked = [query for query, hits in tuned.run.items() for _ in list(hits)[:10]]
calibration = bixse.calibrate(scores, relevance, queries=asked, anyway=True)
assert 0 < calibration.probability(0.62) < 1
try:
    cut = calibration.threshold(precision=0.5)
except bixse.NotReachable as error:
    cut = error.best
assert 0 <= cut.precision <= 1 and 0 <= cut <= 1
model.save_pretrained("my-model")
SentenceTransformer("my-model")
ranked = bixse.RelevanceModel("my-model").rank("copy a folder", ["shutil.copytree", "copy a folder"])
assert [entry["corpus_id"] for entry in ranked] == [1, 0]
"""


def test_the_script_runs_offline_in_a_fresh_home_and_leaves_only_what_was_asked_for(tmp_path, student):
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "script.py").write_text(f"MODEL, ACTIONS = {str(student)!r}, {ACTIONS!r}\n{SCRIPT}")
    unset = ("BIXSE_CACHE_DIR", "XDG_CACHE_HOME", "HF_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"HOME": str(home), "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([sys.executable, "script.py"], cwd=work, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert {path.name for path in work.iterdir()} == {"script.py", "out", "tuned.json", "my-model"}
    assert not [path for path in home.rglob("*") if "bixse" in path.name]
    assert "nDCG@10" in ended.stdout and "better / worse" in ended.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    text = (Path(__file__).parents[1] / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    (tmp_path / "page.py").write_text("\n".join(blocks))
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "verdict" in ended.stdout and {"my-model", "checkpoints"} <= {path.name for path in tmp_path.iterdir()}


SHORT = {"num_train_epochs": 1, "global_batch_size": 8, "learning_rate": 2e-3, "verbose": False}


@pytest.fixture
def objects(actions, tmp_path, monkeypatch):
    """The training pairs as a frame, and the collection; temporary folders are made in the folder `temporary`."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return load_graded_pairs(actions.parent / "pairs.jsonl").to_pandas(), load_collection(actions)


def test_training_on_objects_gives_the_model_of_training_on_files(objects, student, actions, tmp_path, cache_path):
    pairs, collection = objects
    model = SentenceTransformer(str(student))
    before = model.encode(["copy a file"])
    dev = (collection.queries, collection.corpus, collection.qrels["dev"])
    trained = bixse.train(model, pairs, dev=dev, guard=[actions], guard_split=("test",), **SHORT)
    assert not list((tmp_path / "temporary").iterdir()) and not cache_path.exists()
    options = {name: value for name, value in SHORT.items() if name != "verbose"}
    files = {"pairs": actions.parent / "pairs.jsonl", "dev": actions, "guard": actions}
    expected = train_into(TrainConfig(model=str(student), optimizer=options, **files), tmp_path / "run", False)
    assert trained.history == expected.history and trained.merge.weight == expected.merge.weight
    vectors = [each.encode(["copy a file"]) for each in (trained.model, SentenceTransformer(str(expected.model_path)))]
    assert np.array_equal(*vectors) and np.array_equal(model.encode(["copy a file"]), before)
    assert repr(trained) == str(trained) and repr(trained.model) != repr(trained)
    assert trained.folder is None and "merge weight" in str(trained) and "<table>" in trained._repr_html_()


def test_training_objects_into_a_folder_continues_an_interrupted_run(objects, student, tmp_path, monkeypatch):
    whole, ended = bixse.train(str(student), objects[0], **SHORT), StopOnInterrupt.on_step_end

    def interrupted(self, args, state, control, **named):
        self.requested = self.requested or state.global_step == 2
        return ended(self, args, state, control, **named)

    with monkeypatch.context() as patch:
        patch.setattr(StopOnInterrupt, "on_step_end", interrupted)
        for out in (None, tmp_path / "out"):
            with pytest.raises(InterruptedRunError) as stopped:
                bixse.train(str(student), objects[0], out=out, **SHORT)
            assert stopped.value.model.encode(["copy a file"]).shape == (1, 16)
            assert stopped.value.__cause__ is None and stopped.value.__suppress_context__
    trained = bixse.train(str(student), objects[0], out=tmp_path / "out", **SHORT)
    assert trained.history == whole.history and trained.folder == tmp_path / "out"
    assert np.array_equal(trained.model.encode(["copy"]), whole.model.encode(["copy"]))
    assert not list((tmp_path / "temporary").iterdir())


def test_objects_with_ids_of_any_text_are_trained_and_their_content_names_the_run(student, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    corpus = {f"document {word}\n": {"title": word, "text": f"{word} a file"} for word in ACTIONS}
    queries = {f"query\t{word}": f"{word} the file" for word in ACTIONS}
    qrels = {f"query\t{word}": {f"document {word}\n": 3} for word in ACTIONS}
    rows = [
        {"query_id": f" {word}", "query": f"{word} one", "document_id": f"{word} ", "document": word, "relevance": 1.0}
        for word in ACTIONS
    ]
    model, out = SentenceTransformer(str(student)), tmp_path / "out"
    guard = bixse.Collection.of(corpus, queries, qrels, split="other split")

    def train(pairs=rows, out=out, dev=(queries, corpus, qrels), **changes):
        return bixse.train(model, pairs, dev=dev, guard=guard, guard_split="other split", out=out, **SHORT, **changes)

    trained, record = train(), json.loads((out / "run.json").read_text())
    hashes = record["inputs"]
    assert set(hashes) == {"model", "pairs", "dev", "guard"} and all(len(value) == 64 for value in hashes.values())
    named = {record["config"][name] for name in ("model", "pairs", "dev", "guard")}
    assert named == {"in memory"} and "bixse-train-" not in json.dumps(record)
    written = (out / "run.json").stat().st_mtime_ns
    again = train(dev=bixse.Collection.of(corpus, queries, qrels, split="dev"))
    assert again.history == trained.history and (out / "run.json").stat().st_mtime_ns == written
    changed = {
        "pairs": {"pairs": [{**rows[0], "task": "t"}, *rows[1:]]},
        "dev": {"dev": (queries, {**corpus, "one more": "text"}, qrels)},
    }
    for name, change in changed.items():
        with pytest.raises(OutputExistsError, match=rf"changed: {name} \(its content\)"):
            train(**change)
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    with pytest.raises(OutputExistsError, match=r"changed: model \(its content\)"):
        train()
    merged = bixse.merge(model, trained.model, dev=(queries, corpus, qrels), pairs=rows, out=tmp_path / "merged")
    record = json.loads((tmp_path / "merged" / "run.json").read_text())
    assert record["config"]["models"] == ["model 1 in memory", "model 2 in memory"]
    assert merged.model.head is not None and {"pairs", "dev", "0/model", "1/model"} == set(record["inputs"])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("bixse-")] == []


def test_mined_pairs_of_objects_are_those_of_files(objects, student, actions, tmp_path):
    collection = load_collection(actions)
    options = {"per_query": 2, "verbose": False, "seed": 3}
    model = SentenceTransformer(str(student))
    known = objects[0]
    mined = bixse.mine(collection.queries, collection.corpus, ["bm25", model], known=known, **options)
    assert not list((tmp_path / "temporary").iterdir())
    files = [actions / "queries.jsonl", actions / "corpus.jsonl", ["bm25", str(student)]]
    again = [
        bixse.mine(*files, known=actions.parent / "pairs.jsonl", out=tmp_path / "out", **options) for _ in range(2)
    ][1]
    assert list(mined.rows()) == list(again.rows()) and (tmp_path / "out" / "run.json").exists()
    asked = set(zip(mined.query_ids, mined.document_ids, strict=True))
    assert len(asked) == len(mined) and not asked & set(zip(known["query_id"], known["document_id"], strict=True))
    assert mined.to_pandas().columns.tolist() == ["query_id", "query", "document_id", "document"]
    assert mined.to_dataset().column_names == ["query", "document"]
    with pytest.raises(InputError, match=r"not graded\); expected relevance; fix: bixse.grade"):
        bixse.train("static:demo", mined)


def test_merged_objects_are_those_of_files(objects, student, actions, tmp_path):
    trained = bixse.train(str(student), objects[0], merge=None, **SHORT)
    models = (SentenceTransformer(str(student)), trained.model)
    merged = bixse.merge(*models, dev=actions, verbose=False)
    assert not list((tmp_path / "temporary").iterdir())
    half = bixse.merge(*models, weights=[0.5, 0.5], out=tmp_path / "out")
    written = (tmp_path / "out" / "model" / "model.safetensors").stat().st_mtime_ns
    assert bixse.merge(*models, weights=[0.5, 0.5], out=tmp_path / "out").weight == 0.5
    assert (tmp_path / "out" / "model" / "model.safetensors").stat().st_mtime_ns == written
    with pytest.raises(OutputExistsError, match=r"changed: 1/model \(its content\)"):
        bixse.merge(models[0], models[0], weights=[0.5, 0.5], out=tmp_path / "out")
    vectors = [model.encode("copy a file", normalize_embeddings=False) for model in (*models, half.model)]
    assert np.allclose(vectors[2], (vectors[0] + vectors[1]) / 2, atol=1e-6)  # the mean of token embeddings is linear
    base = bixse.evaluate(models[0], bixse.collection_task(actions, "dev"))
    assert merged.table.index.tolist()[0] == 0 and merged.table.iloc[0, 0] == pytest.approx(base["nDCG@10"])
    assert "*" in str(merged) and half.weight == 0.5 and str(half).splitlines()[2].split() == ["0.500", "*"]


PAIR = {"query": "copy", "document": "shutil.copy", "relevance": 1.0}
DEV = ({"q": "copy"}, {"d": "shutil.copy"}, {"q": {"d": 1}})


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"model": TrainConfig(pairs="pairs.jsonl"), "pairs": "out"}, "got TrainConfig; expected a name.*bixse.train"),
        ({"model": CrossEncoder}, "got ABCMeta; expected a name, a folder or a SentenceTransformer"),
        ({"pairs": pandas.DataFrame([PAIR]).drop(columns="document")}, "add the column document"),
        ({"pairs": [{**PAIR, "relevance": 3.0}]}, "got relevance 3; expected a number in"),
        ({"pairs": 7}, "pairs: got int; expected a Dataset, a frame"),
        ({"dev": (DEV[1], DEV[0], DEV[2])}, r"pass \(queries, corpus, qrels\) in this order"),
        ({"dev": (*DEV[:2], {"q": {"e": 1}})}, "dev: 1 error.*documents that the corpus lacks"),
        ({"dev": (*DEV[:2], {"q": {"d"}})}, r"qrels: got .*fix: write \{document id: 1\}"),
        ({"dev": (*DEV[:2], {"q": {}})}, "dev: got no judgement above 0"),
        ({"dev": ({"q": " "}, *DEV[1:])}, "queries: got .*; expected a text"),
        ({"dev": (DEV[0], {"d": "\ud800"}, DEV[2])}, "corpus: got .*; expected a text"),
        ({"dev": bixse.Collection.of(DEV[1], DEV[0], DEV[2], split="test")}, "got split 'dev'; expected one of test"),
        ({"dev": [DEV, DEV], "guard": [DEV], "guard_split": ("a", "b")}, "got 2 guard splits for 1 guard collections"),
        ({"num_train_epoch": 2}, "did you mean 'num_train_epochs'"),
    ],
)
def test_wrong_objects_are_refused_at_the_call(changes, reported):
    with pytest.raises(InputError, match=f"(?s){reported}"):
        bixse.train(**{"model": "static:demo", "pairs": [PAIR], **changes})


def test_wrong_queries_corpus_and_models_are_refused_at_the_call():
    with pytest.raises(InputError, match=r"got TrainConfig and str; expected two dictionaries.*bixse\.mine\("):
        bixse.mine(TrainConfig(pairs="pairs.jsonl"), "out")
    with pytest.raises(InputError, match=r"corpus: got .*; expected a text"):
        bixse.mine({"q": "copy"}, {"d": 7})
    with pytest.raises(InputError, match="got TrainConfig; expected a name"):
        bixse.merge(TrainConfig(pairs="pairs.jsonl"), "out")
    with pytest.raises(InputError, match="neither weights nor dev"):
        bixse.merge("demo", "demo")


NAMES = """
BiXSELoss BudgetReached Calibration Comparisons Evaluation GradedInformationRetrievalEvaluator Pairs Judge
Merged NotReachable SaveRelevanceHead Trained calibrate collection_task compare evaluate grade merge
mine report train
""".split()  # noqa: SIM905
"""Names of the script. Their examples run with the tests of their modules."""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_script_has_an_example(name):
    assert name in bixse.__all__ and "Example" in getattr(bixse, name).__doc__


def test_names_are_listed_once_and_by_noun():
    lines = (Path(bixse.__file__).parent / "__init__.pyi").read_text().splitlines()
    headings = [line[2:].split(": ")[0] for line in lines if line.startswith("# ") and "ruff" not in line]
    assert headings == ["Pairs", "Collections and systems", "Judges", "Models and losses", "Probabilities", "Reports",
                        "Errors", "Studies and suites"]  # fmt: skip
