"""Judgements in memory, and grades against their scale."""

import pytest

from bixse.errors import InputError
from bixse.preparing.sources.judgement import Judgement, JudgementRows, on_scale
from bixse.relevance import GradeScale


@pytest.mark.parametrize(
    ("grade", "status"), [(1, "graded"), (5, "graded"), (0.999, "off-scale"), (5.001, "off-scale")]
)
def test_a_grade_at_the_ends_of_the_scale_is_on_it(grade, status):
    assert on_scale(grade, GradeScale(1, 5))[1] == status


def test_rows_in_memory():
    row = Judgement("q", "d", GradeScale(0, 3), grade=1.0)
    other = Judgement("q", "e", GradeScale(0, 1), grade=1.0)
    assert list(JudgementRows([row]).rows()) == [row]
    assert JudgementRows([row]).content_hash() != JudgementRows([row, row]).content_hash()
    for rows in ([], [row, other]):
        with pytest.raises(InputError):
            JudgementRows(rows)
