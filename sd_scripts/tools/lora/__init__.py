"""What the tools for LoRA files do; the scripts beside this package are their commands."""
