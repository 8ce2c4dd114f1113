import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from filelock import FileLock
from safetensors.numpy import load_file

from bixse.cli.verbs.search import read_queries
from bixse.data.task_instructions import Instructions
from bixse.data.trec import read_run
from bixse.encoders.head import RelevanceHead
from bixse.encoders.weights import set_instructions
from bixse.errors import InputError, InvalidFileError, ModelError, OutputExistsError
from bixse.files.files import LOCK_FILE, cache_folder
from bixse.files.run_folder import RUN_FILE
from bixse.index import index_files
from bixse.index import make_index as index_module
from bixse.index.index_files import read_manifest
from bixse.index.search import IndexSystem, open_index
from bixse.search import exact, tasks
from helpers.command import call, refused, result_of
from helpers.toy import index_of, save_toy

pytestmark = [pytest.mark.usefixtures("small_shards"), pytest.mark.precision("float32")]
QUERIES = ["copy a file", "delete tree", "sort", "how do i find the path"]


@pytest.fixture
def folder(tiny_model, corpus, tmp_path):
    index_of(tiny_model, corpus, tmp_path / "index")
    return tmp_path / "index"


@pytest.mark.parametrize("query", [None, 3, b"copy", [None], [3], [["copy"]], "", ["copy", " "], "\ud800"])
def test_query_that_is_no_text_is_refused(tiny_model, folder, query):
    with pytest.raises(InputError) as caught:
        open_index(folder, tiny_model).search(query)
    assert caught.value.where == "search"


def test_damaged_manifest_or_another_folder_is_refused(tiny_model, folder):
    for name in ("none", "corpus"):
        with pytest.raises(InputError):
            open_index(folder.parent / name, tiny_model)
    changed = json.loads((folder / RUN_FILE).read_text())
    changed["results"]["rows"] = 0
    for content in ("", '{"results": {"documents": 2}}', "[" * 100_000, json.dumps(changed)):
        (folder / RUN_FILE).write_text(content)
        with pytest.raises(InputError, match="damaged"):
            open_index(folder, tiny_model)


@pytest.mark.parametrize(
    ("kind", "position"),
    [
        *(("00001.safetensors", position) for position in ("cut", "missing", 0.001, 0.01, 0.02, 0.03, 0.5)),
        *(("documents.parquet", position) for position in ("cut", "missing", 0.02, 0.3)),
    ],
)
def test_damaged_file_is_refused_before_use(tiny_model, folder, kind, position):
    path = next(folder.glob(f"*/{kind}"))
    content = bytearray(path.read_bytes())
    if position == "missing":
        path.unlink()
    elif position == "cut":
        path.write_bytes(content[:-1])
    else:
        content[int(len(content) * position)] ^= 1
        path.write_bytes(content)
    with pytest.raises(InputError, match=path.name), open_index(folder, tiny_model) as index:
        index.search(QUERIES[0], top=100)


def test_another_model_is_refused(tiny_model, folder, corpus):
    for change, said in (
        (lambda: setattr(tiny_model, "truncate_dim", 16), "another size"),
        (lambda: setattr(tiny_model, "prompts", {"document": "passage: "}), "prompt before documents"),
        (lambda: setattr(tiny_model, "prompts", {"query": "find: "}), "prompts before queries"),
        (lambda: next(tiny_model.parameters()).data.add_(1e-3), "other weights"),
    ):
        before = tiny_model.truncate_dim, tiny_model.prompts
        change()
        with pytest.raises(ModelError, match=said):
            open_index(folder, tiny_model)
        with pytest.raises(OutputExistsError):
            index_of(tiny_model, corpus, folder)
        tiny_model.truncate_dim, tiny_model.prompts = before


def test_all_errors_of_a_corpus_are_reported_together(tiny_model, corpus, tmp_path):
    rows = ['{"_id": "a", "text": "x"}', '{"_id": "a", "text": "y"}', "{"]
    for content, kind in (("\n".join(rows), InvalidFileError), ('{"_id": 1, "text": " "}', InputError)):
        (corpus / "corpus.jsonl").write_text(content)
        with pytest.raises(kind) as caught:
            index_of(tiny_model, corpus, tmp_path / "index")
        assert kind is InputError or len(caught.value.errors) == 2
        assert not (tmp_path / "index").exists()


def test_folder_with_other_content_is_refused(tiny_model, corpus, folder, tmp_path, encoded):
    before = sorted(folder.iterdir())
    (tmp_path / "file").write_text("a file")
    tiny_model.max_seq_length = 3
    for path in (tmp_path / "file", corpus, folder):
        with pytest.raises(OutputExistsError):
            index_of(tiny_model, corpus, path)
    assert encoded == []
    assert sorted(folder.iterdir()) == before


def test_second_writer_is_refused(tiny_model, folder, write_corpus, documents):
    write_corpus({"d0": documents["d0"]})
    with FileLock(folder / LOCK_FILE), pytest.raises(OutputExistsError, match="another process"):
        index_of(tiny_model, folder.parent / "corpus", folder)
    assert read_manifest(folder).documents == 100


def test_unusable_queries_are_refused(tiny_model, folder):
    with open_index(folder, tiny_model) as index:
        for query, top in (("", 10), ("  ", 10), ("caf\udce9", 10), (["of", ""], 10), ("of", 0)):
            with pytest.raises(InputError):
                index.search(query, top=top)
        with pytest.raises(InputError, match="bixse calibrate"):
            index.search("of", threshold=0.5)
        tiny_model.head = RelevanceHead(10.0, -5.0)
        for wrong in ({"threshold": -0.1}, {"threshold": float("nan")}, {"threshold": 0.5, "at_precision": 0.9}):
            with pytest.raises(InputError):
                index.search("of", **wrong)


@pytest.mark.parametrize("top", [1, 7, 1000])
def test_hits_equal_those_of_a_float64_product(tiny_model, folder, documents, top):
    texts = [f"{title} {text}".strip() for title, text in documents.values()]
    vectors = tiny_model.encode([*QUERIES, *texts], normalize_embeddings=True).astype(np.float64)
    with open_index(folder, tiny_model) as index:
        for query, hits in zip(vectors[: len(QUERIES)], index.search(QUERIES, top=top), strict=True):
            cosines = vectors[len(QUERIES) :] @ query
            order = np.argsort(-np.round(cosines, 7), kind="stable")[:top]
            assert [hit.cosine for hit in hits] == pytest.approx(cosines[order].tolist(), abs=1e-6)
            assert top == 1000 or [hit.document_id for hit in hits] == [list(documents)[row] for row in order]
            assert {hit.document_id: (hit.title, hit.text) for hit in hits}.items() <= documents.items()
        assert index.search([]) == []


@pytest.mark.gpu
@pytest.mark.parametrize("free", [2**30, 0])
def test_index_on_a_gpu_or_copied_to_it_gives_the_documents_of_the_cpu(tiny_model, folder, monkeypatch, free):
    queries = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
    with open_index(folder, tiny_model) as index:
        monkeypatch.setattr(exact, "home_of", lambda size: "cuda" if size < free else "cpu")
        monkeypatch.setattr(exact, "search_device", lambda queries, documents: "cuda")
        answers = index._files.search(queries, 7)
        expected = [np.argsort(-row, kind="stable")[:7] for row in queries @ index._files.embeddings(0, 100).T]
    assert [[name for name, _, _ in line] for line in answers] == [[f"d{n}" for n in row] for row in expected]


def test_ties_have_the_order_of_the_corpus(tiny_model, write_corpus, tmp_path):
    corpus = write_corpus({f"d{n}": ("", "the same") for n in range(100, 0, -1)})
    index_of(tiny_model, corpus, tmp_path / "index")
    with open_index(tmp_path / "index", tiny_model) as index:
        assert [hit.document_id for hit in index.search("same", top=50)] == [f"d{n}" for n in range(100, 50, -1)]


def test_threshold_keeps_the_probable_hits(tiny_model, folder, monkeypatch):
    tiny_model.head = RelevanceHead(10.0, -5.0)
    with open_index(folder, tiny_model) as index:
        every = index.search(QUERIES[0], top=50)
        assert every[0].probability == pytest.approx(1 / (1 + np.exp(5 - 10 * every[0].cosine)))
        least = every[20].probability
        kept = [hit for hit in every if hit.probability >= least]
        assert index.search(QUERIES[0], top=50, threshold=least) == kept
        monkeypatch.setattr(tasks, "QUERIES_PER_BLOCK", 1)
        run = index.search_run({"q": QUERIES[0], "r": QUERIES[1]}, top=50, threshold=least)
        assert run["q"] == {hit.document_id: pytest.approx(hit.cosine, abs=1e-6) for hit in kept}
        assert list(run) == ["q", "r"]


def test_files_hold_the_embeddings_in_shards(tiny_model, corpus, documents, folder):
    files = sorted(folder.glob("*/*.safetensors"))
    shards = [load_file(file)["documents"] for file in files]
    assert [len(shard) for shard in shards] == [32, 32, 32, 4]
    texts = [f"{title} {text}" for title, text in documents.values()]
    np.testing.assert_allclose(np.concatenate(shards), tiny_model.encode(texts, normalize_embeddings=True), atol=1e-6)
    assert {path.name for path in folder.iterdir()} == {RUN_FILE, LOCK_FILE, read_manifest(folder).folder}
    assert [file.name for file in files] == [f"0000{shard}.safetensors" for shard in range(4)]
    shutil.rmtree(corpus)
    with open_index(folder, tiny_model) as index:
        assert index.search("move folder", top=1)[0].title in {title for title, _ in documents.values()}


def test_new_texts_of_a_changed_corpus_are_encoded_alone(tiny_model, folder, write_corpus, documents, encoded):
    changed = {name: text for name, text in documents.items() if name != "d3"}
    changed |= {"d5": ("", "wait in a thread"), "new": ("", "sleep")}
    with open_index(folder, tiny_model) as before:
        report = index_of(tiny_model, write_corpus(changed), folder)
        assert (report.encoded, sorted(encoded)) == (2, [("document", "sleep"), ("document", "wait in a thread")])
        assert len(before.search("copy", top=1000)) == 100
    with open_index(folder, tiny_model) as index:
        hits = index.search(QUERIES[0], top=1000)
    assert {hit.document_id: (hit.title, hit.text) for hit in hits} == changed
    assert {path.name for path in folder.iterdir()} == {RUN_FILE, LOCK_FILE, report.manifest.folder}


def test_corpus_that_grows_after_it_was_read_is_another_corpus(tiny_model, corpus, tmp_path, monkeypatch):
    class Growing(index_module.Corpus):
        def items(self):
            with (corpus / "corpus.jsonl").open("a") as file:
                file.write(f'{{"_id": "late{file.tell()}", "text": "late"}}\n')
            return super().items()

    with monkeypatch.context() as patch:
        patch.setattr(index_module, "Corpus", Growing)
        report = index_of(tiny_model, corpus, tmp_path / "index")
    assert report.manifest.documents == 100
    again = index_of(tiny_model, corpus, tmp_path / "index")
    assert (again.reused, again.manifest.documents, again.encoded) == (False, 102, 1)
    with open_index(tmp_path / "index", tiny_model) as index:
        assert index.search("late", top=1)[0].document_id.startswith("late")


def test_stopped_index_leaves_the_former_one(tiny_model, folder, write_corpus, documents, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    one = write_corpus({"d0": documents["d0"]})
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(index_module.Run, "save", stop)
        index_of(tiny_model, one, folder)
    with open_index(folder, tiny_model) as index:
        assert len(index.search("copy", top=1000)) == len(index) == 100
    shutil.rmtree(cache_folder())
    report = index_of(tiny_model, one, folder)
    assert (report.encoded, report.manifest.documents) == (0, 1)
    assert {path.name for path in folder.iterdir()} == {RUN_FILE, LOCK_FILE, report.manifest.folder}


def test_index_replaced_while_it_is_opened_is_read_new(tiny_model, folder, write_corpus, documents, monkeypatch):
    opened = index_files.IndexFiles.__init__

    def replace_first(self, where, manifest):
        if manifest.documents == 100:
            index_of(tiny_model, write_corpus({"d0": documents["d0"]}), folder)
        opened(self, where, manifest)

    monkeypatch.setattr(index_files.IndexFiles, "__init__", replace_first)
    assert index_files.open_files(folder).manifest.documents == 1


@pytest.fixture
def collection(tmp_path):
    return save_toy(tmp_path / "corpus")


@pytest.fixture
def index(tmp_path, model, collection, capsys):
    assert call(capsys, "index", model, "--collection", collection, "--out", tmp_path / "index")[0] == 0
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "demo"], "collection: got nothing"),
        (["index", "demo", "--collection", "c", "--out", "o"], "corpus.jsonl"),
        (["search", "index", "copy", "--collection", "c"], "--collection"),
        (["search", "index", "copy", "--cache", "none"], "--cache"),
        (["search", "index", "copy", "--queries", "q.txt"], "query and queries"),
        (["search", "index", "copy", "--out", "run"], "--out"),
        (["search", "index", "--queries", "-", "--out", "run"], "--out"),
        (["search", "index", "--queries", "none.txt"], "none.txt"),
        (["search", "corpus", "copy"], "--collection"),
        (["search", "model", "--collection", "corpus", "--queries", "-"], "--queries"),
        (["search", "model", "--collection", "corpus", "--exact", "copy"], "--exact"),
    ],
)
def test_wrong_usage_is_refused(capsys, index, monkeypatch, words, message):
    monkeypatch.chdir(index.parent)
    before = set(index.parent.iterdir())
    assert message in refused(capsys, *words)
    assert set(index.parent.iterdir()) == before


def test_moved_model_is_used(capsys, index, model, tmp_path):
    results = call(capsys, "search", index, "copy")[1]["metrics"]["results"]
    model.rename(tmp_path / "moved")
    refused(capsys, "search", index, "copy")
    moved = call(capsys, "search", index, "copy", "--model-at", tmp_path / "moved")[1]["metrics"]["results"]
    assert moved == results


def test_index_answers_as_its_collection(capsys, index, model, collection):
    envelope = call(capsys, "index", model, "--collection", collection, "--out", index)[1]
    assert (envelope["metrics"]["reused"], envelope["metrics"]["encoded"]) == (True, 0)
    for query in ("copy a file", "sort"):
        alone = result_of("search", model, query, "--collection", collection)
        indexed = result_of("search", index, query)
        assert (indexed.text, indexed.metrics) == (alone.text, alone.metrics)
        for line, hit in zip(alone.text.splitlines()[::2], alone.metrics["results"], strict=True):
            assert line.endswith(f"  {hit['document_id']}  {hit['title']}".rstrip()), "an id stands before a title"


def test_run_of_many_queries_has_the_answers_of_each(capsys, index):
    queries = index.parent / "queries.jsonl"
    queries.write_text('{"_id": "q1", "text": "copy a file"}\n{"_id": "q2", "text": "sort"}\n')
    run = index.parent / "runs" / "out.trec"
    text = result_of("search", index, "--queries", queries, "--out", run, "--top", "3").text
    assert text == f"wrote 6 documents of 2 queries to {run}"
    answers = call(capsys, "search", index, "--queries", queries, "--top", "3")[1]["metrics"]["answers"]
    assert read_run(run) == {
        answer["query_id"]: pytest.approx({hit["document_id"]: hit["cosine"] for hit in answer["results"]}, abs=1e-4)
        for answer in answers
    }
    assert result_of("search", index, "--queries", queries).text.startswith("q1: copy a file\n  1. cos=")


@pytest.mark.slow
def test_each_line_of_standard_input_is_answered_at_once_until_the_pipe_closes(index):
    words = [sys.executable, "-m", "bixse", "search", str(index), "--queries", "-", "--top", "2", "--json"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for query, best in (("copy a file to a folder", "q1"), ("  ", None), ("wait in a thread", "d3")):
        process.stdin.write(query + "\n")
        process.stdin.flush()
        if best is not None:
            answer = json.loads(process.stdout.readline())
            assert answer["query"] == query
            assert (len(answer["results"]), answer["results"][0]["document_id"]) == (2, best)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(rest)["metrics"] == {"queries": 2}
    line = f"yes 'copy a file' | {sys.executable} -m bixse search {index} --queries - --top 1 | head -n 2"
    piped = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    first, second = piped.stdout.splitlines()
    assert first == "copy a file" and second.startswith("  1. cos=")
    assert "Traceback" not in piped.stderr and "error" not in piped.stderr


@pytest.mark.parametrize(("name", "mark"), [("q.csv", ","), ("q.tsv", "\t")])
def test_queries_of_a_table_have_its_ids(tmp_path, name, mark):
    (tmp_path / name).write_text(f"_id{mark}text\nq7{mark}copy a folder\n")
    assert read_queries(tmp_path / name) == {"q7": "copy a folder"}


def test_tasks_with_the_same_document_instruction_share_an_index(capsys, tmp_path, tiny_model, collection):
    tasks = {name: {"instructions": [f"{name} the file"]} for name in ("find", "sort")}
    tasks["match"] = {"instructions": ["match text"], "symmetric": True}
    set_instructions(tiny_model, Instructions(template="{instruction} of\n", tasks=tasks))
    tiny_model.save_pretrained(str(tmp_path / "tasks"), create_model_card=False)
    words = ("index", tmp_path / "tasks", "--collection", collection, "--out", tmp_path / "index")
    assert "got no task" in refused(capsys, *words)
    assert call(capsys, *words, "--task", "find")[0] == 0
    cosines = [
        call(capsys, "search", tmp_path / "index", "copy", *task)[1]["metrics"]["results"][0]["cosine"]
        for task in ((), ("--task", "find"), ("--task", "sort"))
    ]
    assert cosines[0] == cosines[1] != cosines[2]
    message = refused(capsys, "search", tmp_path / "index", "copy", "--task", "match")
    assert "which puts 'match text of\\n' before documents" in message
    assert call(capsys, *words[:-1], tmp_path / "sort", "--task", "sort")[0] == 0
    one, other = (IndexSystem(tmp_path / name).inputs for name in ("index", "sort"))
    assert one != other, "two systems, although their documents are embedded alike"
