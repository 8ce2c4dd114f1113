"""`serve`: open a run folder and show it until it is stopped."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

from bixse.errors import InputError
from bixse.ui.app import Server
from bixse.ui.workspace import open_workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bixse.ui.ui_settings import UiSettings


def serve(settings: UiSettings, say: Callable[[str], None]) -> None:
    """Serve the pages of a run folder until Ctrl-C or SIGTERM; `say` is told the address to open.

    Raises:
        InputError: the folder has nothing to show, a file cannot be used, or the port is taken.
        OutputExistsError: another server writes into the same labels.
    """
    with open_workspace(settings) as workspace, _listening(settings) as listener:
        port = listener.getsockname()[1]
        server = Server(workspace, port)
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        say(f"open in a browser, once: http://{name}:{port}/enter?token={server.sessions.new_token()}")
        say("Ctrl-C ends it; every label is on the disk when its page says so")
        config = uvicorn.Config(
            server.guard, log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            lifespan="off", timeout_graceful_shutdown=3,
        )  # fmt: skip
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


@contextlib.contextmanager
def _listening(settings: UiSettings) -> Iterator[socket.socket]:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InputError(
            f"{settings.host}:{settings.port}: got {error.strerror or error}; expected a free port of this machine; "
            "fix: choose another --port, or 0 for any free one"
        ) from error
    with listener:
        yield listener
