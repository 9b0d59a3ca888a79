"""Captions from a server with OpenAI's interface. Its answers are not trusted: their size, form and time are limited,
and redirects are not followed."""

import base64
import http.client
import json
import math
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from typing import Any

import cv2

from sd_scripts.data.sources.images import Pixels
from sd_scripts.formats.documents import parse_json
from sd_scripts.formats.words import shortened
from sd_scripts.options.captioning.text import CaptionTextOptions, EndpointOptions

LARGEST_ANSWER = 1 << 20
BUSY = (408, 425, 429, 500, 502, 503, 504, 529)
LONGEST_PAUSE = 60.0
KEY = "OPENAI_API_KEY"
"""The variable that passes the key. It is part of no command line, file or message."""
REFUSALS = {
    401: f"refuses the key; set {KEY}",
    403: f"does not allow this with the key in {KEY}",
    404: "does not know this address or model; the address ends in /v1",
    413: "refuses images of this size; lower image_side",
}


class EndpointError(ValueError):
    """Raised with one sentence about a server that gives no caption."""


class _Busy(Exception):
    """Raised for a failure that may pass, with its sentence."""

    def __init__(self, why: str, pause: float | None = None):
        super().__init__(why)
        self.pause = pause


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Message, newurl: str) -> None:
        return None  # the key and the image go to the address that was entered, and nowhere else


class Endpoint:
    """A server and the model that is asked there."""

    def __init__(
        self,
        endpoint: EndpointOptions,
        text: CaptionTextOptions,
        model: str,
        key: str,
        wait: Callable[[float], None] = time.sleep,
    ):
        self._options = endpoint
        self._text = text
        self._model = model
        self._key = key
        self._wait = wait
        self._url = (endpoint.endpoint or "").rstrip("/") + "/chat/completions"
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
            _NoRedirects(),
        ):
            self._opener.add_handler(handler)  # without those for file:, ftp: and data:

    def __call__(self, image: Pixels, prompt: str) -> str:
        """Return the answer for an image (H, W, 3). Raises EndpointError once all attempts failed."""
        body = json.dumps(self._request(image, prompt)).encode()
        for attempt in range(self._options.retries + 1):
            try:
                return _content(self._send(body))
            except _Busy as error:
                if attempt == self._options.retries:
                    raise EndpointError(f"endpoint: {error}") from None
                self._wait(min(error.pause if error.pause is not None else 2.0**attempt, LONGEST_PAUSE))
        raise AssertionError

    def _request(self, image: Pixels, prompt: str) -> dict[str, Any]:
        url = f"data:image/jpeg;base64,{base64.b64encode(jpeg(image, self._options.image_side)).decode()}"
        content = [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": url}}]
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self._text.max_length,
            "temperature": self._text.temperature,
            "seed": self._text.seed,
        }

    def _send(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, body, headers)
        end = time.monotonic() + self._options.timeout
        try:
            with self._opener.open(request, timeout=self._options.timeout) as answer:
                return self._read(answer, end)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or "timed out" in str(error):
                raise self._too_slow() from None
            reason = getattr(error, "reason", None) or error
            words = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
            raise _Busy(f"'{self._options.endpoint}' cannot be reached: {shortened(words)}") from None

    def _read(self, answer: Any, end: float) -> bytes:
        """Read an answer in small parts, since a slow one never runs into the timeout of a single read."""
        content = b""
        while part := answer.read1(65536):
            content += part
            if len(content) > LARGEST_ANSWER:
                raise EndpointError(
                    f"endpoint: the answer is larger than {LARGEST_ANSWER >> 20} MB, so it is no caption"
                )
            if time.monotonic() > end:
                raise self._too_slow()
        return content

    def _too_slow(self) -> _Busy:
        return _Busy(f"'{self._options.endpoint}' did not answer within {self._options.timeout:g} s; raise timeout")

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        where = f"'{self._options.endpoint}'"
        if error.code in BUSY:
            return _Busy(f"{where} is busy or failed (HTTP {error.code}); try again later", _pause(error.headers))
        if 300 <= error.code < 400:
            return EndpointError(
                f"endpoint: {where} redirects elsewhere, which is not followed; enter the final address"
            )
        if error.code in REFUSALS:
            return EndpointError(f"endpoint: {where} {REFUSALS[error.code]}")
        return EndpointError(f"endpoint: {where} refuses the request (HTTP {error.code})")


def jpeg(image: Pixels, side: int) -> bytes:
    """Return an image (H, W, 3) as JPEG, shrunk so that its longest side has at most `side` pixels."""
    height, width = image.shape[:2]
    scale = side / max(height, width)
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)  # type: ignore[assignment]
    _, encoded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
    return encoded.tobytes()


def _pause(headers: Message) -> float | None:
    """Return the seconds that a busy server asks to wait; None if it does not say."""
    try:
        seconds = float(headers.get("Retry-After", ""))
    except ValueError:
        return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _content(answer: bytes) -> str:
    """Return the text of an answer. Raises EndpointError if it has none."""
    try:
        parsed = parse_json(answer)
    except ValueError:
        kind = "a web page" if answer.lstrip()[:1] == b"<" else "something that is not JSON"
        raise EndpointError(f"endpoint: the server answered with {kind}; the address ends in /v1") from None
    try:
        content = parsed["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise EndpointError(
            "endpoint: the answer contains no text; is this a server with OpenAI's interface?"
        ) from None
    if isinstance(content, list):  # parts, some of them text
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    if not isinstance(content, str):
        raise EndpointError("endpoint: the answer contains no text; does the model read images?")
    return content
