"""Training loops of diffusers' and peft's classes alone, one module a family, for `benchmarks.learning_compared`."""
