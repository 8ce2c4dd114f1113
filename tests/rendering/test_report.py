import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from markupsafe import escape
from pydantic import ValidationError

from bixse.errors import InvalidFileError
from bixse.lab.studies.outcome import Point, line_plot, row_plot
from bixse.rendering.page import render_report, write_report
from bixse.rendering.plots import POINTS_SHOWN, gains_and_losses_plot, merge_plot, reliability_diagram, training_plots
from bixse.rendering.schema import (
    MergeCurve,
    QueryChange,
    ReportData,
    SystemScores,
    TrainingCurve,
    load_report_data,
    save_report_data,
    training_curve,
)
from bixse.rendering.table import format_markdown, format_number, format_table
from bixse.rendering.wording import format_difference, format_interval, format_p_value, format_seconds, metric_title
from bixse.results import CalibrationReport, Comparison, Difference, MergePoint, ReliabilityBin
from helpers.html_page import Page
from helpers.ui_browser import faults, needs_axe, needs_chromium

SYSTEMS = {
    "bm25": ("BM25", {"ndcg@10": 0.411, "recall@100": 0.86, "mrr@10": 0.49}),
    "base": ("MiniLM, untrained", {"ndcg@10": 0.4731, "recall@100": 0.91, "mrr@10": 0.552}),
    "infonce": ("InfoNCE", {"ndcg@10": 0.462, "recall@100": 0.913}),
    "bixse": ("BiXSE", {"ndcg@10": 0.526, "recall@100": 0.934, "mrr@10": 0.6}),
}
COMPARISONS = [
    ("bixse", "base", "ndcg@10", Difference(0.0531, 0.012, 0.094, 0.0004, 113)),
    ("infonce", "base", "ndcg@10", Difference(-0.011, -0.044, 0.021, 0.51, 113)),
    ("bm25", "base", "ndcg@10", Difference(-0.062, -0.11, -0.013, 0.013, 113)),
    ("bixse", "bm25", "ndcg@10", Difference(0.115, 0.06, 0.171, 0.0002, 113)),
    ("bixse", "base", "recall@100", Difference(0.024, -0.003, 0.05, 0.09, 113)),
]


def query_changes(after, before=0.5):
    return [
        QueryChange(query_id=f"q-{i:03d}", query=f"copy a folder ({i})", baseline_score=old, system_score=new)
        for i, (new, old) in enumerate(np.broadcast(after, before))
    ]


@pytest.fixture(scope="module")
def full_data():
    """Four systems, two training runs, two calibrations, 113 queries."""
    rng = np.random.default_rng(0)
    before = rng.beta(1.2, 1.3, 113)
    after = np.where(rng.random(113) < 0.35, before, np.clip(before + rng.normal(0.06, 0.2, 113), 0, 1))
    return ReportData(
        title="pydocs: BiXSE against the model it started from",
        description="A small retriever, tuned on graded relevance of the Python documentation, on held-out queries.",
        created="2026-01-31T12:00:00+00:00",
        verdicts=["The tuned model ranks better than the model it started from."],
        systems=[SystemScores(name=name, label=label, metrics=scores) for name, (label, scores) in SYSTEMS.items()],
        primary_metric="ndcg@10",
        comparisons=[Comparison(*facts) for facts in COMPARISONS],
        calibrations={"BiXSE, as trained": calibration(0.151), "BiXSE, calibrated on dev": calibration(0.118)},
        training=[_curve("bixse", with_logits=True), _curve("infonce", with_logits=False)],
        per_query_baseline="base",
        per_query_system="bixse",
        per_query=query_changes(after, before),
        facts={"data set": "pydocs", "queries": "113 (test)", "command": "bixse quickstart --out runs/quickstart"},
        timings={"read data": 0.04, "train": 619.4},
        commands=["bixse train --pairs yours.jsonl --out runs/yours"],
        notes=["A single seed."],
    )


@pytest.fixture(scope="module")
def minimal_data():
    return ReportData(
        title="BM25 alone",
        created="2026-01-31",
        systems=[SystemScores(name="bm25", label="BM25", metrics={"ndcg@10": 0.0})],
        primary_metric="ndcg@10",
    )


def calibration(brier, interval=(0.1, 0.18)):
    centres = np.linspace(0.05, 0.95, 10).tolist()
    bins = [
        ReliabilityBin(x, 0.8 * x, int(900 * np.exp(-4 * x)), max(0.0, 0.8 * x - 0.1), 0.8 * x + 0.1) for x in centres
    ]
    return CalibrationReport(2200, 113, brier, interval, 0.05, (0.01, 0.13), 0.163, bins)


def _curve(system, with_logits):
    steps = range(0, 401, 5)
    logged = {
        "loss": [(step, 8.1 * float(np.exp(-step / 300))) for step in steps],
        "eval_dev_ndcg@10": [(step, 0.47 + step / 8000) for step in steps if step % 50 == 0],
    }
    if with_logits:
        for name, start in (("logit_bias", -8.2), ("mean_logit_relevant", -1.5), ("mean_logit_irrelevant", -6.0)):
            logged[name] = [(step, start + step / 300) for step in steps]
    return TrainingCurve(system=system, logged=logged, best_step=350)


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


def test_texts_are_shown_and_metrics_are_spelled_for_readers(full_data, full_html):
    plain, shown = Page(full_html).text, full_data.model_dump()
    texts = [shown["title"], shown["description"], *shown["verdicts"], *shown["notes"], *shown["commands"]]
    texts += [*shown["facts"], *shown["facts"].values(), *shown["timings"], *shown["calibrations"]]
    for text in [*texts, *(system["label"] for system in shown["systems"])]:
        assert text in plain
    assert "nDCG@10" in full_html and "MRR@10" in full_html and "ndcg@" not in full_html
    titles = {"map@100": "MAP@100", "recall@100": "recall@100", "<b>@1@2": "<b>@1@2", "": ""}
    assert {name: metric_title(name) for name in titles} == titles


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
    for page in (full_html, html):
        assert re.findall(r'<li><a href="#(.*?)">(.*?)</a>', page) == re.findall(r'<h2 id="(\w+)">(.*?)</h2>', page)
    assert "claims no improvement" in html
    assert "<img" not in html


def test_page_of_a_single_query_without_change_has_no_lists(minimal_data):
    html = render_report(minimal_data.model_copy(update={"per_query": query_changes([0.5])}))
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


@pytest.mark.slow
@needs_chromium
@needs_axe
def test_page_has_no_fault_of_accessibility_and_fits_a_phone(chromium, full_html, minimal_data):
    issues = []
    page = chromium.new_context().new_page()
    for html in (full_html, render_report(minimal_data)):
        page.set_content(html)
        page.evaluate("() => document.querySelectorAll('details').forEach(x => { x.open = true })")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            assert not page.evaluate("() => document.documentElement.scrollWidth > innerWidth")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                issues += faults(page)
    page.context.close()
    assert not issues


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


def changed(data, path, value):
    at = dumped = data.model_dump()
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dumped


@pytest.mark.parametrize(
    ("path", "value", "fact"),
    [
        (["colour"], "red", "colour"),
        (["systems", 0, "metrics"], {"ndcg@10": float("nan")}, "finite"),
        (["systems", 1, "name"], "bm25", "'bm25' twice"),
        (["comparisons", 0, "difference", "mean"], float("inf"), "finite"),
        (["comparisons", 0, "system"], "bixze", "expected one of"),
        (["primary_metric"], "ndcg@5", "which no system has"),
        (["created"], "yesterday", "isoformat"),
        (["calibrations", "BiXSE, as trained", "brier_interval"], [0.1], "brier_interval"),
        (["calibrations", "BiXSE, as trained", "colour"], 1, "colour"),
        (["training", 0, "logged", "loss", 0], [0, float("nan")], "finite"),
    ],
)
def test_invalid_data_is_refused(full_data, path, value, fact):
    with pytest.raises(ValidationError, match=fact):
        ReportData.model_validate(changed(full_data, path, value))


def test_half_a_surrogate_pair_is_replaced(minimal_data):
    broken = ReportData.model_validate(changed(minimal_data, ["facts"], {"a\ud83d": "\udc00 fine 🦊"}))
    assert broken.facts == {"a\ufffd": "\ufffd fine 🦊"}
    assert ReportData.model_validate_json(broken.model_dump_json()) == broken


@pytest.mark.parametrize("value", [math.nan, -math.inf, None])
def test_training_curve_leaves_out_values_that_are_not_finite(value):
    history = [{"step": 1, "logit_bias": -3.0, "grad_norm": value}, {"step": 2, "logit_bias": -2, "grad_norm": 0.5}]
    logged = training_curve("bixse", history, best_step=2).logged
    assert logged == {"logit_bias": [(1, -3.0), (2, -2.0)], "grad_norm": [(2, 0.5)]}


def test_data_cannot_control_the_terminal():
    text = format_table([["\x1b[31mred\x1b[0m\nline\u202e", 1]], ["system\x07", "n"])
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert len(text.splitlines()) == 3


def test_data_cannot_become_markdown_or_html():
    row = format_markdown([["a|b *c* <script> [x](y) `z` \\", 1.0]], ["system", "n"]).splitlines()[2]
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)]
    assert cells == ["", r"a\|b \*c\* &lt;script&gt; \[x\](y) \`z\` \\", "1.000", ""]


def test_numbers_are_right_aligned_texts_left_and_a_short_row_is_refused():
    table = format_table([["BM25", 7, "+0.1"], ["a longer name", 1234, "–"]], ["system", "queries", "change"])
    assert table.splitlines() == [
        "system           queries    change",
        "-------------  ---------  --------",
        "BM25                   7      +0.1",
        "a longer name       1234         –",
    ]
    assert format_table([["日本", 1], ["abcd", 2]], ["name", "n"]).splitlines()[2] == "日本      1"
    assert format_table([], ["name", "n"]).splitlines() == ["name    n", "------  ---"]
    for write in (format_table, format_markdown):
        with pytest.raises(ValueError, match="shorter"):
            write([["a", 1], ["b"]], ["name", "count"])


NUMBERS = {
    0.0: "0.000",
    0.0004: "0.0004",
    -0.0001: "-0.0001",
    -1e-05: "0.000",
    -0.5: "-0.500",
    None: "–",
    12.3456: "12.346",
}
DIFFERENCES = {0.05: "+0.050", -0.05: "−0.050", 0.0: "0.000", -0.0004: "−0.0004", 0.00001: "0.000", 0.0006: "+0.001"}
SECONDS = {
    None: "–", 0.0: "< 0.1 s", 59.94: "59.9 s", 59.96: "1 min 00 s", 3599.4: "59 min 59 s", 3599.6: "1 h 00 min",
    86400: "24 h 00 min",
}  # fmt: skip


@pytest.mark.parametrize(
    ("write", "texts"), [(format_number, NUMBERS), (format_difference, DIFFERENCES), (format_seconds, SECONDS)]
)
def test_values_are_rounded_and_have_their_unit_and_sign(write, texts):
    assert {value: write(value) for value in texts} == texts


def test_interval_that_does_not_hold_zero_does_not_read_as_if_it_did_and_unknown_values_have_a_text():
    assert format_interval(0.0003, 0.02, signed=True) == "[+0.0003, +0.020]"
    assert format_interval(-0.2, -0.004, digits=2) == "[-0.20, -0.004]"
    assert format_interval(None, None) == ""
    assert (format_p_value(None), format_p_value(0.001)) == ("–", "0.001")


SVG = "{http://www.w3.org/2000/svg}"
LABELS = [*HOSTILE, "$\\frac{1}{$ and $x^", "_underscore first", "\u202edesrever\x00\x0b\x1b[31m\nnext line", ""]


def all_plots(data):
    return [
        *training_plots(data.training, data.label).values(),
        *(reliability_diagram(report, name) for name, report in data.calibrations.items()),
        gains_and_losses_plot(data.per_query, data.primary_metric),
    ]


def texts_of(plot):
    return [element.text or "" for element in ElementTree.fromstring(plot.svg).iter(f"{SVG}text")]


def test_text_from_data_becomes_no_markup():
    logged = {"eval_dev_ndcg@10": [(1, 0.5), (2, 0.5)]}
    merged = [MergePoint(weight=weight, scores=dict.fromkeys(LABELS, weight / 2)) for weight in (0.0, 0.5, 1.0)]
    plots = [
        *training_plots([TrainingCurve(system=name, logged=logged) for name in LABELS]).values(),
        reliability_diagram(CalibrationReport(30, 3, 0.1, (0.0, 0.2), 0.0, (0.0, 0.1), 0.2, []), LABELS[0]),
        gains_and_losses_plot(query_changes([1.0]), LABELS[1]),
        merge_plot(MergeCurve(system=LABELS[0], weight=0.5, points=merged, guards=LABELS[:1])),
        row_plot("t", "l", [(name, Point(0.0, 0.5, 0.4, 0.6)) for name in LABELS]),
        line_plot("t", "x", "y", {name: [Point(x, 0.5, 0.4, 0.6) for x in (1.0, 2.0)] for name in LABELS}, "log"),
    ]
    for plot in plots:
        root = ElementTree.fromstring(plot.svg)  # well-formed XML
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert not tags & {"script", "img", "image", "foreignObject", "a"}
        names = {name for element in root.iter() for name in element.attrib}
        assert not [name for name in names if name.startswith("on")]
        assert not {"\u202e", "\x00", "\x0b", "\x1b"} & set(plot.svg), "no control or direction mark"
        picture = plot.__html__()
        assert picture.count("<") == 1 and picture.startswith('<img src="data:image/svg+xml;base64,')
        assert f'alt="{escape(plot.alt)}"' in picture
    assert any(text.startswith("<script>aler") for text in texts_of(plots[-1])), "a script as label is shown as it is"


@pytest.mark.slow
def test_same_data_give_the_same_bytes_under_any_settings_of_matplotlib(full_data):
    expected = all_plots(full_data)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert all_plots(full_data) == expected
        assert matplotlib.rcParams["font.size"] == 30, "the user's settings do not change"
    for plot in expected:
        assert float(ElementTree.fromstring(plot.svg).attrib["viewBox"].split()[2]) < 320, "a phone's width"
        assert len(plot.alt) > 20


def test_panels_without_values_are_left_out(full_data):
    assert list(training_plots([TrainingCurve(system="a", logged={"loss": [(1, 2.0)]})])) == ["Training loss: a"]
    assert training_plots([TrainingCurve(system="a", logged={})]) == training_plots([]) == {}
    titles = list(training_plots(full_data.training, full_data.label))
    assert titles[:3] == ["Training loss: BiXSE", "Mean logit: BiXSE", "Training loss: InfoNCE"]
    assert titles[3:] == ["nDCG@10 on the development queries", "Logit bias beta"]


def test_long_log_is_thinned():
    long = {"loss": [(s, float(s % 7)) for s in range(20_000)]}
    (plot,) = training_plots([TrainingCurve(system="a", logged=long, best_step=4)]).values()
    longest = max(path.attrib["d"].count("L") for path in ElementTree.fromstring(plot.svg).iter(f"{SVG}path"))
    assert 100 < longest < POINTS_SHOWN


def test_gains_and_losses_are_counted():
    plot = gains_and_losses_plot(query_changes([0.6, 0.9, 0.5, 0.1]), "ndcg@10")
    assert sorted(text for text in texts_of(plot) if text[0] in "▲▼") == ["▲ 2 better", "▼ 1 worse"]
    assert "2 queries gained, 1 lost, 1 stayed the same" in plot.alt
    many = gains_and_losses_plot(query_changes([(i % 101) / 101 for i in range(10_000)]), "m")
    assert len(many.svg) < 100_000


def test_importing_pages_does_not_import_matplotlib():
    code = "import sys, bixse.rendering.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("guards", "tolerance", "drawn"), [(["b"], 0.01, True), ([], 0.01, False), (["b"], None, False)]
)
def test_the_tolerance_of_the_guard_is_drawn_where_one_limits_the_weight(guards, tolerance, drawn):
    points = [MergePoint(weight=w, scores={"a": w / 9, "b": 0.5 - w / 9}) for w in (0.0, 0.5, 1.0)]
    plot = merge_plot(MergeCurve(system="s", weight=0.5, points=points, guards=guards, tolerance=tolerance))
    assert any("guard tolerance 0.01" in text for text in texts_of(plot)) == drawn
