"""A check, and how it is run: an exception within it becomes a finding."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

REINSTALL = "start gui.sh or gui.bat again, which installs what requirements.txt names"
Status = Literal["ok", "warning", "problem", "skipped"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The finding of a check, in a sentence; and the remedy, in another, if there is a problem."""

    status: Status
    text: str
    remedy: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    title: str
    find: Callable[[], Finding]
    remedy: str
    """What to do if it raises, or if the process that runs it dies."""
    needs: str = ""
    """The name of a check without whose success this one is skipped."""
    slow: bool = False
    """Left out of a quick look."""
    seconds: float = 120.0
    """How long it may take in a process of its own."""

    def run(self) -> Finding:
        try:
            return self.find()
        except ModuleNotFoundError as error:
            inner = "." in str(error.name)  # a part of a package, which is then broken
            return problem(f"{error.name} is not installed", self.remedy if inner else REINSTALL)
        except (Exception, SystemExit) as error:  # whatever a broken package raises
            return problem(summary(error), self.remedy)


def ok(text: str) -> Finding:
    return Finding(status="ok", text=f"{text}.")


def warning(text: str, remedy: str) -> Finding:
    return Finding(status="warning", text=f"{text}.", remedy=_sentence(remedy))


def problem(text: str, remedy: str) -> Finding:
    return Finding(status="problem", text=f"{text}.", remedy=_sentence(remedy))


def skipped(text: str) -> Finding:
    return Finding(status="skipped", text=f"{text}.")


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def summary(error: BaseException) -> str:
    """Return the class of an error and the first line of its message."""
    lines = [line.strip().rstrip(".") for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__


def record(check: Check, finding: Finding) -> dict[str, Any]:
    """Return a finding as a JSON object."""
    return {"name": check.name, "title": check.title, **asdict(finding)}
