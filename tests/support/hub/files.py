"""A server that gives out model files as the Hugging Face Hub and Civitai do: redirects to a different host, ranges,
gates, checksums; and one that cuts connections."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest
from huggingface_hub import constants, hf_api

from kohya_gui.models import address, remote

TOKEN = "hf_TheTokenOfADownload"
COMMIT = "1" * 40


@dataclass
class ModelSite:
    """The files of a site, and the requests that it got."""

    url: str = ""
    storage: str = ""
    """The host that the site redirects to."""
    files: dict[str, bytes] = field(default_factory=dict)
    """By repository and path."""
    gated: set[str] = field(default_factory=set)
    """Repositories that need TOKEN."""
    refused: set[str] = field(default_factory=set)
    """Repositories whose terms nobody has accepted."""
    wrong: set[str] = field(default_factory=set)
    """Files whose contents are not those of their checksum."""
    cut: list[int] = field(default_factory=list)
    """Bytes after which the next answers end, one each."""
    answers: dict[str, Any] = field(default_factory=dict)
    """Path of Civitai's API -> its answer."""
    ranges: list[str] = field(default_factory=list)
    """Those that storage was asked for; empty for a whole file."""
    leaked: list[str] = field(default_factory=list)
    """Tokens that storage was sent."""
    hold: threading.Event | None = None
    """Storage waits for it in the middle of a file."""
    holding: threading.Event = field(default_factory=threading.Event)

    def sha256(self, path: str) -> str:
        return hashlib.sha256(self.files[path]).hexdigest()


@contextmanager
def serving(site: ModelSite) -> Iterator[None]:
    """Serve a site in the block, and its storage at a different address."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = unquote(self.path.partition("?")[0]).strip("/")
            if path.startswith("stored/"):
                self._store(path.removeprefix("stored/"))
            elif path.startswith("api/v1/"):
                self._json(site.answers.get(path.removeprefix("api/v1/")))
            elif path.startswith("api/download/"):
                self._redirect(path)
            elif found := re.fullmatch(r"api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
                self._repository(found[1])
            elif found := re.fullmatch(r"api/models/([^/]+/[^/]+)/tree/[^/]+", path):
                self._json([{"type": "file", "path": f["rfilename"], "oid": "0", **f} for f in self._listed(found[1])])
            elif (found := re.fullmatch(r"([^/]+/[^/]+)/resolve/[^/]+/(.+)", path)) and self._may_read(found[1]):
                self._redirect(f"{found[1]}/{found[2]}")

        def _may_read(self, repo: str) -> bool:
            """Return whether the token opens a repository; else answer as the Hub does."""
            has_token = self.headers.get("authorization") == f"Bearer {TOKEN}"
            if repo in site.gated and not has_token:
                self._refuse(401, "GatedRepo")
            elif repo in site.refused:
                self._refuse(403, "GatedRepo")
            else:
                return True
            return False

        def _redirect(self, path: str) -> None:
            if path not in site.files:
                self._refuse(404, "EntryNotFound")
                return
            self.send_response(302)
            self.send_header("Location", f"{site.storage}/stored/{path}")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("X-Linked-Size", str(len(site.files[path])))
            self.send_header("X-Linked-Etag", f'"{site.sha256(path)}"')
            self.send_header("X-Xet-Hash", site.sha256(path))  # stored in Xet: it redirects to Xet's bridge for HTTP
            self.send_header("Link", f'<{site.url}/api/models/x/xet-read-token/{COMMIT}>; rel="xet-auth"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _repository(self, repo: str) -> None:
            if not (files := self._listed(repo)):
                self._refuse(404, "RepoNotFound")
                return
            self._json({"id": repo, "sha": COMMIT, "siblings": files, "cardData": {"license": "mit"}})

        def _listed(self, repo: str) -> list[dict[str, Any]]:
            names = [path.removeprefix(f"{repo}/") for path in site.files if path.startswith(f"{repo}/")]
            return [
                {
                    "rfilename": name,
                    "size": len(site.files[f"{repo}/{name}"]),
                    "blobId": "0",
                    "lfs": {
                        "sha256": site.sha256(f"{repo}/{name}"),
                        "oid": site.sha256(f"{repo}/{name}"),
                        "size": len(site.files[f"{repo}/{name}"]),
                        "pointerSize": 134,
                    },
                }
                for name in names
            ]

        def _store(self, path: str) -> None:
            if sent := self.headers.get("authorization"):
                site.leaked.append(sent)
            content = site.files[path]
            if path in site.wrong:
                content = bytes(len(content))
            wanted = self.headers.get("Range", "")
            site.ranges.append(wanted)
            begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            self.send_response(206 if wanted else 200)
            self.send_header("Content-Length", str(len(content) - begin))
            if wanted:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            rest = content[begin:]
            if site.hold:
                half = len(rest) // 2
                self.wfile.write(rest[:half])
                site.holding.set()
                site.hold.wait(10)
                rest = rest[half:]
            if site.cut:
                self.wfile.write(rest[: site.cut.pop(0)])
                self.close_connection = True
                return
            try:
                self.wfile.write(rest)
            except OSError:  # the other side paused
                self.close_connection = True

        def _json(self, content: Any) -> None:
            text = json.dumps(content).encode()
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    site.url, site.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    yield
    if site.hold:
        site.hold.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def model_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelSite]:
    """A site that is the Hub and Civitai."""
    site = ModelSite()
    with serving(site):
        monkeypatch.setattr(constants, "ENDPOINT", site.url)
        monkeypatch.setattr(hf_api.api, "endpoint", site.url)  # its functions, as diffusers calls them
        template = f"{site.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(remote, "CIVITAI_URL", site.url)
        monkeypatch.setattr(address, "HUB_HOSTS", frozenset({*address.HUB_HOSTS, site.url.removeprefix("http://")}))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield site
