"""A wrong model name ends at once: in a process of its own, with the network switched on, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bixse.encoders.loading.build import check_hub_name
from bixse.errors import ModelError

CODE = """
import json, sys
from bixse.encoders.loading.build import check_hub_name
from bixse.errors import ModelError
found = []
for name in sys.argv[1:]:
    try:
        check_hub_name(name)
        found.append("")
    except ModelError as error:
        found.append(str(error))
print(json.dumps(found))
"""
NO_NAMES = ["bm26", "BM25", "bm-25", "demo1", "Demo", "a b", "~/model", "runs\\model", "model?"]


@contextmanager
def hub(status, error):
    """A hub that gives every request the same answer: its address, and the files that were asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(status)
            self.send_header("X-Error-Code", error)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def messages(names, endpoint, folder):
    """What is said of each name; "" where it is left to the libraries."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(folder)}
    environment |= {"SENTENCE_TRANSFORMERS_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_that_the_hub_lacks_is_asked_for_once(tmp_path):
    with hub(404, "RepoNotFound") as (address, asked):
        found = messages(["owner/name", "name"], address, tmp_path)
    assert all("no such model on the hub" in message for message in found)
    asked = [path for path in asked if path.startswith("/api/models/")]
    assert len(asked) == len(set(asked)) == 3  # a name without owner may be one of sentence-transformers' own


def test_a_hub_that_cannot_be_reached_is_said(tmp_path):
    with hub(404, "") as (address, _):
        pass  # nobody listens there any more
    assert "no answer from the hub" in messages(["owner/name"], address, tmp_path)[0]


def test_what_can_be_no_name_is_refused_without_the_network(tmp_path):
    with hub(404, "RepoNotFound") as (address, asked):
        found = messages(NO_NAMES, address, tmp_path)
    assert asked == []
    assert all("no such folder" in message for message in found)


def test_the_word_that_was_meant_is_named():
    with pytest.raises(ModelError, match="did you mean 'bm25'"):
        check_hub_name("bm26")


def test_a_gated_model_is_left_to_the_libraries(tmp_path):
    with hub(403, "GatedRepo") as (address, asked):
        assert messages(["owner/name"], address, tmp_path) == [""]
    assert asked


def test_a_model_in_the_cache_of_sentence_transformers_is_not_asked_for(tmp_path):
    cached = tmp_path / "models--owner--name"
    for file, content in (("refs/main", "0" * 40), (f"snapshots/{'0' * 40}/config.json", "{}")):
        (cached / file).parent.mkdir(parents=True)
        (cached / file).write_text(content, encoding="utf-8")
    with hub(404, "RepoNotFound") as (address, asked):
        assert messages(["owner/name"], address, tmp_path) == [""]
        assert asked == []
        assert messages(["owner/other"], address, tmp_path) != [""]
