"""Options: folders and dataset, aspect buckets, captions, augmentation and masks, caches, validation."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.formats.images.folder_names import is_ending
from sd_scripts.formats.images.image_folders import LONGEST_SIDE, MANY_REPEATS, MOST_REPEATS
from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.spec import OptionGroup, count, option, optional, path_option, switch

SIDES = (64, LONGEST_SIDE)
"""Shortest and longest side of a training image."""
SIDE_MULTIPLE = 32
"""Sides are rounded to multiples of this; it suits every family so far."""


def rounded_steps(steps: int, multiple: int = SIDE_MULTIPLE) -> int:
    """Round bucket_reso_steps up to a multiple."""
    return -(-steps // multiple) * multiple


def rounded_side(side: int, multiple: int) -> int:
    """Round a side to the nearest multiple."""
    return max(1, (side + multiple // 2) // multiple) * multiple


NO_SMALL_BUCKETS = (
    "does not work with equal_token_buckets, since small images would have fewer tokens; turn one of them off"
)
"""Why buckets of equal tokens need all images to be enlarged."""

VARY_IMAGES = ("color_aug", "random_crop", "face_crop_aug_range")
"""Options that change an image in every step, so that its latents cannot be cached."""
VARY_CAPTIONS = (
    *("shuffle_caption", "enable_wildcard", "caption_dropout_rate", "caption_dropout_every_n_epochs"),
    *("caption_tag_dropout_rate", "token_warmup_step"),
)
"""Options that change a caption in every step, so that its text encoder outputs cannot be cached."""


class DatasetOptions(OptionGroup, title="Folders and dataset"):
    """Where the images are and how they are batched."""

    train_data_dir: str | None = path_option(
        "Folder with the training images, in subfolders named like 10_cat: the number is the repeats per epoch, the "
        "rest is the caption of images without a caption file. The folder may itself be named like 10_cat. "
        "With in_json or num_repeats, any folder works.",
        label="Training images",
        placeholder="/data/cats, with 10_cat inside",
    )
    reg_data_dir: str | None = path_option(
        "Folder with regularisation images, in subfolders named like 1_cat. They keep the model from forgetting the "
        "class.",
        label="Regularisation images",
    )
    num_repeats: int | None = optional(
        "Train on the images directly inside train_data_dir, this many times each per epoch. "
        "Default: its subfolders named like 10_cat are used.",
        label="Repeats",
        placeholder="from the folder names",
        within=(1, MOST_REPEATS),
    )
    allow_many_repeats: bool = switch(
        f"Accept folder names with more than {MANY_REPEATS:,} repeats. A number that large is usually a date, as in "
        "20241122_photos, rather than a repeat count."
    )
    dataset_config: str | None = path_option(
        "TOML or JSON file that describes the dataset: several folders, resolutions and batch sizes in one run. "
        "Replaces the folders above.",
        label="Dataset file",
    )
    in_json: str | None = path_option(
        "Metadata file with captions, .json or .jsonl. Images are looked up under train_data_dir.",
        label="Metadata file",
    )
    dataset_repeats: int = option(
        1, "How often each image of the metadata file is used per epoch.", within=(1, MOST_REPEATS)
    )
    conditioning_data_dir: str | None = path_option(
        "Folder with a mask for each image, under the same file name. Used with masked_loss: white areas are trained, "
        "black areas are ignored.",
        label="Mask images",
    )
    dataset_class: str | None = optional(
        "Dotted path of a custom dataset class.",
        not_yet="custom dataset classes are not supported; describe the data with dataset_config",
    )
    debug_dataset: bool = switch(
        "Show the training samples instead of training.",
        not_yet="there is no sample viewer; see the dataset summary at the start of the run",
    )
    train_batch_size: int = option(
        1,
        "Images per step on each GPU. Larger batches give less noisy gradients and need more memory.",
        label="Batch size",
        within=(1, 1024),
    )
    resolution: str | None = optional(
        "Training size: one number for a square, or width,height. 1024 suits current models. "
        "With buckets it sets the area, not the shape. May be unset if the dataset file sets it.",
        suggestions=("1024", "768", "512", "1024,768"),
        placeholder="1024",
    )
    resize_interpolation: Literal["lanczos", "nearest", "bilinear", "linear", "bicubic", "cubic", "area"] | None = (
        optional(
            "Filter for resizing images. Default: area for shrinking and Lanczos for enlarging, a good choice.",
            label="Resize filter",
        )
    )
    cache_info: bool = switch(
        "Store image sizes in metadata_cache.json in each folder, for quick starts with huge folders. "
        "Changed images are measured again.",
        label="Remember image sizes",
    )
    short_batches: Literal["keep", "fill", "drop"] = option(
        "keep",
        "What to do with the images left over in a bucket: keep makes a smaller batch, fill adds other images of "
        "the bucket, drop skips them. With torch.compile each batch size needs its own graphs, so fill is faster.",
    )
    max_data_loader_n_workers: int = option(
        8,
        "Processes that load and prepare images, at most one per CPU core. 0 uses the training process: enough when "
        "latents are cached, and the safe choice on Windows.",
        label="Data loader workers",
        within=(0, 64),
    )
    persistent_data_loader_workers: bool = switch(
        "Keep these processes alive between epochs. Saves time with short epochs and costs RAM.",
        label="Keep data loader workers",
    )
    prior_loss_weight: float = option(
        1.0, "Loss weight of regularisation images, relative to training images.", within=(0.0, 1000.0)
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not (self.train_data_dir or self.dataset_config or self.in_json):
            yield (
                "train_data_dir",
                "not set; choose a folder with subfolders named like 10_cat, or set dataset_config",
            )
        if self.resolution and (why := resolution_problem(self.resolution)):
            yield "resolution", why
        if self.debug_dataset:
            yield "debug_dataset", "there is no sample viewer; turn it off to train"
        if self.dataset_class:
            yield "dataset_class", "custom dataset classes are not supported; describe the data with dataset_config"


def resolution_problem(resolution: str) -> str | None:
    """Return why a text is not a size such as 1024 or 1024,768; None if it is one."""
    sides = resolution.split(",")
    if len(sides) > 2 or not all(is_whole_number(side.strip()) for side in sides):
        return f"{resolution!r} is neither one number nor width,height; write 1024 or 1024,768"
    # int reads no more than 4,300 digits
    if any(not SIDES[0] <= int(side.strip()[:9]) <= SIDES[1] for side in sides):
        return f"{resolution} is outside {SIDES[0]}..{SIDES[1]}"
    return None


class ControlOptions(OptionGroup, title="Control images"):
    """Images or clips that the model sees in addition to the caption, such as the image to edit."""

    control_directory: str | None = path_option(
        "Folder with the control images of each training image, under its file name: cat.png, or cat_0.png, cat_1.png "
        "and so on for several. A folder in it named like the training folder, 10_cat, works too.",
        label="Control images",
        placeholder="/data/cats_before",
    )
    control_resolution: str | None = optional(
        "Area to which control images are resized, keeping their shape: one number for a square, or width,height. "
        "Default: resized and cropped to the size of their training image.",
        label="Area of control images",
        needs="control_images",
        placeholder="1024",
    )
    no_resize_control: bool = switch(
        "Keep the size of control images, cropped to multiples of 16. With control_resolution, larger ones are still "
        "resized to its area.",
        label="Keep the size of control images",
        needs="control_images",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.control_resolution and (why := resolution_problem(self.control_resolution)):
            yield "control_resolution", why


class BucketOptions(OptionGroup, title="Aspect buckets", shown_when="enable_bucket"):
    """Group images of similar aspect ratio and train each group at its own size."""

    enable_bucket: bool = switch(
        "Sort images by aspect ratio into buckets of equal area instead of cropping them all to one shape. "
        "Turn it on unless every image already has the training size.",
        label="Aspect buckets",
    )
    min_bucket_reso: int = option(
        256, "Shortest side of a bucket in pixels.", label="Shortest bucket side", within=SIDES
    )
    max_bucket_reso: int = option(
        1024,
        "Longest side of a bucket in pixels. Raise it to 2048 for wide images at a resolution of 1024.",
        label="Longest bucket side",
        within=SIDES,
    )
    bucket_reso_steps: int = option(
        64,
        "Bucket sides are multiples of this: 64, or 32 for a closer fit but more sizes to compile.",
        label="Bucket steps",
        within=(1, 512),
    )
    bucket_no_upscale: bool = switch(
        "Never enlarge an image: small images get small buckets. Adds bucket sizes, so compiling takes longer.",
        label="Never enlarge images",
    )
    equal_token_buckets: bool = switch(
        "Choose bucket sizes that all have the same number of tokens, so that they share compiled graphs. Images are "
        "cropped more than in ordinary buckets; the plan shows how much. Replaces bucket_reso_steps.",
        label="Buckets with equal tokens",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not self.enable_bucket:
            return
        if self.min_bucket_reso > self.max_bucket_reso:
            yield (
                "min_bucket_reso",
                f"{self.min_bucket_reso} is above max_bucket_reso = {self.max_bucket_reso}; lower it",
            )


class CaptionOptions(OptionGroup, title="Captions"):
    """How captions are read from their files and varied during training."""

    caption_extension: str = option(
        ".caption",
        "Extension of the caption files next to the images: cat.jpg and cat.txt.",
        suggestions=(".txt", ".caption", ".cap"),
    )
    shuffle_caption: bool = switch("Shuffle the parts of a caption each time it is used. For captions made of tags.")
    caption_separator: str = option(",", "Separator between the parts of a caption, also after they are shuffled.")
    keep_tokens: int = option(
        0, "Number of parts at the start that stay in place and are never dropped.", within=(0, 1000)
    )
    keep_tokens_separator: str = option(
        "", "Keep everything before this marker, such as |||, in place. Replaces keep_tokens."
    )
    secondary_separator: str | None = optional(
        "Separator, such as ;;;, between tags that stay together when shuffled; becomes caption_separator afterwards."
    )
    enable_wildcard: bool = switch(
        "Pick one alternative of {red|blue} at random, and one line of a caption file with several.", label="Wildcards"
    )
    caption_prefix: str | None = optional(
        "The word that prompts will use for your subject: put before every caption, and the whole caption of "
        "images that have none.",
        label="Trigger word",
        placeholder="such as ohwx cat",
    )
    caption_suffix: str | None = optional("Text put after every caption.")
    token_warmup_min: int = option(1, "Number of caption parts at the start of the token warm-up.", within=(1, 1000))
    token_warmup_step: float = option(
        0.0,
        "Length of the token warm-up, in which captions grow from token_warmup_min parts to all of them: "
        "in steps, or below 1 as a fraction of max_train_steps. 0 is off.",
        within=(0, 10_000_000),
        steps_or_fraction=True,
    )
    caption_dropout_rate: float = option(
        0.0,
        "Probability of dropping an image's caption, 0 to 1. About 0.05 keeps guidance working.",
        within=(0.0, 1.0),
    )
    caption_dropout_every_n_epochs: int = option(
        0, "Train without captions in every n-th epoch. 0 is never.", within=(0, 1_000_000)
    )
    caption_tag_dropout_rate: float = option(
        0.0, "Probability of dropping each part of a caption, 0 to 1.", within=(0.0, 1.0)
    )
    weighted_captions: bool = switch(
        "Read (word:1.3) in captions as a weight. Leave it off if captions contain literal brackets.",
        needs="clip_captions",
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not is_ending(self.caption_extension):
            yield "caption_extension", f"{self.caption_extension!r} is not a file extension; write .txt"


class AugmentOptions(OptionGroup, title="Augmentation and masks"):
    """How images are varied, and on which of their areas the model is trained."""

    color_aug: bool = switch("Vary the colours slightly each time. Cannot be combined with cached latents.")
    flip_aug: bool = switch("Mirror images left to right half of the time. Not for faces, text or anything asymmetric.")
    face_crop_aug_range: str | None = optional(
        "Crop around the face whose position is in the file name, enlarged by a random factor from low,high such as "
        "2.0,4.0. Cannot be combined with cached latents.",
        placeholder="2.0,4.0",
    )
    random_crop: bool = switch(
        "Crop at a random position instead of the centre. Cannot be combined with cached latents."
    )
    alpha_mask: bool = switch("Use the transparency of an image as its mask: transparent areas are not trained.")
    masked_loss: bool = switch(
        "Train only on the areas that the masks keep. The masks come from conditioning_data_dir or the dataset file."
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if self.face_crop_aug_range and not _is_range(self.face_crop_aug_range):
            yield "face_crop_aug_range", f"{self.face_crop_aug_range!r} is not low,high; write 2.0,4.0"


def _is_range(text: str) -> bool:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        return False
    return 0 < low <= high


CAPTIONS_AT_ONCE = 16
"""Captions that are encoded together for the cache if text_encoder_batch_size is unset."""


class CacheOptions(OptionGroup, title="Caches"):
    """Encode images and captions once instead of at every step."""

    cache_latents: bool = switch(
        "Encode every image once before training. Much faster, and frees the VAE's memory. Does not work with colour, "
        "face-crop or random-crop augmentation."
    )
    cache_latents_to_disk: bool = switch(
        "Keep latents on disk between runs, as .safetensors files next to the images. Stale files are rebuilt."
    )
    vae_batch_size: int = option(1, "Batch size of the VAE while caching.", label="VAE batch size", within=(1, 1024))
    skip_cache_check: bool = switch(
        "Use cache files without checking that they match the images. Starts faster with a huge, unchanged dataset "
        "and accepts caches of other programs."
    )
    cache_text_encoder_outputs: bool = switch(
        "Encode every caption once before training. Frees the text encoders' memory. Cached encoders cannot be "
        "trained, and captions cannot vary between steps.",
        label="Cache text encoder outputs",
    )
    cache_text_encoder_outputs_to_disk: bool = switch(
        "Keep encoded captions on disk between runs, as .safetensors files next to the images.",
        label="Cache text encoder outputs to disk",
    )
    text_encoder_batch_size: int | None = optional(
        "Captions encoded together while caching. Default: 16.", within=(1, 1024)
    )

    @property
    def caches_latents(self) -> bool:
        return self.cache_latents or self.cache_latents_to_disk

    @property
    def caches_text(self) -> bool:
        return self.cache_text_encoder_outputs or self.cache_text_encoder_outputs_to_disk


class ValidationOptions(OptionGroup, title="Validation"):
    """Measure the loss on held-out images. It rises when the model overfits."""

    validation_split: float = option(
        0.0, "Fraction of the images held out of training for validation, 0 to 1. 0 is off.", within=(0.0, 1.0)
    )
    validation_seed: int | None = optional(
        "Seed that chooses the held-out images. Default: seed.", within=(0, 2**32 - 1)
    )
    validate_every_n_steps: int | None = count("Validate every n steps.")
    validate_every_n_epochs: int | None = count("Validate every n epochs. Default: every epoch.", most=1_000_000)
    max_validation_steps: int | None = count("Use at most this many validation batches.", most=1_000_000)
