"""Exit codes of the training scripts and tools."""

MISTAKE, FAULT, INTERRUPTED = 2, 1, 130
"""Something in the settings or input, before the work; something that happened in it; stopped before there was
anything to save."""
