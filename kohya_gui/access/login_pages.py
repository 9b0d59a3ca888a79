"""Pages for users without a session, in the language of the browser: the login form, or where to find the token."""

from html import escape

from kohya_gui.languages.catalogues import translated
from kohya_gui.theme import asset

STYLE = asset("login.css")
SCRIPT = asset("login.js")


def _page(language: str, title: str, body: str, script: str = "") -> str:
    return f"""<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
{f"<script>{script}</script>" if script else ""}
</body>
</html>
"""


def login_page(language: str) -> str:
    """Return the form that asks for username and password."""
    title = _text(language, "Log in")
    wrong, silent = _text(language, "Wrong username or password"), _text(language, "The GUI is not responding")
    return _page(
        language,
        title,
        f"""<form method="post" action="login">
  <h1>{title}</h1>
  <label>{_text(language, "Username")} <input name="username" autocomplete="username" autofocus required></label>
  <label>{_text(language, "Password")}
    <input name="password" type="password" autocomplete="current-password" required></label>
  <button>{title}</button>
  <p role="alert" data-wrong="{wrong}" data-silent="{silent}"></p>
</form>""",
        SCRIPT,
    )


def token_page(language: str, wrong: bool = False) -> str:
    """Return the page that explains where to find the token, with a field to enter it."""
    title = _text(language, "Token required")
    printed = "Open the address that the GUI printed in its terminal at startup. It ends with ?token=..."
    saved = (
        "The token itself is in the file {1} in the GUI's state folder, readable only by the account that started the "
        "GUI (~/.local/state/sd-scripts-studio, on Windows %LOCALAPPDATA%\\sd-scripts-studio)."
    )
    error = _text(language, "Wrong token: the address or token may be outdated") if wrong else ""
    return _page(
        language,
        title,
        f"""<form method="get" class="wide">
  <h1>{title}</h1>
  <p>{_text(language, printed).replace("?token=...", "<b>?token=...</b>")}</p>
  <p>{_text(language, saved).replace("{1}", "<b>token</b>")}</p>
  <label>{_text(language, "Access token")}
    <input name="token" type="password" autocomplete="off" autofocus required></label>
  <button>{_text(language, "Open")}</button>
  <p role="alert">{error}</p>
</form>""",
    )


def too_many_guesses(language: str, kind: str, seconds: float) -> str:
    """Return why a user has to wait after wrong passwords or tokens."""
    of_tokens = "Too many wrong tokens. Try again in {1} s"
    of_passwords = "Too many wrong passwords. Try again in {1} s"
    return translated(language, of_tokens if kind == "token" else of_passwords, f"{seconds:.0f}")


def _text(language: str, english: str) -> str:
    return escape(translated(language, english))
