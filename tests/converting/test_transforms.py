import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit

from bixse.converting.score_scale import ScoreMap, check_scores, looks_like, map_scores, parse_score_map
from bixse.converting.transforms import PairColumns, TransformReport, split_by_query, transformed
from bixse.data.draws import check_shares
from bixse.data.graded_pairs import Pairs
from bixse.errors import InputError
from bixse.relevance import GradeScale


def of_queries(pairs, names):
    return pairs.select(np.array([name in names for name in pairs.query_ids], dtype=bool))


def divided(pairs, shares, seed=0):
    parts = split_by_query(PairColumns.of(pairs, ["query"]), shares, seed)
    return {name: part.selected(pairs) for name, part in parts.items()}


def graded(queries, documents=3, seed=0):
    """Queries of two tasks with graded documents; grades and probabilities say which row they are from."""
    generator = np.random.default_rng(seed)
    return Pairs.from_rows(
        {"query_id": f"q{i}", "query": f"query {i}", "document_id": f"d{i}-{j}", "document": f"document {i} {j}",
         "relevance": float(generator.random()), "task": "a" if i % 3 else "b", "grade": float(i * 100 + j),
         "grade_probs": [float(i), float(j)], "judge": "somebody"}
        for i in range(queries) for j in range(documents)
    )  # fmt: skip


def content(pairs):
    return sorted(tuple(map(str, row.values())) for row in pairs.rows())


def shuffled(pairs, seed=1):
    rows = list(pairs.rows())
    return Pairs.from_rows(rows[i] for i in np.random.default_rng(seed).permutation(len(rows)))


def pairs_of(pairs):
    return set(zip(pairs.query_ids, pairs.document_ids, strict=True))


def test_rows_from_the_cutoff_up_stay_in_order_or_become_1():
    pairs, record = graded(50), list[TransformReport]()
    rest = transformed(pairs, record, cutoff=0.7)
    assert list(rest.rows()) == [row for row in pairs.rows() if row["relevance"] >= 0.7]
    assert record == [TransformReport("cutoff", {"cutoff": 0.7}, 150, len(rest))]
    binary = transformed(pairs, binarise=0.4)
    assert binary.relevance.tolist() == [float(value >= 0.4) for value in pairs.relevance]
    assert binary.extra["grade"] == pairs.extra["grade"]
    relevance = GradeScale(1, 5).to_relevance(4.6)
    assert relevance < 0.9, "a grade at the cutoff, rounded"
    pairs = Pairs.from_rows([{"query": "q", "document": "d", "relevance": relevance}])
    assert len(transformed(pairs, cutoff=0.9)) == transformed(pairs, binarise=0.9).relevance[0] == 1


class TestLabelNoise:
    def test_best_and_worst_exchange_relevance_grade_and_probabilities(self):
        pairs = graded(40)
        noisy = transformed(pairs, noise=1.0, seed=3)
        for before, after in zip(pairs.groups(), noisy.groups(), strict=True):
            assert after.documents == before.documents
            expected = list(before.relevance)
            low, high = np.argmin(expected), np.argmax(expected)
            expected[low], expected[high] = expected[high], expected[low]
            assert after.relevance == expected
        labels = {row["grade"]: (row["relevance"], row["grade_probs"]) for row in pairs.rows()}
        for row in noisy.rows():
            assert labels[row["grade"]] == (row["relevance"], row["grade_probs"])

    def test_hit_queries_are_nested_and_about_as_many_as_asked_for(self):
        pairs = graded(2000, 2)

        def hit(probability, seed=0):
            noisy = transformed(pairs, noise=probability, seed=seed)
            return set(np.flatnonzero(noisy.relevance != pairs.relevance).tolist())

        few, more, all_of_them = hit(0.1), hit(0.3), hit(1.0)
        assert few < more < all_of_them
        assert not hit(0.0)
        assert len(few) == pytest.approx(400, abs=100)
        assert len(more) == pytest.approx(1200, abs=130)
        assert hit(0.3, seed=1) != more

    def test_other_queries_do_not_matter(self):
        pairs = graded(60)
        some = {f"q{i}" for i in range(0, 60, 7)}
        alone = transformed(of_queries(pairs, some), noise=0.5, seed=2)
        assert content(alone) == content(of_queries(transformed(pairs, noise=0.5, seed=2), some))

    def test_ties_are_drawn_by_the_seed(self):
        rows = [{"query": "q", "document": f"d{i}", "relevance": float(i == 0)} for i in range(20)]
        pairs = Pairs.from_rows(rows)
        swapped = {int(np.argmax(transformed(pairs, noise=1.0, seed=seed).relevance)) for seed in range(30)}
        assert 0 not in swapped
        assert len(swapped) > 5

    def test_queries_with_nothing_to_swap_are_counted(self):
        rows = [{"query": f"q{i}", "document": f"d{j}", "relevance": 1.0} for i in range(10) for j in range(2)]
        rows += [{"query": "both", "document": f"d{j}", "relevance": float(j)} for j in range(2)]
        record = []
        transformed(Pairs.from_rows(rows), record, noise=1.0, seed=0)
        assert record[0].notes == {"queries": 11, "hit": 11, "swapped": 1, "equal": 10}


class TestSampled:
    def test_the_size_is_exact_and_strata_are_in_proportion(self):
        pairs = graded(700)
        found = transformed(pairs, size=500, seed=1)
        assert len(found) == 500
        assert pairs_of(found) <= pairs_of(pairs)

        def strata(table):
            bins = np.minimum(np.floor(table.relevance * 10 + 1e-9), 9).astype(int).tolist()
            return Counter(zip(table.extra["task"], bins, strict=True))

        before, after = strata(pairs), strata(found)
        for stratum, count in before.items():
            assert abs(after[stratum] - count * 500 / 2100) <= 1.0

    def test_a_smaller_sample_is_part_of_a_larger_one(self):
        pairs = graded(60)
        samples = [pairs_of(transformed(pairs, size=size, seed=4)) for size in (1, 2, 3, 10, 50, 51, 100, 179, 180)]
        assert all(small < large for small, large in itertools.pairwise(samples))


class TestSplitByQuery:
    SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}  # noqa: RUF012

    def test_parts_share_no_query_text_and_hold_every_row(self):
        rows = list(graded(500).rows())
        rows += [
            {**row, "query_id": f"again {row['query_id']}", "query": f" QUERY  {row['query'][6:]}"} for row in rows
        ]
        parts = divided(Pairs.from_rows(rows), self.SHARES, seed=0)
        texts = {name: {" ".join(text.lower().split()) for text in part.queries} for name, part in parts.items()}
        assert sum(len(part) for part in parts.values()) == len(rows)
        assert len(set.union(*texts.values())) == sum(map(len, texts.values())) == 500
        assert len(texts["train"]) == pytest.approx(400, abs=40)

    def test_a_query_keeps_its_part_when_rows_are_added_or_shuffled(self):
        large = divided(graded(300), self.SHARES, seed=1)
        small = divided(shuffled(graded(40)), self.SHARES, seed=1)
        for name, part in small.items():
            assert pairs_of(part) == {pair for pair in pairs_of(large[name]) if int(pair[0][1:]) < 40}


def test_duplicates_have_one_row_with_the_mean_and_without_a_grade_nobody_gave():
    rows = [
        {"query": "Copy", "document": "a", "relevance": 1.0, "grade": 3.0, "task": "t"},
        {"query": "copy ", "document": "A", "relevance": 0.5, "grade": 2.0, "task": "t"},
        *[{"query": "copy", "document": "b", "relevance": 0.5, "grade": 2.0, "task": "t"}] * 2,
        {"query": "copy", "document": "b", "relevance": 0.0, "grade": 0.0, "task": "other"},
    ]
    record = []
    once = transformed(Pairs.from_rows(rows), record, dedup=True)
    assert [(row["query"], row["document"], row["relevance"], row["grade"]) for row in once.rows()] == [
        ("Copy", "a", 0.75, None), ("copy", "b", 0.5, 2.0), ("copy", "b", 0.0, 0.0),
    ]  # fmt: skip
    assert record == [TransformReport("dedup", {}, 5, 3, {"repeated": 2, "disagreeing": 1})]
    values = np.random.default_rng(0).random(50).tolist()
    pairs = Pairs.from_rows({"query": "q", "document": "d", "relevance": value} for value in values)
    (mean,) = {float(transformed(shuffled(pairs, seed), dedup=True).relevance[0]) for seed in range(5)}
    assert mean == pytest.approx(np.mean(values)), "in any order of the rows"


ROWS = st.lists(
    st.tuples(st.sampled_from("ABc"), st.sampled_from("xyz"), st.sampled_from([None, "s", "t"]), st.floats(0, 1)),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@example([], 0.5, 0, 0.5)
@given(rows=ROWS, probability=st.floats(0, 1), seed=st.integers(0, 2**32 - 1), cutoff=st.floats(0, 1))
def test_invariants_of_any_table(rows, probability, seed, cutoff):
    pairs = Pairs.from_rows(
        {"query": query, "document": document, "task": task, "relevance": relevance}
        for query, document, task, relevance in rows
    )
    once = transformed(pairs, dedup=True)
    assert len(once) == len({(query.lower(), document, task) for query, document, task, _ in rows})
    assert bool(((once.relevance >= 0) & (once.relevance <= 1)).all())
    noisy = transformed(once, noise=probability, seed=seed)
    assert sorted(noisy.relevance) == sorted(once.relevance)
    assert len(transformed(noisy, size=1 + len(noisy) // 3, seed=seed)) == min(1 + len(noisy) // 3, len(noisy))
    assert (transformed(noisy, cutoff=cutoff).relevance >= cutoff - 1e-9).all()
    parts = divided(noisy, {"a": 0.5, "b": 0.5}, seed)
    assert len(parts["a"]) + len(parts["b"]) == len(noisy)


@pytest.mark.parametrize("transform", [{"noise": 0.5, "seed": 2}, {"size": 70, "seed": 5}, {"dedup": True}], ids=repr)
def test_order_of_rows_does_not_matter(transform):
    pairs = graded(60)
    assert content(transformed(shuffled(pairs), **transform)) == content(transformed(pairs, **transform))


OUT_OF_RANGE = [
    (lambda cutoff: transformed(graded(3), cutoff=cutoff), -0.1, 1.1, math.nan, math.inf),
    (lambda threshold: transformed(graded(3), binarise=threshold), -0.1, math.nan),
    (lambda size: transformed(graded(3), size=size), 0, -1, 10),
    (lambda seed: transformed(graded(3), noise=0.1, seed=seed), -1, 2**32),
    (lambda seed: transformed(graded(3), size=1, seed=seed), -1, 2**32),
    (lambda seed: check_shares({"a": 1.0}, seed), -1, 2**32),
    (lambda shares: check_shares(shares, 0), {}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": 0.5, "b": math.nan}),
]


@pytest.mark.parametrize(("make", "value"), [(make, value) for make, *values in OUT_OF_RANGE for value in values])
def test_values_out_of_range_are_refused(make, value):
    with pytest.raises(InputError):
        make(value)


@pytest.mark.parametrize(
    "text",
    ["minmax", "min-max", "MinMax", "auto", "", "sigmoid", "precent", "percent:2", "platt", "platt:", "platt:1",
     "platt:1,2,3", "platt:a,b", "platt:0,1", "platt:-1,0", "platt:nan,0", "platt:inf,0", "platt:1,inf"],
)  # fmt: skip
def test_unknown_maps_are_refused(text):
    with pytest.raises(InputError):
        parse_score_map(text)


@pytest.mark.parametrize("text", ["prob", "percent", "logit", "platt:0.25,-3.5", "binary"])
def test_written_map_is_read_back(text):
    assert str(parse_score_map(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e308, 1e308), st.floats(0.01, 50), st.floats(-50, 50))
def test_sigmoids_agree_with_scipy_at_every_size(score, slope, intercept):
    scores = np.array([score])
    with np.errstate(over="ignore"):
        expected = expit(slope * scores + intercept)
    assert map_scores(scores, ScoreMap("platt", slope, intercept)) == pytest.approx(expected, rel=1e-12)
    assert map_scores(scores, ScoreMap("logit")) == pytest.approx(expit(score), rel=1e-12)


def test_rounding_errors_beyond_the_range_are_clipped():
    low, high = ScoreMap("prob").range
    assert -0.01 < low < 0 and 1.0000001 < high < 1.01
    assert map_scores(np.array([1.0000001, 0.5]), ScoreMap("prob")).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("positive", "negative", "looks"),
    [
        ([0.99, 0.7], [0.0, 0.3], "prob"),
        ([1.0, 1.0], [0.0, 0.0], "binary"),
        ([0.8, 0.6], [-0.1, 0.2], "unknown"),  # cosines
        ([98.0, 77.5], [3.0, 41.0], "percent"),
        ([96.6875, 103.5], [83.1875, 90.5], "unknown"),  # of FlagEmbedding's own examples: not 0 to 100
        ([17.25, 9.0], [-0.59, 4.0], "logit"),
        ([500.0], [-500.0], "unknown"),
    ],
)
def test_scale_of_scores_is_recognised(positive, negative, looks):
    assert looks_like(np.array([*positive, *negative]))[0] == looks


REFUSED = object()


@pytest.mark.parametrize(
    ("positive", "negative", "score_map", "warned"),
    [
        ([0.5, 0.5], [0.5], ScoreMap("prob"), REFUSED),
        ([1.0], [0.0], ScoreMap("prob"), REFUSED),
        ([103.5, 96.0], [83.2], ScoreMap("logit"), REFUSED),
        ([103.5, 96.0], [83.2], ScoreMap("platt", 0.5, -46.0), []),
        ([0.9, 0.8], [0.1, 0.2], ScoreMap("logit"), ["look like prob"]),
        ([0.1, 0.3], [0.9, 0.2], ScoreMap("prob"), ["in only 25% of the pairs"]),
    ],
)
def test_scores_without_grades_are_refused_and_strange_scores_warned_of(positive, negative, score_map, warned):
    scores = np.array(positive), np.array(negative)
    if warned is REFUSED:
        with pytest.raises(InputError):
            check_scores(*scores, score_map)
        return
    assert all(part in text for part, text in zip(warned, check_scores(*scores, score_map), strict=True))
