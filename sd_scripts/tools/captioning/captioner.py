"""Captioners through transformers: Florence-2, BLIP, BLIP-2, GIT, and every model that follows a chat with images, such
as Qwen-VL."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from sd_scripts.data.sources.images import Pixels
from sd_scripts.formats.words import shortened
from sd_scripts.options.captioning.text import CaptionTextOptions

TASKS = {"paragraph": "<MORE_DETAILED_CAPTION>", "sentence": "<DETAILED_CAPTION>", "tags": "<DETAILED_CAPTION>"}
"""Form -> the task of Florence-2, which reads no other prompts."""
BEGINNINGS = ("blip", "blip-2", "git")
"""Models whose prompt is the beginning of the caption, or a question."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Captioner:
    """A model that is loaded. Raises ValueError, one sentence, for a folder without one."""

    def __init__(self, folder: Path, options: CaptionTextOptions, device: str | None):
        self._options = options
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if options.load_in_8bit and self._device.type != "cuda":
            raise ValueError("load_in_8bit: bitsandbytes needs a GPU; turn it off")
        if options.compile and self._device.type != "cuda":
            raise ValueError("compile: a captioner is compiled for a GPU only; turn it off")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            self.kind: str = AutoConfig.from_pretrained(folder, trust_remote_code=False).model_type
        except Exception as error:
            raise ValueError(f"model: '{folder}' cannot be loaded: {_reason(error)}") from error
        if self.kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
            raise ValueError(
                f"model: '{folder}' is a {self.kind}, which does not write captions; choose a different one"
            )
        try:
            self._processor = processor_of(folder, self.kind)
            self._model = self._load(folder)
        except torch.OutOfMemoryError:
            raise ValueError(
                "model: does not fit into GPU memory; turn on load_in_8bit, or choose a smaller one"
            ) from None
        except Exception as error:
            raise ValueError(f"model: '{folder}' cannot be loaded: {_reason(error)}") from error

    def _load(self, folder: Path) -> Any:
        how: dict[str, Any] = {"dtype": self._dtype(), "trust_remote_code": False, "use_safetensors": _safe(folder)}
        if self._options.load_in_8bit:
            quantized = transformers.BitsAndBytesConfig(load_in_8bit=True)
            how |= {"quantization_config": quantized, "device_map": {"": self._device}}
        model = AutoModelForImageTextToText.from_pretrained(folder, **how).eval()
        return model if self._options.load_in_8bit else model.to(self._device)

    def _dtype(self) -> torch.dtype:
        on_gpu = self._device.type == "cuda"
        auto = torch.bfloat16 if on_gpu else torch.float32
        return DTYPES.get(self._options.dtype, auto)

    @property
    def takes_tasks(self) -> bool:
        """Whether prompts are tasks, as Florence-2's."""
        return self.kind == "florence2"

    @property
    def completes(self) -> bool:
        """Whether a prompt is the beginning of the caption."""
        return self.kind in BEGINNINGS

    @torch.inference_mode()
    def __call__(self, images: Sequence[Pixels], prompts: Sequence[str]) -> list[str]:
        """Return the text for each image (H, W, 3), unprocessed."""
        if self.completes and len(set(prompts)) > 1:  # these models have no padding between prompt and caption
            return [self([image], [prompt])[0] for image, prompt in zip(images, prompts, strict=True)]
        torch.manual_seed(self._options.seed)
        inputs = self._inputs([Image.fromarray(np.ascontiguousarray(image)) for image in images], list(prompts))
        inputs = inputs.to(self._device)
        for name, value in inputs.items():
            if torch.is_tensor(value) and value.is_floating_point():
                inputs[name] = value.to(self._dtype())
        try:
            written = self._model.generate(**inputs, **self._generation())
        except torch.OutOfMemoryError:
            raise ValueError("batch_size: out of GPU memory; lower it, or turn on load_in_8bit") from None
        if not self._model.config.is_encoder_decoder and self.kind not in BEGINNINGS:
            written = written[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self._processor.batch_decode(written, skip_special_tokens=True)]

    def _inputs(self, images: list[Image.Image], prompts: list[str]) -> Any:
        how: dict[str, Any] = {"return_tensors": "pt", "padding": True}
        if self.takes_tasks or (self.completes and any(prompts)):
            return self._processor(images=images, text=prompts, **how)
        if self.kind == "blip-2":
            return self._processor(images=images, text=[""] * len(images), **how)
        if self.completes:
            return self._processor(images=images, return_tensors="pt")
        chats = [
            [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": prompt}]}]
            for image, prompt in zip(images, prompts, strict=True)
        ]
        how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
        return self._processor.apply_chat_template(chats, processor_kwargs={"padding": True}, **how)

    def _generation(self) -> dict[str, Any]:
        options = self._options
        draws = options.temperature > 0
        sampling = {"temperature": options.temperature, "top_p": options.top_p} if draws else {}
        compiled = {"cache_implementation": "static"} if options.compile else {}  # which generate compiles on a GPU
        return {
            "max_new_tokens": options.max_length,
            "min_new_tokens": options.min_length or None,
            "num_beams": options.num_beams,
            "do_sample": draws,
            **sampling,
            **compiled,
        }


def processor_of(folder: Path, kind: str) -> Any:
    """Return the processor of a model. One that also reads clips is made without that part, which needs torchvision."""
    cls = getattr(transformers, PROCESSOR_MAPPING_NAMES.get(kind) or "", None)
    needs_torchvision = cls is not None and "video_processor" in cls.get_attributes()
    if cls is None or not needs_torchvision or importlib.util.find_spec("torchvision"):
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    else:
        images_only = type(cls.__name__, (_WithoutClips, cls), {})
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        template = tokenizer.chat_template or _template_file(folder)
        image_processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
        processor = images_only(image_processor=image_processor, tokenizer=tokenizer, chat_template=template)
    if getattr(processor, "tokenizer", None) is not None and kind not in BEGINNINGS:
        processor.tokenizer.padding_side = "left"  # what is generated follows the prompt
    return processor


class _WithoutClips:
    """Accepts that a processor has no part for clips."""

    def check_argument_for_proper_class(self, name: str, part: Any) -> Any:
        return None if part is None else super().check_argument_for_proper_class(name, part)  # type: ignore[misc]


def _template_file(folder: Path) -> str | None:
    """Return the chat template of a processor, where older repositories have it."""
    file = folder / "chat_template.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["chat_template"]) if file.is_file() else None


def _safe(folder: Path) -> bool:
    """Return whether the weights are safetensors; a pickle is read by torch with weights_only."""
    return any(folder.glob("*.safetensors"))


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[0] if lines else type(error).__name__)
