"""Ids without a partner: each kind is counted, with an example, by every verb that joins these ids."""

import pyarrow as pa
import pytest

from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.trec import write_qrels, write_run
from bixse.errors import InputError
from bixse.files.rows import write_rows
from bixse.lab.lab_config import StudyConfig
from bixse.lab.studies.study_inputs import prepare_inputs
from helpers.command import call, result_of
from helpers.toy import ACTIONS

SIZE = 24
QUERIES = {f"q{n}": f"{word} a file" for n, word in enumerate(ACTIONS[:SIZE])}
CORPUS = {f"d{n}": Document("", f"how to {word} a file") for n, word in enumerate(ACTIONS)}
QRELS = {query: {f"d{n}": 2, f"d{n + 1}": 0} for n, query in enumerate(QUERIES)}
"""24 queries; 25 judged documents, d0 to d24."""
RUN = {query: {f"d{n}": 2.0, f"d{n + 5}": 1.0} for n, query in enumerate(QUERIES)}


class Files:
    """The inputs of all verbs in one folder."""

    def __init__(self, folder):
        self.folder, self.collection = folder, folder / "toy"
        save_collection(Collection("good", CORPUS, QUERIES, {"dev": QRELS}), folder / "good")
        self.save()

    def save(self, corpus=CORPUS, queries=QUERIES, qrels=QRELS, pairs=None, run=RUN):
        collection = Collection("toy", corpus, queries, {"test": qrels, "dev": qrels})
        for folder in (self.collection, self.folder / "data" / "scifact"):
            save_collection(collection, folder)
        write_run(self.folder / "a.run", run, "a")
        write_run(self.folder / "b.run", RUN, "b")
        pairs = qrels if pairs is None else pairs
        rows = [
            {"query_id": query, "query": queries.get(query, query), "document_id": name,
             "document": corpus[name].content if name in corpus else f"text {name}", "relevance": grade / 2}
            for query, judged in pairs.items() for name, grade in judged.items()
        ]  # fmt: skip
        others = [{**row, "query": f"{row['query']} please", "query_id": f"{row['query_id']}-t"} for row in rows]
        asked = [*queries, *(f"{query}-t" for query in queries)]
        vectors = {
            name: [{"id": each, "vector": [1.0 + n, 2.0, float(n % 3)]} for n, each in enumerate(ids)]
            for name, ids in (("documents", corpus), ("queries", asked))
        }
        for name, table in {"pairs": rows, "train": others, **vectors}.items():
            write_rows(pa.Table.from_pylist(table), self.folder / f"{name}.jsonl")
        write_qrels(self.folder / "human.tsv", pairs)
        write_qrels(self.folder / "judge.tsv", QRELS)
        lines = [f"{query} 0 {name} {grade}" for query, judged in qrels.items() for name, grade in judged.items()]
        (self.folder / "qrels.txt").write_text("\n".join(lines) + "\n")

    def words(self, verb, model):
        folder, collection = self.folder, self.collection
        pairs, run, judge = folder / "pairs.jsonl", folder / "a.run", folder / "judge.tsv"
        texts = ("--corpus", collection / "corpus.jsonl", "--queries", collection / "queries.jsonl")
        train = ("train", "--pairs", folder / "train.jsonl", "--model", model, "--max-steps", 1)
        suite = ("--suite", "beir", "--data", folder / "data", "--tasks", "SciFact")
        graded = ("--scale", 0, 2, "--min-relevant-grade", 1)
        labels = ("--human", folder / "human.tsv", "--scale", 0, 2)
        vectors = ("--vectors", folder / "documents.jsonl", "--queries", folder / "queries.jsonl", "--vectors-of", "m")
        words = {
            "evaluate": ("evaluate", "bm25", "--collection", collection),
            "evaluate run": ("evaluate", run, "--collection", collection),
            "evaluate runs": ("evaluate", folder / "b.run", run, "--collection", collection),
            "suite": ("evaluate", "bm25", *suite),
            "suite, run": ("evaluate", run, *suite),
            "few labels": ("evaluate", run, "--grades", judge, *labels),
            "mine": ("mine", "--collection", collection, "--split", "test"),
            "mine known": ("mine", "--collection", collection, "--known", pairs),
            "convert beir": ("convert", "beir", collection, "--qrels", "test", "--scale", 0, 2),
            "convert trec": ("convert", "trec", folder / "qrels.txt", *texts, "--scale", 0, 2),
            "train dev": (*train, "--dev", collection),
            "train guard": (*train, "--dev", folder / "good", "--guard", collection, "--guard-split", "test"),
            "merge": ("merge", model, model, "--dev", collection),
            "calibrate": ("calibrate", model, "--collection", collection, "--split", "test"),
            "audit": ("grade", "audit", "--judge", judge, *labels),
            "grade calibrate": ("grade", "calibrate", "--judgements", judge, *labels),
            "rank": ("grade", "rank", "--collection", collection, "--candidates", run,
                     "--judge", f"replay:qrels:{judge}", "--scale", 0, 2),
            "adapt": ("adapt", *vectors, "--pairs", folder / "train.jsonl", "--dev", pairs, "--rank", 2, "--steps", 2),
            "study": ("study", "losses", "--collection", collection, "--model", "static", *graded),
        }[verb]  # fmt: skip
        return (*words, "--out", folder / "out")


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def renamed(grades, first, what):
    """Judgements or a run with another spelling of the ids from the query number `first` on."""
    spelled = {}
    for n, (query, documents) in enumerate(grades.items()):
        lost = n >= first
        names = {f"lost_{name}" if lost and what == "documents" else name: value for name, value in documents.items()}
        spelled[f"lost_{query}" if lost and what == "queries" else query] = names
    return spelled


def cases(*table):
    """One case per verb of each row: what is changed, the verbs, and what they say."""
    return [pytest.param(*row[:-2], verb, row[-1], id=f"{row[0]}, {verb}") for row in table for verb in row[-2]]


COLLECTIONS = ("evaluate", "suite", "mine", "train dev", "train guard", "merge", "calibrate", "rank", "study")
CONVERTED = ("convert beir", "convert trec")
RUNS = ("evaluate run", "evaluate runs", "suite, run", "rank")


@pytest.mark.parametrize(
    ("part", "what", "verb", "said"),
    cases(
        ("qrels", "documents", COLLECTIONS, "19 of 26 judged documents"),
        ("qrels", "queries", COLLECTIONS, "18 of 24 judged queries"),
        ("qrels", "documents", CONVERTED, "36 of 48 judgements of a document"),
        ("qrels", "queries", CONVERTED, "36 of 48 judgements of a query"),
        ("pairs", "documents", ("mine known", "adapt"), "19 of 26 documents"),
        ("pairs", "queries", ("adapt",), "18 of 24 queries"),
        ("pairs", "documents", ("audit", "grade calibrate"), "36 of 48 human labels"),
        ("pairs", "documents", ("few labels",), "36 of 48 human labels"),
        ("run", "documents", (*RUNS[:2], "rank"), "23 of 34 documents of the run"),
        ("run", "queries", (*RUNS[:2], "few labels"), "18 of 24 queries without an answer"),
        ("run", "documents", ("few labels",), "42 of 48 documents without a grade"),
    ),
)
def test_most_ids_without_a_partner_are_one_error(files, tiny_model_path, part, what, verb, said):
    grades = RUN if part == "run" else QRELS
    files.save(**{part: renamed(grades, 6, what)})
    with pytest.raises(InputError) as raised:
        result_of(*files.words(verb, tiny_model_path))
    assert raised.value.exit_code == 2
    assert said in str(raised.value) and "for example" in str(raised.value)
    assert not any(effect in str(raised.value) for effect in ("count as", "left out"))  # nothing is counted


EMPTY = {**QRELS, "q0": {"d0": 0, "d1": 0}}
FOREIGN = {**QUERIES, "q3": "ファイルをコピーする"}
TWIN = {"twin": Document("how to", "copy  a file "), **CORPUS}
SILENT, FEW = (dict(list(RUN.items())[:answered]) for answered in (22, 6))
TRAINING = ("train dev", "train guard", "merge")


@pytest.mark.parametrize(
    ("name", "changes", "verb", "said"),
    cases(
        ("no relevant document", {"qrels": EMPTY}, ("evaluate", *RUNS, "suite", *TRAINING), "1 of 24 judged queries"),
        ("no relevant document", {"qrels": EMPTY}, ("adapt",), "1 of 24 judged queries"),
        ("no answer", {"queries": FOREIGN}, ("evaluate", "suite"), "1 of 24 queries without an answer"),
        ("no answer", {"run": SILENT}, (*RUNS, "few labels"), "2 of 24 queries without an answer"),
        ("most have no answer", {"run": FEW}, ("suite, run", "rank"), "18 of 24 queries without an answer"),
        ("most documents", {"run": renamed(RUN, 6, "documents")}, ("suite, run",), "23 of 34 documents of the run"),
        ("a twin", {"corpus": TWIN}, ("evaluate", *RUNS, "suite", *TRAINING), "1 of 31 documents with the text"),
        ("a twin", {"corpus": TWIN}, ("calibrate",), "1 of 31 documents with the text"),
        ("a few documents", {"run": renamed(RUN, 20, "documents")}, RUNS[:3], "8 of 33 documents of the run"),
        ("a few documents", {"qrels": renamed(QRELS, 20, "documents")}, ("mine",), "5 of 26 judged documents"),
        ("a few queries", {"qrels": renamed(QRELS, 20, "queries")}, ("mine",), "4 of 24 judged queries"),
        ("a few documents", {"qrels": renamed(QRELS, 20, "documents")}, CONVERTED, "8 of 48 judgements"),
        ("a few pairs", {"pairs": renamed(QRELS, 20, "queries")}, ("audit", "grade calibrate"), "8 of 48 human labels"),
        ("a few pairs", {"pairs": renamed(QRELS, 20, "queries")}, ("few labels",), "8 of 48 human labels"),
    ),
)
def test_what_does_not_count_is_said_with_its_number(files, tiny_model_path, capsys, name, changes, verb, said):
    files.save(**changes)
    words = (*files.words(verb, tiny_model_path), *(["--skip-invalid"] if verb in CONVERTED else []))
    code, envelope = call(capsys, *words)
    assert code in (0, 1, 3) and any(said in warning for warning in envelope["warnings"]), envelope
    if verb in TRAINING:
        return
    files.save()
    plain = call(capsys, *words[:-1], files.folder / "plain") if verb not in CONVERTED else call(capsys, *words[:-3])
    assert not any(said[1:] in warning for warning in plain[1]["warnings"])


def negated(path):
    """Write a run of distances: the ranks stay, the scores turn round."""
    rows = [line.split() for line in path.read_text().splitlines()]
    path.write_text("".join(f"{' '.join(row[:4])} -{row[4]} {row[5]}\n" for row in rows))


@pytest.mark.parametrize("verb", [*RUNS, "few labels"])
def test_ranks_that_contradict_the_scores_are_counted(files, tiny_model_path, capsys, verb):
    negated(files.folder / "a.run")
    _, envelope = call(capsys, *files.words(verb, tiny_model_path))
    assert any("24 of 24 queries with ranks" in warning for warning in envelope["warnings"]), envelope


def test_the_heading_has_the_queries_of_the_mean_and_what_it_leaves_out(files, capsys):
    files.save(qrels=EMPTY, run=SILENT)
    words = files.words("evaluate run", "")
    for _ in ("searched", "read from the folder"):
        result = result_of(*words)
        assert "(test, 23 queries; 1 without a relevant document left out; 2 unanswered count as 0" in result.text
        assert len(result.warnings) == 2
    several = result_of(*files.words("evaluate runs", "")[:-1], files.folder / "both").text
    assert "(test, 23 queries; 1 without a relevant document left out)" in several


@pytest.mark.parametrize("what", ["documents", "queries"])
def test_a_run_or_judgements_of_other_ids_are_scored_where_that_is_wanted(files, what):
    files.save(run=renamed(RUN, 6, what))
    result = result_of(*files.words("evaluate run", ""), "--missing-documents", "drop")
    assert result.exit_code == 0 and result.warnings
    files.save(qrels=renamed(QRELS, 6, "documents"))
    words = (*files.words("evaluate", "")[:-1], files.folder / "dropped", "--missing-documents", "drop")
    assert any("36 of 48 judgements" in warning for warning in result_of(*words).warnings)
    assert any("18 of 24 judged queries without a judgement left" in warning for warning in result_of(*words).warnings)


def test_a_study_logs_what_its_collections_leave_out(files, caplog):
    files.save(corpus=TWIN, qrels={**QRELS, "q3": {"d3": 0}})
    data = {"collection": str(files.collection), "scale": [0, 2], "min_relevant_grade": 1, "shares": [0.5, 0.2, 0.3]}
    (files.collection / "qrels" / "dev.tsv").unlink()  # one split is divided
    prepare_inputs(StudyConfig.load(None, {"study": "losses", "model": "demo", "data": data}), files.folder / "study")
    said = caplog.text
    assert "toy/test.tsv: 1 of 24 judged queries" in said and "toy/test.tsv: 1 of 31 documents" in said
