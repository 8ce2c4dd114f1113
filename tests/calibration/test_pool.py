"""The pool of a collection stands for its corpus: draw, weights, fit, thresholds of search results."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bixse import RelevanceModel, calibrate
from bixse.calibration.calibrate_head import ScoredPairs, choose_thresholds, held_out_check
from bixse.calibration.reliability import auc
from bixse.calibration.scored_pairs import draw_pool
from bixse.data.collection import save_collection
from bixse.data.run import open_run
from bixse.encoders.head import RelevanceHead
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError, OutputExistsError
from helpers.command import call, refused
from helpers.toy import action_collection

SLOPE, INTERCEPT = 2.5, -6.0
DOCUMENTS = [f"d{n}" for n in range(2000)]


def relevant_alone(collection=None):
    """Return a collection whose judgements name relevant documents alone."""
    given = collection or action_collection()
    qrels = {
        split: {query: {name: grade for name, grade in row.items() if grade} for query, row in rows.items()}
        for split, rows in given.qrels.items()
    }
    return replace(given, qrels=qrels)


@pytest.fixture
def folder(tmp_path):
    save_collection(relevant_alone(), tmp_path / "mine")
    return tmp_path / "mine"


def test_the_pool_has_each_hit_and_judged_document_once_and_weighs_as_much_as_the_corpus():
    qrels = {"a": {"d7": 2.0, "d8": -1.0, "gone": 1.0}, "b": {"d3": 1.0}}
    rankings = [{"a": {"d1": 0.9, "d7": 0.8}, "b": {"d3": 0.7}}, {"a": {"d5": 3.0}}]
    pool = draw_pool(qrels, rankings, DOCUMENTS, number=50)
    for query, hits, results, judged in (
        ("a", {"d1", "d7", "d8", "d5"}, {"d1", "d7"}, {"d7": 1.0}),
        ("b", {"d3"}, {"d3"}, {"d3": 0.5}),
    ):
        rows = [each for each in pool if each.query_id == query]
        names = [each.document_id for each in rows]
        assert len(set(names)) == len(names) == len(hits) + 50
        assert {each.document_id for each in rows if each.weight == 1} == hits
        assert {each.document_id for each in rows if each.is_result} == results
        assert {each.document_id: each.relevance for each in rows if each.relevance} == judged
        assert sum(each.weight for each in rows) == pytest.approx(len(DOCUMENTS))
    assert pool == draw_pool(qrels, rankings, DOCUMENTS, number=50) != draw_pool(qrels, rankings, DOCUMENTS, 1, 50)


def test_a_small_corpus_is_drawn_completely():
    pool = draw_pool({"a": {"d1": 1.0}}, [{"a": {"d2": 0.1}}], DOCUMENTS[:10])
    assert sorted(each.document_id for each in pool) == DOCUMENTS[:10]
    assert {each.weight for each in pool} == {1.0}
    assert len(draw_pool({"a": {"d1": 1.0}}, [{"a": {"d0": 0.1}}], DOCUMENTS[:2])) == 2


def test_weighted_sums_over_pools_have_the_sum_over_the_corpus_as_their_mean():
    values = dict(zip(DOCUMENTS, np.random.default_rng(0).gamma(1.0, size=len(DOCUMENTS)), strict=True))
    best = {name: values[name] for name in sorted(DOCUMENTS, key=values.__getitem__)[-20:]}
    sums = [
        sum(each.weight * values[each.document_id] for each in draw_pool({"a": {"d1": 1}}, [{"a": best}], DOCUMENTS, s))
        for s in range(200)
    ]
    assert np.mean(sums) == pytest.approx(sum(values.values()), abs=4 * np.std(sums) / np.sqrt(200))


def simulated(queries=80, seed=0):
    """Return the pool of queries whose documents are relevant with known probabilities, and the true share."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(queries, len(DOCUMENTS)))
    relevant = generator.random(scores.shape) < 1 / (1 + np.exp(-SLOPE * scores - INTERCEPT))
    other = scores + generator.normal(size=scores.shape)  # a second retriever
    rankings, qrels, of = ({}, {}), {}, {}
    for n in range(queries):
        for run, values in zip(rankings, (scores[n], other[n]), strict=True):
            run[f"q{n}"] = {DOCUMENTS[row]: float(values[row]) for row in np.argsort(-values)[:50]}
        qrels[f"q{n}"] = {DOCUMENTS[row]: 1.0 for row in np.flatnonzero(relevant[n])}
        of[f"q{n}"] = dict(zip(DOCUMENTS, scores[n].tolist(), strict=True))
    pool = draw_pool(qrels, rankings, DOCUMENTS, seed)
    ids, _, relevance, weights, results = map(np.array, zip(*pool, strict=True))
    cosines = np.array([of[each.query_id][each.document_id] for each in pool])
    new = RelevanceHead(1.0, 0.0)
    pairs = ScoredPairs(cosines, relevance, tuple(ids.tolist()), None, 0.5, seed, new, weights, results)
    return pairs, float(relevant.mean())


def test_the_weighted_fit_of_known_probabilities_finds_slope_intercept_and_prior_and_the_plain_one_does_not():
    pairs, share = simulated()
    head = pairs.fit(slice(None), "")
    assert (head.slope, head.intercept) == pytest.approx((SLOPE, INTERCEPT), rel=0.05)
    assert head.prior == pytest.approx(share)
    plain = replace(pairs, weights=None).fit(slice(None), "")
    assert plain.prior > 5 * share and abs(plain.intercept - INTERCEPT) > 0.1 * abs(INTERCEPT)


def test_figures_of_a_pool_are_those_of_its_corpus():
    pairs, share = simulated()
    check = held_out_check(pairs)
    truth = np.random.default_rng(1).normal(size=200_000)
    p = 1 / (1 + np.exp(-SLOPE * truth - INTERCEPT))
    assert check.base_rate == pytest.approx(share, rel=0.1)
    assert check.calibrated.brier == pytest.approx((p * (1 - p)).mean(), rel=0.1)
    low, high = check.calibrated.brier_interval
    assert low < (p * (1 - p)).mean() < high
    positive, negative = p / p.sum(), (1 - p) / (1 - p).sum()
    order = np.argsort(truth)
    assert check.auc.value == pytest.approx((positive[order] * np.cumsum(negative[order])).sum(), abs=0.02)
    assert check.is_useful


def test_the_claimed_precision_is_that_of_the_rankings_of_other_queries():
    differences = []
    for seed in range(12):
        pairs, _ = simulated(60, seed)
        head, (point,) = choose_thresholds(pairs.fit(slice(None), ""), pairs, [0.6])
        assert point.is_reached and point.claimed >= 0.6
        held, ids = pairs.held_out
        above = (head.probability(pairs.cosines[held]) >= point.threshold) & pairs.is_result[held]
        assert point.precision == pytest.approx(pairs.relevance[held][above].mean())
        assert (point.pairs, point.queries) == (above.sum(), len(set(np.array(ids)[above])))
        assert point.recall == pytest.approx(pairs.relevance[held][above].sum() / pairs.relevance[held].sum())
        assert head.thresholds[0].reached == point.precision
        differences.append(point.precision - point.claimed)
    assert abs(np.mean(differences)) < 0.03


def test_a_weight_is_a_number_of_equal_pairs():
    generator = np.random.default_rng(3)
    scores, weights = generator.normal(size=200), generator.integers(1, 5, 200)
    labels = (scores + generator.normal(size=200) > 0).astype(float)
    ids = [str(n % 40) for n in range(200)]
    often = [np.repeat(each, weights) for each in (scores, labels, np.array(ids))]
    assert fit_platt(scores, labels, weights) == pytest.approx(fit_platt(*often[:2]))
    weighted, repeated = auc(scores, labels, ids, weights), auc(*often[:2], often[2].tolist())
    assert weighted[:3] == pytest.approx(repeated[:3], abs=1e-6)
    with pytest.raises(InputError, match="weights: got"):
        fit_platt(scores, labels, -weights)


def test_a_collection_has_one_calibration_in_every_form(tiny_model_path, folder):
    collection = relevant_alone()
    model = RelevanceModel(str(tiny_model_path), device="cpu")
    triple = (collection.queries, collection.corpus, collection.qrels["dev"])
    heads = [calibrate(model, each, anyway=True).head for each in (collection, triple, folder, str(folder))]
    for head in heads:
        assert (head.slope, head.intercept) == pytest.approx((heads[0].slope, heads[0].intercept))
        highest = [sum(row.values()) / 3 for row in collection.qrels["dev"].values()]
        assert head.prior == pytest.approx(np.mean(highest) / len(collection.corpus))
        assert "weighted to a corpus of" in head.calibrated_on
    other = calibrate(model, collection, split="train", anyway=True).head
    assert "30 queries of split 'train'" in other.calibrated_on


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"split": "none"}, "got split 'none'; expected one of"),
        ({"qrels": {"dev": {"q0-0": {"lost": 1}}}}, {}, "corpus lacks"),
        ({"qrels": {"dev": {"q0-0": {"copy-0": 0}}}}, {}, "got no judgement above 0"),
        ({"qrels": {"dev": {"q0-0": {"copy-0": 1}}}}, {}, "got pairs of 1 queries; expected at least 4"),
    ],
)
def test_an_unusable_collection_is_refused(tiny_model_path, change, options, message):
    names = [*action_collection().corpus]
    if "qrels" in change:
        rows = {q: {names[0] if name == "copy-0" else name: g for name, g in row.items()}
                for q, row in change["qrels"]["dev"].items()}  # fmt: skip
        change = {"qrels": {"dev": rows}}
    with pytest.raises(InputError, match=message):
        calibrate(str(tiny_model_path), replace(relevant_alone(), **change), **options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "dev"], "no model with a collection"),
        (["--pairs", "p.csv", "--collection", "mine"], "got pairs and collection; expected one"),
        (["--pairs", "p.csv", "--split", "dev"], "got split without collection"),
        (["--scores", "s.csv", "--scored-by", "m", "--collection", "mine"], "got scores and"),
        (["--collection", "none", "--out", "out"], "got no such folder"),
        (["--collection", "mine", "--split", "none", "--out", "out"], "got split 'none'"),
        (["--config", "old.yaml", "--out", "out"], "--collection DIR without --pairs"),
    ],
)
def test_wrong_settings_of_a_collection_are_refused(capsys, folder, monkeypatch, words, message):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "old.yaml").write_text("pairs: p.csv\ncollection: mine\nnegatives: 3\n")  # of earlier versions
    model = [] if "--scores" in words else ["demo"]
    assert message in refused(capsys, "calibrate", *model, *words)
    assert not (folder.parent / "out").exists()


def test_the_command_states_both_precisions_of_search_results(capsys, tiny_model_path, folder, tmp_path):
    words = (
        "calibrate",
        tiny_model_path,
        "--collection",
        folder,
        "--split",
        "train",
        "--anyway",
        "--at-precision",
        0.02,
    )
    code, envelope = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0, envelope
    (point,) = envelope["metrics"]["thresholds"]
    assert point["claimed"] >= 0.02 and 0 <= point["precision"] <= 1
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["config"]["split"], set(record["inputs"]) & {"corpus.jsonl", "qrels/train.tsv"}) == (
        "train", {"corpus.jsonl", "qrels/train.tsv"},
    )  # fmt: skip
    again = call(capsys, *words, "--out", tmp_path / "out")[1]
    assert again["metrics"] == envelope["metrics"] and "before" in again["warnings"][0]
    with (folder / "qrels" / "train.tsv").open("a") as file:
        file.write("q0-0\tcopy-0\t0\n".replace("copy-0", [*action_collection().corpus][-1]))
    assert "qrels/train.tsv" in refused(capsys, *words, "--out", tmp_path / "out")


def test_a_reranker_scores_the_hits_of_bm25(capsys, tiny_model_path, folder, tmp_path):
    from helpers.rerankers import save_reranker

    save_reranker(tiny_model_path, tmp_path / "reranker")
    code, envelope = call(
        capsys, "calibrate", tmp_path / "reranker", "--collection", folder, "--anyway", "--out", tmp_path / "out"
    )
    assert code == 0, envelope
    assert RelevanceHead.load(tmp_path / "out" / "model").prior < 0.1


def test_pairs_that_are_all_relevant_name_the_cause_and_the_way():
    generator = np.random.default_rng(0)
    scores, ids = generator.normal(size=200), [str(n % 50) for n in range(200)]
    graded = generator.choice([1 / 3, 2 / 3, 1.0], 200)
    calibration = calibrate(scores, graded, queries=ids)
    assert calibration.check.is_relevant_alone and not calibration.helps
    assert "--collection" in calibration.check.fix and "train or change" not in calibration.check.fix
    assert "irrelevant" in calibration.check.finding
    with pytest.raises(InputError, match="--collection"):
        calibration.probability(0.5)
    with pytest.raises(InputError, match="--collection"):
        calibrate(scores, np.ones(200), queries=ids)
    few = np.where(generator.random(200) < 0.05, 0.0, 1.0)
    check = calibrate(scores, few, queries=ids, seed=1).check
    assert "irrelevant document" in check.auc.few and "--collection" in check.fix
    assert not calibrate(scores, (scores > 0).astype(float), queries=ids).check.is_relevant_alone


def test_a_run_with_random_negatives_of_an_earlier_version_is_refused_and_one_without_is_the_same(tmp_path):
    open_run(tmp_path / "drawn", "calibrate", {"negatives": 3, "seed": 0}, {}).save("finished")
    open_run(tmp_path / "plain", "calibrate", {"negatives": None, "seed": 0}, {}).save("finished")
    with pytest.raises(OutputExistsError, match=r"negatives .was 3"):
        open_run(tmp_path / "drawn", "calibrate", {"split": None, "seed": 0}, {})
    assert open_run(tmp_path / "plain", "calibrate", {"split": None, "seed": 0}, {}).status == "finished"
