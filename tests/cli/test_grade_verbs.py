import json
from pathlib import Path

import numpy as np
import pytest

from bixse.audit.calibrate_grades import GradeMap
from bixse.cli.main import main
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.pairs_files import load_graded_pairs
from bixse.errors import InputError, OutputExistsError
from helpers.command import call, result_of
from helpers.row_files import jsonl

SMALL = Path(__file__).parents[1] / "audit" / "audit_labels"
HUMAN, CAREFUL, CARELESS = (SMALL / name for name in ("human.qrels.txt", "careful.txt", "careless.txt"))
TEXTS = {"copy a folder": "shutil.copytree copies a tree", "wait": "time.sleep waits", "sort": "list.sort sorts"}


@pytest.fixture
def judged(tmp_path):
    """Words that name a judge with two grades and one off the scale, and the pairs."""
    rows = ["query_id,query,document_id,document", *(f"{n},{q},{n},{d}" for n, (q, d) in enumerate(TEXTS.items()))]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "judged.txt").write_text("0 0 0 3\n1 0 1 1\n2 0 2 -1\n")
    pairs = str(tmp_path / "pairs.csv")
    return ["--judge", f"replay:qrels:{tmp_path / 'judged.txt'}", "--scale", "0", "3", "--pairs", pairs]


def test_a_replayed_file_becomes_graded_pairs(judged, tmp_path, capsys):
    code, envelope = call(capsys, "grade", *judged, "--out", tmp_path / "out")
    assert code == 3, "one pair has no grade"
    assert envelope["metrics"]["statuses"] == {"graded": 2, "off-scale": 1}
    assert any("1 pairs have a status and no relevance" in warning for warning in envelope["warnings"])
    table = load_graded_pairs(envelope["artifacts"]["pairs"])
    graded = dict(zip(table.queries, table.relevance.tolist(), strict=True))
    assert graded == {"copy a folder": 1.0, "wait": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prices", "1"], "prices"),
        (["--max-usd", "1"], "add --prices"),
        (["--samples", "0"], "samples"),
        (["--rubric", "trec-dl"], "did you mean 'trec-dl-0-3'"),
        (["--mode", "guess"], "mode"),
        (["--pairs", "none.csv"], "no such file"),
        (["--judge", " "], "name a judge"),
        (["--judge", "http://user:secret@localhost:1"], "fix"),
        (["--judge", "http://127.0.0.1:9"], "expected a running server"),
        (["--judge", "no/such-model"], "no/such-model"),
        (["--judge", "localhost:8000"], "http://localhost:8000"),
        (["--judge", "10.0.0.7:8000/v1"], "http://10.0.0.7:8000/v1"),
    ],
)
def test_a_judge_or_setting_that_cannot_be_used_leaves_nothing(judged, tmp_path, capsys, words, message):
    out = tmp_path / "out"
    given = judged[2:] if words[0] == "--judge" else judged
    code, envelope = call(capsys, "grade", *given, *words, "--out", out)
    (error,) = envelope["errors"]
    assert code in (1, 2)
    assert message in error and "fix" in error
    assert "secret" not in error and "unexpected" not in error
    assert not out.exists()


def test_the_dry_run_of_a_replay_asks_nothing(judged, tmp_path, capsys):
    assert main(["grade", *judged, "--dry-run", "--prices", "2", "8", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    assert "3 pairs, 3 questions" in text and "a guess at four characters per token" in text
    assert not (tmp_path / "out").exists()


DOCUMENTS = {"d1": Document("", "copies a tree"), "d2": Document("", "waits"), "d3": Document("", "sorts")}
QRELS = {"q1": {"d1": 3, "d2": 0}, "q2": {"d3": 2, "d2": 1}, "q3": {"d2": 1, "d3": 0}}
PAIRS = [(query, document) for query, grades in QRELS.items() for document in grades]


def rank(folder, grades, capsys):
    """Rank the judged documents by a judge's grades of `PAIRS`."""
    texts = {"q1": "copy", "q2": "sort", "q3": "wait"}
    save_collection(Collection("col", DOCUMENTS, texts, {"test": QRELS}), folder / "col")
    labels = [f"{query} 0 {document} {grade}\n" for (query, document), grade in zip(PAIRS, grades, strict=True)]
    (folder / "judge.txt").write_text("".join(labels))
    words = ["--judge", f"replay:qrels:{folder / 'judge.txt'}", "--scale", "0", "3", "--out", folder / "rank"]
    return call(capsys, "grade", "rank", "--collection", folder / "col", "--candidates", "judged", *words)


@pytest.mark.parametrize(
    ("grades", "tied", "worthless"),
    [([0, 1, 2, 2, 2, 2], 2, True), ([2, 2, 0, 1, 0, 1], 1, False), ([0, 1] * 3, 0, False)],
)
def test_a_ranking_whose_grades_tie_is_warned_of(tmp_path, capsys, grades, tied, worthless):
    code, envelope = rank(tmp_path, grades, capsys)
    assert code == 0, "every candidate has a grade"
    warnings = " ".join(envelope["warnings"])
    assert (f"{tied} of 3 queries" in warnings) == (tied > 0) == bool(warnings)
    assert ("gives most queries no order" in warnings) == worthless


def test_a_judge_ranks_the_judged_documents(tmp_path, capsys):
    code, envelope = rank(tmp_path, [1, 2, 3, 0, 2, 1], capsys)  # wrong on q1, right on q2 and q3
    assert code == 0, envelope
    assert envelope["metrics"]["mrr@10"] == pytest.approx((0.5 + 2) / 3)
    assert envelope["metrics"]["ndcg@10"] == pytest.approx((0.6309297535714575 + 2) / 3)
    assert (tmp_path / "rank" / "run.trec").read_text().split()[2] == "d2"


def audited(judge, *words):
    return result_of("grade", "audit", "--judge", judge, "--human", HUMAN, *words)


def test_an_audit_refuses_input_without_a_folder_and_another_audits_folder(tmp_path):
    out = ("--out", tmp_path / "out")
    for words in ((tmp_path / "none.txt",), (CAREFUL, "--scale", 3, 0)):
        with pytest.raises(InputError):
            audited(*words, *out)
    assert not (tmp_path / "out").exists()
    audited(CAREFUL, *out)
    before = (tmp_path / "out" / "audit.json").read_bytes()
    with pytest.raises(OutputExistsError, match="min_relevant_grade"):
        audited(CAREFUL, *out, "--min-relevant-grade", 1)
    assert (tmp_path / "out" / "audit.json").read_bytes() == before


def test_an_audit_is_written_and_impossible_labels_end_with_3(tmp_path):
    words = (CAREFUL, "--judge", CARELESS, "--scale", 0, 3, "--out", tmp_path)
    result = audited(*words)
    assert (result.exit_code, result.metrics["careless"]["impossible_labels"]) == (3, 2)
    assert f"{CARELESS}, row 78: query q5, document d77: 10" in result.text
    assert f"{CARELESS}, row 131: query q8, document d130: 5" in result.text
    content = json.loads((tmp_path / "audit.json").read_text())
    assert [judge["name"] for judge in content["judges"]] == ["careful", "careless"]
    assert result.metrics["careful"]["kappa"] == content["judges"][0]["measures"]["kappa"]["value"]
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["command"], record["status"]) == ("grade audit", "finished")
    assert {"human", "judge 1", "judge 2"} <= record["inputs"].keys()
    page = (tmp_path / "audit.html").read_bytes()
    assert audited(*words).text == result.text
    assert (tmp_path / "audit.html").read_bytes() == page


def test_an_audit_shows_texts_of_pairs_and_warns_of_a_missing_scale(tmp_path):
    pairs = jsonl(tmp_path / "pairs.jsonl", *(
        {"query_id": q, "query": f"text of {q}", "document_id": d, "document": f"text of {d}", "relevance": 0.5}
        for q, _, d, _ in map(str.split, HUMAN.read_text().splitlines())
    ))  # fmt: skip
    result = audited(CAREFUL, "--pairs", pairs, "--out", tmp_path / "out")
    page = (tmp_path / "out" / "audit.html").read_text()
    assert "text of q5" in page and '<p class="document-text"><bdi>text of d' in page
    assert any("the scale 0 to 3" in warning for warning in result.warnings)


def test_judges_of_one_name_are_distinguished_by_their_paths(tmp_path):
    paths = [tmp_path / folder / "judge.txt" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(CAREFUL.read_text())
    result = audited(paths[0], "--judge", paths[1], "--out", tmp_path / "out")
    assert list(result.metrics) == [str(path.with_suffix("")) for path in paths]


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


def mapped(files, *words):
    paths = ("--judgements", files[0], "--human", files[1], "--out", files[0].parent / "out")
    return result_of("grade", "calibrate", *paths, *words)


def write_pairs(path, rows):
    return jsonl(path, *(
        {"query": f"q{i}", "document": f"d{i}", "relevance": relevance, **({} if grade is None else {"grade": grade})}
        for i, (grade, relevance) in enumerate(rows)
    ))  # fmt: skip


def test_a_map_that_does_not_help_is_refused(tmp_path, files):
    names, grades = zip(*(line.rsplit(" ", 1) for line in files[0].read_text().splitlines()), strict=True)
    shuffled = np.random.default_rng(1).permutation(grades)
    files[0].write_text("".join(f"{name} {grade}\n" for name, grade in zip(names, shuffled, strict=True)))
    result = mapped(files)
    assert result.exit_code == 1 and result.errors[0].startswith("refused") and result.metrics["saved"] is False
    assert not (tmp_path / "out").exists()


def test_a_map_refuses_other_pairs_and_mapped_grades(tmp_path, files):
    (other := tmp_path / "other.txt").write_text("x 0 y 1\nx 0 z 0\n")
    with pytest.raises(InputError, match="got no pair of"):
        mapped((other, files[1]))
    again = write_pairs(tmp_path / "mapped.jsonl", [(3.0, 0.7), (0.0, 0.1)])
    with pytest.raises(InputError, match="were not mapped before"):
        mapped(files, "--apply", again)
    with pytest.raises(InputError, match="relevance does not follow from their grade"):
        mapped((again, files[1]))
    assert not (tmp_path / "out").exists()


def test_a_map_is_not_fitted_on_impossible_labels(files):
    for path, line in zip(files, ("q1 0 e1 10\n", "q1 0 e1 3\n"), strict=True):
        path.write_text(path.read_text() + line)
    result = mapped(files, "--scale", 0, 3)
    assert result.exit_code == 3 and f"{files[0]}, row 801: query q1, document e1: 10" in result.text
    assert result.metrics["labels"] == 800


def test_a_map_is_written_and_applied(tmp_path, files):
    pairs = write_pairs(tmp_path / "pairs.jsonl", [(3.0, 1.0), (1.0, 1 / 3), (None, 0.5), (0.0, 0.0)])
    result = mapped(files, "--apply", pairs)
    assert result.exit_code == 0 and result.metrics["brier_after"] < result.metrics["brier_before"]
    fitted = GradeMap.model_validate_json((tmp_path / "out" / "map.json").read_text())
    assert (fitted.judge, fitted.scale, fitted.labels, fitted.queries) == ("judge", (0, 3), 800, 40)
    assert fitted.target == "share of human grades from 2 up" and fitted.helps
    table = load_graded_pairs(tmp_path / "out" / "pairs.parquet")
    assert table.extra["grade"] == [3.0, 1.0, 1.5, 0.0]
    assert table.relevance.tolist() == fitted.apply([1.0, 1 / 3, 0.5, 0.0]).tolist()
    assert table.relevance[0] == pytest.approx(0.8, abs=0.07)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["command"], record["status"]) == ("grade calibrate", "finished")
