"""What the page tells the user: in the page, of three kinds, never in a native dialog."""

from collections.abc import Iterable
from html import escape
from typing import Literal

Kind = Literal["ok", "warning", "error"]
SIGNS = {"ok": "✓", "warning": "!", "error": "✕"}


def message(kind: Kind, text: str, details: Iterable[object] = ()) -> str:
    """A box with one sentence, and under it a list."""
    rows = "".join(f"<li>{escape(str(detail))}</li>" for detail in details)
    return (
        f'<div class="message message-{kind}" role="{"alert" if kind == "error" else "status"}">'
        f'<span class="sign">{SIGNS[kind]}</span>'
        f"<div><p>{escape(text)}</p>{f'<ul>{rows}</ul>' if rows else ''}</div></div>"
    )
