"""Publish what a run trained: a model card, an upload to the Hugging Face Hub, a zip."""
