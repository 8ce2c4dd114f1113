"""Every outside format as rows, with the traps that each is known for."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import source_files as files

from bixse.data.sources.arctic import ArcticFolder
from bixse.data.sources.e5 import E5Files
from bixse.data.sources.flagembedding import FlagEmbeddingFile
from bixse.data.sources.formats import SOURCES, SourceOptions, open_source
from bixse.data.sources.nvidia import NvidiaFile
from bixse.data.sources.own_pairs import OwnPairs
from bixse.data.sources.table import TableColumns, TableFiles, WandsFolder
from bixse.data.sources.tevatron import TevatronFiles
from bixse.data.sources.trec_texts import BeirFolder, TrecFiles
from bixse.data.sources.tuples import TupleFiles
from bixse.errors import InputError, InvalidFileError
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from pathlib import Path

    from bixse.data.sources.judgement_files import JudgementSource


def short(source: JudgementSource) -> list[tuple[str, str, float | None]]:
    return [(str(row.query), str(row.document), row.relevance) for row in source.rows()]


class TestE5:
    def test_files_are_tasks_of_the_papers_table_and_halves_are_one_task(self, tmp_path: Path) -> None:
        source = E5Files(files.put(tmp_path, {f"{name}.jsonl": content for name, content in files.E5.items()}))
        rows = list(source.rows())
        assert [row.task for row in rows].count("nli") == 12
        assert {row.task for row in rows} == {"nli", "hotpotqa", "msmarco_passage", "quora_duplicates"}
        assert [row.relevance for row in rows[:4]] == [1.0, 0.0, 1.0, 0.0]
        assert rows[0].query_id == rows[1].query_id
        assert source.warnings() == []

    def test_halves_beside_the_whole_are_not_read_twice(self, tmp_path: Path) -> None:
        content = files.E5["allnli_split1"]
        names = ("allnli.jsonl", "allnli_split1.jsonl", "allnli_split2.jsonl")
        source = E5Files(files.put(tmp_path, dict.fromkeys(names, content)))
        assert len(list(source.rows())) == 6
        assert source.warnings() == [
            "allnli_split1.jsonl, allnli_split2.jsonl: left aside, as the whole file lies beside its halves"
        ]

    def test_every_task_has_the_papers_instruction(self) -> None:
        from bixse.data.sources.e5 import SHARES, TASKS
        from bixse.data.task_instructions import load_instructions

        table = load_instructions("paper")
        assert set(TASKS.values()) <= set(table.tasks)
        assert set(SHARES) <= set(TASKS.values())
        assert [task for task in TASKS.values() if table.tasks[task].symmetric] == ["nli", "quora_duplicates"]

    def test_other_files_are_refused_or_named(self, tmp_path: Path) -> None:
        row = files.lines([{"query": "q", "positive": "p", "negative": "n"}])
        with pytest.raises(InputError, match=r"expected files of E5's data"):
            E5Files(files.put(tmp_path, {"mine.jsonl": row}))
        source = E5Files(files.put(tmp_path, {"nq.jsonl": row}))
        assert {found.task for found in source.rows()} == {"mine", "nq"}
        assert "no file of E5" in source.warnings()[0]


class TestFlagEmbedding:
    def test_a_folder_of_files_each_looked_at_by_itself(self, tmp_path: Path) -> None:
        percent = [{**row, "pos_scores": [90], "neg_scores": [10, 20]} for row in files.BGE]
        folder = files.put(
            tmp_path, {"nq.jsonl": files.lines(files.BGE), "sts_no_in_batch_neg.jsonl": files.lines(percent)}
        )
        with pytest.raises(InvalidFileError, match=r"sts_no_in_batch_neg.*: 12 errors\n.*0 to 1 under the map prob"):
            list(FlagEmbeddingFile(folder, "prob").rows())
        source = FlagEmbeddingFile(folder, "binary")
        assert {row.task for row in source.rows()} == {"nq", "sts"}
        assert any("without in-batch negatives" in warning for warning in source.warnings())


class TestTevatron:
    def test_passages_in_place_with_their_titles(self, tmp_path: Path) -> None:
        source = TevatronFiles(files.put(tmp_path, {"train.jsonl.gz": gz(files.lines(files.TEVATRON))}))
        rows = list(source.rows())
        assert [(row.query_id, row.document_id, row.document, row.relevance, row.task) for row in rows[:2]] == [
            ("0", "d0", "Title positive 0", 1.0, "train"),
            ("0", "d00", "negative 0 0", 0.0, "train"),
        ]

    def test_ids_are_looked_up_and_an_id_the_corpus_lacks_is_a_fault(self, tmp_path: Path) -> None:
        folder = files.put(
            tmp_path,
            {"train.jsonl": files.lines(files.TEVATRON_IDS), "corpus.jsonl": files.lines(files.CORPUS[:3])},
        )
        with pytest.raises(InvalidFileError, match=r"3 errors\n.*'d9', not in the corpus"):
            list(TevatronFiles(folder / "train.jsonl", corpus=folder / "corpus.jsonl").rows())
        files.put(folder, {"corpus.jsonl": files.lines(files.CORPUS)})
        source = TevatronFiles(folder / "train.jsonl", corpus=folder / "corpus.jsonl")
        assert short(source)[:2] == [("query 0", "text 0", 1.0), ("query 0", "T text 9", 0.0)]
        with pytest.raises(InvalidFileError, match=r"the id 'd0' without a text.*--corpus"):
            list(TevatronFiles(folder / "train.jsonl").rows())

    def test_scores_need_a_stated_map(self, tmp_path: Path) -> None:
        row: dict[str, Any] = json.loads(json.dumps(files.TEVATRON[0]))
        for place, passage in enumerate([*row["positive_passages"], *row["negative_passages"]]):
            passage["score"] = [80, 10, 55][place]
        path = files.put(tmp_path, {"train.jsonl": files.lines([row])}) / "train.jsonl"
        with pytest.raises(InvalidFileError, match="a stated score map"):
            list(TevatronFiles(path).rows())
        assert [row.relevance for row in TevatronFiles(path, "percent").rows()] == [0.8, 0.1, 0.55]
        with pytest.raises(InvalidFileError, match="0 to 1 under the map prob"):
            list(TevatronFiles(path, "prob").rows())
        source = TevatronFiles(path, "binary")
        assert [row.relevance for row in source.rows()] == [1.0, 0.0, 0.0]
        assert source.warnings() == ["train.jsonl: 3 passages have scores, which the map 'binary' leaves aside"]


class TestTuples:
    @pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv", "tsv"])
    def test_n_tuples_in_every_kind_of_file(self, tmp_path: Path, kind: str) -> None:
        mark = {"csv": ",", "tsv": "\t"}.get(kind, "")
        table = "\n".join(mark.join(row) for row in [list(files.TUPLES[0]), *(row.values() for row in files.TUPLES)])
        contents = {"jsonl": files.lines(files.TUPLES), "parquet": files.parquet(files.TUPLES)}
        path = files.put(tmp_path, {f"nli.{kind}": contents.get(kind, table.encode())})
        assert short(TupleFiles(path))[:4] == [
            ("anchor 0", "positive 0", 1.0),
            ("anchor 0", "negative 0", 0.0),
            ("anchor 0", "other 0", 0.0),
            ("anchor 1", "positive 1", 1.0),
        ]

    def test_labels_need_a_scale_and_one_off_it_is_no_grade(self, tmp_path: Path) -> None:
        rows = [{"sentence1": f"q{i}", "sentence2": "d", "score": score} for i, score in enumerate([0, 2.5, 5, 7])]
        path = files.put(tmp_path, {"sts.jsonl": files.lines(rows)})
        with pytest.raises(InvalidFileError, match="a stated scale or score map"):
            list(TupleFiles(path).rows())
        assert [row.relevance for row in TupleFiles(path, GradeScale(0, 5)).rows()] == [0.0, 0.5, 1.0, None]

    def test_a_list_of_scores_belongs_to_positive_and_negatives(self, tmp_path: Path) -> None:
        rows = [{**files.TUPLES[0], "label": [0.9, 0.2, 0.1]}]
        path = files.put(tmp_path, {"kd.jsonl": files.lines(rows)})
        assert [row.relevance for row in TupleFiles(path, score_map="prob").rows()] == [0.9, 0.2, 0.1]
        files.put(tmp_path, {"kd.jsonl": files.lines([{**files.TUPLES[0], "label": 3.2}])})
        with pytest.raises(InvalidFileError, match=r"one label for 3 documents.*Margin MSE"):
            list(TupleFiles(path, score_map="logit").rows())

    def test_pairs_alone_are_no_judgements(self, tmp_path: Path) -> None:
        path = files.put(tmp_path, {"pairs.jsonl": files.lines([{"anchor": "q", "positive": "d"}])})
        with pytest.raises(InvalidFileError, match="a negative or a label beside"):
            list(TupleFiles(path).rows())


class TestArctic:
    def test_one_is_positive_and_minus_one_a_mined_negative(self, tmp_path: Path) -> None:
        source = ArcticFolder(files.put(tmp_path / "fever", files.ARCTIC))
        rows = list(source.rows())
        assert [(row.query, row.document, row.relevance) for row in rows] == [
            ("query 0", "document 0", 1.0),
            ("query 1", "document 1", 1.0),
            ("query 0", "document 2", 0.0),
            ("query 1", "document 3", 0.0),
        ]
        assert rows[0].document_id == str(2**60)
        assert rows[0].task == "fever"

    def test_labels_without_relevance_are_positives_and_grades_need_a_scale(self, tmp_path: Path) -> None:
        plain = {**files.ARCTIC, "labels.parquet": files.parquet([{"QUERY_ID": 0, "DOCUMENT_ID": 2**60}])}
        del plain["relations.parquet"]
        assert short(ArcticFolder(files.put(tmp_path / "a", plain))) == [("query 0", "document 0", 1.0)]
        graded = {
            **files.ARCTIC,
            "relations.parquet": files.parquet([{"QUERY_ID": 0, "DOCUMENT_ID": 2**60, "RELEVANCE": 2}]),
        }
        with pytest.raises(InvalidFileError, match=r"1 or -1, or a stated scale"):
            list(ArcticFolder(files.put(tmp_path / "b", graded)).rows())
        assert short(ArcticFolder(tmp_path / "b", GradeScale(0, 4))) == [("query 0", "document 0", 0.5)]

    def test_a_folder_without_its_files(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="expected a folder with it"):
            ArcticFolder(tmp_path)
        files.put(tmp_path, {"relations.parquet": files.ARCTIC["relations.parquet"]})
        with pytest.raises(InputError, match=r"documents\.parquet: got no such file"):
            ArcticFolder(tmp_path)


class TestNvidia:
    def test_ids_of_a_parquet_corpus(self, tmp_path: Path) -> None:
        corpus = [{"id": name, "text": f"text {name}"} for name in ("d0", "d1", "d2", "d9")]
        files.put(tmp_path, {"train.json": json.dumps(files.NVIDIA), "wiki/part-0.parquet": files.parquet(corpus)})
        rows = list(NvidiaFile(tmp_path / "train.json", tmp_path / "wiki").rows())
        assert [(row.query_id, row.document_id, row.relevance, row.task) for row in rows[:3]] == [
            ("q0", "d0", 1.0, "wiki"),
            ("q0", "d2", 0.0, "wiki"),
            ("q0", "d9", 0.0, "wiki"),
        ]
        with pytest.raises(InvalidFileError, match="without a text"):
            list(NvidiaFile(tmp_path / "train.json").rows())

    def test_texts_in_place(self, tmp_path: Path) -> None:
        path = files.put(tmp_path, {"train.jsonl": files.lines(files.NVIDIA_INLINE)}) / "train.jsonl"
        assert short(NvidiaFile(path)) == [
            ("one", "a text", 1.0),
            ("one", "another", 0.0),
            ("one", "a third", 0.0),
            ("two", "a text", 1.0),
            ("two", "a fourth", 0.0),
        ]

    @pytest.mark.parametrize("content", ["", "{", "3", '{"data": 3}', '{"rows": []}'])
    def test_json_that_is_no_list_of_rows(self, tmp_path: Path, content: str) -> None:
        path = files.put(tmp_path, {"train.json": content}) / "train.json"
        with pytest.raises(InputError, match="list 'data'"):
            list(NvidiaFile(path).rows())


class TestCollections:
    def test_beir_keeps_judged_zeros_and_no_grade_off_the_scale(self, tmp_path: Path) -> None:
        source = BeirFolder(files.put(tmp_path / "toy", files.BEIR), GradeScale(0, 2))
        assert short(source) == [
            ("query 0", "text 0", 1.0),
            ("query 0", "title 1 text 1", 0.0),
            ("query 1", "title 2 text 2", 0.5),
            ("query 2", "title 3 text 3", None),
        ]
        assert source.warnings() == ["test.tsv: 1 of 4 judgements carry no grade (1 off-scale)"]

    def test_a_scale_and_a_split_must_be_named(self, tmp_path: Path) -> None:
        folder = files.put(tmp_path, {**files.BEIR, "qrels/train.tsv": files.BEIR["qrels/test.tsv"]})
        with pytest.raises(InputError, match="got no scale"):
            BeirFolder(folder, None, "test")
        with pytest.raises(InputError, match=r"got 2 splits.*--qrels and one of test, train"):
            BeirFolder(folder, GradeScale(0, 2))
        with pytest.raises(InputError, match="did you mean 'train'"):
            BeirFolder(folder, GradeScale(0, 2), "trian")
        with pytest.raises(InputError, match="got no such folder"):
            BeirFolder(tmp_path / "gone", GradeScale(0, 2))

    def test_an_empty_document_is_a_fault_where_it_is_judged(self, tmp_path: Path) -> None:
        qrels = "query-id\tcorpus-id\tscore\nq0\tempty\t1\nq0\tgone\t1\nnobody\td1\t1\nq0\td0\tx\nq0\td1\n"
        folder = files.put(tmp_path, {**files.BEIR, "qrels/test.tsv": qrels})
        with pytest.raises(InvalidFileError) as error:
            list(BeirFolder(folder, GradeScale(0, 2)).rows())
        said = str(error.value)
        for part in ("5 errors", "'empty', an empty document", "'gone', not in", "'nobody', not among", "got 'x'"):
            assert part in said

    def test_trec_reads_topics_and_a_compressed_collection(self, tmp_path: Path) -> None:
        folder = files.put(tmp_path, files.TREC)
        source = TrecFiles(
            folder / "2019qrels-pass.txt", GradeScale(0, 3), folder / "topics.tsv", [folder / "collection.tsv.gz"]
        )
        assert short(source) == [
            ("dog age by teeth", "first passage", 1.0),
            ("dog age by teeth", "second passage", 0.0),
            ("what is a flea", "first passage", 1 / 3),
        ]
        assert [document for document, _ in source.all_documents() or ()] == ["p1", "p2", "p3"]
        with pytest.raises(InputError, match="got no --queries and no --corpus"):
            TrecFiles(folder / "2019qrels-pass.txt", GradeScale(0, 3), None, [])

    def test_the_same_pair_with_two_grades_is_a_fault(self, tmp_path: Path) -> None:
        folder = files.put(tmp_path, {**files.TREC, "2019qrels-pass.txt": "1 0 p1 3\n1 0 p1 3\n1 0 p1 2\n"})
        source = TrecFiles(
            folder / "2019qrels-pass.txt", GradeScale(0, 3), folder / "topics.tsv", [folder / "collection.tsv.gz"]
        )
        with pytest.raises(InvalidFileError, match=r"1 error\n.*2 where another line has 3"):
            list(source.rows())

    def test_ms_marcos_documents_have_an_address_before_the_title(self, tmp_path: Path) -> None:
        files.put(tmp_path, {"q.txt": "1 0 D1 2\n", "t.tsv": "1\tq\n", "docs.tsv": "D1\thttp://a\tTitle\tBody\n"})
        source = TrecFiles(tmp_path / "q.txt", GradeScale(0, 3), tmp_path / "t.tsv", [tmp_path / "docs.tsv"])
        assert short(source) == [("q", "Title Body", 2 / 3)]

    def test_passages_of_ms_marco_2_go_by_their_own_id_in_a_folder_of_shards(self, tmp_path: Path) -> None:
        rows = [{"pid": f"p{i}", "passage": f"text {i}", "spans": "(0,5)", "docid": "the same"} for i in range(2)]
        shards = {f"shards/msmarco_passage_0{i}.gz": gz(files.lines([row])) for i, row in enumerate(rows)}
        files.put(tmp_path, {"q.txt": "1 0 p1 2\n", "t.tsv": "1\tq\n", **shards})
        options = SourceOptions(GradeScale(0, 3), queries=tmp_path / "t.tsv", corpus=tmp_path / "shards")
        assert short(open_source("trec", tmp_path / "q.txt", options)) == [("q", "text 1", 2 / 3)]

    def test_an_id_with_two_texts_is_a_fault_of_the_corpus(self, tmp_path: Path) -> None:
        files.put(tmp_path, {"q.txt": "1 0 D1 2\n", "t.tsv": "1\tq\n", "docs.tsv": "D1\ta\nD1\ta\nD1\tb\n"})
        source = TrecFiles(tmp_path / "q.txt", GradeScale(0, 3), tmp_path / "t.tsv", [tmp_path / "docs.tsv"])
        with pytest.raises(InvalidFileError, match=r"docs\.tsv: 1 error\n  row 3.*'D1' again with another text"):
            list(source.rows())


class TestTables:
    def test_named_columns(self, tmp_path: Path) -> None:
        path = files.put(tmp_path, {"clicks.csv": files.TABLE}) / "clicks.csv"
        columns = TableColumns(query="search", document="item", grade="stars", task="department")
        rows = list(TableFiles(path, GradeScale(1, 5), columns).rows())
        assert [(row.query, row.relevance, row.task) for row in rows] == [
            ("copy, a folder", 1.0, "io"),
            ("copy, a folder", 0.0, "io"),
            ("sort", 0.5, "lists"),
        ]
        with pytest.raises(InvalidFileError, match="a column 'query'"):
            list(TableFiles(path, GradeScale(1, 5)).rows())
        with pytest.raises(InputError, match="a column of its own"):
            TableFiles(path, GradeScale(1, 5), TableColumns(query="grade"))

    def test_an_empty_grade_is_none_and_a_word_a_fault(self, tmp_path: Path) -> None:
        path = files.put(tmp_path, {"t.csv": "query,document,grade\nq,a,\nq,b,2\nq,c,9\n"})
        rows = list(TableFiles(path, GradeScale(0, 3)).rows())
        assert [(row.grade, row.status) for row in rows] == [(None, "no-grade"), (2.0, "graded"), (None, "off-scale")]
        files.put(tmp_path, {"t.csv": "query,document,grade\nq,a,good\nq,b,1_0\nq,c,nan\n"})
        with pytest.raises(InvalidFileError, match="3 errors"):
            list(TableFiles(path, GradeScale(0, 3)).rows())

    def test_bytes_that_are_no_utf_8_are_a_fault_of_their_row(self, tmp_path: Path) -> None:
        path = files.put(tmp_path, {"t.csv": b"query,document,grade\ncaf\xe9,a,1\nq,b,2\n"})
        with pytest.raises(InvalidFileError, match=r"1 error\n  row 1, column 'query': got b'caf\\xe9'"):
            list(TableFiles(path, GradeScale(0, 3)).rows())

    def test_wands(self, tmp_path: Path) -> None:
        source = WandsFolder(files.put(tmp_path, files.WANDS))
        assert short(source) == [
            ("salon chair", 'a chair, "red" soft', 1.0),
            ("salon chair", "a table", 0.0),
            ("smart table", "a table", 0.5),
        ]
        files.put(tmp_path, {"label.csv": "id\tquery_id\tproduct_id\tlabel\n0\t0\t7\tPerhaps\n1\t5\t9\tExact\n"})
        with pytest.raises(InvalidFileError, match="3 errors"):
            list(WandsFolder(tmp_path).rows())

    def test_own_pairs_keep_their_grades_whatever_their_scale(self, tmp_path: Path) -> None:
        rows = [
            {"query": "q", "document": "d", "relevance": 0.5, "grade": 7, "grade_probs": [0.5, 0.5]},
            {"query": "q", "document": "e", "relevance": 0.5},
        ]
        path = files.put(tmp_path, {"pairs.jsonl": files.lines(rows)})
        assert [dict(row.extra) for row in OwnPairs(path).rows()] == [
            {"grade": 7.0, "grade_probs": [0.5, 0.5]},
            {"grade": None, "grade_probs": None},
        ]
        files.put(tmp_path, {"pairs.jsonl": files.lines([{**rows[0], "relevance": 3}])})
        with pytest.raises(InvalidFileError, match="table takes a --scale"):
            list(OwnPairs(path).rows())


class FakeIrDatasets:
    """What of ir_datasets is used."""

    def load(self, name: str) -> Any:
        if name != "toy/train":
            raise KeyError(name)
        documents = {"d1": "a document", "d2": "another"}
        record = SimpleNamespace
        return record(
            has_qrels=lambda: True,
            has_queries=lambda: True,
            has_docs=lambda: True,
            qrels_defs=lambda: {3: "perfect", 0: "not", -2: "spam"},
            qrels_iter=lambda: [
                record(query_id="1", doc_id="d1", relevance=3),
                record(query_id="1", doc_id="d2", relevance=-2),
                record(query_id="1", doc_id="gone", relevance=0),
            ],
            queries_iter=lambda: [record(query_id="1", default_text=lambda: "a query")],
            docs_iter=lambda: [record(doc_id=name, text=text) for name, text in documents.items()],
            docs_store=lambda: record(get=lambda name: record(text=documents[name])),
        )


class TestIrDatasets:
    def test_judgements_by_name_with_the_scale_the_data_set_defines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ir_datasets", FakeIrDatasets())
        source = open_source("ir_datasets", "toy/train", SourceOptions(), download=True)
        rows = []
        with pytest.raises(InvalidFileError, match="'gone' without a text"):
            rows.extend(source.rows())  # the rows before the fault are given
        source = open_source("ir_datasets", "toy/train", SourceOptions(), download=True)
        reading = source.rows()
        assert [(row.relevance, row.status) for row in (next(reading), next(reading))] == [
            (1.0, "graded"),
            (None, "off-scale"),
        ]

    def test_what_is_missing_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ir_datasets", None)
        with pytest.raises(InputError, match="pip install ir_datasets"):
            open_source("ir_datasets", "toy/train", SourceOptions())
        monkeypatch.setitem(sys.modules, "ir_datasets", FakeIrDatasets())
        with pytest.raises(InputError, match=r"convert ir_datasets toy/train --download"):
            open_source("ir_datasets", "toy/train", SourceOptions())
        with pytest.raises(InputError, match=r"ir-datasets\.com"):
            open_source("ir_datasets", "toy/tran", SourceOptions(), download=True)


class TestCatalogue:
    @pytest.mark.parametrize("name", SOURCES)
    def test_every_source_says_what_it_is_where_it_is_from_and_its_licence(self, name: str) -> None:
        reader = SOURCES[name].reader
        assert reader.name == name
        assert reader.file_format and reader.licence
        assert reader.citation or name in ("table", "pairs")

    @pytest.mark.parametrize("name", [name for name in SOURCES if name != "ir_datasets"])
    def test_a_path_that_is_not_there(self, tmp_path: Path, name: str) -> None:
        takes = SOURCES[name].takes
        options = SourceOptions(
            scale=GradeScale(0, 3) if "scale" in takes else None,
            queries=tmp_path / "q" if "queries" in takes else None,
            corpus=tmp_path / "c" if name == "trec" else None,
        )
        with pytest.raises(InputError, match=r"got .*; expected .*; fix: "):
            open_source(name, tmp_path / "gone", options)

    def test_an_option_of_another_source_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"source e5: got --scale; expected none.*sentence-transformers, arctic"):
            open_source("e5", tmp_path, SourceOptions(scale=GradeScale(0, 3)))

    def test_a_data_set_of_the_hub_that_was_never_fetched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(InputError, match=r"bixse convert lightblue hub:lightblue/nothing --download"):
            open_source("lightblue", "hub:lightblue/nothing", SourceOptions())
        with pytest.raises(InputError, match="expected hub:owner/name"):
            open_source("lightblue", "hub:a/b/c", SourceOptions())

    def test_a_data_set_of_the_hub_is_its_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files.put(tmp_path, {"data/train-00000.parquet": files.parquet(files.LIGHTBLUE)})
        asked: dict[str, Any] = {}

        def fetched(name: str, **options: Any) -> str:
            asked.update(options, name=name)
            return str(tmp_path)

        monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
        source = open_source("lightblue", "hub:lightblue/data@main", SourceOptions(), download=True)
        assert len(list(source.rows())) == 12
        assert asked == {
            "name": "lightblue/data",
            "repo_type": "dataset",
            "revision": "main",
            "local_files_only": False,
        }


def gz(content: bytes) -> bytes:
    import gzip

    return gzip.compress(content, mtime=0)


def test_a_compressed_file_that_is_cut_off(tmp_path: Path) -> None:
    content = gz(files.lines(files.TEVATRON * 50))
    path = files.put(tmp_path, {"train.jsonl.gz": content[: len(content) // 2]}) / "train.jsonl.gz"
    with pytest.raises(InputError, match=r"train\.jsonl\.gz: got .*fetch it again"):
        list(TevatronFiles(path).rows())
