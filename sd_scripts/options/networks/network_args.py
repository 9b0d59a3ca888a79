"""Reads network_args given as `key=value`; keys that nobody reads are unknown."""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sd_scripts.formats.words import MOST_LISTED
from sd_scripts.options.spec import truth

TYPO_SIMILARITY = 0.8
"""From which an unknown key counts as a typo of a known one: conv_dmi and conv_dim."""
LARGEST_RANK = 4096
"""The bound of the built-in LoRA. LyCORIS has none: its users write 10000 or 100000 for a layer's full rank."""


class NetworkArguments:
    """The arguments by key; every method raises ValueError naming the key."""

    def __init__(self, values: dict[str, str]):
        self._values = values
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._values

    def text(self, key: str) -> str | None:
        return self._values[key].strip().strip("'\"") if key in self else None

    def number(self, key: str, default: float | None = None) -> float | None:
        found = self.numbers(key, 1)
        return found[0] if found else default

    def numbers(self, key: str, count: int | None = None) -> list[float] | None:
        """Return `count` numbers of at least 0, or any number of them without `count`."""
        text = self.text(key)
        return None if text is None else numbers(key, text, count)

    def whole_number(self, key: str) -> int | None:
        found = self.whole_numbers(key, 1)
        return found[0] if found else None

    def whole_numbers(self, key: str, count: int) -> list[int] | None:
        text = self.text(key)
        return None if text is None else whole_numbers(key, text, count)

    def factor(self, key: str) -> int:
        """Return a whole number of at least 1, or -1, which is the default and lets the layer's size decide."""
        text = self.text(key) or "-1"
        value = -1 if text in ("-1", "-1.0") else (whole_numbers(key, text, 1)[0])
        if value == 0:
            raise ValueError(f"network_args: {key}=0 is not a factor; -1 lets the size of each layer decide")
        return value

    def chance(self, key: str) -> float:
        value = self.number(key) or 0.0
        if value >= 1:
            raise ValueError(f"network_args: {key}={self.text(key)} drops everything; it must be below 1")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        text = self.text(key) or str(default)
        if (on := truth(text)) is None:
            raise ValueError(f"network_args: {key}={text} must be True or False")
        return on

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        text = (self.text(key) or default).lower()
        if text not in choices:
            raise ValueError(f"network_args: {key}={text} is not one of {', '.join(choices)}")
        return text

    def unread(self, keys: Iterable[str]) -> list[str]:
        """Return the `keys` that have not been read so far; they count as read from here on."""
        left = [key for key in keys if key in self._values and key not in self._asked]
        self._asked.update(left)
        return left

    def unknown(self) -> list[str]:
        """Return a sentence for each key that was never read; it may be meant for a different program.

        Raises ValueError, one sentence per line, for keys that look like typos, since their values would be lost.
        """
        known = sorted(self._asked)
        others = sorted(self._values.keys() - self._asked)
        near = {key: difflib.get_close_matches(key.lower(), known, 1, TYPO_SIMILARITY) for key in others[:MOST_LISTED]}
        if typos := [
            f"network_args: {key} is unknown. Did you mean {found[0]}?" for key, found in near.items() if found
        ]:
            raise ValueError("\n".join(typos))
        listed = [f"network_args: {key} is unknown and has no effect" for key in near]
        more = len(others) - len(near)
        return [*listed, *[f"network_args: {more:,} more keys are unknown and have no effect"] * bool(more)]


def whole_numbers(key: str, text: str, count: int) -> list[int]:
    found = numbers(key, text, count)
    if any(number != int(number) for number in found):
        raise ValueError(f"network_args: {key}={text} must be a whole number: it is a rank")
    if any(number > LARGEST_RANK for number in found):
        raise ValueError(f"network_args: {key}={text} must be at most {LARGEST_RANK}")
    return [int(number) for number in found]


def numbers(key: str, text: str, count: int | None = None) -> list[float]:
    words = [word for word in text.strip().strip("'\"[]()").split(",") if word.strip()]
    try:
        if not text.isascii():  # Python reads the digits of all scripts
            raise ValueError
        found = [float(word) for word in words]
    except ValueError:
        raise ValueError(f"network_args: {key}={text} is not a number or a list of numbers") from None
    if count is not None and len(found) != count:
        raise ValueError(f"network_args: {key} has {len(found)} values, but needs {count}")
    if not all(0 <= number < math.inf for number in found):  # rejects NaN too
        raise ValueError(f"network_args: {key}={text} must be at least 0")
    return found


OF_EVERY_FAMILY: dict[str, Callable[[NetworkArguments, str], Any]] = {
    "conv_dim": NetworkArguments.whole_number,
    **dict.fromkeys(("dropout", "rank_dropout", "module_dropout"), NetworkArguments.chance),
    **dict.fromkeys(("conv_alpha", "ggpo_beta", "ggpo_sigma"), NetworkArguments.number),
    **dict.fromkeys(
        ("loraplus_lr_ratio", "loraplus_unet_lr_ratio", "loraplus_text_encoder_lr_ratio"), NetworkArguments.number
    ),
}
"""Keys of the built-in LoRA for every family -> how each is read."""


def problems(values: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each wrong value of these keys."""
    given = NetworkArguments(dict(values))
    for key, read in OF_EVERY_FAMILY.items():
        try:
            read(given, key)
        except ValueError as error:
            yield str(error)
