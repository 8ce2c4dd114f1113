"""mteb through its own interface: separate checkpoints, our prompts, and figures equal to our evaluator's."""

import json
import sys

import pytest

from bixse.data.collection import load_collection
from bixse.data.task_instructions import Instructions
from bixse.encoders.weights import set_instructions
from bixse.errors import InputError
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.metrics import mean
from bixse.evaluation.systems import EncoderSystem
from bixse.suites.suite_run import evaluate_suite
from helpers.command import result_of
from helpers.toy import save_toy

mteb = pytest.importorskip("mteb", reason="needs bixse[mteb]")
pytestmark = pytest.mark.slow

from datasets import Dataset  # noqa: E402
from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

from bixse.suites import mteb_suite  # noqa: E402
from bixse.suites.mteb_suite import MtebEncoder, benchmark_tasks, download_collection, mteb_prompts  # noqa: E402


@pytest.fixture
def folder(tmp_path):
    return save_toy(tmp_path / "toy")


def with_data(task, folder):
    """A task of mteb, in all but its data, which are read from a collection folder."""

    def load_data(self, *_, **__):
        data = load_collection(folder, ["test"])
        queries = {query: data.queries[query] for query in data.qrels["test"]}
        corpus = {"id": list(data.corpus), "text": [document.content for document in data.corpus.values()]}
        split = RetrievalSplitData(
            corpus=Dataset.from_dict(corpus),
            queries=Dataset.from_dict({"id": list(queries), "text": list(queries.values())}),
            relevant_docs={q: {d: int(g) for d, g in grades.items()} for q, grades in data.qrels["test"].items()},
            top_ranked=None,
        )
        self.dataset, self.data_loaded = {"default": {"test": split}}, True

    local = type(type(task).__name__, (type(task),), {"load_data": load_data})()
    local.__dict__.update(task.__dict__)
    return local


def toy_task(folder):
    metadata = TaskMetadata(
        name="Toy", description="toy", dataset={"path": "local/toy", "revision": "1"}, type="Retrieval",
        category="t2t", eval_splits=["test"], eval_langs=["eng-Latn"], main_score="ndcg_at_10", is_public=False,
    )  # fmt: skip
    kind = type("Toy", (AbsTaskRetrieval,), {"metadata": metadata})
    return with_data(kind(), folder)


def run(model, task, folder):
    """mteb's result of one task, through mteb's own entry."""
    cache = mteb.ResultCache(folder / "cache")
    return mteb.evaluate(model, task, cache=cache, co2_tracker=False, show_progress_bar=False).task_results[0]


def encoder_of(model, *tasks, label="runs/model"):
    system = EncoderSystem(model)
    system.label = label
    return MtebEncoder(system, tasks)


def shaken(model, seed):
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def test_missing_data_is_listed_without_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(InputError) as error:
        evaluate_suite(["no/such/model"], "mteb-eng-v2", out=tmp_path / "o")
    message = str(error.value)
    assert message.count("hf download --repo-type dataset ") == 41
    assert "STS22.v2: hf download --repo-type dataset mteb/sts22-crosslingual-sts --revision" in message
    assert not (tmp_path / "o").exists()


def test_local_data_and_unknown_tasks_are_refused(tmp_path):
    with pytest.raises(InputError, match="--collection"):
        evaluate_suite(["bm25"], "mteb-eng-v2", tmp_path)
    with pytest.raises(InputError, match=r"MTEB\(eng, v2\): got 'FiQA'; expected one of .*did you mean 'FiQA2018'"):
        benchmark_tasks("MTEB(eng, v2)", ["FiQA"])


def test_without_mteb_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.delitem(sys.modules, "bixse.suites.mteb_suite")
    with pytest.raises(InputError, match=r"pip install 'bixse\[mteb\]'"):
        evaluate_suite(["bm25"], "mteb-eng-v2")


def test_systems_that_are_no_encoders_are_refused(tmp_path, local):
    with pytest.raises(InputError, match="bm25: got a system that is no encoder"):
        evaluate_suite(["bm25"], "mteb-eng-v2", out=tmp_path / "out", tasks=["FiQA2018"])
    assert not (tmp_path / "out").exists()


def test_a_second_checkpoint_is_not_given_the_first_one_s_score(tiny_model, tiny_model_path, folder, tmp_path):
    """By itself mteb falls into that trap: when the second half fails, `model_meta` is needed no longer."""
    from sentence_transformers import SentenceTransformer

    scores, theirs, task = set(), set(), toy_task(folder)
    for seed in range(3):
        encoder = encoder_of(shaken(tiny_model, seed), task)
        shared, alone = (run(encoder, task, tmp_path / name).get_score() for name in ("shared", str(seed)))
        assert shared == alone
        scores.add(alone)
        plain = shaken(SentenceTransformer(str(tiny_model_path), device="cpu"), seed)
        theirs.add(run(plain, task, tmp_path / "theirs").get_score())
    assert len(scores) > 1 == len(theirs)


def test_name_and_revision_say_which_checkpoint_it_is(tiny_model):
    first = encoder_of(tiny_model, label="runs/a/model").mteb_model_meta
    assert first.name == "a/model"
    assert encoder_of(tiny_model, label="demo").mteb_model_meta.name == "bixse/demo"
    revisions = [first.revision]
    assert encoder_of(tiny_model).mteb_model_meta.revision == first.revision
    for name, value in (("prompts", {"query": "find: ", "document": ""}), ("max_seq_length", 16)):
        setattr(tiny_model, name, value)
        revisions.append(encoder_of(tiny_model).mteb_model_meta.revision)
    revisions.append(encoder_of(shaken(tiny_model, 0)).mteb_model_meta.revision)
    assert len(set(revisions)) == 4


def test_each_task_has_the_instruction_of_the_model_s_table(tiny_model, folder, tmp_path):
    symmetric = {"instructions": ["same"], "symmetric": True}
    instructions = {"FiQA2018": {"instructions": ["finance"]}, "quora_duplicates": symmetric}
    table = Instructions(default="default", tasks=instructions)
    set_instructions(tiny_model, table)
    tasks = [with_data(task, folder) for task in benchmark_tasks("BEIR", ["FiQA2018", "QuoraRetrieval", "SciFact"])]
    encoder = encoder_of(tiny_model, *tasks)
    seen, before = [], tiny_model.preprocess
    tiny_model.preprocess = lambda texts, **options: seen.append(options.get("prompt")) or before(texts, **options)
    for task in tasks:
        run(encoder, task, tmp_path)
    prompts = {name: f"Instruct: {name}\nQuery:\n" for name in ("finance", "same", "default")}
    assert encoder.used == {
        "FiQA2018 query": prompts["finance"],
        "FiQA2018 document": "",  # a prompt named by the task alone would stand before documents too
        "QuoraRetrieval query": prompts["same"],
        "QuoraRetrieval document": prompts["same"],
        "SciFact query": prompts["default"],
        "SciFact document": "",
    }
    assert set(seen) == {*prompts.values(), None}
    assert (tiny_model.task, tiny_model.instructions) == (None, table)


def test_the_model_s_own_prompts_stand_before_queries_and_documents(tiny_model, folder, tmp_path):
    tiny_model.prompts = {"query": "find: ", "document": "text: "}
    task = toy_task(folder)
    encoder = encoder_of(tiny_model, task)
    run(encoder, task, tmp_path)
    assert encoder.used == {"Toy query": "find: ", "Toy document": "text: "}
    assert tiny_model.prompts == {"query": "find: ", "document": "text: "}


def test_tasks_that_are_no_retrieval_take_mteb_s_instruction_in_the_model_s_template(tiny_model):
    tasks = benchmark_tasks("MTEB(eng, v2)", ["Banking77Classification", "STS12"])
    assert mteb_prompts(tiny_model, tasks) == {}
    set_instructions(tiny_model, Instructions(default="default", tasks={"a": {"instructions": ["b"]}}))
    prompts = mteb_prompts(tiny_model, tasks)
    assert prompts["STS12"].startswith("Instruct: ") and prompts["STS12"].endswith("\nQuery:\n")
    assert "intent" in prompts["Banking77Classification"]


def test_ndcg_is_that_of_our_evaluator_on_the_same_embeddings(tiny_model, actions, tmp_path):
    task = toy_task(actions)
    theirs = run(encoder_of(tiny_model, task), task, tmp_path)
    ours = evaluate(tiny_model, actions).metrics["ndcg@10"]
    assert theirs.get_score() == pytest.approx(ours, abs=0.0005)
    assert 0 < ours < 1


@pytest.fixture
def local(folder, monkeypatch):
    """FiQA2018 and STS12 of MTEB(eng, v2) count as fetched; the first one's data are the folder's."""
    monkeypatch.setattr(mteb_suite, "in_hub_cache", lambda task: True)
    before = mteb_suite.benchmark_tasks

    def tasks(*given):
        return [with_data(task, folder) if task.metadata.name == "FiQA2018" else task for task in before(*given)]

    monkeypatch.setattr(mteb_suite, "benchmark_tasks", tasks)
    return folder


def test_a_suite_runs_compares_and_is_read_again(tiny_model, tiny_model_path, local, tmp_path, monkeypatch):
    shaken(tiny_model, 1).save_pretrained(str(tmp_path / "other"), create_model_card=False)
    models, out = [str(tiny_model_path), str(tmp_path / "other")], tmp_path / "out"
    result = evaluate_suite(models, "mteb-eng-v2", out=out, tasks=["FiQA2018"])
    for model in models:
        score = result.scores[model]["FiQA2018"]
        expected = evaluate(model, collection_task(local, exclude_self=True))
        assert score.metrics["main"] == pytest.approx(expected.metrics["ndcg@10"], abs=0.0005)
        assert score.by_query["ndcg@10"].keys() == {f"FiQA2018 default test q{number}" for number in (1, 2, 3)}
        assert mean(score.by_query)["ndcg@10"] == pytest.approx(score.metrics["main"], abs=0.00001)
    assert [(pair.system, pair.baseline) for pair in result.comparisons] == [tuple(models)]
    assert set(result.means[models[0]]) == {"mean over tasks", "mean over types"}
    record = json.loads(next(out.glob("model-*/FiQA2018/run.json")).read_text())
    assert record["results"]["model_name"].endswith("/model")
    assert record["results"]["prompts"] == {"FiQA2018 query": "", "FiQA2018 document": ""}
    monkeypatch.setattr(mteb, "evaluate", None)
    again = evaluate_suite(models, "mteb-eng-v2", out=out, tasks=["FiQA2018"])
    assert all(score.reused for tasks in again.scores.values() for score in tasks.values())
    assert again.plain() == result.plain()


def test_a_task_that_fails_does_not_stop_the_others_and_ends_with_3(tiny_model_path, local, tmp_path):
    words = ("--tasks", "STS12", "FiQA2018", "--out", tmp_path / "out")  # the data of the first are not really there
    result = result_of("evaluate", tiny_model_path, "--suite", "mteb-eng-v2", *words)
    assert (result.exit_code, list(result.metrics["failures"])) == (3, [f"{tiny_model_path}: STS12"])
    assert list(result.metrics["systems"][str(tiny_model_path)]["tasks"]) == ["FiQA2018"]


def test_damaged_results_are_refused_in_the_default_folder(tiny_model_path, local, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models = [str(tiny_model_path)]
    evaluate_suite(models, "mteb-eng-v2", tasks=["FiQA2018"])
    folder = tmp_path / "runs" / "evaluation" / "mteb-eng-v2"
    assert (folder / "results.json").is_file()
    for content in ("", "[]", '{"ndcg@10": 5}'):
        next(folder.glob("*/FiQA2018/per_query.json")).write_text(content)
        with pytest.raises(InputError, match="delete the folder"):
            evaluate_suite(models, "mteb-eng-v2", tasks=["FiQA2018"])


def test_fetched_data_becomes_a_collection_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(mteb, "get_task", lambda name, eval_splits: toy_task(folder))
    download_collection("Toy", tmp_path / "fetched", ["test"])
    fetched, original = load_collection(tmp_path / "fetched"), load_collection(folder)
    contents = [[(name, text.content) for name, text in each.corpus.items()] for each in (fetched, original)]
    assert contents[0] == contents[1]
    assert (fetched.queries, fetched.qrels) == (original.queries, original.qrels)


def test_a_hub_that_does_not_answer(tmp_path):
    with pytest.raises(InputError, match="expected its data from the hub"):
        download_collection("NFCorpus", tmp_path / "fetched", ["test"])
    assert not (tmp_path / "fetched").exists()
