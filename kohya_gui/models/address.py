"""Pasted addresses of models: a repository or a file of the Hugging Face Hub, a model or a version on Civitai."""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import constants

HUB, CIVITAI = "Hugging Face", "Civitai"
CIVITAI_HOSTS = frozenset(("civitai.com", "www.civitai.com", "civitai.red", "civitai.green"))
HUB_HOSTS = frozenset(("huggingface.co", "www.huggingface.co", "hf.co", urlsplit(constants.ENDPOINT).netloc))
NAME = re.compile(r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9])?")
"""An owner or a repository."""
REVISION = re.compile(r"[\w.-]{1,100}")
LONGEST = 2000
NOT_UNDERSTOOD = (
    "Not the address of a model: paste owner/name, a page or a file of huggingface.co, or a page of civitai.com"
)


@dataclass(frozen=True, kw_only=True)
class HubAddress:
    """A repository of models on the Hub, or a file in it."""

    repo: str
    revision: str = "main"
    file: str = ""
    """Its path in the repository; empty: the whole repository."""


@dataclass(frozen=True, kw_only=True)
class CivitaiAddress:
    """A model on Civitai, or one of its versions."""

    model: int | None = None
    version: int | None = None
    """None: the newest."""


Address = HubAddress | CivitaiAddress


def read_address(text: str) -> Address:
    """Return the model that a pasted text names. Raises ValueError, one sentence, if it names none."""
    text = text.strip().strip("\"'<>")
    if len(text) > LONGEST:
        raise ValueError(NOT_UNDERSTOOD)
    try:
        # without a scheme, owner/name is a path and civitai.com/models/1 a host
        parts = urlsplit(text if "://" in text else f"https://{text}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        raise ValueError(NOT_UNDERSTOOD) from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(NOT_UNDERSTOOD)
    path = [unquote(part) for part in parts.path.split("/") if part]
    where = f"{host}:{port}" if port else host
    if host in CIVITAI_HOSTS:
        return _civitai(path, parse_qs(parts.query))
    if where in HUB_HOSTS:
        return _hub(path)
    if "://" not in text and "." not in host.partition(".")[0] and not text.startswith("/"):
        return _hub([unquote(part) for part in text.partition("?")[0].split("/") if part])
    raise ValueError(NOT_UNDERSTOOD)


def _hub(path: list[str]) -> HubAddress:
    if path and path[0] in ("datasets", "spaces"):
        raise ValueError(f"This is the address of one of the Hub's {path[0]}, not of a model")
    if len(path) < 2 or not all(NAME.fullmatch(name) for name in path[:2]):
        raise ValueError(NOT_UNDERSTOOD)
    repo, rest = "/".join(path[:2]), path[2:]
    revision = "main"
    if rest and rest[0] in ("resolve", "blob", "raw", "tree"):
        kind, revision = rest[0], rest[1] if len(rest) > 1 else "main"
        rest = rest[2:] if kind != "tree" else []
    if any(part in (".", "..") or "\\" in part or not part.isprintable() for part in rest):
        raise ValueError(NOT_UNDERSTOOD)
    if not REVISION.fullmatch(revision):
        raise ValueError(f"{revision[:100]!r} is not a revision of a repository; use an address with main in its place")
    return HubAddress(repo=repo, revision=revision, file="/".join(rest))


def _civitai(path: list[str], query: dict[str, list[str]]) -> CivitaiAddress:
    match path:
        case ["models", model, *_] if number := _number(model):
            return CivitaiAddress(model=number, version=_number(query.get("modelVersionId", [""])[0]))
        case ["api", "download", "models", version] | ["api", "v1", "model-versions", version] if number := _number(
            version
        ):
            return CivitaiAddress(version=number)
        case ["model-versions", version, *_] if number := _number(version):
            return CivitaiAddress(version=number)
    raise ValueError("Not a model of Civitai: paste the address of its page, such as civitai.com/models/101055")


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) and int(text) else None
