import asyncio
from tempfile import gettempdir

import numpy as np
import pandas
import pyarrow as pa
import pytest
from datasets import Dataset

from bixse import BudgetReached, GradeConfig, Judge, Pairs, grade
from bixse.errors import ConfigError, InputError, InterruptedRunError
from helpers.chat_server import planted
from helpers.scripted_judge import ScriptedJudge

ROWS = [
    {"query": "copy a folder", "document": "shutil.copytree: copy a folder"},
    {"query": "copy a folder", "document": "os.remove: remove a file"},
    {"query": "remove a file", "document": "os.remove: remove a file"},
]
RELEVANCE = [1.0, 0.0, 1.0]


def last_word(query, document):
    return 3 if query.split()[-1] in document else 0


@pytest.fixture
def judge():
    return Judge(last_word, scale=(0, 3), name="word")


def test_a_held_judge_grades_one_pair(judge):
    assert judge("copy a folder", ROWS[0]["document"]) == (3.0, 1.0, None, "")
    with Judge(lambda query, document: np.float32(0.25)) as other:
        assert other("a", "b").relevance == 0.25


@pytest.mark.parametrize("form", [list, tuple, pandas.DataFrame, pa.Table.from_pylist, Dataset.from_list,
                                  lambda rows: Pairs.from_rows([{**row, "relevance": 0.5} for row in rows])],
                         ids=["list", "tuple", "frame", "table", "dataset", "pairs"])  # fmt: skip
def test_pairs_of_every_form_are_graded_and_no_file_stays(judge, form, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    graded = grade(form(ROWS), judge)
    assert graded.relevance.tolist() == RELEVANCE
    assert list(graded.documents) == [row["document"] for row in ROWS]
    assert list(graded.to_dataset().column_names) == ["query", "document", "label"]
    assert graded.to_pandas()["grade"].tolist() == [3.0, 0.0, 3.0]
    assert repr(graded) == "Pairs(3 pairs, 2 queries)"
    assert not list(tmp_path.iterdir())


def test_paths_and_ids_and_other_columns(judge, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(Dataset.from_list(ROWS).to_pandas().to_json(orient="records", lines=True))
    assert grade(path, judge).relevance.tolist() == RELEVANCE
    rows = [{**row, "query_id": 7 if "copy" in row["query"] else 8, "note": "x", "label": 5} for row in ROWS]
    graded = grade(pandas.DataFrame(rows), judge)
    assert list(graded.query_ids) == ["7", "7", "8"] and graded.relevance.tolist() == RELEVANCE


def test_a_ledger_asks_no_question_twice_and_a_folder_has_the_files_of_the_command(tmp_path):
    asked = []

    def counted(query, document):
        asked.append(document)
        return last_word(query, document)

    judge = Judge(counted, scale=(0, 3), name="word")
    for _ in range(2):
        assert grade(ROWS, judge, ledger=tmp_path / "answers").relevance.tolist() == RELEVANCE
    assert len(asked) == 3
    grade(ROWS, judge, ledger=tmp_path / "answers", out=tmp_path / "out")
    assert len(asked) == 3
    assert {"pairs.parquet", "judgements.parquet", "run.json"} <= {path.name for path in (tmp_path / "out").iterdir()}
    with pytest.raises(InputError, match="got a function without a name"):
        grade(ROWS, Judge(counted, scale=(0, 3)), ledger=tmp_path / "answers")


def test_ctrl_c_and_the_budget_keep_what_was_graded(judge, monkeypatch):
    def stopped(query, document):
        if "remove" in query:
            raise KeyboardInterrupt
        return last_word(query, document)

    assert repr(judge) == "Judge('function:word')"
    with pytest.raises(InterruptedRunError) as caught:
        grade(ROWS, Judge(stopped, scale=(0, 3)))
    assert caught.value.graded.relevance.tolist() == RELEVANCE[:2]
    assert gettempdir() not in str(caught.value) and caught.value.__suppress_context__  # the folder is gone
    priced = Judge("cross-encoder:none", prices=(1.0, 1.0))
    scripted = ScriptedJudge()
    monkeypatch.setattr(priced, "open", lambda spending=None: scripted)
    rows = [{"query": f"q{n}", "document": "d" * 40} for n in range(20)]
    with pytest.raises(BudgetReached) as reached:
        grade(rows, priced, max_usd=0.0005)
    assert 0 < len(reached.value.graded) < 20


@pytest.mark.parametrize(
    ("answer", "options", "message"),
    [
        ("3", {"scale": (0, 3)}, "judge function: got '3' for the query .*expected a number from 0 to 3"),
        (3, {}, r"got 3 .*expected a number from 0 to 1; fix: .*scale=\(0, 3\)"),
        (None, {"name": "mine"}, "judge mine: got None"),
        (float("nan"), {}, "got nan"),
        ([1], {}, r"got \[1\]"),
    ],
)
def test_wrong_answers_of_a_function_are_refused(answer, options, message):
    judge = Judge(lambda query, document: answer, **options)
    for call in (lambda: judge("copy", "shutil.copy"), lambda: grade(ROWS, judge)):
        with pytest.raises(InputError, match=message):
            call()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            pandas.DataFrame({"query": ["a"], "text": ["b"]}),
            "rename or add the column docum",
        ),
        ([{"query": "a"}], "row 1: got no document"),
        (GradeConfig(judge={"name": "none"}), "pairs: got GradeConfig; expected a Dataset"),
        (["copy"], "pairs: got .*expected a Dataset"),
        ([("copy", "shutil.copy")], "pairs: got .*expected a Dataset"),
        ([], "pairs: got list"),
        ([{**ROWS[0], "query_id": "1"}, {**ROWS[2], "query_id": "1"}], "one query text per id"),
    ],
)
def test_wrong_pairs_are_refused(judge, pairs, message):
    with pytest.raises(InputError, match=message):
        grade(pairs, judge)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (3, {}, "judge: got int; expected an address"),
        (last_word, {"scale": (3, 0)}, "grade scale"),
        (last_word, {"rubrik": "none"}, "rubrik"),
        ("http://localhost:1", {"rubric": "none"}, "none"),
    ],
)
def test_wrong_judges_are_refused(source, options, message):
    with pytest.raises((InputError, ConfigError), match=message):
        grade(ROWS, Judge(source, **options))


def test_a_server_grades_inside_a_running_event_loop(server):
    async def cell():  # as a cell of a notebook
        with Judge(server.scenario(), rubric="trec-dl-0-3", prices=(1.0, 1.0)) as judge:
            one = judge("query", planted("p0", [0.1, 0.2, 0.3, 0.4]))
            return one, grade([{"query": "query", "document": planted("p0", [0.1, 0.2, 0.3, 0.4])}], judge, max_usd=5)

    one, graded = asyncio.run(cell())
    assert one.relevance == pytest.approx(graded.relevance[0]) == pytest.approx(2 / 3, abs=0.01)
    assert one.probabilities == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
