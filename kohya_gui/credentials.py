"""Where the password and the token come from: flags, the environment, files, a question, or the state folder."""

import argparse
import getpass
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from sd_scripts.runs.private import private_file, private_folder

ASK = "\0ask"
"""Stands for --password without a word; no command line can hold it."""
PASSWORD, TOKEN = "STUDIO_PASSWORD", "STUDIO_TOKEN"
TOKEN_FORM = re.compile(r"[A-Za-z0-9._~-]{8,}")
"""What an address can hold as it is."""


def has_password(flags: argparse.Namespace) -> bool:
    return bool(flags.password or flags.password_file or os.environ.get(PASSWORD))


def has_token(flags: argparse.Namespace) -> bool:
    """Whether a token was chosen."""
    return bool(flags.token or os.environ.get(TOKEN))


def refusal(flags: argparse.Namespace) -> str | None:
    """Why these flags do not go together, in a sentence."""
    if bool(flags.username) != has_password(flags):
        if flags.username:
            return f"--username and --password go together: give --password, --password_file or {PASSWORD} too"
        return f"--username and --password go together: --username is missing beside the password ({_source(flags)})"
    if flags.password and flags.password_file:
        return "--password and --password_file: give one of them"
    if (flags.token or flags.no_token) and has_password(flags):
        return f"{'--token' if flags.token else '--no-token'}: a password is given ({_source(flags)}); choose one way"
    if flags.token and flags.no_token:
        return "--token and --no-token: choose one"
    token = flags.token if flags.token is not None else os.environ.get(TOKEN)
    if token and not TOKEN_FORM.fullmatch(token):
        return f"{'--token' if flags.token else TOKEN}: give 8 characters or more of letters, digits and - . _ ~"
    return None


def password(flags: argparse.Namespace) -> str:
    """The password that was given in one of the ways. ValueError where it cannot be had or is empty."""
    given = os.environ.pop(PASSWORD, "")  # a training does not inherit it
    if flags.password_file:
        given = _first_line(flags.password_file.expanduser())
    elif flags.password == ASK:
        given = _asked()
    elif flags.password:
        _warn("--password", f"use --password_file, {PASSWORD}, or --password without a word")
        given = flags.password
    if not given:
        raise ValueError("--password: the password is empty")
    return str(given)


def token(flags: argparse.Namespace, folder: Path) -> str:
    """The token that was chosen, or the one that the state folder keeps, which is made at first."""
    chosen = os.environ.pop(TOKEN, "")
    if flags.token:
        _warn("--token", f"use {TOKEN}")
        return str(flags.token)
    return chosen or _kept_token(folder)


def _kept_token(folder: Path) -> str:
    try:
        file = private_file(private_folder(folder) / "token")
        kept = file.read_text(encoding="ascii", errors="replace").strip()
        if TOKEN_FORM.fullmatch(kept):
            return kept
        beside = private_file(file.with_name(f".token.{os.getpid()}.part"))
        beside.write_text(f"{secrets.token_urlsafe(32)}\n", encoding="ascii")
        os.replace(beside, file)
        return file.read_text(encoding="ascii").strip()  # of two GUIs that start at once, the last one's
    except OSError as error:
        raise ValueError(f"{folder}: the token cannot be kept there ({error.strerror})") from error


def _first_line(file: Path) -> str:
    try:
        with suppress(OSError):
            if os.name == "posix" and file.stat().st_mode & 0o077:
                print(f"--password_file: other accounts may read {file}: chmod 600 it", file=sys.stderr)
        return file.read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"--password_file: {file} cannot be read ({why})") from error


def _asked() -> str:
    try:
        return getpass.getpass("Password for the page: ")
    except EOFError as error:
        raise ValueError(f"--password: nobody is there to be asked; use --password_file or {PASSWORD}") from error


def _source(flags: argparse.Namespace) -> str:
    return "--password_file" if flags.password_file else "--password" if flags.password else PASSWORD


def _warn(flag: str, instead: str) -> None:
    print(f"{flag}: the process list shows it to every account of this machine; {instead} instead", file=sys.stderr)
