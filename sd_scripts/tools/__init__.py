"""Programs for people, besides the training scripts."""
