"""A training batch as a matrix: what is damaged or missing first."""

import json
import re
import shutil

import numpy as np
import pytest

from bixse.encoders.encode import encode_texts
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import load_relevance_model
from bixse.ui.pages.training import TrainBatches
from helpers.ui_server import Browser

OPTIMIZER = {"global_batch_size": 8, "documents_per_query": 3, "num_train_epochs": 2}


@pytest.fixture
def trained(actions, student, tmp_path):
    """What `bixse train` leaves."""
    folder = tmp_path / "trained"
    shutil.copytree(student, folder / "model")
    (folder / "model" / "SHA256SUMS").unlink(missing_ok=True)
    RelevanceHead(10.0, -3.0).save(folder / "model")
    config = {"pairs": str(actions.parent / "pairs.jsonl"), "seed": 0, "optimizer": OPTIMIZER, "loss_options": {}}
    (folder / "run.json").write_text(json.dumps({"command": "train", "status": "finished", "config": config}))
    return folder


@pytest.mark.parametrize("broken", ["no pairs", "no such file", "damaged head"])
def test_batch_that_cannot_be_drawn_is_an_error_on_the_page(trained, open_server, broken):
    record = json.loads((trained / "run.json").read_text())
    if broken == "damaged head":
        (trained / "model" / "relevance_head.json").write_text("{")
    else:
        record["config"]["pairs"] = None if broken == "no pairs" else str(trained / "nothing.jsonl")
    (trained / "run.json").write_text(json.dumps(record))
    server = open_server(trained)
    server.workspace.once(TrainBatches).start(-1, -1).wait()
    html = Browser(server, "ann").get("/batch").text
    assert "got" in html and "fix:" in html and 'http-equiv="refresh"' not in html


def test_entries_are_those_of_the_pairs_and_sigma_that_of_the_model(trained, actions, open_server):
    server = open_server(trained)
    batches = server.workspace.once(TrainBatches)
    matrix = batches.start(1, 2).wait().result
    rows = [json.loads(line) for line in (actions.parent / "pairs.jsonl").read_text().splitlines()]
    relevance = {(row["query"], row["document"]): row["relevance"] for row in rows}
    queries, documents = matrix.queries, matrix.documents
    expected = [[relevance.get((query, document), -1.0) for document in documents] for query in queries]
    assert matrix.known == pytest.approx(np.array(expected)) and (matrix.known > 0).sum() >= 8
    assert len(queries) == 8 and matrix.epoch == 1 and matrix.shape == matrix.known.shape
    model = load_relevance_model(trained / "model")
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


@pytest.mark.parametrize("query", [{"batch": "99999"}, {"epoch": "-1", "batch": "x"}, {"epoch": "9" * 40}])
def test_address_with_nonsense_is_a_page(trained, open_server, query):
    assert Browser(open_server(trained)).get("/batch", params=query).status_code == 200


def test_grades_are_shown_before_there_is_a_model(trained, open_server):
    shutil.rmtree(trained / "model")
    server = open_server(trained)
    assert server.workspace.once(TrainBatches).start(0, 0).wait().result.sigma is None
    html = Browser(server).get("/batch").text
    assert "when it is trained" in html and "unlabelled<" in html
