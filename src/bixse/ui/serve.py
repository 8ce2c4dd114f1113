"""`serve`: serve the pages of a run folder until it is stopped; `Server`: the routes of the pages."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bixse.errors import BixseError, InputError, printable
from bixse.rendering.page import page_environment
from bixse.ui.pages import compare, home, label, rubric, training
from bixse.ui.safety import POLICY, REPORT_POLICY, Guard, Session, Sessions, open_secret, read_form
from bixse.ui.workspace import Act, Draw, NotReadyError, Page, RefusedFormError, Show, Visit, Workspace, open_workspace

if TYPE_CHECKING:
    from starlette.requests import Request

    from bixse.ui.ui_settings import UiSettings

PAGES = (*home.PAGES, *label.PAGES, *rubric.PAGES, *compare.PAGES, *training.PAGES)
"""All pages in the order of the navigation; `/` shows the first page that fits the folder."""
SVG = "image/svg+xml"
LONGEST_NAME = 40  # maximum number of characters of a person's name
log = logging.getLogger(__name__)


class Server:
    """The application, and the state that its requests share."""

    def __init__(self, workspace: Workspace, port: int) -> None:
        self.workspace = workspace
        self.sessions = Sessions(open_secret(workspace.settings.labels_path.parent))
        self._drawing = threading.Lock()
        self.pages = [page for page in PAGES if page.fits(workspace)]
        routes = [
            Route("/", self.first),
            Route("/enter", self.enter),
            Route("/person", self.name_person, methods=["POST"]),
            Route("/reports/{name:path}", self.report),
            Route("/invite", self.invite, methods=["POST"]),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ]
        for page in self.pages:
            shows: dict[str, Callable[[Visit], Response]] = {"": partial(self.show, page, page.show, page.name)}
            for name, show in page.parts.items():
                shows[f"/{name}"] = partial(self.show, page, show, f"{page.name}-{name}")
            shows |= {f"/{name}.svg": partial(self.draw, draw) for name, draw in page.pictures.items()}
            for path, make in shows.items():
                routes.append(Route(f"/{page.name}{path}", partial(self.respond, page, make)))
            for name, act in page.actions.items():
                make = partial(self.act, act)
                routes.append(Route(f"/{page.name}/{name}", partial(self.respond, page, make), methods=["POST"]))
        settings = workspace.settings
        app = Starlette(routes=routes, exception_handlers={404: self.missing})
        why = "The server was restarted, or this browser is new. Open the link in the terminal. Nothing saved is lost."
        locked = self.page("message.html.j2", 403, None, title="You are signed out", message=why, style="lead")
        self.guard = Guard(app, locked, self.sessions, settings.host, port, settings.is_local)

    async def missing(self, request: Request, error: Exception) -> Response:
        why = "A page is shown if the folder has its files."
        values = {"title": "There is no such page", "message": why, "style": "lead"}
        return self.page("message.html.j2", 404, request.scope["session"], **values)

    async def first(self, request: Request) -> Response:
        return RedirectResponse(f"/{self.pages[0].name}", 303)

    async def enter(self, request: Request) -> Response:
        """Exchange a one-time token for a session; the printed address leads here."""
        if request.method == "HEAD":  # the preview of a link must not use up the token
            return Response()
        if request.scope["session"] is not None:
            return RedirectResponse("/", 303)
        session = self.sessions.enter(request.query_params.get("token", ""))
        if session is None:
            why = "This link was used, or belongs to an earlier start. Restart `bixse ui`, or make a new link on Home."
            return self.page("message.html.j2", 403, None, title="This link is not valid", message=why)
        session.person = _name(request.query_params.get("person", ""))
        # a page and no redirect: after a link on another site, browsers follow a redirect without the strict cookie
        return self.guard.hand_over(self.page("entered.html.j2", 200, None, title="Welcome"), session)

    async def name_person(self, request: Request) -> Response:
        """Store the name of the person who labels in this browser."""
        visit = await self.visit(request)
        visit.session.person = _name(visit.form.get("person", ""))
        to = visit.form.get("to", "")
        query = urlencode(parse_qsl(visit.form.get("query", "")))  # parsed and rebuilt, so that only a query remains
        response = RedirectResponse(f"/{to}?{query}" if to in {page.name for page in self.pages} else "/", 303)
        return self.guard.hand_over(response, visit.session)

    async def invite(self, request: Request) -> Response:
        """Show a one-time address that admits another browser."""
        visit = await self.visit(request)
        visit.session.messages.append(
            f"Link for another person, valid once: {visit.address}/enter?token={self.sessions.new_token()}"
        )
        return RedirectResponse("/", 303)

    async def report(self, request: Request) -> Response:
        """A report of the folder, without scripts and without this server's cookie, whoever wrote it."""
        path = home.list_reports(self.workspace.run).get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return FileResponse(path, headers={POLICY: REPORT_POLICY})

    def show(self, page: Page, show: Show, template: str, visit: Visit, refusal: str = "") -> Response:
        """Render a page or a part; `refusal` says why a form was not saved, and the form keeps its texts."""
        status, values = 400 if refusal else 200, {"refusal": refusal, "sent": visit.form}
        return self.page(f"{template}.html.j2", status, visit.session, page, **values, **show(self.workspace, visit))

    def act(self, act: Act, visit: Visit) -> Response:
        """Run an action, and redirect to the address that it returns."""
        return RedirectResponse(quote(act(self.workspace, visit), safe="/?&=#%+"), 303)

    def draw(self, draw: Draw, visit: Visit) -> Response:
        with self._drawing:  # matplotlib's settings are global to the process
            svg = draw(self.workspace, visit)
        return Response(svg or "", 404 if svg is None else 200, None, SVG)

    async def respond(self, page: Page, make: Callable[[Visit], Response], request: Request) -> Response:
        """Return the response to a visit, or a page with the error."""
        visit = await self.visit(request)
        session = visit.session
        if page.needs_person and not visit.person:
            return self.page("person.html.j2", 200, session, page, title="Who labels?")
        try:
            return await run_in_threadpool(make, visit)
        except NotReadyError as job:
            response = self.page("loading.html.j2", 200, session, page, message=str(job), title="Loading")
            response.headers["HX-Refresh"] = "true"  # where a script asked for a part of the page
            return response
        except RefusedFormError as error:
            again = partial(self.show, page, page.show, page.name, visit, str(error))
            return await run_in_threadpool(again)
        except BixseError as error:
            return self.page("message.html.j2", 400, session, page, message=str(error), title="That did not work")
        except Exception:
            log.exception("%s", page.name)
            why = "Internal error. Saved labels are safe; the terminal of `bixse ui` shows the error."
            return self.page("message.html.j2", 500, session, page, message=why, title="That did not work")

    async def visit(self, request: Request) -> Visit:
        form = await read_form(request) if request.method == "POST" else {}
        address = f"http://{request.headers['host']}"
        return Visit(request.scope["session"], request.query_params, form, address)

    def page(
        self, template: str, status: int, session: Session | None, here: Page | None = None, /, **values: Any
    ) -> HTMLResponse:
        """Render a template; messages of the session are shown once."""
        shared = {
            "title": here.title if here is not None else "",
            "pages": self.pages if session is not None else [],
            "here": here,
            "person": session.person if session is not None else "",
            "messages": [session.messages.pop(0) for _ in list(session.messages)] if session is not None else [],
            "workspace": self.workspace,
            "style": "message",
        }
        environment = page_environment("bixse.ui")
        environment.filters.setdefault("shown", lambda value: printable(str(value)))
        return HTMLResponse(environment.get_template(template).render({**shared, **values}), status)


def _name(text: str) -> str:
    """Reduce a person's name to one line without control characters."""
    return " ".join(printable(text).split())[:LONGEST_NAME]


def serve(settings: UiSettings, say: Callable[[str], Any], show: Callable[[str], Any] | None = None) -> None:
    """Serve the pages of a run folder until Ctrl-C or SIGTERM; `say` receives lines to print.

    `show` receives the address once it can be opened; connections wait until the pages are there.
    """
    with open_workspace(settings) as workspace, _listening(settings) as listener:
        port = listener.getsockname()[1]
        server = Server(workspace, port)
        name = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"http://{name}:{port}/enter?token="
        say(f"open this link in a browser, it is valid once: {address}{server.sessions.new_token()}")
        say("Ctrl-C ends the server; a label is on the disk when the page shows it as saved")
        config = uvicorn.Config(
            server.guard, log_level="warning", access_log=False, server_header=False, proxy_headers=False,
            lifespan="off", timeout_graceful_shutdown=3,
        )  # fmt: skip
        if show is not None:
            show(f"{address}{server.sessions.new_token()}")  # a token of its own: the printed link stays valid
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _listening(settings: UiSettings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InputError(
            f"{settings.host}:{settings.port}: got {error.strerror or error}; expected a free port of this machine; "
            "fix: choose another --port, or 0 for any free one"
        ) from error
