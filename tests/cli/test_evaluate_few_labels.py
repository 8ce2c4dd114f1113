"""`bixse evaluate --grades --human` on files, unhappy paths first."""

import json
from pathlib import Path

import pytest

from bixse.data.trec import read_qrels
from bixse.errors import InputError
from helpers.command import refused, result_of

SMALL = Path(__file__).parents[1] / "judging" / "audit_labels"
HUMAN, CAREFUL, CARELESS, BM25, DENSE = (
    SMALL / name for name in ("human.qrels.txt", "careful.txt", "careless.txt", "bm25.run", "dense.run")
)


def sampled(path, every=3, **more):
    rows = [(q, d, g) for q, own in read_qrels(HUMAN).items() for d, g in own.items()][::every]
    lines = [json.dumps({"query_id": q, "document_id": d, "grade": g, **more}) for q, d, g in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("missing", ["--human", "--grades"])
def test_both_files_are_needed(capsys, missing):
    words = {"--grades": CAREFUL, "--human": HUMAN}
    words.pop(missing)
    assert "give both" in refused(capsys, "evaluate", BM25, *next(iter(words.items())))


def test_systems_that_would_have_to_search_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected a run file"):
        result_of("evaluate", "bm25", "--grades", CAREFUL, "--human", HUMAN)
    with pytest.raises(InputError, match="a collection with --grades"):
        result_of("evaluate", BM25, "--grades", CAREFUL, "--human", HUMAN, "--collection", tmp_path)


def test_labels_of_nothing_that_was_graded(tmp_path):
    (other := tmp_path / "other.txt").write_text("q0 0 nowhere 1\nq1 0 nowhere 3\n")
    with pytest.raises(InputError, match="graded"):
        result_of("evaluate", BM25, "--grades", CAREFUL, "--human", other, "--scale", 0, 3)


def test_labels_off_the_scale_are_left_out_and_said(tmp_path):
    labels = sampled(tmp_path / "labels.jsonl")
    result = result_of("evaluate", BM25, "--grades", CAREFUL, "--human", labels, "--scale", 0, 2)
    assert result.exit_code == 3 and "impossible labels" in result.text
    assert result.metrics["labelled"] < 60


def test_runs_are_compared_and_written(tmp_path):
    labels = sampled(tmp_path / "labels.jsonl", probability=0.33)
    words = ("evaluate", DENSE, BM25, "--grades", CAREFUL, "--human", labels, "--scale", 0, 3)
    result = result_of(*words, "--min-relevant-grade", 2, "--out", tmp_path / "out")
    assert (result.exit_code, result.metrics["labelled"], result.metrics["drawn"]) == (0, 60, "pairs")
    contrasts = [(own["metric"], own["baseline"]) for own in result.metrics["estimates"]]
    assert contrasts == [("precision@10", baseline) for baseline in (None, None, str(BM25))]
    assert json.loads((tmp_path / "out" / "few_labels.json").read_text()) == json.loads(json.dumps(result.metrics))
    assert result_of(*words, "--min-relevant-grade", 2, "--out", tmp_path / "out").metrics == result.metrics
