import json
import re
from contextlib import nullcontext

import pytest

from bixse.data.graded_pairs import Pairs
from bixse.encoders import lengths
from bixse.encoders.loading.backbones import switch_attention
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import make_weights_float32
from bixse.errors import ConfigError, InputError, TrainingError
from bixse.losses import build_loss
from bixse.losses.catalogue import LOSSES, LOSSES_THAT_LEFT
from bixse.training import checks
from bixse.training.checks import check_learned, embedding_spreads
from bixse.training.config import OptimizerConfig, TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import make_loss, training_arguments
from helpers.row_files import yaml_file

UNKNOWN = "got an unknown key; expected a known one"
LEFT = f"expected one of {', '.join(LOSSES)}; fix: name one loss"


def errors(path, overrides=None):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.load(path, overrides or {})
    head, *lines = str(caught.value).splitlines()
    assert head == f"{path or 'settings'}: {len(lines)} error{'s' if len(lines) != 1 else ''}"
    assert all(": got " in line and "expected " in line and "; fix: " in line for line in lines), lines
    return lines


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("pair: x", f"  pair: {UNKNOWN}; fix: did you mean 'pairs'?"),
        ("optimizer: {num_epochs: 3}", f"  optimizer.num_epochs: {UNKNOWN}; fix: did you mean 'optimizer.num_train"),
        ("zzzz: 1", f"  zzzz: {UNKNOWN}; fix: choose a known key, such as "),
        ("batch_size: 1", f"  batch_size: {UNKNOWN}; fix: did you mean 'optimizer.global_batch_size'?"),
        ("out: runs/mine", f"  out: {UNKNOWN}; fix: give --out on the command line"),
        ("seed: -1", "  seed: got -1; expected greater than or equal to 0"),
        ("precision: half", "  precision: got 'half'; expected 'auto', 'float32' or 'bfloat16'"),
        ("min_relevant_grade: .nan", "  min_relevant_grade: got nan; expected"),
        ("optimizer: 5", "  optimizer: got 5; expected lines of the form"),
        ("merge: false", "  merge: got False; expected lines of the form `key: value`, or null"),
        ("pairs: []", "  pairs: got []; expected a path or at least 1"),
        ("seed: true", "  seed: got True; expected a number"),
        ("optimizer: {learning_rate: false}", "  optimizer.learning_rate: got False; expected a number"),
        ("loss_options: {scale: 5}", "  loss_options: got {'scale': 5}; expected no scale"),
        ("loss: {bixse: 1.0, anchor: 0.1}", f"  loss: got {{'bixse': 1.0, 'anchor': 0.1}}; {LEFT}"),
        ("loss: {bixse: 1.0, anchor: 0.1}\nloss_options: {anchor: {scale: 1.0}}", "  loss: got {'bixse'"),
        *((f"loss: {word}", f"  loss: got '{word}'; {LEFT}") for word in LOSSES_THAT_LEFT),
        ("loss: {}", f"  loss: got {{}}; {LEFT}"),
        ("loss: infonce\nloss_options: {hardness: -1}", "  loss_options.hardness: got -1"),
        ("loss: bixes", f"  loss: got 'bixes'; expected one of {', '.join(LOSSES)}; fix: did you mean 'bix"),
    ],
)
def test_an_unknown_key_or_a_wrong_value(tmp_path, text, start):
    (line,) = errors(yaml_file(tmp_path, text if text.startswith("pairs") else f"pairs: p.csv\n{text}\n"))
    assert line.startswith(start), line


def test_all_errors_together(tmp_path):
    lines = errors(yaml_file(tmp_path, "sed: 1\nmax_length: x\noptimizer: {num_train_epochs: 0, warm: 1}\nloss: no\n"))
    keys = [line.split(":")[0].strip() for line in lines]
    assert keys == ["pairs", "max_length", "loss", "optimizer.num_train_epochs", "optimizer.warm", "sed"]
    assert "give --pairs" in lines[0]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *((word, "global_batch_size") for word in ("batch_size", "per_device_train_batch_size")),
        ("epochs", "num_train_epochs"),
        ("lr", "learning_rate"),
        ("learning_rates", "learning_rate"),
    ],
)
def test_a_keyword_is_named_as_people_type_it(word, meant):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.of_options({word: 1}, pairs="p.csv")
    assert f"  {word}: got an unknown key" in str(caught.value) and f"did you mean '{meant}'?" in str(caught.value)
    with pytest.raises(ConfigError, match=r"\n  num_train_epochs: got 0"):
        TrainConfig.of_options({"num_train_epochs": 0}, pairs="p.csv")
    with pytest.raises(ConfigError) as caught:
        TrainConfig.of_options({"zzzz": 1}, pairs="p.csv")
    assert str(caught.value).count(",") == 10 and "optimizer." not in str(caught.value)


def test_settings_made_in_python_raise_the_error_of_a_file():
    with pytest.raises(ConfigError, match="pairs: got nothing") as caught:
        TrainConfig(model="demo", optimizer={"num_train_epochs": 0})
    assert "optimizer.num_train_epochs: got 0" in str(caught.value)
    with pytest.raises(ConfigError, match="num_train_epochs: got 0"):
        OptimizerConfig(num_train_epochs=0)


OF_TRANSFORMERS = [{"train_max_length": 16}, {"dropout": 0.1}, {"standardise": "mean"}]


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ({"kind": "reranker"}, r"kind: .*kinds\.md"),
        ({"loss": "bce"}, "loss: got"),
        ({"guard": "guard"}, "guard without dev"),
        ({"guard": "guard", "dev": "dev", "merge": None}, "guard without dev and merge"),
        ({"guard": ["a", "b"], "dev": "dev", "guard_split": ["a", "b", "c"]}, "got 3 guard splits for 2"),
        *(({"model": "static:demo", **setting}, "for a static encoder") for setting in OF_TRANSFORMERS),
    ],
)
def test_settings_that_do_not_fit_together(settings, fact):
    with pytest.raises(ConfigError, match=fact):
        TrainConfig.load(None, {"pairs": "pairs.jsonl", **settings})


def test_a_static_encoder_takes_a_word_that_changes_nothing():
    assert TrainConfig(pairs="p", model="static:demo", standardise="none").standardise == "none"


def test_settings_that_came_later_do_not_change_a_run_without_them():
    plain, sharded = (TrainConfig(pairs="p", **changes).identity() for changes in ({}, {"sharding": "full"}))
    assert not {"dimensions", "standardise"} & plain.keys()
    assert (plain["sharding"], sharded["sharding"]) == (None, "full")


@pytest.mark.parametrize(
    ("left", "value"),
    [
        ("regrade", None),
        ("regrade", {"judge": "m", "budget": 7}),
        ("loss_options.false_negative_margin", 0.1),
        ("loss_options.unlabelled", "base"),
        ("loss_options.unlabelled_weight", 0.5),
    ],
)
def test_setting_that_left_is_one_error_with_what_to_do_instead(left, value):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.load(None, {"pairs": "p.csv", left: value})
    (line,) = str(caught.value).splitlines()[1:]
    assert f"{left}: got an unknown key" in line and "fix: leave it out" in line


def test_flags_override_the_file_and_leave_the_rest(tmp_path):
    text = "pairs: p.csv\nseed: 7\noptimizer:\n  num_train_epochs: 9\n  global_batch_size: 4\nlora:\nmerge: null\n"
    path = yaml_file(tmp_path, f"{text}instructions: table.toml\n")
    config = TrainConfig.load(path, {"optimizer.num_train_epochs": 2, "seed": 8, "optimizer.learning_rate": "5e-5"})
    assert (config.seed, config.optimizer.num_train_epochs, config.optimizer.global_batch_size) == (8, 2, 4)
    assert config.optimizer.learning_rate == 5e-5  # a text to YAML 1.1
    assert (config.lora, config.merge, config.instructions) == (None, None, tmp_path / "table.toml")
    config = TrainConfig.load(path, {"lora.rank": 3, "merge.weights": [0.5]})
    assert (config.lora.rank, config.merge.weights) == (3, (0.5,))
    assert TrainConfig.load(None, {"pairs": "p.csv", "optimizer.num_train_epochs": 1}).optimizer.num_train_epochs == 1


def test_the_rates_of_the_encoder_and_of_the_bias(tiny_model_path, tmp_path):
    optimizer = OptimizerConfig(global_batch_size=64, bias_lr_multiplier=10)
    config = TrainConfig(pairs="p.csv", model=str(tiny_model_path), optimizer=optimizer)
    assert training_arguments(config, tmp_path, None).learning_rate == 2e-4
    assert make_loss(config, config.model).multiplier == 10
    with pytest.raises(ConfigError, match=r"optimizer\.bias_lr_multiplier"):
        TrainConfig(pairs="p.csv", loss_options={"bias_lr_multiplier": 10})


def test_a_batch_that_the_processes_cannot_share_and_a_tracker_that_is_not_installed(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="report_to: got mlflow; "):
        training_arguments(TrainConfig(pairs="p.csv", report_to=["mlflow"]), tmp_path, None)
    monkeypatch.setattr("bixse.training.recipe.world_size", lambda: 3)
    with pytest.raises(InputError) as caught:
        training_arguments(TrainConfig(pairs="p.csv"), tmp_path, None)
    assert (caught.value.where, caught.value.fix) == ("global_batch_size", "set it to 15")


def pairs_of(*queries):
    return Pairs.from_rows(
        {"query": f"q{i}", "document": f"d{i}{k}", "relevance": z}
        for i, group in enumerate(queries)
        for k, z in enumerate(group)
    )


class TestLengths:
    PAIRS = Pairs.from_rows(
        {"query": "copy " * n, "document": "list of words " * n, "relevance": 1.0} for n in (1, 2, 20, 30)
    )

    def test_texts_longer_than_the_encoder_reads_are_counted(self, tiny_model):
        (warning,) = lengths.check_lengths(tiny_model, self.PAIRS)
        assert warning.startswith("2 of 4 documents ") and " 32 " in warning
        tiny_model.max_seq_length = 16
        (warning,) = lengths.check_lengths(tiny_model, self.PAIRS)
        assert warning.startswith("2 of 4 queries and 2 of 4 documents ") and " 16 " in warning
        tiny_model.max_seq_length = 200
        assert lengths.check_lengths(tiny_model, self.PAIRS) == []

    def test_the_prompt_before_a_text_counts(self, tiny_model):
        tiny_model.prompts = {"query": "find a path in the tree of ", "document": ""}
        tiny_model.max_seq_length = 8
        (warning,) = lengths.check_lengths(tiny_model, self.PAIRS)
        assert warning.startswith("4 of 4 queries ") and "prompt" in warning

    def test_of_many_texts_a_sample_is_tokenised(self, tiny_model, monkeypatch):
        monkeypatch.setattr(lengths, "TEXTS_COUNTED", 10)
        texts = [f"{'list ' * (40 if n % 2 else 12)}{'a' * n}" for n in range(57)]
        pairs = Pairs.from_rows({"query": "copy", "document": text, "relevance": 1.0} for text in texts)
        (warning,) = lengths.check_lengths(tiny_model, pairs)
        assert re.match(r"\d of 10 sampled documents ", warning)


def test_a_max_length_below_the_models_own_is_a_warning_with_both_numbers(tiny_model_path):
    for length in (None, 32):
        assert checks.check_max_length(build_encoder(tiny_model_path, length)) == []
    (warning,) = checks.check_max_length(build_encoder(tiny_model_path, 16))
    assert all(fact in warning for fact in ("16", "32", "train_max_length: 16"))


class TestPairs:
    @pytest.mark.parametrize(
        ("word", "documents", "lacking"),
        [
            ("infonce", None, "a document with relevance of at least 0.5"),
            ("margin-mse", 2, "two graded documents"),
            ("bixse", None, "a document with relevance above 0"),
        ],
    )
    def test_some_queries_teach_nothing(self, tiny_model, word, documents, lacking):
        pairs = pairs_of([1.0, 0.3], [0.0, 0.0], [0.7])
        (warning,) = checks.check_pairs("p.csv", word, build_loss(word, tiny_model), pairs, documents)
        assert warning.startswith(f"1 of 3 queries lack {lacking}")
        pairs = pairs_of([0.9, 0.2], [1.0, 0.5])
        assert not checks.check_pairs("p.csv", word, build_loss(word, tiny_model), pairs, documents)

    @pytest.mark.parametrize(("word", "documents"), [("margin-mse", 1), ("infonce", None), ("bixse-binarised", None)])
    def test_no_query_teaches_anything(self, tiny_model, word, documents):
        pairs = pairs_of([0.4, 0.3], [0.0, 0.2])
        with pytest.raises(InputError, match="got 2 queries"):
            checks.check_pairs("p.csv", word, build_loss(word, tiny_model), pairs, documents)


def at_rate(rate):
    return {"dev": None, "optimizer": {"learning_rate": rate, "max_steps": 20}}


@pytest.mark.parametrize(
    ("loss", "rate"),
    [("bixse", 100.0), *(pytest.param(loss, 0.3, marks=pytest.mark.slow) for loss in ("infonce", "lambdaloss-v2"))],
)
def test_a_collapsed_encoder_is_not_saved(tmp_path, loss, rate, train_toy):
    for _ in range(2):  # the same command fails again
        with pytest.raises(TrainingError, match="diverged"):
            train_toy(**at_rate(rate), loss=loss)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
    assert not (tmp_path / "out" / "model").exists()


FINE = {"query": 0.4, "document": 0.5}


@pytest.mark.parametrize(
    ("before", "after", "losses", "best", "diverged"),
    [
        (FINE, {"query": 0.0, "document": 0.5}, [1.0], True, True),
        (FINE, {"query": 0.5, "document": 9e-4}, [1.0], False, True),
        (FINE, FINE, [1.0, 2.0, 30.0], False, True),
        (FINE, FINE, [1.0, 9.0], False, False),
        (FINE, FINE, [1.0, 30.0], True, False),
        (FINE, FINE, [1.0, *[900.0] * 4, *[0.5] * 30, 900.0, 0.5], False, False),
        (FINE, FINE, [0.0, 5.0], False, False),
        (FINE, FINE, [0.002, *[0.05] * 30], False, False),
        (FINE, FINE, [], False, False),
        ({"query": 0.0, "document": 5e-4}, {"query": 0.0, "document": 1e-4}, [1.0], False, False),
    ],
)
def test_a_collapse_or_an_exploded_loss_has_diverged(before, after, losses, best, diverged):
    with pytest.raises(TrainingError, match="diverged") if diverged else nullcontext():
        check_learned(before, after, losses, best)


@pytest.mark.precision("bfloat16")
def test_spreads_are_float32_after_training_in_bfloat16(tiny_model_path, graded_pairs, monkeypatch, train_toy):
    ended = []
    ours = GradedTrainer.train
    monkeypatch.setattr(
        GradedTrainer, "train", lambda self, **named: (ours(self, **named), ended.append(self.loss.model))
    )
    train_toy(**at_rate(1e-3))
    (model,) = ended
    spreads = embedding_spreads(model, graded_pairs)
    fresh = build_encoder(str(tiny_model_path), 16)
    switch_attention(fresh, model[0].auto_model.config._attn_implementation)
    make_weights_float32(fresh)
    fresh.load_state_dict(model.state_dict())
    assert spreads == embedding_spreads(fresh, graded_pairs)
