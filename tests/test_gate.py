"""The door before every route: who did not log in, or comes from elsewhere, gets nothing from any of them."""

import http.client
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import gui
from kohya_gui.gate import FREE_GUESSES, LOGIN_PAGE, LONGEST_WAIT, NOT_OURS, OWN_NAMES, REMEMBERED, Guesses

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
NOTHING = {401, 403, 404, 405, 413}
GIVEN = {"event_id": "1", "run": "1", "component_id": "1", "ext": "ts", "id": "1", "number": "0", "size": "64"}
"""What stands in the place of a route's parameters; other texts are `x`."""
PARAMETER = r"\{(\w+)(?::\w+)?\}"
SECRET = "the words of a file that nobody is given"
WORDS_OF_A_PAGE = (b"components", b"dependencies", b"pretrained", b"gradio_config", b"session", b"/home", b"/root")


class Server:
    """A page that is really served, asked with paths exactly as they are written."""

    def __init__(self, *words: str) -> None:
        self.app = gui.open_page(gui.parser().parse_args([*words, "--headless"]), wait=False)
        self.port: int = self.app.get_blocks().server_port
        self.cookie = ""

    def close(self) -> None:
        self.app.get_blocks().close()

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and the first bytes, which are all that a stream may ever send."""
        status, _, content = self.ask_fully(method, path, body, **headers)
        return status, content

    def ask_fully(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, Any, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        if self.cookie:
            sent["Cookie"] = self.cookie
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read1(1_000_000)
        finally:
            connection.close()

    def log_in(self, password: str) -> int:
        status, headers, _ = self.ask_fully("POST", "/login", urlencode({"username": "me", "password": password}))
        self.cookie = "; ".join(each.partition(";")[0] for each in headers.get_all("Set-Cookie", []))
        return status

    def routes(self) -> list[Any]:
        """Every route of the page, those of included routers too."""
        found, waiting = [], list(self.app.routes)
        while waiting:
            route = waiting.pop()
            inner = getattr(route, "original_router", route)
            waiting += getattr(inner, "routes", None) or []
            if hasattr(route, "path"):
                found.append(route)
        return found

    def paths(self) -> list[str]:
        """The path of every route, with something in the place of each parameter."""
        return [filled(route.path) for route in self.routes()]

    def paths_with(self, text: str) -> list[str]:
        """The path of every route that takes a parameter, with this text there."""
        return [re.sub(PARAMETER, lambda found: text, route.path) for route in self.routes() if "{" in route.path]


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


@pytest.fixture(scope="module")
def locked(state: Path) -> Iterator[Server]:
    server = Server("--username", "me", "--password", "open sesame")
    yield server
    server.close()


@pytest.fixture(scope="module")
def open_(state: Path) -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def logged_in(locked: Server) -> Iterator[Server]:
    assert locked.log_in("open sesame") == 200
    yield locked
    locked.cookie = ""


def test_who_did_not_log_in_gets_nothing_from_any_route(locked):
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
                assert (status, content) == (200, LOGIN_PAGE.encode() if method == "GET" else b"")
            else:
                assert status in NOTHING, f"{method} {path}: {status}"
                assert content == b"", f"{method} {path}: {content[:80]!r}"


def test_the_login_page_tells_nothing_of_the_page_behind_it():
    assert not [word for word in WORDS_OF_A_PAGE if word in LOGIN_PAGE.encode()]


def test_a_session_that_nobody_was_given_opens_nothing(locked):
    name = f"access-token-unsecure-{locked.app.cookie_id}"
    for value in ("", "x", "None", "null", "undefined"):
        assert locked.ask("GET", "/config", Cookie=f"{name}={value}")[0] == 401
    assert locked.ask("GET", "/config", Cookie="access-token=me; %%%; =")[0] == 401


def test_who_logged_in_gets_the_page_and_all_that_it_asks_for(logged_in):
    status, content = logged_in.ask("GET", "/")
    assert status == 200
    assert b"gradio_config" in content
    assert logged_in.ask("GET", "/theme.css")[0] == 200
    assert logged_in.ask("GET", "/gradio_api/info")[0] == 200
    assert logged_in.ask("GET", "/gradio_api/heartbeat/x") == (200, b"data: ALIVE\n\n")
    assert logged_in.ask("GET", "/gradio_api/queue/data?session_hash=x")[0] == 200
    assert logged_in.ask("POST", "/gradio_api/queue/join", "")[0] == 422
    assert logged_in.ask("GET", "/studio/board")[0] == 200


def test_after_the_log_out_the_session_is_worth_nothing(locked):
    locked.log_in("open sesame")
    assert locked.ask("GET", "/config")[0] == 200
    locked.ask("GET", "/logout")
    assert locked.ask("GET", "/config") == (401, b"")
    locked.cookie = ""


def test_routes_that_the_page_makes_no_use_of_are_not_there(logged_in):
    unused = [path for path in logged_in.paths() if path.startswith(NOT_OURS)]
    assert len(unused) > 20
    for path in unused:
        for method in ("GET", "POST"):
            assert logged_in.ask(method, path) == (404, b"")


def test_no_route_gives_a_file_from_elsewhere(logged_in, tmp_path, state):
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
    assert open_.ask("GET", "/config", Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200
    assert (
        open_.ask("GET", "/config", Host=f"localhost:{open_.port}", Origin=f"http://localhost:{open_.port}")[0] == 200
    )


@pytest.mark.parametrize("spared", [{}, {"no_proxy": "intern.example"}])
def test_the_proxy_of_the_environment_is_not_in_the_way(state, monkeypatch, spared):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    names = ("no_proxy", "NO_PROXY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in spared.items():
        monkeypatch.setenv(name, value)
    server = Server()
    try:
        assert server.ask("GET", "/config")[0] == 200
        assert {name: os.environ[name] for name in names if name in os.environ} == spared
    finally:
        server.close()


def test_behind_a_proxy_its_name_counts_and_nowhere_else(open_, state):
    told = {"Origin": "https://my.site", "X_Forwarded_Host": "my.site"}
    assert open_.ask("GET", "/config", **told)[0] == 403
    proxied = Server("--root_path", "https://other.site/studio")
    try:
        assert proxied.ask("GET", "/config", Host="127.0.0.1", **told)[0] == 200
        assert proxied.ask("GET", "/config", Host="127.0.0.1", Origin="https://other.site")[0] == 200
        assert proxied.ask("GET", "/config", Host="127.0.0.1", Origin="https://evil.example")[0] == 403
    finally:
        proxied.close()


def test_a_link_on_another_site_leads_to_the_page_and_no_deeper(open_):
    assert open_.ask("GET", "/", Sec_Fetch_Site="cross-site")[0] == 200
    assert open_.ask("GET", "/config", Sec_Fetch_Site="cross-site")[0] == 403
    assert open_.ask("GET", "/logout", Sec_Fetch_Site="same-site")[0] == 403


def test_what_changes_a_run_must_say_that_it_comes_from_the_page(open_):
    status, content = open_.ask("POST", "/studio/queue")
    assert status == 403
    assert b"X-Studio" in content
    assert open_.ask("POST", "/studio/nothing", X_Studio="1")[0] in (404, 405)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7860", "127.0.0.1.evil.example", "", "[::1].evil.com"])
def test_served_to_this_machine_alone_no_other_name_is_answered(open_, host):
    status, content = open_.ask("GET", "/", Host=host)
    assert status in (400, 403)
    assert b"gradio" not in content


def test_its_own_names_are_answered(open_):
    for host in OWN_NAMES:
        assert open_.ask("GET", "/", Host=f"{host}:{open_.port}")[0] == 200


def test_every_answer_says_that_it_must_not_be_framed_or_guessed_at(open_):
    for path in ("/", "/config", "/nothing"):
        _, headers, _ = open_.ask_fully("GET", path)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"] == "frame-ancestors 'self'"
        assert headers["Referrer-Policy"] == "same-origin"


def door(words: str) -> Any:
    return gui.door(gui.parser().parse_args(words.split()))


def test_how_the_page_is_served_decides_who_is_let_in():
    login = "--username me --password secret"
    assert set(door("").names) == set(OWN_NAMES)
    assert "[::1]" in door("--listen ::1").names
    assert "127.0.0.2" in door("--listen 127.0.0.2").names
    assert not door("").locked
    assert door(login).locked
    for words in (login, f"--listen 0.0.0.0 {login}", f"--share {login}", "--root_path https://x.org/studio"):
        assert door(words).names == ()
    assert door("--root_path https://x.org/studio").outside == "x.org"
    assert door("--root_path /studio").behind_proxy
    assert not door(f"--listen 0.0.0.0 {login}").behind_proxy


def test_wrong_passwords_make_the_next_guess_wait_longer():
    clock = [0.0]
    guesses = Guesses(now=lambda: clock[0])
    assert [guesses.wait("a") for _ in range(FREE_GUESSES + 1)] == [0.0] * (FREE_GUESSES + 1)
    assert guesses.wait("a") == 1.0
    assert guesses.wait("b") == 0.0
    waits = []
    for _ in range(10):
        clock[0] += (left := guesses.wait("a"))
        waits.append(left)
        assert guesses.wait("a") == 0.0
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_WAIT
    guesses.right("a")
    assert guesses.wait("a") == 0.0


def test_guesses_of_a_whole_network_do_not_fill_the_memory():
    guesses = Guesses()
    for number in range(REMEMBERED + 10):
        guesses.wait(str(number))
    assert len(guesses._failed) == REMEMBERED


def test_a_guesser_is_told_to_wait_and_the_right_password_then_works(locked):
    assert [locked.log_in("wrong") for _ in range(FREE_GUESSES)] == [400] * FREE_GUESSES
    while (status := locked.log_in("wrong")) == 400:
        pass
    assert status == 429
    assert locked.log_in("open sesame") == 429  # the right one waits too: else the answer would tell it


def test_a_login_that_is_longer_than_a_password_is_not_read(open_):
    assert open_.ask("POST", "/login", "x" * 5000)[0] == 413
