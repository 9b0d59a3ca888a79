"""Captions from a server with OpenAI's interface: what is sent, and answers that are not to be trusted."""

import base64
import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions
from sd_scripts.runs.folder import read_json
from sd_scripts.tools.captioning.endpoint import KEY, Endpoint, EndpointError
from tests.support.captioning_models.tagging import (
    CaptionServer,
    caption,
    caption_server,
    captions,
    reply,
    write_colours,
)

pytestmark = pytest.mark.run
__all__ = ["caption_server"]
SECRET = "sk-TheKeyOfATest0123456789"
RED = np.full((400, 1000, 3), (255, 0, 0), np.uint8)


def endpoint(server: CaptionServer, waits: list[float] | None = None, **options: object) -> Endpoint:
    how = EndpointOptions(endpoint=server.url, **options)  # type: ignore[arg-type]
    wait = waits.append if waits is not None else lambda seconds: None
    return Endpoint(how, CaptionTextOptions(max_length=50), "a-model", SECRET, wait)


def test_a_small_image_and_the_prompt_are_sent(caption_server: CaptionServer) -> None:
    assert endpoint(caption_server, image_side=100)(RED, "Describe it.") == "a caption"
    (request,) = caption_server.requests
    assert (request["model"], request["max_tokens"]) == ("a-model", 50)
    text, image = request["messages"][0]["content"]
    assert text == {"type": "text", "text": "Describe it."}
    sent = Image.open(io.BytesIO(base64.b64decode(image["image_url"]["url"].removeprefix("data:image/jpeg;base64,"))))
    assert (sent.format, sent.size) == ("JPEG", (100, 40))
    assert sent.getpixel((50, 20)) == pytest.approx((255, 0, 0), abs=4)
    assert caption_server.keys == [f"Bearer {SECRET}"]


def test_a_busy_server_is_asked_again_after_the_time_that_it_names(caption_server: CaptionServer) -> None:
    waits: list[float] = []
    busy: list[tuple[int, Mapping[str, str], bytes]] = [(429, {"Retry-After": "7"}, b""), (503, {}, b"")]
    caption_server.answers = lambda number: busy[number] if number < len(busy) else (200, {}, reply("at last"))
    assert endpoint(caption_server, waits)(RED, "") == "at last"
    assert waits == [7.0, 2.0]
    caption_server.answers = lambda number: (503, {"Retry-After": "1e9"}, b"")
    waits.clear()
    with pytest.raises(EndpointError, match=r"is busy or failed \(HTTP 503\); try again later"):
        endpoint(caption_server, waits, retries=1)(RED, "")
    assert waits == [60.0]


Answers = Callable[[int], tuple[int, Mapping[str, str], bytes]]


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (lambda number: (200, {}, b"<!doctype html><title>Login</title>"), "answered with a web page"),
        (lambda number: (200, {}, b"\xff\xfe\0"), "answered with something that is not JSON"),
        (lambda number: (200, {}, b"[" * 100_000), "answered with something that is not JSON"),
        (lambda number: (200, {}, b'{"error": "no"}'), "the answer contains no text"),
        (lambda number: (200, {}, b'{"choices": []}'), "the answer contains no text"),
        (lambda number: (200, {}, json.dumps({"choices": [{"message": {"content": None}}]}).encode()), "no text"),
        (lambda number: (200, {}, b"x" * 10_000_000), "larger than 1 MB"),
        (lambda number: (302, {"Location": "file:///etc/passwd"}, b""), "redirects elsewhere, which is not followed"),
        (lambda number: (307, {"Location": "http://127.0.0.1:1/"}, b""), "redirects elsewhere, which is not followed"),
        (lambda number: (401, {}, b"bad key " + SECRET.encode()), f"refuses the key; set {KEY}"),
        (lambda number: (404, {}, b""), "does not know this address or model"),
        (lambda number: (418, {}, b""), "refuses the request"),
    ],
)
def test_hostile_answers_are_one_sentence(caption_server: CaptionServer, answers: Answers, why: str) -> None:
    caption_server.answers = answers
    with pytest.raises(EndpointError, match="^endpoint: .*" + re.escape(why)) as raised:
        endpoint(caption_server)(RED, "")
    assert "\n" not in str(raised.value)
    assert SECRET not in str(raised.value)
    assert len(caption_server.requests) == 1


def test_an_answer_without_an_end_ends_at_the_timeout(caption_server: CaptionServer) -> None:
    caption_server.drips = True
    with pytest.raises(EndpointError, match=r"did not answer within 0\.2 s; raise timeout$"):
        endpoint(caption_server, timeout=0.2, retries=1)(RED, "")
    assert len(caption_server.requests) == 2


def test_a_server_that_does_not_run_is_named(caption_server: CaptionServer) -> None:
    caption_server.url = "http://127.0.0.1:1/v1"
    with pytest.raises(
        EndpointError, match=r"^endpoint: 'http://127.0.0.1:1/v1' cannot be reached: Connection refused$"
    ):
        endpoint(caption_server, retries=0)(RED, "")


def test_a_folder_is_captioned_and_the_key_stays_out_of_files_and_output(
    caption_server: CaptionServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    images = write_colours(tmp_path / "10_sks cat")
    (images / "blue.txt").write_text("1girl, hat\n")
    texts = ["A red\n\nimage.", "", "Not used."]
    caption_server.answers = lambda number: (200, {}, reply(texts[number]) if number else reply("Blue."))
    flags = ("--method", "endpoint", "--endpoint", caption_server.url, "--model", "m", "--existing", "append")
    prompt = ("--prompt", "{trigger} of {folder}: {tags}", "--trigger", "sks", "--overwrite_hand")
    run = tmp_path / "run"
    assert caption(images, *flags, *prompt, "--run_dir", run) == 0
    asked = [request["messages"][0]["content"][0]["text"] for request in caption_server.requests]
    assert asked == ["sks of sks cat: 1girl, hat", "sks of sks cat: ", "sks of sks cat: "]
    assert captions(images) == {"blue": "sks, 1girl, hat Blue.", "red": "sks, Not used."}
    failed = read_json(run / "captions.json")["failed"]  # type: ignore[index]
    assert failed == {str(images / "green.png"): "the model gave no text"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert [file.name for file in files if SECRET.encode() in file.read_bytes()] == []
    assert SECRET not in "".join(capsys.readouterr())


def test_a_refused_key_ends_the_job_at_the_first_image(
    caption_server: CaptionServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    caption_server.answers = lambda number: (401, {}, b"")
    images = write_colours(tmp_path / "images")
    assert caption(images, "--method", "endpoint", "--endpoint", caption_server.url, "--model", "m") == 2
    assert capsys.readouterr().err == f"endpoint: '{caption_server.url}' refuses the key; set {KEY}\n"
    assert len(caption_server.requests) == 1
    assert captions(images) == {}
