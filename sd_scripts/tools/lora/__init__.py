"""What the tools for LoRA files do; the scripts next to this package are their commands."""
