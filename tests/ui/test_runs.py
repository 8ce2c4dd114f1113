"""The runs under a folder: damaged records and ledgers first, then progress and money."""

import json
import shutil

import pytest

from bixse.errors import InputError
from bixse.judging.judge import Answer
from bixse.judging.ledger import Ledger
from bixse.judging.ledgers.segments import answers_by_status
from bixse.ui.pages.runs import list_runs
from helpers.ui_server import Browser


@pytest.fixture
def root(graded, tmp_path):
    """Two runs of grading, one of which stopped half-way, damaged records, and a hostile name."""
    folder = tmp_path / "root"
    for name in ("one", "deep/two"):
        shutil.copytree(graded, folder / name)
    path = folder / "deep" / "two" / "run.json"
    record = json.loads(path.read_text())
    record["status"] = "interrupted"
    record["results"]["ledger"] = "/moved/away"
    record["results"]["summary"] |= {"pairs": 20, "not_asked": 20, "statuses": {"graded": 15, "failed": 5}, "usd": 2.0}
    path.write_text(json.dumps(record))
    for name, text in (("broken", "{"), ("<img src=x onerror=a>", '{"status": "<b>x"}'), ("list", "[]")):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    return folder


@pytest.mark.parametrize("content", [None, "x" * 5000])
def test_file_that_is_no_ledger_is_refused_and_not_made(tmp_path, content):
    path = tmp_path / "ledger"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError):
        answers_by_status(path)
    assert path.exists() == (content is not None)


def test_answers_of_a_ledger_in_use_are_counted(tmp_path):
    for statuses in (("graded", "failed"), ("graded",)):
        with Ledger(tmp_path / "a b#c") as ledger:
            for number, status in enumerate(statuses):
                ledger.write(f"{len(statuses)} {number}", Answer(status, "verbal", grade=1.0))
            assert answers_by_status(ledger.path)["graded"] == 3 - len(statuses)
    assert answers_by_status(tmp_path / "a b#c") == {"graded": 2, "failed": 1}


def test_page_lists_progress_and_money_of_every_run(root, open_server):
    runs = {run.name: run for run in list_runs(root)}
    assert set(runs) == {"one", "deep/two", "broken", "list", "<img src=x onerror=a>"}
    assert runs["broken"].status == runs["list"].status == "damaged record"
    stopped = runs["deep/two"].grading
    assert (stopped.pairs, stopped.left, stopped.usd_to_come) == (40, 25, 2.5)  # 0.1 dollars per pair
    assert stopped.answers == {"graded": 40}  # the ledger moved along with the folder
    assert runs["one"].grading.left == 0
    browser = Browser(open_server(root))
    assert str(browser.get("/").url).endswith("/runs")
    html = browser.get("/runs").text
    assert "2.0000 US dollars so far" in html and "about 2.5000" in html and "interrupted" in html
    assert "<img" not in html and "<b>" not in html and "&lt;b&gt;x" in html
    (root / "broken" / "run.json").write_text((root / "one" / "run.json").read_text())
    assert "damaged record" in html and browser.get("/runs").text.count("damaged record") < html.count("damaged record")
