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

from bixse.encoders.loading.hub import check_hub_name
from bixse.errors import ModelError

CODE = """
import json, sys, time
import huggingface_hub
from bixse.encoders.loading.build import build_encoder
from bixse.errors import ModelError
found = []
for name in sys.argv[1:]:
    started = time.perf_counter()
    try:
        build_encoder(name)
    except ModelError as error:
        found.append([time.perf_counter() - started, str(error)])
print(json.dumps(found))
"""
NO_NAMES = ["bm26", "BM25", "bm-25", "demo1", "Demo", "a b", "~/model", "runs\\model", "model?"]


@contextmanager
def hub(status, error):
    """A hub that gives every request the same answer: its address, and the files that were asked for."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            if "/resolve/" in self.path:
                asked.append(self.path)
            self.send_response(status)
            self.send_header("X-Error-Code", error)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self):
            self.do_HEAD()

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


def build(names, endpoint, folder):
    """Seconds and message of each model that cannot be built."""
    environment = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CODE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(names)
    return [seconds for seconds, _ in found], [message for _, message in found]


def test_a_model_that_the_hub_lacks_is_asked_for_once(tmp_path):
    with hub(404, "RepoNotFound") as (address, asked):
        seconds, messages = build(["owner/name", "name"], address, tmp_path)
    assert all("no such model on the hub" in message for message in messages)
    assert len(asked) == len(set(asked)) == 3  # a name without owner may be one of sentence-transformers' own
    assert max(seconds) < 5


def test_a_hub_that_cannot_be_reached_is_not_tried_again_and_again(tmp_path):
    with hub(404, "") as (address, _):
        pass  # nobody listens there any more
    seconds, messages = build(["owner/name"], address, tmp_path)
    assert "no answer from the hub" in messages[0]
    assert seconds[0] < 5


def test_what_can_be_no_name_is_refused_without_the_network(tmp_path):
    with hub(404, "RepoNotFound") as (address, asked):
        _, messages = build(NO_NAMES, address, tmp_path)
    assert asked == []
    assert all("no such folder" in message for message in messages)


def test_the_word_that_was_meant_is_named():
    with pytest.raises(ModelError, match="did you mean 'bm25'"):
        check_hub_name("bm26")


def check(name, endpoint, **variables):
    """What a process of its own, with the network switched on, says of a name."""
    code = "import sys; from bixse.encoders.loading.hub import check_hub_name; check_hub_name(sys.argv[1])"
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0", **variables}
    done = subprocess.run(
        [sys.executable, "-c", code, name], env=environment, capture_output=True, text=True, check=False
    )
    return done.stderr


def test_a_gated_model_is_left_to_the_libraries():
    with hub(403, "GatedRepo") as (address, asked):
        assert "ModelError" not in check("owner/name", address)
    assert asked


def test_a_model_in_the_cache_of_sentence_transformers_is_not_asked_for(tmp_path):
    cached = tmp_path / "models--owner--name"
    for file, content in (("refs/main", "0" * 40), (f"snapshots/{'0' * 40}/config.json", "{}")):
        (cached / file).parent.mkdir(parents=True)
        (cached / file).write_text(content, encoding="utf-8")
    with hub(404, "RepoNotFound") as (address, asked):
        assert "ModelError" not in check("owner/name", address, SENTENCE_TRANSFORMERS_HOME=str(tmp_path))
        assert asked == []
        assert "ModelError" in check("owner/other", address, SENTENCE_TRANSFORMERS_HOME=str(tmp_path))
