"""What `--export` writes: cuts, and one snippet per store.

Stores that run here are asked for their probabilities. Of the others, the arithmetic that they are sent is computed.
"""

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from bixse.calibration.calibrate_files import CUTS_FILE, calibrate_into, cuts_of, write_export
from bixse.calibration.calibrate_settings import CalibrateSettings
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError

pytestmark = pytest.mark.precision("float32")
HEAD = RelevanceHead(12.0, -5.0, slope=0.8, intercept=0.3, prior=0.2)
HEADS = {
    "usual": HEAD,
    "prior moved": HEAD.at_prior(0.001),
    "large bias": RelevanceHead(90.0, -70.0),
    "all but 0 and 1": RelevanceHead(4000.0, -2000.0),
}
VECTORS = np.random.default_rng(0).normal(size=(60, 8))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
QUERY = VECTORS[0] + 0.3 * VECTORS[1]
COSINES = VECTORS @ QUERY / np.linalg.norm(QUERY)
WANTED = 0.4
"""A probability that some of the documents reach and most do not, with every head."""
LOWER = 0.01


def load(path):
    spec = importlib.util.spec_from_file_location(f"snippet_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def snippet(tmp_path):
    """Loads a store's snippet, cut at `WANTED`."""

    def made(store, head=HEAD, model="runs/mine/model"):
        return load(Path(write_export(head, cuts_of(head, [WANTED]), model, tmp_path / "export")[store]))

    return made


def test_a_head_of_slope_0_is_refused_before_a_file_is_written(tmp_path):
    rows = [{"query": f"q{n // 4}", "score": (0.9, 0.8, 0.2, 0.1)[n % 4], "relevance": float(n % 4 > 1)}
            for n in range(80)]  # fmt: skip
    (tmp_path / "scores.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chosen = {"scores": tmp_path / "scores.jsonl", "scored_by": "a model", "anyway": True}
    with pytest.raises(InputError, match="slope"):
        calibrate_into(CalibrateSettings(**chosen, export=(0.5,)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_name_with_quotes_and_backslashes_is_a_text_of_the_snippet(snippet):
    name = 'C:\\Users\\new """model""" $x'
    assert {snippet("pgvector", model=name).MODEL} == {name}


# --- stores that run here


def in_duckdb(module, vectors, query, **options):
    with closing(duckdb.connect()) as connection:
        rows = pa.table({"id": range(len(vectors)), "embedding": vectors.tolist()})  # noqa: F841, which DuckDB reads
        size = f"FLOAT[{len(query)}]"
        connection.execute(f"CREATE TABLE documents AS SELECT id, embedding::{size} AS embedding FROM rows")
        return [(row[0], row[-1]) for row in module.search(connection, "documents", query, **options)]


def in_qdrant(module, vectors, query, **options):
    from qdrant_client import QdrantClient, models

    store = QdrantClient(":memory:")
    size = models.VectorParams(size=len(query), distance=models.Distance.COSINE)
    store.create_collection("documents", vectors_config=size)
    store.upsert("documents", [models.PointStruct(id=n, vector=vector) for n, vector in enumerate(vectors.tolist())])
    return [(point.id, point.score) for point in module.search(store, "documents", query, **options)]


def in_lancedb(module, vectors, query, **options):
    import lancedb

    with tempfile.TemporaryDirectory() as folder:
        rows = [{"id": n, "vector": vector} for n, vector in enumerate(vectors.tolist())]
        table = lancedb.connect(folder).create_table("documents", rows)
        return [(row["id"], row["probability"]) for row in module.search(table, query, **options)]


def of_langchain(kind, vectors, query):
    """A store of LangChain that holds the vectors under their numbers, and knows one query."""
    from langchain_core.embeddings import Embeddings

    class Known(Embeddings):
        def embed_documents(self, texts):
            return [vectors[int(text)].tolist() for text in texts]

        def embed_query(self, text):
            return list(map(float, query))

    store = kind(Known())
    store.add_texts([str(number) for number in range(len(vectors))])
    return store


def in_langchain(module, vectors, query, **options):
    from langchain_core.vectorstores import InMemoryVectorStore

    store = of_langchain(InMemoryVectorStore, vectors, query)
    return [(int(document.page_content), p) for document, p in module.search(store, "query", **options)]


def in_llama_index(module, vectors, query, k=10, **options):
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.core.vector_stores import SimpleVectorStore
    from llama_index.core.vector_stores.types import VectorStoreQuery

    store = SimpleVectorStore()
    store.add([TextNode(id_=str(n), text=str(n), embedding=vector) for n, vector in enumerate(vectors.tolist())])
    answer = store.query(VectorStoreQuery(query_embedding=list(map(float, query)), similarity_top_k=k))
    nodes = [
        NodeWithScore(node=TextNode(id_=name, text=name), score=score)
        for name, score in zip(answer.ids, answer.similarities, strict=True)
    ]
    hits = module.search(SimpleNamespace(retrieve=lambda query: nodes), "query", **options)
    return [(int(hit.node.text), hit.score) for hit in hits]


def in_haystack(module, vectors, query, **options):
    from haystack import Document
    from haystack.document_stores.in_memory import InMemoryDocumentStore

    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    store.write_documents([Document(content=str(n), embedding=vector) for n, vector in enumerate(vectors.tolist())])
    return [(int(document.content), document.score) for document in module.search(store, query, **options)]


def in_pgvector(module, vectors, query, address=None, **options):
    import psycopg

    with psycopg.connect(address) as connection:  # what is not committed is gone at the end
        connection.execute("CREATE EXTENSION vector")
        connection.execute(f"CREATE TABLE documents (id INTEGER, embedding vector({len(query)}))")
        with connection.cursor() as cursor:
            rows = [(n, str(vector)) for n, vector in enumerate(vectors.tolist())]
            cursor.executemany("INSERT INTO documents VALUES (%s, %s)", rows)
        hits = [(row[0], row[-1]) for row in module.search(connection, "documents", query, **options)]
        connection.rollback()
        return hits


@pytest.fixture(scope="module")
def postgres():
    """The address of a PostgreSQL server with pgvector, which is started in a folder of its own."""
    psycopg = pytest.importorskip("psycopg")
    folders = [*Path("/usr/lib/postgresql").glob("*/bin"), *(Path(path) for path in os.get_exec_path())]
    programs = next((folder for folder in folders if (folder / "initdb").is_file()), None)
    if programs is None:
        pytest.skip("needs a PostgreSQL server")
    data = Path(tempfile.mkdtemp(prefix="bixse-postgres-"))
    user = {"user": "nobody"} if os.getuid() == 0 else {}  # the server refuses to run as root
    if user:
        shutil.chown(data, "nobody")

    def control(*words):
        subprocess.run([*map(str, words)], cwd=data, check=True, stdout=subprocess.DEVNULL, timeout=100, **user)

    try:
        control(programs / "initdb", "-D", data / "data", "-U", "tester", "--auth=trust", "--no-sync")
        options = f"-c listen_addresses= -c unix_socket_directories={data} -c fsync=off"
        control(programs / "pg_ctl", "-D", data / "data", "-w", "-l", data / "log", "-o", options, "start")
        try:
            address = f"host={data} user=tester dbname=postgres"
            with psycopg.connect(address) as connection:
                if not connection.execute("SELECT FROM pg_available_extensions WHERE name = 'vector'").fetchall():
                    pytest.skip("needs pgvector")
            yield address
        finally:
            control(programs / "pg_ctl", "-D", data / "data", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(data)


RUNNERS = {
    "duckdb": (in_duckdb, "duckdb"),
    "qdrant": (in_qdrant, "qdrant_client"),
    "lancedb": (in_lancedb, "lancedb"),
    "langchain": (in_langchain, "langchain_core"),
    "llama_index": (in_llama_index, "llama_index.core"),
    "haystack": (in_haystack, "haystack"),
    "pgvector": (in_pgvector, "psycopg"),
}
"""Store -> function that fills it and returns (number of a vector, probability) per hit; the package it needs."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow if name == "pgvector" else ()) for name in RUNNERS])
def store(request):
    """Name of a store, and a function from snippet, vectors and query to its hits."""
    runner, package = RUNNERS[request.param]
    pytest.importorskip(package)
    more = {"address": request.getfixturevalue("postgres")} if request.param == "pgvector" else {}
    return request.param, lambda *arguments, **options: runner(*arguments, **more, **options)


def rounding(head):
    """Largest error of a probability if the store has its cosine in float32: the slope of the sigmoid is 1 / 4."""
    return max(1e-6, head.slope * head.logit_scale / 4 * 3e-7)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_a_store_gives_the_probability_of_the_head_from_the_cut_on(store, snippet, head):
    name, ask = store
    for cut in (WANTED, LOWER):
        wanted = {n: head.probability(float(c)) for n, c in enumerate(COSINES) if head.probability(float(c)) >= cut}
        assert 1 <= len(wanted) < len(VECTORS)
        hits = ask(snippet(name, head), VECTORS, QUERY, k=60, **({} if cut == WANTED else {"cut": head.cosine_at(cut)}))
        assert dict(hits) == pytest.approx(wanted, abs=rounding(head))
        assert [p for _, p in hits] == sorted((p for _, p in hits), reverse=True)
    best = max(range(len(VECTORS)), key=lambda n: COSINES[n])
    assert [n for n, _ in ask(snippet(name, head), VECTORS, QUERY, k=1)] == [best]
    if name != "qdrant" or head.logit_scale < 80:  # its formula has exp alone, which the cut keeps in its range
        hits = dict(ask(snippet(name, head), VECTORS, QUERY, k=60, cut=-1.01))
        assert hits == pytest.approx(dict(enumerate(head.probability(COSINES))), abs=rounding(head))


def test_a_zero_vector_is_no_hit(snippet):
    pytest.importorskip("duckdb")
    hits = in_duckdb(snippet("duckdb"), np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32), [1.0, 0.1], k=9)
    assert [n for n, _ in hits] == [1], "its cosine is NaN, which DuckDB takes for the largest number"


@pytest.fixture(scope="module", params=[None, 24], ids=["whole", "cut"])
def calibrated(request, tmp_path_factory, tiny_model_path):
    """The folder of a calibrated model with prompts, at another prior, with two cuts, of whole and cut embeddings."""
    folder = tmp_path_factory.mktemp("calibrated")
    model = build_encoder(str(tiny_model_path))
    model.prompts = {"query": "find: ", "document": "the text: "}
    model.save(str(folder / "prompted"))
    words = "copy move delete open read write list file folder tree disk path name text byte line".split()  # noqa: SIM905
    rows = [
        {"query": word, "document": words[(n + step) % 16], "relevance": 0.7 if step == 0 else 0.3}
        for n, word in enumerate(words)
        for step in range(4)
    ]
    save_graded_pairs(Pairs.from_rows(rows), folder / "pairs.csv")
    chosen = {"model": str(folder / "prompted"), "pairs": folder / "pairs.csv", "prior": 0.1, "anyway": True}
    chosen["dimensions"] = request.param
    calibrate_into(CalibrateSettings(**chosen, export=(0.12, 0.06)), folder / "out")
    return folder / "out", words


def test_a_store_agrees_with_the_model_that_was_exported(store, calibrated):
    from sentence_transformers import SentenceTransformer

    name, ask = store
    out, words = calibrated
    module = load(out / "export" / f"{name}.py")
    # it knows nothing of bixse; prompts are those of the snippet
    server = SentenceTransformer(module.MODEL, device="cpu", truncate_dim=module.DIMENSIONS)
    embeddings = {
        kind: server.encode([module.PROMPTS[kind] + word for word in words], prompt="")
        for kind in ("query", "document")
    }
    model = build_encoder(module.MODEL, dimensions=module.DIMENSIONS)
    cuts = json.loads((out / "export" / CUTS_FILE).read_text())
    assert [cut["probability"] for cut in cuts] == [0.12, 0.06]
    for query, cut in ((7, cuts[0]), (3, cuts[1])):
        relevance = model.relevance(words[query], words)
        assert relevance.min() < cut["probability"] - 1e-6
        wanted = {n: p for n, p in enumerate(relevance) if p >= cut["probability"]}
        hits = ask(module, embeddings["document"], embeddings["query"][query], k=16, cut=cut["cosine"])
        assert dict(hits) == pytest.approx(wanted, abs=1e-6)


def test_langchain_cuts_at_a_probability_itself(snippet):
    stores = pytest.importorskip("langchain_core.vectorstores")
    module = snippet("langchain")

    class Distances(stores.InMemoryVectorStore):
        """A store as Chroma or PGVector: its scores are distances."""

        def similarity_search_with_score(self, query, k=4, **options):
            return [(hit, 1 - cosine) for hit, cosine in super().similarity_search_with_score(query, k, **options)]

        def _select_relevance_score_fn(self):
            return module.probability_of_distance

    class Cosines(stores.InMemoryVectorStore):
        def _select_relevance_score_fn(self):
            return module.probability

    wanted = {str(n) for n, cosine in enumerate(COSINES) if HEAD.probability(float(cosine)) >= WANTED}
    for kind in (Distances, Cosines):
        options = {"score_threshold": WANTED, "k": 60}
        retriever = of_langchain(kind, VECTORS, QUERY).as_retriever(
            search_type="similarity_score_threshold", search_kwargs=options
        )
        assert {document.page_content for document in retriever.invoke("query")} == wanted


# --- stores whose server does not run here: what they are sent is computed as they document it


class Requests(list):
    """Stands for a client: keeps each request, and answers it without a server."""

    def search(self, **request):
        self.append(request)
        return {"hits": {"hits": []}}

    def aggregate(self, stages):
        self.append(stages)
        return []

    def query(self, body):
        self.append(body)
        return SimpleNamespace(hits=[])


def painless(script, cosine):
    names = {"params": SimpleNamespace(**script["params"]), "Math": math, "doc": {"embedding": "embedding"}}
    return eval(script["source"], {**names, "cosineSimilarity": lambda query, field: {"embedding": cosine}[field]})


def aggregation(value, fields, score):
    """Compute an expression of MongoDB."""
    if not isinstance(value, dict):
        return fields[value[1:]] if isinstance(value, str) else value
    ((operator, argument),) = value.items()
    if operator == "$meta":
        return {"vectorSearchScore": score}[argument]
    numbers = [aggregation(each, fields, score) for each in (argument if isinstance(argument, list) else [argument])]
    operators = {"$add": sum, "$multiply": math.prod, "$subtract": lambda pair: pair[0] - pair[1],
                 "$tanh": lambda single: math.tanh(single[0])}  # fmt: skip
    return operators[operator](numbers)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_elasticsearch_and_opensearch_compute_the_probability(snippet, head):
    requests = Requests()
    for store in ("elasticsearch", "opensearch"):
        snippet(store, head).search(requests, "documents", QUERY)
    elastic, opensearch = requests[0]["query"]["script_score"], requests[1]["body"]["query"]["script_score"]
    cuts = [elastic["query"]["knn"]["similarity"], 2 * opensearch["query"]["knn"]["embedding"]["min_score"] - 1]
    assert cuts == pytest.approx([head.cosine_at(WANTED)] * 2)
    for cosine in COSINES:
        shown = [painless(scored["script"], float(cosine)) for scored in (elastic, opensearch)]
        assert shown == pytest.approx([head.probability(float(cosine))] * 2, abs=1e-9)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_mongodb_computes_the_probability(snippet, head):
    snippet("mongodb", head).search(requests := Requests(), QUERY)
    _, first, match, second = requests[0]
    assert match["$match"]["cosine"]["$gte"] == pytest.approx(head.cosine_at(WANTED))
    for cosine in COSINES:
        fields = {"cosine": aggregation(first["$set"]["cosine"], {}, (1 + cosine) / 2)}
        p = aggregation(second["$set"]["probability"], fields, None)
        assert p == pytest.approx(head.probability(float(cosine)), abs=1e-9)


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_vespa_computes_the_probability(snippet, head):
    module = snippet("vespa", head)
    module.search(requests := Requests(), QUERY)
    angle = float(re.search(r"distanceThreshold: ([\d.]+)", requests[0]["yql"])[1])
    assert math.cos(angle) == pytest.approx(head.cosine_at(WANTED))
    similarity, first_phase = re.findall(r"expression: (.+)", module.PROFILE)
    for cosine in COSINES:
        closeness = lambda kind, name: 1 / (1 + math.acos(cosine))  # noqa: B023, E731
        names = {"cos": math.cos, "tanh": math.tanh, "closeness": closeness, "field": 0, "embedding": 0}
        p = eval(first_phase, {**names, "similarity": eval(similarity, names)})
        assert p == pytest.approx(head.probability(float(cosine)), abs=1e-9)
