"""Throttle wrong passwords and tokens, and log them."""

import ipaddress
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sd_scripts.formats.private import private_file

logger = logging.getLogger("sd_scripts")
T = TypeVar("T")

FREE_GUESSES = 5
LONGEST_WAIT = 60.0
FREE_GUESSES_OF_ALL = 50
"""Wrong guesses of all addresses together before addresses that never logged in have to wait too."""
LONGEST_WAIT_OF_ALL = 10.0
FORGET_AFTER = 3600.0
"""Seconds without a wrong guess after which earlier ones are forgotten."""
MAX_NETWORKS = 10_000
"""Addresses whose wrong guesses are counted."""
LINES_A_MINUTE = 10
LARGEST_LOG = 1_000_000


@dataclass
class Count:
    """Wrong guesses in a row, and the time until which the next one must wait."""

    failed: int = 0
    until: float = 0.0

    def add(self, now: float, free: int, longest: float) -> None:
        if now - self.until > FORGET_AFTER:
            self.failed = 0
        # bound the exponent: 2.0 ** 1024 overflows
        pause = 0.0 if self.failed < free else min(2.0 ** min(self.failed - free, 16), longest)
        self.failed += 1
        self.until = now + pause


@dataclass
class LoginThrottle:
    """Counts wrong guesses per network and overall: after a few, each makes the next wait longer."""

    now: Callable[[], float] = time.monotonic
    _failed: OrderedDict[str, Count] = field(default_factory=OrderedDict)
    _all: Count = field(default_factory=Count)
    _trusted: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Networks from which somebody logged in: others' guesses do not make them wait."""

    def wait(self, address: str) -> float:
        """Return the seconds until this address may try again; 0 counts as an attempt, whatever its outcome."""
        network = network_of(address)
        now = self.now()
        count = self._failed.get(network, Count())
        seconds = max(count.until, 0.0 if network in self._trusted else self._all.until) - now
        if seconds > 0:
            return seconds
        count.add(now, FREE_GUESSES, LONGEST_WAIT)
        self._all.add(now, FREE_GUESSES_OF_ALL, LONGEST_WAIT_OF_ALL)
        _remember(self._failed, network, count)
        return 0.0

    def succeeded(self, address: str) -> None:
        """Forget the wrong guesses of this address."""
        network = network_of(address)
        self._failed.pop(network, None)
        self._all.failed = max(self._all.failed - 1, 0)
        _remember(self._trusted, network, None)


def _remember(networks: OrderedDict[str, T], network: str, value: T) -> None:
    networks[network] = value
    networks.move_to_end(network)
    if len(networks) > MAX_NETWORKS:
        networks.popitem(last=False)


def network_of(address: str) -> str:
    """Return the address, or for IPv6 its /64: a customer has too many addresses to count them one by one."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if ip.version == 6 and ip.ipv4_mapped:
        return str(ip.ipv4_mapped)
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


@dataclass
class LoginLog:
    """Logs failed logins, a line each, to a file and the console; a flood is cut to a few lines a minute."""

    path: Path
    now: Callable[[], float] = time.monotonic
    _minute: float = field(default=float("-inf"))
    _lines: int = 0
    _left_out: int = 0

    def failed(self, address: str, what: str) -> None:
        """Log a wrong `what` (password or token), never the typed text: it may be a password elsewhere."""
        if self.now() - self._minute >= 60.0:
            self._minute = self.now()
            self._lines = 0
        if self._lines >= LINES_A_MINUTE:
            self._left_out += 1
            return
        more = f" ({self._left_out} more before it)" if self._left_out else ""
        self._lines += 1
        self._left_out = 0
        text = f"failed login: wrong {what} from {address or 'an unknown address'}{more}"
        logger.warning(text)
        with suppress(OSError):  # a full disk must not let anybody in
            if self.path.exists() and self.path.stat().st_size > LARGEST_LOG:
                os.replace(self.path, self.path.with_name(f"{self.path.name}.1"))
            with private_file(self.path).open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {text}\n")
