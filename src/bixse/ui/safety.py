"""Access control of the server: sessions, checks of Host and Origin, and headers that limit what a page loads."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import socket
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, Response

from bixse.files.files import storage_errors

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LONGEST_FORM = 1 << 20  # maximum size of a form in bytes
MOST_ADDRESSES = 100  # maximum number of unused one-time addresses; the oldest are forgotten
POLICY = "Content-Security-Policy"
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
)
"""The policy of a report's own page, and `sandbox`: a report has no scripts, and is of no origin."""
HEADERS = {
    POLICY: "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # "no-referrer" would make the Origin of forms null
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # texts and labels may be private
}
SECRET_FILE, SECRET_BYTES = ".ui-secret", 32
"""The file signs the sessions, so that they outlive the server; everybody who can read it can make a session."""


def open_secret(folder: Path) -> bytes:
    """Return the secret of a folder; make a new one if there is none or if others can read it."""
    path = folder / SECRET_FILE
    with storage_errors(path):
        if path.exists() and not path.stat().st_mode & 0o077 and len(secret := path.read_bytes()) == SECRET_BYTES:
            return secret
        path.unlink(missing_ok=True)
        secret = secrets.token_bytes(SECRET_BYTES)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
    return secret


@dataclass
class Session:
    """The session of one browser."""

    name: str
    person: str = ""  # name of the person who labels; empty until it is given
    messages: list[str] = field(default_factory=list)  # shown at the top of the next page


class Sessions:
    """The sessions of admitted browsers, and one-time tokens for new browsers.

    A cookie holds the session's name, its person and a signature, so that a restarted server accepts it.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._open: dict[str, Session] = {}
        self._tokens: deque[str] = deque(maxlen=MOST_ADDRESSES)

    def new_token(self) -> str:
        """Make a token that admits one browser, once."""
        self._tokens.append(token := secrets.token_urlsafe(24))
        return token

    def enter(self, token: str) -> Session | None:
        """Return a new session, or None if the token is unknown or used."""
        try:
            self._tokens.remove(token)
        except ValueError:
            return None
        name = secrets.token_urlsafe(32)
        return self._open.setdefault(name, Session(name))

    def cookie_of(self, session: Session) -> str:
        content = f"{session.name}.{quote(session.person, safe='')}"
        return f"{content}.{hmac.new(self._secret, content.encode(), hashlib.sha256).hexdigest()}"

    def find(self, cookie: str) -> Session | None:
        """Return the session of a cookie that this server or an earlier server of the folder signed."""
        name, _, rest = cookie.partition(".")
        known = Session(name, unquote(rest.rpartition(".")[0]))
        if not hmac.compare_digest(self.cookie_of(known).encode(), cookie.encode()):  # constant time tells no prefix
            return None
        return self._open.setdefault(name, known)


class Guard:
    """The middleware that refuses foreign requests before any page sees them, and adds the security headers.

    - The Host must be an address of this server, so that no other site's name can be bound to it (DNS rebinding).
    - Only POST changes anything, and only from a page of the same origin (CSRF).
    - Every path but `/enter` and `/static/` gives `locked` without a session, which `/enter?token=` opens once.
    """

    def __init__(self, app: ASGIApp, locked: ASGIApp, sessions: Sessions, host: str, port: int, is_local: bool) -> None:
        self.app, self.locked, self.sessions, self.port, self.is_local = app, locked, sessions, port, is_local
        self.cookie = f"bixse-{port}"  # cookies know no ports, and two servers may run here
        self.names = {"127.0.0.1", "localhost", "[::1]", host.lower()}
        if not is_local:
            self.names |= {socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on with `scope["session"]`."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                sent.update({**HEADERS, POLICY: sent.get(POLICY, HEADERS[POLICY])})
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, with_headers)
            return
        cookie = cookie_parser(headers.get("cookie", "")).get(self.cookie)
        scope["session"] = None if cookie is None else self.sessions.find(cookie)
        path = scope["path"]
        if scope["session"] is None and path != "/enter" and not path.startswith("/static/"):
            await self.locked(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> Any:
        host = headers.get("host", "")
        if not self.knows(host):
            return PlainTextResponse("The Host header is not an address of this server.", 421)
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return PlainTextResponse("Only GET and POST are allowed.", 405)
        if headers.get("origin") != f"http://{host}" or headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("The form was sent from a page of another site.", 403)
        return None

    def knows(self, host: str) -> bool:
        """Return True if a Host header names this server."""
        if self.port == 80 and not re.search(r":\d+$", host):
            host += ":80"  # browsers leave out the port of http
        name, _, port = host.lower().rpartition(":")
        if port != str(self.port):
            return False
        if name in self.names:
            return True
        try:  # another site's name may resolve to this machine, but an IP address is no site's name
            return not self.is_local and bool(ipaddress.ip_address(name.strip("[]")))
        except ValueError:
            return False

    def hand_over(self, response: Response, session: Session) -> Response:
        """Add the session's cookie to a response; no script reads it, and no other site's page sends it."""
        response.set_cookie(self.cookie, self.sessions.cookie_of(session), httponly=True, samesite="strict", path="/")
        return response


async def read_form(request: Request) -> dict[str, str]:
    """Read a form; the last value of a repeated field counts. Count bytes: Content-Length may be wrong or absent."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_FORM:
            raise HTTPException(413, f"The form is larger than {LONGEST_FORM >> 20} MiB.")
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
