"""Why inductor does not record CUDA graphs of some compiled graphs: the reasons that it logs, in words."""

import logging
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

LOGGER = "torch._inductor.cudagraph_utils.__cudagraphs"
"""Where inductor warns of each graph that it skips."""
SKIPPED = "skipping cudagraphs due to "
PREFIX = re.compile(r"((skipping|disabling) cudagraphs due to )+")
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
IN_WORDS: Mapping[str, str] = {
    r"mutated inputs \((\d+) instances\)": r"it changes inputs in place (\1)",
    r"mutated inputs": "it changes inputs in place",
    r"input storage mutation.*": "it changes the storage of an input",
    r"cpu device \((.+?)\)": r"\1 is on the CPU",
    r"multiple devices: (.+)": r"its tensors are on several devices: \1",
    r"non-Tensor inputs": "an input is not a tensor",
    r"graph with symbolic shapes inputs.*": "its shapes are dynamic",
    r"incompatible op (\S+)": r"the operation \1 cannot be recorded",
}
"""Reason of inductor, as a regular expression -> the same in words. Others are reported unchanged."""
LONGEST = 200


class CudaGraphSkips(logging.Handler):
    """Collects the reasons that inductor logs, while it compiles and later, from any thread."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._reasons: list[str] = []

    def listen(self, until: ExitStack) -> None:
        """Collect what inductor logs until the stack closes."""
        logger = logging.getLogger(LOGGER)
        logger.addHandler(self)
        until.callback(logger.removeHandler, self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason if the record reports a skip."""
        message = record.getMessage()
        if SKIPPED in message:
            self._reasons.append(reason_in_words(message))

    def take(self) -> list[str]:
        """Return the reasons since the last call, each once."""
        reasons = self._reasons
        self._reasons = []
        return list(dict.fromkeys(reasons))


def reason_in_words(message: str) -> str:
    """Return the reason of "skipping cudagraphs due to ...", with the source line if inductor found one."""
    head, _, trace = message.partition("Found from")
    reason = PREFIX.sub("", head).strip("[]. \n").replace("'", "")
    frames = list(FRAME.finditer(trace))
    where = f", at {Path(frames[-1]['file']).name}:{frames[-1]['line']}" if frames else ""
    for pattern, words in IN_WORDS.items():
        if match := re.fullmatch(pattern, reason):
            return match.expand(words) + where
    return reason[:LONGEST] + where
