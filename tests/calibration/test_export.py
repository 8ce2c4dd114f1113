import json
import math
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
    """Return the documents from the wanted probability on, best first."""
    return [int(n) for n in np.argsort(-COSINES) if HEAD.probability(float(COSINES[n])) >= WANTED]


@pytest.mark.parametrize("probability", [1e-6, 0.1, 0.5, 0.93])
def test_a_cut_is_the_inverse_of_the_head(probability):
    assert HEAD.probability(HEAD.cosine_at(probability)) == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize("probability", [0.0, 1.0, math.nan])
def test_a_probability_that_no_cosine_has(probability):
    with pytest.raises(InputError):
        HEAD.cosine_at(probability)
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


class Requests(list):
    """Stands for a client or connection: keeps each request, and answers it without a server."""

    def search(self, **request):
        self.append(request)
        return {"hits": {"hits": []}}

    def execute(self, statement, values):
        self.append((statement, values))
        return self

    def fetchall(self):
        return []


def test_servers_are_asked_for_the_cosine_in_their_own_measure(snippet):
    requests = Requests()
    for store in ("elasticsearch", "opensearch", "pgvector"):
        snippet(store)["search"](requests, "documents", QUERY)
    elastic, opensearch, (statement, values) = requests
    cosines = [elastic["knn"]["similarity"], 2 * opensearch["body"]["query"]["knn"]["embedding"]["min_score"] - 1]
    assert [*cosines, 1 - values["distance"]] == pytest.approx([HEAD.cosine_at(WANTED)] * 3, abs=1e-6)
    assert "FROM documents" in statement and {"query", "distance", "k"} == set(values)
