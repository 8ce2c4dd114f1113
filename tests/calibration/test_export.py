"""A cut for vector stores: the inverse of the head, and the snippets run in the stores that are installed."""

from __future__ import annotations

import json
import math
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from bixse.calibration.calibrate import CUTS_FILE, STORES, cuts_of, write_export
from bixse.encoders.head import RelevanceHead, Threshold
from bixse.errors import InputError

HEAD = RelevanceHead(12.0, -5.0, slope=0.8, intercept=0.3)
VECTORS = np.random.default_rng(0).normal(size=(60, 8))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
QUERY = VECTORS[0] + 0.3 * VECTORS[1]
COSINES = VECTORS @ QUERY / np.linalg.norm(QUERY)
WANTED = 0.4
"""A probability that some of the documents reach and most do not."""


@pytest.fixture
def snippet(tmp_path):
    """Makes the names of a store's snippet, cut at `WANTED`."""

    def run(store):
        files = write_export(cuts_of(HEAD, [WANTED]), "runs/mine/model", tmp_path / "export")
        names = {}
        exec(compile(Path(files[store]).read_text(encoding="utf-8"), files[store], "exec"), names)
        return names

    return run


def relevant():
    """Documents with at least the wanted probability, the best first."""
    found = [int(n) for n in np.argsort(-COSINES) if HEAD.probability(float(COSINES[n])) >= WANTED]
    assert 2 <= len(found) <= 20
    return found


@pytest.mark.parametrize("probability", [1e-6, 0.1, 0.5, 0.93])
def test_a_cut_is_the_inverse_of_the_head(probability):
    assert HEAD.probability(HEAD.cosine_at(probability)) == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize("probability", [0.0, 1.0, math.nan])
def test_a_probability_that_no_cosine_has(probability):
    with pytest.raises(InputError):
        HEAD.cosine_at(probability)


def test_a_head_that_says_nothing():
    with pytest.raises(InputError, match="slope"):
        RelevanceHead(12.0, -5.0, slope=0.0).cosine_at(0.5)


def test_thresholds_of_precisions_are_cuts_too(tmp_path):
    found = Threshold(0.9, 0.62, 0.91, 0.85, 0.95, 0.4, 120, 60, 0.5)
    head = RelevanceHead(12.0, -5.0, thresholds=(found,))
    cuts = cuts_of(head, [0.5])
    assert [(cut.probability, cut.precision) for cut in cuts] == [(0.62, 0.9), (0.5, None)]
    files = write_export(cuts, "model", tmp_path)
    assert json.loads((tmp_path / CUTS_FILE).read_text())[0]["cosine"] == cuts[0].cosine
    assert set(files) == {"cuts", *STORES}
    assert all("$" not in Path(path).read_text(encoding="utf-8") for path in files.values())


def test_langchain(snippet):
    embeddings = pytest.importorskip("langchain_core.embeddings")
    stores = pytest.importorskip("langchain_core.vectorstores")

    class Known(embeddings.Embeddings):
        def embed_documents(self, texts):
            return [VECTORS[int(text)].tolist() for text in texts]

        def embed_query(self, text):
            return QUERY.tolist()

    store = stores.InMemoryVectorStore(Known())
    store.add_texts([str(number) for number in range(len(VECTORS))])
    found = snippet("langchain")["search"](store, "query", k=30)
    assert [int(document.page_content) for document, _ in found] == relevant()


def test_llama_index(snippet):
    schema = pytest.importorskip("llama_index.core.schema")
    nodes = [schema.NodeWithScore(node=schema.TextNode(text=str(n)), score=float(COSINES[n])) for n in range(60)]

    class Retriever:
        def retrieve(self, query):
            return sorted(nodes, key=lambda node: -node.score)

    found = snippet("llama_index")["search"](Retriever(), "query")
    assert [int(node.node.text) for node in found] == relevant()


def test_haystack(snippet):
    haystack = pytest.importorskip("haystack")
    memory = pytest.importorskip("haystack.document_stores.in_memory")
    store = memory.InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents([haystack.Document(content=str(n), embedding=VECTORS[n].tolist()) for n in range(60)])
    found = snippet("haystack")["search"](store, QUERY, k=30)
    assert [int(document.content) for document in found] == relevant()


def test_qdrant(snippet):
    client = pytest.importorskip("qdrant_client")
    store = client.QdrantClient(":memory:")
    distance = client.models.VectorParams(size=8, distance=client.models.Distance.COSINE)
    store.create_collection("documents", vectors_config=distance)
    points = [client.models.PointStruct(id=n, vector=VECTORS[n].tolist()) for n in range(60)]
    store.upsert("documents", points)
    found = snippet("qdrant")["search"](store, "documents", QUERY, k=30)
    assert [point.id for point in found] == relevant()


@pytest.fixture
def answering():
    """A server that keeps the body of each request and answers as both products do; no index is searched."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            content = json.dumps({"hits": {"hits": [{"_id": "7"}]}}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Elastic-Product", "Elasticsearch")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()


def test_elasticsearch_is_asked_for_a_cosine(snippet, answering):
    elasticsearch = pytest.importorskip("elasticsearch")
    address, bodies = answering
    assert snippet("elasticsearch")["search"](elasticsearch.Elasticsearch(address), "docs", QUERY) == [{"_id": "7"}]
    assert bodies[0]["knn"]["similarity"] == pytest.approx(HEAD.cosine_at(WANTED), abs=1e-6)


def test_opensearch_is_asked_for_its_score(snippet, answering):
    opensearch = pytest.importorskip("opensearchpy")
    address, bodies = answering
    assert snippet("opensearch")["search"](opensearch.OpenSearch(address), "docs", QUERY) == [{"_id": "7"}]
    asked = bodies[0]["query"]["knn"]["embedding"]["min_score"]
    assert 2 * asked - 1 == pytest.approx(HEAD.cosine_at(WANTED), abs=1e-6)


def test_pgvector_is_asked_for_a_distance(snippet):
    """The statement as it is sent; a server with the extension is not at hand."""
    asked = []

    class Connection:
        def execute(self, statement, values):
            asked.append((statement, values))
            return self

        def fetchall(self):
            return []

    snippet("pgvector")["search"](Connection(), "documents", QUERY)
    (statement, values) = asked[0]
    assert "FROM documents" in statement and {"query", "distance", "k"} == set(values)
    assert 1 - values["distance"] == pytest.approx(HEAD.cosine_at(WANTED), abs=1e-6)
