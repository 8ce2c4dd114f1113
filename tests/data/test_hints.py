"""Tables that are nearly right: the message names what would fix them."""

from __future__ import annotations

import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.cli.main import main
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.trec import read_qrels
from bixse.errors import InvalidFileError


def errors(read, path, content):
    path.write_text(content)
    with pytest.raises(InvalidFileError) as raised:
        read(path)
    return list(raised.value.errors)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", 'query,document,relevance\ncopy,shutil,"0,5"\n'),
        ("pairs.tsv", "query\tdocument\trelevance\ncopy\tshutil\t0,5\n"),
        ("pairs.jsonl", '{"query": "copy", "document": "shutil", "relevance": "0,5"}\n'),
    ],
)
def test_a_decimal_comma(tmp_path, name, content):
    (error,) = errors(load_graded_pairs, tmp_path / name, content)
    assert (error.row, error.column) == (1, "relevance")
    assert error.fix.endswith(" 0.5")


def test_a_decimal_comma_in_qrels(tmp_path):
    (error,) = errors(read_qrels, tmp_path / "test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0,5\n")
    assert error.fix.endswith(" 0.5")


@pytest.mark.parametrize(
    ("name", "separator", "words"),
    [("pairs.csv", ";", "semicolons"), ("pairs.csv", "\t", "tabs"), ("pairs.tsv", ",", "commas")],
)
def test_another_separator(tmp_path, name, separator, words):
    content = separator.join(("query", "document", "relevance")) + "\n" + separator.join(("copy", "shutil", "1")) + "\n"
    assert all(words in error.fix for error in errors(load_graded_pairs, tmp_path / name, content))


def test_other_letters(tmp_path):
    (error,) = errors(load_graded_pairs, tmp_path / "pairs.csv", "query,document,Relevance\ncopy,shutil,1\n")
    assert error.column == "relevance"
    assert "'Relevance'" in error.fix


def test_other_letters_in_jsonl_and_parquet(tmp_path):
    (error,) = errors(
        load_graded_pairs, tmp_path / "pairs.jsonl", '{"Query": "copy", "document": "shutil", "relevance": 1}\n'
    )
    assert (error.row, "'Query'" in error.fix) == (1, True)
    pq.write_table(pa.table({"query": ["a"], "DOCUMENT": ["b"], "relevance": [1.0]}), tmp_path / "pairs.parquet")
    with pytest.raises(InvalidFileError, match="'DOCUMENT'"):
        load_graded_pairs(tmp_path / "pairs.parquet")


def test_the_command_that_is_named_maps_the_columns(tmp_path):
    content = "search,title,stars\ncopy a folder,copytree,4\nmove,walk,1\n"
    fix = errors(load_graded_pairs, tmp_path / "my clicks.csv", content)[0].fix
    command = fix[fix.index("bixse convert") :].replace("LOW HIGH", "1 5")
    for name in ("search", "title", "stars"):
        command = command.replace("NAME", name, 1)
    assert main([*shlex.split(command)[1:], "--out", str(tmp_path / "out")]) == 0
    assert load_graded_pairs(tmp_path / "out" / "pairs.parquet").relevance.tolist() == [0.75, 0.0]
