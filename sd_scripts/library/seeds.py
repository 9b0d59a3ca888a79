"""Seeds that depend only on a key, such as (seed, step, name)."""

import hashlib


def seed_from(*key: object) -> int:
    """Return 63 bits that depend only on the key's parts, the same in every process."""
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
