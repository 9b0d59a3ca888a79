"""Pages for users without a session: the login form, or where to find the token."""

STYLE = """
  body { margin: 0; min-height: 100vh; display: grid; place-items: center;
         font: 14px/1.5 Inter, ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif;
         background: light-dark(#f1f5f9, #020617); color: light-dark(#334155, #e2e8f0); }
  form { width: 280px; padding: 24px; border-radius: 8px; display: grid; gap: 12px;
         background: light-dark(#fff, #0f172a); border: 1px solid light-dark(#e2e8f0, #1e293b); }
  form.wide { width: min(480px, 80vw); }
  h1 { margin: 0 0 4px; font-size: 18px; }
  label { display: grid; gap: 4px; font-weight: 600; }
  input { font: inherit; font-weight: 400; padding: 6px 10px; border-radius: 6px;
          border: 1px solid light-dark(#cbd5e1, #334155); background: light-dark(#f8fafc, #1e293b); color: inherit; }
  button { font: inherit; font-weight: 600; padding: 9px 16px; border: 0; border-radius: 6px; cursor: pointer;
           background: #0d9488; color: #fff; }
  p { margin: 0; }
  [role=alert] { min-height: 1.5em; color: light-dark(#b91c1c, #fca5a5); }
"""
SCRIPT = """
  const form = document.querySelector("form");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const says = (text) => (document.querySelector("[role=alert]").textContent = text);
    const where = location.pathname.replace(/\\/$/, "") + "/login"; // also below a prefix
    try {
      const answer = await fetch(where, { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (answer.ok) return location.reload();
      says(answer.status === 400 ? "Wrong username or password" : await answer.text());
    } catch {
      says("The GUI is not responding");
    }
  });
"""


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
    SCRIPT,
)


def token_page(wrong: bool = False) -> str:
    """Return the page that says where to find the token, with a field to enter it."""
    told = "Wrong token: the address or token may be outdated" if wrong else ""
    return _page(
        "Token required",
        f"""<form method="get" class="wide">
  <h1>Token required</h1>
  <p>Open the address that the GUI printed in its terminal at startup. It ends with ?token=...</p>
  <p>The token itself is in the file <b>token</b> in the GUI's state folder, readable only by the account that started
the GUI (~/.local/state/sd-scripts-studio, on Windows %LOCALAPPDATA%\\sd-scripts-studio).</p>
  <label>Token <input name="token" type="password" autocomplete="off" autofocus required></label>
  <button>Open</button>
  <p role="alert">{told}</p>
</form>""",
    )
