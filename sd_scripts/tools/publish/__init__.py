"""Publish the result of a run: a model card, an upload to the Hugging Face Hub, a zip."""
