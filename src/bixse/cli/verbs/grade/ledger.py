"""`bixse grade ledger`: look at the answers that were paid for, bring them together, check them."""

from __future__ import annotations

from bixse.cli.verb import CommandResult, Options, Verb
from bixse.judging.ledgers.ledger_files import LedgerSettings


def run(settings: LedgerSettings, options: Options) -> CommandResult:
    """Do the action."""
    from bixse.judging.ledgers.ledger_files import export_answers, merge_ledgers

    if settings.action == "status":
        return _status(settings)
    if settings.action == "check":
        return _check(settings)
    if settings.action == "merge":
        target, rows = merge_ledgers(settings.ledger, settings.to)
        text = f"{rows:,} answers of {len(settings.ledger)} ledgers are in {target}"
        return CommandResult(text, {"answers": rows}, {"ledger": str(target)})
    assert settings.to is not None
    rows = export_answers(settings.ledger, settings.to)
    return CommandResult(f"wrote {rows:,} answers to {settings.to}", {"answers": rows}, {"answers": str(settings.to)})


def _status(settings: LedgerSettings) -> CommandResult:
    from bixse.judging.ledgers.ledger_files import ledger_status
    from bixse.report.table import format_table

    rows = ledger_status(settings.ledger, settings)
    shown = [
        [row["model"], row["status"], f"{row['answers']:,}", f"{row['prompt'] or 0:,}", f"{row['completion'] or 0:,}",
         f"{row['usd']:.4f}"]
        for row in rows
    ]  # fmt: skip
    table = format_table(shown, ["model", "status", "answers", "tokens read", "written", "US dollars"])
    answers, usd = sum(row["answers"] for row in rows), sum(row["usd"] for row in rows)
    text = f"{answers:,} answers, {usd:.4f} US dollars\n\n{table}" if rows else "no answers"
    return CommandResult(text, {"answers": answers, "usd": usd, "by_model": rows})


def _check(settings: LedgerSettings) -> CommandResult:
    from bixse.judging.ledgers.ledger_files import check_ledgers

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
