import json
import shutil

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.systems import EncoderSystem
from bixse.evaluation.tasks import collection_task
from bixse.training.loop.batches import GradedCollator
from bixse.training.recipe import train

TABLE = """
template = "{instruction} of\\n"
default = "list"
[tasks.twins]
instructions = ["match the text", "find the word"]
symmetric = true
"""


@pytest.fixture
def files(tmp_path, graded_pairs):
    """Two files with the same query ids for different texts: one of graded, one of binary data."""
    save_graded_pairs(graded_pairs, tmp_path / "toy.jsonl")
    twins = GradedPairs.from_rows(
        {"query_id": f"q{n}", "query": f"sort word {n}", "document": f"sort the word {n}", "relevance": float(n % 2)}
        for n in range(24)
    )
    save_graded_pairs(twins, tmp_path / "twins.csv")
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def settings(run_config, files):
    optimizer = {"num_train_epochs": 1, "documents_per_query": 4}
    settings = {"pairs": [files / "toy.jsonl", files / "twins.csv"], "instructions": files / "table.toml"}
    return lambda **changes: run_config(**{**settings, "max_length": 24, "optimizer": optimizer, **changes})


NO_DEFAULT = TABLE.replace('default = "list"', "")


@pytest.mark.parametrize(
    ("table", "pairs", "fact"),
    [
        (NO_DEFAULT, ["toy.jsonl", "twins.csv"], r"instruction.*'toy'"),
        (NO_DEFAULT + '[tasks.toy]\ninstructions = ["list"]', ["toy.jsonl", "twins.csv"], "got no task"),
        (TABLE, ["toy.jsonl", "b/toy.jsonl"], "two files named 'toy'"),
    ],
    ids=["task without instruction", "dev without instruction", "two files of one name"],
)
def test_tasks_that_cannot_be_trained_are_refused(files, settings, table, pairs, fact):
    (files / "table.toml").write_text(table, encoding="utf-8")
    (files / "b").mkdir()
    shutil.copy(files / "toy.jsonl", files / "b" / "toy.jsonl")
    with pytest.raises(InputError, match=fact):
        train(settings(pairs=[files / name for name in pairs]), files / "out", progress=False)
    assert not (files / "out").exists()


def test_a_mixture_of_files_is_trained_by_task_and_the_instructions_are_saved_and_used(files, settings, training_files):
    result = train(settings(task_shares={"twins": 0.5}), files / "out", progress=False)
    assert sum("loss" in entry for entry in result.history) == 4 + 2, "30 queries, and half of 24"
    record = json.loads((files / "out" / "run.json").read_text())
    assert {"pairs/toy", "pairs/twins", "instructions"} <= set(record["inputs"])
    model = build_encoder(result.model_path, device="cpu")
    assert model.instructions is not None
    assert model.prompts["query"] == "list of\n"
    dev, results = collection_task(training_files / "collection", "dev"), []
    for task in (None, "twins"):
        evaluated = evaluate(EncoderSystem(result.model_path, task=task), dev, files / f"eval-{task}")
        record = json.loads((files / f"eval-{task}" / "run.json").read_text())
        results.append((evaluated.per_query, record["results"]["prompts_hash"]))
    assert all(default != twins for default, twins in zip(*results, strict=True))


def test_a_model_with_instructions_keeps_them_in_further_training(files, settings):
    first = train(settings(), files / "first", progress=False)
    second = train(settings(model=first.model_path, instructions=None), files / "second", progress=False)
    table = build_encoder(first.model_path, device="cpu").instructions
    assert build_encoder(second.model_path, device="cpu").instructions == table


def test_of_several_dev_collections_the_mean_decides(files, settings, training_files):
    shutil.copytree(training_files / "collection", files / "half")
    lines = (files / "half" / "qrels" / "dev.tsv").read_text().splitlines(keepends=True)
    (files / "half" / "qrels" / "dev.tsv").write_text("".join(lines[:11]))
    dev = [training_files / "collection", files / "half"]
    result = train(settings(dev=dev, evaluations_per_epoch=4), files / "out", progress=False)
    entries = [entry for entry in result.history if "eval_dev_ndcg@10" in entry]
    assert len(entries) > 3
    for entry in entries:
        parts = [entry["eval_dev_collection_ndcg@10"], entry["eval_dev_half_ndcg@10"]]
        assert parts[0] != parts[1]
        assert entry["eval_dev_ndcg@10"] == pytest.approx(sum(parts) / 2)
    after = [entry for entry in entries if entry["step"] > 0]
    assert result.best_step == max(after, key=lambda entry: (entry["eval_dev_ndcg@10"], -entry["step"]))["step"]


def test_training_and_encoding_see_the_same_prompts(files, settings, monkeypatch):
    seen = []
    features = GradedCollator._features

    def noted(self, texts, prompt, kind):
        seen.append((kind, prompt))
        return features(self, texts, prompt, kind)

    monkeypatch.setattr(GradedCollator, "_features", noted)
    result = train(settings(), files / "out", progress=False)
    model = build_encoder(result.model_path, device="cpu")
    table = model.instructions
    assert set(seen) == {
        ("query", "list of\n"), ("document", None),
        *((kind, table.prompt("twins", kind, choice)) for kind in ("query", "document") for choice in (0, 1)),
    }  # fmt: skip
