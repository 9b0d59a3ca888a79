"""Compare the checkpoints of a run: a matrix of images, and the validation loss of each."""
