"""LoRA gradients at full size in comparison to sd-scripts', by kind of layer; a module for each family."""
