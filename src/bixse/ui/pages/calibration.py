"""Calibration: how far a system's probabilities are true on held-out pairs, at any prior."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from bixse.report.plots import Plot
    from bixse.ui.systems.two_systems import TwoSystems
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

LOWEST, HIGHEST = -4.0, -0.1
"""Ends of the slider: logarithms of the prior to base 10."""


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """Figures before and after a calibration on half of the queries, measured on the other half."""
    systems = workspace.systems
    assert systems is not None
    if not systems.start():
        return {"loading": systems.doing, "error": systems.error}
    side, prior = _asked(systems, visit)
    values: dict[str, Any] = {"loading": None, "error": None, "names": systems.names, "side": side, "prior": prior}
    values |= {"ends": (LOWEST, HIGHEST), "sides": _sides(systems), "exponent": visit.query.get("exponent", "")}
    if not values["sides"]:
        error = "got no system with a relevance head; expected one; fix: run `bixse calibrate` on a model"
        return {**values, "error": error}
    command = ["bixse", "calibrate", systems.names[side], "--pairs", str(workspace.settings.held_out)]
    command += ["--seed", str(workspace.settings.seed)] + (["--prior", f"{prior:g}"] if prior else [])
    values["command"] = shlex.join([*command, "--out", "calibrated"])
    try:
        return {**values, "check": systems.check(side, prior), "problem": None}
    except InputError as error:
        return {**values, "check": None, "problem": str(error)}


def _sides(systems: TwoSystems) -> list[int]:
    return [side for side, searcher in enumerate(systems.searchers) if searcher.name in systems.cosines]


def _asked(systems: TwoSystems, visit: Visit) -> tuple[int, float | None]:
    """Which system, and the prior; None is the pairs' own."""
    sides = _sides(systems) or [0]
    asked = visit.query.get("side", "")
    side = int(asked) if asked in map(str, sides) else sides[0]
    try:
        exponent = float(visit.query.get("exponent", ""))
    except ValueError:
        return side, None
    return side, float(f"{10**exponent:.3g}") if LOWEST <= exponent <= HIGHEST else None


def picture(workspace: Workspace, visit: Visit) -> Plot | None:
    """The reliability diagram of the calibrated probabilities."""
    from bixse.report.plots import reliability_diagram

    systems = workspace.systems
    if systems is None or not systems.start() or not _sides(systems):
        return None
    side, prior = _asked(systems, visit)
    return reliability_diagram(systems.check(side, prior).calibrated, "calibrated, held-out half")


def fits(workspace: Workspace) -> bool:
    """Where systems and held-out pairs were named."""
    return workspace.settings.held_out is not None


PAGE = Page("calibration", "Calibration", show, parts={"figures": show}, pictures={"diagram": picture}, fits=fits)
