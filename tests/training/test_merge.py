"""Merging the tuned weights with the base model's: the formula, the choice, the head, and every way to run it."""

from __future__ import annotations

import json
import shutil
from typing import ClassVar

import numpy as np
import pytest
import torch
from launch import TRAIN_ALL, finish, start
from pydantic import TypeAdapter
from safetensors.torch import load_file

from bixse.data.collection import Collection, Document, save_collection
from bixse.encoders.encode import embeddings_key
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder, load_relevance_model
from bixse.encoders.weights import interpolate, trained_weights
from bixse.errors import InputError, InterruptedRunError, ModelError, OutputExistsError
from bixse.training.config import MergeConfig, MergeModelsConfig, TrainConfig
from bixse.training.dev_evaluation import Split, load_watched
from bixse.training.loop.checkpoints import StopOnInterrupt
from bixse.training.merge import MergeResult, _choose, merge
from bixse.training.merge_models import merge_models
from bixse.training.recipe import train

HALF = MergeConfig(weights=(0.5,))


def merged(models, out, **settings):
    return merge_models(MergeModelsConfig.load(None, {"models": [str(model) for model in models], **settings}), out)


def result_in(out):
    record = json.loads((out / "run.json").read_text())
    return TypeAdapter(MergeResult).validate_python(record["results"]["merge"])


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_between(merged, base, tuned, share):
    assert merged.keys() == tuned.keys() == base.keys()
    for name, value in merged.items():
        expected = (1 - share) * base[name].double() + share * tuned[name].double()
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def guarded_files(tmp_path_factory, training_files, graded_collection):
    """The toy collection with its dev queries as dev and half of them, in other words, as guard."""
    dev = graded_collection.qrels["dev"]
    guard = {f"g-{query}": judged for query, judged in list(dev.items())[:5]}
    texts = {query: f"{graded_collection.queries[query[2:]]} now" for query in guard}
    folder = tmp_path_factory.mktemp("guarded")
    toy = Collection(
        "guarded", graded_collection.corpus, {**graded_collection.queries, **texts}, {"dev": dev, "guard": guard}
    )
    save_collection(toy, folder / "collection")
    shutil.copy(training_files / "pairs.jsonl", folder / "pairs.jsonl")
    return folder


@pytest.fixture
def guarded(run_config, guarded_files):
    def make(model, **changes):
        settings = {"guard": guarded_files / "collection", "guard_split": "guard", **changes}
        return run_config(guarded_files, model, **settings)

    return make


@pytest.fixture
def train_guarded(guarded, tiny_model_path, tmp_path):
    return lambda out="out", **changes: train(guarded(tiny_model_path, **changes), tmp_path / out, progress=False)


class TestRefused:
    def test_a_guard_without_a_relevant_document(self, graded_collection, tmp_path, train_guarded):
        judged = {"q0": dict.fromkeys(list(graded_collection.corpus)[:3], 0.0)}
        toy = Collection("empty", graded_collection.corpus, graded_collection.queries, {"test": judged})
        save_collection(toy, tmp_path / "empty")
        with pytest.raises(InputError, match="empty"):
            train_guarded(guard=tmp_path / "empty", guard_split="test")
        assert not (tmp_path / "out").exists()

    def test_dev_queries_of_the_training_pairs_are_counted_and_refused_unless_allowed(
        self, graded_collection, tmp_path, train_toy
    ):
        leaky = {**graded_collection.qrels["dev"], "q0": graded_collection.qrels["train"]["q0"]}
        toy = Collection("leaky", graded_collection.corpus, graded_collection.queries, {"dev": leaky})
        save_collection(toy, tmp_path / "leaky")
        settings = {"dev": tmp_path / "leaky", "merge": HALF, "optimizer": {"num_train_epochs": 1}}
        with pytest.raises(InputError, match=f"1 of {len(leaky)}"):
            train_toy(**settings)
        result = train_toy(**settings, allow_shared_queries=True)
        assert any(f"1 of {len(leaky)}" in warning for warning in result.warnings)

    def test_guard_needs_dev_and_a_split_for_each(self, tmp_path):
        for settings in (
            {"guard": tmp_path},
            {"guard": tmp_path, "dev": tmp_path, "merge": None},
            {"guard": (tmp_path / "a", tmp_path / "b"), "dev": tmp_path, "guard_split": ("a", "b", "c")},
        ):
            with pytest.raises(ValueError, match="fix:"):
                TrainConfig(pairs="pairs.jsonl", **settings)

    def test_models_of_other_architecture_or_tokenizer(self, tiny_model_path, decoder_path, tmp_path):
        with pytest.raises(ModelError, match="embeddings"):
            merged([tiny_model_path, decoder_path("llama")], tmp_path / "out", weights=[0.5, 0.5])
        other = tmp_path / "other"
        shutil.copytree(tiny_model_path, other)
        path = other / "tokenizer.json"
        path.write_text(path.read_text().replace('"copy"', '"kopy"'))
        with pytest.raises(ModelError, match="tokenizer"):
            merged([tiny_model_path, other], tmp_path / "out", weights=[0.5, 0.5])
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("given", [{}, {"weights": [0.7, 0.7]}, {"weights": [1.0]}, {"weights": [1.5, -0.5]}])
    def test_weights_of_models_that_make_no_mean(self, tiny_model_path, tmp_path, given):
        with pytest.raises(InputError):
            merged([tiny_model_path, tiny_model_path], tmp_path / "out", **given)

    def test_a_refused_merge_leaves_its_folder_free(self, tiny_model_path, tmp_path):
        models = [tiny_model_path, tiny_model_path]
        with pytest.raises(InputError):
            merged(models, tmp_path / "out", weights=[0.5, 0.6])
        assert not (tmp_path / "out").exists()
        assert merged(models, tmp_path / "out", weights=[0.5, 0.5]).model_path.is_dir()
        with pytest.raises(OutputExistsError):
            merged(models, tmp_path / "out", weights=[0.25, 0.75])


class TestChoice:
    scores: ClassVar = {
        0.0: {"dev": {"q": 0.4}, "guard": {"q": 0.5}},
        0.3: {"dev": {"q": 0.5}, "guard": {"q": 0.495}},
        0.5: {"dev": {"q": 0.6}, "guard": {"q": 0.48}},
        1.0: {"dev": {"q": 0.55}, "guard": {"q": 0.4}},
    }
    roles: ClassVar = {"dev": "dev", "guard": "guard"}

    @pytest.mark.parametrize(("tolerance", "chosen"), [(0.01, 0.3), (0.02, 0.5), (0.2, 0.5), (0.001, 0.3)])
    def test_the_best_on_dev_that_keeps_guard(self, tolerance, chosen):
        """With .001 none does: the one that loses least is kept."""
        assert _choose(self.scores, self.roles, [0.3, 0.5, 1.0], tolerance + 1e-9)[1] == chosen

    def test_the_better_of_two_equal_ones_is_the_smaller(self):
        even = {weight: {"dev": {"q": 0.5}} for weight in (0.0, 0.2, 0.7)}
        assert _choose(even, {"dev": "dev"}, [0.7, 0.2], 0.0)[1] == 0.2

    @staticmethod
    def per_query(means, spreads):
        """Four queries per weight: at weight 0.7 all score 0.5, at the others around their mean."""
        return {
            weight: {"dev": {f"q{n}": means[weight] + sign * spreads.get(weight, 0.0) for n, sign in enumerate(signs)}}
            for weight in means
            for signs in [(1, -1, 1, -1)]
        }

    def test_the_smallest_weight_within_one_standard_error_of_the_best(self):
        """Differences from the best of .01 +- s have the standard error s * sqrt(4 / 3) / 2 over four queries."""
        means = {0.0: 0.3, 0.3: 0.48, 0.5: 0.49, 0.7: 0.5, 1.0: 0.495}
        near, far = 0.0174, 0.0172  # errors of .01005 and .00993, beside a difference of .01
        for spread, chosen in ((near, 0.5), (far, 0.7)):
            points, weight = _choose(self.per_query(means, {0.5: spread}), {"dev": "dev"}, [0.3, 0.5, 0.7, 1.0], 0.01)
            assert weight == chosen
            point = next(point for point in points if point.weight == 0.5)
            assert point.error == pytest.approx(spread * (4 / 3) ** 0.5 / 2)
            assert point.below_best == pytest.approx(0.01)
        assert next(point for point in points if point.weight == 0.7).error == 0.0

    def test_the_error_is_paired_over_queries(self):
        """Queries differ much, weights do not: the difference from the best is the same for each query."""
        levels = {"a": 0.1, "b": 0.9, "c": 0.5}
        scores = {
            w: {"dev": {q: s + gain for q, s in levels.items()}} for w, gain in ((0.0, 0), (0.5, 0.01), (1.0, 0.03))
        }
        assert _choose(scores, {"dev": "dev"}, [0.5, 1.0], 0.01)[1] == 1.0

    def test_collections_count_the_same_in_the_error(self):
        """The variance of a mean of two means is the sum of their variances over four."""
        one, two = np.array([0.02, -0.01, 0.05]), np.array([0.0, 0.04])
        flat = {"x": dict.fromkeys("abc", 0.5), "y": dict.fromkeys("de", 0.5)}
        less = {"x": dict(zip("abc", 0.5 - one, strict=True)), "y": dict(zip("de", 0.5 - two, strict=True))}
        points, _ = _choose({0.0: less, 0.5: less, 1.0: flat}, {"x": "dev", "y": "dev"}, [0.5, 1.0], 0.01)
        expected = ((one.var(ddof=1) / 3 + two.var(ddof=1) / 2) / 4) ** 0.5
        assert [point.error for point in points] == pytest.approx([expected, expected, 0.0])

    def test_the_best_weight_that_breaks_guard_is_not_what_others_are_compared_with(self):
        means = {0.0: 0.3, 0.3: 0.45, 0.5: 0.49, 1.0: 0.6}
        scores = self.per_query(means, {})
        for weight, values in scores.items():
            values["guard"] = {"g": 0.5 - (0.2 if weight == 1.0 else 0.0)}
        points, weight = _choose(scores, {"dev": "dev", "guard": "guard"}, [0.3, 0.5, 1.0], 0.01)
        assert weight == 0.5
        assert [point.below_best for point in points] == pytest.approx([0.19, 0.04, 0.0, -0.11])


class TestPool:
    """A tuned model that ranks one unjudged, unrelated document first for every query."""

    @pytest.fixture
    def hub(self, graded_collection, student, tmp_path):
        """The encoder, base and tuned weights, and a function that reads the collection, each weight searching `most`.

        Of the tuned model the words that only queries have, and the word of the unrelated document, have one vector.
        """
        rng = np.random.default_rng(0)
        words = ["stone", "river", "cloud", "horse", "green", "seven", "music", "bread", "glass", "night"]
        others = {f"x{n}": Document("", " ".join(rng.choice(words, 4))) for n in range(300)}
        corpus = {**others, "hub": Document("", "zebra"), **graded_collection.corpus}
        qrels = {"dev": graded_collection.qrels["dev"]}
        save_collection(Collection("hub", corpus, graded_collection.queries, qrels), tmp_path / "hub")
        model = build_encoder(student)
        base = trained_weights(model)
        ((name, table),) = base.items()
        tuned = table.clone()
        rows = model.tokenizer.encode("how do i zebra", add_special_tokens=False).ids
        tuned[rows] = 100 * torch.nn.functional.normalize(torch.ones(table.shape[1]), dim=0)
        return model, base, {name: tuned}, lambda most: load_watched([Split(tmp_path / "hub", "dev", "dev")], most)

    def test_the_pool_holds_it_and_the_scores_are_those_over_the_corpus(self, hub):
        model, base, tuned, watch = hub
        pooled = merge(model, base, tuned, [0.5, 1.0], watch(130))
        whole = merge(model, base, tuned, [0.5, 1.0], watch(None))
        assert pooled.documents == {"hub": (130, 361)} and whole.documents == {"hub": (361, 361)}
        for mine, other in zip(pooled.points, whole.points, strict=True):
            assert mine.scores == pytest.approx(other.scores, abs=1e-6), mine.weight
        assert whole.points[-1].scores["hub"] < whole.points[0].scores["hub"]

    def test_each_query_has_it_first(self, hub):
        model, base, tuned, watch = hub
        (watched,) = watch(130)
        interpolate(model, base, tuned, 1.0)
        (run,) = watched.hits(model).values()
        assert all(max(scores, key=scores.get) == "hub" for scores in run.values())
        judged = {document for grades in watched.sets[0].qrels.values() for document in grades}
        assert "hub" not in judged and "hub" not in watched.pool([])
        pool = watched.pool([{"dev": run}])
        assert "hub" in pool and judged <= pool.keys() and len(pool) <= 130

    def test_embeddings_of_weights_that_were_not_taken_leave_the_store(self, hub, cache_path):
        model, base, tuned, watch = hub
        taken = merge(model, base, tuned, [0.2, 0.5, 0.8, 1.0], watch(None)).weight
        files = {path.stem for path in (cache_path / "embeddings").iterdir()}
        assert taken < 1 and len(files) == 3
        assert embeddings_key(model) in files, "the model is left at the chosen weight"


class TestTraining:
    def test_the_saved_weights_are_the_formula_and_the_head_is_refitted(self, tiny_model_path, train_toy):
        tuned, merged = (train_toy(str(m), dev=None, dropout=0.0, merge=m) for m in (None, HALF))
        assert tuned.merge is None and merged.merge.weight == 0.5
        assert_between(weights(merged.model_path), weights(tiny_model_path), weights(tuned.model_path), 0.5)
        before, after = (RelevanceHead.load(found.model_path) for found in (tuned, merged))
        assert after.logit_scale != before.logit_scale
        assert after.trained_prior == pytest.approx(before.trained_prior, abs=0.01)

    def test_the_refitted_head_has_the_least_loss_on_the_training_batches(self, graded_pairs, train_toy):
        """Against a naive sum over the entries of the batches, with scale and bias moved either way."""
        from bixse.training.loop.batches import BatchPlan, GroupDataset

        model = load_relevance_model(train_toy(dev=None, merge=HALF).model_path)
        dataset = GroupDataset(graded_pairs, 3, 0)
        cosines, targets = [], []
        for numbers in BatchPlan(graded_pairs, 8, 0):
            drawn = [dataset[number] for number in numbers]
            groups = [graded_pairs.groups()[number] for number, _ in drawn]
            documents = list(dict.fromkeys(graded_pairs.documents[row] for _, rows in drawn for row in rows))
            vectors = [
                model.encode(texts, normalize_embeddings=True)
                for texts in ([group.query for group in groups], documents)
            ]
            known = {
                (g.query, d): z for g in graded_pairs.groups() for d, z in zip(g.documents, g.relevance, strict=True)
            }
            cosines.append((vectors[0] @ vectors[1].T).ravel())
            targets.append([known.get((group.query, d), 0.0) for group in groups for d in documents])
        cos, z = np.concatenate(cosines).astype(float), np.concatenate(targets)

        def loss(scale, bias):
            logits = scale * cos + bias
            return float(np.mean(np.logaddexp(0, logits) - z * logits))

        least = loss(model.head.logit_scale, model.head.logit_bias)
        for scale, bias in ((1.1, 0), (0.9, 0), (1, 0.1), (1, -0.1)):
            assert loss(model.head.logit_scale * scale, model.head.logit_bias + bias) > least

    def test_the_weight_is_chosen_on_dev_and_guard_and_said_everywhere(self, tmp_path, train_guarded):
        result = train_guarded()
        found = result.merge
        assert [point.weight for point in found.points] == [step / 10 for step in range(11)]
        guard = {p.weight: p.scores["collection/guard"] for p in found.points}
        near = [p.weight for p in found.points if p.weight and p.below_best <= p.error]
        assert found.weight == min(weight for weight in near if guard[weight] >= guard[0.0] - 0.01)
        assert "standard error" in "".join(found.lines())
        assert {(change.role, change.model) for change in found.changes} == {
            (role, model) for role in ("dev", "guard") for model in ("tuned", "merged")
        }
        for change in found.changes:
            assert change.low <= change.mean <= change.high
        assert result_in(tmp_path / "out") == found
        card = (result.model_path / "README.md").read_text()
        assert all(line in card for line in found.lines())
        assert train_guarded().merge == found

    def test_a_run_killed_before_it_was_merged_is_merged_the_same(self, monkeypatch, train_guarded):
        whole = train_guarded("whole")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("bixse.training.finish.merge", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
            train_guarded("killed")
        again = train_guarded("killed")
        assert again.merge == whole.merge
        names = ("model.safetensors", "relevance_head.json")
        assert all((again.model_path / n).read_bytes() == (whole.model_path / n).read_bytes() for n in names)

    def test_ctrl_c_during_the_last_step_ends_before_merging(self, tmp_path, monkeypatch, train_guarded):
        ended = StopOnInterrupt.on_step_end

        def asked_at_the_end(self, args, state, control, **named):
            self.asked = self.asked or state.global_step == state.max_steps
            return ended(self, args, state, control, **named)

        with monkeypatch.context() as patch, pytest.raises(InterruptedRunError):
            patch.setattr(StopOnInterrupt, "on_step_end", asked_at_the_end)
            train_guarded()
        assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "interrupted"
        assert train_guarded().merge is not None

    def test_adapters_are_scaled(self, decoder_path, tmp_path, train_toy):
        """The whole model lies between base and tuned, and the adapters beside it give the same embeddings."""
        path = decoder_path("llama")
        settings = {
            "dev": None,
            "dropout": 0.0,
            "lora": {"rank": 4},
            "optimizer": {"learning_rate": 1e-2, "num_train_epochs": 1},
        }
        tuned = train_toy("tuned", path, **settings, merge=None)
        merged = train_toy("merged", path, **settings, merge=HALF)
        base = dict(build_encoder(path).named_parameters())
        ends = dict(build_encoder(tuned.model_path).named_parameters())
        for name, value in build_encoder(merged.model_path).named_parameters():
            torch.testing.assert_close(value, (base[name] + ends[name]) / 2, rtol=1e-4, atol=1e-6)
        whole, adapters = (load_relevance_model(tmp_path / "merged" / part) for part in ("model", "adapter"))
        texts = ["copy the file", "move a folder"]
        np.testing.assert_allclose(whole.encode(texts), adapters.encode(texts), atol=1e-4)

    @pytest.mark.slow
    def test_two_processes_choose_and_save_the_same(self, guarded, tiny_model_path, tmp_path, monkeypatch):
        """In float32: rounding to bf16 is not the same for two parts of a batch."""
        import yaml

        monkeypatch.setenv("BIXSE_PRECISION", "float32")

        config = guarded(tiny_model_path, dropout=0.0, optimizer={"num_train_epochs": 1})
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
        ended = finish(start(2, path, tmp_path / "two", script=TRAIN_ALL))
        assert [code for code, _, _ in ended] == [0, 0], ended
        one = train(config, tmp_path / "one", progress=False)
        two = result_in(tmp_path / "two")
        assert two.weight == one.merge.weight
        for mine, other in zip(one.merge.points, two.points, strict=True):
            assert mine.scores == pytest.approx(other.scores, abs=0.02)
        for name, value in weights(tmp_path / "two" / "model").items():
            torch.testing.assert_close(value, weights(one.model_path)[name], rtol=1e-3, atol=1e-4)


class TestModelsThatExist:
    @pytest.fixture(scope="class")
    def tuned(self, run_config, training_files, tiny_model_path, tmp_path_factory):
        """Two models trained from the tiny one with other seeds."""
        folder = tmp_path_factory.mktemp("tuned")
        paths = []
        for seed in (0, 1):
            config = run_config(
                training_files, tiny_model_path, dev=None, merge=None, seed=seed, optimizer={"num_train_epochs": 1}
            )
            paths.append(train(config, folder / str(seed), progress=False).model_path)
        return paths

    def test_given_weights(self, tiny_model_path, tuned, tmp_path):
        found = merged([tiny_model_path, tuned[0]], tmp_path / "out", weights=[0.25, 0.75])
        assert_between(weights(found.model_path), weights(tiny_model_path), weights(tuned[0]), 0.75)
        assert build_encoder(found.model_path).head is None and found.warnings
        again = merged([tiny_model_path, tuned[0]], tmp_path / "out", weights=[0.25, 0.75])
        assert again.reused
        assert again.result.given == found.result.given == (0.25, 0.75)
        assert "0.25 + 0.75" in again.result.lines()[0]

    def test_a_soup_is_chosen_on_dev_with_its_head(self, guarded_files, tiny_model_path, tuned, tmp_path):
        found = merged(
            [tiny_model_path, *tuned], tmp_path / "out", dev=guarded_files / "collection",
            guard=guarded_files / "collection", guard_split="guard", pairs=guarded_files / "pairs.jsonl",
            candidates=[0.4, 0.8],
        )  # fmt: skip
        first, second = (weights(path) for path in tuned)
        mean = {name: (value + second[name]) / 2 for name, value in first.items()}
        assert_between(weights(found.model_path), weights(tiny_model_path), mean, found.result.weight)
        assert found.result.weight in (0.4, 0.8)
        assert load_relevance_model(found.model_path).relevance("copy the file", ["copy file"])[0] > 0

    def test_the_verb(self, guarded_files, tiny_model_path, tuned, tmp_path, capsys):
        from bixse.cli.main import main

        folder = str(guarded_files / "collection")
        words = ["merge", str(tiny_model_path), str(tuned[0]), "--dev", folder, "--candidates", "0.5", "1", "--json"]
        assert main([*words, "--out", str(tmp_path / "out")]) == 0
        said = json.loads(capsys.readouterr().out)
        assert [point["weight"] for point in said["metrics"]["points"]] == [0.0, 0.5, 1.0]
        assert main(["merge", str(tiny_model_path), str(tuned[0]), "--weights", "2", "--out", str(tmp_path / "o")]) == 2


def test_the_ends_are_the_models_themselves_to_the_last_bit(tiny_model, tmp_path):
    """Of a weight that is -0 too."""
    base = trained_weights(tiny_model)
    next(iter(base.values())).view(-1)[0] = -0.0
    other = {name: torch.randn_like(value) for name, value in base.items()}
    next(iter(other.values())).view(-1)[1] = -0.0
    for weight, end in ((0.0, base), (1.0, other)):
        interpolate(tiny_model, base, other, weight)
        for name, value in tiny_model.named_parameters():
            assert value.detach().numpy().tobytes() == end[name].numpy().tobytes()


def test_a_run_says_what_was_merged(guarded_files, tiny_model_path, tmp_path, capsys):
    from bixse.cli.main import main

    words = ["train", "--pairs", guarded_files / "pairs.jsonl", "--dev", guarded_files / "collection", "--guard"]
    words += [
        guarded_files / "collection",
        "--guard-split",
        "guard",
        "--model",
        tiny_model_path,
        "--num-train-epochs",
        "1",
    ]
    assert main([*map(str, words), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "merged weights" in said and "guard" in said
