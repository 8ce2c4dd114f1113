import signal
import subprocess
import sys
import time

import pytest

from bixse.index.index_files import read_manifest
from bixse.index.search import open_index
from helpers.toy import index_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")]

SCRIPT = """
import sys, time
from bixse.encoders import encode
from bixse.search import store
from bixse.index.index_settings import IndexSettings
from bixse.index.make_index import make_index
store.SAVED_TOGETHER = {"cpu": 4}
encode_here = encode.encode_here
def slow(*arguments):
    time.sleep(0.05)
    return encode_here(*arguments)
encode.encode_here = slow
print("ready", flush=True)
make_index(IndexSettings(model=sys.argv[1], collection=sys.argv[2]), sys.argv[3])
"""


def test_index_killed_again_and_again_is_completed(tiny_model_path, tiny_model, write_corpus, documents, tmp_path):
    words = (tiny_model_path, write_corpus(dict(list(documents.items())[:20])), tmp_path / "index")
    index_of(*words)
    write_corpus(documents)
    for seconds in (0.3, 0.6, 0.9):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, words)], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode != -signal.SIGKILL:
            break
        with open_index(words[-1], tiny_model) as index:
            assert len(index.search("copy", top=1000)) == len(index)
            assert len(index) in (20, len(documents))  # the old index or the new one
    report = index_of(*words)
    assert report.encoded < 80
    with open_index(words[-1], tiny_model) as index:
        assert {hit.document_id for hit in index.search("copy", top=1000)} == set(documents)
    assert [path.name for path in words[-1].glob("files-*")] == [report.manifest.folder]


REPLACING = """
import json, pathlib, sys
from bixse.index.index_settings import IndexSettings
from bixse.index.make_index import make_index
corpus = pathlib.Path(sys.argv[2]) / "corpus.jsonl"
rows = [json.loads(line) for line in corpus.read_text().splitlines()]
for version in range(20):
    changed = [{**row, "text": f"{row['text']} {version}"} for row in rows]
    corpus.write_text("".join(json.dumps(row) + chr(10) for row in changed))
    make_index(IndexSettings(model=sys.argv[1], collection=sys.argv[2]), sys.argv[3])
"""


def test_readers_see_complete_indexes_while_a_process_replaces_them(
    tiny_model_path, tiny_model, write_corpus, documents, tmp_path
):
    words = (tiny_model_path, write_corpus(documents), tmp_path / "index")
    index_of(*words)
    # no fork: of a process with the threads of torch and pyarrow it may hang for ever
    process = subprocess.Popen([sys.executable, "-c", REPLACING, *map(str, words)])
    seen = set()
    while process.poll() is None:
        with open_index(words[-1], tiny_model) as index:
            versions = {hit.text.rpartition(" ")[2] for hit in index.search("copy", top=100)}
        digits = {version for version in versions if version.isdigit()}
        assert len(digits) <= 1
        assert not digits or versions == digits
        seen |= digits
    assert process.returncode == 0
    assert len(seen) > 2
    assert read_manifest(words[-1]).documents == 100
