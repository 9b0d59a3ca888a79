"""Access control in front of every route, Gradio's and ours, including ones added later."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kohya_gui.access.content_policy import NOTHING, page_policy
from kohya_gui.access.login_pages import login_page, token_page, too_many_guesses
from kohya_gui.access.login_throttle import LoginLog, LoginThrottle
from kohya_gui.access.request_checks import refusal
from kohya_gui.access.sessions import LIFETIME, Sessions
from kohya_gui.languages.catalogues import language_of

OWN_NAMES = ("localhost", "127.0.0.1", "[::1]")
"""Names of this machine. Served locally only, any other Host means that a foreign name points at it."""
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "X-Frame-Options": "SAMEORIGIN"}
API = "/gradio_api"
STARTUP = f"{API}/startup-events"
NOT_OURS = (
    *(f"{API}/{name}" for name in ("deep_link", "runs", "run-history", "proxy=", "dev/", "vibe-", "undo-vibe-edit")),
    *(f"{API}/{name}" for name in ("process_recording", "upload", "stream/", "profiling", "file", "custom_component")),
    *(f"{API}/call/", f"{API}/api/"),
    *(f"{API}/component_server", f"{API}/openapi.json", "/openapi.json", "/monitoring", "/pwa_icon"),
)
"""Prefixes of Gradio routes that the page does not use and that are blocked: some store or fetch data."""
LARGEST_LOGIN = 4096
"""Bytes of a login request."""
LARGEST_STUDIO_BODY = 1_000_000
"""Bytes of a request to a /studio route."""
LARGEST_UPLOAD = 8 * 2**30
"""Bytes of a file that is sent for a dataset, which its route writes to the disk as it arrives."""
UPLOAD = "/studio/dataset/upload/file"
LARGEST_BODY = 16_000_000
"""Bytes of a request to a Gradio route: all settings of a tab and the texts in it."""


@dataclass(frozen=True, kw_only=True)
class AccessPolicy:
    """How the page is served, and so who may open it."""

    sessions: Sessions | None = None
    """Users without a session get the login page and nothing else; None lets everybody in."""
    names: tuple[str, ...] = ()
    """Allowed Host names; empty allows any."""
    any_address: bool = False
    """Also allow an IP address or a name without a dot as Host: no foreign DNS entry can point those at us."""
    outside: str = ""
    """Host under which a proxy serves the page, if known."""
    prefix: str = ""
    """Path below which a proxy serves the page."""
    behind_proxy: bool = False
    """Trust X-Forwarded-Host, since our own proxy writes it."""
    log: LoginLog | None = None
    scripts: tuple[str, ...] = ()
    """Scripts that the page inserts itself, in addition to those it is sent with."""

    def middleware(self) -> Middleware:
        """For launch(app_kwargs={"middleware": [...]})."""
        return Middleware(AuthMiddleware, access=self)

    def answers_to(self, host: str) -> bool:
        """Return whether this Host is one of our names."""
        name = _name(host)
        if not self.names or name in self.names:
            return True
        return self.any_address and bool(name) and (_is_ip(name) or "." not in name)


class AuthMiddleware:
    """Plain ASGI middleware, so that responses keep streaming. It runs before the routes and is independent of them."""

    def __init__(self, app: ASGIApp, access: AccessPolicy) -> None:
        self._app = app
        self._policy = access
        self._throttle = LoginThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":  # the page has no web sockets
            await send({"type": "websocket.close", "code": 1008})
        else:
            answer = self._refusal(scope) or await self._login(scope, receive) or _too_long(scope)
            receive = _limited(_limit(scope), receive)
            if answer is None and scope["method"] == "POST" and _path(scope).startswith(f"{API}/"):
                answer, receive = await _read(scope, receive)
            await (answer or self._app)(scope, receive, _WithHeaders(send, self._policy.scripts))

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that no login would permit, or None."""
        if reason := self._foreign_origin(scope):
            return PlainTextResponse(reason, 403)
        return Response(status_code=404) if _path(scope).startswith(NOT_OURS) else None

    async def _login(self, scope: Scope, receive: Receive) -> Response | None:
        """Handle login, logout and missing sessions; return None to let the request through."""
        path = _path(scope)
        reads = scope["method"] in ("GET", "HEAD")
        sessions = self._policy.sessions
        if sessions and path.rstrip("/") == "/login" and scope["method"] == "POST":
            return await self._log_in(sessions, scope, receive)
        if sessions and not _is_launch(scope, path) and not _is_logged_in(scope, sessions):
            token = _token(scope) if path == "/" and scope["method"] == "GET" else None
            if token is not None and sessions.credential.kind == "token":
                wrong = self._guess(sessions, scope, "token", token)
                return wrong or self._with_session(sessions, scope, self._clean_address(scope))
            if not self._bears_token(sessions, scope):
                return _login_page(sessions, scope) if reads and path == "/" else Response(status_code=401)
        if sessions and path == "/logout" and reads:
            return self._log_out(sessions, scope)
        if path == "/" and reads and _token(scope) is not None:
            return self._clean_address(scope)
        if path.startswith("/studio/") and not reads and "x-studio" not in Headers(scope=scope):  # no form can send it
            return PlainTextResponse("Header X-Studio is missing: the request does not come from the page", 403)
        return None

    def _foreign_origin(self, scope: Scope) -> str | None:
        """Return why a request does not come from our own page, or None."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._policy.answers_to(host) and (not host or host != _shared(scope)):
            return (
                f"{_name(host) or 'No name'} is not a name of this machine. Open http://localhost, or start the GUI "
                "with --root_path and the address of your proxy"
            )
        ours = {host, self._policy.outside}
        if self._policy.behind_proxy:
            ours |= {headers.get("x-forwarded-host", "").partition(",")[0].strip(), _shared(scope)}
        origin = headers.get("origin")
        if origin is not None and (not urlsplit(origin).netloc or urlsplit(origin).netloc not in ours):
            return f"The request comes from another site ({origin}). Behind a proxy, set its address with --root_path"
        # "none": typed by the user; a link on another site may lead to the page and no deeper
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and _path(scope) != "/":
            return "The request comes from another site"
        return None

    async def _log_in(self, sessions: Sessions, scope: Scope, receive: Receive) -> Response:
        if _length(scope) > LARGEST_LOGIN or "content-length" not in Headers(scope=scope):
            return PlainTextResponse("The login request is too long", 413)
        try:
            form = parse_qs((await _body(receive)).decode(), strict_parsing=True)
            username = form["username"][0]
            password = form["password"][0]
        except (ValueError, KeyError):
            return PlainTextResponse("Username and password are required", 422)
        wrong = self._guess(sessions, scope, "password", password, username)
        return wrong or self._with_session(sessions, scope, JSONResponse({"success": True}))

    def _bears_token(self, sessions: Sessions, scope: Scope) -> bool:
        """Return whether the request has the token as a bearer token, as scripts send it."""
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or sessions.credential.kind != "token":
            return False
        return self._guess(sessions, scope, "token", token.strip()) is None

    def _guess(
        self, sessions: Sessions, scope: Scope, kind: Literal["password", "token"], secret: str, username: str = ""
    ) -> Response | None:
        """Return None if the secret opens the page, else the response to a wrong guess or to too many of them."""
        address = _address(scope)
        if wait := self._throttle.wait(address):
            headers = {"Retry-After": f"{wait:.0f}"}
            return PlainTextResponse(too_many_guesses(_language(scope), kind, wait), 429, headers)
        if sessions.credential.kind == kind and sessions.credential.matches(secret, username):
            self._throttle.succeeded(address)
            return None
        if self._policy.log:
            self._policy.log.failed(address, kind)
        if kind == "password":
            return JSONResponse({"detail": "Incorrect credentials."}, 400)
        return _html(token_page(_language(scope), wrong=True), 401)

    def _log_out(self, sessions: Sessions, scope: Scope) -> Response:
        name = _cookie_name(sessions, scope)
        sessions.end(HTTPConnection(scope).cookies.get(name, ""))
        answer = RedirectResponse(f"{self._policy.prefix}/", 303)
        answer.delete_cookie(name, path=f"{self._policy.prefix}/")
        return answer

    def _with_session(self, sessions: Sessions, scope: Scope, answer: Response) -> Response:
        answer.set_cookie(
            _cookie_name(sessions, scope),
            sessions.begin(),
            max_age=LIFETIME,
            path=f"{self._policy.prefix}/",
            secure=scope["scheme"] == "https",
            httponly=True,
            samesite="lax",
        )
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _clean_address(self, scope: Scope) -> Response:
        """Redirect to the page without the token, to keep it out of the address bar and the history."""
        query = HTTPConnection(scope).query_params.multi_items()
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        address = f"{self._policy.prefix}/{'?' if rest else ''}{rest}"
        return RedirectResponse(address, 303, {"Cache-Control": "no-store"})


def _path(scope: Scope) -> str:
    """Return the path as the router sees it, without a prefix that a proxy may have left on it."""
    path: str = scope["path"]
    root = scope.get("root_path", "")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path.removeprefix(root)
    return path or "/"


def _name(host: str) -> str:
    """Return `localhost` for `localhost:7860`; empty if it is not a host."""
    name_and_port = re.fullmatch(r"(\[[^]]*]|[^:[\]]*)(:\d+)?", host)
    return name_and_port[1].lower() if name_and_port else ""


def _shared(scope: Scope) -> str:
    """Return the host of the --share link, if there is one."""
    return urlsplit(scope["app"].get_blocks().share_url or "").netloc


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _token(scope: Scope) -> str | None:
    """Return the token in the address, or None."""
    return HTTPConnection(scope).query_params.get("token")


def _cookie_name(sessions: Sessions, scope: Scope) -> str:
    """Return the cookie name, which includes the port: browsers send cookies to every port of a host."""
    return f"{sessions.name}-{(scope.get('server') or ('', 0))[1]}"


def _is_logged_in(scope: Scope, sessions: Sessions) -> bool:
    return sessions.is_open(HTTPConnection(scope).cookies.get(_cookie_name(sessions, scope), ""))


def _login_page(sessions: Sessions, scope: Scope) -> Response:
    language = _language(scope)
    if sessions.credential.kind == "password":
        return _html(login_page(language), 200)
    return _html(token_page(language), 401)


def _language(scope: Scope) -> str:
    return language_of(HTTPConnection(scope))


def _html(page: str, status: int) -> Response:
    return HTMLResponse(page, status, {"Cache-Control": "no-store"})


def _length(scope: Scope) -> int:
    """Return the request's Content-Length."""
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isascii() and length.isdecimal() and len(length) < 16 else 10**16


def _limit(scope: Scope) -> int:
    """Return how many bytes a request may have."""
    path = _path(scope)
    if path == UPLOAD:
        return LARGEST_UPLOAD
    return LARGEST_STUDIO_BODY if path.startswith("/studio/") else LARGEST_BODY


def _too_long(scope: Scope) -> Response | None:
    most = _limit(scope)
    return PlainTextResponse(f"The request is larger than {most} bytes", 413) if _length(scope) > most else None


def _limited(most: int, receive: Receive) -> Receive:
    """Cut off a request at the limit even if it declares no length, or too little."""
    received = 0

    async def receiving() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"The request is larger than {most} bytes")
        return message

    return receiving


async def _read(scope: Scope, receive: Receive) -> tuple[Response | None, Receive]:
    """Return the error response to a request for a Gradio route, and the request's body again for that route."""
    try:
        body = await _body(receive)
    except HTTPException as error:
        return PlainTextResponse(error.detail, error.status_code), receive
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    answer = await run_in_threadpool(refusal, scope["app"].get_blocks(), _path(scope), body)
    return answer, again


async def _body(receive: Receive) -> bytes:
    parts = []
    more = True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)
    return b"".join(parts)


def _is_launch(scope: Scope, path: str) -> bool:
    """Return whether this is the one request that launch() sends to its own server to check that it is up."""
    to_itself = bool(scope.get("server")) and _address(scope) == scope["server"][0]
    return path == STARTUP and to_itself and not scope["app"].startup_events_triggered


class _WithHeaders:
    """Adds the common headers to a response; a page is buffered until complete, since its policy lists its scripts."""

    def __init__(self, send: Send, scripts: tuple[str, ...]) -> None:
        self._send = send
        self._scripts = scripts
        self._start: Message | None = None
        """Start message of a page that is not complete yet."""
        self._parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if headers.get("content-type", "").startswith("text/html"):
                self._start = message
                return
            headers.setdefault("Content-Security-Policy", NOTHING)
        elif message["type"] == "http.response.body" and self._start is not None:
            self._parts.append(message.get("body", b""))
            if message.get("more_body", False):
                return
            page = b"".join(self._parts)
            policy = await run_in_threadpool(page_policy, page, self._scripts)
            MutableHeaders(scope=self._start)["Content-Security-Policy"] = policy
            await self._send(self._start)
            message = {"type": "http.response.body", "body": page}
        await self._send(message)
