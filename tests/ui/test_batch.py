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
    (folder / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    config = {"pairs": str(actions.parent / "pairs.jsonl"), "seed": 0, "optimizer": OPTIMIZER, "loss_options": {}}
    (folder / "run.json").write_text(json.dumps({"command": "train", "status": "finished", "config": config}))
    return folder


@pytest.mark.parametrize("broken", ["no pairs", "no such file", "damaged head"])
def test_what_cannot_be_drawn_is_said_in_words(trained, open_server, broken):
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


def test_entries_are_those_of_the_pairs_and_sigma_the_models(trained, actions, open_server):
    server = open_server(trained)
    batches = server.workspace.once(TrainBatches)
    found = batches.start(1, 2).wait().result
    rows = [json.loads(line) for line in (actions.parent / "pairs.jsonl").read_text().splitlines()]
    given = {(row["query"], row["document"]): row["relevance"] for row in rows}
    queries, documents = found.queries, found.documents
    expected = [[given.get((query, document), -1.0) for document in documents] for query in queries]
    assert found.known == pytest.approx(np.array(expected)) and (found.known > 0).sum() >= 8
    assert len(queries) == 8 and found.epoch == 1 and found.whole == found.known.shape
    model = load_relevance_model(trained / "model")
    cosines = encode_texts(model, queries, "query") @ encode_texts(model, documents, "document").T
    assert found.sigma == pytest.approx(model.head.probability(cosines.astype(np.float64)))
    assert batches.start(0, 2).wait().result.queries != queries
    html = Browser(server).get("/batch", params={"epoch": "2", "batch": "3"}).text
    assert "Epoch 2, batch 3 of 4" in html
    counts = [
        int(number.replace(",", "")) for number in re.findall(r'<th scope="row">[^<]*</th><td>([\d,]+)</td>', html)
    ]
    assert sum(counts) == found.known.size
    drawn = [int(width) for path in re.findall(r' d="([^"]+)"', html.partition("</svg>")[0]) for width in
             re.findall(r"h(\d+)v1", path)]  # fmt: skip
    assert sum(drawn) == found.known.size
    zeros = np.sort(found.sigma[found.known == -1])[::-1]
    assert re.findall(r"<li><strong>([\d.]+)<", html) == [f"{value:.2f}" for value in zeros[:10]]


@pytest.mark.parametrize("query", [{"batch": "99999"}, {"epoch": "-1", "batch": "x"}, {"epoch": "9" * 40}])
def test_an_address_with_nonsense_is_a_page(trained, open_server, query):
    server = open_server(trained)
    assert Browser(server).get("/batch", params=query).status_code == 200


def test_before_there_is_a_model_the_grades_are_shown(trained, open_server):
    shutil.rmtree(trained / "model")
    server = open_server(trained)
    assert server.workspace.once(TrainBatches).start(0, 0).wait().result.sigma is None
    html = Browser(server).get("/batch").text
    assert "when it is trained" in html and "assumed zero<" in html
