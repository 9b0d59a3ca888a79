"""Options of the scripts that generate images."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.generating.prompt_lines import LARGEST_SEED, MAX_FPS, MAX_FRAMES, MAX_SHIFT, NEW_SEED
from sd_scripts.options.generating.sampling import SAMPLERS
from sd_scripts.options.spec import OptionGroup, count, option, optional, path_option, switch

GENERATE = "generate"
"""The method of the scripts that generate, in addition to the training methods."""
PREVIEW = "preview.webp"
"""File in the run folder with the image so far."""

FILES_OF = {"lora_multiplier": "lora_weights", "lora_multiplier_high_noise": "lora_weight_high_noise"}
"""Option with strengths -> option with the files."""


class GenerateOptions(OptionGroup, title="Generate", methods=(GENERATE,)):
    """Which images or clips to generate, and where they go. A prompt may override size, seed, steps, scale, guidance,
    negative prompt, sampler, control images and the length of a clip, as in
    `a cat --w 1024 --h 1024 --d 1 --s 30 --l 5 --g 3.5 --n blurry` or `a cat --w 832 --h 480 --f 81`."""

    prompt: list[str] = option([], "Prompts, one image each, with options such as --w 1024 --d 1 at their end.")
    prompt_file: str | None = path_option(
        "File with more prompts, as sample_prompts of training: .txt with one per line, .toml or .json."
    )
    negative_prompt: str = option("", "What to avoid, unless the prompt sets it (--n). Needs a scale above 1.")
    width: int | None = optional(
        "Width in pixels, unless the prompt sets it (--w). Default: 1024, or a video model's.", within=(64, 8192)
    )
    height: int | None = optional(
        "Height in pixels, unless the prompt sets it (--h). Default: 1024, or a video model's.", within=(64, 8192)
    )
    frames: int | None = optional(
        "Frames of a clip, unless the prompt sets them (--f); 1 is an image. Default: the family's.",
        within=(1, MAX_FRAMES),
        needs="clips",
    )
    fps: float | None = optional(
        "Frames per second at which a clip is played, unless the prompt sets them (--fps). Default: the family's.",
        label="Frames per second",
        within=(1.0, float(MAX_FPS)),
        needs="clips",
    )
    steps: int | None = optional(
        "Sampling steps, unless the prompt sets it (--s). Default: the family's.", within=(1, 999)
    )
    scale: float | None = optional(
        "Classifier-free guidance, unless the prompt sets it (--l); 1 is off. Default: the family's.",
        label="CFG scale",
        within=(0.0, 100.0),
    )
    guidance: float | None = optional(
        "Guidance of a distilled model, unless the prompt sets it (--g). Default: the family's.",
        needs="guidance",
        within=(0.0, 100.0),
    )
    shift: float | None = optional(
        "Shift of the timesteps, unless the prompt sets it (--fs): higher spends more steps on the large structure. "
        "Default: the family's.",
        within=(0.01, float(MAX_SHIFT)),
        needs="flow_shift",
    )
    sampler: str = option(
        "euler_a",
        "Sampler, unless the prompt sets it (--ss).",
        choices=SAMPLERS,
        needs="noise_schedule",
    )
    image_seed: int | None = optional(
        "Seed of the first image, unless the prompt sets it (--d); further images of a prompt count up. "
        "Default, and with -1: a new one for each image.",
        label="Seed",
        within=(NEW_SEED, LARGEST_SEED),
    )
    images_per_prompt: int = option(1, "Images of each prompt, with different seeds.", within=(1, 1000))
    batch_size: int = option(
        1,
        "Images of a prompt to generate together, which is faster if GPU memory suffices. Seeds are the same as one "
        "by one.",
        within=(1, 64),
        needs="batches",
    )
    sweep: list[str] = option(
        [],
        "Options whose values are compared: one, such as lora_multiplier=0.6,0.8,1, or two, such as "
        "steps=20,30 too, for an image of each pair. A labelled grid is made besides the images.",
        label="Compare values",
        placeholder="lora_multiplier=0.6,0.8,1",
    )
    control_image_path: list[str] = option(
        [],
        "Control images, such as the image to edit, where the prompt names none (--ci). The model sees all of them.",
        label="Control images",
        path=True,
        needs="control_images",
    )
    image_path: str | None = path_option(
        "Image that clips begin with, unless the prompt names one (--i).", label="Start image", needs="start_image"
    )
    end_image_path: str | None = path_option(
        "Image that clips end with, unless the prompt names one (--ei).", label="End image", needs="end_image"
    )
    control_path: str | None = path_option(
        "Clip, or folder of frames, that the frames of clips follow, unless the prompt names one (--cn).",
        label="Control clip",
        needs="control_clips",
    )
    lora_weights: list[str] = option([], "LoRAs and other adapters to apply together.", label="LoRA files", path=True)
    lora_multiplier: list[float] = option(
        [], "Strength of each adapter file. Default: 1.", label="LoRA strengths", within=(-100.0, 100.0)
    )
    lora_weight_high_noise: list[str] = option(
        [],
        "Adapters for the model for high noise, where lora_weights are for the other one alone. Default: each file of "
        "lora_weights is applied to the models that it was trained on, if its metadata shows them.",
        label="LoRA files at high noise",
        path=True,
        needs="experts",
    )
    lora_multiplier_high_noise: list[float] = option(
        [],
        "Strength of each of these files. Default: 1.",
        label="LoRA strengths at high noise",
        within=(-100.0, 100.0),
        needs="experts",
    )
    image_dir: str = option("outputs/images", "Folder for the images.", label="Image folder", path=True)
    no_metadata: bool = switch("Do not write parameters into the images.", label="No parameters in images")
    dtype: Literal["bf16", "fp16", "fp32"] = option("bf16", "Precision of the model.", label="Precision")
    zero_terminal_snr: bool = switch(
        "The model was trained with zero_terminal_snr.", label="Zero terminal SNR", needs="noise_schedule"
    )
    resident: bool = switch("Keep the model and its graphs, and wait for requests in run_dir.")
    idle_seconds: int | None = count(
        "Shut down a resident process after this many idle seconds; 0 keeps it running.", label="End when idle"
    )

    def check(self) -> Iterable[tuple[str, str]]:
        for name, files in FILES_OF.items():
            if (numbers := len(getattr(self, name))) > (count := len(getattr(self, files))):
                yield name, f"has {numbers} numbers for {count} files in {files}; give one for each file"
        if not self.resident and not self.prompt and not self.prompt_file:
            yield "prompt", "not set; give a prompt, or a file of prompts in prompt_file"
