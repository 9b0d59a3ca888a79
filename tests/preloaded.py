"""What fresh processes find imported."""

from importlib import import_module

from sd_scripts.runs import garbage_collection

with garbage_collection.importing():
    for module in (
        "training_help",
        *(f"sd_scripts.{name}" for name in ("sdxl_train_network", "sdxl_train", "training.trainer", "training.full")),
        *(f"sd_scripts.families.{name}" for name in ("sdxl.samplers", "flux.sampling")),
        *("transformers.optimization", "diffusers.optimization", "torch.profiler", "torch._dynamo"),
    ):
        import_module(module)
