"""The server's application: the table of pages, and the routes that follow from it."""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bixse.errors import BixseError, printable
from bixse.report.page import page_environment
from bixse.ui.safety import Guard, Session, Sessions, open_secret
from bixse.ui.ui_page import Page, Visit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

    from bixse.ui.ui_page import Act, Draw, Show
    from bixse.ui.workspace import Workspace

PAGES = (
    "overview",
    "label",
    "adjudicate",
    "disagreements",
    "rubric",
    "compare",
    "wins",
    "calibration",
    "training",
    "batch",
    "runs",
)
"""Modules of `bixse.ui.pages` in the order of the navigation; the first is shown at `/`."""
NEWS_EVERY = 2.0
"""Seconds between two looks for news."""
SVG = "image/svg+xml"
LONGEST_NAME = 40
"""Characters of a person's name."""
log = logging.getLogger(__name__)


def pages_for(workspace: Workspace) -> list[Page]:
    """Those that have something to show."""
    found: list[Page] = [import_module(f"bixse.ui.pages.{name}").PAGE for name in PAGES]
    return [page for page in found if page.fits(workspace)]


class Server:
    """The application and what its requests share."""

    def __init__(self, workspace: Workspace, port: int) -> None:
        self.workspace = workspace
        self.sessions = Sessions(open_secret(workspace.settings.labels_path.parent))
        self._drawing = threading.Lock()
        self.pages = pages_for(workspace)
        routes = [
            Route("/", self.first),
            Route("/enter", self.enter),
            Route("/person", self.name_person, methods=["POST"]),
            Route("/invite", self.invite, methods=["POST"]),
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
        ]
        for page in self.pages:
            routes.append(Route(f"/{page.name}", partial(self.show, page, page.show, f"{page.name}.html.j2")))
            for name, act in page.actions.items():
                routes.append(Route(f"/{page.name}/{name}", partial(self.act, page, act), methods=["POST"]))
            for name, show in page.parts.items():
                template = f"{page.name}-{name}.html.j2"
                routes.append(Route(f"/{page.name}/{name}", partial(self.show, page, show, template)))
            for name, draw in page.pictures.items():
                routes.append(Route(f"/{page.name}/{name}.svg", partial(self.draw, page, draw)))
            if page.news is not None:
                routes.append(Route(f"/{page.name}/news", partial(self.tell_news, page.news)))
        settings = workspace.settings
        self.guard = Guard(Starlette(routes=routes), self.sessions, settings.host, port, settings.is_local)

    async def first(self, request: Request) -> Response:
        return RedirectResponse(f"/{self.pages[0].name}", 303)

    async def enter(self, request: Request) -> Response:
        """Take a one-time token for a session; the way of the printed address."""
        if request.method == "HEAD":  # a preview takes nothing
            return Response()
        if request.scope["session"] is not None:
            return RedirectResponse("/", 303)
        session = self.sessions.enter(request.query_params.get("token", ""))
        if session is None:
            why = (
                "this address was used, or is of an earlier start: ask for a new one on the first page, or start again"
            )
            return self.page("message.html.j2", 403, None, title="A used address", message=why)
        session.person = _name(request.query_params.get("person", ""))
        # a page of ours that leads on: where another site's page led here, its redirect would come without the cookie
        return self.guard.hand_over(self.page("entered.html.j2", 200, None, title="Welcome"), session)

    async def name_person(self, request: Request) -> Response:
        """Keep who labels in this browser."""
        visit = await self.visit(request)
        visit.session.person = _name(visit.form.get("person", ""))
        to = visit.form.get("to", "")
        answer = RedirectResponse(f"/{to}" if to in {page.name for page in self.pages} else "/", 303)
        return self.guard.hand_over(answer, visit.session)

    async def invite(self, request: Request) -> Response:
        """Say an address that lets one more browser in."""
        visit = await self.visit(request)
        visit.session.said.append(
            f"for one more browser, once: {visit.address}/enter?token={self.sessions.new_token()}"
        )
        return RedirectResponse("/", 303)

    async def show(self, page: Page, show: Show, template: str, request: Request) -> Response:
        """A page, or a part of one."""
        visit = await self.visit(request)
        return await self._answer(
            page, visit, lambda: self.page(template, 200, visit.session, page, **show(self.workspace, visit))
        )

    async def act(self, page: Page, act: Act, request: Request) -> Response:
        """Change something and lead on."""
        visit = await self.visit(request)
        return await self._answer(
            page, visit, lambda: RedirectResponse(quote(act(self.workspace, visit), safe="/?&=#%+"), 303)
        )

    async def draw(self, page: Page, draw: Draw, request: Request) -> Response:
        """A picture."""
        visit = await self.visit(request)

        def drawn() -> Response:
            with self._drawing:  # matplotlib's settings belong to the process
                plot = draw(self.workspace, visit)
            return Response(plot.svg if plot is not None else "", 200 if plot is not None else 404, None, SVG)

        return await self._answer(page, visit, drawn)

    async def tell_news(self, news: Callable[[Workspace], str], request: Request) -> Response:
        """An event whenever there are news, until the browser leaves."""

        async def events() -> AsyncIterator[str]:
            before = await run_in_threadpool(news, self.workspace)
            while not await request.is_disconnected():
                await asyncio.sleep(NEWS_EVERY)
                now = await run_in_threadpool(news, self.workspace)
                yield f"data: {now}\n\n" if now != before else ": still there\n\n"
                before = now

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _answer(self, page: Page, visit: Visit, make: Callable[[], Response]) -> Response:
        session = visit.session
        if page.needs_person and not visit.person:
            return self.page("person.html.j2", 200, session, page, title="Who labels?")
        try:
            return await run_in_threadpool(make)
        except BixseError as error:
            return self.page("message.html.j2", 400, session, page, message=str(error), title="That did not work")
        except Exception:
            log.exception("%s", page.name)
            why = "an error of ours; what was saved is saved, and the terminal of `bixse ui` shows what it was"
            return self.page("message.html.j2", 500, session, page, message=why, title="That did not work")

    async def visit(self, request: Request) -> Visit:
        """What a request says; a field that is given twice counts as given last."""
        body = (await request.body()).decode("utf-8", "replace") if request.method == "POST" else ""
        form = dict(parse_qsl(body, keep_blank_values=True))
        address = f"http://{request.headers['host']}"
        return Visit(request.scope["session"], request.query_params, form, address)

    def page(
        self, template: str, status: int, session: Session | None, here: Page | None = None, /, **values: Any
    ) -> Response:
        """A filled template; what there is to say is said once."""
        shared = {
            "title": here.title if here is not None else "",
            "pages": self.pages if session is not None else [],
            "here": here,
            "person": session.person if session is not None else "",
            "said": [session.said.pop(0) for _ in list(session.said)] if session is not None else [],
            "settings": self.workspace.settings,
        }
        environment = page_environment("bixse.ui")
        environment.filters.setdefault("shown", printable)
        return HTMLResponse(environment.get_template(template).render({**shared, **values}), status)


def _name(given: str) -> str:
    """A person's name as it is kept: in one line, without control characters."""
    return " ".join(printable(given).split())[:LONGEST_NAME]
