"""A server that answers as the Hugging Face Hub does."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from huggingface_hub import constants

TOKEN = "hf_TheTokenOfATest"


@dataclass
class Hub:
    """A Hub of one user, and its answers."""

    url: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """By repository and path."""
    tokens: set[str] = field(default_factory=set)
    status: dict[str, int] = field(default_factory=dict)
    """Part of a path -> the error to answer with."""

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        for part, status in self.status.items():
            if part in path:
                return status, {"error": "You are not allowed to do that"}
        if path == "/api/repos/create":
            self.created.append(json.loads(body))
            return 200, {"url": f"{self.url}/me/my-lora", "name": "me/my-lora"}
        if path == "/api/validate-yaml":  # of a model card
            return 200, {"errors": [], "warnings": []}
        if "/preupload/" in path:
            files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
            return 200, {"files": [{**each, "shouldIgnore": False, "oid": None} for each in files]}
        assert "/commit/" in path, path
        repository = path.removeprefix("/api/").partition("/commit/")[0]
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                self.files[f"{repository}/{line['value']['path']}"] = base64.b64decode(line["value"]["content"])
        return 200, {"success": True, "commitUrl": "https://huggingface.co/me/my-lora/commit/1", "commitOid": "1"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    made = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.tokens.add(self.headers.get("authorization", ""))
            status, answer = made.answer(
                self.path.partition("?")[0], self.rfile.read(int(self.headers["Content-Length"]))
            )
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", made.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield made
    server.shutdown()
    server.server_close()
