"""`bixse grade audit`: measure judges against human labels."""

from __future__ import annotations

from pathlib import Path

from bixse.cli.verb import CommandResult, Folder, Options, Verb
from bixse.judging.audit.audit_settings import AuditSettings


class AuditOptions(Options):
    """The folder of the files."""

    out: Folder = Path("runs/audit")
    """Write audit.json, audit.html and run.json here."""


def run(settings: AuditSettings, options: AuditOptions) -> CommandResult:
    """Read, join, measure, write the page."""
    from bixse.judging.audit.audit import audit_judges

    result = audit_judges(settings, options.out)
    text = f"{result.report.text()}\n\npage: {result.artifacts['page']}"
    code = 3 if result.report.impossible else 0
    return CommandResult(text, result.report.figures(), result.artifacts, result.warnings, exit_code=code)


VERB = Verb(AuditSettings, AuditOptions, run)
