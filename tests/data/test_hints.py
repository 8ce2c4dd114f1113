"""Tables that are nearly right: the message names what would mend them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bixse.cli.main import main
from bixse.data.pairs_files import load_graded_pairs, load_pairs
from bixse.data.sources.source import Source
from bixse.data.trec import read_qrels
from bixse.errors import InvalidFileError, RowError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def faults(read: Callable[[Path], object], path: Path, content: str) -> list[RowError]:
    path.write_text(content)
    with pytest.raises(InvalidFileError) as raised:
        read(path)
    return list(raised.value.faults)


def rows(path: Path) -> list[object]:
    return list(Source("pairs", path).rows())


@pytest.mark.parametrize("read", [load_graded_pairs, rows], ids=["pairs", "source"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("pairs.csv", 'query,document,relevance\ncopy,shutil,"0,5"\n'),
        ("pairs.tsv", "query\tdocument\trelevance\ncopy\tshutil\t0,5\n"),
        ("pairs.jsonl", '{"query": "copy", "document": "shutil", "relevance": "0,5"}\n'),
    ],
)
def test_a_decimal_comma(tmp_path: Path, read: Callable[[Path], object], name: str, content: str) -> None:
    (fault,) = faults(read, tmp_path / name, content)
    assert (fault.row, fault.column) == (1, "relevance")
    assert fault.fix.endswith(" 0.5")


def test_a_decimal_comma_in_qrels(tmp_path: Path) -> None:
    (fault,) = faults(read_qrels, tmp_path / "test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0,5\n")
    assert fault.fix.endswith(" 0.5")


@pytest.mark.parametrize(
    ("name", "separator", "words"),
    [("pairs.csv", ";", "semicolons"), ("pairs.csv", "\t", "tabs"), ("pairs.tsv", ",", "commas")],
)
@pytest.mark.parametrize("read", [load_graded_pairs, load_pairs, rows], ids=["pairs", "to grade", "source"])
def test_another_separator(
    tmp_path: Path, read: Callable[[Path], object], name: str, separator: str, words: str
) -> None:
    content = separator.join(("query", "document", "relevance")) + "\n" + separator.join(("copy", "shutil", "1")) + "\n"
    assert all(words in fault.fix for fault in faults(read, tmp_path / name, content))


@pytest.mark.parametrize("read", [load_graded_pairs, rows], ids=["pairs", "source"])
def test_other_letters(tmp_path: Path, read: Callable[[Path], object]) -> None:
    (fault,) = faults(read, tmp_path / "pairs.csv", "query,document,Relevance\ncopy,shutil,1\n")
    assert fault.column == "relevance"
    assert "'Relevance'" in fault.fix


def test_other_letters_in_jsonl_and_parquet(tmp_path: Path) -> None:
    (fault,) = faults(
        load_graded_pairs, tmp_path / "pairs.jsonl", '{"Query": "copy", "document": "shutil", "relevance": 1}\n'
    )
    assert (fault.row, "'Query'" in fault.fix) == (1, True)
    pq.write_table(pa.table({"query": ["a"], "DOCUMENT": ["b"], "relevance": [1.0]}), tmp_path / "pairs.parquet")
    with pytest.raises(InvalidFileError, match="'DOCUMENT'"):
        load_graded_pairs(tmp_path / "pairs.parquet")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("my clicks.csv", "search,title,stars\ncopy a folder,copytree,4\nmove,walk,1\n"),
        (
            "clicks.jsonl",
            '{"search": "copy", "title": "copytree", "stars": 4}\n{"search": "b", "title": "c", "stars": 1}',
        ),
    ],
)
def test_the_command_that_is_named_maps_the_columns(tmp_path: Path, name: str, content: str) -> None:
    fix = faults(load_graded_pairs, tmp_path / name, content)[0].fix
    words = shlex.split(fix[fix.index("bixse convert") :].replace("LOW HIGH", "1 5"))
    assert words[:3] == ["bixse", "convert", "table"]
    assert main([*words[1:], "--out", str(tmp_path / "out")]) == 0
    assert load_graded_pairs(tmp_path / "out" / "pairs.parquet").relevance.tolist() == [0.75, 0.0]


def test_nothing_is_guessed(tmp_path: Path) -> None:
    for fault in faults(load_graded_pairs, tmp_path / "pairs.csv", "name,age,town\nx,3,y\n"):
        assert "convert" not in fault.fix
