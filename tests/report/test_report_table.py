import re

import pytest

from bixse.report.table import (
    format_difference,
    format_interval,
    format_markdown,
    format_number,
    format_p_value,
    format_seconds,
    format_table,
)


@pytest.mark.parametrize("write", [format_table, format_markdown])
def test_short_row_is_refused(write):
    with pytest.raises(ValueError, match="shorter"):
        write([["a", 1], ["b"]], ["name", "count"])


def test_data_cannot_control_the_terminal():
    text = format_table([["\x1b[31mred\x1b[0m\nline\u202e", 1]], ["system\x07", "n"])
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert len(text.splitlines()) == 3


def test_data_cannot_become_markdown_or_html():
    row = format_markdown([["a|b *c* <script> [x](y) `z` \\", 1.0]], ["system", "n"]).splitlines()[2]
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
    assert cells == ["", r"a\|b \*c\* &lt;script&gt; \[x\](y) \`z\` \\", "1.000", ""]


def test_numbers_are_right_aligned_and_texts_left():
    table = format_table([["BM25", 7, "+0.1"], ["a longer name", 1234, "–"]], ["system", "queries", "change"])
    assert table.splitlines() == [
        "system           queries    change",
        "-------------  ---------  --------",
        "BM25                   7      +0.1",
        "a longer name       1234         –",
    ]
    assert format_table([["日本", 1], ["abcd", 2]], ["name", "n"]).splitlines()[2] == "日本      1"
    assert format_table([], ["name", "n"]).splitlines() == ["name    n", "------  ---"]


NUMBERS = {0.0: "0.000", -0.0001: "0.000", -0.5: "-0.500", None: "–", 12.3456: "12.346"}
DIFFERENCES = {0.05: "+0.050", -0.05: "−0.050", 0.0: "0.000", -0.0004: "0.000", 0.0006: "+0.001"}
SECONDS = {
    None: "–", 0.0: "< 0.1 s", 59.94: "59.9 s", 59.96: "1 min 00 s", 3599.4: "59 min 59 s", 3599.6: "1 h 00 min",
    86400: "24 h 00 min",
}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "texts"), [(format_number, NUMBERS), (format_difference, DIFFERENCES), (format_seconds, SECONDS)]
)
def test_values_are_rounded_and_have_their_unit_and_sign(write, texts):
    assert {value: write(value) for value in texts} == texts


def test_unknown_interval_and_p_value_have_a_text():
    assert format_interval(None, None) == ""
    assert (format_p_value(None), format_p_value(0.001)) == ("–", "0.001")
