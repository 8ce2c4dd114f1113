"""Processes that are killed at any moment, that write at once, and that read while others write."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from word_encoder import WordEncoder, documents, expected, write_documents

from bixse.retrieval.index import open_index
from bixse.retrieval.index_build import make_index
from bixse.retrieval.index_changes import add_documents, delete_documents
from bixse.retrieval.index_files import MANIFEST_FILE, PENDING_FILE, read_manifest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")]

SERVER = """
import json, os, pathlib, resource, signal, sys
sys.path.insert(0, sys.argv[1])
from word_encoder import WordEncoder, documents, write_documents
from bixse.errors import StorageError
from bixse.retrieval import index_build
from bixse.retrieval.index import open_index
from bixse.retrieval.index_build import make_index
from bixse.retrieval.index_changes import add_documents, delete_documents, rewrite_index
index_build.LARGEST_SHARD = 40
while line := sys.stdin.readline():
    place, code = json.loads(line)
    folder = pathlib.Path(place)
    child = os.fork()
    if child == 0:
        try:
            exec(code)
        except StorageError as error:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            (folder / "said.txt").write_text(str(error))
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Loads the libraries once; what it reads is run by a process of its own, whose id and exit code it writes."""
MAKE = "make_index(WordEncoder(pause=0.0005), folder / 'corpus', folder / 'index', shard_size=20)"
CHANGES = {
    "add": "add_documents(folder / 'index', folder / 'add.jsonl', WordEncoder(pause=0.0005))",
    "delete": "delete_documents(folder / 'index', [f'd{n}' for n in range(0, 200, 3)])",
    "compact": "rewrite_index(folder / 'index', compact=True)",
}
NEW = {**documents(150, 200, "two"), **documents(200, 260)}


class Server:
    """Runs code in processes of their own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(Path(__file__).parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def begin(self, folder: Path, code: str) -> int:
        """Start some code; returns the id of its process."""
        self.process.stdin.write(json.dumps([str(folder), code]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> int:
        """The exit code of the process."""
        return int(self.process.stdout.readline())

    def kill_after(self, folder: Path, code: str, seconds: float) -> bool:
        """Run some code and kill its process; False where it was done before."""
        child = self.begin(folder, code)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        return self.end() == -signal.SIGKILL


@pytest.fixture(scope="module")
def servers():
    started = [Server(), Server()]
    for server in started:  # the libraries are loaded
        server.begin(Path(), "pass")
        assert server.end() == 0
    yield started
    for server in started:
        server.process.kill()
        server.process.communicate()


@pytest.fixture
def folder(tmp_path):
    write_documents(tmp_path / "corpus" / "corpus.jsonl", documents(0, 200))
    write_documents(tmp_path / "add.jsonl", NEW)
    return tmp_path


@pytest.fixture
def made(folder):
    make_index(WordEncoder(), folder / "corpus", folder / "index", shard_size=20)
    return folder


def check_content(folder: Path, found: dict[str, tuple[str, str]]) -> None:
    """The index holds these documents and no others; every file is as it was written."""
    with open_index(folder / "index", WordEncoder()) as index:
        index.check()
        hits = index.search("text version one", top=10_000)
    assert {hit.document_id: (hit.title, hit.text) for hit in hits} == found
    cosines = dict(expected(found, "text version one", 10_000))
    assert {hit.document_id: hit.cosine for hit in hits} == pytest.approx(cosines, abs=1e-6)


def check_no_leftover(folder: Path) -> None:
    named = {file.name for file in read_manifest(folder / "index").files()}
    assert {path.name for path in (folder / "index").iterdir()} == {MANIFEST_FILE, ".lock", *named}


def seconds_of(server: Server, folder: Path, code: str) -> float:
    """How long a process takes that is not killed, on a copy."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        started = time.monotonic()
        server.begin(Path(copy), code)
        assert server.end() == 0
        return time.monotonic() - started


def test_an_index_that_is_killed_again_and_again_is_made_in_the_end(folder, servers):
    """The same command goes on; what was encoded stays."""
    whole = seconds_of(servers[0], folder, MAKE)
    kept, kills = [0], 0
    while not (folder / "index" / MANIFEST_FILE).exists():
        kills += servers[0].kill_after(folder, MAKE, random.uniform(0.2, 0.7) * whole)
        if (folder / "index" / PENDING_FILE).exists():
            kept.append(len(json.loads((folder / "index" / PENDING_FILE).read_text())["shards"]))
        assert len(kept) < 100, "it does not come to an end"
    assert kept == sorted(kept)
    assert kills >= 1
    check_content(folder, documents(0, 200))
    delete_documents(folder / "index", ["d0"])
    check_no_leftover(folder)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_is_killed_is_there_whole_or_not_at_all(made, servers, change, tmp_path_factory):
    delete_documents(made / "index", ["d1"])
    now = {name: document for name, document in documents(0, 200).items() if name != "d1"}
    after = {
        "add": {**now, **NEW},
        "delete": {name: document for n, (name, document) in enumerate(documents(0, 200).items()) if n % 3 and n != 1},
        "compact": now,
    }[change]
    generation = read_manifest(made / "index").generation
    whole = seconds_of(servers[0], made, CHANGES[change])
    former = tmp_path_factory.mktemp("former") / "copy"
    shutil.copytree(made, former)
    kills = 0
    for _ in range(30):
        kills += servers[0].kill_after(made, CHANGES[change], random.uniform(0, 1.1) * whole)
        done = read_manifest(made / "index").generation > generation
        check_content(made, after if done else now)
        if done:
            delete_documents(made / "index", ["d2"])
            check_no_leftover(made)
            shutil.rmtree(made)
            shutil.copytree(former, made)
    assert kills >= 5


def test_one_of_two_processes_writes(made, servers):
    servers[0].begin(made, CHANGES["add"].replace("0.0005", "0.02"))
    ends = time.monotonic() + 60
    while not (made / "index" / PENDING_FILE).exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
    servers[1].begin(made, CHANGES["delete"])
    assert servers[1].end() == 1
    assert "another process is writing" in (made / "said.txt").read_text()
    check_content(made, documents(0, 200))
    assert servers[0].end() == 0
    check_content(made, {**documents(0, 200), **NEW})


def test_the_lock_of_a_killed_process_is_free(made, servers):
    assert servers[0].kill_after(made, CHANGES["add"].replace("0.0005", "0.5"), 1.0)
    assert delete_documents(made / "index", ["d1"]).deleted == 1


def test_readers_see_whole_states_while_a_process_writes(made, servers):
    """Each state has one version of all texts; a mixture would show two."""
    versions = ["one", "two", "three", "four", "five"]
    add = "add_documents(folder / 'index', write_documents(folder / 'n.jsonl', documents(0, 200, v)), WordEncoder())"
    servers[0].begin(made, f"for v in {versions[1:]}: {add}; rewrite_index(folder / 'index', compact=True)")
    seen: list[str] = []
    while seen[-1:] != ["five"]:
        with open_index(made / "index", WordEncoder()) as index:
            hits = index.search("text", top=1000)
        found = {hit.text.split()[-1] for hit in hits}
        assert (len(hits), len(found)) == (200, 1)
        seen.extend(found - set(seen[-1:]))
    assert servers[0].end() == 0
    assert seen == sorted(set(seen), key=versions.index), "no state comes back"
    assert len(seen) >= 3


@pytest.mark.parametrize("limit", [100, 1_000, 3_000, 5_000, 9_000, 14_000, 20_000])
def test_a_system_that_refuses_to_write_on(made, servers, limit):
    """A limit on the size of files ends a write in its middle, as a full disk does: the index stays as it was."""
    servers[0].begin(
        made,
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, resource.RLIM_INFINITY)); {CHANGES['add']}",
    )
    code = servers[0].end()
    assert (code == 1 and "fix: " in (made / "said.txt").read_text()) or (code == 0 and limit > 5_000)
    check_content(made, documents(0, 200) if code else {**documents(0, 200), **NEW})
    add_documents(made / "index", made / "add.jsonl", WordEncoder())
    check_content(made, {**documents(0, 200), **NEW})
    check_no_leftover(made)
