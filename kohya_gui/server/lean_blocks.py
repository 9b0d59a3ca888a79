"""Answer an event of the page with work for the components that it changes, not for all that it could change."""

import functools
from copy import copy
from typing import Any

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.state_holder import SessionState


class LeanBlocks(gr.Blocks):
    """Blocks that describe their components once, and leave the outputs alone for which a function returns nothing.

    Gradio describes all components four times until the page is served, which takes 0.15 s of CPU time each. And for
    each output that gets no value it creates and describes a new component, and draws HTML again: 0.12 s for an event
    of a form, which has 200 to 350 outputs and changes a few. A new page sends such an event for each training tab.
    """

    def __exit__(self, exc_type: type[BaseException] | None = None, *args: Any) -> None:
        """Lay out the page, whose components stay the same from now on."""
        self.default_config.get_config = functools.cache(self.default_config.get_config)  # type: ignore[method-assign]
        super().__exit__(exc_type, *args)

    async def postprocess_data(
        self, block_fn: BlockFunction, predictions: list[Any] | dict[Any, Any], state: SessionState | None
    ) -> list[Any]:
        changed = [block for block in block_fn.outputs if isinstance(predictions, dict) and block in predictions]
        if not changed or len(changed) < len(predictions):  # not a dict by component, or a wrong one: Gradio reports it
            return await super().postprocess_data(block_fn, predictions, state)
        with_changed = copy(block_fn)
        with_changed.outputs = changed
        answers = await super().postprocess_data(with_changed, predictions, state)
        by_block = dict(zip(changed, answers, strict=True))
        return [by_block.get(block, None if block.stateful else gr.update()) for block in block_fn.outputs]
