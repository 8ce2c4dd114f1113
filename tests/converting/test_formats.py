import gzip
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.converting.convert_settings import ConvertSettings
from bixse.converting.formats import FORMATS, Judgement, register
from bixse.converting.source import Source
from bixse.data.columns import text_id
from bixse.data.task_instructions import load_instructions
from bixse.errors import BixseError, InputError, InvalidFileError
from bixse.files.files import is_unicode
from helpers import source_files as files
from helpers.row_files import faults


def opened(name, path, **options):
    return Source(ConvertSettings.load(None, {"source": name, "path": path, **options}))


def read(source):
    """The judgements of a source in file order; the errors of texts are raised first, those of rows after the last."""
    with tempfile.TemporaryDirectory() as folder, source.texts(Path(folder)):
        for errors in source.errors:
            errors.raise_any()
        judgements = [judgement for block in source.judgements() for judgement in block]
        for errors in source.errors:
            errors.raise_any()
    return judgements


def rows(name, path, **options):
    return read(opened(name, path, **options))


def short(name, path, **options):
    return [(row.query, row.document, row.relevance) for row in rows(name, path, **options)]


def written(folder, *content, name="rows.jsonl"):
    return files.put(folder, {name: files.lines(content)}) / name


def errors(name, path, **options):
    return faults(rows, name, path, **options)


BGE = {"query": "q", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [0.9], "neg_scores": [0.1, 0.4]}
UMBRELA = {"model": "m", "query": "q", "passage": "p", "prediction": "##final score: 3", "judgment": 3}
NO_GRADE = {key: value for key, value in UMBRELA.items() if key != "judgment"}
PAIR = {"query": "q", "document": "d", "relevance": 0.5}
SCORES = '"neg": ["n"], "neg_scores": [0.1]'
BROKEN_ROWS = {
    "e5": ({}, [
        ('{"query": "q"}', {"negative", "positive"}),
        ("", set()),
        ('{"query": " ", "positive": 3, "negative": ["n"]}', {"negative", "positive", "query"}),
        ("[]", {None}),
        ('{"query": "q", "positive": "p", "negative": "n"}', set()),
        ('{"query": "\\ud800", "positive": "p", "negative": "n"}', {"query"}),
        ('{"query": "a", "query": "b"}', {"query"}),
    ]),
    "flagembedding": ({"score_map": "prob"}, [
        ('{"query": "q", "pos": ["p"], "pos_scores": [0.9], ' + SCORES + ",}", {None}),
        ('{"query": "q", "pos": ["p",], "pos_scores": [0.9], ' + SCORES + "}", {None}),
        ('{"query": "q", "pos": ["p"], "pos_scores": [NaN], ' + SCORES + "}", {"pos_scores"}),
        ('{"query": NaN, "pos": ["p"], "pos_scores": [0.9], ' + SCORES + "}", {"query"}),
        (files.BGE[0] | {"query": "a comma in a text: {1, 2, }"}, set()),
        (BGE | {"neg_scores": [0.2]}, {"neg_scores"}),
        (BGE | {"pos_scores": ["high"]}, {"pos_scores"}),
        (BGE | {"pos_scores": [1.5]}, {"pos_scores"}),
        (BGE | {"pos_scores": [True]}, {"pos_scores"}),
        (BGE | {"pos": "a text"}, {"pos"}),
        (BGE | {"neg": ["", "b"]}, {"neg"}),
        ({"query": "q", "pos": [], "neg": []}, {"pos"}),
        ({"query": "q", "pos": ["a"]}, {"pos_scores"}),
    ]),
    "umbrela": ({}, [
        (NO_GRADE, {"judgment"}),
        (NO_GRADE | {"candidates": []}, {"candidates"}),
        (UMBRELA | {"judgment": "x"}, {"judgment"}),
        (UMBRELA | {"result_status": 3}, {"result_status"}),
        (UMBRELA | {"query": {"qid": "q"}}, {"query"}),
        (UMBRELA | {"passage": 7}, {"passage"}),
    ]),
    "pairs": ({}, [
        (PAIR, set()),
        *((PAIR | {"relevance": value}, {"relevance"}) for value in (3, "0,5", None)),
        (PAIR | {"grade": "x"}, {"grade"}),
        (PAIR | {"grade": "nan"}, set()),
        (PAIR | {"grade_probs": ["x"]}, {"grade_probs"}),
        (PAIR | {"task": 3}, {"task"}),
    ]),
    "sentence-transformers": ({}, [
        ({"anchor": "q", "positive": "d"}, {"negative"}),
        ({"anchor": "q", "positive": "d", "negative": "n", "label": 3.2}, {"label"}),
    ]),
}  # fmt: skip
"""Format -> options, and lines or rows with the columns of their errors."""


@pytest.mark.parametrize("name", BROKEN_ROWS)
def test_broken_rows_are_named_by_row_and_column(tmp_path, name):
    options, broken = BROKEN_ROWS[name]
    content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line, _ in broken)
    path = files.put(tmp_path, {"nq.jsonl": content.encode("utf-8", "surrogateescape")}) / "nq.jsonl"
    assert set(errors(name, path, **options)) == {
        (row, column) for row, (_, columns) in enumerate(broken, 1) for column in columns
    }


def test_a_format_is_a_function_from_a_row_to_judgements(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "clicks", None)  # and gone at the end

    @register("clicks", files="JSONL of clicks", suffixes=(".jsonl",), scale=(0, 3), task="file")
    def clicks(row):
        for text, count in row.get("hits", {}).items():
            yield Judgement(row.text("words"), row.text("hits", text), value=count, value_column="hits")

    good = {"words": "copy a folder", "hits": {"copytree": 3, "walk": 0, "move": 7}}
    assert [(row.document, row.relevance, row.status, row.task) for row in rows("clicks", written(tmp_path, good))] == [
        ("copytree", 1.0, "graded", "rows"), ("walk", 0.0, "graded", "rows"), ("move", None, "off-scale", "rows"),
    ]  # fmt: skip
    bad = {"words": 3, "hits": {" ": 1, "walk": "often"}}
    listed = errors("clicks", written(tmp_path, good, bad, {"words": "no hits"}))
    assert listed == [(2, "hits"), (2, "hits"), (2, "words"), (3, None)]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lightblu", {}, "did you mean 'lightblue'"),
        ("e5", {"scale": (0, 1)}, "sentence-transformers, beir, trec, table"),
        ("table", {}, "got no scale"),
        ("table", {"scale": (1, 5), "columns": {"query": "grade"}}, "columns"),
        ("trec", {"scale": (0, 3)}, "--queries and no --corpus"),
        ("sentence-transformers", {"scale": (0, 3), "score_map": "prob"}, "a scale and a score map"),
        ("flagembedding", {}, "percent: scores are 0 to 100"),
        ("e5", {}, "expected files of the source e5"),
        ("umbrela", {"path": "none.jsonl"}, "no such file"),
        ("umbrela", {"path": "."}, "a folder"),
        ("beir", {"path": "gone", "scale": (0, 2)}, "no such folder"),
    ],
)
def test_unsuitable_options_and_paths_are_refused(tmp_path, name, options, message):
    written(tmp_path, {"query": "q", "positive": "p", "negative": "n"})
    with pytest.raises(InputError, match=message):
        rows(name, tmp_path / options.pop("path", "rows.jsonl"), **options)


class TestE5:
    def test_files_are_tasks_of_the_papers_table_and_halves_are_one_task(self, tmp_path):
        folder = files.put(tmp_path, {f"{name}.jsonl": content for name, content in files.E5.items()})
        source = opened("e5", folder)
        found = read(source)
        assert [row.task for row in found].count("nli") == 12
        assert {row.task for row in found} == {"nli", "hotpotqa", "msmarco_passage", "quora_duplicates"}
        assert [row.relevance for row in found[:4]] == [1.0, 0.0, 1.0, 0.0]
        assert found[0].query_id == found[1].query_id == text_id("allnli_split1 q0")
        assert source.warnings() == []

    def test_halves_beside_the_whole_are_not_read_twice(self, tmp_path):
        names = ("allnli.jsonl", "allnli_split1.jsonl", "allnli_split2.jsonl")
        source = opened("e5", files.put(tmp_path, dict.fromkeys(names, files.E5["allnli_split1"])))
        assert len(read(source)) == 6
        assert "allnli_split1.jsonl, allnli_split2.jsonl: left out" in source.warnings()[0]
        unknown = dict.fromkeys(("mine.jsonl", "nq.jsonl"), files.E5["quora_duplicates"])
        source = opened("e5", files.put(tmp_path / "unknown", unknown))
        assert {judgement.task for judgement in read(source)} == {"mine", "nq"}
        assert "mine.jsonl" in source.warnings()[0]

    def test_every_task_has_the_papers_instruction(self):
        form, table = FORMATS["e5"], load_instructions("paper")
        assert set(form.tasks.values()) <= set(table.tasks)
        assert set(form.task_shares) <= set(form.tasks.values())
        assert [name for name in form.tasks.values() if table.tasks[name].symmetric] == ["nli", "quora_duplicates"]


class TestFlagEmbedding:
    @pytest.mark.parametrize(
        ("score_map", "scores"),
        [
            ("prob", (0.75, 0.25)),
            ("percent", (75, 25)),
            ("logit", (1.0986122886681098, -1.0986122886681098)),
            ("platt:0.5,-40", (82.19722457733622, 77.80277542266378)),
        ],
    )
    def test_maps(self, tmp_path, score_map, scores):
        path = written(tmp_path, {**BGE, "neg": ["b"], "pos_scores": [scores[0]], "neg_scores": [scores[1]]})
        found = rows("flagembedding", path, score_map=score_map)
        assert [row.relevance for row in found] == pytest.approx([0.75, 0.25])
        assert found[0].judge.startswith("teacher scores (")

    def test_a_folder_of_files_each_looked_at_by_itself(self, tmp_path):
        percent = [{**row, "pos_scores": [90], "neg_scores": [10, 20]} for row in files.BGE]
        names = {"nq.jsonl": files.lines(files.BGE), "sts_no_in_batch_neg.jsonl": files.lines(percent)}
        folder = files.put(tmp_path, names)
        with pytest.raises(InvalidFileError, match="sts_no_in_batch_neg"):
            rows("flagembedding", folder, score_map="prob")
        source = opened("flagembedding", folder, score_map="binary")
        assert {row.task for row in read(source)} == {"nq", "sts"}
        assert any("without in-batch negatives" in warning for warning in source.warnings())
        assert any("24 texts have scores" in warning for warning in source.warnings())

    @pytest.mark.parametrize("key", ["pos", "neg"])
    @pytest.mark.parametrize("value", ["a text", {"x": 1}, 7, True])
    def test_value_that_is_no_list_is_shown_as_it_is(self, tmp_path, key, value):
        with pytest.raises(InvalidFileError) as caught:
            rows("flagembedding", written(tmp_path, {**BGE, key: value}), score_map="prob")
        (error,) = caught.value.errors
        assert (error.column, error.got) == (key, repr(value))

    def test_labels_are_grades_only_where_binary_is_asked(self, tmp_path):
        found = rows("flagembedding", written(tmp_path, {"query": "q", "pos": ["a"], "neg": ["b"]}), score_map="binary")
        assert [(row.relevance, row.judge) for row in found] == [(1.0, "binary labels"), (0.0, "binary labels")]

    def test_scores_that_carry_no_grades_are_refused_and_strange_ones_warned_of(self, tmp_path):
        path = written(tmp_path, {**BGE, "pos_scores": [1], "neg_scores": [1, 1]})
        with pytest.raises(InputError, match=r"scores of rows\.jsonl"):
            rows("flagembedding", path, score_map="prob")
        crossed = [{**BGE, "neg_scores": [0.95, 0.1]}, BGE, {**BGE, "neg_scores": [0.2, 0.91]}]
        source = opened("flagembedding", written(tmp_path, *crossed), score_map="prob")
        assert len(read(source)) == 9
        assert source.warnings() == ["rows.jsonl: 2 rows score a negative above a positive"]
        source = opened("flagembedding", written(tmp_path, BGE), score_map="logit")
        read(source)
        assert "look like prob" in source.warnings()[0]


class TestTevatron:
    def test_passages_in_place_with_their_titles(self, tmp_path):
        folder = files.put(tmp_path, {"train.jsonl.gz": gzip.compress(files.lines(files.TEVATRON))})
        found = rows("tevatron", folder)
        assert [(row.query_id, row.document_id, row.document, row.relevance, row.task) for row in found[:2]] == [
            ("0", "d0", "Title positive 0", 1.0, "train"),
            ("0", "d00", "negative 0 0", 0.0, "train"),
        ]

    def test_ids_are_looked_up_and_one_that_is_missing_is_an_error(self, tmp_path):
        path, corpus = written(tmp_path, *files.TEVATRON_IDS, name="t.jsonl"), tmp_path / "c.jsonl"
        written(tmp_path, *files.CORPUS[:3], name="c.jsonl")
        assert errors("tevatron", path, corpus=corpus) == [(row, "negative_document_ids") for row in (1, 2, 3)]
        written(tmp_path, *files.CORPUS, name="c.jsonl")
        texts = short("tevatron", path, corpus=corpus)[:2]
        assert texts == [("query 0", "text 0", 1.0), ("query 0", "T text 9", 0.0)]
        with pytest.raises(InvalidFileError, match="--corpus"):
            rows("tevatron", path)

    def test_scores_need_a_stated_map(self, tmp_path):
        row = json.loads(json.dumps(files.TEVATRON[0]))
        for place, passage in enumerate([*row["positive_passages"], *row["negative_passages"]]):
            passage["score"] = [80, 10, 55][place]
        path = written(tmp_path, row)
        assert len(errors("tevatron", path)) == 3
        assert [found.relevance for found in rows("tevatron", path, score_map="percent")] == [0.8, 0.1, 0.55]
        assert len(errors("tevatron", path, score_map="prob")) == 3
        assert [found.relevance for found in rows("tevatron", path, score_map="binary")] == [1.0, 0.0, 0.0]


class TestSentenceTransformers:
    @pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "tsv"])
    def test_n_tuples_in_every_kind_of_file(self, tmp_path, kind):
        mark = {"csv": ",", "tsv": "\t"}.get(kind, "")
        table = "\n".join(mark.join(row) for row in [list(files.TUPLES[0]), *(row.values() for row in files.TUPLES)])
        contents = {"jsonl": files.lines(files.TUPLES), "parquet": files.parquet(files.TUPLES)}
        path = files.put(tmp_path, {f"nli.{kind}": contents.get(kind, table.encode())})
        assert short("sentence-transformers", path)[:4] == [
            ("anchor 0", "positive 0", 1.0),
            ("anchor 0", "negative 0", 0.0),
            ("anchor 0", "other 0", 0.0),
            ("anchor 1", "positive 1", 1.0),
        ]

    def test_labels_need_a_scale_and_one_off_it_is_not_a_grade(self, tmp_path):
        path = written(tmp_path, *({"sentence1": "q", "sentence2": f"d{z}", "score": z} for z in (0, 2.5, 5, -1)))
        assert errors("sentence-transformers", path) == [(row, "score") for row in (1, 2, 3, 4)]
        found = rows("sentence-transformers", path, scale=(0, 5))
        assert [row.relevance for row in found] == [0.0, 0.5, 1.0, None]
        path = written(tmp_path, {**files.TUPLES[0], "label": [0.9, 0.2, 0.1]})  # of the positive and each negative
        assert [row.relevance for row in rows("sentence-transformers", path, score_map="prob")] == [0.9, 0.2, 0.1]


class TestCollections:
    def test_beir_keeps_judged_zeros_and_no_grade_off_the_scale(self, tmp_path):
        source = opened("beir", files.put(tmp_path / "toy", files.BEIR), scale=(0, 2))
        found = read(source)
        assert [(row.document, row.relevance) for row in found] == [
            ("text 0", 1.0), ("title 1 text 1", 0.0), ("title 2 text 2", 0.5), ("title 3 text 3", None),
        ]  # fmt: skip
        assert (found[0].judge, found[0].task) == ("test", "toy")
        assert source.warnings() == ["test.tsv: 1 of 4 judgements carry no grade (1 off-scale)"]

    def test_a_split_must_be_named(self, tmp_path):
        folder = files.put(tmp_path, {**files.BEIR, "qrels/train.tsv": files.BEIR["qrels/test.tsv"]})
        for qrels, said in ((None, "one of test, train"), ("trian", "did you mean 'train'")):
            with pytest.raises(InputError, match=said):
                opened("beir", folder, scale=(0, 2), qrels=qrels)

    def test_texts_that_are_missing_are_errors_where_they_are_judged(self, tmp_path):
        qrels = "query-id\tcorpus-id\tscore\nq0\tempty\t1\nq0\tgone\t1\nnobody\td1\t1\nq0\td0\tx\nq0\td1\n"
        folder = files.put(tmp_path, {**files.BEIR, "qrels/test.tsv": qrels})
        assert errors("beir", folder, scale=(0, 2)) == [
            (1, "corpus-id"), (2, "corpus-id"), (3, "query-id"), (4, "score"), (5, None),
        ]  # fmt: skip

    def test_trec_reads_topics_and_a_compressed_collection(self, tmp_path):
        folder = files.put(tmp_path, files.TREC)
        texts = {"queries": folder / "topics.tsv", "corpus": folder / "collection.tsv.gz"}
        assert short("trec", folder / "2019qrels-pass.txt", scale=(0, 3), **texts) == [
            ("dog age by teeth", "first passage", 1.0),
            ("dog age by teeth", "second passage", 0.0),
            ("what is a flea", "first passage", 1 / 3),
        ]
        files.put(folder, {"twice.txt": "1 0 p1 3\n1 0 p1 3\n1 0 p1 2\n"})
        assert errors("trec", folder / "twice.txt", scale=(0, 3), **texts) == [(3, "score")]

    def test_documents_and_shards_of_ms_marco(self, tmp_path):
        passages = [{"pid": f"p{i}", "passage": f"text {i}", "docid": "the same"} for i in range(2)]
        shards = {f"shards/passages_0{i}.gz": gzip.compress(files.lines([row])) for i, row in enumerate(passages)}
        files.put(tmp_path, {"q.txt": "1 0 D1 2\n", "p.txt": "1 0 p1 2\n", "t.tsv": "1\tq\n", **shards})
        docs = files.put(tmp_path, {"docs.tsv": "D1\thttp://a\tTitle\tBody\n"}) / "docs.tsv"
        options = {"scale": (0, 3), "queries": tmp_path / "t.tsv"}
        assert short("trec", tmp_path / "q.txt", corpus=docs, **options) == [("q", "Title Body", 2 / 3)]
        assert short("trec", tmp_path / "p.txt", corpus=tmp_path / "shards", **options) == [("q", "text 1", 2 / 3)]
        files.put(tmp_path, {"docs.tsv": "D1\ta\nD1\ta\nD1\tb\n"})
        assert errors("trec", tmp_path / "q.txt", corpus=docs, **options) == [(3, "id")], "an id with two texts"


class TestTables:
    def test_named_columns(self, tmp_path):
        path = files.put(tmp_path, {"clicks.csv": files.TABLE}) / "clicks.csv"
        columns = {"query": "search", "document": "item", "grade": "stars", "task": "department"}
        assert [(row.query, row.relevance, row.task) for row in rows("table", path, scale=(1, 5), columns=columns)] == [
            ("copy, a folder", 1.0, "io"),
            ("copy, a folder", 0.0, "io"),
            ("sort", 0.5, "lists"),
        ]
        assert (None, "query") in errors("table", path, scale=(1, 5))

    @pytest.mark.parametrize("name", ["it's", 'a "b"', "$x", "/x", "a.b", "{x}", "a\\b"])
    def test_columns_of_any_name(self, tmp_path, name):
        path = written(tmp_path, {name: "q", "document": "d", "grade": 1})
        assert short("table", path, scale=(0, 1), columns={"query": name}) == [("q", "d", 1.0)]
        path = written(tmp_path, {"query": "q", name: "d", "grade": 1})
        assert short("table", path, scale=(0, 1), columns={"document": name}) == [("q", "d", 1.0)]

    def test_an_empty_grade_is_none_and_a_word_an_error(self, tmp_path):
        path = files.put(tmp_path, {"t.csv": "query,document,grade\nq,a,\nq,b,2\nq,c,-1\n"}) / "t.csv"
        found = rows("table", path, scale=(0, 3))
        assert [(row.grade, row.status) for row in found] == [(None, "no-grade"), (2.0, "graded"), (None, "off-scale")]
        files.put(tmp_path, {"t.csv": "query,document,grade\nq,a,good\nq,b,1_0\nq,c,nan\n"})
        assert errors("table", path, scale=(0, 3)) == [(1, "grade"), (2, "grade"), (3, "grade")]
        files.put(tmp_path, {"t.csv": b"query,document,grade\ncaf\xe9,a,1\nq,b,2\n"})
        assert errors("table", path, scale=(0, 3)) == [(1, "query")], "bytes that are not UTF-8"


class TestLightBlue:
    def test_the_grade_is_the_mean_of_both_orders(self, tmp_path):
        shares = np.random.default_rng(0).dirichlet(np.ones(5), size=(12, 2))
        content = [row | {"32B_score_probs": first.tolist(), "32B_score_probs_rev": second.tolist()}
                   for row, (first, second) in zip(files.LIGHTBLUE, shares, strict=True)]  # fmt: skip
        means = [np.mean([np.average(np.arange(1, 6), weights=order) for order in both]) for both in shares]
        for folder in (files.put(tmp_path / "p", {"a.parquet": files.parquet(content)}), written(tmp_path, *content)):
            found = rows("lightblue", folder)
            assert [row.grade for row in found] == pytest.approx(means, abs=1e-12)
            assert [row.query_id for row in found] == [str(row["row_id"]) for row in content]
            assert [row.document_id for row in found] == [text_id(row["context"]) for row in content]
            assert {row.task for row in found} == {"lsat", "pubmedqa"}

    def test_a_row_without_probability_in_one_order_has_no_grade(self, tmp_path):
        unusable = [[0.0] * 5, [0.5] * 5, [-0.5, 0.5, 0.5, 0.5, 0.0], [float("nan"), 0.5, 0.5, 0.0, 0.0]]
        content = [row | {"32B_score_probs": shares} for row, shares in zip(files.LIGHTBLUE, unusable, strict=False)]
        source = opened("lightblue", written(tmp_path, *content, *files.LIGHTBLUE[4:]))
        found = read(source)
        assert [(row.status, row.grade) for row in found[:4]] == [("no-probabilities", None)] * 4
        assert "4 of 12 judgements carry no grade (4 no-probabilities)" in source.warnings()[0]
        path = written(tmp_path, {**content[0], "32B_score_probs": [1, 2]})
        assert errors("lightblue", path) == [(1, "32B_score_probs")]

    def test_stated_grades_that_the_probabilities_do_not_give_are_counted(self, tmp_path):
        row = files.LIGHTBLUE[2]
        grade = np.average(np.arange(1, 6), weights=row["32B_score_probs"])
        content = [{**row, "context": f"c{z}", "prob_exp_val": grade + z} for z in (2e-3, 5e-4, -1)]
        source = opened("lightblue", written(tmp_path, *content))
        assert len(read(source)) == 3
        assert "2 rows state an expected grade" in source.warnings()[0]

    def test_mean_probabilities_have_the_mean_grade_within_the_scale(self, tmp_path):
        orders = [[0.0, 0.0, 0.1, 0.5, 0.3], [0.1, 0.2, 0.3, 0.2, 0.1]]
        row = files.LIGHTBLUE[2] | dict(zip(("32B_score_probs", "32B_score_probs_rev"), orders, strict=True))
        ends = {key: [0, 0, 0, 0, 0.1] for key in ("32B_score_probs", "32B_score_probs_rev")}
        found, end = rows("lightblue", written(tmp_path, row, files.LIGHTBLUE[2] | ends | {"context": "c"}))
        assert found.grade == pytest.approx(np.average(np.arange(1, 6), weights=found.grade_probs))
        assert sum(found.grade_probs) == pytest.approx(0.9)
        assert end.grade == 5.0


class TestUmbrela:
    @pytest.mark.parametrize(
        ("changes", "grade", "status"),
        [
            ({"result_status": 1}, 3.0, "graded"),
            ({"result_status": 1, "judgment": 0, "prediction": "0"}, 0.0, "graded"),
            ({"result_status": 0, "judgment": 0}, None, "no-option"),
            *(({"judgment": 0, "prediction": text}, None, "no-option")
              for text in ("I cannot say.", "A score on a scale of 0 to 3 is hard to give")),
            *(({"judgment": 0, "prediction": text}, 0.0, "graded")
              for text in ("## Final Score: 0/3", "M: 1\nT: 0\nO: 0", " 0\n")),
            *(({"judgment": grade}, None, "off-scale") for grade in (4, 10, -1, 1.5)),
        ],
    )  # fmt: skip
    def test_a_failed_parse_and_an_impossible_grade_are_no_zero(self, tmp_path, changes, grade, status):
        row = UMBRELA | changes
        (judgement,) = rows("umbrela", written(tmp_path, row))
        assert (judgement.grade, judgement.status, judgement.judge) == (grade, status, "m")

    def test_ids_and_texts_of_the_request_form(self, tmp_path):
        source = opened("umbrela", written(tmp_path, *files.UMBRELA, {**UMBRELA, "judgment": 1, "result_status": 1}))
        found = read(source)
        assert [(row.query_id, row.query, row.document_id, row.document) for row in found[:2]] == [
            ("q0", "query 0", "p0", "passage 0"),
            ("q0", "query 0", "p1", "passage 1"),
        ]
        assert found[-1].query_id == text_id("q")


FUZZED = {
    "lightblue": ("rows.jsonl", files.lines(files.LIGHTBLUE[:4]), {}),
    "flagembedding": ("rows.jsonl", files.lines(files.BGE), {"score_map": "prob"}),
    "tevatron": ("rows.jsonl", files.lines(files.TEVATRON), {}),
    "table": ("rows.parquet", files.parquet([{"query": "q", "document": "d", "grade": 1}] * 3), {"scale": (0, 3)}),
}
NASTY = [b"", b"\x00", b"\xff", b'"', b"{", b"}", b"[", b"\n", b"null", b"NaN", b"-Infinity", b"1e999", b"\\ud800"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("lightblue", "table") else pytest.mark.slow) for name in FUZZED]
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damages=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 30), st.sampled_from(NASTY)), min_size=1, max_size=4))
def test_damaged_files_give_rows_or_a_clear_error(tmp_path, name, damages):
    file, content, options = FUZZED[name]
    for position, cut, inserted in damages:
        start = int(position * len(content))
        content = content[:start] + inserted + content[start + cut :]
    path = files.put(tmp_path, {file: content}) / file
    try:
        source = opened(name, path, **options)
        for row in read(source):
            for text in (row.query, row.document, row.query_id, row.document_id):
                assert text and is_unicode(text)
            assert row.query.strip() and row.document.strip()
            assert (row.grade is not None) == (row.status == "graded")
            assert row.grade is None or source.scale.minimum <= row.grade <= source.scale.maximum
            assert all(math.isfinite(share) for share in row.grade_probs or ())
    except BixseError as error:
        assert "; expected " in str(error) and "; fix: " in str(error)
