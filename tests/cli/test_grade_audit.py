"""`bixse grade audit` on files, unhappy paths first."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.errors import InputError, InvalidFileError, OutputExistsError
from helpers.command import result_of

SMALL = Path(__file__).parents[1] / "judging" / "audit_labels"
HUMAN, CAREFUL, CARELESS = (SMALL / name for name in ("human.qrels.txt", "careful.txt", "careless.txt"))


def audited(*words):
    return result_of("grade", "audit", *words)


def test_input_that_is_refused_leaves_no_folder(tmp_path):
    out = tmp_path / "out"
    (twice := tmp_path / "twice.txt").write_text("q0 0 d0 1\nq0 0 d0 2\n")
    with pytest.raises(InvalidFileError, match="one grade per pair"):
        audited("--judge", twice, "--human", HUMAN, "--out", out)
    with pytest.raises(InputError, match="no such file"):
        audited("--judge", CAREFUL, "--human", tmp_path / "none.txt", "--out", out)
    with pytest.raises(InputError, match="maximum above the minimum"):
        audited("--judge", CAREFUL, "--human", HUMAN, "--scale", 3, 0, "--out", out)
    assert not out.exists()


def test_another_audits_folder_is_kept(tmp_path):
    audited("--judge", CAREFUL, "--human", HUMAN, "--out", tmp_path)
    before = (tmp_path / "audit.json").read_bytes()
    with pytest.raises(OutputExistsError, match="min_relevant_grade"):
        audited("--judge", CAREFUL, "--human", HUMAN, "--out", tmp_path, "--min-relevant-grade", 1)
    assert (tmp_path / "audit.json").read_bytes() == before


def test_impossible_labels_end_with_3_and_a_list(tmp_path):
    result = audited("--judge", CARELESS, "--human", HUMAN, "--scale", 0, 3, "--out", tmp_path)
    assert (result.exit_code, result.metrics["careless"]["impossible_labels"]) == (3, 2)
    assert f"{CARELESS}, row 78: query q5, document d77: 10" in result.text
    assert f"{CARELESS}, row 131: query q8, document d130: 5" in result.text
    assert any("never clipped" in warning for warning in result.warnings)


def test_everything_is_written_once_and_again(tmp_path):
    words = ("--judge", CAREFUL, CARELESS, "--human", HUMAN, "--scale", 0, 3, "--out", tmp_path)
    result = audited(*words)
    content = json.loads((tmp_path / "audit.json").read_text())
    assert [judge["name"] for judge in content["judges"]] == ["careful", "careless"]
    assert result.metrics["careful"]["kappa"] == content["judges"][0]["measures"]["kappa"]["value"]
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["command"], record["status"]) == ("grade audit", "finished")
    assert {"human", "judge 1", "judge 2"} <= record["inputs"].keys()
    page = (tmp_path / "audit.html").read_bytes()
    assert audited(*words).text == result.text
    assert (tmp_path / "audit.html").read_bytes() == page


def test_judgements_with_their_own_scale_statuses_and_repeats(tmp_path):
    rows = []
    for number, line in enumerate(CAREFUL.read_text().splitlines()):
        query_id, _, document_id, grade = line.split()
        place = int(grade) / 3
        base = {"query_id": query_id, "document_id": document_id, "judge": "qwen"}
        usable = number % 30 != 0
        graded = {"status": "graded", "grade": 1 + 4 * place, "relevance": place}
        rows.append({**base, "repeat": 0, **(graded if usable else dict.fromkeys(graded) | {"status": "refused"})})
        if number % 10 == 5:
            rows.append({**base, "repeat": 1, **graded})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "judgements.parquet")
    audited("--judge", tmp_path / "judgements.parquet", "--human", HUMAN, "--scale", 0, 3, "--out", tmp_path / "out")
    (judge,) = json.loads((tmp_path / "out" / "audit.json").read_text())["judges"]
    assert (judge["name"], judge["statuses"]) == ("qwen", {"graded": 174, "refused": 6})
    plain = audited("--judge", CAREFUL, "--human", HUMAN, "--scale", 0, 3, "--out", tmp_path / "plain")
    assert judge["measures"]["kappa"]["value"] == pytest.approx(plain.metrics["careful"]["kappa"], abs=0.05)


def test_texts_come_from_pairs(tmp_path):
    lines = [line.split() for line in HUMAN.read_text().splitlines()]
    rows = [
        {"query_id": q, "query": f"text of {q}", "document_id": d, "document": f"text of {d}", "relevance": 0.5}
        for q, _, d, _ in lines
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    audited("--judge", CAREFUL, "--human", HUMAN, "--pairs", tmp_path / "pairs.jsonl", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "text of q5" in page and '<p class="document-text"><bdi>text of d' in page


def test_files_of_one_name_are_told_apart_by_their_paths(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "judge.txt").write_text(CAREFUL.read_text())
    result = audited(
        "--judge", tmp_path / "a" / "judge.txt", "--judge", tmp_path / "b" / "judge.txt", "--human", HUMAN,
        "--out", tmp_path / "out",
    )  # fmt: skip
    assert list(result.metrics) == [str(tmp_path / folder / "judge") for folder in ("a", "b")]


def test_a_scale_that_is_not_stated_is_said(tmp_path):
    result = audited("--judge", CAREFUL, "--human", HUMAN, "--out", tmp_path)
    assert result.exit_code == 0
    assert any("the scale 0 to 3 is that of the human labels found" in warning for warning in result.warnings)
