from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bixse.data import sources
from bixse.data.sources import reading
from bixse.data.sources.judgement_files import Judgement, JudgementRows, JudgementSource, placed
from bixse.data.sources.reading import RowErrors, files_of, json_rows
from bixse.errors import InputError, InvalidFileError
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from pathlib import Path


def read(folder: Path, content: bytes) -> tuple[list[tuple[int, Any]], list[str]]:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    faults = RowErrors(path)
    rows = list(json_rows(path, faults))
    return rows, [str(fault).partition(";")[0] for fault in faults.kept]


def test_lines_that_are_no_objects_are_faults_and_the_rest_is_read(tmp_path: Path) -> None:
    rows, faults = read(tmp_path, b'{"a": 1}\n\n{broken\n[1]\ncaf\xe9\n{"a": 2}\r\n{"a": 3}')
    assert rows == [(1, {"a": 1}), (6, {"a": 2}), (7, {"a": 3})]
    assert faults == ["row 3: got '{broken\\n'", "row 4: got [1]", "row 5: got byte 0xe9"]


def test_a_byte_order_mark_is_dropped_and_utf_16_refused(tmp_path: Path) -> None:
    assert read(tmp_path, b'\xef\xbb\xbf{"a": 1}') == ([(1, {"a": 1})], [])
    with pytest.raises(InputError, match=r"got UTF-16; expected UTF-8 text; fix: .*iconv"):
        read(tmp_path, '{"a": 1}'.encode("utf-16"))


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a": ' * 50_000, "1" * 5000])
def test_json_that_python_does_not_take_is_a_fault(tmp_path: Path, line: str) -> None:
    rows, faults = read(tmp_path, f'{line}\n{{"a": 1}}\n'.encode())
    assert (rows, len(faults)) == ([(2, {"a": 1})], 1)


def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 1 << 20)
    long = json.dumps({"a": "x" * (3 << 20)}).encode()
    rows, faults = read(tmp_path, b'{"a": 1}\n' + long + b'\n{"a": 2}\n' + long)
    assert rows == [(1, {"a": 1}), (3, {"a": 2})]
    assert faults == [f"row {row}: got a line longer than 1 MiB" for row in (2, 4)]
    exact = json.dumps({"a": "x" * ((1 << 20) - 10)}).encode() + b"\n"
    assert len(exact) == (1 << 20) + 1 - 1
    assert len(read(tmp_path, exact)[0]) == 1


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a readable file"):
        list(json_rows(tmp_path / "gone.jsonl", RowErrors(tmp_path)))
    with pytest.raises(InputError, match="got a folder; expected a file of rows"):
        files_of(tmp_path, (), "a file of rows")


def test_faults_are_all_counted_and_the_first_kept(tmp_path: Path) -> None:
    faults = RowErrors(tmp_path / "rows.jsonl")
    faults.raise_any()
    for number in range(1000):
        faults.add(number, "a", "x", "y", "z")
    assert len(faults.kept) == 20
    with pytest.raises(InvalidFileError, match=r"rows.jsonl: 1000 errors\n(.*\n){20}  \.\.\. and 980 more"):
        faults.raise_any()


@pytest.mark.parametrize(
    ("value", "found"),
    [(None, None), ("", None), ("a", "a"), (7, "7"), (10**30, "1" + "0" * 30)],
)
def test_ids(tmp_path: Path, value: Any, found: str | None) -> None:
    faults = RowErrors(tmp_path)
    assert faults.identifier(1, "id", {"id": value}) == found
    assert faults.total == 0


@pytest.mark.parametrize("value", [True, 1.5, [1], {"a": 1}, "\ud83d"])
def test_values_that_are_no_ids(tmp_path: Path, value: Any) -> None:
    faults = RowErrors(tmp_path)
    assert faults.identifier(1, "id", {"id": value}) is None
    assert faults.total == 1


def test_every_format_says_what_it_is() -> None:
    for name, reader in sources.FORMATS.items():
        found = getattr(sources, reader)
        assert issubclass(found, JudgementSource)
        assert found.name == name and found.file_format and found.citation
    with pytest.raises(AttributeError, match="no attribute 'UmbrellaFile'"):
        _ = sources.UmbrellaFile


def test_a_grade_at_the_ends_of_the_scale_is_on_it() -> None:
    scale = GradeScale(1, 5)
    assert [placed(grade, scale)[1] for grade in (1, 5, 0.999, 5.001)] == ["graded", "graded", "off-scale", "off-scale"]


def test_rows_in_memory() -> None:
    row = Judgement("q", "d", GradeScale(0, 3), grade=1.0)
    other = Judgement("q", "e", GradeScale(0, 1), grade=1.0)
    assert list(JudgementRows([row]).rows()) == [row]
    assert JudgementRows([row]).content_hash() != JudgementRows([row, row]).content_hash()
    for rows, found in (([], "no rows"), ([row, other], "2 scales")):
        with pytest.raises(InputError, match=f"got {found}; expected rows of one scale"):
            JudgementRows(rows)
