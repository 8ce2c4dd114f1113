"""The page of a report: whole, escaped, and reaching for nothing outside."""

import re
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import pytest

from bixse.errors import InputError, InvalidFileError, StorageError
from bixse.report.page import render_report, write_report
from bixse.report.schema import QueryChange, load_report_data, save_report_data
from helpers.html_page import Page

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror="alert(\'x\')">',
    "'><svg/onload=alert(1)>",
    "</title></style></script><b>",
    "</svg></figure><iframe src=//evil.example>",
    "{{7*7}} {% raw %} {# gone #}",
    "--><!-- &lt;i&gt; &#60;i&#62;",
    "\u202ertl\u2066 اَلْعَرَبِيَّة 日本語 🦊",
    "javascript:alert(1)",
    "word" * 200,
]


@pytest.fixture(scope="module")
def full_html(full_data):
    """The full page, drawn once for the tests that only read it."""
    return render_report(full_data)


def test_no_element_comes_from_data(full_data, change_text):
    payload = " ".join(HOSTILE)
    hostile = Page(render_report(change_text(full_data, lambda text: payload + text)))
    harmless = Page(render_report(change_text(full_data, lambda text: "w" * len(payload) + text)))
    assert hostile.shape() == harmless.shape()
    hostile.check_harmless()
    assert " ".join(payload.split()) in hostile.text, "the text is shown as it is"


@pytest.mark.parametrize("payload", HOSTILE)
def test_no_element_comes_from_any_payload(full_data, minimal_data, change_text, payload):
    """Without the plots, so that each payload stands alone at the start and end of every other text."""
    undrawn = {"comparisons", "training", "calibrations", "per_query"}
    data = full_data.model_copy(update={name: getattr(minimal_data, name) for name in undrawn})
    hostile = Page(render_report(change_text(data, lambda text: payload + text + payload)))
    assert hostile.shape() == Page(render_report(data)).shape()
    hostile.check_harmless()


def test_texts_are_shown(full_data, full_html, change_text):
    marked = Page(render_report(change_text(full_data, lambda text: "§" + text))).text
    plain = Page(full_html).text
    assert marked.count("§") > 100
    shown = full_data.model_dump()
    for text in [
        shown["title"],
        shown["description"],
        *shown["verdicts"],
        *shown["notes"],
        *shown["commands"],
        *shown["facts"],
        *shown["facts"].values(),
        *shown["timings"],
        *[system["label"] for system in shown["systems"]],
        *shown["calibrations"],
        shown["side_by_side"][0]["query"],
    ]:
        assert text in plain
        assert "§" + text in marked


def test_the_page_reaches_for_nothing_outside(full_html):
    html = full_html
    assert "http" not in html.replace("http-equiv", "")
    assert "@import" not in html and "@font-face" not in html
    assert not re.search(r"url\((?!#)", html)
    policy = next(a["content"] for tag, a in Page(html).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


def test_sections_are_in_order_and_none_is_empty(full_html, minimal_data):
    assert re.findall(r'<h2 id="(\w+)"', full_html) == [
        "found", "results", "differences", "training", "calibration", "queries", "rankings", "notes", "facts",
        "commands",
    ]  # fmt: skip
    html = render_report(minimal_data)
    assert re.findall(r'<h2 id="(\w+)"', html) == ["found", "results"]
    assert "claims no improvement" in html
    assert "<img" not in html


def test_one_query_and_no_grades(minimal_data):
    change = QueryChange(query_id="q", query="copy", baseline_score=0.4, system_score=0.4)
    html = render_report(minimal_data.model_copy(update={"per_query": [change]}))
    assert "By kind of query" not in html and "Largest" not in html
    assert "0 queries gained, 0 lost, 1 stayed the same" in html


def test_headings_are_in_order_and_tables_have_scopes(full_html):
    page = Page(full_html)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.elements if tag == "th")
    tags = [tag for tag, _ in page.elements]
    assert tags.count("table") == tags.count("caption") == sum(a.get("class") == "scroll" for _, a in page.elements)
    for tag, attributes in page.elements:
        if tag == "img":
            assert attributes["alt"]
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a}
    assert labelled <= set(ids)


def test_verdicts_are_worded_and_the_best_of_a_column_is_bold(full_html):
    html = full_html
    verdicts = html[html.index('<ul class="verdicts">') : html.index("</ul>")]
    assert re.findall(r'<li class="([\w-]+)">', verdicts) == ["better", "no-difference", "worse", "better"]
    assert re.findall(r'class="verdict [\w-]+">(.*?)</span>', verdicts) == [
        "▲ better", "● no difference shown", "▼ worse", "▲ better",
    ]  # fmt: skip
    assert "95% interval [+0.012, +0.094], p\u00a0&lt;\u00a00.001, 113 queries" in verdicts
    results = html[html.index('<h2 id="results"') : html.index('<h2 id="differences"')]
    assert re.findall(r"<strong>(.*?)</strong>", results) == ["0.526", "0.934", "0.600"]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.10, 0.15, "▲ below the constant's"),
        (0.10, 0.18, "● no difference from the constant shown"),
        (0.17, 0.18, "▼ above the constant's"),
    ],
)
def test_brier_against_the_constant(full_data, minimal_data, low, high, words):
    report = replace(next(iter(full_data.calibrations.values())), brier_interval=(low, high), curve=[])
    page = Page(render_report(minimal_data.model_copy(update={"calibrations": {"raw": report}})))
    assert words in page.text
    assert "0.163" in page.text, "the constant's Brier score stands beside"


def test_rankings_show_grades_and_moves_and_the_start_of_long_documents(full_html, full_data, minimal_data):
    html = full_html
    first = html[html.index("<details open>") :]
    first = first[: first.index("</details>")]
    text = Page(first).text
    for expected in ("not judged", "grade 0", "grade 1.5", "▲ from 4", "▼ from 1", "▲ new here", "probability 0.97"):
        assert expected in text
    assert "Nothing was returned." in html
    pair = full_data.side_by_side[0]
    long = pair.system[0].model_copy(update={"text": "start " + "x" * 10_000})
    html = render_report(minimal_data.model_copy(update={"side_by_side": [pair.model_copy(update={"system": [long]})]}))
    assert "start x" in html and "x" * 400 not in html


def luminance(colour) -> float:
    """Relative luminance of a #rrggbb colour (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_both_themes():
    css = files("bixse.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    ]
    assert len(themes) == 2
    pairs = [("ink", "page"), ("ink", "card"), ("quiet", "page"), ("good", "good-card"), ("bad", "bad-card"),
             ("even", "even-card"), ("ink", "good-card"), ("ink", "bad-card"), ("ink", "even-card")]  # fmt: skip
    for theme in themes:
        for text, ground in pairs:
            light, dark = sorted((luminance(theme[text]), luminance(theme[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


def test_writing_fails_whole(tmp_path, minimal_data, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")

    def full_disk(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", full_disk)
        with pytest.raises(StorageError, match="No space left"):
            write_report(minimal_data, target)
    assert target.read_text() == "old"
    write_report(minimal_data, target)
    assert target.read_text(encoding="utf-8") == render_report(minimal_data)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"], "no temporary file is left"


def test_data_files_give_back_what_went_in_and_bad_ones_are_explained(tmp_path, full_data, minimal_data):
    save_report_data(full_data, tmp_path / "report.json")
    assert load_report_data(tmp_path / "report.json") == full_data
    with pytest.raises(InputError, match="No such file"):
        load_report_data(tmp_path / "missing.json")
    path = tmp_path / "report.json"
    for content in ("", "{", "[]", '{"title": 1}'):
        path.write_text(content)
        with pytest.raises(InvalidFileError, match=r"report\.json: "):
            load_report_data(path)
    path.write_text(minimal_data.model_dump_json().replace('"metrics"', '"metric"'))
    with pytest.raises(InvalidFileError, match=r"column 'systems\.0\.metric'") as caught:
        load_report_data(path)
    assert len(caught.value.errors) == 2
