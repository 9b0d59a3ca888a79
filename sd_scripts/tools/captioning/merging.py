"""Merge text files next to the images into a metadata file: the shared part of the two merging tools."""

from argparse import SUPPRESS
from pathlib import Path

from sd_scripts.formats.images.metadata_file import Words, check_target, merge_words, read_metadata, write_metadata
from sd_scripts.runs.reporter import Reporter
from sd_scripts.runs.tool import run, start_phase
from sd_scripts.tools.captioning.tool import parser


def main(script: str, words: Words, extension: str, argv: list[str] | None = None) -> int:
    """Run a merging tool and return its exit status; `extension` is the default of caption_extension."""
    flags = parser(script, f"Gather the {words} of images into a metadata file.")
    flags.add_argument("out_json", help="Metadata file to write.")
    flags.add_argument("--in_json", help="Metadata file to add to; defaults to out_json if it exists.")
    about = "Extension of the text files next to the images (default: %(default)s)."
    flags.add_argument("--caption_extension", default=extension, help=about)
    flags.add_argument("--caption_extention", dest="caption_extension", default=SUPPRESS, help=SUPPRESS)
    flags.add_argument("--debug", action="store_true", help="Print the result for each image.")
    args = flags.parse_args(argv)

    def work(reporter: Reporter) -> Path:
        out = Path(args.out_json)
        source = Path(args.in_json or args.out_json)
        check_target(out, "out_json")
        known = read_metadata(source, "in_json") if args.in_json or source.exists() else {}
        merged = merge_words(
            Path(args.train_data_dir),
            known,
            words,
            args.caption_extension,
            full_path=args.full_path,
            recursive=args.recursive,
            progress=start_phase(reporter, f"reading {words}"),
        )
        write_metadata(out, merged.entries, "out_json")
        if problem := merged.wordless_text(args.caption_extension):
            reporter.warn(problem)
        if args.debug:
            print(*(f"{key}: {entry.get(words, '')}" for key, entry in merged.entries.items()), sep="\n")
        return out

    return run(work, args.run_dir)
