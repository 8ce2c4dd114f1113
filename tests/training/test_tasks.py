"""Several tasks, files and dev collections in one run, from settings to the saved model."""

from __future__ import annotations

import json
import shutil

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.systems import EncoderSystem
from bixse.evaluation.tasks import collection_task
from bixse.training.config import TrainConfig
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
    twins = [
        {"query_id": f"q{n}", "query": f"sort word {n}", "document": f"sort the word {n}", "relevance": float(n % 2)}
        for n in range(24)
    ]
    save_graded_pairs(GradedPairs.from_rows(twins), tmp_path / "twins.csv")
    (tmp_path / "table.toml").write_text(TABLE, encoding="utf-8")
    return tmp_path


def settings_of(files, training_files, tiny_model_path, **changes):
    lines = {
        "pairs": ["toy.jsonl", "twins.csv"],
        "instructions": "table.toml",
        "model": str(tiny_model_path),
        "dev": str(training_files / "collection"),
        "max_length": 24,
        "optimizer": {"num_train_epochs": 1, "global_batch_size": 8, "learning_rate": 1e-3},
        **changes,
    }
    path = files / "run.yaml"
    path.write_text(json.dumps(lines), encoding="utf-8")
    return TrainConfig.load(path)


def test_a_task_without_instruction(files, training_files, tiny_model_path):
    (files / "table.toml").write_text(TABLE.replace('default = "list"', ""), encoding="utf-8")
    with pytest.raises(InputError, match=r"got tasks without an instruction \('toy'\)"):
        train(settings_of(files, training_files, tiny_model_path), files / "out", progress=False)
    assert not (files / "out").exists()


def test_dev_queries_without_instruction(files, training_files, tiny_model_path):
    table = TABLE.replace('default = "list"', "") + '[tasks.toy]\ninstructions = ["list"]'
    (files / "table.toml").write_text(table, encoding="utf-8")
    with pytest.raises(InputError, match="got no task; expected one of twins, toy"):
        train(settings_of(files, training_files, tiny_model_path), files / "out", progress=False)


def test_two_files_of_one_name(files, training_files, tiny_model_path):
    (files / "b").mkdir()
    shutil.copy(files / "toy.jsonl", files / "b" / "toy.jsonl")
    settings = settings_of(files, training_files, tiny_model_path, pairs=["toy.jsonl", "b/toy.jsonl"])
    with pytest.raises(InputError, match="got two files named 'toy'"):
        train(settings, files / "out", progress=False)


def test_a_mixture_of_files_is_trained_by_task_and_the_instructions_are_saved_and_used(
    files, training_files, tiny_model_path
):
    settings = settings_of(files, training_files, tiny_model_path, task_shares={"twins": 0.5})
    result = train(settings, files / "out", progress=False)
    assert sum("loss" in entry for entry in result.history) == 4 + 2, "30 queries, and half of 24"
    record = json.loads((files / "out" / "run.json").read_text())
    assert {"pairs/toy", "pairs/twins", "instructions"} <= set(record["inputs"])
    model = build_encoder(result.model_path, device="cpu")
    assert model.instructions is not None
    assert model.prompts["query"] == "list of\n"
    default, twins = (
        evaluate(
            EncoderSystem(result.model_path, task=task),
            collection_task(training_files / "collection", "dev"),
            files / f"eval-{task}",
        )
        for task in (None, "twins")
    )
    assert default.per_query != twins.per_query
    hashes = [json.loads((files / f"eval-{t}" / "run.json").read_text())["results"]["prompts_hash"]
              for t in (None, "twins")]  # fmt: skip
    assert hashes[0] != hashes[1]


def test_a_model_with_instructions_keeps_them_in_further_training(files, training_files, tiny_model_path):
    first = train(settings_of(files, training_files, tiny_model_path), files / "first", progress=False)
    settings = settings_of(files, training_files, first.model_path, instructions=None)
    second = train(settings, files / "second", progress=False)
    table = build_encoder(first.model_path, device="cpu").instructions
    assert build_encoder(second.model_path, device="cpu").instructions == table


def test_of_several_dev_collections_the_mean_decides(files, training_files, tiny_model_path):
    """The last one's figure, or the pooled queries', would choose another checkpoint."""
    shutil.copytree(training_files / "collection", files / "half")
    lines = (files / "half" / "qrels" / "dev.tsv").read_text().splitlines(keepends=True)
    (files / "half" / "qrels" / "dev.tsv").write_text("".join(lines[:11]))
    dev = [str(training_files / "collection"), "half"]
    settings = settings_of(files, training_files, tiny_model_path, dev=dev, evaluations_per_epoch=4)
    result = train(settings, files / "out", progress=False)
    entries = [entry for entry in result.history if "eval_dev_ndcg@10" in entry]
    assert len(entries) > 3
    for entry in entries:
        parts = [entry["eval_dev_collection_ndcg@10"], entry["eval_dev_half_ndcg@10"]]
        assert parts[0] != parts[1]
        assert entry["eval_dev_ndcg@10"] == pytest.approx(sum(parts) / 2)
    after = [entry for entry in entries if entry["step"] > 0]
    assert result.best_step == max(after, key=lambda entry: (entry["eval_dev_ndcg@10"], -entry["step"]))["step"]


def test_training_and_encoding_see_the_same_prompts(files, training_files, tiny_model_path, monkeypatch):
    """What stands before a query in training stands before it in evaluation, token for token."""
    seen = []
    from bixse.training.loop.batches import GradedCollator

    features = GradedCollator._features

    def noted(self, texts, prompt, kind):
        seen.append((kind, prompt))
        return features(self, texts, prompt, kind)

    monkeypatch.setattr(GradedCollator, "_features", noted)
    result = train(settings_of(files, training_files, tiny_model_path), files / "out", progress=False)
    model = build_encoder(result.model_path, device="cpu")
    table = model.instructions
    assert set(seen) == {
        ("query", "list of\n"), ("document", None),
        *((kind, table.prompt("twins", kind, choice)) for kind in ("query", "document") for choice in (0, 1)),
    }  # fmt: skip
    used = []
    preprocess = type(model).preprocess
    monkeypatch.setattr(type(model), "preprocess", lambda self, texts, prompt=None, **k: used.append(prompt)
                        or preprocess(self, texts, prompt=prompt, **k))  # fmt: skip
    encode_texts(model, ["copy"], "query")
    assert used == ["list of\n"]
