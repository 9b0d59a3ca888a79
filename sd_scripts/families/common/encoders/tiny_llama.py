"""LLaMA-3 and CLIP-L in miniature: LLaMA's tokenizer with the words of the drawn images, and both encoders' sizes."""

import re

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import CLIPTextModel, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from sd_scripts.families.common.encoders.llama import CLIP_NAME, LLM_NAME, PREFIX, language_config
from sd_scripts.testing.miniature import caption_words, clip_config, letter_merges

WIDTH = 64
"""Of both text encoders."""
SPECIAL = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """Make a byte-level tokenizer like LLaMA-3's that merges the letters of each word of captions and of the text
    around them one by one."""
    merges = letter_merges((*caption_words(), *sorted(set(re.findall(r"\w+", PREFIX)))))
    tokens = dict.fromkeys([*sorted(pre_tokenizers.ByteLevel.alphabet()), *(left + right for left, right in merges)])
    made = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=merges))
    split = pre_tokenizers.Split(Regex(r"\s*[\r\n]+| ?\w+|\s+|[^\s\w]+"), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    made.post_processor = processors.TemplateProcessing(
        f"{SPECIAL[0]} $A", special_tokens=[(SPECIAL[0], made.token_to_id(SPECIAL[0]))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=SPECIAL[0], eos_token=SPECIAL[3])


def tiny_encoders(vocabulary: int, clip_vocabulary: int) -> dict[str, nn.Module]:
    """Return LLaMA with all its layers, and CLIP."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (vocabulary, WIDTH)}
    shapes |= {f"layers.{number}.mlp.gate_proj.weight": (2 * WIDTH, WIDTH) for number in range(4)}
    shapes |= {"layers.0.self_attn.k_proj.weight": (WIDTH, WIDTH)}
    return {
        LLM_NAME: LlamaModel(LlamaConfig(**language_config(shapes))),
        CLIP_NAME: CLIPTextModel(clip_config(clip_vocabulary, WIDTH, "quick_gelu")),
    }
