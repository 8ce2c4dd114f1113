"""`bixse push`: a model on the Hugging Face hub."""

from __future__ import annotations

from dataclasses import asdict

from bixse.cli.verb import CommandResult, Options, Verb
from bixse.export.export_settings import PushSettings


def run(settings: PushSettings, options: Options) -> CommandResult:
    """Send the files, or show them."""
    from bixse.export.push import push

    pushed = push(settings, options.dry_run)
    lines = [f"{len(pushed.files)} files", *(f"  {name}" for name in pushed.files), "", f"{pushed.card}"]
    if pushed.url is not None:
        lines = [f"sent {len(pushed.files)} files: {pushed.url}"]
    return CommandResult("\n".join(lines), asdict(pushed), {"repository": pushed.url} if pushed.url else {})


VERB = Verb(PushSettings, Options, run, dry_run="Print the files and the card. Send nothing.")
