"""torch.compile's backends, for tests that put one of their own in place of one of torch's."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends import registry


def backends() -> dict[str, Any]:
    """By name. All of torch's are there: it registers its own when one is first looked up, and refuses names that
    are taken by then."""
    registry.list_backends()
    return registry._COMPILER_FNS


class FailingCode:
    """A backend of torch.compile whose graphs run unchanged, until the nth call of one fails, or its backward pass.
    AOTAutograd, which would compile that, takes longest of all."""

    def __init__(self, nth: int, error: Callable[[], Exception], *, in_backward: bool):
        self.left, self.error, self.in_backward = nth, error, in_backward

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if not self.in_backward:
                self._count()
            outputs = graph(*arguments)
            if self.in_backward and (learning := [output for output in outputs if output.requires_grad]):
                learning[0].register_hook(self._count)
            return outputs

        return run

    def _count(self, *gradient: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error()
