import pytest

from bixse.cli.verbs.evaluate import EvaluateSettings
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.draws import cut_collection
from bixse.data.task_instructions import Instructions
from bixse.data.trec import read_run
from bixse.encoders.weights import set_instructions
from bixse.errors import InputError, ModelError, OutputExistsError
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.systems import Bm25System, EncoderSystem
from bixse.search import block_search
from bixse.suites.known_suites import SUITES
from bixse.suites.suite_run import evaluate_suite, short_task
from helpers.toy import save_toy

TASKS = ["NFCorpus", "FiQA2018"]


@pytest.fixture
def data(tmp_path):
    """Two tasks of BEIR, one under mteb's name and one under BEIR's; the first query is a document too."""
    for name in ("NFCorpus", "fiqa"):
        save_toy(tmp_path / "beir" / name)
    return tmp_path / "beir"


def count_searches(monkeypatch):
    """Return the list to which each later search adds its system and task."""
    searched = []
    for kind in (EncoderSystem, Bm25System):
        before = kind.search

        def search(self, task, *rest, before=before):
            searched.append(f"{self.label} {task.name}")
            return before(self, task, *rest)

        monkeypatch.setattr(kind, "search", search)
    return searched


def test_all_missing_data_is_listed_before_a_model_is_loaded(data, tmp_path):
    (data / "fiqa" / "qrels" / "test.tsv").unlink()
    with pytest.raises(InputError) as error:
        evaluate_suite(["no/such/model"], "beir", data, tmp_path / "out")
    message = str(error.value)
    assert "NFCorpus" not in message
    for name in ("fiqa", "trec-covid", "webis-touche2020", "cqadupstack", "dbpedia-entity", "msmarco"):
        assert f"/{name}.zip && unzip {name}.zip" in message
    assert message.count("cqadupstack.zip &&") == 1
    assert "bioasq" not in message  # nobody misses what a licence forbids
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"suite": "bier"}, "did you mean 'beir'"),
        ({"suite": "my-collection"}, "fix: .*local"),
        ({"tasks": ["FiQA"]}, "got 'FiQA'; expected one of .*did you mean 'FiQA2018'"),
        ({"data": None}, "suite beir: got no --data"),
        ({"systems": []}, "models: got none"),
        ({"systems": ["bm25", "bm25"]}, "'bm25' and 'bm25', which are the same checkpoint"),
        ({"download": True}, "got HF_HUB_OFFLINE set"),
    ],
)
def test_wrong_arguments(data, options, message):
    with pytest.raises(InputError, match=message):
        evaluate_suite(**{"systems": ["bm25"], "suite": "beir", "data": data, "tasks": TASKS, **options})


def test_figures_are_those_of_evaluate_without_self_matches_where_mteb_leaves_them_out(data, tiny_model_path, tmp_path):
    result = evaluate_suite([str(tiny_model_path), "bm25"], "beir", data, tmp_path / "out", TASKS)
    for model, scores in result.scores.items():
        alone = evaluate(model, collection_task(data / "fiqa", exclude_self=True))
        assert scores["FiQA2018"].metrics == pytest.approx(alone.metrics)
        assert scores["FiQA2018"].by_query["mrr@10"]["q1"] == 1.0
        assert scores["NFCorpus"].by_query["mrr@10"]["q1"] == 0.5
    for path in (tmp_path / "out").glob("*/FiQA2018/*.trec"):
        assert "q1" not in read_run(path)["q1"]


def test_means_over_groups_and_over_zero_shot_tasks(data):
    for number, forum in enumerate(("android", "tex")):
        save_toy(data / "cqadupstack" / forum, {"q2": {"d3" if number else "q1": 1}})  # found at once, and never
    save_toy(data / "msmarco", {"q2": {"d4": 1}}, "dev")
    save_toy(data / "bioasq", {"q2": {"d3": 1}})
    forums = ["CQADupstackAndroidRetrieval", "CQADupstackTexRetrieval"]
    result = evaluate_suite(["bm25"], "beir", data, tasks=[*forums, "MSMARCO", "BioASQ"])
    scores = [score.metrics["ndcg@10"] for score in result.scores["bm25"].values()]
    assert scores == [0.0, 1.0, 0.0, 1.0]
    assert result.means["bm25"] == {"mean over tasks": 0.5, "mean, zero-shot": 0.75}
    assert list(evaluate_suite(["bm25"], "beir", data, tasks=["BioASQ"]).means["bm25"]) == ["mean over tasks"]


def test_each_task_gets_its_instructions_and_the_model_stays_as_it_was(tiny_model, data):
    tasks = {"fiqa2018": {"instructions": ["answer it"]}, "other": {"instructions": ["same"]}}
    set_instructions(tiny_model, Instructions(default="find it", tasks=tasks))
    seen, before = [], tiny_model.preprocess
    tiny_model.preprocess = lambda texts, **given: seen.append(given.get("prompt")) or before(texts, **given)
    evaluate_suite([tiny_model], "beir", data, tasks=TASKS)
    assert list(dict.fromkeys(filter(None, seen))) == ["Instruct: find it\nQuery:\n", "Instruct: answer it\nQuery:\n"]
    assert None in seen, "documents have no prompt"
    assert tiny_model.task is None and tiny_model.prompts["query"].startswith("Instruct: find it")
    tiny_model.instructions = Instructions(tasks=tasks)
    with pytest.raises(InputError, match="task 'b'"):
        evaluate_suite([EncoderSystem(tiny_model, task="b")], "beir", data, tasks=TASKS)


def test_a_second_model_that_cannot_be_used_is_refused_before_work(tiny_model, data, tmp_path, monkeypatch):
    tasks = {"FiQA2018": {"instructions": ["a"]}, "b": {"instructions": ["b"]}}
    set_instructions(tiny_model, Instructions(tasks=tasks))
    model = str(tmp_path / "model")
    tiny_model.save_pretrained(model, create_model_card=False)
    searched = count_searches(monkeypatch)
    for second, error, message in (
        ("./no/such", ModelError, "got no such folder"),
        (model, InputError, "instructions: got no task; expected one of FiQA2018, b"),
    ):
        with pytest.raises(error, match=message):
            evaluate_suite(["bm25", second], "beir", data, tmp_path / "out", TASKS)
    assert (searched, (tmp_path / "out").exists()) == ([], False)
    assert evaluate_suite([model], "beir", data, tasks=["FiQA2018"]).scores
    assert evaluate_suite([EncoderSystem(model, task="b")], "beir", data, tasks=TASKS).scores


def test_finished_tasks_are_read_and_more_models_join(data, tiny_model_path, tmp_path, monkeypatch):
    searched = count_searches(monkeypatch)
    out = tmp_path / "out"
    first = evaluate_suite(["bm25"], "beir", data, out, ["NFCorpus"])
    evaluate_suite(["bm25"], "beir", data, out, TASKS)
    assert searched == ["bm25 NFCorpus", "bm25 FiQA2018"]
    both = evaluate_suite(["bm25", str(tiny_model_path)], "beir", data, out, TASKS)
    assert searched[2:] == [f"{tiny_model_path} {task}" for task in ("NFCorpus", "FiQA2018")]
    assert both.scores["bm25"]["NFCorpus"].reused
    assert both.scores["bm25"]["NFCorpus"].by_query == first.scores["bm25"]["NFCorpus"].by_query
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "model").symlink_to(tiny_model_path)
    evaluate_suite(["bm25", str(tmp_path / "elsewhere" / "model")], "beir", data, out, TASKS)
    assert len(searched) == 4


def test_another_checkpoint_in_the_same_folder_is_another_system(data, tiny_model, tiny_model_path, tmp_path):
    out, link, other = tmp_path / "out", tmp_path / "model", tmp_path / "other" / "model"
    next(tiny_model.parameters()).data[0, 0] += 1
    tiny_model.save_pretrained(str(other), create_model_card=False)
    for path in (tiny_model_path, other):
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        result = evaluate_suite([str(link)], "beir", data, out, TASKS)
        assert not any(score.reused for score in result.scores[str(link)].values())
    assert len(list(out.glob("model-*"))) == 2
    with pytest.raises(InputError, match="which are the same checkpoint"):
        evaluate_suite([str(link), str(other)], "beir", data, tasks=TASKS)


def test_other_settings_and_changed_data_are_refused(data, tmp_path):
    out = tmp_path / "out"
    evaluate_suite(["bm25"], "beir", data, out, ["NFCorpus"])
    with pytest.raises(OutputExistsError, match="suite"):
        evaluate_suite(["bm25"], "beir-short", data, out, ["FiQA2018"])
    with (data / "NFCorpus" / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d9", "text": "new"}\n')
    with pytest.raises(OutputExistsError, match=r"corpus\.jsonl"):
        evaluate_suite(["bm25"], "beir", data, out, ["NFCorpus"])


def test_an_interrupted_suite_goes_on_inside_its_task(data, tiny_model_path, tmp_path, monkeypatch):
    monkeypatch.setattr(block_search, "DOCUMENTS_PER_BLOCK", 1)
    monkeypatch.setattr(block_search, "SAVE_SECONDS", 0.0)
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    model, steps = str(tiny_model_path), []

    def progress(title, total):
        def step(number):
            steps.append((title.rpartition(" ")[2], number))
            if len(steps) == 7:  # in the third document of the second task
                raise KeyboardInterrupt

        return step

    with pytest.raises(KeyboardInterrupt):
        evaluate_suite([model], "beir", data, tmp_path / "out", TASKS, progress=progress)
    result = evaluate_suite([model], "beir", data, tmp_path / "out", TASKS, progress=progress)
    assert steps[7:] == [("FiQA2018", number) for number in (2, 1, 1)]  # two documents were done before
    uninterrupted = evaluate_suite([model], "beir", data, tasks=TASKS)
    for task in TASKS:
        assert result.scores[model][task].by_query == uninterrupted.scores[model][task].by_query


CORPUS = [f"d{number}" for number in range(200)]
QRELS = {f"q{number}": {f"d{number}": 1.0, f"d{number + 50}": 0.0} for number in range(40)}


def test_help_of_evaluate_names_every_suite():
    _, names = EvaluateSettings.model_fields["suite"].description.rstrip(".").split("a suite: ")
    assert " ".join(names.split()).split(", ") == list(SUITES)


def test_the_tasks_of_beir_and_how_to_get_their_data():
    beir, short = SUITES["beir"], SUITES["beir-short"].tasks
    assert len({task.group or task.name for task in beir.tasks}) == 15
    assert sum(task.group == "CQADupstackRetrieval" for task in beir.tasks) == 12
    assert [task.name for task in beir.optional if task.hub is None] == ["BioASQ", "Signal1M", "TRECNEWS", "Robust04"]
    assert len(short) == 6 and all(task in beir.tasks for task in short)
    for task in (*beir.tasks, *beir.optional, *SUITES["nanobeir"].tasks):
        assert any(word in task.fetch for word in ("curl -LO https://", "--download", "licence")), task


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "benchmark"), [("beir", "BEIR"), ("nanobeir", "NanoBEIR")])
def test_splits_self_matches_and_data_sets_are_mteb_s(suite, benchmark):
    whole = pytest.importorskip("mteb").get_benchmark(benchmark).tasks
    theirs = {part.metadata.name: part for task in whole for part in getattr(task, "tasks", [task])}
    ours = {task.name: task for task in SUITES[suite].tasks}
    assert ours.keys() == theirs.keys()
    for name, task in ours.items():
        assert task.exclude_self == theirs[name].ignore_identical_ids, name
        assert task.splits[0] in theirs[name].eval_splits, name
        assert task.hub == theirs[name].metadata.dataset["path"], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "tasks"), [("mteb-eng-v2", 41), ("mteb-multilingual-v1", 132), ("mteb-multilingual-v2", 131)]
)
def test_mteb_has_the_benchmarks(suite, tasks):
    assert len(pytest.importorskip("mteb").get_benchmark(SUITES[suite].benchmark).tasks) == tasks


def test_a_cut_holds_judged_passages_and_depends_on_the_task_alone():
    cut = cut_collection("t", QRELS, CORPUS, queries=10, passages=60)
    assert (len(cut.queries), len(cut.documents)) == (10, 60)
    assert {name for query in cut.queries for name in QRELS[query]} <= set(cut.documents)
    assert cut.documents == tuple(name for name in CORPUS if name in set(cut.documents))
    assert cut.queries == tuple(name for name in QRELS if name in set(cut.queries))
    turned = cut_collection("t", dict(reversed(QRELS.items())), CORPUS[::-1], 10, 60)
    assert (set(turned.queries), set(turned.documents)) == (set(cut.queries), set(cut.documents))
    assert set(cut_collection("u", QRELS, CORPUS, 10, 60).queries) != set(cut.queries)


def test_a_small_task_is_complete_without_queries_that_have_no_relevant_document():
    cut = cut_collection("t", {**QRELS, "none": {"d1": 0.0}}, CORPUS)
    assert (set(cut.queries), cut.documents) == (QRELS.keys(), tuple(CORPUS))


def test_more_judged_passages_than_the_limit_are_refused():
    with pytest.raises(InputError, match="got 20 judged passages of 10 queries; expected at most 19"):
        cut_collection("t", QRELS, CORPUS, 10, 19)


def test_a_short_task_is_the_cut_of_its_collection(tmp_path):
    corpus = {name: Document("", f"text of {name}") for name in CORPUS}
    queries = {name: f"question {name}" for name in QRELS}
    save_collection(Collection("fiqa", corpus, queries, {"test": QRELS}), tmp_path / "fiqa")
    task = short_task(collection_task(tmp_path / "fiqa", exclude_self=True), "FiQA2018", queries=10, passages=60)
    cut = cut_collection("FiQA2018", QRELS, CORPUS, 10, 60)
    assert tuple(task.query_sets[0].queries) == cut.queries
    assert tuple(name for name, _ in task.documents()) == cut.documents
    assert (task.count, task.exclude_self) == (60, True)
