"""From text files beside the images into a metadata file: what the two merging tools share."""

from argparse import SUPPRESS
from pathlib import Path

from sd_scripts.finetune.tool import Teller, parser, run
from sd_scripts.options.metadata_file import Words, check_target, merge_words, read_metadata, write_metadata


def main(script: str, words: Words, extension: str, argv: list[str] | None) -> int:
    """Merge, and return the exit status; `extension` is the default of caption_extension."""
    flags = parser(script, f"Gather the {words} of images into a metadata file.")
    flags.add_argument("out_json", help="Metadata file to write.")
    flags.add_argument("--in_json", help="Metadata file to add to; without it out_json, where there is one.")
    flags.add_argument(
        "--caption_extension", default=extension, help="Ending of the text files beside the images; %(default)s."
    )
    flags.add_argument("--caption_extention", dest="caption_extension", default=SUPPRESS, help=SUPPRESS)
    flags.add_argument("--debug", action="store_true", help="Show what each image gets.")
    asked = flags.parse_args(argv)

    def work(teller: Teller) -> Path:
        out, source = Path(asked.out_json), Path(asked.in_json or asked.out_json)
        check_target(out, "out_json")
        known = read_metadata(source, "in_json") if asked.in_json or source.exists() else {}
        merged = merge_words(
            Path(asked.train_data_dir),
            known,
            words,
            asked.caption_extension,
            full_path=asked.full_path,
            recursive=asked.recursive,
            progress=teller.phase(f"reading {words}"),
        )
        write_metadata(out, merged.entries, "out_json")
        if told := merged.wordless_text(asked.caption_extension):
            teller.warn(told)
        if asked.debug:
            print(*(f"{key}: {entry.get(words, '')}" for key, entry in merged.entries.items()), sep="\n")
        return out

    return run(work, asked.run_dir)
