"""Answer an event of the page with work for the components that it changes, not for all that it could change."""

from copy import copy
from typing import Any

import gradio as gr
from gradio.block_function import BlockFunction
from gradio.state_holder import SessionState


class LeanBlocks(gr.Blocks):
    """Blocks that leave the outputs alone for which a function returns nothing.

    Gradio creates and describes a new component for each of them, and draws HTML again: 0.12 s of CPU time for an event
    of a form, which has 200 to 350 outputs, and changes a few. A new page sends such an event for each training tab.
    """

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
