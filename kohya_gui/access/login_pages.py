"""Pages for users without a session: the login form, or where to find the token."""

from kohya_gui.theme import asset

STYLE = asset("login.css")


def _page(title: str, body: str, script: str = "") -> str:
    return f"""<!doctype html>
<html lang="en">
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


LOGIN_PAGE = _page(
    "Log in",
    """<form method="post" action="login">
  <h1>Log in</h1>
  <label>Username <input name="username" autocomplete="username" autofocus required></label>
  <label>Password <input name="password" type="password" autocomplete="current-password" required></label>
  <button>Log in</button>
  <p role="alert"></p>
</form>""",
    asset("login.js"),
)


def token_page(wrong: bool = False) -> str:
    """Return the page that explains where to find the token, with a field to enter it."""
    error = "Wrong token: the address or token may be outdated" if wrong else ""
    return _page(
        "Token required",
        f"""<form method="get" class="wide">
  <h1>Token required</h1>
  <p>Open the address that the GUI printed in its terminal at startup. It ends with ?token=...</p>
  <p>The token itself is in the file <b>token</b> in the GUI's state folder, readable only by the account that started
the GUI (~/.local/state/sd-scripts-studio, on Windows %LOCALAPPDATA%\\sd-scripts-studio).</p>
  <label>Token <input name="token" type="password" autocomplete="off" autofocus required></label>
  <button>Open</button>
  <p role="alert">{error}</p>
</form>""",
    )
