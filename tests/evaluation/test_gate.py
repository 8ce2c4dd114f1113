import json

import pytest

from bixse import collection_task, evaluate
from bixse.data.collection import save_collection
from bixse.data.trec import write_run
from bixse.evaluation.gate import gate, read_baseline
from helpers.command import call, refused
from helpers.toy import action_collection

QUERIES = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A collection, and the evaluation of BM25 that is the baseline."""
    folder = tmp_path_factory.mktemp("gate")
    save_collection(action_collection(splits=False), folder / "toy")
    evaluate("bm25", folder / "toy", folder / "base")
    return folder


def worse(folder, tmp_path, queries, name="changed"):
    """Return a run file as BM25's, but for some queries that it answers with one irrelevant document."""
    run = dict(evaluate("bm25", folder / "toy").run)
    for query, other in zip(list(run)[:queries], list(run)[2 : queries + 2], strict=True):
        run[query] = {next(iter(run[other])): 1.0}
    write_run(tmp_path / f"{name}.trec", run, name)
    return tmp_path / f"{name}.trec"


def words(folder, system, *more):
    return ("evaluate", system, "--collection", folder / "toy", "--fail-if-worse-than", *more)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda base: (base / "per_query.json").unlink(), "per_query.json"),
        (lambda base: (base / "run.json").unlink(), "run.json"),
        (lambda base: (base / "run.json").write_text("{}"), "run.json"),
        (lambda base: (base / "per_query.json").write_text("[]"), "per_query.json"),
        (lambda base: (base / "per_query.json").write_text('{"ndcg@10": {"q": "high"}}'), "per_query.json"),
        (lambda base: rewrite(base, "per_query.json", lambda figures: figures.pop("ndcg@10")), "ndcg@10"),
        (lambda base: rewrite(base, "run.json", lambda record: record.update(status="interrupted")), "interrupted"),
        (lambda base: rewrite(base, "run.json", lambda record: record.update(command="train")), "train"),
        (lambda base: rewrite(base, "run.json", lambda r: r["inputs"].update({"corpus.jsonl": "0"})), "corpus.jsonl"),
        (lambda base: rewrite(base, "run.json", lambda r: r["config"].update(split="dev")), "split"),
        (lambda base: rewrite(base, "run.json", lambda r: r["config"].update(exclude_self=True)), "exclude_self"),
        (lambda base: rewrite(base, "run.json", lambda r: r["config"].update(min_relevant_grade=2)), "min_relevant"),
        (lambda base: rewrite(base, "per_query.json", lambda r: r["ndcg@10"].pop("q0-0")), "q0-0"),
        (lambda base: rewrite(base, "per_query.json", lambda r: r["ndcg@10"].update(other=1.0)), "other"),
        *(
            (
                lambda base, wrong=wrong: rewrite(
                    base, "per_query.json", lambda r: r["ndcg@10"].update({"q0-0": wrong})
                ),
                "q0-0",
            )
            for wrong in (float("nan"), float("inf"), 1e308, 1.001, -0.1, True)
        ),
    ],
)
def test_a_baseline_that_does_not_fit_is_wrong_input(capsys, folder, tmp_path, change, message):
    base = tmp_path / "base"
    evaluate("bm25", folder / "toy", base)
    change(base)
    assert message in refused(capsys, *words(folder, "bm25", base))


def rewrite(base, name, change):
    content = json.loads((base / name).read_text())
    change(content)
    (base / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "words",
    [
        "base --collection toy --by 0.1",
        "base bm25 --collection toy --fail-if-worse-than base",
        "MODEL --collection toy --dimensions 8 16 --fail-if-worse-than base",
        "base --collection toy --fail-if-worse-than base --by -0.1",
        "base --collection toy --fail-if-worse-than nowhere",
        "bm25 --suite beir --data . --fail-if-worse-than base",
    ],
)
def test_a_gate_needs_one_model_and_a_baseline(capsys, folder, tiny_model_path, monkeypatch, words):
    monkeypatch.chdir(folder)
    refused(capsys, "evaluate", *words.replace("MODEL", str(tiny_model_path)).split())


def test_exit_code_1_for_a_worse_model_and_0_for_an_equal_one(capsys, folder, tmp_path):
    for base in (folder / "base", folder / "base" / "per_query.json", folder / "base" / "run.json"):
        code, envelope = call(capsys, *words(folder, "bm25", base))
        assert (code, envelope["errors"]) == (0, [])
        found = envelope["metrics"]["gate"]
        assert (found["verdict"], found["passed"], found["mean"]) == ("no difference", True, 0)
    code, envelope = call(capsys, *words(folder, worse(folder, tmp_path, 20), folder / "base"))
    found = envelope["metrics"]["gate"]
    assert (code, found["verdict"], found["passed"], len(envelope["errors"])) == (1, "worse", False, 1)
    assert found["low"] <= found["mean"] <= found["high"] < 0
    assert (found["queries"], found["metric"]) == (QUERIES, "ndcg@10")
    code, envelope = call(capsys, *words(folder, worse(folder, tmp_path, 20), folder / "base", "--by", 0.9))
    assert (code, envelope["metrics"]["gate"]["verdict"], envelope["metrics"]["gate"]["passed"]) == (0, "worse", True)


def test_a_loss_that_chance_explains_passes_and_a_better_model_too(folder, tmp_path):
    task = collection_task(folder / "toy")
    baseline = read_baseline(folder / "base", task)
    one = gate(evaluate(worse(folder, tmp_path, 1), task), baseline, "base")
    assert one.difference.mean < 0 and one.difference.verdict == "no difference" and one.passed
    assert f"{-one.difference.low:.3f}" in one.text()
    poor = tmp_path / "poor"
    evaluate(worse(folder, tmp_path, 20), task, poor)
    better = gate(evaluate("bm25", task), read_baseline(poor, task), "poor")
    assert better.difference.verdict == "better" and better.passed
    json.dumps(better.plain(), allow_nan=False)
