"""Options: folders and dataset, aspect buckets, captions, augmentation and masks, caches, validation."""

from collections.abc import Iterable
from typing import Literal

from sd_scripts.options.folder_names import is_ending
from sd_scripts.options.image_folders import MANY_REPEATS, MOST_REPEATS
from sd_scripts.options.spec import OptionGroup, option

SIDES = (64, 8192)
"""Shortest and longest side of an image in training."""
SIDE_MULTIPLE = 32
"""What sides must be a multiple of, for every family so far; others are rounded."""


def rounded_steps(steps: int, multiple: int = SIDE_MULTIPLE) -> int:
    """bucket_reso_steps brought up to a multiple."""
    return -(-steps // multiple) * multiple


def rounded_side(side: int, multiple: int = SIDE_MULTIPLE) -> int:
    """A side brought to the nearest multiple."""
    return max(1, (side + multiple // 2) // multiple) * multiple


class DatasetOptions(OptionGroup, title="Folders and dataset"):
    """Where the images are and how they are grouped."""

    train_data_dir: str | None = option(
        None,
        "Folder with the training images, in subfolders named like 10_cat: the number says how often each image "
        "is seen in an epoch, the rest is its caption where no caption file lies beside it. A folder named like 10_cat "
        "that holds images itself is taken too. With in_json or num_repeats any folder.",
        label="Training images",
        placeholder="/data/cats, with 10_cat inside",
        path=True,
    )
    reg_data_dir: str | None = option(
        None,
        "Folder with regularisation images, in subfolders named like 1_cat: examples that keep the model "
        "from forgetting the class.",
        label="Regularisation images",
        path=True,
    )
    num_repeats: int | None = option(
        None,
        "Train the images in train_data_dir itself, a folder without subfolders, so many times each in an epoch. "
        "Unset, its subfolders named like 10_cat are trained.",
        label="Repeats",
        placeholder="from the folders' names",
        within=(1, MOST_REPEATS),
    )
    allow_many_repeats: bool = option(
        False,
        f"Accept folder names that ask for more than {MANY_REPEATS:,} repeats. A number that large is mostly a date, "
        "as in 20241122_photos, and not meant as repeats.",
    )
    dataset_config: str | None = option(
        None,
        "TOML or JSON file that describes the dataset: several folders, resolutions and batch sizes in one run. "
        "It takes the place of the folders above.",
        label="Dataset file",
        path=True,
    )
    in_json: str | None = option(
        None,
        "Metadata file with captions, .json or .jsonl; images are then looked up under train_data_dir.",
        label="Metadata file",
        path=True,
    )
    dataset_repeats: int = option(
        1, "How often each image of the metadata file is seen in an epoch.", within=(1, MOST_REPEATS)
    )
    conditioning_data_dir: str | None = option(
        None,
        "Folder with a mask for each image, of the same name; used with masked_loss. White counts, black does not.",
        label="Mask images",
        path=True,
    )
    dataset_class: str | None = option(
        None,
        "Dotted path of a dataset class of your own.",
        not_yet="dataset classes of your own are not loaded; describe the data with dataset_config",
    )
    debug_dataset: bool = option(
        False,
        "Show the training samples instead of training.",
        not_yet="samples are not shown in a window; look at the dataset summary at the start of the run",
    )
    train_batch_size: int = option(
        1,
        "Images in one step on each GPU. More makes gradients less noisy and needs more memory.",
        label="Batch size",
        within=(1, 1024),
    )
    resolution: str | None = option(
        None,
        "Size to train at: one number for a square, or width,height. SDXL and FLUX.1 were trained at 1024. "
        "With buckets it sets the area, not the shape. Unset, the dataset file must say it.",
        suggestions=("1024", "768", "512", "1024,768"),
        placeholder="1024",
    )
    resize_interpolation: Literal["lanczos", "nearest", "bilinear", "linear", "bicubic", "cubic", "area"] | None = (
        option(
            None,
            "Filter that resizes images. Unset is a good choice: area for shrinking, Lanczos for enlarging.",
            label="Resize filter",
        )
    )
    cache_info: bool = option(
        False,
        "Remember the sizes of images in metadata_cache.json in their folder, for quick starts with huge folders. "
        "An image that changed is looked at again.",
        label="Remember image sizes",
    )
    short_batches: Literal["keep", "fill", "drop"] = option(
        "keep",
        "What becomes of the images left over in a bucket: keep makes a smaller batch of them, fill adds others of "
        "the bucket, drop leaves them out. With torch.compile every size of batch costs graphs: fill is faster there.",
    )
    max_data_loader_n_workers: int = option(
        8,
        "Processes that prepare images, never more than the machine has CPU cores. 0 prepares them in the training "
        "process: enough when latents are cached, and the safe choice on Windows.",
        label="Data loader workers",
        within=(0, 64),
    )
    persistent_data_loader_workers: bool = option(
        False,
        "Keep these processes between epochs. Saves time with short epochs, costs main memory.",
        label="Keep data loader workers",
    )
    prior_loss_weight: float = option(
        1.0, "How much a regularisation image counts against a training image.", within=(0.0, 1000.0)
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not (self.train_data_dir or self.dataset_config or self.in_json):
            yield (
                "train_data_dir",
                "no images are named; give a folder with subfolders named like 10_cat, or a dataset_config",
            )
        if self.resolution and (why := _resolution_problem(self.resolution)):
            yield "resolution", why
        if self.debug_dataset:
            yield "debug_dataset", "samples are not shown in a window; turn it off to train"
        if self.dataset_class:
            yield "dataset_class", "classes of your own are not loaded; describe the data with dataset_config"


def _resolution_problem(resolution: str) -> str | None:
    sides = resolution.split(",")
    if len(sides) > 2 or not all(side.strip().isdecimal() for side in sides):
        return f"{resolution!r} is neither one number nor width,height; write 1024 or 1024,768"
    if any(not SIDES[0] <= int(side) <= SIDES[1] for side in sides):
        return f"{resolution} is outside {SIDES[0]}..{SIDES[1]}"
    return None


class BucketOptions(OptionGroup, title="Aspect buckets"):
    """Images of like shape share a bucket and are trained at its size."""

    enable_bucket: bool = option(
        False,
        "Sort images by shape into buckets of equal area instead of cropping all to one shape. "
        "Turn it on unless every image has the training size already.",
        label="Aspect buckets",
    )
    min_bucket_reso: int = option(
        256,
        "Shortest side of a bucket in pixels.",
        label="Shortest bucket side",
        within=SIDES,
        shown_when="enable_bucket",
    )
    max_bucket_reso: int = option(
        1024,
        "Longest side of a bucket in pixels. Raise it to 2048 for wide images at a resolution of 1024.",
        label="Longest bucket side",
        within=SIDES,
        shown_when="enable_bucket",
    )
    bucket_reso_steps: int = option(
        64,
        "Bucket sides are multiples of this: 64, or 32 for a closer fit and more sizes to compile.",
        label="Bucket steps",
        within=(1, 512),
        shown_when="enable_bucket",
    )
    bucket_no_upscale: bool = option(
        False,
        "Never enlarge an image: a small one gets a small bucket. Makes more sizes, so compiling takes longer.",
        label="Never enlarge images",
        shown_when="enable_bucket",
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
    """From the caption file to the words the model reads."""

    caption_extension: str = option(
        ".caption",
        "Ending of the caption files that lie beside the images: cat.jpg and cat.txt.",
        suggestions=(".txt", ".caption", ".cap"),
    )
    shuffle_caption: bool = option(
        False, "Put the parts of a caption in a new order each time, for captions made of tags."
    )
    caption_separator: str = option(",", "What stands between the parts of a caption.")
    keep_tokens: int = option(0, "How many parts at the start stay in place and are never dropped.", within=(0, 1000))
    keep_tokens_separator: str = option(
        "", "Mark in the caption, such as |||, that ends the part to keep; used in place of keep_tokens."
    )
    secondary_separator: str | None = option(
        None, "Mark, such as ;;;, between words that stay together as one part; becomes caption_separator in the end."
    )
    enable_wildcard: bool = option(
        False,
        "Draw one of {red|blue} and, where a caption file has several lines, one of the lines.",
        label="Wildcards",
    )
    caption_prefix: str | None = option(None, "Words put before every caption.")
    caption_suffix: str | None = option(None, "Words put after every caption.")
    token_warmup_min: int = option(1, "With how many parts the caption starts in a token warm-up.", within=(1, 1000))
    token_warmup_step: float = option(
        0.0,
        "Length of the token warm-up, in which captions grow from token_warmup_min parts to all of them: "
        "steps, or below 1 a share of max_train_steps. 0 is none.",
        within=(0, 10_000_000),
        steps_or_fraction=True,
    )
    caption_dropout_rate: float = option(
        0.0,
        "How often an image is shown without its caption, 0 to 1. About 0.05 keeps guidance working.",
        within=(0.0, 1.0),
    )
    caption_dropout_every_n_epochs: int = option(
        0, "Show all images without captions in every n-th epoch. 0 is never.", within=(0, 1_000_000)
    )
    caption_tag_dropout_rate: float = option(
        0.0, "How often each part of a caption is left out, 0 to 1.", within=(0.0, 1.0)
    )
    weighted_captions: bool = option(
        False,
        "Read (word:1.3) in captions as weight. Do not use it with brackets that are meant literally.",
        families=("sdxl",),
    )

    def check(self) -> Iterable[tuple[str, str]]:
        if not is_ending(self.caption_extension):
            yield "caption_extension", f"{self.caption_extension!r} is not the ending of a file name; write .txt"


class AugmentOptions(OptionGroup, title="Augmentation and masks"):
    """What may be changed about an image, and which part of it counts."""

    color_aug: bool = option(False, "Vary the colours a little each time. Latents cannot be cached then.")
    flip_aug: bool = option(
        False, "Mirror images left to right half of the time. Not for faces, writing or anything with a left side."
    )
    face_crop_aug_range: str | None = option(
        None,
        "Crop around the face whose place the file name gives, enlarged by a random factor from low,high "
        "such as 2.0,4.0. Latents cannot be cached then.",
        placeholder="2.0,4.0",
    )
    random_crop: bool = option(False, "Crop at a random place instead of the middle. Latents cannot be cached then.")
    alpha_mask: bool = option(
        False, "Let the transparency of an image be its mask: what is transparent is not learned."
    )
    masked_loss: bool = option(
        False,
        "Let masks decide which part of an image is learned; conditioning_data_dir or the dataset file has them.",
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


class CacheOptions(OptionGroup, title="Caches"):
    """What is encoded once and kept, so that a step need not do it again."""

    cache_latents: bool = option(
        False,
        "Encode every image once before training and keep the result. Much faster, and frees the VAE's memory; "
        "not with colour, face-crop or random-crop augmentation.",
    )
    cache_latents_to_disk: bool = option(
        False,
        "Keep the encoded images as .npz files beside them, for the next run too. A stale file is made anew.",
    )
    vae_batch_size: int = option(
        1, "Images the VAE encodes at once while caching.", label="VAE batch size", within=(1, 1024)
    )
    skip_cache_check: bool = option(
        False,
        "Trust cache files without asking what they were made from: a quick start with a huge dataset that surely did "
        "not change, and the way to use caches of other programs.",
    )
    cache_text_encoder_outputs: bool = option(
        False,
        "Encode every caption once before training. Frees the text encoders' memory; they cannot be trained then "
        "(with FLUX.1, CLIP-L still can), and captions cannot change from step to step.",
        label="Cache text encoder outputs",
    )
    cache_text_encoder_outputs_to_disk: bool = option(
        False,
        "Keep the encoded captions as .npz files beside the images, for the next run too.",
        label="Cache text encoder outputs to disk",
    )
    text_encoder_batch_size: int | None = option(
        None, "How many captions are encoded at once when they are cached; unset is 16.", within=(1, 1024)
    )


class ValidationOptions(OptionGroup, title="Validation"):
    """Loss on images that are kept out of training: it rises when the model learns by heart."""

    validation_split: float = option(
        0.0, "Share of the images kept out of training to measure the loss on, 0 to 1. 0 is none.", within=(0.0, 1.0)
    )
    validation_seed: int | None = option(
        None, "Seed that chooses these images; unset takes seed.", within=(0, 2**32 - 1)
    )
    validate_every_n_steps: int | None = option(
        None, "Validate every n steps.", within=(0, 10_000_000), zero_is_off=True
    )
    validate_every_n_epochs: int | None = option(
        None, "Validate every n epochs; unset validates after each.", within=(0, 1_000_000), zero_is_off=True
    )
    max_validation_steps: int | None = option(
        None, "Use at most so many validation batches.", within=(0, 1_000_000), zero_is_off=True
    )
