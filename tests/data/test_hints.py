"""Tables that are nearly right: the error has the fix."""

import shlex

import pyarrow as pa
import pytest

from bixse.cli.main import main
from bixse.data.pairs_files import load_graded_pairs
from bixse.data.trec import read_qrels
from bixse.errors import InvalidFileError
from bixse.files.rows import write_rows

NEARLY_RIGHT = [
    ("pairs.csv", 'query,document,relevance\ncopy,shutil,"0,5"\n', " 0.5"),
    ("pairs.tsv", "query\tdocument\trelevance\ncopy\tshutil\t0,5\n", " 0.5"),
    ("pairs.jsonl", '{"query": "copy", "document": "shutil", "relevance": "0,5"}\n', " 0.5"),
    ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0,5\n", " 0.5"),
    ("pairs.csv", "query;document;relevance\ncopy;shutil;1\n", "semicolons"),
    ("pairs.csv", "query\tdocument\trelevance\ncopy\tshutil\t1\n", "tabs"),
    ("pairs.tsv", "query,document,relevance\ncopy,shutil,1\n", "commas"),
    ("pairs.csv", "query,document,Relevance\ncopy,shutil,1\n", "'Relevance'"),
    ("pairs.jsonl", '{"Query": "copy", "document": "shutil", "relevance": 1}\n', "'Query'"),
    ("pairs.parquet", {"query": ["a"], "DOCUMENT": ["b"], "relevance": [1.0]}, "'DOCUMENT'"),
]


def fixes(path):
    with pytest.raises(InvalidFileError) as caught:
        (read_qrels if path.name == "qrels.tsv" else load_graded_pairs)(path)
    return [error.fix for error in caught.value.errors]


@pytest.mark.parametrize(("name", "content", "fix"), NEARLY_RIGHT)
def test_fix_names_the_value_separator_or_column(tmp_path, name, content, fix):
    if isinstance(content, dict):
        write_rows(pa.table(content), tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    assert all(fix in advice for advice in fixes(tmp_path / name))


def test_the_command_that_is_named_maps_the_columns(tmp_path):
    (tmp_path / "my clicks.csv").write_text("search,title,stars\ncopy a folder,copytree,4\nmove,walk,1\n")
    fix = fixes(tmp_path / "my clicks.csv")[0]
    command = fix[fix.index("bixse convert") :].replace("LOW HIGH", "1 5")
    for name in ("search", "title", "stars"):
        command = command.replace("NAME", name, 1)
    assert main([*shlex.split(command)[1:], "--out", str(tmp_path / "out")]) == 0
    assert load_graded_pairs(tmp_path / "out" / "pairs.parquet").relevance.tolist() == [0.75, 0.0]
