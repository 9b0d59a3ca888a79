"""What the page tells the user: in the page, never in a native dialog."""

from collections.abc import Iterable
from html import escape
from typing import Literal

Kind = Literal["ok", "note", "warning", "error"]
SIGNS = {"ok": "✓", "note": "i", "warning": "!", "error": "✕"}


class Html(str):
    """Text that is HTML already: what comes from outside is escaped in it."""


def html(text: object) -> str:
    return text if isinstance(text, Html) else escape(str(text))


def message(kind: Kind, text: object, details: Iterable[object] = (), *, more: Html | str = "", face: str = "") -> str:
    """A box with one sentence, and under it a list; `more` stands below, `face` holds attributes of the box."""
    rows = "".join(f"<li>{html(detail)}</li>" for detail in details)
    return (
        f'<div class="message message-{kind}" role="{"alert" if kind == "error" else "status"}"{face}>'
        f'<span class="sign">{SIGNS[kind]}</span>'
        f"<div><p>{html(text)}</p>{f'<ul>{rows}</ul>' if rows else ''}{html(more)}</div></div>"
    )
