"""Captioners in miniature, with random weights: Florence-2, BLIP-2 and Qwen3-VL, as their repositories have them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessorPil,
    Florence2Config,
    Florence2ForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from sd_scripts.families.qwen_image.tiny import qwen_tokenizer

WORDS = ("<s>", "<pad>", "</s>", "<unk>", "<image>", "a", "red", "circle", "Describe", "with", "paragraph", "image")
CHAT = (
    "{% for m in messages %}<|im_start|>{{m.role}}\n{% for c in m.content %}{% if c.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{c.text}}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _words(**more: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are words."""
    tokenizer = Tokenizer(models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names, **more)


def _write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def write_florence(folder: Path) -> Path:
    torch.manual_seed(3)
    text = {
        **{"model_type": "bart", "vocab_size": len(WORDS), "d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
        **{"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
        **{"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    }
    vision = {
        **{"embed_dim": [8, 8, 8, 16], "num_heads": [1] * 4, "num_groups": [1] * 4, "depths": [1] * 4},
        **{"projection_dim": 16, "window_size": 4, "drop_path_rate": 0.0},
    }
    Florence2ForConditionalGeneration(
        Florence2Config(text_config=text, vision_config=vision, image_token_id=WORDS.index("<image>"))
    ).save_pretrained(folder)
    _words(extra_special_tokens={"image_token": "<image>"}).save_pretrained(folder)
    images = {"image_processor_type": "CLIPImageProcessor", "size": {"height": 64, "width": 64}}
    more = {"do_center_crop": False, "processor_class": "Florence2Processor", "image_seq_length": 5}
    _write(folder, "preprocessor_config.json", {**images, **more})
    return folder


def write_blip2(folder: Path) -> Path:
    torch.manual_seed(0)
    layer = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {
        **{"model_type": "opt", "vocab_size": len(WORDS), "hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 16},
        **{"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64},
        **{"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
    }
    config = Blip2Config(
        vision_config={**layer, "image_size": 16, "patch_size": 8},
        qformer_config={**layer, "vocab_size": 8, "encoder_hidden_size": 16, "cross_attention_frequency": 1},
        text_config=text,
        num_query_tokens=4,
        image_token_index=WORDS.index("<image>"),
    )
    Blip2ForConditionalGeneration(config).save_pretrained(folder)
    Blip2Processor(
        BlipImageProcessorPil(size={"height": 16, "width": 16}), _words(), num_query_tokens=4
    ).save_pretrained(folder)
    return folder


def write_qwen(folder: Path) -> Path:
    torch.manual_seed(0)
    tokenizer = qwen_tokenizer()
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    text = {
        **{"vocab_size": len(tokenizer), "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
    }
    vision = {
        **{"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32},
        **{"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
    }
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=ids["image_pad"], video_token_id=ids["video_pad"]
    )
    Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    images = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2}
    sizes = {"temporal_patch_size": 2, "size": {"shortest_edge": 1024, "longest_edge": 65536}}
    _write(folder, "preprocessor_config.json", {**images, **sizes, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    _write(folder, "chat_template.json", {"chat_template": CHAT})
    return folder


WRITERS = {"florence2": write_florence, "blip-2": write_blip2, "qwen3_vl": write_qwen}
