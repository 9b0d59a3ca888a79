"""The Hugging Face Hub: repositories to upload to, and why it refuses."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import HfApi

LONGEST_REASON = 200
DENIED = {401: "the Hub does not know the token", 403: "the token has no write access"}
"""HTTP status -> its meaning for the token."""


class Refused(Exception):
    """Raised if the Hub answers that a repository cannot be written to."""


def hub_api() -> HfApi:
    """Return the client that uploads to the Hub, with the token of the environment or of `hf auth login`."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # they would write into the program's own output
    return HfApi()


def open_repository(api: HfApi, repo: str, *, private: bool, repo_type: str | None = None) -> None:
    """Create the repository if it does not exist. Raises Refused with the reason, or the connection's exception."""
    try:
        api.create_repo(repo, private=private, repo_type=repo_type, exist_ok=True)
    except Exception as error:
        if why := _refusal(error):
            raise Refused(why) from None
        raise


def hub_reason(error: Exception) -> str:
    """Return the last meaningful line of an error: the Hub's own words come after its addresses."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    with contextlib.suppress(AttributeError):
        lines.append(error.server_message)  # type: ignore[attr-defined]
    message = next((line for line in reversed(lines) if line), type(error).__name__)
    return str(message)[:LONGEST_REASON].rstrip(".")


def _refusal(error: Exception) -> str:
    """Return why the Hub refuses, or "" if it could not be asked."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError

    if isinstance(error, HFValidationError):
        return "its name is not a repository name, such as me/my-lora"
    if isinstance(error, LocalTokenNotFoundError):
        return "no token is set"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None or status >= 500:
        return ""
    return DENIED.get(status, hub_reason(error))
