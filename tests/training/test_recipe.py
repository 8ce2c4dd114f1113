import json
import shutil
import tempfile

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router

from bixse.cli.main import main
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.head import HEAD_FILE, RelevanceHead, load_heads
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.serving import older_settings
from bixse.errors import (
    LAST_VERSION,
    InputError,
    InterruptedRunError,
    InvalidFileError,
    ModelError,
    OutputExistsError,
    TrainingError,
)
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.systems import EncoderSystem
from bixse.files.files import alone_in, damage, write_hashes
from bixse.losses import LOSSES, BiXSELoss
from bixse.training.dev_evaluation import dev_figures
from bixse.training.dry_run import plan_training
from bixse.training.loop.batches import GradedCollator
from bixse.training.loop.checkpoints import checkpoint_to_resume, complete_checkpoints
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.merge_config import MergeModelsConfig
from bixse.training.merge_models import merge_into
from bixse.training.train import train_into
from helpers.batches import QUICK
from helpers.server_readers import text_embeddings_inference, vllm_before_september_2026


class TestUnhappyPaths:
    @pytest.mark.parametrize("kind", ["pairs", "dev", "model", "lora", "dimensions"])
    def test_refused_input_leaves_no_output_folder(self, actions, student, tmp_path, train_toy, kind):
        (tmp_path / "pairs.csv").write_text("query,document,relevance\ncopy,move,3\n")
        shutil.copytree(actions, tmp_path / "dev")
        with (tmp_path / "dev" / "qrels" / "dev.tsv").open("a") as file:
            file.write("q30\tgone\t2\n")
        changes, error, fact = {
            "pairs": ({"pairs": tmp_path / "pairs.csv"}, InvalidFileError, "row 1, column 'relevance'"),
            "dev": ({"dev": tmp_path / "dev"}, InvalidFileError, "gone"),
            "model": ({"model": tmp_path / "no" / "model"}, ModelError, "no such folder"),
            "lora": ({"model": student, "max_length": None, "lora": {}}, ModelError, "lora"),
            "dimensions": ({"dimensions": [33]}, ModelError, "dimensions"),
        }[kind]
        with pytest.raises(error, match=fact):
            train_toy(**changes)
        assert not (tmp_path / "out").exists()

    def test_a_half_written_checkpoint_is_passed_over(self, tmp_path):
        for step in (2, 10, 12):
            (tmp_path / f"checkpoint-{step}").mkdir()
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
        for step in (2, 10):
            write_hashes(tmp_path / f"checkpoint-{step}")
        shutil.copytree(tmp_path / "checkpoint-10", tmp_path / "checkpoint-10.bak")
        (tmp_path / "checkpoint-16").mkdir()
        assert complete_checkpoints(tmp_path) == [tmp_path / "checkpoint-10", tmp_path / "checkpoint-2"]
        assert checkpoint_to_resume(tmp_path) == (str(tmp_path / "checkpoint-10"), [])
        assert checkpoint_to_resume(tmp_path / "none") == (None, [])

    def test_a_batch_that_does_not_fit_into_a_gpu(self, tmp_path, monkeypatch, train_toy):
        def full(*given, **named):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB. GPU 0 has ...")

        monkeypatch.setattr(GradedTrainer, "training_step", full)
        with pytest.raises(InputError, match="CUDA out of memory") as caught:
            train_toy()
        assert "gradient_cache" in caught.value.fix
        assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"


def test_the_learning_rate_is_for_the_queries_that_a_step_holds(actions, tiny_model_path, tmp_path, capsys):
    words = ["train", "--pairs", actions.parent / "pairs.jsonl", "--dev", actions]
    words += ["--model", tiny_model_path, "--num-train-epochs", "1", "--global-batch-size", "10"]
    words += ["--gradient-accumulation-steps", "100", "--out", tmp_path / "out"]
    rate = 1e-4 * (30 / 16) ** 0.5
    for more, fact in (["--dry-run"], "1 steps"), ([], "merged weights"):
        assert main([str(word) for word in (*words, *more)]) == 0
        shown = capsys.readouterr().out
        assert f"learning rate: {rate:.3g} = 0.0001 * sqrt(30 / 16)" in shown
        assert fact in shown
    assert json.loads((tmp_path / "out" / "run.json").read_text())["results"]["learning_rate"] == pytest.approx(rate)


def test_a_run_trains_records_and_is_reused(tmp_path, train_toy):
    with alone_in(tmp_path / "out"), pytest.raises(OutputExistsError):  # another process trains into the folder
        train_toy(merge=None)
    result = train_toy(merge=None)
    assert not result.reused
    figures = dev_figures(result.history)
    assert set(figures) == {0, 4, 8}
    assert result.best_step == max((4, 8), key=lambda step: (figures[step], -step))
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "finished"
    others = {name for name in record["inputs"] if not name.startswith("model/")}
    assert others == {"pairs", "dev/corpus.jsonl", "dev/queries.jsonl", "dev/qrels/dev.tsv"}
    assert "model/model.safetensors" in record["inputs"]
    head = RelevanceHead.load(result.model_path)
    assert head is not None
    targets = [entry["mean_target"] for entry in result.history if "mean_target" in entry]
    assert head.trained_prior == head.prior == pytest.approx(sum(targets) / len(targets))
    assert 0 < head.prior < 0.5
    assert not (tmp_path / "out" / "checkpoints").exists()
    again = train_toy(merge=None)
    assert again.reused
    assert again.history == result.history


def test_a_finished_run_with_a_damaged_record_is_refused(tmp_path, train_toy):
    train_toy(merge=None, dev=None)
    path = tmp_path / "out" / "run.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "results": {"history": "damaged"}}))
    with pytest.raises(InputError) as caught:
        train_toy(merge=None, dev=None)
    assert caught.value.where == str(tmp_path / "out")


@pytest.mark.parametrize(
    ("error", "raised", "status"),
    [
        (RuntimeError("unexpected"), RuntimeError, "failed"),
        (TrainingError("no way on"), TrainingError, "failed"),
        (KeyboardInterrupt(), InterruptedRunError, "interrupted"),
    ],
)
def test_only_a_stop_from_outside_is_recorded_as_interrupted(tmp_path, monkeypatch, train_toy, error, raised, status):
    def stop(*given, **named):
        raise error

    monkeypatch.setattr(GradedTrainer, "training_step", stop)
    with pytest.raises(raised):
        train_toy(merge=None, dev=None)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == status and record["timings"]["train"] > 0


@pytest.mark.parametrize(
    "loss",
    [pytest.param(word, marks=() if word in QUICK else pytest.mark.slow) for word in LOSSES],
)
def test_every_loss_trains_and_the_head_of_the_base_model_is_not_kept(model, loss, train_toy):
    RelevanceHead(20.0, -10.0).save(model)
    result = train_toy(model=model, loss=loss, dev=None)
    assert all(entry["loss"] > 0 for entry in result.history)
    assert (result.model_path / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()
    assert (result.model_path / HEAD_FILE).is_file() == loss.startswith("bixse")


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["bixse", "infonce"])
def test_lengths_share_the_head_that_they_learned(run_config, train_both_ways, loss):
    settings = run_config(dimensions=[8, 16], loss=loss)
    heads = ["model/relevance_head.json"] if loss.startswith("bixse") else []
    result = train_both_ways(settings, *heads)
    assert {"loss_32", "loss_16", "loss_8"} <= result.history[1].keys()
    found = load_heads(result.model_path)
    assert set(found) == ({None, 16, 8} if heads else set())
    assert len({(head.logit_scale, head.logit_bias) for head in found.values()}) == bool(heads)
    if heads:
        cut = load_relevance_model(result.model_path, dimensions=8)
        plain = SentenceTransformer(str(result.model_path), device="cpu", truncate_dim=8)
        vectors = plain.encode(["copy", "sort"], normalize_embeddings=True)
        expected = found[8].probability(float(vectors[0] @ vectors[1]))
        assert cut.relevance("copy", ["sort"])[0] == pytest.approx(expected, abs=1e-5)


def test_a_static_encoder_is_made_trained_and_loads_in_the_plain_library(tiny_model_path, train_toy):
    settings = {"max_length": None, "optimizer": {"learning_rate": 0.01}}
    result = train_toy(model=f"static:{tiny_model_path}", **settings)
    assert train_toy(model=f"static:{tiny_model_path}/", **settings).reused
    with pytest.raises(OutputExistsError, match="model/static/"):
        train_toy(model=tiny_model_path, **settings)
    plain = SentenceTransformer(str(result.model_path), device="cpu").encode(["copy"], normalize_embeddings=True)
    before = build_encoder(f"static:{tiny_model_path}", device="cpu").encode(["copy"], normalize_embeddings=True)
    assert plain @ before.T < 0.9999


def test_a_router_of_a_static_query_side_and_a_transformer_trains_both(tiny_model_path, graded_pairs, tmp_path):
    static, transformer = (
        list(build_encoder(name, device="cpu").children()) for name in (f"static:{tiny_model_path}", tiny_model_path)
    )
    model = RelevanceModel(modules=[Router.for_query_document(static, transformer)], device="cpu")
    before = {name: part.clone() for name, part in model.named_parameters()}
    arguments = GradedTrainingArguments(
        str(tmp_path), max_steps=3, learning_rate=0.01, warmup_steps=0, report_to="none"
    )
    GradedTrainer(model, arguments, graded_pairs, loss=BiXSELoss(model)).train()
    moved = {name.split(".")[2] for name, part in model.named_parameters() if not torch.equal(part.cpu(), before[name])}
    assert moved == {"query", "document"}


def test_training_on_real_grades_raises_dev_ndcg(train_toy):
    result = train_toy(optimizer={"num_train_epochs": 8, "learning_rate": 3e-3})
    figures = dev_figures(result.history)
    assert max(figures.values()) > figures[0] + 0.1


@pytest.mark.slow
def test_every_folder_that_is_saved_is_read_alike_by_older_servers(tiny_model_path, graded_pairs, tmp_path, train_toy):
    trained = train_toy(merge={"keep_tuned": True}).model_path
    plain = SentenceTransformer(str(tiny_model_path), device="cpu")
    arguments = GradedTrainingArguments(str(tmp_path / "plain"), max_steps=1, save_steps=1, report_to="none")
    trainer = GradedTrainer(plain, arguments, graded_pairs, loss=BiXSELoss(plain))
    trainer.train()
    trainer.save_model()
    average = MergeModelsConfig(models=[str(trained), str(tiny_model_path)], weights=[0.5, 0.5])
    merged = merge_into(average, tmp_path / "merged").model_path
    folders = dict.fromkeys((trained, trained.parent / "tuned", merged), 16)
    folders |= dict.fromkeys((tmp_path / "plain" / "checkpoint-1", tmp_path / "plain"), 32)
    for folder, length in folders.items():
        assert older_settings(folder) == {}
        assert damage(folder) is None
        assert text_embeddings_inference(folder)[:2] == vllm_before_september_2026(folder)[:2] == ("mean", length)


def test_a_head_after_the_pooling_is_trained_saved_and_resumed(run_config, headed_path, train_both_ways):
    settings = run_config(headed_path, dev=None)
    result = train_both_ways(settings, "model/2_Dense/model.safetensors")
    before, after = (SentenceTransformer(str(path), device="cpu")[2] for path in (headed_path, result.model_path))
    assert (after.linear.weight - before.linear.weight).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("lora", "merge"), [(None, {"weights": [0.0]}), pytest.param({"rank": 4}, None, marks=pytest.mark.slow)]
)
def test_a_decoder_is_standardised_before_it_is_trained_merged_and_resumed(
    run_config, decoder_path, train_both_ways, lora, merge
):
    settings = run_config(
        decoder_path("llama"), dev=None, standardise="mean-and-deviation", train_max_length=8, lora=lora, merge=merge
    )
    result = train_both_ways(settings, "model/2_Dense/model.safetensors", "model/relevance_head.json")
    figures = result.standardised
    assert figures.texts >= 100 and figures.cosine_before > 0.1 > abs(figures.cosine_after)
    trained, base = build_encoder(result.model_path, device="cpu"), build_encoder(settings.model, 16, device="cpu")
    texts = ["copy a file", "the lock of a thread"]
    plain = SentenceTransformer(str(result.model_path), device="cpu").encode(texts)
    np.testing.assert_array_equal(trained.encode(texts), plain)
    mapped = trained[2].linear(torch.from_numpy(base.encode(texts))).detach().numpy()
    # the base of a merge is the standardised model: weight 0 gives it back
    assert np.allclose(plain, mapped, atol=1e-5) == (merge is not None)


@pytest.mark.parametrize("sharding", [None, "full"])
def test_a_decoder_is_standardised_unless_a_setting_says_otherwise(
    run_config, decoder_path, train_interrupted, tmp_path, sharding
):
    config = run_config(decoder_path("llama"), dev=None, train_max_length=8, merge=None, sharding=sharding)
    train_interrupted(config.model_copy(update={"standardise": "none"}), tmp_path / "none", 3)
    train_interrupted(config, tmp_path / "null", 3)
    figures = train_into(config, tmp_path / "null", progress=False).standardised
    assert abs(figures.cosine_after) < figures.cosine_before
    # the record and the checkpoints of a run that an earlier version began with null, which was no map then
    record = json.loads((tmp_path / "none" / "run.json").read_bytes())
    del record["config"]["standardise"]
    (tmp_path / "none" / "run.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(TrainingError, match=LAST_VERSION):
        train_into(config, tmp_path / "none", progress=False)


def test_a_model_with_modules_of_its_own_is_not_standardised(train_toy):
    result = train_toy(standardise="mean", optimizer={"max_steps": 1}, dev=None)
    assert result.standardised is None and not (result.model_path / "2_Dense").exists()
    assert sum("standardise: got" in warning for warning in result.warnings) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer",
    [{"num_train_epochs": 3, "gradient_accumulation_steps": 2}, {}, {"max_steps": 7}],
    ids=["accumulation", "epochs", "steps"],
)
def test_a_dry_run_tells_the_figures_of_the_run_and_leaves_no_file(
    run_config, actions, tmp_path, monkeypatch, optimizer
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = sorted(actions.parent.rglob("*"))
    config = run_config(optimizer=optimizer)
    plan = plan_training(config, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert sorted(actions.parent.rglob("*")) == before
    result = train_into(config, tmp_path / "out", progress=False)
    assert plan.steps == max(entry["step"] for entry in result.history)
    assert plan.evaluations == sum("eval_dev_ndcg@10" in entry for entry in result.history)
    assert (plan.pairs, plan.queries) == (150, 30)
    assert plan.texts > 0
    assert plan.seconds == plan.steps * plan.seconds_per_step + plan.texts * plan.seconds_per_text > 0
    assert 0 < plan.weights_bytes < plan.peak_bytes
    assert plan.free_bytes > 0


def test_what_training_would_refuse_is_refused(run_config, tmp_path, monkeypatch):
    config = run_config()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        plan_training(config, tmp_path / "used")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="got 2 "):
        plan_training(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    twins = Pairs.from_rows(
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
    for evaluations in (1, 0):  # without evaluations dev is read by the merge alone
        changes = {"pairs": [files / name for name in pairs], "evaluations_per_epoch": evaluations}
        with pytest.raises(InputError, match=fact):
            train_into(settings(**changes), files / "out", progress=False)
        assert not (files / "out").exists()


@pytest.fixture
def prompts_seen(monkeypatch):
    """Kind and prompt of each column of texts that was trained on."""
    seen, features = set(), GradedCollator._features

    def noted(self, texts, prompt, kind):
        seen.add((kind, prompt))
        return features(self, texts, prompt, kind)

    monkeypatch.setattr(GradedCollator, "_features", noted)
    return seen


def test_a_mixture_of_files_is_trained_by_task_and_the_instructions_are_saved_and_used(
    files, settings, actions, prompts_seen
):
    result = train_into(settings(task_shares={"twins": 0.5}), files / "out", progress=False)
    assert sum("loss" in entry for entry in result.history) == 4 + 2, "30 queries, and half of 24"
    record = json.loads((files / "out" / "run.json").read_text())
    assert {"pairs/toy", "pairs/twins", "instructions"} <= set(record["inputs"])
    model = build_encoder(result.model_path, device="cpu")
    table = model.instructions
    of_twins = {(kind, table.prompt("twins", kind, choice)) for kind in ("query", "document") for choice in (0, 1)}
    assert prompts_seen == {("query", "list of\n"), ("document", None), *of_twins}
    assert model.prompts["query"] == "list of\n"
    dev, results = collection_task(actions, "dev"), []
    for task in (None, "twins"):
        evaluated = evaluate(EncoderSystem(result.model_path, task=task), dev, files / f"eval-{task}")
        record = json.loads((files / f"eval-{task}" / "run.json").read_text())
        results.append((evaluated.by_query, record["results"]["prompts_hash"]))
    assert all(default != twins for default, twins in zip(*results, strict=True))
    again = train_into(settings(model=result.model_path, instructions=None), files / "again", progress=False)
    assert build_encoder(again.model_path, device="cpu").instructions == table


@pytest.mark.slow
def test_of_several_dev_collections_the_mean_decides(files, settings, actions):
    shutil.copytree(actions, files / "half")
    lines = (files / "half" / "qrels" / "dev.tsv").read_text().splitlines(keepends=True)
    (files / "half" / "qrels" / "dev.tsv").write_text("".join(lines[:11]))
    dev = [actions, files / "half"]
    result = train_into(settings(dev=dev, evaluations_per_epoch=4), files / "out", progress=False)
    entries = [entry for entry in result.history if "eval_dev_ndcg@10" in entry]
    assert len(entries) > 3
    for entry in entries:
        parts = [entry["eval_dev_actions_ndcg@10"], entry["eval_dev_half_ndcg@10"]]
        assert parts[0] != parts[1]
        assert entry["eval_dev_ndcg@10"] == pytest.approx(sum(parts) / 2)
    after = [entry for entry in entries if entry["step"] > 0]
    assert result.best_step == max(after, key=lambda entry: (entry["eval_dev_ndcg@10"], -entry["step"]))["step"]
