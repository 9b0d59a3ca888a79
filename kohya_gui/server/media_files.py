"""Send images, clips and other files, which browsers keep until they change."""

import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse

from kohya_gui.access.content_policy import CLIP
from kohya_gui.server.json_routes import NotFound
from sd_scripts.formats.clips.media_types import CLIP_SUFFIXES
from sd_scripts.formats.images.generated_files import GENERATED_TYPES, poster

CACHED = {"Cache-Control": "private, no-cache"}
"""The browser asks each time whether its copy is still the newest."""
MOST_POSTERS = 500
"""Posters in memory, about 50 kB each."""


def send_media(
    request: Request, path: Path, download: bool = False, types: Mapping[str, str] = GENERATED_TYPES
) -> Response:
    """Return an image or a clip, or with `poster` in the query the first frame of a clip. `types`: media types by
    extension. Raises NotFound for other files."""
    suffix = path.suffix.lower()
    if suffix not in types:
        raise NotFound("This is not an image or clip")
    is_clip = suffix in CLIP_SUFFIXES
    if is_clip and "poster" in request.query_params:
        return _send_poster(request, path)
    response = send_file(request, path, types[suffix], download)
    if is_clip:
        response.headers["Content-Security-Policy"] = CLIP
    return response


def media_html(address: str, title: str, *, is_clip: bool) -> str:
    """Return the HTML of an image or a clip, which media.js plays while it is seen; `title` is HTML already."""
    if not is_clip:
        return f'<img src="{escape(address)}" alt="{title}" loading="lazy">'
    attributes = f'data-poster="{escape(poster_of(address))}" aria-label="{title}"'
    return f'<video src="{escape(address)}" {attributes} muted loop playsinline preload="none"></video>'


def poster_of(address: str) -> str:
    """Return the address of the first frame of a clip."""
    return f"{address}{'&' if '?' in address else '?'}poster=1"


def send_file(request: Request, path: Path, kind: str, download: bool = False) -> Response:
    """Return a regular file, or the part of it that a Range header names."""
    name = path.name if download else None
    response = FileResponse(path, media_type=kind, headers=CACHED, stat_result=_stat(path), filename=name)
    unchanged = request.headers.get("if-none-match") == response.headers["etag"]
    return NotModifiedResponse(response.headers) if unchanged else response


def _send_poster(request: Request, path: Path) -> Response:
    found = _stat(path)
    headers = {**CACHED, "etag": f'"poster-{found.st_mtime_ns:x}-{found.st_size:x}"'}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    try:
        content = _poster(path, found.st_mtime_ns, found.st_size)
    except (OSError, ValueError) as error:
        raise NotFound(f"{path.name} cannot be read as a clip") from error
    return Response(content, media_type="image/jpeg", headers=headers)


@lru_cache(maxsize=MOST_POSTERS)
def _poster(path: Path, mtime: int, size: int) -> bytes:
    """Return the poster of a clip that was written at this time."""
    return poster(path)


def _stat(path: Path) -> os.stat_result:
    """Return the status of a regular file. Raises NotFound for anything else, links included."""
    try:
        found = os.lstat(path)
    except OSError as error:
        raise NotFound(f"{path.name} no longer exists") from error
    if not stat.S_ISREG(found.st_mode):
        raise NotFound(f"{path.name} is not a regular file")
    return found
