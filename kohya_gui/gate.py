"""Who may ask the page for anything: the door before every route, Gradio's and ours, those of tomorrow too."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""What this machine calls itself. Served to nobody else, another Host means that a stranger's name points at it."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "SAMEORIGIN",
    "Content-Security-Policy": "frame-ancestors 'self'",
}
API = "/gradio_api"
STARTUP = f"{API}/startup-events"
NOT_OURS = (
    *(f"{API}/{name}" for name in ("deep_link", "runs", "run-history", "proxy=", "dev/", "vibe-", "undo-vibe-edit")),
    *(f"{API}/{name}" for name in ("process_recording", "upload", "stream/", "profiling", "file", "custom_component")),
    *(f"{API}/component_server", f"{API}/openapi.json", "/openapi.json", "/monitoring", "/pwa_icon"),
)
"""Beginnings of Gradio's routes that the page makes no use of, and that nobody gets: some keep or fetch things."""
FREE_GUESSES = 5
LONGEST_WAIT = 60.0
REMEMBERED = 10_000
"""Addresses whose wrong guesses are counted."""
LARGEST_LOGIN = 4096
"""Bytes of a name and a password."""


@dataclass(frozen=True, kw_only=True)
class Door:
    """How the page is served: what decides who is let in."""

    locked: bool = False
    """A password is set: who did not log in gets the login page and nothing else."""
    names: tuple[str, ...] = ()
    """What the Host may be; empty: anything."""
    outside: str = ""
    """The host by which a proxy shows the page, where that is known."""
    behind_proxy: bool = False
    """X-Forwarded-Host is written by a proxy of ours, not by a stranger."""

    def middleware(self) -> Middleware:
        """For launch(app_kwargs={"middleware": [...]})."""
        return Middleware(Gate, door=self)


@dataclass
class Guesses:
    """Wrong passwords by address: after a few, each makes the next wait longer."""

    now: Callable[[], float] = time.monotonic
    _failed: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 counts as a try, before it is known how it ends."""
        failed, until = self._failed.get(address, (0, 0.0))
        if (left := until - self.now()) > 0:
            return left
        pause = 0.0 if failed < FREE_GUESSES else min(2.0 ** (failed - FREE_GUESSES), LONGEST_WAIT)
        self._failed[address] = (failed + 1, self.now() + pause)
        self._failed.move_to_end(address)
        if len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)
        return 0.0

    def right(self, address: str) -> None:
        """Forget what this address got wrong."""
        self._failed.pop(address, None)


class Gate:
    """Plain ASGI, so that what streams goes on streaming. It stands before the routes and knows none of them."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app, self._door, self._guesses = app, door, Guesses()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":  # the page has no web sockets
            return await send({"type": "websocket.close", "code": 1008})
        answer = self._refusal(scope)
        # a login that is not refused goes on to Gradio, which knows the password
        if answer is None and _path(scope).rstrip("/") == "/login" and scope["method"] == "POST":
            send = self._noting_success(_address(scope), send)
        return await (answer or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        """What a request gets instead of what it asks for; None lets it through."""
        headers, path = Headers(scope=scope), _path(scope)
        if why := self._stranger(scope, headers, path):
            return PlainTextResponse(why, 403)
        if path.startswith(NOT_OURS):
            return Response(status_code=404)
        if path.rstrip("/") == "/login" and scope["method"] == "POST":
            return self._no_login(scope, headers)
        reads = scope["method"] in ("GET", "HEAD")
        if self._door.locked and not _logged_in(scope) and not _is_launch(scope, path):
            if reads and path in ("/", ""):
                return HTMLResponse(LOGIN_PAGE, headers={"Cache-Control": "no-store"})
            return Response(status_code=401)
        if path.startswith("/studio/") and not reads and "x-studio" not in headers:  # which no form can send
            return PlainTextResponse("The header X-Studio is missing: the request does not come from the page", 403)
        return None

    def _stranger(self, scope: Scope, headers: Headers, path: str) -> str | None:
        """Why a request does not come from a page of ours."""
        host = headers.get("host", "")
        if self._door.names and _name(host) not in self._door.names:
            return (
                f"{_name(host) or 'No name'} is not a name of this machine: open http://localhost, or start the GUI "
                "with --root_path and the address at which a proxy shows it"
            )
        ours = {host, self._door.outside, *(_names_outside(scope, headers) if self._door.behind_proxy else ())}
        origin = headers.get("origin")
        if origin is not None and (not urlsplit(origin).netloc or urlsplit(origin).netloc not in ours):
            return f"The request comes from another site ({origin}): behind a proxy, name its address with --root_path"
        # "none": typed by the user; a link on another site may lead to the page and no deeper
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and path not in ("/", ""):
            return "The request comes from another site"
        return None

    def _no_login(self, scope: Scope, headers: Headers) -> Response | None:
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length) > LARGEST_LOGIN:
            return PlainTextResponse("This is longer than a name and a password", 413)
        if wait := self._guesses.wait(_address(scope)):
            return PlainTextResponse(
                f"Too many wrong passwords: try again in {wait:.0f} s", 429, {"Retry-After": f"{wait:.0f}"}
            )
        return None

    def _noting_success(self, address: str, send: Send) -> Send:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                self._guesses.right(address)
            await send(message)

        return noting


def _path(scope: Scope) -> str:
    """The path as the router will see it: without the prefix that a proxy may have left on it."""
    path, root = scope["path"], scope.get("root_path", "")
    return path[len(root) :] if root and (path == root or path.startswith(root + "/")) else path


def _name(host: str) -> str:
    """`localhost` of `localhost:7860`; nothing of what is no host."""
    found = re.fullmatch(r"(\[[^]]*]|[^:[\]]*)(:\d+)?", host)
    return found[1].lower() if found else ""


def _names_outside(scope: Scope, headers: Headers) -> tuple[str, ...]:
    """What the page is called beyond a proxy that writes it into the request, or beyond the link of --share."""
    shared = urlsplit(scope["app"].get_blocks().share_url or "").netloc
    return headers.get("x-forwarded-host", "").partition(",")[0].strip(), shared


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _logged_in(scope: Scope) -> bool:
    """Whether the request carries a session of Gradio's, which hands them out and takes them back."""
    app, cookies = scope["app"], HTTPConnection(scope).cookies
    names = (f"access-token-{app.cookie_id}", f"access-token-unsecure-{app.cookie_id}")
    return any(cookies.get(name) in app.tokens for name in names)


def _is_launch(scope: Scope, path: str) -> bool:
    """launch() asks this of its own server, once, before it says that the page is up."""
    to_itself = bool(scope.get("server")) and _address(scope) == scope["server"][0]
    return path == STARTUP and to_itself and not scope["app"].startup_events_triggered


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


LOGIN_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Log in</title>
<style>
  body { margin: 0; min-height: 100vh; display: grid; place-items: center;
         font: 14px/1.5 Inter, ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
         background: light-dark(#f1f5f9, #020617); color: light-dark(#334155, #e2e8f0); }
  form { width: 280px; padding: 24px; border-radius: 8px; display: grid; gap: 12px;
         background: light-dark(#fff, #0f172a); border: 1px solid light-dark(#e2e8f0, #1e293b); }
  h1 { margin: 0 0 4px; font-size: 18px; }
  label { display: grid; gap: 4px; font-weight: 600; }
  input { font: inherit; font-weight: 400; padding: 6px 10px; border-radius: 6px;
          border: 1px solid light-dark(#cbd5e1, #334155); background: light-dark(#f8fafc, #1e293b); color: inherit; }
  button { font: inherit; font-weight: 600; padding: 9px 16px; border: 0; border-radius: 6px; cursor: pointer;
           background: #0d9488; color: #fff; }
  p { margin: 0; min-height: 1.5em; color: light-dark(#b91c1c, #fca5a5); }
</style>
</head>
<body>
<form method="post" action="login">
  <h1>Log in</h1>
  <label>Username <input name="username" autocomplete="username" autofocus required></label>
  <label>Password <input name="password" type="password" autocomplete="current-password" required></label>
  <button>Login</button>
  <p role="alert"></p>
</form>
<script>
  const form = document.querySelector("form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const says = (text) => (document.querySelector("p").textContent = text);
    const where = location.pathname.replace(/\\/$/, "") + "/login"; // also below a prefix
    try {
      const answer = await fetch(where, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (answer.ok) return location.reload();
      says(answer.status === 400 ? "The name or the password is wrong" : await answer.text());
    } catch {
      says("The GUI does not answer");
    }
  });
</script>
</body>
</html>
"""
