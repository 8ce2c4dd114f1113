"""`bixse grade calibrate` on files, refusals first."""

import json

import numpy as np
import pytest

from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError
from bixse.judging.audit.calibrate_grades import GradeMap
from helpers.command import result_of


def calibrated(*words):
    return result_of("grade", "calibrate", *words)


def written_map(folder):
    return GradeMap.model_validate_json((folder / "out" / "map.json").read_text())


@pytest.fixture
def files(tmp_path):
    """A judge who gives the grades 0 to 3 to 800 pairs of 40 queries, and people who agree less the higher it is."""
    generator = np.random.default_rng(0)
    judge, human = [], []
    for i in range(800):
        grade = int(generator.integers(0, 4))
        relevant = generator.random() < 0.8 * (grade / 3) ** 2
        judge.append(f"q{i % 40} 0 d{i} {grade}")
        human.append(f"q{i % 40} 0 d{i} {generator.integers(2, 4) if relevant else generator.integers(0, 2)}")
    for name, lines in (("judge", judge), ("human", human)):
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "judge.txt", tmp_path / "human.txt"


def write_pairs(path, rows):
    """Pairs of (grade, relevance)."""
    lines = [
        {"query": f"q{i}", "document": f"d{i}", "relevance": relevance, **({} if grade is None else {"grade": grade})}
        for i, (grade, relevance) in enumerate(rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_map_that_does_not_help_is_refused_and_nothing_written(tmp_path, files):
    judge, human = files
    lines = judge.read_text().splitlines()
    shuffled = np.random.default_rng(1).permutation([line.rsplit(" ", 1)[1] for line in lines])
    judge.write_text("\n".join(f"{line.rsplit(' ', 1)[0]} {g}" for line, g in zip(lines, shuffled, strict=True)) + "\n")
    words = ("--judgements", judge, "--human", human, "--out", tmp_path / "out")
    result = calibrated(*words)
    assert result.exit_code == 1 and result.errors[0].startswith("refused") and result.metrics["kept"] is False
    assert "Brier" in result.text and not (tmp_path / "out").exists()


def test_wrong_input_is_refused_before_anything_is_written(tmp_path, files):
    judge, human = files
    out = ("--out", tmp_path / "out")
    (other := tmp_path / "other.txt").write_text("x 0 y 1\nx 0 z 0\n")
    with pytest.raises(InputError, match="got no pair of"):
        calibrated("--judgements", other, "--human", human, *out)
    mapped = write_pairs(tmp_path / "mapped.jsonl", [(3.0, 0.7), (0.0, 0.1)])
    with pytest.raises(InputError, match="were not mapped before"):
        calibrated("--judgements", judge, "--human", human, "--apply", mapped, *out)
    with pytest.raises(InputError, match="relevance is not their grade's place"):
        calibrated("--judgements", mapped, "--human", human, *out)
    assert not (tmp_path / "out").exists()


def test_impossible_labels_end_with_3_and_are_not_fitted_on(tmp_path, files):
    judge, human = files
    judge.write_text(judge.read_text() + "q1 0 e1 10\n")
    human.write_text(human.read_text() + "q1 0 e1 3\n")
    result = calibrated("--judgements", judge, "--human", human, "--scale", 0, 3, "--out", tmp_path / "out")
    assert result.exit_code == 3 and f"{judge}, row 801: query q1, document e1: 10" in result.text
    assert result.metrics["labels"] == 800


def test_a_map_is_written_and_applied(tmp_path, files):
    judge, human = files
    pairs = write_pairs(tmp_path / "pairs.jsonl", [(3.0, 1.0), (1.0, 1 / 3), (None, 0.5), (0.0, 0.0)])
    result = calibrated("--judgements", judge, "--human", human, "--apply", pairs, "--out", tmp_path / "out")
    assert result.exit_code == 0 and result.metrics["brier_after"] < result.metrics["brier_before"]
    fitted = written_map(tmp_path)
    assert (fitted.judge, fitted.scale, fitted.labels, fitted.queries) == ("judge", (0, 3), 800, 40)
    assert fitted.target == "share of human grades from 2 up" and fitted.helps
    mapped = load_graded_pairs(tmp_path / "out" / "pairs.parquet")
    assert mapped.extra["grade"] == [3.0, 1.0, 1.5, 0.0]
    assert mapped.relevance.tolist() == fitted.apply([1.0, 1 / 3, 0.5, 0.0]).tolist()
    assert mapped.relevance[0] == pytest.approx(0.8, abs=0.07)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["command"], record["status"]) == ("grade calibrate", "finished")
