"""The prompts of sample images, under the name by which the trainer knows them; prompt_lines.py reads them."""

from sd_scripts.options.prompt_lines import SamplePrompt, line_keys, read_prompts

__all__ = ["SamplePrompt", "line_keys", "read_prompts"]
