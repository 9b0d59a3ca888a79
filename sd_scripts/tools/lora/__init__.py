"""The work of the tools for LoRA files; the scripts next to this package are their commands."""
