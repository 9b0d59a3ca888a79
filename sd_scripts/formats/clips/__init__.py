"""Clips as MP4 files, written with their parameters and read without torch."""
