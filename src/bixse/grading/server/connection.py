"""One HTTP request to a chat server: connections kept, failures told apart, the key never shown."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bixse.errors import InputError, shorten
from bixse.grading.server.rate_limit import retry_after
from bixse.grading.server.reply import Failure, classify_failure, error_message
from bixse.grading.server.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    import aiohttp

    from bixse.grading.server.endpoints import Address

Value = TypeVar("Value")
IDLE_SECONDS = 4.0
"""How long an unused connection is kept: less than servers keep theirs (uvicorn and llama.cpp: 5 s)."""
DETAIL_WIDTH = 300
"""Characters of a server's message that are kept."""
READ_WIDTH = 20_000
"""Characters of a message that the key is looked for in before it is cut to what is kept."""


@dataclass(frozen=True)
class Attempt(Generic[Value]):
    """What one request brought."""

    failure: Failure | None
    """None: a reply that was read."""
    value: Value | None = None
    """What was read."""
    detail: str = ""
    """What the server said of a failure."""
    pause: float | None = None
    """Seconds it asked to wait."""


class Connection:
    """Connections to servers with one key, inside one event loop.

    Args:
        key_variable: environment variable that holds the key; empty or missing: none is sent.
        timeout: seconds for one request.
        connect_timeout: seconds until a connection stands.

    Raises:
        InputError: the variable holds no key, or aiohttp is not installed.
    """

    def __init__(self, key_variable: str, timeout: float, connect_timeout: float) -> None:
        try:
            import aiohttp  # noqa: F401
        except ImportError as error:
            raise InputError(
                "aiohttp: got no such package; expected it for asking servers; fix: pip install 'bixse[grade]'"
            ) from error
        self._key = os.environ.get(key_variable, "").strip()
        if not (self._key.isascii() and self._key.isprintable()) or " " in self._key:
            raise InputError(
                f"{key_variable}: got spaces or special characters; expected a key; fix: set the variable anew"
            )
        self._secret = Secret(self._key)
        self.key_variable = key_variable
        self.timeout, self.connect_timeout = timeout, connect_timeout
        self._session: aiohttp.ClientSession | None = None

    @property
    def has_key(self) -> bool:
        """Whether a key is sent."""
        return bool(self._key)

    async def open(self) -> None:
        """Make ready to send, in the running loop."""
        import aiohttp

        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, ttl_dns_cache=300),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout),
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def attempt(
        self, address: Address, path: str, data: bytes | None, parse: Callable[[Any], Value]
    ) -> Attempt[Value]:
        """Send one request; every failure is told in what comes back, none is raised.

        Args:
            address: of the server.
            path: after the address of the API, or after its root where it begins with "root:".
            data: JSON body; None for a GET.
            parse: reads the reply; raises ValueError where it is not whole.
        """
        import aiohttp

        if self._session is None:
            raise RuntimeError("open() comes first")
        url = address.root + path.removeprefix("root:") if path.startswith("root:") else address.api + path
        method = "GET" if data is None else "POST"
        try:
            async with self._session.request(method, url, data=data, allow_redirects=False) as response:
                raw = await response.read()
        except aiohttp.ConnectionTimeoutError:
            return Attempt("disconnected", detail=f"no connection within {self.connect_timeout:g} s")
        except TimeoutError:
            return Attempt("strained", detail=f"no reply within {self.timeout:g} s")
        except aiohttp.ClientConnectorError as error:
            why = getattr(getattr(error, "os_error", None), "strerror", None) or type(error).__name__
            return Attempt("disconnected", detail=f"no connection ({why})")
        except (aiohttp.ServerDisconnectedError, OSError) as error:
            return Attempt("disconnected", detail=f"the connection was closed ({type(error).__name__})")
        except aiohttp.ClientError as error:
            return Attempt("again", detail=f"the connection broke ({type(error).__name__})")
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):
            content = None
        error_inside = isinstance(content, dict) and content.get("error") and not content.get("choices")
        if response.status == 200 and not error_inside:
            try:
                return Attempt(None, self._secret.blot_out(parse(content)))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
                return Attempt("again", detail=f"no whole reply: {shorten(self._text(raw)[:80])}")
        message = self._text(raw if content is None else error_message(content))
        status = _code(content) if response.status == 200 else response.status
        pause = retry_after(response.headers)
        detail = f"HTTP {response.status}: {message}"[:DETAIL_WIDTH]
        return Attempt(classify_failure(status, message, pause is not None), None, detail, pause)

    def _text(self, said: bytes | str) -> str:
        """What a server said, without the key."""
        text = said if isinstance(said, str) else said[:READ_WIDTH].decode("utf-8", "replace")
        return self._secret.blot_out(text[:READ_WIDTH])


def _code(content: Any) -> int:
    """The status inside an error that came with HTTP 200."""
    error = content["error"]
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500
