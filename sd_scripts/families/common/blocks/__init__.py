"""Blocks of transformers that several families have."""
