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

    # standard output is for the verb's result
    serve(settings, lambda line: sys.stderr.write(f"{line}\n"))
    return CommandResult(f"ended; labels: {settings.labels_path}", artifacts={"labels": str(settings.labels_path)})


VERB = Verb(UiSettings, Options, run)
