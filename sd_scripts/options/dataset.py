"""Options: folders and data set, aspect buckets, captions, augmentation and masks, caches, validation."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option


class DatasetOptions(OptionGroup, title="Folders and data set"):
    """Where the pictures are and how they are grouped."""

    train_data_dir: str | None = option(
        None, "Folder with N_concept subfolders (or image root for fine-tune metadata)."
    )
    reg_data_dir: str | None = option(None, "Folder with N_concept subfolders of regularisation images.")
    dataset_config: str | None = option(None, "TOML/JSON dataset description.")
    in_json: str | None = option(None, "Metadata file that switches to the fine-tune dataset style.")
    dataset_repeats: int = option(1, "Repeat count for fine-tune style subsets.")
    conditioning_data_dir: str | None = option(None, "Mask (or control) image folder for the legacy folder dataset.")
    dataset_class: str | None = option(None, "Dotted path of a custom dataset class.")
    debug_dataset: bool = option(False, "Display samples instead of training.")
    train_batch_size: int = option(1, "Per-device batch size.")
    resolution: str | None = option(None, '"size" or "width,height" of the training area.')
    resize_interpolation: Literal["lanczos", "nearest", "bilinear", "linear", "bicubic", "cubic", "area"] | None = (
        option(None, "Resampling filter for resizing.")
    )
    cache_info: bool = option(False, "Cache captions and sizes in metadata_cache.json per folder.")
    max_data_loader_n_workers: int = option(8, "Upper bound of DataLoader workers.")
    persistent_data_loader_workers: bool = option(False, "Keep workers alive between epochs.")
    prior_loss_weight: float = option(1.0, "Loss weight of regularisation images.")


class BucketOptions(OptionGroup, title="Aspect buckets"):
    """Pictures of like shape share a bucket and are trained at its size."""

    enable_bucket: bool = option(False, "Aspect-ratio bucketing.")
    min_bucket_reso: int = option(256, "Smallest bucket side.")
    max_bucket_reso: int = option(1024, "Largest bucket side.")
    bucket_reso_steps: int = option(64, "Bucket side granularity.")
    bucket_no_upscale: bool = option(False, "Buckets from image size, never enlarging.")


class CaptionOptions(OptionGroup, title="Captions"):
    """From the caption file to the words the model reads."""

    caption_extension: str = option(".caption", "Suffix of caption files.")
    shuffle_caption: bool = option(False, "Randomise order of caption parts.")
    caption_separator: str = option(",", "Delimiter between caption parts for shuffling and dropout.")
    keep_tokens: int = option(0, "Number of leading parts exempt from shuffle/drop.")
    keep_tokens_separator: str = option("", "Marker splitting fixed from flexible parts; overrides keep_tokens.")
    secondary_separator: str | None = option(
        None, "Delimiter kept inside a part, replaced by caption_separator at the end."
    )
    enable_wildcard: bool = option(False, "Choose among {a|b} alternatives and among lines of a multi-line caption.")
    caption_prefix: str | None = option(None, "Text put before each caption (joined by a space).")
    caption_suffix: str | None = option(None, "Text put after each caption (joined by a space).")
    token_warmup_min: int = option(1, "Number of parts used at step 0 of tag warm-up.")
    token_warmup_step: float = option(
        0.0, "Step at which all parts are used; below 1 it is a fraction of max_train_steps."
    )
    caption_dropout_rate: float = option(0.0, "Probability of an empty caption.")
    caption_dropout_every_n_epochs: int = option(0, "Empty all captions in every n-th epoch.")
    caption_tag_dropout_rate: float = option(0.0, "Probability of dropping each part.")
    weighted_captions: bool = option(False, "Parse (text:1.3) weights in captions.")


class AugmentOptions(OptionGroup, title="Augmentation and masks"):
    """What may be changed about a picture, and which part of it counts."""

    color_aug: bool = option(False, "Weak random colour change.")
    flip_aug: bool = option(False, "Random horizontal flip (cached as a second latent).")
    face_crop_aug_range: str | None = option(None, 'Face-centred random crop scale range "a,b".')
    random_crop: bool = option(False, "Random instead of centred crop.")
    alpha_mask: bool = option(False, "Use image alpha as loss mask.")
    masked_loss: bool = option(False, "Weight loss by the mask image.")


class CacheOptions(OptionGroup, title="Caches"):
    """What is encoded once and kept, so that a step need not do it again."""

    cache_latents: bool = option(False, "Encode latents once and keep them in RAM.")
    cache_latents_to_disk: bool = option(False, "Encode latents once to npz next to images; implies cache_latents.")
    vae_batch_size: int = option(1, "Batch size for latent caching.")
    skip_cache_check: bool = option(False, "Trust existing cache files without opening them.")
    cache_text_encoder_outputs: bool = option(False, "Encode captions once; text encoders must be frozen.")
    cache_text_encoder_outputs_to_disk: bool = option(False, "Same, stored as npz; implies the former.")


class ValidationOptions(OptionGroup, title="Validation"):
    """Loss on pictures that are kept out of training."""

    validation_split: float = option(0.0, "Fraction of images kept for validation.")
    validation_seed: int | None = option(None, "Seed of the validation shuffle; also used for validation RNG.")
    validate_every_n_steps: int | None = option(None, "Validation period in steps.")
    validate_every_n_epochs: int | None = option(None, "Validation period in epochs.")
    max_validation_steps: int | None = option(None, "Cap of validation batches.")
