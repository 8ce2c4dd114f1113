import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from bixse.data.graded_pairs import Pairs
from bixse.encoders.embedding import number_of_texts
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError, ModelError
from bixse.evaluation.statistics import mean_difference
from bixse.lab.studies.study import ClaimResult, Contrast, above, crossed_interval, key_of, measure
from bixse.lab.studies.study_inputs import transformed
from bixse.losses.base import identical_texts, tokens_without_padding


def table(seeds, queries, shift=0.0, seed=0):
    values = np.random.default_rng(seed).uniform(0.2, 0.6, (seeds, queries)) + shift
    return {number: {f"c/q{q}": float(values[number, q]) for q in range(queries)} for number in range(seeds)}


A, B = key_of({"loss": "a"}), key_of({"loss": "b"})
A_ABOVE_B = above("a above b", {"loss": "a"}, {"loss": "b"})


class TestMeasure:
    def test_the_mean_is_that_of_the_differences_over_the_seeds_that_all_have(self):
        arms = {A: table(4, 40, 0.1), B: {seed: row for seed, row in table(4, 40, seed=1).items() if seed != 1}}
        claim = measure(A_ABOVE_B, arms)
        means = [np.mean([list(figures[seed].values()) for seed in (0, 2, 3)]) for figures in arms.values()]
        assert claim.difference.mean == pytest.approx(means[0] - means[1])
        assert claim.seeds == 3

    @pytest.mark.parametrize(
        ("seeds", "shift", "finding"),
        [(4, 0.3, "reproduced"), (4, -0.3, "contradicted"), (4, 0.0, "not shown"), (2, 0.5, "not shown")],
    )
    def test_the_finding_follows_from_interval_and_seeds(self, seeds, shift, finding):
        assert measure(A_ABOVE_B, {A: table(seeds, 50, shift), B: table(seeds, 50, seed=1)}).finding == finding
        explained = measure(A_ABOVE_B, {A: table(seeds, 50, shift), B: table(seeds, 50, seed=1)}).explained
        assert explained.startswith(finding) and (explained == finding) == (finding != "not shown")

    def test_few_queries_cannot_tell(self):
        claim = measure(A_ABOVE_B, {A: table(4, 12, 0.3), B: table(4, 12, seed=1)})
        assert claim.finding == "cannot tell" and "12 queries" in claim.explained

    def test_a_system_without_training_counts_for_every_seed(self):
        assert measure(A_ABOVE_B, {A: table(3, 30, 0.2), B: {7: table(1, 30)[0]}}, {B}).seeds == 3

    def test_a_trained_arm_with_one_seed_left_does_not_stand_for_all(self):
        claim = measure(A_ABOVE_B, {A: table(3, 50, 0.2), B: {2: table(3, 50, seed=1)[2]}})
        assert (claim.seeds, claim.finding) == (1, "not shown")
        assert "1 seed" in claim.explained
        assert measure(A_ABOVE_B, {A: {0: table(1, 30)[0]}, B: {2: table(3, 30)[2]}}).difference is None

    def test_an_arm_without_figures_gives_no_figures(self):
        claim = measure(A_ABOVE_B, {A: table(2, 30)})
        assert claim == ClaimResult("a above b", None, 0)
        assert claim.finding == "no figures"

    def test_arms_on_other_queries_are_refused(self):
        with pytest.raises(InputError, match="expected the same queries"):
            measure(A_ABOVE_B, {A: table(2, 30), B: table(2, 31)})

    def test_a_difference_of_differences(self):
        shifts = {("a", 0): 0.3, ("a", 1): 0.2, ("b", 0): 0.3, ("b", 1): 0.0}
        arms = {key_of({"loss": loss, "noise": p}): table(2, 40, shift) for (loss, p), shift in shifts.items()}
        weights = {("a", 1): 1.0, ("a", 0): -1.0, ("b", 1): -1.0, ("b", 0): 1.0}
        terms = tuple(({"loss": loss, "noise": p}, weight) for (loss, p), weight in weights.items())
        assert measure(Contrast("a loses less", terms), arms).difference.mean == pytest.approx(0.2)


class TestCrossedInterval:
    @pytest.mark.parametrize("seeds", [3, 8])
    @pytest.mark.parametrize("chance", [(0.5, 0.1), (0.02, 1.0), (0.15, 1.0)])
    def test_it_covers_the_truth_with_few_seeds(self, seeds, chance):
        generator = np.random.default_rng(seeds)
        by_seed, by_query = chance
        covered = 0
        for _ in range(400):
            values = generator.normal(0, by_seed, (seeds, 1)) + generator.normal(0, by_query, (1, 50))
            interval = crossed_interval(values + generator.normal(0, 0.5, (seeds, 50)), [0] * 50)
            covered += interval.low <= 0 <= interval.high
        assert covered / 400 >= 0.92

    def test_one_seed_is_the_interval_over_queries(self):
        values = np.random.default_rng(1).gamma(0.5, 1, (1, 40))
        interval, expected = crossed_interval(values, [0] * 40), mean_difference([values[0]], [1.0])
        found = (interval.low, interval.high, interval.p_value)
        assert found == pytest.approx((expected.low, expected.high, expected.p_value))

    def test_one_seed_on_two_collections_is_the_interval_of_a_comparison(self):
        first, second = np.random.default_rng(3).gamma(0.5, 1, 100), np.full(30, 0.3)  # a small one without scatter
        interval = crossed_interval(np.concatenate([first, second])[None], [0] * 100 + [1] * 30)
        assert astuple(interval) == pytest.approx(astuple(mean_difference([first, second], [0.5, 0.5])))

    def test_collections_count_alike(self):
        generator = np.random.default_rng(2)
        first, second = generator.random(60), generator.random(6)
        interval = crossed_interval(np.concatenate([first, second])[None], [0] * 60 + [1] * 6)
        assert interval.mean == pytest.approx((first.mean() + second.mean()) / 2)
        equal = crossed_interval(np.array([[1.0] * 60 + [0.0] * 6]), [0] * 60 + [1] * 6)
        assert (equal.low, equal.mean, equal.verdict) == (None, 0.5, "cannot tell")

    @pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 1)), np.array([[0.1, math.nan]]), np.zeros(4)])
    def test_unusable_tables_are_refused(self, values):
        with pytest.raises(InputError, match="interval"):
            crossed_interval(values, [0] * values.shape[-1])


QUERIES, DOCUMENTS = 40, 10
"""Document d of a query has relevance d / 10, and query 0 has only two documents."""


def test_the_student_knows_words_and_frequent_tokens_have_little_weight(student):
    model = SentenceTransformer(str(student))
    cat, kitten, engine = model.encode(["a cat", "the kitten", "an engine"], normalize_embeddings=True)
    assert cat.shape == (16,)
    assert cat @ kitten > cat @ engine
    the, archive = np.linalg.norm(model.encode(["the", "archive"]), axis=1)
    assert the < archive / 3


def test_tokens_of_texts_in_one_row_are_separated(student):
    features = SentenceTransformer(str(student)).preprocess(["copy a file", "copy", "copy a file"])
    assert number_of_texts(features) == 3
    assert tokens_without_padding(features).shape == (3, 3)
    first, index = identical_texts(features)
    assert first.tolist() == [0, 1] and index.tolist() == [0, 1, 0]
    empty = {"input_ids": torch.tensor([5, 6]), "offsets": torch.tensor([0, 0, 2])}
    assert tokens_without_padding(empty).tolist() == [[-1, -1], [5, 6], [-1, -1]]


@pytest.mark.parametrize("options", [{}, {"max_length": 8}, {"pooling": "cls"}, {"bidirectional": True}])
def test_a_static_encoder_of_a_static_encoder_and_options_of_transformers_are_refused(student, options):
    with pytest.raises(ModelError):
        build_encoder(f"static:{student}", **options)


@pytest.fixture(scope="module")
def pairs():
    return Pairs.from_rows(
        {"query_id": f"q{q}", "query": f"query {q}", "document_id": f"d{d}", "document": f"text {d}",
         "relevance": d / 10}
        for q in range(QUERIES) for d in range(2 if q == 0 else DOCUMENTS)
    )  # fmt: skip


def labels_of(pairs):
    return {
        (group.query_id, document): float(relevance)
        for group in pairs.groups()
        for document, relevance in zip(group.document_ids, group.relevance, strict=True)
    }


def test_labels_per_query_draw_documents_of_each_query(pairs):
    drawn = transformed(pairs, {"labels_per_query": 4}, seed=0)
    assert sorted(len(group.documents) for group in drawn.groups()) == [2] + [4] * (QUERIES - 1)
    assert labels_of(drawn).items() <= labels_of(pairs).items()
    assert labels_of(drawn) != labels_of(transformed(pairs, {"labels_per_query": 4}, seed=1))
    assert labels_of(transformed(pairs, {"labels_per_query": None}, seed=0)) == labels_of(pairs)


def test_a_budget_of_labels_draws_fewer_queries(pairs):
    drawn = transformed(pairs, {"labels_per_query": 4, "labels": 20}, seed=0)
    assert len(drawn) == 20 and 5 <= len(drawn.groups()) <= 6
    with pytest.raises(InputError, match="158"):  # 2 + 39 * 4
        transformed(pairs, {"labels_per_query": 4, "labels": 200}, seed=0)


def test_noise_hits_the_same_queries_for_any_number_of_labels(pairs):
    def hit(settings):
        clean, noisy = (labels_of(transformed(pairs, {**settings, "noise": share}, seed=3)) for share in (0, 0.5))
        return {query for query, document in clean if clean[query, document] != noisy[query, document]}

    assert hit({"labels_per_query": 4}) == hit({}) != set()


def test_a_static_encoder_reads_the_whole_text():
    model = build_encoder("static:demo", device="cpu")
    first, second = (model.encode(f"{'cat ' * 600}{end}") for end in ("engine", "archive"))
    assert np.abs(first - second).max() > 0
