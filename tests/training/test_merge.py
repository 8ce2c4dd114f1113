import json
import shutil
from dataclasses import asdict, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.task_instructions import Instructions
from bixse.encoders.encode import embeddings_key
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.encoders.relevance_model import save_whole
from bixse.encoders.weights import interpolate, set_instructions, trained_weights
from bixse.errors import InputError, InterruptedRunError, ModelError, OutputExistsError
from bixse.evaluation.statistics import paired_difference
from bixse.progress import Progress
from bixse.search.store import EmbeddingStore
from bixse.training.config import MergeConfig
from bixse.training.loop.batches import BatchPlan, GroupDataset
from bixse.training.merge import Change, MergeResult, _change, _choose, _chosen, set_best_weights
from bixse.training.merge_config import MergeModelsConfig
from bixse.training.merge_models import merge, merge_into
from bixse.training.sources import Split, load_eval_corpora
from bixse.training.train import train_into
from helpers.command import call
from helpers.toy import action_collection

ACTIONS = action_collection()
HALF = MergeConfig(weights=(0.5,))


def merged(models, out, **settings):
    return merge_into(MergeModelsConfig.load(None, {"models": [str(model) for model in models], **settings}), out)


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_between(merged, base, tuned, share):
    assert merged.keys() == tuned.keys() == base.keys()
    for name, value in merged.items():
        expected = (1 - share) * base[name].double() + share * tuned[name].double()
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.fixture(scope="module")
def guarded_collection(tmp_path_factory):
    """The toy collection with its dev queries as dev and half of them, in other words, as guard."""
    dev = ACTIONS.qrels["dev"]
    guard = {f"g-{query}": judged for query, judged in list(dev.items())[:5]}
    queries = {**ACTIONS.queries, **{query: f"{ACTIONS.queries[query[2:]]} now" for query in guard}}
    folder = tmp_path_factory.mktemp("guarded") / "collection"
    save_collection(Collection("guarded", ACTIONS.corpus, queries, {"dev": dev, "guard": guard}), folder)
    return folder


@pytest.fixture
def guarded(run_config, guarded_collection):
    return partial(run_config, dev=guarded_collection, guard=guarded_collection, guard_split="guard")


@pytest.fixture
def train_guarded(guarded, tmp_path):
    return lambda out="out", **changes: train_into(guarded(**changes), tmp_path / out, progress=False)


class TestRefused:
    @pytest.mark.parametrize("spelling", ["{}", " {}\n", "\N{NO-BREAK SPACE}{}"])
    def test_dev_queries_of_the_training_pairs_are_counted_and_refused_unless_allowed(
        self, tmp_path, train_toy, spelling
    ):
        leaky = {**ACTIONS.qrels["dev"], "q0-0": ACTIONS.qrels["train"]["q0-0"]}
        queries = {**ACTIONS.queries, "q0-0": spelling.format(ACTIONS.queries["q0-0"].upper())}
        save_collection(Collection("leaky", ACTIONS.corpus, queries, {"dev": leaky}), tmp_path / "leaky")
        settings = {"dev": tmp_path / "leaky", "merge": HALF, "optimizer": {"num_train_epochs": 1}}
        with pytest.raises(InputError, match=f"1 of {len(leaky)}"):
            train_toy(**settings)
        result = train_toy(**settings, allow_shared_queries=True)
        assert any(f"1 of {len(leaky)}" in warning for warning in result.warnings)

    def test_models_of_other_architecture_or_tokenizer(self, tiny_model_path, decoder_path, tmp_path):
        with pytest.raises(ModelError, match="embeddings"):
            merged([tiny_model_path, decoder_path("llama")], tmp_path / "out", weights=[0.5, 0.5])
        other = tmp_path / "other"
        shutil.copytree(tiny_model_path, other)
        path = other / "tokenizer.json"
        path.write_text(path.read_text().replace('"copy"', '"kopy"'))
        with pytest.raises(ModelError, match="tokenizer"):
            merged([tiny_model_path, other], tmp_path / "out", weights=[0.5, 0.5])
        shutil.copy(tiny_model_path / "tokenizer.json", path)
        path = other / "1_Pooling" / "config.json"
        path.write_text(path.read_text().replace('"mean"', '"cls"'))
        with pytest.raises(ModelError, match=r"modules.*'cls'"):
            merged([tiny_model_path, other], tmp_path / "out", weights=[0.5, 0.5])
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize("settings", [{}, {"weights": [0.7, 0.7]}, {"weights": [1.0]}, {"weights": [1.5, -0.5]}])
    def test_weights_of_models_that_make_no_mean(self, tiny_model_path, tmp_path, settings):
        with pytest.raises(InputError):
            merged([tiny_model_path, tiny_model_path], tmp_path / "out", **settings)
        assert not (tmp_path / "out").exists()


def around(mean, spread=0.0):
    """Scores of forty queries around a mean."""
    return {f"q{number}": mean + sign * spread for number, sign in enumerate((1, -1) * 20)}


def chosen(scores, tolerance=0.01):
    """The result for weight -> collection -> scores; 0 is the base model."""
    roles = {name: "guard" if name == "guard" else "dev" for name in scores[0.0]}
    weights = [weight for weight in scores if weight > 0]
    choice = _choose(scores, roles, weights, tolerance)
    changes = [
        _change(name, role, model, scores[of][name], scores[0.0][name])
        for name, role in roles.items()
        for model, of in (("tuned", max(scores)), ("merged", choice.weight))
    ]
    documents, reasons = dict.fromkeys(roles, (9, 9)), {"undecided": choice.undecided, "unresolved": choice.unresolved}
    return MergeResult(choice.weight, choice.points, changes, tolerance, len(weights), documents, **reasons)


class TestChoice:
    @pytest.mark.parametrize(("tolerance", "weight"), [(0.01, 0.3), (0.02, 0.5), (0.2, 0.5), (0.001, 0.3)])
    def test_the_best_on_dev_that_keeps_guard(self, tolerance, weight):
        # with .001 no weight keeps guard: the one that loses least is chosen
        figures = {0.0: (0.4, 0.5), 0.3: (0.5, 0.495), 0.5: (0.6, 0.48), 1.0: (0.55, 0.4)}
        scores = {weight: {"dev": around(dev), "guard": around(guard)} for weight, (dev, guard) in figures.items()}
        assert chosen(scores, tolerance + 1e-9).weight == weight

    @pytest.mark.parametrize(
        ("drop", "model", "warned"), [(0.02, "merged", 1), (0.005, "merged", 0), (0.02, "tuned", 0)]
    )
    def test_a_merged_model_that_breaks_guard_is_warned_of(self, drop, model, warned):
        result = MergeResult(0.3, [], [Change("other", "guard", model, -drop, None, None, 1)], tolerance=0.01)
        assert len(result.warnings()) == warned

    # errors of .01004 and .00996, and a difference of .01
    @pytest.mark.parametrize(("spread", "weight"), [(0.0627, 0.5), (0.0622, 0.7)])
    def test_the_smallest_weight_within_one_standard_error_of_the_best(self, spread, weight):
        means = {0.0: 0.3, 0.3: 0.48, 0.5: 0.49, 0.7: 0.5, 1.0: 0.495}
        result = chosen({w: {"dev": around(m, spread if w == 0.5 else 0)} for w, m in means.items()})
        assert (result.weight, result.undecided) == (weight, "")
        of = {point.weight: point for point in result.points}
        assert (of[0.5].error, of[0.5].below_best) == pytest.approx((spread / 39**0.5, 0.01))
        assert of[0.7].error == 0.0

    def test_the_error_is_paired_over_queries(self):
        levels, gains = around(0.5, 0.4), {0.0: 0.0, 0.5: 0.01, 1.0: 0.03}
        scores = {w: {"dev": {q: s + gain for q, s in levels.items()}} for w, gain in gains.items()}
        assert chosen(scores).weight == 1.0

    def test_collections_count_the_same_in_the_error(self):
        one, two = np.array([0.02, -0.01, 0.05]), np.array([0.0, 0.04])
        flat = {"x": dict.fromkeys("abc", 0.5), "y": dict.fromkeys("de", 0.5)}
        less = {"x": dict(zip("abc", 0.5 - one, strict=True)), "y": dict(zip("de", 0.5 - two, strict=True))}
        points = chosen({0.0: less, 0.5: less, 1.0: flat}).points
        expected = ((one.var(ddof=1) / 3 + two.var(ddof=1) / 2) / 4) ** 0.5
        assert [point.error for point in points] == pytest.approx([expected, expected, 0.0])

    def test_the_best_weight_that_breaks_guard_is_not_what_others_are_compared_with(self):
        means = {0.0: 0.3, 0.3: 0.45, 0.5: 0.49, 1.0: 0.6}
        scores = {w: {"dev": around(mean), "guard": around(0.3 if w == 1.0 else 0.5)} for w, mean in means.items()}
        result = chosen(scores)
        assert result.weight == 0.5
        assert [point.below_best for point in result.points] == pytest.approx([0.19, 0.04, 0.0, -0.11])

    def test_the_guard_that_left_out_the_best_weight_is_named_with_its_loss(self):
        figures = {0.0: (0.5, 0.5, 0.5), 0.1: (0.5301, 0.497, 0.5), 0.7: (0.5431, 0.46, 0.49), 1.0: (0.54, 0.4, 0.48)}
        names = ("dev", "guard", "other")
        scores = {w: dict(zip(names, map(around, values), strict=True)) for w, values in figures.items()}
        roles = {"dev": "dev", "guard": "guard", "other": "guard"}
        points, weight, *_ = _choose(scores, roles, [0.1, 0.7, 1.0], 0.01)
        changes = [_change(n, r, "merged", scores[weight][n], scores[0.0][n]) for n, r in roles.items()]
        lines = MergeResult(weight, points, changes, 0.01, 3).reason()
        assert weight == 0.1
        assert any("0.7" in line and "0.0400 on guard guard" in line and "0.5431" in line for line in lines)
        # nothing is left out where nothing was better
        scores[0.7]["dev"] = scores[1.0]["dev"] = around(0.52)
        points, weight, *_ = _choose(scores, roles, [0.1, 0.7, 1.0], 0.01)
        assert not any("0.0400" in line for line in MergeResult(weight, points, changes, 0.01, 3).reason())


class TestUndecided:
    TIED: ClassVar = {step / 10: around(1.0) for step in range(11)}

    @pytest.mark.parametrize(
        ("scores", "weight"),
        [
            (TIED, 0.5),
            ({w: {q: s + 1e-16 * w for q, s in of.items()} for w, of in TIED.items()}, 0.5),  # sums in another order
            # the mean rises by .01, with a standard error of .016
            ({w: around(0.5 + 0.01 * w, 0.1 * w) for w in TIED}, 0.5),
            ({w: around(0.5 + 0.01 * w, 0.1 * w) for w in (0.0, 0.2, 0.7)}, 0.7),
            ({w: dict(list(around(0.5 + w / 10).items())[:39]) for w in TIED}, 0.5),  # 39 queries, and a clear best
        ],
        ids=["equal", "equal up to rounding", "noise", "no half", "few queries"],
    )
    def test_half_is_taken_and_said_everywhere(self, scores, weight):
        result = chosen({w: {"dev": of} for w, of in scores.items()})
        assert result.weight == weight and result.undecided
        for text in (" ".join(result.warnings()), " ".join(result.lines()), result.card(), " ".join(result.reason())):
            assert result.undecided in text
        assert "best candidate" not in result.card()
        assert "+0.0000]" not in result.card(), "an interval of width 0"

    @pytest.mark.parametrize(("kept", "weight"), [((0.1, 0.2, 0.3), 0.3), ((0.5, 0.9), 0.5), ((0.8, 0.9), 0.8)])
    def test_the_highest_below_that_keeps_guard(self, kept, weight):
        guard = {w: 0.5 if w in (0.0, *kept) else 0.4 for w in self.TIED}
        result = chosen({w: {"dev": of, "guard": around(guard[w])} for w, of in self.TIED.items()})
        assert result.weight == weight and result.undecided and result.keeps_guard
        assert ("highest below" in result.card()) == (weight < 0.5), "0.8 is no nearer than 0.2"

    def test_without_a_guard_none_is_named(self):
        result = chosen({w: {"dev": around(0.5 + 0.01 * w, 0.1 * w)} for w in (0.0, 0.2, 0.7)})
        assert result.undecided and result.weight == 0.7 and "keeps" not in " ".join(result.warnings())

    def test_each_dev_collection_needs_queries_since_each_counts_the_same(self):
        """45 queries of noise, and one query that alone would choose the weight 1."""
        scores = {w: {"a": around(0.5, 0.1 * w), "b": {"q": 0.2 + 0.5 * w}} for w in self.TIED}
        result = chosen({w: {**of, "a": dict(of["a"]) | {f"r{n}": 0.5 for n in range(5)}} for w, of in scores.items()})
        assert result.weight == 0.5 and result.undecided == "b: 1 query; at least 40"

    def test_a_base_model_that_is_worse_than_all_is_a_choice_of_the_smallest(self):
        """The smallest weight has the whole gain: dev tells the base model from the others."""
        scores = {w: {"dev": around(0.5 if w else 0.3)} for w in self.TIED}
        assert (chosen(scores).weight, chosen(scores).undecided) == (0.1, "")

    def test_a_given_weight_is_no_choice(self):
        assert chosen({0.0: {"dev": around(1.0)}, 0.2: {"dev": around(1.0)}}).undecided == ""


class TestGuard:
    """Guards whose figures cannot tell whether a weight keeps the tolerance."""

    FIGURES: ClassVar = {0.0: 0.3, 0.5: 0.4, 1.0: 0.5}

    @pytest.mark.parametrize(
        ("guard", "weight"),
        [
            ({w: dict(list(around(0.5 - 0.2 * w).items())[:21]) for w in FIGURES}, 0.5),  # 21 queries
            ({w: {"q": 0.5 - 0.2 * w} for w in FIGURES}, 0.5),
            ({w: around(0.5 - 0.02 * w, 0.2 * w) for w in FIGURES}, 0.5),  # a loss of .02, an error of .03
            ({w: around(0.5 - 0.3 * w, 0.2 * w) for w in FIGURES}, 0.5),  # 0.5 and 1 lose more: told, and none keeps
            ({w: around(0.5, 0.01 * w) for w in FIGURES}, 1.0),
        ],
        ids=["few", "one", "wide", "lost", "kept"],
    )
    def test_a_guard_too_small_for_the_tolerance_is_named_and_decides_nothing(self, guard, weight, request):
        result = chosen({w: {"dev": around(dev), "guard": guard[w]} for w, dev in self.FIGURES.items()})
        assert result.weight == weight
        is_small = request.node.callspec.id in ("few", "one", "wide")
        assert (list(result.unresolved) == ["guard"]) == is_small == bool(result.undecided)
        assert any("guard guard decides nothing" in line for line in result.warnings()) == is_small
        assert result.keeps_guard == (request.node.callspec.id != "lost")

    def test_a_second_guard_that_tells_still_decides(self):
        scores = {w: {"dev": around(dev), "guard": {"q": 0.5 - w}} for w, dev in self.FIGURES.items()}
        roles = {"dev": "dev", "guard": "guard", "other": "guard"}
        scores = {w: {**of, "other": around(0.5 if w < 1 else 0.3)} for w, of in scores.items()}
        choice = _choose(scores, roles, [0.5, 1.0], 0.01)
        assert (choice.weight, choice.undecided, list(choice.unresolved)) == (0.5, "", ["guard"])

    def test_a_given_weight_needs_no_guard_that_tells(self):
        choice = _choose(
            {w: {"dev": around(w), "g": {"q": w}} for w in (0.0, 0.7)}, {"dev": "dev", "g": "guard"}, [0.7], 0
        )
        assert (choice.weight, choice.undecided, choice.unresolved) == (0.7, "", {})


class TestSearch:
    """The default: weights in the order of a search, on known curves."""

    def search(self, curve, guard=None):
        """The weights in the order in which they are scored, and the choice."""
        asked = []

        def score(weights):
            asked.extend(weights)
            guards = {} if guard is None else {"guard": guard}
            return {
                w: {"dev": around(curve(w))} | {name: around(of(w)) for name, of in guards.items()} for w in weights
            }

        ends = score([0.0, 1.0])
        roles = {"dev": "dev"} | ({} if guard is None else {"guard": "guard"})
        scores, choice = _chosen(ends, score, roles, None, 0.01)
        assert list(scores) == sorted(asked) and len(asked) == len(set(asked)), "no weight is scored twice"
        return asked[2:], choice

    @pytest.mark.parametrize(
        ("curve", "asked", "weight"),
        [
            (lambda w: w, [0.5, 0.75, 0.875], 1.0),
            (lambda w: 1 - w, [0.5, 0.25, 0.125], 0.125),  # the base is best: the smallest
            (lambda w: -((w - 0.3) ** 2), [0.5, 0.25, 0.375], 0.25),
            (lambda w: -((w - 0.7) ** 2), [0.5, 0.75, 0.625], 0.75),
            (lambda w: -((w - 0.5) ** 2) + w / 100, [0.5, 0.75, 0.625], 0.5),
            (lambda w: -((w - 0.5) ** 2), [0.5, 0.25, 0.375], 0.5),  # as good on both sides: the smaller
        ],
        ids=["tuned", "base", "0.3", "0.7", "half, then up", "half, then down"],
    )
    def test_half_first_then_toward_the_better_side(self, curve, asked, weight):
        order, choice = self.search(curve)
        assert (order, choice.weight, choice.undecided) == (asked, weight, "")

    @pytest.mark.parametrize(
        ("limit", "asked", "weight"),
        [(0.8, [0.5, 0.75, 0.875], 0.75), (0.3, [0.5, 0.25, 0.375], 0.25), (0.0, [0.5, 0.25, 0.125], 0.125)],
    )
    def test_the_limit_of_the_guard_is_looked_for(self, limit, asked, weight):
        order, choice = self.search(lambda w: w, lambda w: 0.5 if w <= limit else 0.4 - w / 10)
        assert (order, choice.weight) == (asked, weight)

    def test_a_dev_set_on_which_weights_tie_ends_it_at_half(self):
        order, choice = self.search(lambda w: 0.7)
        assert (order, choice.weight, bool(choice.undecided)) == ([0.5], 0.5, True)

    def test_given_weights_are_all_scored(self):
        ends = {w: {"dev": around(w)} for w in (0.0, 1.0)}
        scores, choice = _chosen(
            ends, lambda weights: {w: {"dev": around(w)} for w in weights}, {"dev": "dev"}, [0.2, 0.9], 0
        )
        assert (list(scores), choice.weight) == ([0.0, 0.2, 0.9, 1.0], 0.9)
        scores, choice = _chosen(ends, lambda weights: {}, {"dev": "dev"}, [1.0], 0)
        assert (list(scores), choice.weight) == ([0.0, 1.0], 1.0)


def test_a_change_holds_the_difference_and_older_records_without_a_p_value_are_read():
    base = around(0.5, 0.1)
    for scores in (base, around(0.52, 0.2), dict.fromkeys(base, 0.6)):
        gap, change = paired_difference(scores, base), _change("dev", "dev", "merged", scores, base)
        assert (change.mean, change.low, change.p_value, change.few) == (gap.mean, gap.low, gap.p_value, gap.few)
        older = {name: value for name, value in asdict(change).items() if name != "p_value"}
        assert TypeAdapter(Change).validate_python(older) == replace(change, p_value=None)


class TestPool:
    """A tuned model that ranks one unjudged, unrelated document first for every query."""

    @pytest.fixture
    def hub(self, student, tmp_path):
        rng = np.random.default_rng(0)
        words = ["stone", "river", "cloud", "horse", "green", "seven", "music", "bread", "glass", "night"]
        others = {f"x{n}": Document("", " ".join(rng.choice(words, 4))) for n in range(300)}
        corpus = {**others, "hub": Document("", "zebra"), **ACTIONS.corpus}
        save_collection(Collection("hub", corpus, ACTIONS.queries, {"dev": ACTIONS.qrels["dev"]}), tmp_path / "hub")
        model = build_encoder(student)
        base = trained_weights(model)
        ((name, table),) = base.items()
        tuned = table.clone()
        rows = model.tokenizer.encode("please zebra", add_special_tokens=False).ids
        # the word that only queries have, and the word of the unrelated document, get one vector
        tuned[rows] = 100 * torch.nn.functional.normalize(torch.ones(table.shape[1]), dim=0)
        return model, base, {name: tuned}, lambda most: load_eval_corpora([Split(tmp_path / "hub", "dev", "dev")], most)

    def test_the_pool_holds_it_and_the_scores_are_those_over_the_corpus(self, hub, monkeypatch, capsys):
        monkeypatch.setattr(Progress, "close", Progress.report)  # a log has a line at the end of the work
        model, base, tuned, watch = hub
        pooled = set_best_weights(model, base, tuned, [0.5, 1.0], watch(130), progress=True)
        assert capsys.readouterr().err.count("(100 %)") == 2, "of both ends, then of the weight between them"
        whole = set_best_weights(model, base, tuned, [0.5, 1.0], watch(None))
        assert pooled.documents["hub"][0] < 130 and whole.documents == {"hub": (421, 421)}
        (corpus,), capped = watch(30), set_best_weights(model, base, tuned, [0.5, 1.0], watch(30)).documents["hub"]
        assert capped == (max(30, len(corpus.pool([]))), 421), "judged documents are never left out"
        for mine, other in zip(pooled.points, whole.points, strict=True):
            assert mine.scores == pytest.approx(other.scores, abs=1e-6), mine.weight
        assert whole.points[-1].scores["hub"] < whole.points[0].scores["hub"]

    @pytest.mark.parametrize("searched", [None, 130])
    def test_embeddings_of_weights_that_were_not_taken_leave_the_store(self, hub, cache_path, searched, monkeypatch):
        model, base, tuned, watch = hub
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # also those of an interrupted merge
            patch.setattr("bixse.training.merge._choose", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
            set_best_weights(model, base, tuned, [0.2, 0.5, 0.8, 1.0], watch(searched))
        taken = set_best_weights(model, base, tuned, [0.2, 0.5, 0.8, 1.0], watch(searched)).weight
        files = {path.stem for path in (cache_path / "embeddings").iterdir()}
        assert taken < 1 and len(files) == 3
        assert embeddings_key(model) in files, "the model is left at the chosen weight"
        for weight in (0.0, 1.0):
            interpolate(model, base, tuned, weight)
            store = EmbeddingStore(model)
            store.encode(list(watch(None)[0].corpus.values()))
            assert store.encoded == 0, "also where the search for the pool encoded them"


class TestTraining:
    def test_the_saved_weights_are_the_formula_and_the_refitted_head_has_the_least_loss_on_the_training_batches(
        self, tiny_model_path, graded_pairs, train_toy
    ):
        tuned, merged = (train_toy(str(m), dev=None, dropout=0.0, merge=m) for m in (None, HALF))
        assert tuned.merge is None and merged.merge.weight == 0.5
        assert_between(weights(merged.model_path), weights(tiny_model_path), weights(tuned.model_path), 0.5)
        model, before = load_relevance_model(merged.model_path), RelevanceHead.load(tuned.model_path)
        assert model.head.trained_prior == pytest.approx(before.trained_prior, abs=0.01)
        dataset = GroupDataset(graded_pairs, 3, 0)
        known = {(g.query, d): z for g in graded_pairs.groups() for d, z in zip(g.documents, g.relevance, strict=True)}
        cosines, targets = [], []
        for numbers in BatchPlan(graded_pairs, 8, 0):
            drawn = [dataset[number] for number in numbers]
            groups = [graded_pairs.groups()[number] for number, _ in drawn]
            documents = list(dict.fromkeys(graded_pairs.documents[row] for _, rows in drawn for row in rows))
            queries = model.encode([group.query for group in groups], normalize_embeddings=True)
            cosines.append((queries @ model.encode(documents, normalize_embeddings=True).T).ravel())
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
        points, changes = result.merge.points, result.merge.changes
        assert [point.weight for point in points] == [0.0, 0.5, 1.0], "ten dev queries choose nothing: no search"
        guard = {p.weight: p.scores["collection/guard"] for p in points}
        assert result.merge.undecided and any(result.merge.undecided in warning for warning in result.warnings)
        assert result.merge.weight == 0.5 and guard.keys() == {0.0, 0.5, 1.0}
        assert list(result.merge.unresolved) == ["collection/guard"], "five queries"
        assert {(change.role, change.model) for change in changes} == {
            (role, model) for role in ("dev", "guard") for model in ("tuned", "merged")
        }
        for change in changes:
            assert change.low is None and (change.few or change.mean == 0), "five and ten queries"
        card = (result.model_path / "README.md").read_text()
        assert all(line in card for line in result.merge.lines())
        assert train_guarded().merge == result.merge

    def test_a_run_interrupted_by_ctrl_c_before_it_was_merged_is_merged_the_same(self, guarded, train_both_ways):
        settings = guarded(merge={"weights": [0.4, 0.8]})
        whole = train_both_ways(settings, "model/relevance_head.json", step=8)  # the last step
        assert whole.merge.weight in (0.4, 0.8)

    @pytest.mark.slow
    def test_a_run_killed_before_it_was_merged_is_merged_the_same(self, monkeypatch, train_guarded):
        whole = train_guarded("whole")
        with monkeypatch.context() as patch, pytest.raises(InterruptedRunError):
            patch.setattr(
                "bixse.training.recipe.set_best_weights", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            train_guarded("killed")
        again = train_guarded("killed")
        assert again.merge == whole.merge
        names = ("model.safetensors", "relevance_head.json")
        assert all((again.model_path / n).read_bytes() == (whole.model_path / n).read_bytes() for n in names)

    @pytest.mark.slow
    def test_adapters_are_scaled(self, decoder_path, tmp_path, train_toy):
        path = decoder_path("llama")
        learning = {"learning_rate": 1e-2, "num_train_epochs": 1}
        settings = {"dev": None, "dropout": 0.0, "lora": {"rank": 4}, "optimizer": learning}
        tuned = train_toy("tuned", model=path, **settings, merge=None)
        merged = train_toy("merged", model=path, **settings, merge=HALF)
        base = dict(build_encoder(path).named_parameters())
        ends = dict(build_encoder(tuned.model_path).named_parameters())
        for name, value in build_encoder(merged.model_path).named_parameters():
            start = base.get(name, ends[name])  # the map of `standardise` is no part of the bare decoder
            torch.testing.assert_close(value, (start + ends[name]) / 2, rtol=1e-4, atol=1e-6)
        whole, adapters = (load_relevance_model(tmp_path / "merged" / part) for part in ("model", "adapter"))
        texts = ["copy the file", "move a folder"]
        np.testing.assert_allclose(whole.encode(texts), adapters.encode(texts), atol=1e-4)


class TestModelsThatExist:
    @pytest.fixture(scope="class")
    def tuned(self, run_config, tmp_path_factory):
        """Two models trained from the tiny one with other seeds."""
        folder, short = tmp_path_factory.mktemp("tuned"), {"num_train_epochs": 1}
        configs = [run_config(dev=None, merge=None, seed=seed, optimizer=short) for seed in (0, 1)]
        return [train_into(config, folder / str(config.seed), progress=False).model_path for config in configs]

    def test_a_bare_decoder_gets_the_map_of_the_model_that_was_trained_from_it(self, decoder_path, tmp_path, train_toy):
        path, texts = decoder_path("llama"), ["copy the file", "move a folder"]
        tuned = train_toy(model=path, dev=None, merge=None, optimizer={"max_steps": 2}).model_path
        ends = [merged([path, tuned], tmp_path / str(w), weights=[1 - w, w]).model_path for w in (0.0, 1.0)]
        base, trained, *mixed = (build_encoder(folder, device="cpu") for folder in (path, tuned, *ends))
        base.append(trained[-1])
        for model, mix in zip((base, trained), mixed, strict=True):
            np.testing.assert_allclose(mix.encode(texts), model.encode(texts), atol=1e-5)

    def test_given_weights(self, tiny_model_path, tuned, tmp_path):
        first = merged([tiny_model_path, tuned[0]], tmp_path / "out", weights=[0.25, 0.75])
        assert_between(weights(first.model_path), weights(tiny_model_path), weights(tuned[0]), 0.75)
        assert build_encoder(first.model_path).head is None and first.warnings
        again = merged([tiny_model_path, tuned[0]], tmp_path / "out", weights=[0.25, 0.75])
        assert again.reused and again.result == first.result
        assert first.result.given == (0.25, 0.75)
        with pytest.raises(OutputExistsError):
            merged([tiny_model_path, tuned[0]], tmp_path / "out", weights=[0.5, 0.5])

    @pytest.mark.parametrize("weight", [0.5, 1.0])
    def test_a_weight_that_mixes_nothing_keeps_the_head(
        self, guarded_collection, tiny_model_path, tuned, tmp_path, weight
    ):
        chosen = {"dev": [guarded_collection], "candidates": [weight]}
        result = merged([tiny_model_path, tuned[0]], tmp_path / "out", **chosen)
        head = build_encoder(result.model_path).head
        assert (head is not None, any("head" in line for line in result.warnings)) == (weight == 1, weight != 1)
        if weight == 1:
            assert head == build_encoder(tuned[0]).head

    def test_prompts_and_instructions_are_those_of_the_tuned_models(self, tiny_model, tiny_model_path, tmp_path):
        set_instructions(tiny_model, Instructions(default="list"))
        save_whole(tiny_model, tmp_path / "tuned")
        result = merged([tiny_model_path, tmp_path / "tuned"], tmp_path / "out", weights=[0.5, 0.5])
        model = build_encoder(result.model_path)
        assert (model.instructions, model.prompts) == (tiny_model.instructions, tiny_model.prompts)
        with pytest.raises(ModelError, match="prompts"):
            merged([tiny_model_path, tmp_path / "tuned", tiny_model_path], tmp_path / "two", weights=[0, 0.5, 0.5])

    def test_the_verb_chooses_a_soup_on_dev_with_its_head(
        self, guarded_collection, actions, tiny_model_path, tuned, tmp_path, capsys
    ):
        words = ["merge", tiny_model_path, *tuned, "--dev", guarded_collection]
        words += ["--guard", guarded_collection, "--guard-split", "guard"]
        words += ["--pairs", actions.parent / "pairs.jsonl", "--candidates", 0.4, 0.8, "--out", tmp_path / "out"]
        assert [point["weight"] for point in call(capsys, *words)[1]["metrics"]["points"]] == [0.0, 0.4, 0.8, 1.0]
        record = json.loads((tmp_path / "out" / "run.json").read_text())
        model, weight = tmp_path / "out" / "model", record["results"]["merge"]["weight"]
        first, second = (weights(path) for path in tuned)
        mean = {name: (value + second[name]) / 2 for name, value in first.items()}
        assert_between(weights(model), weights(tiny_model_path), mean, weight)
        assert weight in (0.4, 0.8)
        assert load_relevance_model(model).relevance("copy the file", ["copy file"])[0] > 0


class TestOfARun:
    """The folder of a run of training in the place of the models."""

    @pytest.fixture
    def run(self, guarded, tmp_path):
        """Trains into a folder by the name, short; the record says what a run stands for."""

        def train(name, **changes):
            settings = {"merge": {"weights": [0.4]}, "optimizer": {"num_train_epochs": 1}, **changes}
            return train_into(guarded(**settings), tmp_path / name, progress=False).model_path.parent

        return train

    @pytest.mark.parametrize(
        "change",
        [{"command": "evaluate"}, {"config": {"model": "in memory"}}, {"results": {"merge": {"weight": 0.0}}}],
        ids=["command", "memory", "base"],
    )
    def test_a_run_without_two_models_is_refused(self, tiny_model_path, tmp_path, change):
        folder = tmp_path / "run"
        shutil.copytree(tiny_model_path, folder / "model")
        record = {
            "fingerprint": "",
            "status": "finished",
            "started": "",
            "command": "train",
            "inputs": {},
            "timings": {},
        }
        record |= {"config": {"model": str(tiny_model_path)}, "results": {}, **change}
        (folder / "run.json").write_text(json.dumps(record))
        with pytest.raises(InputError) as caught:
            merged([folder], tmp_path / "out", dev=["dev"])
        assert caught.value.where == str(folder) and "`bixse" in caught.value.got
        with pytest.raises(InputError):
            merged([tmp_path / "nothing"], tmp_path / "out", dev=["dev"])
        with pytest.raises(InputError):
            merge("demo", dev="nothing")
        assert not (tmp_path / "out").exists()

    def test_its_models_collections_and_pairs_are_those_of_the_run(self, run, capsys, tmp_path, tiny_model_path):
        folder = run("kept", merge={"weights": [0.4], "keep_tuned": True})
        words = ["merge", folder, "--guard-tolerance", 0.5, "--candidates", 0.8, "--out", tmp_path / "again"]
        metrics = call(capsys, *words)[1]["metrics"]
        assert (metrics["weight"], metrics["tolerance"]) == (0.8, 0.5)
        assert {change["role"] for change in metrics["changes"]} == {"dev", "guard"}
        assert_between(weights(tmp_path / "again" / "model"), weights(tiny_model_path), weights(folder / "tuned"), 0.8)
        assert build_encoder(tmp_path / "again" / "model").head is not None, "fitted to the pairs of the run"

    def test_other_settings_than_those_of_the_run_win(self, run, tmp_path, actions):
        folder = run("run", guard_tolerance=0.3, trust_remote_code=True)
        config = MergeModelsConfig.load(None, {"models": [str(folder)], "dev": [str(actions)], "documents": 7})
        assert (config.dev, config.dev_split, config.documents) == ((actions,), "dev", 7)
        assert config.guard_split == "guard" and len(config.guard) == 1
        assert not config.trust_remote_code, "a folder does not decide that code is run"
        other = MergeModelsConfig.load(None, {"models": [str(folder)], "guard": [str(actions)]})
        assert (other.guard, other.guard_split, other.guard_tolerance) == ((actions,), "test", 0.3)
        shares = MergeModelsConfig.load(None, {"models": [str(tmp_path / "run")], "weights": [0.3, 0.7]})
        assert (shares.dev, shares.guard, shares.weights) == ((), (), (0.3, 0.7))

    def test_a_merge_is_undone_and_told_from_that_of_the_merged_model(
        self, run, guarded_collection, tmp_path, tiny_model_path
    ):
        folder, tuned = run("run"), run("tuned", merge={"weights": [1.0]})
        again = merge(folder, candidates=[0.8], out=tmp_path / "again")
        assert again.weight == 0.8 and len(again.result.changes) == 4
        base, end = weights(tiny_model_path), weights(tuned / "model")
        assert_between(weights(tmp_path / "again" / "model"), base, end, 0.8)
        with pytest.raises(OutputExistsError, match="tuned_share"):
            merge(tiny_model_path, folder / "model", dev=guarded_collection, candidates=[0.8], out=tmp_path / "again")

    def test_the_last_checkpoint_of_an_unfinished_run(self, guarded, train_interrupted, tmp_path):
        train_interrupted(guarded(evaluations_per_epoch=2), tmp_path / "cut", step=3)
        config = MergeModelsConfig.load(None, {"models": [str(tmp_path / "cut")]})
        assert config.models[1] == str(tmp_path / "cut" / "checkpoints" / "checkpoint-3") and config.tuned_share == 1
        assert merge_into(config, tmp_path / "out").result.weight == 0.5


class TestEarlierDefault:
    """Runs whose record holds ten weights, the default of earlier versions."""

    TEN: ClassVar = [*(step / 10 for step in range(1, 10)), 1]

    def test_a_finished_training_is_reused_and_the_opposite_is_refused(self, train_guarded):
        train_guarded(merge={"weights": self.TEN})
        again = train_guarded()
        assert again.reused and len(again.merge.points) == 11
        train_guarded("searched")
        with pytest.raises(OutputExistsError, match=r"merge\.weights"):
            train_guarded("searched", merge={"weights": self.TEN})
        with pytest.raises(OutputExistsError, match=r"merge\.weights"):
            train_guarded("searched", merge={"weights": self.TEN[1:]})

    def test_an_interrupted_training_is_continued_with_a_search(self, guarded, train_interrupted, tmp_path):
        train_interrupted(guarded(merge={"weights": self.TEN}), tmp_path / "out")
        result = train_into(guarded(), tmp_path / "out", progress=False)
        assert [point.weight for point in result.merge.points] == [0.0, 0.5, 1.0]

    def test_a_finished_merge_is_reused(self, tiny_model_path, actions, tmp_path):
        models = [tiny_model_path, tiny_model_path]
        merged(models, tmp_path / "out", dev=[str(actions)], candidates=self.TEN)
        assert merged(models, tmp_path / "out", dev=[str(actions)]).reused
        with pytest.raises(OutputExistsError, match="candidates"):
            merged(models, tmp_path / "out", dev=[str(actions)], candidates=[0.5, 1])


def test_the_ends_are_the_models_themselves_to_the_last_bit(tiny_model, tmp_path):
    base = trained_weights(tiny_model)
    next(iter(base.values())).view(-1)[0] = -0.0
    other = {name: torch.randn_like(value) for name, value in base.items()}
    next(iter(other.values())).view(-1)[1] = -0.0
    for weight, end in ((0.0, base), (1.0, other)):
        interpolate(tiny_model, base, other, weight)
        for name, value in tiny_model.named_parameters():
            assert value.detach().numpy().tobytes() == end[name].numpy().tobytes()
