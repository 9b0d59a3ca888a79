"""Image encoders of CLIP and SigLIP: sizes from shapes."""

import math
from typing import Any

from sd_scripts.library.files.state_dicts import Shapes, count


def vision_config(shapes: Shapes, head_width: int, *, class_tokens: int = 0, **more: Any) -> dict[str, Any]:
    """Return the arguments of transformers' CLIPVisionConfig or SiglipVisionConfig. `head_width`: shapes do not
    determine it; `class_tokens` have positions before the patches'. Raises KeyError if a needed key is missing."""
    width, _, patch, _ = shapes["embeddings.patch_embedding.weight"]
    side = math.isqrt(shapes["embeddings.position_embedding.weight"][0] - class_tokens)
    return {
        "hidden_size": width,
        "intermediate_size": shapes["encoder.layers.0.mlp.fc1.weight"][0],
        "num_hidden_layers": count(shapes, r"encoder\.layers\.\d+\.mlp\.fc1\.weight"),
        "num_attention_heads": max(1, width // head_width),
        "image_size": 384 if (side, patch) == (27, 14) else side * patch,  # six pixels are left over
        "patch_size": patch,
        **more,
    }
