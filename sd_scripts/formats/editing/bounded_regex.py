"""Replace by a regular expression that a user typed, in a process of its own with limits of time and memory.

Python cannot stop a match: a pattern such as (a+)+$ takes years on a caption of 40 letters, and no other thread of the
page would run in the meantime.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

SECONDS = 5.0
MOST_MEMORY = 1 << 30
LONGEST_RESULT = 100_000
"""Letters of a caption."""
PROGRAM = f"""
import json, re, sys
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({MOST_MEMORY}, {MOST_MEMORY}))
except (ImportError, ValueError, OSError):
    pass  # no such limit on this system
def replaced(text):
    parts, last, length = [], 0, 0
    for match in pattern.finditer(text):
        put = match.expand(request["text"])
        parts += [text[last:match.start()], put]
        length += len(put)
        if length > {LONGEST_RESULT}:
            raise OverflowError
        last = match.end()
    return "".join(parts) + text[last:]
try:
    request = json.loads(sys.stdin.buffer.read())
    pattern = re.compile(request["pattern"], request["flags"])
    answer = {{"texts": [replaced(text) for text in request["texts"]]}}
except (re.error, IndexError) as error:
    answer = {{"wrong": str(error)}}
except OverflowError:
    answer = {{"wrong": "the result is longer than a caption may be"}}
except (MemoryError, RecursionError):
    answer = {{"wrong": "the pattern takes too much memory"}}
sys.stdout.write(json.dumps(answer))
"""
"""Standard library only, and started without site packages: it is up in 20 ms."""


def substituted(pattern: str, text: str, captions: Sequence[str], *, ignore_case: bool) -> list[str]:
    r"""Return the captions with each match replaced by `text`, in which \1 is the first group.

    Raises ValueError, one sentence that names the field, for a pattern that is wrong or takes too long.
    """
    flags = re.MULTILINE | (re.IGNORECASE if ignore_case else 0)
    request = {"pattern": pattern, "text": text, "flags": int(flags), "texts": list(captions)}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", PROGRAM],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"find: the pattern takes more than {SECONDS:.0f} s on these captions; write it with fewer nested + and *"
        ) from None
    except ValueError:  # it was killed
        raise ValueError("find: the pattern takes too much memory; simplify it") from None
    if "wrong" in answer:
        raise ValueError(f"find: {answer['wrong']}; correct the pattern or the replacement")
    texts: list[str] = answer["texts"]
    return texts
