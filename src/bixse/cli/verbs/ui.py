"""`bixse ui`: pages over a run folder, to label pairs and to inspect a judge's grades."""

from __future__ import annotations

import sys

from bixse.cli.verb import CommandResult, Options, Verb
from bixse.errors import InputError
from bixse.ui.ui_settings import UiSettings


def run(settings: UiSettings, options: Options) -> CommandResult:
    """Serve pages until Ctrl-C."""
    try:
        from bixse.ui.serve import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "krippendorff"):
            raise
        raise InputError(
            f"bixse ui: got no package {error.name!r}; expected it for serving pages; fix: pip install 'bixse[ui]'"
        ) from error

    serve(settings, print_line)
    return CommandResult(f"ended; labels: {settings.labels_path}", artifacts={"labels": str(settings.labels_path)})


def print_line(text: str) -> None:
    """Print a line to standard error, because standard output is for the verb's result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


VERB = Verb(UiSettings, Options, run)
