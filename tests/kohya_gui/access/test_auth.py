"""The door before every route: who did not log in, or comes from elsewhere, gets nothing from any of them."""

import copy
import http.client
import json
import math
import os
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import uvicorn

from kohya_gui import command
from kohya_gui.access.auth import LARGEST_BODY, LARGEST_STUDIO_BODY, NOT_OURS, OWN_NAMES, AuthMiddleware
from kohya_gui.access.content_policy import page_policy
from kohya_gui.access.login_pages import login_page, token_page
from kohya_gui.access.login_throttle import (
    FORGET_AFTER,
    FREE_GUESSES,
    FREE_GUESSES_OF_ALL,
    LINES_A_MINUTE,
    LONGEST_WAIT,
    LONGEST_WAIT_OF_ALL,
    MAX_NETWORKS,
    LoginLog,
    LoginThrottle,
    network_of,
)
from kohya_gui.access.sessions import CHECKED_AGAIN, LIFETIME, Credential, Sessions
from kohya_gui.theme import scripts
from sd_scripts.runs.store import state_folder

pytestmark = pytest.mark.run

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
NOTHING = {401, 403, 404, 405, 413}
GIVEN = {"event_id": "1", "run": "1", "component_id": "1", "ext": "ts", "id": "1", "number": "0", "size": "64"}
"""Values of a route's parameters; other texts are `x`."""
NOT_PROXIED = ("no_proxy", "NO_PROXY")
PARAMETER = r"\{(\w+)(?::\w+)?\}"
TEXT = r"\{\w+(?::path)?\}"
SECRET = "the words of a file that nobody is given"
WORDS_OF_A_PAGE = (b"components", b"dependencies", b"pretrained", b"gradio_config", b"session", b"/home", b"/root")


class Server:
    """A page that is really served, asked with paths exactly as they are written."""

    def __init__(self, *words: str) -> None:
        self.app = command.open_page(command.parser().parse_args([*words, "--headless"]), wait=False)
        self.port: int = self.app.get_blocks().server_port
        self.cookie = ""

    def close(self) -> None:
        self.app.get_blocks().close()

    def ask(self, method: str, path: str, body: str | bytes | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and the first bytes, which are all that a stream may ever send."""
        status, _, content = self.ask_fully(method, path, body, **headers)
        return status, content

    def ask_fully(
        self, method: str, path: str, body: str | bytes | None = None, **headers: str
    ) -> tuple[int, Any, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent.setdefault("Content-Type", "application/x-www-form-urlencoded")
        if self.cookie:
            sent["Cookie"] = self.cookie
        if body is not None or "Content-Length" in sent:  # the server may leave a part of it unread
            connection = self._connection()
            try:
                return self._ask(connection, method, path, body, sent)
            finally:
                connection.close()
        try:
            return self._ask(self._kept, method, path, None, sent)
        except (http.client.RemoteDisconnected, ConnectionError):  # it was not used for seconds
            self._kept.close()
            return self._ask(self._kept, method, path, None, sent)

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    @cached_property
    def _kept(self) -> http.client.HTTPConnection:
        return self._connection()

    @staticmethod
    def _ask(
        connection: http.client.HTTPConnection, method: str, path: str, body: str | bytes | None, sent: dict[str, str]
    ) -> tuple[int, Any, bytes]:
        connection.request(method, path, body, sent)
        with connection.getresponse() as answer:
            content = answer.read1(1_000_000)
            is_whole = answer.isclosed() or answer.length == 0
        if not is_whole:
            connection.close()
        return answer.status, answer.headers, content

    def log_in(self, password: str) -> int:
        status, headers, _ = self.ask_fully("POST", "/login", urlencode({"username": "me", "password": password}))
        self.take_cookie(headers)
        return status

    def take_cookie(self, headers: Any) -> None:
        self.cookie = "; ".join(each.partition(";")[0] for each in headers.get_all("Set-Cookie", []))

    @property
    def token(self) -> str:
        """The query of the address that the GUI printed."""
        return (state_folder() / "token").read_text().strip()

    def routes(self) -> list[Any]:
        """Every route of the page, including included routers'."""
        found, waiting = [], list(self.app.routes)
        while waiting:
            route = waiting.pop()
            inner = getattr(route, "original_router", route)
            waiting += getattr(inner, "routes", None) or []
            if hasattr(route, "path"):
                found.append(route)
        return found

    def paths(self) -> list[str]:
        """The path of every route, with a value for each parameter."""
        return [filled(route.path) for route in self.routes()]

    def paths_with(self, text: str) -> set[str]:
        """The path of every route that answers a GET and takes a text as parameter, with this text there."""
        taking = [
            route.path
            for route in self.routes()
            if re.search(TEXT, route.path) and "GET" in (getattr(route, "methods", None) or ("GET",))
        ]
        return {re.sub(PARAMETER, lambda found: text, path) for path in taking}


class Door(Server):
    """The pages of another server, which take seconds to build, behind the door that these flags make."""

    def __init__(self, pages: Server, *words: str, port: int = 0) -> None:
        flags = command.parser().parse_args(words)
        policy = replace(command.access(flags, command.credential(flags)), scripts=tuple(scripts()))
        self.app = copy.copy(pages.app)
        self.app.user_middleware = [
            policy.middleware() if each.cls is AuthMiddleware else each for each in pages.app.user_middleware
        ]
        self.app.middleware_stack = None  # made at the first request
        self._listener = socket.create_server(("127.0.0.1", port))
        # else a body waits until its head is acknowledged, 40 ms
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._listener.getsockname()[1]
        self.cookie = ""
        config = uvicorn.Config(self.app, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))
        self._thread.start()

    def close(self) -> None:
        self._kept.close()
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


def filled(path: str) -> str:
    return re.sub(PARAMETER, lambda found: GIVEN.get(found[1], "x"), path)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("state")
        patch.setenv("XDG_STATE_HOME", str(state))
        patch.setenv("LOCALAPPDATA", str(state))
        patch.setenv("GRADIO_TEMP_DIR", str(state / "gradio"))
        yield state


@pytest.fixture
def locked(open_: Server) -> Iterator[Server]:
    """It has heard no wrong guess yet."""
    server = Door(open_, "--username", "me", "--password", "open sesame")
    yield server
    server.close()


@pytest.fixture(scope="module")
def open_(state: Path) -> Iterator[Server]:
    """Served to whoever is at this machine, although a proxy of the environment leads nowhere."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            patch.setenv(name, "http://127.0.0.1:9")
        for name in NOT_PROXIED:
            patch.delenv(name, raising=False)
        server = Server("--no-token")
    yield server
    server.close()


@pytest.fixture(scope="module")
def tokened(open_: Server) -> Iterator[Server]:
    """Served as by `python gui.py`."""
    server = Door(open_)
    yield server
    server.close()


@pytest.fixture
def logged_in(locked: Server) -> Iterator[Server]:
    assert locked.log_in("open sesame") == 200
    yield locked
    locked.cookie = ""


def test_every_route_requires_login(locked):
    paths = locked.paths()
    assert len(paths) > 60
    assert {"/gradio_api/file=x", "/config", "/gradio_api/queue/data"} <= set(paths)
    for path in (*paths, "/anything/new", "/studio/anything", "/gradio_api", "//", "/login/x", "/docs"):
        for method in METHODS:
            status, content = locked.ask(method, path)
            if path.rstrip("/") == "/login" and method == "POST":
                assert status in (422, 429), path
                assert b"password" in content or status == 429
            elif path == "/" and method in ("GET", "HEAD"):
                assert (status, content) == (200, login_page("en").encode() if method == "GET" else b"")
            else:
                assert status in NOTHING, f"{method} {path}: {status}"
                assert content == b"", f"{method} {path}: {content[:80]!r}"


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"Accept_Language": "zh-CN,zh;q=0.9,en;q=0.8"}, "登录"),
        ({"Accept_Language": "de,en;q=0.8,zh;q=0.5"}, "Log in"),
        ({"Accept_Language": "de"}, "Log in"),
        ({"Accept_Language": "en", "Cookie": "sd-scripts-language=zh-CN"}, "登录"),
        ({"Accept_Language": "zh", "Cookie": "sd-scripts-language=en"}, "Log in"),
        ({"Accept_Language": "en", "Cookie": "sd-scripts-language=../../etc"}, "Log in"),
    ],
)
def test_the_login_page_is_in_the_language_of_the_switch_or_the_browser(locked, headers, word):
    assert f"<h1>{word}</h1>" in locked.ask("GET", "/", **headers)[1].decode()


def test_the_login_page_reveals_nothing_of_the_page():
    assert not [word for word in WORDS_OF_A_PAGE if word in login_page("en").encode()]


def test_an_unknown_session_opens_nothing(locked):
    assert locked.log_in("open sesame") == 200
    name, locked.cookie = locked.cookie.partition("=")[0], ""
    for value in ("", "x", "None", "null", "undefined", "..", "../token", "a" * 2000):
        assert locked.ask("GET", "/config", Cookie=f"{name}={value}")[0] == 401
    assert locked.ask("GET", "/config", Cookie="access-token=me; %%%; =")[0] == 401


def test_login_opens_the_page_and_all_its_requests(logged_in):
    status, content = logged_in.ask("GET", "/")
    assert status == 200
    assert b"gradio_config" in content
    assert logged_in.ask("GET", "/theme.css")[0] == 200
    assert logged_in.ask("GET", "/gradio_api/info")[0] == 200
    assert logged_in.ask("GET", "/gradio_api/heartbeat/x") == (200, b"data: ALIVE\n\n")
    assert logged_in.ask("GET", "/gradio_api/queue/data?session_hash=x")[0] == 200
    assert logged_in.ask("POST", "/gradio_api/queue/join", "")[0] == 422
    assert logged_in.ask("GET", "/studio/board")[0] == 200


def test_after_log_out_the_session_is_invalid(locked):
    locked.log_in("open sesame")
    assert locked.ask("GET", "/config")[0] == 200
    locked.ask("GET", "/logout")
    assert locked.ask("GET", "/config") == (401, b"")
    locked.cookie = ""


def test_unused_gradio_routes_are_removed(logged_in):
    unused = [path for path in logged_in.paths() if path.startswith(NOT_OURS)]
    assert len(unused) > 20
    for path in unused:
        for method in ("GET", "POST"):
            assert logged_in.ask(method, path) == (404, b"")


def test_no_route_serves_a_file_from_elsewhere(logged_in, tmp_path, state):
    secret = tmp_path / "secret.json"
    secret.write_text(f'["{SECRET}"]')
    cache = state / "gradio"
    cache.mkdir(exist_ok=True)
    (cache / "link.json").symlink_to(secret)
    (cache / "folder").symlink_to(tmp_path)
    up, whole = "../" * 30, str(secret)
    tricks = [
        whole, f"/{whole}", f"file://{whole}", f"{up}{whole[1:]}", f"./{up}{whole[1:]}", f"x/{up}{whole[1:]}",
        f"{up}{whole[1:]}".replace("/", "\\"), f"....//{whole}", f"{whole}\0.png", f"{whole}%00.png", f"{whole}/.",
        f"{cache}/../{tmp_path.name}/secret.json", f"{cache}/link.json", f"{cache}/folder/secret.json",
        f"{cache}/x/../link.json", f"~/../..{whole}", f"http://127.0.0.1:{logged_in.port}/gradio_api/file={whole}",
    ]  # fmt: skip
    for trick in tricks:
        once = quote(trick, safe="")
        for written in {quote(trick), once, quote(once, safe=""), trick.replace("/", "%2f").replace("..", "%2e%2e")}:
            if re.search(r"[\0-\x20]", written):  # no request can hold these
                continue
            for path in logged_in.paths_with(written):
                status, content = logged_in.ask("GET", path)
                assert SECRET.encode() not in content, path
                assert status != 500 or b"Traceback" not in content


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1.evil.com"])
def test_a_request_from_another_site_is_refused(open_, origin):
    for method, path in (("POST", "/gradio_api/queue/join"), ("GET", "/config"), ("POST", "/studio/queue")):
        status, content = open_.ask(method, path, Origin=origin, X_Studio="1")
        assert status == 403
        assert b"another site" in content


def test_a_request_of_the_page_itself_is_answered(open_):
    origin = f"http://127.0.0.1:{open_.port}"
    assert open_.ask("GET", "/theme.css", Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200
    by_name = {"Host": f"localhost:{open_.port}", "Origin": f"http://localhost:{open_.port}"}
    assert open_.ask("GET", "/theme.css", **by_name)[0] == 200


def test_the_proxy_of_the_environment_is_not_in_the_way(open_):
    assert open_.ask("GET", "/config")[0] == 200


@pytest.mark.parametrize("spared", [{}, {"no_proxy": "intern.example"}])
def test_proxy_exceptions_apply_only_while_the_page_starts(monkeypatch, spared):
    for name in NOT_PROXIED:
        monkeypatch.delenv(name, raising=False)
    for name, value in spared.items():
        monkeypatch.setenv(name, value)
    with command.bypass_proxies("192.168.0.7"):
        wanted = {*spared.values(), "localhost", "127.0.0.1", "::1", "192.168.0.7"}
        assert [set(os.environ[name].split(",")) for name in NOT_PROXIED] == [wanted] * 2
    assert {name: os.environ[name] for name in NOT_PROXIED if name in os.environ} == spared


def test_a_forwarded_host_name_counts_only_behind_a_proxy(open_, state):
    told = {"Origin": "https://my.site", "X_Forwarded_Host": "my.site"}
    assert open_.ask("GET", "/config", **told)[0] == 403
    proxied = Door(open_, "--root_path", "https://other.site/studio", "--no-token")
    try:
        assert proxied.ask("GET", "/config", Host="127.0.0.1", **told)[0] == 200
        assert proxied.ask("GET", "/config", Host="127.0.0.1", Origin="https://other.site")[0] == 200
        assert proxied.ask("GET", "/config", Host="127.0.0.1", Origin="https://evil.example")[0] == 403
        assert proxied.ask("GET", "/config", Host="other.site", Origin="https://other.site")[0] == 200
        pointed_here = {"Host": "evil.example:7860", "Origin": "http://evil.example:7860"}
        assert proxied.ask("POST", "/studio/queue", X_Studio="1", **pointed_here)[0] == 403
    finally:
        proxied.close()


def test_a_link_on_another_site_opens_only_the_page(open_):
    assert open_.ask("GET", "/", Sec_Fetch_Site="cross-site")[0] == 200
    assert open_.ask("GET", "/config", Sec_Fetch_Site="cross-site")[0] == 403
    assert open_.ask("GET", "/logout", Sec_Fetch_Site="same-site")[0] == 403


def test_requests_that_change_a_run_must_come_from_the_page(open_):
    status, content = open_.ask("POST", "/studio/queue")
    assert status == 403
    assert b"X-Studio" in content
    assert open_.ask("POST", "/studio/nothing", X_Studio="1")[0] in (404, 405)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "[::1].evil.com"])
def test_a_local_page_answers_no_other_host_name(open_, host):
    status, content = open_.ask("GET", "/", Host=host)
    assert status in (400, 403)
    assert b"gradio" not in content


def test_requests_to_its_own_host_names_are_answered(open_):
    for host in OWN_NAMES:
        assert open_.ask("GET", "/theme.css", Host=f"{host}:{open_.port}")[0] == 200


def test_every_response_forbids_framing_and_sniffing(open_):
    for path in ("/", "/config", "/nothing"):
        _, headers, _ = open_.ask_fully("GET", path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "same-origin"


def test_the_page_runs_only_the_scripts_it_was_sent_with(open_):
    _, headers, _ = open_.ask_fully("GET", "/")
    policy = headers["Content-Security-Policy"]
    assert "script-src-attr 'none'" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src ")[2].partition(";")[0]
    assert policy.count("'sha256-") > 5
    assert "'sha256-" not in open_.ask_fully("GET", "/config")[1]["Content-Security-Policy"]


def test_a_script_is_allowed_by_the_hash_of_its_text():
    page = b"<script>alert(1)</script><script src='https://cdn.example/a.js'></script><script type=module src='./b.js'>"
    policy = page_policy(page, ["more()"])
    # the hashes: echo -n 'alert(1)' | openssl dgst -sha256 -binary | base64
    assert "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='" in policy
    assert policy.count("sha256-") == 2
    assert policy.count("https://cdn.example") > 1
    assert "b.js" not in policy


def access(words: str) -> Any:
    flags = command.parser().parse_args(words.split())
    return command.access(flags, command.credential(flags))


def test_flags_decide_who_may_open_the_page(state):
    login = "--username me --password secret"
    assert set(access("").names) == set(OWN_NAMES)
    assert "[::1]" in access("--listen ::1").names
    assert "127.0.0.2" in access("--listen 127.0.0.2").names
    assert access("").sessions.credential.kind == "token"
    assert access("--root_path /studio").sessions.credential.kind == "token"
    assert access(login).sessions.credential == Credential("password", "secret", "me")
    for words in ("--no-token", "--listen 0.0.0.0 --insecure"):
        assert access(words).sessions is None
    for words in (login, f"--listen 0.0.0.0 {login}", f"--share {login}", "--root_path /studio"):
        assert access(words).answers_to("any.example")  # what keeps strangers out is the cookie
    for words in ("", "--no-token", "--root_path /studio --no-token", "--root_path https://x.org/studio"):
        assert not access(words).answers_to("evil.example")
        assert not access(words).answers_to("192.168.0.7")
    assert access("--root_path https://x.org:8443/studio").answers_to("x.org:8443")
    assert access("--root_path https://x.org/studio").outside == "x.org"
    assert access("--root_path https://x.org/studio").prefix == "/studio"
    assert access("--root_path /studio").behind_proxy
    assert not access(f"--listen 0.0.0.0 {login}").behind_proxy


def test_wrong_passwords_make_the_next_guess_wait_longer():
    clock = [0.0]
    guesses = LoginThrottle(now=lambda: clock[0])
    assert [guesses.wait("a") for _ in range(FREE_GUESSES + 1)] == [0.0] * (FREE_GUESSES + 1)
    assert guesses.wait("a") == 1.0
    assert guesses.wait("b") == 0.0  # a different one does not wait
    waits = []
    for _ in range(10):
        clock[0] += (left := guesses.wait("a"))
        waits.append(left)
        assert guesses.wait("a") == 0.0
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_WAIT
    guesses.succeeded("a")
    assert guesses.wait("a") == 0.0


def test_guesses_of_a_whole_network_do_not_fill_the_memory():
    clock = count(0.0, LONGEST_WAIT_OF_ALL)
    guesses = LoginThrottle(now=lambda: next(clock))
    for number in range(MAX_NETWORKS + 10):
        guesses.wait(str(number))
    assert len(guesses._failed) == MAX_NETWORKS


def test_wrong_guesses_have_to_wait_and_the_right_password_works_afterwards(locked):
    assert [locked.log_in("wrong") for _ in range(FREE_GUESSES)] == [400] * FREE_GUESSES
    while (status := locked.log_in("wrong")) == 400:
        pass
    assert status == 429
    assert locked.log_in("open sesame") == 429  # the right one waits too: else the answer would reveal it


def test_a_login_that_is_longer_than_a_password_is_not_read(tokened):
    assert tokened.ask("POST", "/login", "x" * 5000)[0] == 413


# The token


def test_without_the_token_a_page_explains_where_to_find_it(tokened):
    for path in tokened.paths():
        for method in ("GET", "POST"):
            status, content = tokened.ask(method, path, X_Studio="1")
            if (path, method) == ("/", "GET"):
                assert (status, content) == (401, token_page("en").encode())
            elif path.rstrip("/") != "/login" or method == "GET":
                assert (status in NOTHING, content) == (True, b""), path
    assert b"printed in its terminal" in token_page("en").encode()
    assert not [word for word in WORDS_OF_A_PAGE if word in token_page("en").encode()]


def test_the_address_with_the_token_opens_the_page_and_leaves_a_clean_address(tokened):
    status, headers, _ = tokened.ask_fully("GET", f"/?token={tokened.token}&__theme=dark")
    assert (status, headers["Location"]) == (303, "/?__theme=dark")
    assert {"HttpOnly", "SameSite=lax", f"Max-Age={LIFETIME}"} <= set(headers["Set-Cookie"].split("; "))
    assert tokened.token not in headers["Set-Cookie"]
    tokened.take_cookie(headers)
    for path in ("/", "/config", "/studio/board", "/gradio_api/info"):
        assert tokened.ask("GET", path)[0] == 200
    assert tokened.ask("POST", "/gradio_api/queue/join", "")[0] == 422
    assert tokened.ask_fully("GET", "/?token=old")[1]["Location"] == "/"
    assert tokened.ask("GET", "/logout")[0] == 303
    assert tokened.ask("GET", "/config") == (401, b"")
    tokened.cookie = ""


def test_the_health_check_of_the_container_needs_no_login(tokened, locked):
    dockerfile = Path(__file__).parents[3].joinpath("Dockerfile").read_text(encoding="utf-8")
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (.+)$", dockerfile, re.M)
    _, *flags = json.loads(check)

    def checked(port: int) -> bool:
        here = [flag.replace("7860", str(port)) for flag in flags]
        return subprocess.run([sys.executable, "-I", *here], stderr=subprocess.DEVNULL, check=False).returncode == 0

    assert checked(tokened.port)
    assert checked(locked.port)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
    assert not checked(port)


def test_a_wrong_token_is_reported_counted_and_logged(open_):
    server = Door(open_, "--token", "right-token")
    try:
        for _ in range(FREE_GUESSES):
            status, content = server.ask("GET", "/?token=wrong")
            assert (status, b"Wrong token" in content) == (401, True)
        while (status := server.ask("GET", "/?token=wrong")[0]) == 401:
            pass
        assert status == 429
        assert server.ask("GET", "/?token=right-token")[0] == 429
        logged = (state_folder() / "logins.log").read_text()
        assert "failed login: wrong token from 127.0.0.1" in logged
        assert "right-token" not in logged
    finally:
        server.close()


def test_a_script_sends_the_token_with_its_request(tokened):
    assert tokened.ask("GET", "/studio/board", Authorization=f"Bearer {tokened.token}")[0] == 200
    for wrong in ("Bearer x", f"Basic {tokened.token}", tokened.token, "Bearer "):
        assert tokened.ask("GET", "/studio/board", Authorization=wrong) == (401, b"")


def test_token_and_sessions_survive_a_restart(open_):
    first = Door(open_)
    _, headers, _ = first.ask_fully("GET", f"/?token={first.token}")
    token, port = first.token, first.port
    first.close()
    second = Door(open_, port=port)
    try:
        second.take_cookie(headers)
        assert second.ask("GET", "/config")[0] == 200
        assert second.token == token
    finally:
        second.close()


def test_private_files_are_closed_to_other_accounts(state, tokened):
    tokened.ask("GET", f"/?token={tokened.token}")
    folder = state_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file.is_file()} == {0o600}
    assert {stat.S_IMODE(file.stat().st_mode) for file in (folder / "sessions").iterdir()} == {0o600}


def test_gradio_keeps_its_files_out_of_reach_of_other_accounts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    command.prepare_state_folder()
    folder = Path(os.environ["GRADIO_TEMP_DIR"])
    assert folder == state_folder() / "gradio"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setenv("GRADIO_TEMP_DIR", "/mine")
    command.prepare_state_folder()
    assert os.environ["GRADIO_TEMP_DIR"] == "/mine"


def test_an_unusable_state_folder_is_reported_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert command.main(["--headless", "--no-token"]) == 2
    told = capsys.readouterr().err
    assert str(tmp_path / "file") in told
    assert "--listen" not in told


def test_the_browser_gets_the_address_from_a_private_file(state, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(Path, "is_dir", lambda path: str(path) != "/snap/bin")
    command.prepare_state_folder()
    command.open_browser("http://127.0.0.1:7860/?token=secret")
    assert "secret" not in opened[0]  # the process list shows it
    leading = state_folder() / "open.html"
    assert opened == [leading.as_uri()]
    assert "url=http://127.0.0.1:7860/?token=secret" in leading.read_text()
    assert stat.S_IMODE(leading.stat().st_mode) == 0o600


def test_a_session_ends_by_timeout_log_out_or_a_changed_password(tmp_path):
    clock = [1e9]
    mine = Sessions(tmp_path, Credential("password", "old", "me"), now=lambda: clock[0])
    id, other = mine.begin(), mine.begin()
    for file in tmp_path.iterdir():
        os.utime(file, (1e9, 1e9))
    assert mine.is_open(id)
    mine.end(id)
    assert [mine.is_open(each) for each in (id, other)] == [False, True]
    assert not Sessions(tmp_path, Credential("password", "new", "me"), now=lambda: clock[0]).is_open(other)
    assert not Sessions(tmp_path, Credential("token", "old"), now=lambda: clock[0]).is_open(other)
    clock[0] += LIFETIME + CHECKED_AGAIN
    assert not mine.is_open(other)
    mine.begin()
    assert len(list(tmp_path.iterdir())) == 1  # the old one is deleted


# Wrong guesses


def test_guesses_from_many_addresses_do_not_delay_known_networks():
    clock = [0.0]
    guesses = LoginThrottle(now=lambda: clock[0])
    guesses.wait("home")
    guesses.succeeded("home")
    tried = sum(guesses.wait(f"10.0.{n // 250}.{n % 250}") == 0.0 for n in range(2000))
    assert tried == FREE_GUESSES_OF_ALL + 1
    assert guesses.wait("home") == 0.0
    clock[0] += 600.0
    for _ in range(600):  # ten minutes of guessing with ever new addresses
        clock[0] += 1.0
        tried += guesses.wait(f"new {clock[0]}") == 0.0
    assert tried <= FREE_GUESSES_OF_ALL + 10 + 600 / LONGEST_WAIT_OF_ALL
    clock[0] += FORGET_AFTER + LONGEST_WAIT_OF_ALL + 1
    assert [guesses.wait("a") for _ in range(FREE_GUESSES)] == [0.0] * FREE_GUESSES


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("2001:db8:1:2:3::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_guesses_are_counted_by_network(address, network):
    assert network_of(address) == network


def test_failed_logins_are_logged_and_a_flood_of_them_in_some_lines_a_minute(tmp_path):
    clock = [0.0]
    log = LoginLog(tmp_path / "logins.log", now=lambda: clock[0])
    for _ in range(LINES_A_MINUTE + 30):
        log.failed("10.0.0.1", "password")
    clock[0] += 61.0
    log.failed("10.0.0.2", "token")
    lines = (tmp_path / "logins.log").read_text().splitlines()
    assert len(lines) == LINES_A_MINUTE + 1
    assert lines[0].endswith("failed login: wrong password from 10.0.0.1")
    assert lines[-1].endswith("failed login: wrong token from 10.0.0.2 (30 more before it)")


# Bodies


@pytest.mark.parametrize(
    ("path", "most"), [("/studio/queue", LARGEST_STUDIO_BODY), ("/gradio_api/queue/join", LARGEST_BODY)]
)
def test_a_body_that_is_too_large_is_not_read(open_, path, most):
    assert open_.ask("POST", path, Content_Length=str(most + 1), X_Studio="1")[0] == 413
    assert open_.ask("POST", path, Content_Length="9" * 30, X_Studio="1")[0] in (400, 413)


def test_a_body_without_a_length_is_cut_off_at_the_limit(open_):
    connection = http.client.HTTPConnection("127.0.0.1", open_.port, timeout=120)
    connection.putrequest("POST", "/studio/queue")
    for name, value in (("X-Studio", "1"), ("Transfer-Encoding", "chunked")):
        connection.putheader(name, value)
    connection.endheaders()
    part = b"x" * 100_000
    with suppress(OSError):  # it answers before all is sent
        for _ in range(LARGEST_STUDIO_BODY // len(part) + 2):
            connection.send(b"%x\r\n%b\r\n" % (len(part), part))
        connection.send(b"0\r\n\r\n")
    assert connection.getresponse().status == 413
    connection.close()


def call(**values: Any) -> bytes:
    """Of a function of the page, by one of its tabs."""
    return json.dumps({"data": [], "fn_index": 0, "session_hash": "x"} | values).encode()


BROKEN = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "deep and closed": b'{"data":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "deep enough to be read": call(data=[]).replace(b"[]", b"[" * 900 + b"]" * 900),
    "list": b"[]",
    "null": b"null",
    "number": b"1",
    "text": b'"x"',
    "NaN": call(data=[math.nan], event_id=math.nan),
    "half a character": call(data=["\ud800"], session_hash="\ud800", event_id="\ud800"),
    "long number": call().replace(b"0", b"9" * 5000),
    "wrong types": json.dumps({"data": {}, "fn_index": "x", "session_hash": 1, "event_id": []}).encode(),
}
BROKEN_CALLS = {
    "no function": call(fn_index=None),
    "no such function": call(fn_index=99_999),
    "function below none": call(fn_index=-1),
    "function beyond 64 bits": call(fn_index=10**25),
    "function that is not a number": call(fn_index=True),
    "too few values": call(),
    "no session": call(session_hash=None),
    "empty session": call(session_hash=""),
    "batch": call(data=[[1]] * 400, batched=True),
    "nothing chosen": call(data=[None] * 400),
    "numbers": call(data=[-1] * 400),
    "tables": call(data=[{"a": 1}] * 400),
    "lists": call(data=[[1]] * 400),
}


def test_a_broken_body_is_answered_as_a_client_error(open_):
    """On every route of Gradio's that takes one, and of every function that the page may call."""
    routes = {filled(route.path) for route in open_.routes() if "POST" in (getattr(route, "methods", None) or ())}
    taken = sorted(path for path in routes if path.startswith("/gradio_api/") and not path.startswith(NOT_OURS))
    calls = [path for path in taken if path.startswith(("/gradio_api/queue/join", "/gradio_api/run/"))]
    assert {"/gradio_api/queue/join", "/gradio_api/run/x", "/gradio_api/cancel", "/gradio_api/reset"} <= set(taken)
    wrong = []
    for paths, bodies in ((taken, BROKEN), (calls, BROKEN_CALLS)):
        for path in paths:
            for name, body in bodies.items():
                status, content = open_.ask("POST", path, body, Content_Type="application/json")
                if not 400 <= status < 500 or not content:
                    wrong.append((path, name, status, content[:80]))
    assert wrong == []


def test_the_pages_own_requests_are_answered(open_):
    config = open_.app.get_blocks().get_config_file()
    values = {each["id"]: each["props"].get("value") for each in config["components"]}
    asked = [each for each in config["dependencies"] if each["queue"] is False and each["backend_fn"]][:20]
    for each in asked:
        body = call(fn_index=each["id"], data=[values[number] for number in each["inputs"]])
        assert open_.ask("POST", "/gradio_api/run/predict", body, Content_Type="application/json")[0] == 200, each


# Where the password comes from


def flags_of(words: str) -> Any:
    return command.parser().parse_args(words.split())


def test_the_password_can_come_from_environment_file_or_prompt_and_from_the_command_line_with_a_warning(
    tmp_path, monkeypatch, capsys
):
    file = tmp_path / "password"
    file.write_text("of the file\nsecond line")
    file.chmod(0o600)
    assert command.credential(flags_of(f"--username me --password_file {file}")).secret == "of the file"
    monkeypatch.setenv("STUDIO_PASSWORD", "of the environment")
    flags = flags_of("--listen 0.0.0.0 --username me")
    assert command.refusal(flags) is None
    assert command.credential(flags).secret == "of the environment"
    assert "STUDIO_PASSWORD" not in os.environ  # a training would inherit it
    monkeypatch.setattr("getpass.getpass", lambda question: "typed")
    assert command.credential(flags_of("--username me --password")).secret == "typed"
    assert capsys.readouterr().err == ""
    assert command.credential(flags_of("--username me --password word")).secret == "word"
    assert "process list" in capsys.readouterr().err
    file.chmod(0o644)
    command.credential(flags_of(f"--username me --password_file {file}"))
    assert "other accounts can read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "environment", "why"),
    [
        ("", {"STUDIO_PASSWORD": "x"}, "STUDIO_PASSWORD requires --username"),
        ("--username me --password a --password_file b", {}, "use only one"),
        ("--username me --password a --token abcdefgh", {}, "cannot be combined with a password"),
        ("--token abcdefgh --no-token", {}, "use only one"),
        ("--token short", {}, "--token: must have at least 8 characters"),
        ("", {"STUDIO_TOKEN": "with a space"}, "STUDIO_TOKEN: must have at least 8 characters"),
    ],
)
def test_conflicting_ways_to_log_in_are_reported(monkeypatch, words, environment, why):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert why in (command.refusal(flags_of(words)) or "")


@pytest.mark.parametrize("made", ["missing", "empty", "binary"])
def test_a_password_file_without_a_password_is_reported(tmp_path, capsys, made):
    file = tmp_path / "password"
    if made != "missing":
        file.write_bytes(b"\xff\xfe" if made == "binary" else b"\n")
    assert command.main(["--username", "me", "--password_file", str(file), "--headless"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("--password")


def test_a_chosen_token_is_used_and_not_inherited(state, monkeypatch):
    monkeypatch.setenv("STUDIO_TOKEN", "of-the-environment")
    assert command.credential(flags_of("--listen 0.0.0.0")).secret == "of-the-environment"
    assert "STUDIO_TOKEN" not in os.environ
    assert command.credential(flags_of("--token of-the-flag")).secret == "of-the-flag"


def test_the_generated_token_serves_to_others_if_it_is_asked_for(state, capsys, monkeypatch):
    assert command.refusal(flags_of("--listen 0.0.0.0"))
    assert command.refusal(flags_of("--listen 0.0.0.0 --token")) is None
    assert command.credential(flags_of("--listen 0.0.0.0 --token")) == command.credential(flags_of(""))
    assert capsys.readouterr().err == ""  # it is not in the process list
    monkeypatch.setenv("STUDIO_TOKEN", "of-the-environment")
    assert command.credential(flags_of("--listen 0.0.0.0 --token")).secret == "of-the-environment"


@pytest.mark.parametrize("host", ["192.168.0.7:7860", "[fd00::1]:7860", "studio:7860", "localhost"])
def test_served_to_a_network_without_a_password_addresses_and_plain_names_are_answered(host):
    served = access("--listen 0.0.0.0 --insecure")
    assert served.answers_to(host)
    assert served.answers_to(f"{command.socket.gethostname().lower()}:7860")
    for stranger in ("evil.example:7860", "", "1.2.3.4.evil.example", "evil.example."):
        assert not served.answers_to(stranger)
