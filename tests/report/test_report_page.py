import re
from dataclasses import replace
from itertools import pairwise

import pytest

from bixse.errors import InvalidFileError
from bixse.report.page import render_report, write_report
from bixse.report.schema import QueryChange, ReportData, load_report_data, save_report_data
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
    return render_report(full_data)


def with_text(data, change):
    """Return the same data with every text changed; names change alike, so that references stay valid."""

    def walk(value, field):
        if isinstance(value, str):
            return value if field == "created" or not value else change(value)
        if isinstance(value, list):
            return [walk(item, field) for item in value]
        if isinstance(value, dict):
            named = field in {"metrics", "facts", "timings", "calibrations", "scores"}  # their keys come from data too
            return {change(key) if named else key: walk(item, "" if named else key) for key, item in value.items()}
        return value

    return ReportData.model_validate(walk(data.model_dump(), ""))


def test_no_element_comes_from_data(full_data):
    payload = " ".join(HOSTILE)
    hostile = Page(render_report(with_text(full_data, lambda text: payload + text + payload)))
    harmless = Page(render_report(with_text(full_data, lambda text: "w" * 2 * len(payload) + text)))
    assert hostile.shape() == harmless.shape()
    hostile.check_harmless()
    assert " ".join(payload.split()) in hostile.text, "the text is shown as it is"


def test_texts_are_shown(full_data, full_html):
    plain, shown = Page(full_html).text, full_data.model_dump()
    texts = [shown["title"], shown["description"], *shown["verdicts"], *shown["notes"], *shown["commands"]]
    texts += [*shown["facts"], *shown["facts"].values(), *shown["timings"], *shown["calibrations"]]
    for text in [*texts, *(system["label"] for system in shown["systems"])]:
        assert text in plain


def test_page_loads_nothing_from_outside(full_html):
    assert not re.search(r"http(?!-equiv)|@import|@font-face|url\((?!#)", full_html)
    policies = [a["content"] for _, a in Page(full_html).elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies[0].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:")


def test_sections_are_in_order_and_none_is_empty(full_html, minimal_data):
    assert re.findall(r'<h2 id="(\w+)"', full_html) == [
        "findings", "results", "differences", "training", "calibration", "queries", "notes", "facts",
        "commands",
    ]  # fmt: skip
    html = render_report(minimal_data)
    assert re.findall(r'<h2 id="(\w+)"', html) == ["findings", "results"]
    assert "claims no improvement" in html
    assert "<img" not in html


def test_page_of_a_single_query_without_change_has_no_lists(minimal_data):
    change = QueryChange(query_id="q", query="copy", baseline_score=0.4, system_score=0.4)
    html = render_report(minimal_data.model_copy(update={"per_query": [change]}))
    assert "Largest" not in html
    assert "0 queries gained, 0 lost, 1 stayed the same" in html


def test_headings_are_in_order_and_tables_have_scopes(full_html):
    page = Page(full_html)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in page.elements if tag == "th")
    tags = [tag for tag, _ in page.elements]
    assert tags.count("table") == tags.count("caption") == sum(a.get("class") == "scroll" for _, a in page.elements)
    assert all(attributes["alt"] for tag, attributes in page.elements if tag == "img")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    labelled = {a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a}
    assert labelled <= set(ids)


def test_verdicts_have_words_and_the_best_of_a_column_is_bold(full_html):
    verdicts = full_html[full_html.index('<ul class="verdicts">') : full_html.index("</ul>")]
    assert re.findall(r'<li class="([\w-]+)">', verdicts) == ["better", "no-difference", "worse", "better"]
    assert re.findall(r'class="verdict [\w-]+">(.*?)</span>', verdicts) == [
        "▲ better", "● no difference shown", "▼ worse", "▲ better",
    ]  # fmt: skip
    assert "95% interval [+0.012, +0.094], p\u00a0&lt;\u00a00.001, 113 queries" in verdicts
    results = full_html[full_html.index('<h2 id="results"') : full_html.index('<h2 id="differences"')]
    assert re.findall(r"<strong>(.*?)</strong>", results) == ["0.526", "0.934", "0.600"]


@pytest.mark.parametrize(("ends", "word"), [((0.1, 0.15), "▲ below"), ((0.1, 0.18), "● no"), ((0.17, 0.18), "▼ above")])
def test_brier_score_is_compared_with_the_constant(full_data, minimal_data, ends, word):
    report = replace(next(iter(full_data.calibrations.values())), brier_interval=ends, curve=[])
    text = Page(render_report(minimal_data.model_copy(update={"calibrations": {"raw": report}}))).text
    assert word in text and "0.163" in text


def luminance(colour):
    """Relative luminance of #rrggbb (WCAG 2.2)."""
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_contrast_in_light_and_dark(minimal_data):
    css = render_report(minimal_data)
    themes = [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)]
    pairs = {("ink", name) for name in themes[0] if name == "page" or name.endswith("card")}
    for rule in re.findall(r"\{([^{}]*)\}", css):
        text, ground = (re.search(rf"(?<!-){key}: var\(--([\w-]+)\)", rule) for key in ("color", "background"))
        pairs.add((text[1] if text else "ink", ground[1] if ground else "page"))
    assert len(themes) == 2 and {("good", "good-card"), ("quiet", "page")} < pairs
    for theme in themes:
        for pair in pairs:
            dark, light = sorted(luminance(theme[name]) for name in pair)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, pair


def test_files_give_back_the_page_and_the_data(tmp_path, full_data, full_html):
    write_report(full_data, tmp_path / "new" / "report.html")
    assert (tmp_path / "new" / "report.html").read_text(encoding="utf-8") == full_html
    save_report_data(full_data, tmp_path / "report.json")
    assert load_report_data(tmp_path / "report.json") == full_data


def test_unusable_data_files_are_refused(tmp_path, minimal_data):
    path = tmp_path / "report.json"
    for content in ("", "{", "[]", '{"title": 1}'):
        path.write_text(content)
        with pytest.raises(InvalidFileError, match=r"report\.json: "):
            load_report_data(path)
    path.write_text(minimal_data.model_dump_json().replace('"metrics"', '"metric"'))
    with pytest.raises(InvalidFileError) as caught:
        load_report_data(path)
    assert {error.column for error in caught.value.errors} == {"systems.0.metric", "systems.0.metrics"}
