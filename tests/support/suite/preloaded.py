"""What fresh processes find imported."""

import threading
from importlib import import_module

from tqdm import tqdm

from sd_scripts.machine import garbage_collection

with garbage_collection.importing():
    for module in (
        "tests.support.training",
        *(f"sd_scripts.{name}" for name in ("sdxl_train_network", "sdxl_train", "training.trainer")),
        "sd_scripts.training.methods.full",
        *(f"sd_scripts.families.{name}" for name in ("sdxl.samplers", "flux.sampling")),
        *("transformers.optimization", "diffusers.optimization", "torch.profiler", "torch._dynamo"),
        *("kohya_gui.server.lean_gradio", "kohya_gui.app"),
    ):
        import_module(module)

tqdm.set_lock(threading.RLock())  # its own is known to the system, where a process that is killed leaves it
