import subprocess
import sys
from xml.etree import ElementTree

import matplotlib
from markupsafe import escape

from bixse.lab.studies.outcome import Point, line_plot, row_plot
from bixse.report.plots import POINTS_SHOWN, gains_and_losses_plot, merge_plot, reliability_diagram, training_plots
from bixse.report.schema import MergeCurve, QueryChange, TrainingCurve
from bixse.results import CalibrationReport, MergePoint

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "$\\frac{1}{$ and $x^",
    "_underscore first",
    "\u202edesrever\x00\x0b\x1b[31m\nnext line",
    "日本語 اَلْعَرَبِيَّة 🦊",
    "w" * 500,
    "",
]


def all_plots(data):
    return [
        *training_plots(data.training, data.label).values(),
        *(reliability_diagram(report, name) for name, report in data.calibrations.items()),
        gains_and_losses_plot(data.per_query, data.primary_metric),
    ]


def texts(plot):
    return [element.text or "" for element in ElementTree.fromstring(plot.svg).iter(f"{SVG}text")]


def changes(*after):
    return [
        QueryChange(query_id=str(i), query="q", baseline_score=0.5, system_score=score) for i, score in enumerate(after)
    ]


def test_text_from_data_becomes_no_markup():
    logged = {"eval_dev_ndcg@10": [(1, 0.5), (2, 0.5)]}
    merged = [MergePoint(weight=weight, scores=dict.fromkeys(HOSTILE, weight / 2)) for weight in (0.0, 0.5, 1.0)]
    plots = [
        *training_plots([TrainingCurve(system=name, logged=logged) for name in HOSTILE]).values(),
        reliability_diagram(CalibrationReport(30, 3, 0.1, (0.0, 0.2), 0.0, (0.0, 0.1), 0.2, []), HOSTILE[0]),
        gains_and_losses_plot(changes(1.0), HOSTILE[1]),
        merge_plot(MergeCurve(system=HOSTILE[0], weight=0.5, points=merged, guards=HOSTILE[:1])),
        row_plot("t", "l", [(name, Point(0.0, 0.5, 0.4, 0.6)) for name in HOSTILE]),
        line_plot("t", "x", "y", {name: [Point(x, 0.5, 0.4, 0.6) for x in (1.0, 2.0)] for name in HOSTILE}, "log"),
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
    assert any(text.startswith("<script>aler") for text in texts(plots[-1])), "a script as label is shown as it is"


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
    plot = gains_and_losses_plot(changes(0.6, 0.9, 0.5, 0.1), "ndcg@10")
    assert sorted(text for text in texts(plot) if text[0] in "▲▼") == ["▲ 2 better", "▼ 1 worse"]
    assert "2 queries gained, 1 lost, 1 stayed the same" in plot.alt
    assert "0 queries gained, 0 lost, 1 stayed the same" in gains_and_losses_plot(changes(0.5), "m").alt
    many = gains_and_losses_plot(changes(*((i % 101) / 101 for i in range(10_000))), "m")
    assert len(many.svg) < 100_000


def test_importing_pages_does_not_import_matplotlib():
    code = "import sys, bixse.report.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
