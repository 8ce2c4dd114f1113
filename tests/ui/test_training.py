import json
import re
import shutil

import numpy as np
import pytest

from bixse.calibration.calibrate_files import calibrate_into
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.ui.pages import home
from bixse.ui.pages.home import list_runs
from bixse.ui.pages.training import TrainBatches, train_state
from helpers.html_page import Page
from helpers.ui_server import Browser, write_record

CHANGE = {"collection": "<b>dev", "role": "dev", "model": "merged", "mean": -0.02, "low": -0.03, "high": -0.01,
          "queries": 9}  # fmt: skip
MERGE = {
    "weight": 0.5,
    "points": [{"weight": w, "scores": {"<b>dev": 0.5 + w / 9}} for w in (0, 0.5, 1)],
    "changes": [
        CHANGE,
        {
            **CHANGE,
            "collection": "<i>guard",
            "role": "guard",
            "low": None,
            "high": None,
            "few": "9 queries; at least 40",
        },
    ],
    "undecided": "7 queries; at least 40",
}


def line(step, **more):
    return json.dumps({"step": step, "loss": 3 - step / 10, "logit_bias": -5.0, "epoch": step / 10, **more}) + "\n"


@pytest.fixture
def trained(tmp_path):
    """A run under way after two steps."""
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "log.jsonl").write_text(line(1, loss=float("nan")) + line(2) + '{"step": 3, "lo')
    write_record(folder, config={"optimizer": {"num_train_epochs": 2}})
    return folder


def test_growing_log_is_read_once_and_restarted_log_anew(trained):
    state = train_state(trained)
    assert train_state(trained) is state and [step for step, _ in state.curve.logged["logit_bias"]] == [1, 2]
    with (trained / "log.jsonl").open("a") as file:
        file.write('ss": 1.5}\nno json\n[1]\n' + line(4))
    logged = train_state(trained).curve.logged
    assert [step for step, _ in logged["logit_bias"]] == [1, 2, 4]
    assert [loss for _, loss in logged["loss"]] == [2.8, 1.5, 2.6] and logged["logit_bias"][0][1] == -5.0
    (trained / "log.jsonl").write_text(line(1))
    assert [step for step, _ in train_state(trained).curve.logged["loss"]] == [1]


def test_long_log_is_drawn_by_means_of_neighbours(trained):
    more = "".join(line(step, loss=float(step % 2)) for step in range(1, 4001))
    (trained / "log.jsonl").write_text(more + json.dumps({"step": "x", "loss": 9}) + "\n" + '{"epoch": 9}\n')
    state = train_state(trained)
    assert len(state.curve.logged["loss"]) == 4000 and state.last["step"] == 4000
    drawn = state.plots["Training loss: trained"]
    assert "from 0.500 to 0.462" in drawn.alt  # means of 14 and of 13 steps


@pytest.mark.parametrize("record", ["", "[]", "{", '{"results": null, "config": null}'])
def test_damaged_record_leaves_the_curves(trained, open_server, record):
    browser = Browser(open_server(trained))
    (trained / "run.json").write_text(record)
    assert "Step 2" in browser.get("/training").text


def test_running_training_is_shown_as_it_is_now(trained, open_server):
    browser = Browser(open_server(trained))
    home = browser.get("/")
    assert str(home.url).endswith("/overview") and 'class="button primary" href="/training"' in home.text
    assert "this folder" in home.text and "dollars" not in home.text and "to come" not in home.text
    html = browser.get("/training").text
    assert "Step 2, 10 % of the run: running" in html and 'hx-get="/training/now"' in html
    assert re.findall(r'src="/training/(\w+)\.svg', html) == ["loss", "bias"]
    picture = browser.get("/training/loss.svg")
    assert picture.headers["content-type"] == "image/svg+xml" and "<svg" in picture.text
    assert browser.get("/training/dev.svg").status_code == 404
    more = "".join(line(step, **{"eval_dev_ndcg@10": 0.4}) for step in (3, 4))
    (trained / "log.jsonl").write_text(line(1) + line(2) + more)
    now = browser.get("/training/now").text
    assert "Step 4" in now and "/training/dev.svg" in now and "<html" not in now
    assert browser.get("/training/loss.svg").text != picture.text


def test_finished_training_shows_its_merge(trained, open_server):
    write_record(trained, status="finished", results={"merge": MERGE, "best_step": 2})
    browser = Browser(open_server(trained))
    html = browser.get("/training").text
    assert "hx-get" not in html and "[−0.030, −0.010]" in html and "Step 2: finished" in html
    page = Page(html)
    page.check_served()
    assert "9 queries; at least 40" in page.text
    assert "<b>dev" in page.text and "Dev has not chosen it (7 queries; at least 40)" in page.text
    assert "weight of the tuned model" in browser.get("/training/merge.svg").text


@pytest.mark.parametrize(("exponent", "prior"), [("", None), ("-2", 0.01), ("nan", None), ("-99", None), ("x", None)])
def test_calibration_figures_are_those_of_the_command(compare, calibrated, actions, tmp_path, exponent, prior):
    model, pairs = calibrated[0], actions.parent / "pairs.jsonl"
    result = calibrate_into(CalibrateSettings(model=model, pairs=pairs, prior=prior), tmp_path / "out")
    browser = compare(model, "bm25", collection=actions, held_out=pairs)
    html = browser.get("/calibration", params={"exponent": exponent, "side": "9"}).text
    for name, report in result.check.reports.items():
        assert f'<th scope="row">{name}</th>' in html and f"{report.brier:.3f}" in html
        assert f"{report.ece:.3f}" in html and report.ece_interval == (None, None), "15 held-out queries"
    assert "None" not in html
    assert ("--prior 0.01" in html) == (prior is not None)


OPTIMIZER = {"global_batch_size": 8, "documents_per_query": 3, "num_train_epochs": 2}


@pytest.fixture
def trained_model(actions, student, tmp_path):
    folder = tmp_path / "trained_model"
    shutil.copytree(student, folder / "model")
    (folder / "model" / "SHA256SUMS").unlink(missing_ok=True)
    RelevanceHead(10.0, -3.0).save(folder / "model")
    config = {"pairs": str(actions.parent / "pairs.jsonl"), "seed": 0, "optimizer": OPTIMIZER, "loss_options": {}}
    write_record(folder, status="finished", config=config)
    return folder


@pytest.mark.parametrize("broken", ["no pairs", "no such file", "damaged head"])
def test_batch_that_cannot_be_drawn_is_an_error_on_the_page(trained_model, open_server, broken):
    record = json.loads((trained_model / "run.json").read_text())
    if broken == "damaged head":
        (trained_model / "model" / "relevance_head.json").write_text("{")
    else:
        record["config"]["pairs"] = None if broken == "no pairs" else str(trained_model / "nothing.jsonl")
    (trained_model / "run.json").write_text(json.dumps(record))
    server = open_server(trained_model)
    server.workspace.once(TrainBatches).start(-1, -1).wait()
    html = Browser(server, "ann").get("/batch").text
    assert "got" in html and "fix:" in html and 'http-equiv="refresh"' not in html


def test_entries_are_those_of_the_pairs_and_sigma_that_of_the_model(trained_model, actions, open_server):
    server = open_server(trained_model)
    batches = server.workspace.once(TrainBatches)
    matrix = batches.start(1, 2).wait().result
    rows = [json.loads(line) for line in (actions.parent / "pairs.jsonl").read_text().splitlines()]
    relevance = {(row["query"], row["document"]): row["relevance"] for row in rows}
    queries, documents = matrix.queries, matrix.documents
    expected = [[relevance.get((query, document), -1.0) for document in documents] for query in queries]
    assert matrix.known == pytest.approx(np.array(expected)) and (matrix.known > 0).sum() >= 8
    assert len(queries) == 8 and matrix.epoch == 1 and matrix.shape == matrix.known.shape
    model = load_relevance_model(trained_model / "model")
    cosines = encode_texts(model, queries, "query") @ encode_texts(model, documents, "document").T
    assert matrix.sigma == pytest.approx(model.head.probability(cosines.astype(np.float64)))
    assert batches.start(0, 2).wait().result.queries != queries
    html = Browser(server).get("/batch", params={"epoch": "2", "batch": "3"}).text
    assert "Epoch 2, batch 3 of 4" in html
    counts = re.findall(r'<th scope="row">[^<]*</th><td>([\d,]+)</td>', html)
    assert sum(int(number.replace(",", "")) for number in counts) == matrix.known.size
    paths = re.findall(r' d="([^"]+)"', html.partition("</svg>")[0])
    assert sum(int(width) for path in paths for width in re.findall(r"h(\d+)v1", path)) == matrix.known.size
    zeros = np.sort(matrix.sigma[matrix.known == -1])[::-1]
    assert re.findall(r"<li><strong>([\d.]+)<", html) == [f"{value:.2f}" for value in zeros[:10]]


def test_entry_of_a_batch_is_shown_with_its_texts_and_nonsense_in_the_address_is_a_page(trained_model, open_server):
    server = open_server(trained_model)
    matrix = server.workspace.once(TrainBatches).start(0, 0).wait().result
    browser = Browser(server)
    html = browser.get("/batch/entry", params={"row": "2", "column": "3"}).text
    assert matrix.queries[1] in html and matrix.documents[2] in html and f"{matrix.sigma[1, 2]:.2f}" in html
    assert html.split("</p>")[0] in browser.get("/batch", params={"row": "2", "column": "3"}).text  # without JavaScript
    for row, column in (("0", "1"), ("9", "1"), ("1", "999"), ("x", "-1")):
        assert "Row" not in browser.get("/batch/entry", params={"row": row, "column": column}).text
    for query in ({"batch": "99999"}, {"epoch": "-1", "batch": "x"}, {"epoch": "9" * 40}):
        assert browser.get("/batch", params=query).status_code == 200


def test_paths_of_a_run_are_found_from_another_folder(trained_model, actions, tmp_path, open_server, monkeypatch):
    shutil.copy(actions.parent / "pairs.jsonl", tmp_path / "pairs.jsonl")
    record = json.loads((trained_model / "run.json").read_text())
    record["config"]["pairs"] = "pairs.jsonl"  # as named from the folder above the run
    (trained_model / "run.json").write_text(json.dumps(record))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    job = open_server(trained_model).workspace.once(TrainBatches).start(0, 0).wait()
    assert not job.error and job.result.shape[0] == 8


def test_grades_are_shown_before_there_is_a_model(trained_model, open_server):
    model, away = trained_model / "model", trained_model / "away"
    model.rename(away)
    server = open_server(trained_model)
    assert server.workspace.once(TrainBatches).start(0, 0).wait().result.sigma is None
    html = Browser(server).get("/batch").text
    assert "when it is trained" in html and "taken as irrelevant<" in html
    batches, files = server.workspace.once(TrainBatches), sorted(away.iterdir())
    model.mkdir()
    assert batches.start(0, 0).wait().error and "fix:" in Browser(server).get("/batch").text  # an unfinished folder
    for file in files:
        file.rename(model / file.name)
    assert batches.start(0, 0).wait().result.sigma is not None
    record = json.loads((trained_model / "run.json").read_text())
    record["config"]["max_distance"] = 0.1  # a setting of an earlier version
    (trained_model / "run.json").write_text(json.dumps(record))
    server = open_server(trained_model, labels=trained_model / "earlier.jsonl")
    assert not server.workspace.once(TrainBatches).start(0, 0).wait().error
    record["config"]["kind"] = "reranker"
    (trained_model / "run.json").write_text(json.dumps(record))
    assert "/batch" not in Browser(open_server(trained_model, labels=trained_model / "other.jsonl")).get("/").text


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
    for name, text in (
        ("broken", "{"),
        ("list", "[]"),
        ("in", '{"results": [1]}'),
    ):
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    (folder / "<img src=x onerror=a>").mkdir()
    write_record(folder / "<img src=x onerror=a>", status="<b>x")
    return folder


def test_page_lists_progress_and_money_of_every_run(root, open_server, monkeypatch):
    runs = {run["name"]: run for run in list_runs(root)}
    assert set(runs) == {"one", "deep/two", "broken", "list", "in", "<img src=x onerror=a>"}
    assert {runs[name]["status"] for name in ("broken", "list", "in")} == {"damaged record"}
    stopped = runs["deep/two"]
    assert (stopped["pairs"], stopped["left"], stopped["usd_to_come"]) == (40, 25, 2.5)  # 0.1 dollars per pair
    assert stopped["answers"] == {"graded": 40}  # the ledger moved along with the folder
    assert runs["one"]["left"] == 0
    browser = Browser(open_server(root))
    monkeypatch.setattr(home, "MOST_RUNS", 3)
    html = browser.get("/").text
    assert "6 runs, of which the last 3" in html and html.count('<th scope="row">') == 3 and "<b>x" not in html
    monkeypatch.undo()
    html = browser.get("/").text
    assert "2.0000 US dollars so far" in html and "about 2.5000" in html and "interrupted" in html
    assert "<img" not in html and "<b>" not in html and "&lt;b&gt;x" in html
    (root / "broken" / "run.json").write_text((root / "one" / "run.json").read_text())
    assert "damaged record" in html and browser.get("/").text.count("damaged record") < html.count("damaged record")


def test_reports_below_are_served_without_scripts_and_nothing_else_is(root, open_server, tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    (root / "one" / "audit.html").write_text("<p>An audit</p>")
    (root / "one" / "<b>report.html").write_text("<script>alert(1)</script>")
    (root / "one" / "out.html").symlink_to(tmp_path / "secret.html")
    browser = Browser(open_server(root))
    html = browser.get("/").text
    Page(html).check_served()
    links = re.findall(r'href="(/reports/[^"]+)"', html)
    assert len(links) == 2
    for link, text in zip(sorted(links), ("<script>alert(1)</script>", "<p>An audit</p>"), strict=True):
        answer = browser.get(link)
        assert answer.text == text and answer.headers["content-security-policy"].startswith(
            "sandbox; default-src 'none'"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("one/out.html", "../secret.html", "%2e%2e/secret.html", "one/run.json", ""):
        assert browser.get(f"/reports/{name}").status_code == 404
    browser.cookies.clear()
    assert browser.get(links[0]).status_code == 403


def test_main_button_is_the_next_step(browser):
    assert 'class="button primary" href="/label"' in browser.get("/").text
    for row, (query_id, document_id) in enumerate(browser.server.workspace.index.row_of):
        form = {"query_id": query_id, "document_id": document_id, "event": f"e{row}", "answer": str(row % 4)}
        browser.submit("/label/save", form, follow_redirects=False)
    html = browser.get("/").text
    assert 'class="button primary" href="/disagreements"' in html and "The judge " in html
