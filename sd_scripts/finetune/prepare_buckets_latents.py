"""Cache latents beside the images, and write each image's bucket resolution into the metadata file.

python sd_scripts/finetune/prepare_buckets_latents.py images meta_clean.json meta_lat.json model.safetensors \
    --max_resolution 1024,1024 --mixed_precision bf16
"""

import argparse
import sys
from pathlib import Path

from sd_scripts.families.model_file import describe
from sd_scripts.families.registry import cards
from sd_scripts.finetune.tool import Reporter, parser, run
from sd_scripts.formats.metadata_file import check_target, keys_of, read_metadata, require_images, write_metadata
from sd_scripts.formats.words import some
from sd_scripts.options.catalog import FAMILY_TITLES, script_for
from sd_scripts.options.settings import Settings

VAE_FILES = sorted({card.vae_option for card in cards()} - {"vae"})
VAE_OPTIONS = ("vae", "no_half_vae", *VAE_FILES)


def setup_parser() -> argparse.ArgumentParser:
    """Return the parser; flags that affect encoding have the names and meaning of the training options."""
    flags = parser(__file__, "Encode the images of a metadata file ahead of training.")
    flags.add_argument("in_json", help="Metadata file to read.")
    flags.add_argument("out_json", help="Metadata file to write; may be in_json.")
    flags.add_argument(
        "model_name_or_path", help="Model whose VAE encodes the images: file, diffusers folder or hub id."
    )
    flags.add_argument(
        "--family", choices=list(FAMILY_TITLES), help="Model family, if it cannot be detected from the file."
    )
    flags.add_argument("--vae", help="VAE to use instead of the model's own.")
    flags.add_argument("--no_half_vae", action="store_true", help="Keep the VAE in float32.")
    for name in VAE_FILES:
        flags.add_argument(f"--{name}", help="Autoencoder file.")
    flags.add_argument("--mixed_precision", choices=("no", "fp16", "bf16"), default="no", help="As in training.")
    flags.add_argument("--batch_size", type=int, default=1, help="Images to encode at once.")
    flags.add_argument("--max_data_loader_n_workers", type=int, help="Ignored: images are always read ahead.")
    flags.add_argument("--max_resolution", default="512,512", help="Training resolution: one number, or width,height.")
    flags.add_argument(
        "--enable_bucket", action=argparse.BooleanOptionalAction, default=True, help="Use aspect buckets."
    )
    flags.add_argument("--min_bucket_reso", type=int, default=256, help="Smallest bucket side.")
    flags.add_argument("--max_bucket_reso", type=int, default=1024, help="Largest bucket side.")
    flags.add_argument("--bucket_reso_steps", type=int, default=64, help="Bucket sides are multiples of this.")
    flags.add_argument("--bucket_no_upscale", action="store_true", help="Never enlarge an image.")
    flags.add_argument("--resize_interpolation", help="Resize filter.")
    flags.add_argument("--flip_aug", action="store_true", help="Also encode the flipped image.")
    flags.add_argument("--alpha_mask", action="store_true", help="Store the image's opacity as its mask.")
    flags.add_argument("--disable_mmap_load_safetensors", action="store_true", help="Read model files without mmap.")
    flags.add_argument("--skip_existing", action="store_true", help="Trust existing cache files without checking them.")
    return flags


def main(argv: list[str] | None = None) -> int:
    args = setup_parser().parse_args(argv)
    return run(lambda reporter: prepare(args, reporter), args.run_dir)


def prepare(args: argparse.Namespace, reporter: Reporter) -> Path:
    """Encode images without a current cache and write the metadata file. ValueError names the option at fault."""
    folder, source, out = Path(args.train_data_dir), Path(args.in_json), Path(args.out_json)
    entries = read_metadata(source, "in_json")
    images = require_images(folder, recursive=args.recursive)
    keys = keys_of(images, folder, entries, full_path=args.full_path)
    family = _family(args)
    if args.batch_size < 1:
        raise ValueError(f"batch_size: {args.batch_size} must be at least 1")
    check_target(out, "out_json")
    if unknown := [path.name for path in images if keys[path] not in entries]:
        reporter.warn(
            f"in_json: {len(unknown)} images are not in {source.name}, so they have no caption: {some(unknown)}"
        )
    reporter.tell("phase", name="loading the VAE")
    from sd_scripts.finetune.encoding import encode  # torch is slow to import: fail on bad flags first

    for path, (width, height) in encode(args, family, _settings(args, family), images, reporter).items():
        entries[keys[path]] = {**entries.get(keys[path], {}), "train_resolution": [width, height]}
    write_metadata(out, entries, "out_json")
    return out


def _family(args: argparse.Namespace) -> str:
    model = args.model_name_or_path
    family = args.family or describe(Path(model)).family
    if family not in FAMILY_TITLES:
        titles = " or ".join(FAMILY_TITLES.values())
        raise ValueError(f"family: cannot tell whether '{model}' is {titles}; set --family")
    return family


def _settings(args: argparse.Namespace, family: str) -> Settings:
    """Return the settings of a training run that encodes with this VAE."""
    shared = ("mixed_precision", "disable_mmap_load_safetensors")
    options = Settings(script_for(family, "full"), {}).options
    own = [name for name, option in options.items() if name in vars(args) and family in option.families]
    values = {name: getattr(args, name) for name in own if name in (*shared, *VAE_OPTIONS)}
    values["pretrained_model_name_or_path"] = args.model_name_or_path
    return Settings(script_for(family, "full"), values)


if __name__ == "__main__":
    sys.exit(main())
