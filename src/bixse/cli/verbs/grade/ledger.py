"""`bixse grade ledger`: bring the answers that were paid for together, check them."""

from __future__ import annotations

from bixse.cli.verb import CommandResult, Options, Verb
from bixse.judging.ledgers.ledger_files import LedgerSettings


def run(settings: LedgerSettings, options: Options) -> CommandResult:
    """Do the action."""
    from bixse.judging.ledgers.ledger_files import check_ledgers, merge_ledgers

    if settings.action == "merge":
        target, rows = merge_ledgers(settings.ledger, settings.to)
        text = f"{rows:,} answers of {len(settings.ledger)} ledgers are in {target}"
        return CommandResult(text, {"answers": rows}, {"ledger": str(target)})
    found = check_ledgers(settings.ledger)
    lines = ["every answer can be read" if not found.unreadable else f"{len(found.unreadable)} files cannot be read"]
    if found.writing:
        lines.append(
            f"{found.writing} segments are open: their processes are at work, or were killed (merge seals these)"
        )
    warnings = []
    if found.conflicting:
        warnings.append(
            f"{found.conflicting} questions have two different grades, of which the latest counts: "
            f"{', '.join(found.conflicts)}"
        )
    metrics = {"unreadable": len(found.unreadable), "conflicts": found.conflicting, "open": found.writing}
    return CommandResult("\n".join(lines), metrics, {}, warnings, list(found.unreadable), 1 if found.unreadable else 0)


VERB = Verb(LedgerSettings, Options, run)
