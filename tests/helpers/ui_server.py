"""Run folders of `bixse grade`, and browsers that a server of theirs let in."""

import json
import re

from starlette.testclient import TestClient

from bixse.data.graded_pairs import Pair
from bixse.judging.judge import Answer, Usage
from helpers.scripted_judge import ScriptedJudge, graded

PORT = 8765
ORIGIN = f"http://127.0.0.1:{PORT}"
SHARES = [[0.9, 0.1, 0.0, 0.0], [0.2, 0.5, 0.2, 0.1], [0.0, 0.2, 0.6, 0.2], [0.0, 0.0, 0.1, 0.9]]


def by_number(question):
    """A judge whose grade follows from the document's number."""
    shares = SHARES[int(re.findall(r"\d+", question.document_id)[-1]) % 4]
    expected = sum(grade * share for grade, share in enumerate(shares))
    low, high = max(0.0, expected - 0.1), min(3.0, expected + 0.1)
    return Answer("graded", "token-ids", tuple(shares), expected, low, high, "", Usage(prompt=10), judge="scripted")


def graded_folder(folder, queries=10, documents=4, texts="document {1} of query {0}".format):
    pairs = [
        Pair(f"q{q}", f"query number {q}", f"d{q}-{d}", texts(q, d)) for q in range(queries) for d in range(documents)
    ]
    graded(pairs, ScriptedJudge(rule=by_number), folder, rubric="trec-dl-0-3")
    return folder


def write_record(folder, **fields):
    """Write a run.json with these fields, and the others that every record has."""
    record = dict.fromkeys(("started", "fingerprint"), "") | {name: {} for name in ("config", "inputs", "timings")}
    record |= {"command": "train", "status": "running", "results": {}, **fields}
    (folder / "run.json").write_text(json.dumps(record))


class Browser(TestClient):
    def __init__(self, server, person=""):
        super().__init__(server.guard, base_url=ORIGIN, follow_redirects=True)
        self.server = server
        self.get("/enter", params={"token": server.sessions.new_token(), "person": person})

    def submit(self, path, form=None, headers=None, **more):
        return self.post(path, data=form or {}, headers={"origin": ORIGIN, **(headers or {})}, **more)


def events_of(run):
    path = run / "labels.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
