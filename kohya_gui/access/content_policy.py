"""The Content-Security-Policy of the page: only its own scripts run, injected ones do not."""

import base64
import hashlib
from collections.abc import Iterable
from html.parser import HTMLParser
from urllib.parse import urlsplit

FRAMES = "frame-ancestors 'self'"
NOTHING = f"default-src 'none'; {FRAMES}"
"""For every response that is not a page: an image or text that a browser mistakes for a page can do nothing."""
CLIP = f"default-src 'none'; media-src 'self'; {FRAMES}"
"""For a clip: the page that the browser makes for one in a tab of its own loads it again."""
SOURCES = {
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "media-src": "'self' data: blob:",
    "connect-src": "'self'",
    "manifest-src": "'self'",
    "worker-src": "'self' blob:",
    "form-action": "'self'",
    "base-uri": "'self'",
}


def page_policy(html: bytes, more: Iterable[str] = ()) -> str:
    """Return the policy of a page with its inline scripts, and `more` that one of its scripts inserts later.

    Scripts are allowed by hash, so injected scripts and `onerror` handlers do not run. Gradio compiles the texts it is
    given as `js=` into functions, for which it needs `unsafe-eval`.
    """
    scripts = _Scripts()
    scripts.feed(html.decode("utf-8", errors="replace"))
    hashes = dict.fromkeys(f"'sha256-{_hash(text)}'" for text in (*scripts.texts, *more))
    hosts = " ".join(scripts.hosts)
    sources = {name: f"{value} {hosts}".strip() for name, value in SOURCES.items()}
    script_sources = " ".join(["'self'", "'unsafe-eval'", *hashes, *scripts.hosts])
    sources |= {"default-src": "'none'", "script-src": script_sources, "script-src-attr": "'none'"}
    return "; ".join([*(f"{name} {value}" for name, value in sources.items()), FRAMES])


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.hosts: dict[str, None] = {}
        """Hosts of external scripts: with --share, Gradio's page comes from its own server."""
        self._within = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        source = dict(attrs).get("src") or ""
        if tag == "script" and urlsplit(source).netloc:
            self.hosts[f"{urlsplit(source).scheme}://{urlsplit(source).netloc}"] = None
        self._within = tag == "script" and not source
        if self._within:
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._within = False
