"""Cache latents next to the images, and write each image's bucket resolution into the metadata file.

python sd_scripts/finetune/prepare_buckets_latents.py images meta_clean.json meta_lat.json model.safetensors \
    --max_resolution 1024,1024 --mixed_precision bf16
"""

import argparse
import sys
from pathlib import Path

from sd_scripts.families.cards.model_file import describe
from sd_scripts.formats.images.metadata_file import check_target, keys_of, read_metadata, require_images, write_metadata
from sd_scripts.formats.words import listed, some
from sd_scripts.machine import garbage_collection
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import run
from sd_scripts.settings.catalog import FAMILY_TITLES, SCRIPTS
from sd_scripts.settings.command_line import flag_of
from sd_scripts.settings.encoding import ENCODING_OPTIONS
from sd_scripts.settings.family_options import each_option
from sd_scripts.tools.captioning.tool import parser


def setup_parser() -> argparse.ArgumentParser:
    """Return the parser; flags that affect encoding are the training options'."""
    flags = parser(__file__, "Encode the images of a metadata file before training.")
    flags.add_argument("in_json", help="Metadata file to read.")
    flags.add_argument("out_json", help="Metadata file to write; may be in_json.")
    flags.add_argument("model_name_or_path", help="Model whose VAE encodes: file, diffusers folder or hub id.")
    flags.add_argument("--family", choices=list(FAMILY_TITLES), help="Model family, if the file does not show it.")
    options = {o.name: o for script in SCRIPTS for group in script.groups for o in each_option(group)}
    for name in ENCODING_OPTIONS:
        flags.add_argument(f"--{name}", **flag_of(options[name], "full"))
    flags.set_defaults(enable_bucket=True)
    flags.add_argument("--batch_size", type=int, default=1, help="Images to encode per batch.")
    flags.add_argument("--max_data_loader_n_workers", type=int, help="Ignored: images are always read ahead.")
    flags.add_argument("--max_resolution", default="512,512", help="Training resolution: one number, or width,height.")
    flags.add_argument("--skip_existing", action="store_true", help="Trust existing cache files without checking them.")
    return flags


def main(argv: list[str] | None = None) -> int:
    args = setup_parser().parse_args(argv)
    return run(lambda reporter: prepare(args, reporter), args.run_dir)


def prepare(args: argparse.Namespace, reporter: Reporter) -> Path:
    """Encode images without a current cache and write the metadata file. ValueError names the option at fault."""
    folder = Path(args.train_data_dir)
    source = Path(args.in_json)
    out = Path(args.out_json)
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
    reporter.phase("loading the VAE")
    with garbage_collection.importing():  # torch is slow to import: fail on bad flags first
        from sd_scripts.tools.captioning.encoding import encode

    for path, (width, height) in encode(args, family, images, reporter).items():
        entries[keys[path]] = {**entries.get(keys[path], {}), "train_resolution": [width, height]}
    write_metadata(out, entries, "out_json")
    return out


def _family(args: argparse.Namespace) -> str:
    model = args.model_name_or_path
    family = args.family or describe(Path(model)).family
    if family not in FAMILY_TITLES:
        titles = listed(FAMILY_TITLES.values(), "or")
        raise ValueError(f"family: cannot tell whether '{model}' is {titles}; set --family")
    return family


if __name__ == "__main__":
    sys.exit(main())
