"""Time captioners of full size with random weights, as the captioning job calls them.

python -m benchmarks.captioning [--model qwen3_vl florence2] [--rows 1 8 8_compile 8_8bit] [--tokens 128] [--batches 6]

A row is the number of images in a batch, and options. Every image gets the same number of tokens. The first batch is
timed apart: `compile` compiles there. So is the last one, whose images have a different size.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    Florence2Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
)

from benchmarks.steps import machine
from sd_scripts.library.text.tokenizers import shipped_qwen
from sd_scripts.options.captioning.text import CaptionTextOptions
from sd_scripts.tools.captioning.captioner import Captioner
from sd_scripts.tools.timed_run import GIB

CHAT = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{% for c in m.content %}{% if c.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{c.text}}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEIGHTS = (1024, 832)
"""Height of the images in pixels: in most batches, and in the last one."""


def qwen3_vl(folder: Path) -> PreTrainedConfig:
    """Write the processor of Qwen3-VL-4B; return its sizes."""
    tokenizer = shipped_qwen()
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    text = {
        **{"vocab_size": 151_936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
        "rope_parameters": {"rope_type": "default", "mrope_section": [24, 20, 20], "rope_theta": 5e6},
    }
    vision = {
        **{"depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096, "out_hidden_size": 2560},
        **{"deepstack_visual_indexes": [5, 11, 17], "num_position_embeddings": 2304},
    }
    tokenizer.save_pretrained(folder)
    images = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2}
    sizes = {"temporal_patch_size": 2, "size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}
    _write(folder / "preprocessor_config.json", {**images, **sizes, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    _write(folder / "chat_template.json", {"chat_template": CHAT})
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        tie_word_embeddings=True,
    )


def florence2(folder: Path) -> PreTrainedConfig:
    """Write the processor of Florence-2-large; return its sizes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<s>", "<pad>", "</s>", "<unk>", "<image>", *(f"word{number}" for number in range(51_284))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    extra = {"extra_special_tokens": {"image_token": "<image>"}}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **extra).save_pretrained(folder)
    images = {"image_processor_type": "CLIPImageProcessor", "size": {"height": 768, "width": 768}}
    more = {"do_center_crop": False, "processor_class": "Florence2Processor", "image_seq_length": 577}
    _write(folder / "preprocessor_config.json", {**images, **more})
    text = {
        **{"model_type": "bart", "vocab_size": len(words), "d_model": 1024, "encoder_ffn_dim": 4096},
        **{"decoder_ffn_dim": 4096, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16},
        **{"decoder_attention_heads": 16, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
        **{"decoder_start_token_id": 2, "max_position_embeddings": 4096},
    }
    vision = {
        **{"embed_dim": [256, 512, 1024, 2048], "num_heads": [8, 16, 32, 64], "num_groups": [8, 16, 32, 64]},
        **{"depths": [1, 1, 9, 1], "projection_dim": 1024, "window_size": 12},
    }
    return Florence2Config(text_config=text, vision_config=vision, image_token_id=words.index("<image>"))


WRITERS: dict[str, Callable[[Path], PreTrainedConfig]] = {"qwen3_vl": qwen3_vl, "florence2": florence2}


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@torch.no_grad()
def write_model(folder: Path, name: str, device: str) -> None:
    """Write a captioner with random weights in bf16."""
    WRITERS[name](folder).save_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.to_empty(device=device)
    for parameter in model.parameters():
        deviation = parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.0
        parameter.normal_(std=deviation) if deviation else parameter.fill_(1.0)
    model.save_pretrained(folder)


def time_row(folder: Path, row: str, tokens: int, batches: int, device: str) -> str:
    """Return a line of the table."""
    count, _, options = row.partition("_")
    how: dict[str, Any] = {"compile": "compile" in options, "load_in_8bit": "8bit" in options}
    given = CaptionTextOptions(max_length=tokens, min_length=tokens, **how)
    captioner = Captioner(folder, given, device)
    prompt = "<MORE_DETAILED_CAPTION>" if captioner.takes_tasks else "Describe the image in a paragraph."
    draw = np.random.default_rng(0)
    seconds = []
    for batch in range(batches + 1):
        height = HEIGHTS[batch == batches]
        images = [draw.integers(0, 255, (height, 1024, 3), np.uint8) for _ in range(int(count))]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        began = time.perf_counter()
        captioner(images, [prompt] * len(images))
        seconds.append(time.perf_counter() - began)
    first, *usual, last = seconds
    each = statistics.median(usual) / int(count)
    peak = torch.cuda.max_memory_allocated() / GIB if torch.cuda.is_available() else 0.0
    cells = (row, f"{each:.3f}", f"{1 / each:.2f}", f"{first:.1f}", f"{last:.1f}", f"{peak:.2f}")
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=WRITERS, default=list(WRITERS))
    parser.add_argument("--rows", nargs="+", default=["1", "8", "8_compile", "8_8bit"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, default=6)
    arguments = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{machine()}\n")
    for name in arguments.model:
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            write_model(folder, name, device)
            print(f"| {name} | s an image | images/s | first batch s | last batch s | GiB |\n{'|---' * 6}|", flush=True)
            for row in arguments.rows:
                if device == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                print(time_row(folder, row, arguments.tokens, arguments.batches, device), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
