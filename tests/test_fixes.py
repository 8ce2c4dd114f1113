"""The `fix:` of an error names verbs and flags that exist, and what it says works."""

import ast
import json
import re
import shlex
import subprocess
from pathlib import Path

import pandas
import pytest

import bixse
from bixse.cli.main import VERBS, parse
from bixse.data.collection import Collection, load_collection, save_collection
from bixse.data.corpus import Document
from bixse.data.pairs_files import load_graded_pairs, load_pairs
from bixse.data.trec import read_qrels, read_run
from bixse.errors import InputError, InvalidFileError, needs_extra
from helpers.command import result_of
from test_pages import flags, unknown_words

SOURCES = Path(bixse.__file__).parent
DOCUMENTS = {
    f"d{n}": Document("", text) for n, text in enumerate(("rye bread", "white bread", "bus line", "garden hose"))
}
TOY = Collection(
    "toy", DOCUMENTS, {"q1": "rye bread", "q2": "bus"}, {"test": {"q1": {"d0": 3, "d1": 1}, "q2": {"d2": 2}}}
)
PLACEHOLDER = "NAME"


def texts_of(node):
    """Yield every string of a syntax tree; an expression in an f-string becomes a placeholder."""
    for child in ast.walk(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else PLACEHOLDER for part in child.values)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value


def all_texts():
    """Place and text of every string of the package that could be part of a message."""
    for path in sorted(SOURCES.rglob("*.py")):
        for text in texts_of(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.name, text
        if path.parent.name == "converting":  # the fixes of rows are arguments of their own
            yield from ((path.name, f"fix: {text}") for text in texts_of(ast.parse(path.read_text(encoding="utf-8"))))


def wrong_words(text):
    """The verbs and flags of a text that no command has."""
    named = [word.replace("'", "").split() for word in re.findall(r"`bixse ([a-z][^`]*)`", text)]
    plain = [word.split() for word in re.findall(r"(?<!`)\bbixse ([a-z]+ [^`;:,()]*--[^`;:,()]*)", text)]
    for words in [*named, *(words for words in plain if words[0] in VERBS)]:
        yield from unknown_words(words)
    if "fix: " in text:
        advice = re.sub(r"`[^`]*`", "", text.partition("fix: ")[2])  # of these commands above, or of other programs
        known = set().union(*map(flags, VERBS))
        yield from (flag for flag in re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", advice) if flag not in known)


OTHER_PROGRAMS = {"--array", "--use_fsdp", "--use_deepspeed", "--force-reinstall", "--no-deps"}
"""Flags of sbatch, accelerate and pip."""


def test_every_fix_names_verbs_and_flags_that_exist():
    texts = list(all_texts())
    assert sum("fix: " in text for _, text in texts) > 300
    wrong = [(place, word) for place, text in texts for word in wrong_words(text) if word not in OTHER_PROGRAMS]
    assert not wrong
    assert list(
        wrong_words("got X; expected Y; fix: --scle LOW, or `bixse grad --pairs FILE`, `bixse mine --corpsu C`")
    )


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A collection in the current folder."""
    monkeypatch.chdir(tmp_path)
    save_collection(TOY, tmp_path / "c")
    return tmp_path


def error_of(*words):
    with pytest.raises(InputError) as caught:
        result_of(*words)
    return caught.value


def run(commands):
    for command in commands.split(" && "):
        if command.startswith("python -c"):  # here, since another process would import pandas again
            exec(shlex.split(command)[2], {})
        else:
            subprocess.run(["bash", "-ec", command], check=True, timeout=60)


def test_an_import_that_fails_without_the_name_of_a_package_names_the_extra():
    with pytest.raises(InputError) as error, needs_extra("grade", "asking servers"):
        raise ImportError("numpy 3 is needed")
    assert (error.value.where, "numpy 3 is needed" in error.value.got) == ("grade", True)


def test_best_lines_of_a_run_of_chunks(toy):
    (toy / "run.trec").write_text(
        "q1 Q0 d1 1 .5 c\nq1 Q0 d0 2 .7 c\nq1 Q0 d1 3 .9 c\nq2 Q0 d2 1 1e-3 c\nq2 Q0 d2 2 .1 c\n"
    )
    error = error_of("evaluate", "run.trec", "--collection", "c")
    run(error.fix.partition(": ")[2])
    assert read_run("best.trec") == {"q1": {"d1": 0.9, "d0": 0.7}, "q2": {"d2": 0.1}}
    assert result_of("evaluate", "best.trec", "--collection", "c").exit_code == 0


def test_candidates_of_a_run_become_pairs_to_grade(toy):
    (toy / "candidates.txt").write_text("q1 Q0 d1 1 .5 c\nq1 Q0 d0 2 .3 c\nq2 Q0 d2 1 .1 c\n")
    assert "rename" in error_of("mine", "--collection", "c", "--retriever", "candidates.txt").fix
    (toy / "candidates.txt").rename(toy / "run.trec")
    result_of("mine", "--collection", "c", "--retriever", "run.trec", "--out", "out")
    mined = [(pair.query_id, pair.document_id) for pair in load_pairs("out/pairs.parquet")]
    assert mined == [("q1", "d1"), ("q2", "d2")]  # d0 has the text of its query
    judge = ("--judge", "replay:qrels:c/qrels/test.tsv", "--scale", 0, 3)
    assert result_of("grade", "--pairs", "out/pairs.parquet", *judge, "--out", "graded").exit_code == 0


@pytest.mark.parametrize(
    "verb", [("convert", "umbrela"), ("grade", "--judge", "replay:qrels:c/qrels/test.tsv", "--scale", 0, 3, "--pairs")]
)
def test_query_with_its_candidates_is_one_row_per_candidate(toy, verb):
    row = {"query": {"text": "rye bread", "qid": "q1"}, "candidates": [{"docid": "d0", "doc": {"text": "rye bread"}}]}
    (toy / "retrieved.jsonl").write_text(json.dumps(row))
    error = error_of(*verb, "retrieved.jsonl", "--out", "out")
    assert "one row per candidate" in error.fix and str(error).count("; fix:") == 1
    pairs = [{"query": row["query"]["text"], "document": doc["doc"]["text"]} for doc in row["candidates"]]
    (toy / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    assert len(load_pairs("pairs.jsonl")) == 1


def parquet_layout(folder):
    for name in ("corpus", "queries"):
        rows = pandas.read_json(folder / f"{name}.jsonl", lines=True, dtype=False).rename(columns={"_id": "id"})
        (folder / name).mkdir()
        rows.to_parquet(folder / name / "test-00000-of-00001.parquet")
        (folder / f"{name}.jsonl").unlink()
    rows = pandas.read_csv(folder / "qrels" / "test.tsv", sep="\t", dtype=str).astype({"score": float})
    rows[:2].to_parquet(folder / "qrels" / "test-00000-of-00002.parquet")
    rows[2:].to_parquet(folder / "qrels" / "test-00001-of-00002.parquet")
    (folder / "qrels" / "test.tsv").unlink()


def jsonl_layout(folder):
    rows = pandas.read_csv(folder / "qrels" / "test.tsv", sep="\t", dtype=str).astype({"score": float})
    rows.to_json(folder / "qrels" / "test.jsonl", orient="records", lines=True)
    (folder / "qrels" / "test.tsv").unlink()


def packed_layout(folder):
    run(f"gzip {folder}/corpus.jsonl {folder}/qrels/test.tsv")


@pytest.mark.parametrize("layout", [parquet_layout, jsonl_layout, packed_layout])
@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "bm25", "--collection", "c"),
        ("mine", "--collection", "c", "--split", "test", "--out", "out"),
        ("convert", "beir", "c", "--scale", 0, 3, "--out", "out"),
    ],
    ids=lambda words: words[0],
)
def test_collection_in_another_layout(toy, layout, words):
    layout(toy / "c")
    for _ in range(4):  # a verb that reads file by file names one command at a time
        try:
            result = result_of(*words)
            break
        except InputError as error:
            run(re.search(r"`(.*)`", error.fix)[1])
    assert result.exit_code == 0
    if words[0] == "evaluate":
        assert load_collection("c").qrels == TOY.qrels and load_collection("c").corpus == TOY.corpus


def test_ratings_by_id_get_their_texts(toy):
    (toy / "ratings.csv").write_text("query,docid,rating\nrye bread,d0,3\nrye bread,d1,\nbus,d2,2\n")
    words = ("convert", "table", "ratings.csv", "--scale", 0, 3, "--columns", "grade=rating", "document_id=docid")
    assert "table.merge" in error_of(*words, "--corpus", "c/corpus.jsonl").fix
    error = error_of(*words)
    table, corpus = pandas.read_csv("ratings.csv"), pandas.read_json("c/corpus.jsonl", lines=True)
    merged = eval(error.fix.partition("pandas: ")[2], {"table": table, "corpus": corpus})
    merged.to_csv("ratings.csv", index=False)
    result_of(*words, "--out", "out")
    pairs = load_graded_pairs("out/pairs.parquet")
    assert dict(zip(pairs.documents, pairs.relevance.tolist(), strict=True)) == {"rye bread": 1.0, "bus line": 2 / 3}


def test_list_for_learning_to_rank_becomes_qrels(toy):
    (toy / "ltr.txt").write_text("3\tqid:q1\t# d0\trye bread\n1 qid:q1 1:0.5 2:7 #d1 rye\n2\tqid:q2\t# d2\tbus # 12\n")
    texts = ("--queries", "c/queries.jsonl", "--corpus", "c/corpus.jsonl")
    error = error_of("convert", "trec", "ltr.txt", "--scale", 0, 3, *texts)
    run(error.fix.partition(": ")[2])
    assert read_qrels("qrels.txt") == TOY.qrels["test"]


@pytest.mark.parametrize("grade", ["E", "good", "3 stars", "Très bien"])
def test_words_as_grades_are_mapped_not_dropped(toy, grade):
    (toy / "t.csv").write_text(f"query,document,grade\nq,a,{grade}\nq,b,{grade}\n")
    error = error_of("convert", "table", "t.csv", "--scale", 0, 3)
    if not grade[0].isdigit():
        assert ".map({" in error.fix
    assert "--skip-invalid" not in str(error), "no row would be left"
    (toy / "p.csv").write_text(f"query,document,relevance\nq,a,{grade}\n")
    with pytest.raises(InvalidFileError) as caught:
        load_graded_pairs("p.csv")
    assert grade[0].isdigit() or ".map({" in caught.value.fix


def test_ids_with_spaces_are_renamed_everywhere(toy):
    for path in (toy / "c" / "corpus.jsonl", toy / "c" / "qrels" / "test.tsv"):
        path.write_text(path.read_text().replace("d0", "rye bread.pdf"))
    error = error_of("evaluate", "bm25", "--collection", "c")
    assert "TREC" in error.fix and "wherever" in error.fix
    for path in (toy / "c" / "corpus.jsonl", toy / "c" / "qrels" / "test.tsv"):
        path.write_text(path.read_text().replace("rye bread.pdf", "rye_bread.pdf"))
    assert result_of("evaluate", "bm25", "--collection", "c").exit_code == 0


def test_flag_that_users_look_for_and_words_without_a_flag():
    error = str(error_of("calibrate", "--scores", "s.csv", "--at-recall", 0.9))
    fix = error.partition("fix: ")[2]
    assert parse(["calibrate", *re.search(r"--at-precision.*", fix)[0].split()])
    for words in (["evaluate", "--model", "x"], ["study", "--study", "x"], ["convert", "--source", "beir"]):
        assert "without a flag" in str(error_of(*words))
    assert "--rerank" not in str(error_of("evaluate", "bm25", "--recall", 10))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("study", 1),
        ("convert", 2),
        ("evaluate", 1),
        ("index", 1),
        ("search", 1),
        ("export", 1),
        ("merge", 1),
        ("train", 0),
    ],
)
def test_missing_setting_says_how_it_is_given(name, words):
    text = str(error_of(name))
    assert text.count("without a flag") == words
    given = re.findall(r"give (--[\w.-]+)", text)
    assert all(flag in flags(name) for flag in given) and (words or given)


BEIR = "query-id\tcorpus-id\tscore\nq1\td0\t3\nq1\td1\t1\nq2\td2\t0\n"
QRELS = "q1 0 d0 3\nq1 0 d1 1\nq2 0 d2 0\n"
TABLE = "query,document,grade\na,x,3\na,y,0\nb,z,1\n"
LABELS = "anchor,positive,label\na,x,3\na,y,0\nb,z,1\n"
PAIRS = '{"query_id": "q1", "query": "rye", "document_id": "d0", "document": "rye bread"}\n'


@pytest.mark.parametrize("skip", [(), ("--skip-invalid",)])
@pytest.mark.parametrize(
    "words",
    [
        "convert beir c --qrels wrong",
        "convert trec c/human.txt --queries c/queries.jsonl --corpus c/corpus.jsonl",
        "convert table t.csv",
        "convert sentence-transformers l.csv",
        "grade --pairs p.jsonl --judge replay:qrels:c/human.txt",
        "grade rank --collection c --candidates run.trec --judge replay:qrels:c/human.txt",
        "grade audit --human c/human.txt --judge c/human.txt",
        "grade calibrate --human c/human.txt --judgements c/human.txt",
        "evaluate run.trec --grades c/human.txt --human c/human.txt",
    ],
)
@pytest.mark.parametrize("scale", [(0, 2), (1, 3)])
def test_grades_off_the_stated_scale_are_an_error_in_every_reader(toy, words, skip, scale):
    if skip and not words.startswith("convert"):
        pytest.skip("the verb skips no rows")
    files = {"c/human.txt": QRELS, "c/qrels/wrong.tsv": BEIR, "t.csv": TABLE, "l.csv": LABELS, "p.jsonl": PAIRS}
    for name, text in {**files, "run.trec": "q1 Q0 d0 1 .5 r\nq2 Q0 d2 1 .5 r\n"}.items():
        (toy / name).write_text(text)
    error = error_of(*words.split(), "--scale", *scale, *skip, "--out", "out")
    assert ("highest grade 3" if scale == (0, 2) else "lowest grade 0") in error.got, error
    assert "scale" in error.fix
    assert not (toy / "out" / "run.json").exists()
