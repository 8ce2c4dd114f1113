"""`bixse mine`: make pairs to grade, and afterwards see how many mined documents were relevant."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from bixse.cli.verb import FINISHED_BEFORE, CommandResult, Folder, Options, Verb, waits
from bixse.preparing.mine_settings import MineConfig
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self

LISTED = 10
"""How many queries without candidates the text shows; --json and run.json hold all."""


class MineOptions(Options):
    """The output folder, and the report after grading."""

    out: Folder = Path("runs/mined")
    """Folder for pairs, runs and run.json."""
    report: Annotated[Path | None, Flag(metavar="FILE")] = None
    """After grading: the graded pairs of a mining run, to show how many mined documents are relevant."""
    mined: Folder | None = None
    """With --report: the --out folder of that run."""
    relevant_from: Annotated[float | None, Flag(metavar="Z")] = None
    """With --report: relevance that counts as relevant, 0 to 1; null: 0.5."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for name in ("mined", "relevant_from"):
            if self.report is None and getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(
                    f"{flag}: got it without --report; expected both; fix: --report FILE with graded pairs"
                )
        if self.report is not None and self.mined is None:
            raise ValueError("--report: got no --mined; expected the folder the pairs were mined into; fix: add it")
        return self


def run(config: MineConfig, options: MineOptions) -> CommandResult:
    """Mine pairs, and say what there is to grade."""
    from bixse.preparing.mine import mine
    from bixse.progress import progress_bar

    result = mine(config, options.out, progress_bar)
    if result.waiting:
        return waits(result.waiting, result.warnings)
    missing = result.without_candidates
    warnings = [*result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    if missing:
        shown = ", ".join(missing[:LISTED]) + (f" and {len(missing) - LISTED} more" if len(missing) > LISTED else "")
        warnings.append(f"{len(missing)} of {result.queries} queries have no candidate: {shown}")
    metrics = {name: getattr(result, name) for name in ("pairs", "queries", "bands", "without_candidates", "with_fewer",
               "known", "copies", "empty_documents")}  # fmt: skip
    path = options.out / result.path
    following = f"next: bixse grade --pairs {shlex.quote(str(path))} --judge JUDGE --dry-run"
    artifacts = {"pairs": str(path), "record": str(options.out / "run.json")}
    artifacts |= {f"run {label}": str(options.out / name) for label, name in result.runs.items()}
    text = "\n".join([result.text(), f"pairs: {path}", following])
    return CommandResult(text, metrics, artifacts, warnings, exit_code=3 if missing else 0)


def _report(options: MineOptions) -> CommandResult:
    from bixse.preparing.mined_pairs import RELEVANT_FROM, report_mined

    assert options.report is not None and options.mined is not None
    level = RELEVANT_FROM if options.relevant_from is None else options.relevant_from
    found = report_mined(options.report, options.mined, level)
    return CommandResult(str(found), found.to_json())


VERB = Verb(MineConfig, MineOptions, run, {"report": _report})
