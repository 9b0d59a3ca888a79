"""Video files: probed, decoded and written without torch."""
