from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bixse.data.collection import Collection, Document
from bixse.data.sources import QrelsFile
from bixse.errors import InputError, InvalidFileError
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from pathlib import Path

SCALE = GradeScale(0, 3)
TOY = Collection("toy", {"d1": Document("copy", "copies a file"), "d2": Document("", "a walk")}, {"q1": "copy a file"})


def write(folder: Path, content: str) -> Path:
    path = folder / "judge-a.txt"
    path.write_text(content, encoding="utf-8")
    return path


def test_the_scale_must_be_stated(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got no scale; expected that of its grades .*fix: state the lowest"):
        QrelsFile(write(tmp_path, "q1 0 d1 3\n"), None)


def test_labels_10_and_5_on_a_scale_of_0_to_3_are_off_it(tmp_path: Path) -> None:
    source = QrelsFile(write(tmp_path, "q1 0 d1 3\nq1 0 d2 10\nq1 0 d3 5\nq1 0 d4 -2\nq1 0 d5 0\n"), SCALE)
    found = {row.document_id: (row.grade, row.status, row.detail) for row in source.rows()}
    assert found == {
        "d1": (3.0, "graded", ""),
        "d2": (None, "off-scale", "grade 10; the scale is 0 to 3"),
        "d3": (None, "off-scale", "grade 5; the scale is 0 to 3"),
        "d4": (None, "off-scale", "grade -2; the scale is 0 to 3"),
        "d5": (0.0, "graded", ""),
    }
    assert source.warnings() == ["judge-a.txt: 3 of 5 judgements carry no grade (3 off-scale)"]


@pytest.mark.parametrize("content", ["q1 Q0 d1 2\nq1 Q0 d2 1\n", "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t1\n"])
def test_both_formats_with_texts_from_a_collection(tmp_path: Path, content: str) -> None:
    first, second = QrelsFile(write(tmp_path, content), SCALE, TOY).rows()
    assert (first.query, first.document, first.grade, first.judge) == (
        "copy a file",
        "copy copies a file",
        2.0,
        "judge-a",
    )
    assert (second.document, second.relevance) == ("a walk", 1 / 3)


def test_without_a_collection_rows_have_ids_alone(tmp_path: Path) -> None:
    (row,) = QrelsFile(write(tmp_path, "q1 0 d1 3\n"), SCALE).rows()
    assert (row.query_id, row.document_id, row.query, row.document, row.pair) == ("q1", "d1", None, None, None)


def test_ids_the_collection_lacks_are_faults_all_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError) as caught:
        list(QrelsFile(write(tmp_path, "q1 0 d1 3\nq1 0 d9 1\nq9 0 d1 0\n"), SCALE, TOY).rows())
    assert [str(fault).partition(";")[0] for fault in caught.value.errors] == [
        "column 'corpus-id': got 'd9', judged for query 'q1'",
        "column 'query-id': got 'q9', not in the collection",
    ]
    rows = QrelsFile(write(tmp_path, "q1 0 d9 3\nq1 0 d1 1\n"), SCALE, TOY).rows()
    assert next(rows).document_id == "d1"  # a row without its texts is not given


def test_faulty_lines_are_told_as_everywhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match=r"row 2, column 'score': got 'high'"):
        list(QrelsFile(write(tmp_path, "q1 0 d1 3\nq1 0 d2 high\n"), SCALE).rows())
    with pytest.raises(InputError, match="got no judgement"):
        list(QrelsFile(write(tmp_path, "\n"), SCALE).rows())
