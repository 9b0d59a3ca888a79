"""Sources of the password and token: flags, environment, files, a prompt, or the state folder."""

import argparse
import getpass
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from sd_scripts.formats.atomic_files import atomic_file
from sd_scripts.formats.private import private_file, private_folder

ASK = "\0ask"
"""Value of --password given without a word; no command line can contain it."""
GENERATED = "\0generated"
"""Value of --token given without a word."""
PASSWORD, TOKEN = "STUDIO_PASSWORD", "STUDIO_TOKEN"
TOKEN_FORM = re.compile(r"[A-Za-z0-9._~-]{8,}")
"""Characters that need no escaping in a URL."""


def has_password(flags: argparse.Namespace) -> bool:
    return bool(flags.password or flags.password_file or os.environ.get(PASSWORD))


def has_token(flags: argparse.Namespace) -> bool:
    """Return whether the user chose to be let in by a token."""
    return bool(flags.token or os.environ.get(TOKEN))


def refusal(flags: argparse.Namespace) -> str | None:
    """Return why these flags cannot be combined, in a sentence, or None."""
    if bool(flags.username) != has_password(flags):
        if flags.username:
            return f"--username requires a password: set --password, --password_file or {PASSWORD}"
        return f"{_source(flags)} requires --username"
    if flags.password and flags.password_file:
        return "--password and --password_file: use only one"
    if (flags.token or flags.no_token) and has_password(flags):
        return f"{'--token' if flags.token else '--no-token'}: cannot be combined with a password ({_source(flags)})"
    if flags.token and flags.no_token:
        return "--token and --no-token: use only one"
    chosen = flags.token not in (None, GENERATED)
    token = flags.token if chosen else os.environ.get(TOKEN)
    if token and not TOKEN_FORM.fullmatch(token):
        return f"{'--token' if chosen else TOKEN}: must have at least 8 characters from letters, digits and - . _ ~"
    return None


def password(flags: argparse.Namespace) -> str:
    """Return the password from its source. Raises ValueError if it cannot be read or is empty."""
    secret = os.environ.pop(PASSWORD, "")  # so that training processes do not inherit it
    if flags.password_file:
        secret = _first_line(flags.password_file.expanduser())
    elif flags.password == ASK:
        secret = _ask()
    elif flags.password:
        _warn("--password", f"use --password_file, {PASSWORD} or --password without a value")
        secret = flags.password
    if not secret:
        raise ValueError("--password: the password is empty")
    return str(secret)


def token(flags: argparse.Namespace, folder: Path) -> str:
    """Return the token that was chosen, or the one in the state folder, which is generated on first use."""
    chosen = os.environ.pop(TOKEN, "")
    if flags.token not in (None, "", GENERATED):
        _warn("--token", f"use {TOKEN}")
        return str(flags.token)
    return chosen or _stored_token(folder)


def _stored_token(folder: Path) -> str:
    try:
        file = private_file(private_folder(folder) / "token")
        stored = file.read_text(encoding="ascii", errors="replace").strip()
        if TOKEN_FORM.fullmatch(stored):
            return stored
        with atomic_file(file) as part:
            private_file(part).write_text(f"{secrets.token_urlsafe(32)}\n", encoding="ascii")
        return file.read_text(encoding="ascii").strip()  # of two GUIs that start together, the last one wins
    except OSError as error:
        raise ValueError(f"{folder}: the token cannot be stored there ({error.strerror})") from error


def _first_line(file: Path) -> str:
    try:
        with suppress(OSError):
            if os.name == "posix" and file.stat().st_mode & 0o077:
                print(f"--password_file: other accounts can read {file}; run chmod 600 on it", file=sys.stderr)
        return file.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"--password_file: {file} cannot be read ({reason})") from error


def _ask() -> str:
    try:
        return getpass.getpass("Password for the page: ")
    except EOFError as error:
        raise ValueError(f"--password: no terminal to prompt on; use --password_file or {PASSWORD}") from error


def _source(flags: argparse.Namespace) -> str:
    if flags.password_file:
        return "--password_file"
    return "--password" if flags.password else PASSWORD


def _warn(flag: str, instead: str) -> None:
    print(f"{flag}: visible to every account of this machine in the process list; {instead} instead", file=sys.stderr)
