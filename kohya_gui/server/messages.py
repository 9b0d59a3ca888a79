"""Messages to the user, shown in the page, never in a native dialog."""

from collections.abc import Iterable
from html import escape
from typing import Literal

Kind = Literal["ok", "note", "warning", "error"]
SIGNS = {"ok": "✓", "note": "i", "warning": "!", "error": "✕"}


class Html(str):
    """Text that is HTML already, with everything from outside escaped."""


def html(text: object) -> str:
    return text if isinstance(text, Html) else escape(str(text))


def message(
    kind: Kind, text: object, details: Iterable[object] = (), *, more: Html | str = "", attributes: str = ""
) -> str:
    """Return a box with a sentence, a list of details and `more` below; `attributes` go into its HTML element."""
    rows = "".join(f"<li>{html(detail)}</li>" for detail in details)
    return (
        f'<div class="message message-{kind}" role="{"alert" if kind == "error" else "status"}"{attributes}>'
        f'<span class="sign">{SIGNS[kind]}</span>'
        f"<div><p>{html(text)}</p>{f'<ul>{rows}</ul>' if rows else ''}{html(more)}</div></div>"
    )
