"""Another model that samples are made with, such as a distilled one: its weights take the place of the trained model's
in the denoiser, under the adapter."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from torch import nn

from sd_scripts.families.common.components import WeightSource
from sd_scripts.families.common.placing import BlockLists, Placement
from sd_scripts.library.diffusion.block_transformer import BlockTransformer
from sd_scripts.library.diffusion.idle_weights import IdleWeights
from sd_scripts.options.generating.sampling import SAMPLE_MODEL

logger = logging.getLogger(__name__)


class SampleModel:
    def __init__(self, source: WeightSource, change: Callable[[nn.Module], None]):
        """`change` is called with the loaded model, to merge the LoRA files of base_weights into it."""
        self._source, self._change = source, change
        self._idle: IdleWeights | None = None

    def load(self, lists: BlockLists, denoiser: nn.Module, placement: Placement) -> None:
        """Load the weights into main memory, stored like those of the denoiser, which is placed already and has no
        adapter yet. Raises ValueError, one sentence, if the file cannot be read or the two are stored differently."""
        model = cast(BlockTransformer, self._source.load())
        self._change(model)
        self._idle = lists.let_wait(model, cast(BlockTransformer, denoiser), placement, SAMPLE_MODEL, offload=True)
        logger.info("Samples are made with '%s', whose weights wait in RAM between samples", self._source.path)

    @contextmanager
    def in_denoiser(self) -> Iterator[None]:
        """Give the denoiser these weights within the block, and then its own again, bit for bit."""
        assert self._idle, "the weights are loaded where samples are made"
        self._idle.exchange()
        try:
            yield
        finally:
            self._idle.exchange()
