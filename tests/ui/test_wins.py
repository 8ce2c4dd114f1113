"""Wins and losses of two systems: refusals, and figures that are the evaluation's own."""

import json
import re

import pytest

from bixse.data.trec import write_run
from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.statistics import paired_bootstrap
from bixse.evaluation.tasks import collection_task
from helpers.ui_server import Browser


@pytest.fixture
def compare(actions, tmp_path, open_server):
    (tmp_path / "run").mkdir()

    def make(*systems, **settings):
        server = open_server(tmp_path / "run", systems=systems, **{"collection": actions, **settings})
        if settings.get("collection", actions):
            server.workspace.systems.wait("compare")
        return Browser(server)

    return make


def test_without_judgements_there_is_no_such_page(compare):
    browser = compare("bm25", "bm25", collection=None)
    assert browser.get("/wins").status_code == 404


def test_what_cannot_be_evaluated_is_said_in_words(compare, tmp_path):
    write_run(tmp_path / "other.trec", {"another": {"d1": 1.0}}, "other")
    browser = compare("bm25", str(tmp_path / "other.trec"))
    assert "use the run and the judgements of one collection" in browser.get("/wins").text
    assert browser.get("/wins/changes.svg", params={"metric": "ndcg@10"}).status_code == 404


@pytest.mark.parametrize("query", [{"metric": "nothing"}, {"start": "-1"}, {"start": "9" * 5000}, {"from": "x"}])
def test_an_address_with_nonsense_is_a_page(compare, query):
    browser = compare("bm25", "bm25")
    assert browser.get("/wins", params=query).status_code == 200
    assert browser.get("/wins/changes.svg", params=query).status_code == 404


def test_figures_are_those_of_the_evaluation(compare, actions, student, tmp_path):
    task = collection_task(actions)
    kept = evaluate("bm25", task, tmp_path / "bm25")
    model = evaluate(str(student), task)
    browser = compare(str(tmp_path / "bm25"), str(student))  # an output folder of `bixse evaluate`, and a model
    found = browser.server.workspace.systems
    assert found.per_query == [json.loads(json.dumps(kept.per_query)), model.per_query]
    for metric in ("ndcg@10", "mrr@10"):
        html = browser.get("/wins", params={"metric": metric, "from": "losses"}).text
        difference = paired_bootstrap(model.per_query[metric], kept.per_query[metric])
        assert f"{difference.mean:+.3f}".replace("-", "−") in html and f"{difference.queries} queries" in html
        rows = re.findall(r'href="/compare\?query=([\w-]+)"', html)
        changes = [model.per_query[metric][query] - kept.per_query[metric][query] for query in rows]
        assert len(rows) == len(task.query_sets[0].qrels) and changes == sorted(changes)
    picture = browser.get("/wins/changes.svg", params={"metric": "ndcg@10"})
    assert picture.headers["content-type"] == "image/svg+xml" and "<svg" in picture.text
