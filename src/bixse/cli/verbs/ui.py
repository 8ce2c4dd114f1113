"""`bixse ui`: pages over a run folder, to label pairs and to inspect a judge's grades."""

from __future__ import annotations

import os
import sys
import webbrowser

from bixse.cli.verb import CommandResult, Options, Verb
from bixse.errors import needs_extra
from bixse.ui.ui_settings import UiSettings


def has_screen() -> bool:
    """Return True if a person sits at a terminal of a machine with a screen, and not at one that a network leads to."""
    if not sys.stdin.isatty() or not sys.stderr.isatty() or "SSH_CONNECTION" in os.environ:
        return False
    # without a display, `webbrowser` would start a text browser in this terminal
    return sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())


def run(settings: UiSettings, options: Options) -> CommandResult:
    """Serve pages until Ctrl-C."""
    with needs_extra("ui", "serving pages"):
        from bixse.ui.serve import serve

    # standard output is for the verb's result
    show = webbrowser.open if has_screen() and settings.is_local and not settings.no_browser else None
    serve(settings, lambda line: sys.stderr.write(f"{line}\n"), show)
    return CommandResult(f"ended; labels: {settings.labels_path}", artifacts={"labels": str(settings.labels_path)})


VERB = Verb(UiSettings, Options, run)
