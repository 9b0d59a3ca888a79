"""Checks of the options of the dataset, its caches and its augmentation."""

from sd_scripts.formats.words import is_whole_number
from sd_scripts.options.clips import ClipOptions
from sd_scripts.options.dataset import (
    NO_SMALL_BUCKETS,
    VARY_CAPTIONS,
    VARY_IMAGES,
    AugmentOptions,
    BucketOptions,
    CacheOptions,
    CaptionOptions,
    ControlOptions,
    DatasetOptions,
    ValidationOptions,
    rounded_steps,
)
from sd_scripts.options.spec import Findings
from sd_scripts.settings.checks.run_values import RunValues
from sd_scripts.settings.family_options import each_option


def training_size(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    buckets = values[BucketOptions]
    if data.dataset_config:
        return
    if not data.resolution:
        yield "resolution", "not set; 1024 suits current models"
        return
    sides = [int(side) for side in data.resolution.split(",") if is_whole_number(side.strip())]
    steps = rounded_steps(buckets.bucket_reso_steps)
    if not buckets.enable_bucket or buckets.bucket_no_upscale or not sides:  # sizes then come from the images
        return
    low, high = buckets.min_bucket_reso, buckets.max_bucket_reso
    if min(sides) < low // steps * steps and not _follows_area("min_bucket_reso", values):
        yield "min_bucket_reso", f"{low} is above resolution = {data.resolution}; lower it"
    if max(sides) > -(-high // steps) * steps and not _follows_area("max_bucket_reso", values):
        yield "max_bucket_reso", f"{high} is below resolution = {data.resolution}; raise it"


def _follows_area(name: str, values: RunValues) -> bool:
    """Return whether this bound of buckets is unset in a family of clips, whose buckets then follow from the area."""
    default = next(option.default for option in each_option(BucketOptions) if option.name == name)
    return values.card.clips is not None and getattr(values[BucketOptions], name) == default


def equal_tokens_without_upscale(values: RunValues) -> Findings:
    """A dataset_config may set either option for each dataset; the datasets themselves are checked then."""
    data = values[DatasetOptions]
    buckets = values[BucketOptions]
    if buckets.enable_bucket and buckets.equal_token_buckets and buckets.bucket_no_upscale and not data.dataset_config:
        yield "bucket_no_upscale", NO_SMALL_BUCKETS


def cached_latents_with_augmentation(values: RunValues) -> Findings:
    cache = values[CacheOptions]
    augment = values[AugmentOptions]
    if not cache.caches_latents:
        return
    for name in VARY_IMAGES:
        if getattr(augment, name):
            yield name, f"changes the image each time, so latents cannot be cached; turn off {name} or cache_latents"


def cached_captions_with_changes(values: RunValues) -> Findings:
    cache = values[CacheOptions]
    captions = values[CaptionOptions]
    if not cache.caches_text:
        return
    for name in VARY_CAPTIONS:
        if getattr(captions, name):
            yield name, "changes captions at every step, so they cannot be cached; turn it off or disable the cache"


def validation_takes_all_images(values: RunValues) -> Findings:
    validation = values[ValidationOptions]
    data = values[DatasetOptions]
    if validation.validation_split == 1 and not data.dataset_config:
        yield (
            "validation_split",
            "1 keeps every image out of training; set less, or describe a dataset for validation alone in a "
            "dataset_config",
        )


def dataset_given_twice(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    for name in ("train_data_dir", "reg_data_dir", "in_json", "conditioning_data_dir", "num_repeats"):
        if data.dataset_config and getattr(data, name):
            yield name, "has no effect: dataset_config describes the data"


def control_directory_of_other_data(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    controls = values[ControlOptions]
    if controls.control_directory and data.dataset_config:
        yield "control_directory", "has no effect: dataset_config names it for each of its subsets"
    elif controls.control_directory and data.in_json:
        yield "control_directory", "has no effect: the metadata file names control images in control_path"


def equal_tokens_without_buckets(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    buckets = values[BucketOptions]
    if buckets.equal_token_buckets and not buckets.enable_bucket and not data.dataset_config:
        yield "equal_token_buckets", "has no effect without enable_bucket"


def clip_options_of_other_extractions(values: RunValues) -> Findings:
    clips = values[ClipOptions]
    if values[DatasetOptions].dataset_config:
        return
    chosen = clips.frame_extraction if clips.target_frames else "full"
    if clips.target_frames and chosen == "full":
        yield "target_frames", "has no effect with frame_extraction = full; set max_frames"
    for name, extraction in {"frame_stride": "slide", "frame_sample": "uniform"}.items():
        if getattr(clips, name) != 1 and chosen != extraction:
            unset = "" if clips.target_frames else " and target_frames"
            yield name, f"has no effect without frame_extraction = {extraction}{unset}"


def num_repeats_with_metadata_file(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    if data.in_json and data.num_repeats is not None and not data.dataset_config:
        yield "num_repeats", "has no effect with in_json; set dataset_repeats instead"


def masks_missing(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    augment = values[AugmentOptions]
    if data.conditioning_data_dir and not data.dataset_config and not augment.masked_loss:
        yield "conditioning_data_dir", "has no effect without masked_loss"
    if augment.masked_loss and not (data.conditioning_data_dir or data.dataset_config or augment.alpha_mask):
        yield "masked_loss", "has no effect without masks; set conditioning_data_dir to their folder"


def persistent_workers_without_workers(values: RunValues) -> Findings:
    data = values[DatasetOptions]
    if data.persistent_data_loader_workers and data.max_data_loader_n_workers == 0:
        yield "persistent_data_loader_workers", "has no effect with max_data_loader_n_workers = 0"


def validation_without_images(values: RunValues) -> Findings:
    validation = values[ValidationOptions]
    data = values[DatasetOptions]
    if validation.validation_split or data.dataset_config:
        return
    for name in ("validate_every_n_steps", "validate_every_n_epochs", "max_validation_steps"):
        if getattr(validation, name) is not None:
            yield name, "has no effect while validation_split is 0"
