"""VAEs and text encoders that several families have."""
