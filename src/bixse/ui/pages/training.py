"""Training: loss, logit bias, dev and guard of a run, while it is under way and after."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from bixse.training.config import LOG_FILE
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from bixse.report.plots import Plot
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

PANELS = {
    "loss": ("Training loss", "loss"),
    "dev": ("nDCG@10", "eval_dev_ndcg@10"),
    "bias": ("Logit bias", "logit_bias"),
    "logits": ("Mean logit", "mean_logit_relevant"),
    "merge": ("Dev and guard", ""),
}
"""Name of a picture -> how its title begins, and the figure of the log that it needs."""
FIGURES = {
    "loss": "loss",
    "logit bias (beta)": "logit_bias",
    "logit scale (alpha)": "logit_scale",
    "mean target": "mean_target",
    "gradient norm": "grad_norm",
    "learning rate": "learning_rate",
    "pairs per second": "train_pairs_per_second",
}


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The state of the files now."""
    run = workspace.training
    run.look()
    record, last = run.record, run.last
    config = record.get("config") or {}
    epochs = (config.get("optimizer") or {}).get("epochs")
    steps = (config.get("optimizer") or {}).get("steps")
    merged = run.merged()
    panels = [name for name, (_, field) in PANELS.items() if field in last or (name == "merge" and run.merge_curve())]
    return {
        "run": str(workspace.run),
        "status": record.get("status", "running"),
        "is_live": record.get("status", "running") == "running",
        "version": run.version,
        "step": last.get("step", 0),
        "share": last.get("step", 0) / steps if steps else (last.get("epoch", 0.0) / epochs if epochs else None),
        "figures": {title: last[field] for title, field in FIGURES.items() if field in last},
        "panels": {name: PANELS[name][0] for name in panels},
        "dev": list(zip(*run.logged.get("eval_dev_ndcg@10", ([], [])), strict=False)),
        "best": (record.get("results") or {}).get("best_step"),
        "merged": merged,
        "regraded": run.regraded(),
        "command": shlex.join(["tail", "-f", str(workspace.run / LOG_FILE)]),
    }


def _draw(name: str) -> Any:
    def draw(workspace: Workspace, visit: Visit) -> Plot | None:
        found = workspace.training.plots()
        return next((plot for title, plot in found.items() if title.startswith(PANELS[name][0])), None)

    return draw


def fits(workspace: Workspace) -> bool:
    """In the folder of a training run."""
    return (workspace.run / LOG_FILE).is_file()


def news(workspace: Workspace) -> str:
    """Every line of the log is news."""
    return workspace.training.version


PICTURES = {name: _draw(name) for name in PANELS}
PAGE = Page("training", "Training", show, parts={"now": show}, pictures=PICTURES, news=news, fits=fits)
