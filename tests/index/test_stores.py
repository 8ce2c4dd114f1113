"""Exporting an index to a vector database and searching there; every test runs against each database.

Qdrant is the client's own local mode, which keeps what a server keeps. With a server at QDRANT_TEST_URL the tests run
against that too, in a collection that they make and delete.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.encoders.head import RelevanceHead
from bixse.errors import InputError, ModelError, OutputExistsError
from bixse.evaluation.evaluate_files import evaluate
from bixse.index.index_files import open_files
from bixse.index.make_index import export_index
from bixse.index.search import IndexSystem, open_index
from bixse.index.vector_store import connect
from helpers.command import call, refused
from helpers.one_answer import one_answer
from helpers.toy import index_of

pytestmark = pytest.mark.precision("float32")
SERVER = "QDRANT_TEST_URL"
PACKAGES = {"lancedb": "lancedb", "qdrant": "qdrant_client"}
QUERIES = ["copy a file", "delete tree", "sort", "how do i find the path"]
HERE = """
import bixse.index.qdrant as module
from qdrant_client import QdrantClient
module.connected = lambda url: QdrantClient(path={folder!r})
"""
SLOW_EXPORT = """
import sys, time
from bixse.index import make_index, vector_store
found = vector_store.connect(sys.argv[2])
kind, write = type(found), type(found).write
found.close()
kind.together = 8
def slow(*arguments):
    time.sleep(0.1)
    write(*arguments)
    print("wrote", flush=True)
kind.write = slow
print("ready", flush=True)
make_index.export_index(*sys.argv[1:])
"""


@pytest.fixture(params=["lancedb", "qdrant", "qdrant server"])
def database(request):
    if importlib.util.find_spec(PACKAGES[request.param.split()[0]]) is None:
        pytest.skip(f"needs bixse[{request.param.split()[0]}]")
    if request.param == "qdrant server" and SERVER not in os.environ:
        pytest.skip(f"needs a Qdrant server at {SERVER}")
    return request.param


@pytest.fixture
def preamble(database, tmp_path):
    """What another process does first, so that it finds the same database."""
    return HERE.format(folder=str(tmp_path / "qdrant")) if database == "qdrant" else ""


@pytest.fixture
def store(database, tmp_path, monkeypatch):
    """The name of a table or collection that does not exist."""
    if database == "lancedb":
        yield f"lancedb:{tmp_path}/lance/documents"
        return
    from qdrant_client import QdrantClient

    from bixse.index import qdrant

    if database == "qdrant":
        monkeypatch.setattr(qdrant, "connected", lambda url: QdrantClient(path=str(tmp_path / "qdrant")))
        yield "qdrant:http://localhost:6333/documents"
        return
    name = f"bixse-test-{os.getpid()}-{time.monotonic_ns()}"
    yield f"qdrant:{os.environ[SERVER]}/{name}"
    QdrantClient(url=os.environ[SERVER]).delete_collection(name)


@pytest.fixture
def model(tiny_model):
    tiny_model.head = RelevanceHead(10.0, -5.0)
    return tiny_model


@pytest.fixture
def collection(corpus, documents):
    queries = {f"q{n}": text for n, text in enumerate(QUERIES)}
    judged = {f"q{n}": {name: (n + rank) % 3 for rank, name in enumerate(documents)} for n in range(4)}
    texts = {name: Document(*text) for name, text in documents.items()}
    save_collection(Collection("corpus", texts, queries, {"test": judged}), corpus)
    return corpus


@pytest.fixture
def index(model, collection, tmp_path):
    index_of(model, collection, tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def approximate(monkeypatch):
    """Lists also in a small table of LanceDB."""
    if importlib.util.find_spec("lancedb") is not None:
        from bixse.index import lance

        monkeypatch.setattr(lance, "INDEXED_FROM", 1)


def same_hits(found, expected):
    assert [(hit.document_id, hit.title, hit.text) for hit in found] == [
        (hit.document_id, hit.title, hit.text) for hit in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert (one.cosine, one.probability) == pytest.approx((other.cosine, other.probability), abs=1e-6)


@pytest.mark.parametrize("name", ["lancedb:", "lancedb:folder", "lancedb:folder/a b", "qdrant:host/name", "chroma:a/b"])
def test_a_name_of_another_form_is_refused(name):
    with pytest.raises(InputError, match="vector database"):
        connect(name)


@pytest.mark.parametrize("name", ["lancedb:folder/table", "qdrant:http://localhost/name"])
def test_a_package_that_is_missing_is_named(monkeypatch, capsys, name, collection):
    package = PACKAGES[name.partition(":")[0]]
    monkeypatch.delitem(sys.modules, "bixse.index.qdrant", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    message = refused(capsys, "index", "demo", "--collection", collection, "--to", name)
    assert f"bixse[{name.partition(':')[0]}]" in message


def test_no_server_at_the_url(capsys, collection):
    pytest.importorskip("qdrant_client", reason="needs bixse[qdrant]")
    with one_answer(200) as (web_page, _):
        for url in ("http://127.0.0.1:9", "http://127.0.0.1:port", web_page):
            name = f"qdrant:{url}/documents"
            for words in (("index", "demo", "--collection", collection, "--to", name), ("search", name, "copy")):
                message = refused(capsys, *words)
                assert url in message and "QDRANT_API_KEY" in message


def test_what_bixse_did_not_write_is_refused_and_kept(store, database, index, model):
    place, _, name = store.partition(":")[2].rpartition("/")
    if database == "lancedb":
        import lancedb

        lancedb.connect(place).create_table(name, [{"vector": [1.0, 0.0], "item": "mine"}])
    else:
        from bixse.index import qdrant

        client = qdrant.connected(place)
        size = qdrant.models.VectorParams(size=2, distance=qdrant.models.Distance.DOT)
        client.create_collection(name, vectors_config=size)
        client.close()
    for act in (lambda: export_index(index, store), lambda: open_index(store, model)):
        with pytest.raises(InputError, match="no manifest"):
            act()


def test_another_encoder_or_corpus_is_refused(store, index, model, collection, documents, write_corpus, tmp_path):
    export_index(index, store)
    write_corpus({name: documents[name] for name in list(documents)[:9]})
    index_of(model, collection, tmp_path / "shorter")
    with pytest.raises(OutputExistsError, match="another corpus and documents"):
        export_index(tmp_path / "shorter", store)
    model[0].auto_model.embeddings.word_embeddings.weight.data += 0.01
    with pytest.raises(ModelError, match="other weights"):
        open_index(store, model)
    write_corpus(documents)
    index_of(model, collection, tmp_path / "other")
    with pytest.raises(OutputExistsError, match="another weights"):
        export_index(tmp_path / "other", store)


def test_nothing_and_a_part_of_an_index_are_not_searched(store, index, model, tmp_path):
    with pytest.raises(InputError, match="no such table"):
        open_index(store, model)
    assert not (tmp_path / "lance").exists(), "asking makes nothing"
    with closing(open_files(index)) as files, closing(connect(store)) as half:
        half.create(files.manifest)
        half.write(0, files.documents(range(30)), files.embeddings(0, 30))
    with pytest.raises(InputError, match="got 30 documents; expected 100"):
        open_index(store, model)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_an_export_that_is_killed_goes_on(store, preamble, tiny_model_path, collection, model, tmp_path):
    index = tmp_path / "index"
    index_of(tiny_model_path, collection, index)
    words = [sys.executable, "-c", preamble + SLOW_EXPORT, str(index), store]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    for _ in range(3):
        assert process.stdout.readline() == "wrote\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(InputError, match="documents; expected 100"):
        open_index(store, model)
    words[2] = preamble + SLOW_EXPORT.replace("time.sleep(0.1)", "pass")
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert 7 <= done.stdout.count("wrote") <= 10, "what was written is not written again"
    with open_index(store, model, exact=True) as there, open_index(index, model) as here:
        for query in QUERIES:
            same_hits(there.search(query, top=100), here.search(query, top=100))
    assert export_index(index, store) == 0


@pytest.mark.usefixtures("approximate")
def test_exact_answers_are_those_of_the_local_index_and_approximate_ones_are_scored_exactly(
    store, model, collection, tmp_path
):
    index_of(model, collection, tmp_path / "index", shards=2)
    assert export_index(tmp_path / "index", store) == 100
    with open_index(store, model, exact=True) as there, open_index(tmp_path / "index", model) as here:
        assert len(there) == 100
        limits = {"top": 7, "threshold": 0.2}
        for found, expected in zip(there.search(QUERIES, **limits), here.search(QUERIES, **limits), strict=True):
            same_hits(found, expected)
        run = dict(zip("abcd", QUERIES, strict=True))
        assert {name: list(found) for name, found in there.search_run(run).items()} == {
            name: list(found) for name, found in here.search_run(run).items()
        }
        cosine_of = {hit.document_id: hit.cosine for hit in here.search("copy a file", top=100)}
    with open_index(store, model) as there:
        found = there.search("copy a file", top=5)
        assert len(there.search("copy a file", top=1000)) == 100, "too few found: all are scored"
    assert len(found) == 5
    assert [hit.cosine for hit in found] == pytest.approx([cosine_of[hit.document_id] for hit in found], abs=1e-6)
    assert [hit.cosine for hit in found] == sorted((hit.cosine for hit in found), reverse=True)


@pytest.mark.usefixtures("approximate")
def test_evaluation_equals_that_of_the_local_index_and_of_the_model(store, index, model, collection, tmp_path):
    export_index(index, store)
    model.save_pretrained(str(tmp_path / "moved"), create_model_card=False)
    at = str(tmp_path / "moved")
    expected = evaluate(model, collection)
    for name in (store, str(index)):
        system = IndexSystem(name, exact=True, model_at=at)
        found = evaluate(system, collection, tmp_path / f"out-{name == store}")
        assert found.metrics == pytest.approx(expected.metrics)
        assert evaluate(system, collection, tmp_path / f"out-{name == store}").reused
        system.release()
    (collection / "corpus.jsonl").write_text('{"_id": "d0", "title": "", "text": "another"}\n', encoding="utf-8")
    (collection / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n", encoding="utf-8")
    with pytest.raises(InputError, match="another corpus"):
        evaluate(IndexSystem(store, model_at=at), collection)


def test_the_verbs(store, capsys, tmp_path, tiny_model_path, collection):
    words = ("index", tiny_model_path, "--collection", collection, "--out", tmp_path / "index", "--to", store)
    code, envelope = call(capsys, *words)
    assert (code, envelope["metrics"]["written"], envelope["artifacts"]["store"]) == (0, 100, store)
    code, envelope = call(capsys, *words)
    assert (code, envelope["metrics"]["reused"], envelope["metrics"]["written"]) == (0, True, 0)
    for verb, *more, figure in (
        ("search", "copy a file", "results"),
        ("evaluate", "--collection", collection, "ndcg@10"),
    ):
        ways = [call(capsys, verb, way, *more, "--exact")[1]["metrics"] for way in (store, tmp_path / "index")]
        assert ways[0][figure] == ways[1][figure]
    queries = collection / "queries.jsonl"
    code, envelope = call(capsys, "search", store, "--queries", queries, "--out", tmp_path / "run.trec")
    assert (code, envelope["metrics"]) == (0, {"queries": 4, "documents": 40})
    assert "--exact" in refused(capsys, "evaluate", tiny_model_path, "--collection", collection, "--exact")
