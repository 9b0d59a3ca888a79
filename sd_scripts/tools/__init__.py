"""Programs for people beside the training scripts."""
