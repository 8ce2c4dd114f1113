from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import matplotlib
import pytest

from bixse.report.plots import (
    POINTS_SHOWN,
    forest_plot,
    gains_and_losses_plot,
    reliability_diagram,
    training_plots,
)
from bixse.report.schema import Calibration, CalibrationBin, Comparison, QueryChange, TrainingCurve, TrainingPoint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bixse.report.schema import ReportData

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


def all_plots(data: ReportData) -> list[str]:
    return [
        *training_plots(data.training, data.label).values(),
        *map(reliability_diagram, data.calibrations),
        gains_and_losses_plot(data.per_query, data.primary_metric),
        forest_plot([c for c in data.comparisons if c.metric == data.primary_metric], data.label),
    ]


@pytest.fixture(scope="module")
def full_plots(full_data: ReportData) -> list[str]:
    """Every plot of the full report, drawn once for the tests that only read them."""
    return all_plots(full_data)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def comparison(name: str, mean: float = 0.1, verdict: str = "better") -> Comparison:
    return Comparison.model_validate(
        {
            "system": name,
            "baseline": name,
            "metric": name,
            "mean": mean,
            "low": mean - 0.05,
            "high": mean + 0.05,
            "verdict": verdict,
            "queries": 5,
        }
    )


def test_text_from_data_stays_text() -> None:
    points = [TrainingPoint(step=s, dev_ndcg=0.5) for s in (1, 2)]
    plots = [
        *training_plots([TrainingCurve(system=name, points=points) for name in HOSTILE]).values(),
        reliability_diagram(Calibration(name=HOSTILE[0], pairs=1, queries=1, brier=0, ece=0, constant_brier=0)),
        gains_and_losses_plot([QueryChange(query_id="q", query="q", baseline_score=0, system_score=1)], HOSTILE[1]),
        forest_plot([comparison(name) for name in HOSTILE]),
    ]
    allowed = {"svg", "g", "defs", "path", "use", "clipPath", "rect", "text", "pattern"}
    for svg in plots:
        root = ElementTree.fromstring(svg)  # well-formed XML
        assert {element.tag.removeprefix(SVG) for element in root.iter()} <= allowed
        names = {name for element in root.iter() for name in element.attrib}
        assert not [name for name in names if name.startswith("on")]
        assert "<script" not in svg and "<img" not in svg
        assert not {"\u202e", "\x00", "\x0b", "\x1b"} & set(svg), "no control or direction mark"


def test_a_script_as_label_is_shown_as_it_is() -> None:
    assert any(
        text.startswith("<script>aler") for text in texts(forest_plot([comparison("<script>alert(1)</script>")]))
    )


def test_a_label_with_an_underscore_reaches_the_legend() -> None:
    points = [TrainingPoint(step=1, dev_ndcg=0.5)]
    curves = [TrainingCurve(system=name, points=points) for name in ("_first", "second")]
    (svg,) = training_plots(curves).values()
    assert [text.lstrip("\u200b") for text in texts(svg)][-2:] == ["_first", "second"]


def test_the_same_data_give_the_same_bytes(full_data: ReportData, full_plots: list[str]) -> None:
    assert all_plots(full_data) == full_plots


def test_the_picture_does_not_depend_on_the_users_settings(full_data: ReportData) -> None:
    expected = reliability_diagram(full_data.calibrations[0])
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert reliability_diagram(full_data.calibrations[0]) == expected
        assert matplotlib.rcParams["font.size"] == 30, "the user's settings are left alone"


def test_plots_scale_and_carry_a_label(full_plots: list[str]) -> None:
    for svg in full_plots:
        root = ElementTree.fromstring(svg)
        assert root.attrib["width"] == "100%" and "height" not in root.attrib
        assert float(root.attrib["viewBox"].split()[2]) < 320, "drawn for a phone's width"
        assert root.attrib["role"] == "img" and len(root.attrib["aria-label"]) > 20


def test_plots_reach_for_nothing_outside_and_share_no_id(full_plots: list[str]) -> None:
    seen: set[str] = set()
    for svg in full_plots:
        root = ElementTree.fromstring(svg)
        own = [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
        assert len(own) == len(set(own)) and not seen & set(own)
        seen |= set(own)
        for element in root.iter():
            href = element.attrib.get("href", "#" + (own or [""])[0])
            assert href.removeprefix("#") in own or not own
        assert svg.count("http") == 1, "only the name of the SVG namespace"
        assert "<style" not in svg and "<metadata" not in svg and "<!DOCTYPE" not in svg


def test_panels_without_values_are_left_out() -> None:
    points = [TrainingPoint(step=1, loss=2.0), TrainingPoint(step=2)]
    assert list(training_plots([TrainingCurve(system="a", points=points)])) == ["Training loss: a"]
    assert training_plots([TrainingCurve(system="a", points=[])]) == {}
    assert training_plots([]) == {}


def test_every_panel_of_a_full_log(full_data: ReportData) -> None:
    assert list(training_plots(full_data.training, full_data.label)) == [
        "Training loss: BiXSE",
        "Mean logit: BiXSE",
        "Training loss: InfoNCE",
        "nDCG@10 on the development queries",
        "Logit bias beta",
    ]


def line_length(svg: str) -> int:
    """Most points of any path."""
    return max(path.attrib["d"].count("L") for path in ElementTree.fromstring(svg).iter(f"{SVG}path"))


def test_a_long_log_is_thinned() -> None:
    points = [TrainingPoint(step=s, loss=float(s % 7)) for s in range(20_000)]
    (svg,) = training_plots([TrainingCurve(system="a", points=points, best_step=4)]).values()
    assert 100 < line_length(svg) < POINTS_SHOWN
    assert len(svg) < 40_000


def counts(plot_texts: Iterable[str]) -> list[str]:
    return [text for text in plot_texts if text.startswith(("▲", "▼"))]


def test_gains_and_losses_are_counted() -> None:
    changes = [
        QueryChange(query_id=str(i), query="q", baseline_score=0.5, system_score=score)
        for i, score in enumerate([0.6, 0.9, 0.5, 0.1])
    ]
    svg = gains_and_losses_plot(changes, "ndcg@10")
    assert sorted(counts(texts(svg))) == ["▲ 2 better", "▼ 1 worse"]
    assert "2 queries gained, 1 lost, 1 stayed the same" in svg


def test_no_change_at_all_and_many_queries() -> None:
    same = [QueryChange(query_id="q", query="q", baseline_score=0.5, system_score=0.5)]
    assert "0 queries gained, 0 lost, 1 stayed the same" in gains_and_losses_plot(same, "m")
    many = [
        QueryChange(query_id=str(i), query="q", baseline_score=0.5, system_score=(i % 101) / 101) for i in range(10_000)
    ]
    assert len(gains_and_losses_plot(many, "m")) < 100_000


def test_forest_plot_tells_the_verdict_by_shape_and_word() -> None:
    rows = [comparison(v, m, v) for v, m in (("better", 0.1), ("no difference", 0.0), ("worse", -0.1))]
    svg = forest_plot(rows)
    assert "worse against worse −0.100, worse" in svg
    markers = {element.attrib["href"] for element in ElementTree.fromstring(svg).iter(f"{SVG}use")}
    assert len(markers) >= 3 + 1, "three shapes of points and the ticks"


def test_forest_plot_of_a_difference_of_nothing() -> None:
    nothing = Comparison(
        system="a", baseline="b", metric="m", mean=0, low=0, high=0, verdict="no difference", queries=1
    )
    assert "0.000" in texts(forest_plot([nothing]))


def test_reliability_diagram_places_points_where_they_belong() -> None:
    bins = [CalibrationBin(predicted=p, observed=p, count=10, low=p, high=p) for p in (0.0, 0.5, 1.0)]
    svg = reliability_diagram(
        Calibration(name="raw", pairs=30, queries=3, brier=0.1, ece=0.0, constant_brier=0.2, curve=bins)
    )
    root = ElementTree.fromstring(svg)
    lines = [path.attrib["d"] for path in root.iter(f"{SVG}path") if "#0b5cad" in path.attrib.get("style", "")]
    drawn = next(d for d in lines if d.count("L") == 2)
    diagonal = next(
        path.attrib["d"] for path in root.iter(f"{SVG}path") if "stroke-dasharray" in path.attrib.get("style", "")
    )
    assert drawn.split("L")[0] == diagonal.split("L")[0], "first point at the start of the diagonal"
    assert drawn.split("L")[-1] == diagonal.split("L")[-1], "last point at its end"


def test_importing_the_module_does_not_import_matplotlib() -> None:
    code = "import sys, bixse.report.plots, bixse.report.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
