"""A trainer that only reports: python telling_trainer.py FOLDER, then the arguments of `main`, in this order."""

import sys
import time
from pathlib import Path

from sd_scripts.runs.folder import RunFolder


def main(place: str, steps: str = "100000", at_once: str = "0", seconds: str = "0.01") -> None:
    folder, last = RunFolder(Path(place)), int(steps)
    log, commands = folder.log(), folder.commands()
    log("started", max_steps=last, epochs=1, images_per_step=2, family="sdxl", method="lora")
    log("warning", text="nothing is learned here")
    for step in range(1, last + 1):
        log("step", step=step, epoch=1, loss=1 / step, seconds=0.1, lr={"unet": 1e-4})
        if step <= int(at_once):
            continue
        print("step", step, flush=True)
        for command in list(commands):
            log("heard", command=command["kind"], ids=[command["id"]], step=step)
            if command["kind"] == "stop":
                log("stopped", step=step)
                return
        time.sleep(float(seconds))
    (folder.path / "model.safetensors").write_bytes(b"weights")
    for name in ("model", "gone"):
        log("saved", path=str(folder.path / f"{name}.safetensors"), step=last, bytes=7)
    log("finished", step=last)


if __name__ == "__main__":
    main(*sys.argv[1:])
