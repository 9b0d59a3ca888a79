"""torch.compile's backends, for tests that put one of their own in place of one of torch's."""

from typing import Any

from torch._dynamo.backends import registry


def backends() -> dict[str, Any]:
    """By name. All of torch's are there: it registers its own when one is first looked up, and refuses names that
    are taken by then."""
    registry.list_backends()
    return registry._COMPILER_FNS
