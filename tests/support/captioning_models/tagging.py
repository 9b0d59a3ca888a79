"""Captioning models in miniature, images of one colour, and a server with OpenAI's interface."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from sd_scripts.tools.captioning.__main__ import COMMAND

SIDE = 8
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
TAGS = (
    ("blue_sky", 0),
    ("green_hair", 0),
    ("red_fox_(forest)", 4),
    ("^_^", 0),
    ("explicit", 9),
    ("general", 9),
)
"""The first three are found in images with much of their colour; the model is never sure of the fourth."""


def write_tagger(folder: Path, tags: tuple[tuple[str, int], ...] = TAGS, side: int = SIDE) -> Path:
    """Write a tagger whose confidences follow the mean of blue, green and red, in this order, as WD14's does."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.zeros((side * side * 3, 6), np.float32)
    for channel in range(3):
        weights[channel::3, channel] = 8 / (side * side * 255)
    biases = np.array([-4, -4, -4, -1, -2, 2], np.float32)
    nodes = [
        helper.make_node("Flatten", ["images"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["products"]),
        helper.make_node("Add", ["products", "biases"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["confidences"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tagger",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", side, side, 3])],
        [helper.make_tensor_value_info("confidences", TensorProto.FLOAT, ["N", 6])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(biases, "biases")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    rows = "".join(f"{number},{name},{category},1\n" for number, (name, category) in enumerate(tags))
    (folder / "selected_tags.csv").write_text(f"tag_id,name,category,count\n{rows}", encoding="utf-8")
    return folder


def write_colours(folder: Path, *names: str) -> Path:
    """Write an image of each colour, `red.png` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or COLOURS:
        Image.new("RGB", (SIDE, SIDE), COLOURS[name.partition("_")[0]]).save(folder / f"{name}.png")
    return folder


def captions(folder: Path, extension: str = ".txt") -> dict[str, str]:
    return {file.stem: file.read_text(encoding="utf-8").rstrip("\n") for file in sorted(folder.glob(f"*{extension}"))}


def caption(*flags: object) -> int:
    """Run the command and return its exit status."""
    return COMMAND.main("captioning", [str(flag) for flag in flags])


@dataclass
class CaptionServer:
    """A server with OpenAI's interface, and what it was asked."""

    url: str = ""
    answers: Callable[[int], tuple[int, Mapping[str, str], bytes]] = lambda number: (200, {}, reply("a caption"))
    """Number of the request, from 0 -> status, headers, body."""
    drips: bool = False
    """Whether it sends a byte now and then, without an end."""
    ended: threading.Event = field(default_factory=threading.Event)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def reply(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


class _QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked may leave before the end of the answer."""


@pytest.fixture
def caption_server() -> Iterator[CaptionServer]:
    made = CaptionServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            number = len(made.requests)
            made.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            made.keys.append(self.headers.get("Authorization", ""))
            status, headers, body = made.answers(number)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)
            with contextlib.suppress(OSError):  # nobody listens any more
                while made.drips and not made.ended.wait(0.02):
                    self.wfile.write(b" ")

        def do_GET(self) -> None:
            made.requests.append({"path": self.path})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply("from elsewhere"))

        def log_message(self, format: str, *values: object) -> None:
            pass

    server = _QuietServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.ended.set()
    server.shutdown()
    server.server_close()
    thread.join()
