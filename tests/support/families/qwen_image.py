"""Qwen-Image in diffusers: its transformer and its pipeline around the parts of ours."""

import re
from typing import Any

from diffusers import QwenImagePipeline
from torch import Tensor
from transformers import BatchFeature
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from benchmarks.pipelines.qwen_image import make_scheduler, make_transformer
from sd_scripts.families.common.family import Components
from sd_scripts.families.qwen_image.model import QwenImageParams

IMAGE = "<|image_pad|>"


def transformer_of(state: dict[str, Tensor], params: QwenImageParams) -> Any:
    """A transformer with a copy of these weights."""
    transformer = make_transformer(params)
    transformer.load_state_dict(state)
    return transformer.eval()


def pipeline_of(components: Components, encoder: Any, pipeline: Any = QwenImagePipeline, **more: Any) -> Any:
    """A pipeline that shares VAE and tokenizer with `components` and copies the transformer's weights; `encoder`: the
    whole Qwen2.5-VL."""
    denoiser: Any = components.denoiser
    made: Any = pipeline(
        scheduler=make_scheduler(),
        vae=components.vae,  # type: ignore[arg-type]
        text_encoder=encoder,
        tokenizer=components.tokenizers[0],
        transformer=transformer_of(denoiser.state_dict(), denoiser.params),
        **more,
    )
    prefix = made.prompt_template_encode.partition("{}")[0].partition("<|vision_start|>")[0]
    made.prompt_template_encode_start_idx = len(components.tokenizers[0](prefix).input_ids)
    made.set_progress_bar_config(disable=True)
    return made


class Processor:
    """What transformers' Qwen2_5_VLProcessor does with text and images, without torchvision."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.images = Qwen2VLImageProcessorPil(size={"shortest_edge": 3136, "longest_edge": 12_845_056})

    def __call__(self, text: list[str], images: Any, padding: bool, return_tensors: str) -> BatchFeature:
        """`images`: one for all texts, or one for each."""
        seen = self.images(images, return_tensors=return_tensors)
        counts = iter([int(grid.prod()) // 4 for grid in seen["image_grid_thw"]])
        written = [re.sub(re.escape(IMAGE), lambda _: IMAGE * next(counts), each) for each in text]
        return BatchFeature({**self.tokenizer(written, padding=padding, return_tensors=return_tensors), **seen})


def edit_pipeline_of(components: Components, encoder: Any, pipeline: Any) -> Any:
    """A pipeline of Qwen-Image-Edit that marks the image tokens for the encoder: otherwise transformers 5 uses text
    positions for them (diffusers issue 14194)."""
    mark = components.tokenizers[0].convert_tokens_to_ids(IMAGE)

    def with_types(_: Any, positional: Any, given: dict[str, Any]) -> Any:
        return positional, given | {"mm_token_type_ids": (given["input_ids"] == mark).int()}

    encoder.register_forward_pre_hook(with_types, with_kwargs=True)
    return pipeline_of(components, encoder, pipeline, processor=Processor(components.tokenizers[0]))
