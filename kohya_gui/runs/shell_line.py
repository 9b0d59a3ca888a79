"""Quote an argument list as one line to paste into a terminal, with nothing left for the shell to interpret."""

import os
import re
import shlex
from collections.abc import Sequence

import psutil

PLAIN_ON_WINDOWS = re.compile(r"[\w+./:\\-]+", re.ASCII)
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
OF_CMD = re.compile(r'[()%!^"<>&|\x20\t,;=]')
"""Characters special to cmd.exe."""


def shell_line(argv: Sequence[str]) -> str:
    """Return the line for this system's shell; on Windows, for the shell that started the GUI."""
    if os.name != "nt":
        return posix_line(argv)
    return powershell_line(argv) if _in_powershell() else cmd_line(argv)


def posix_line(argv: Sequence[str]) -> str:
    """Return the line for sh; words with control characters use $'...' of bash and zsh to stay on one line."""
    return " ".join(_ansi_quoted(word) if CONTROLS.search(word) else shlex.quote(word) for word in argv)


def cmd_line(argv: Sequence[str]) -> str:
    """Return the line for cmd.exe: quoted for the program's own parser, then escaped for cmd itself."""
    return " ".join(map(_for_cmd, argv))


def powershell_line(argv: Sequence[str]) -> str:
    """Return the line for PowerShell: single quotes expand nothing; a quoted program is called with &."""
    words = [word if PLAIN_ON_WINDOWS.fullmatch(word) else _single_quoted(word) for word in argv]
    return ("& " if words and words[0].startswith("'") else "") + " ".join(words)


def _for_cmd(word: str) -> str:
    if PLAIN_ON_WINDOWS.fullmatch(word):
        return word
    quoted = f'"{_escaped(word)}"'
    # % is expanded even in quotes, and a quote ends them: then escape every character on its own
    return OF_CMD.sub(r"^\g<0>", quoted) if "%" in word or '"' in word else quoted


def _single_quoted(word: str) -> str:
    # PowerShell also accepts typographic quotes as closing quotes
    return "'" + re.sub("['\u2018\u2019\u201a\u201b]", r"\g<0>\g<0>", _escaped(word)) + "'"


def _escaped(word: str) -> str:
    """Escape for the C runtime, where backslashes only matter before a quote."""
    return re.sub(r'(?<!\\)(\\*)("|$)', lambda found: found[1] * 2 + ('\\"' if found[2] else ""), word)


def _ansi_quoted(word: str) -> str:
    shown = word.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", shown) + "'"


def _in_powershell() -> bool:
    try:
        names = [parent.name().lower() for parent in psutil.Process().parents()]
    except psutil.Error:
        return False
    shells = [name for name in names if name in ("cmd.exe", "powershell.exe", "pwsh.exe")]
    return bool(shells) and shells[0] != "cmd.exe"
