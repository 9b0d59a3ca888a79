"""Model files on the Hugging Face Hub and on Civitai: names, sizes and checksums, and why a file cannot be had."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from kohya_gui.models.address import CIVITAI, HUB, Address, CivitaiAddress, HubAddress
from kohya_gui.models.diffusers_folder import parts_of
from sd_scripts.formats.documents import LONGEST_PART, parse_json
from sd_scripts.runs.outputs import DIFFUSERS_MARK

CIVITAI_URL = "https://civitai.com"
CIVITAI_TOKEN = "CIVITAI_TOKEN"
"""The variable that hands a token for Civitai to the GUI."""
SUFFIXES = (".safetensors", ".sft", ".ckpt", ".pt", ".pth")
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_FILES = 200
"""Files of a repository that are listed."""
LONGEST_INDEX = 100_000
"""Characters of a model_index.json that are read."""
GENERIC = re.compile(r"(?:diffusion_pytorch_)?model(?:-\d{5}-of-\d{5}|[._]fp16)?|pytorch_model", re.I)
"""Names of files that do not name their model."""
SECONDS = 20.0
TOKEN_PAGES = {HUB: "https://huggingface.co/settings/tokens", CIVITAI: "https://civitai.com/user/account"}


class NoAccess(ValueError):
    """The site gives the file only to somebody whom it knows."""

    def __init__(self, site: str, text: str, *, page: str, needs_token: bool) -> None:
        super().__init__(text)
        self.site = site
        self.page = page
        """Where the terms are accepted or a token is made."""
        self.needs_token = needs_token


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file that can be downloaded."""

    site: str
    """HUB or CIVITAI."""
    url: str
    name: str
    """A file name that is safe on this machine."""
    bytes: int | None
    sha256: str = ""
    """Empty: the site does not state it."""
    page: str
    """The page about its model."""
    licence: str = ""
    parts: tuple[RemoteFile, ...] = ()
    """The files of a folder, each named by its path in it."""


def files_at(address: Address, token: str | None = None) -> list[RemoteFile]:
    """Ask the site for the files at an address, largest first. Raises ValueError, one sentence; NoAccess if the
    site wants to know who asks."""
    found = _hub_files(address, token) if isinstance(address, HubAddress) else _civitai_files(address, token)
    if not found:
        raise ValueError(f"No model files at this address; only {', '.join(SUFFIXES)} files are downloaded")
    return sorted(found, key=lambda file: -(file.bytes or 0))


def headers_for(site: str, token: str | None) -> dict[str, str]:
    """Return the headers of a request, with the token that was given or, for the Hub, that of `hf auth login`."""
    from huggingface_hub.utils import build_hf_headers

    if site == HUB:
        headers = dict(build_hf_headers(token=token or None))
    else:
        token = token or os.environ.get(CIVITAI_TOKEN)
        headers = {"authorization": f"Bearer {token}"} if token else {}
    return {**headers, "Accept-Encoding": "identity"}  # the size of a compressed answer is not the file's


def file_of_hub(repo: str, file: str, revision: str = "main", *, token: str | None = None) -> RemoteFile:
    """Ask the Hub for one file. Raises ValueError, one sentence; NoAccess."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    if not file.endswith(SUFFIXES):
        raise ValueError(f"'{file}' is not a model file; only {', '.join(SUFFIXES)} files are downloaded")
    url = hf_hub_url(repo, file, revision=revision)
    page = f"{constants.ENDPOINT}/{repo}"
    with asking(HUB, page):
        found = get_hf_file_metadata(url, token=token or None, timeout=SECONDS)
    etag = found.etag or ""
    return RemoteFile(
        site=HUB,
        # of this commit, so that a download that is resumed continues with the same file
        url=hf_hub_url(repo, file, revision=found.commit_hash or revision),
        name=name_for(repo, file),
        bytes=found.size,
        sha256=etag if SHA256.fullmatch(etag) else "",
        page=page,
    )


def _hub_files(address: HubAddress, token: str | None) -> list[RemoteFile]:
    from huggingface_hub import HfApi, constants, hf_hub_url

    if address.file:
        return [file_of_hub(address.repo, address.file, address.revision, token=token)]
    page = f"{constants.ENDPOINT}/{address.repo}"
    api = HfApi(token=token or None)
    with asking(HUB, page):
        info = api.model_info(address.repo, revision=address.revision, files_metadata=True, timeout=SECONDS)
    licence = str(getattr(info.card_data, "license", "") or "")
    siblings = {each.rfilename: each for each in info.siblings or []}
    revision = info.sha or address.revision

    def file(path: str, name: str) -> RemoteFile:
        found = siblings[path]
        return RemoteFile(
            site=HUB,
            url=hf_hub_url(address.repo, path, revision=revision),
            name=name,
            bytes=found.size,
            sha256=found.lfs.sha256 if found.lfs else "",
            page=page,
            licence=licence,
        )

    found = [path for path in siblings if path.endswith(SUFFIXES)][:MOST_FILES]
    files = [file(path, name_for(address.repo, path)) for path in found]
    if DIFFUSERS_MARK not in siblings:
        return files
    parts = tuple(file(path, path) for path in parts_of(siblings, _index(address.repo, revision, page, token)))
    whole = RemoteFile(
        site=HUB,
        url=f"{page}/tree/{revision}",
        name=safe_part(address.repo.partition("/")[2]),
        bytes=sum(part.bytes or 0 for part in parts),
        page=page,
        licence=licence,
        parts=parts,
    )
    return [whole, *files] if parts else files


def _index(repo: str, revision: str, page: str, token: str | None) -> Mapping[str, Any]:
    """Return the content of a repository's model_index.json, empty if it is none."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import get_session

    with asking(HUB, page):
        url = hf_hub_url(repo, DIFFUSERS_MARK, revision=revision)
        answer = get_session().get(url, headers=headers_for(HUB, token), timeout=SECONDS)
        answer.raise_for_status()
    try:
        content = parse_json(answer.text[:LONGEST_INDEX])
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _civitai_files(address: CivitaiAddress, token: str | None) -> list[RemoteFile]:
    if address.version:
        version = _ask_civitai(f"model-versions/{address.version}", token)
    else:
        versions = _ask_civitai(f"models/{address.model}", token).get("modelVersions")
        version = versions[0] if isinstance(versions, list) and versions and isinstance(versions[0], dict) else {}
    model, number = version.get("modelId") or address.model, version.get("id")
    page = f"{CIVITAI_URL}/models/{model}?modelVersionId={number}" if model and number else CIVITAI_URL
    files = version.get("files")
    return [
        file
        for each in (files if isinstance(files, list) else [])[:MOST_FILES]
        if isinstance(each, dict) and (file := _civitai_file(each, page))
    ]


def _civitai_file(answer: Mapping[str, Any], page: str) -> RemoteFile | None:
    """Return a file of Civitai's answer; None if it is not a model file or leads to a different site."""
    name, url, kilobytes = (answer.get(key) for key in ("name", "downloadUrl", "sizeKB"))
    hashes = answer.get("hashes")
    sha256 = str(hashes.get("SHA256", "") if isinstance(hashes, dict) else "").lower()
    if not isinstance(name, str) or not name.endswith(SUFFIXES):
        return None
    if not isinstance(url, str) or urlsplit(url)[:2] != urlsplit(CIVITAI_URL)[:2]:
        return None
    return RemoteFile(
        site=CIVITAI,
        url=url,
        name=safe_name(name),
        bytes=round(kilobytes * 1024) if isinstance(kilobytes, int | float) and not sha256 else None,
        sha256=sha256 if SHA256.fullmatch(sha256) else "",
        page=page,
        licence="on its page",
    )


def _ask_civitai(path: str, token: str | None) -> dict[str, Any]:
    from huggingface_hub.utils import get_session

    with asking(CIVITAI, CIVITAI_URL):
        answer = get_session().get(f"{CIVITAI_URL}/api/v1/{path}", headers=headers_for(CIVITAI, token), timeout=SECONDS)
        answer.raise_for_status()
        content = answer.json()
    if not isinstance(content, dict):
        raise ValueError("Civitai's answer was not understood; try again later")
    return content


@contextmanager
def asking(site: str, page: str) -> Iterator[None]:
    """Raise what a site or the connection to it answers in the block as ValueError, one sentence, or as NoAccess."""
    import httpx2
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def status_of(error: Exception) -> int:
        return getattr(getattr(error, "response", None), "status_code", 0)

    try:
        yield
    except GatedRepoError as error:
        known = status_of(error) == 403
        text = "Accept the model's terms on its page, with the account of your token; then try again"
        raise _no_access(site, text if known else "", page, needs_token=not known) from None
    except RepositoryNotFoundError:
        text = "The Hub has no such repository, or only shows it to its owner: check the address, or enter a token"
        raise NoAccess(site, text, page=TOKEN_PAGES[site], needs_token=True) from None
    except (EntryNotFoundError, RevisionNotFoundError):
        raise ValueError("The repository does not have this file; check the address") from None
    except HFValidationError:
        raise ValueError("This is not the name of a repository; write owner/name") from None
    except OfflineModeIsEnabled:
        raise ValueError("HF_HUB_OFFLINE is set: start the GUI without it to download") from None
    except (HfHubHTTPError, httpx2.HTTPStatusError) as error:
        status = status_of(error)
        if status in (401, 403):
            raise _no_access(site, "", page, needs_token=True) from None
        if status == 404:
            raise ValueError(f"{site} does not have this model; check the address") from None
        raise ValueError(f"{site} answers with status {status}; try again later") from None
    except httpx2.HTTPError as error:
        raise ValueError(f"{site} cannot be reached ({type(error).__name__}); check the connection") from None


def _no_access(site: str, text: str, page: str, *, needs_token: bool) -> NoAccess:
    wants = f"{site} gives this file only with a token of an account that has accepted the model's terms"
    return NoAccess(site, text or wants, page=page, needs_token=needs_token)


def name_for(repo: str, file: str) -> str:
    """Return a file name for a path in a repository; a generic one follows the repository's name and the
    folder's."""
    path = PurePosixPath(file)
    if not GENERIC.fullmatch(path.stem):
        return safe_name(path.name)
    return safe_name("_".join((repo.partition("/")[2], *path.parts)))


def safe_name(name: str) -> str:
    """Return a name from elsewhere that is safe for a visible file in the folder where it is saved."""
    stem, _, suffix = re.split(r"[/\\]", name)[-1].rpartition(".")
    return f"{safe_part(stem)}.{suffix}"


def safe_part(name: str) -> str:
    """Return a name without slashes that is safe for a folder, or for a file once it has its extension."""
    name = re.sub(r'[\x00-\x1f\x7f<>:"|?*]+', "_", name).strip(" .") or "model"
    return name.encode("utf-8", errors="replace")[: LONGEST_PART - 60].decode("utf-8", errors="ignore")
