"""Publish the result of a run: write a model card to edit, then upload it with the file and samples, or pack a zip.

python -m sd_scripts.tools.publish RUN_FOLDER [--repo_id me/my-lora [--public]] [--zip FILE]

The token comes from HF_TOKEN or `hf auth login`.
"""

import argparse
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sd_scripts.formats.atomic_files import atomic_file, write_whole
from sd_scripts.formats.disk import saving, sentence_of
from sd_scripts.library.files.hub import Refused, hub_api, hub_reason, open_repository
from sd_scripts.options.saving import REPOSITORY
from sd_scripts.tools.publish.card import image_name, make_card
from sd_scripts.tools.publish.trained import Trained, output_folder, read_run, why_elsewhere

CARD = "README.md"
"""The card's name in a repository and a zip."""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="publish", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = made.add_argument
    add("run_folder", type=Path, help="run folder, which contains its events.jsonl")
    add("--repo_id", help="upload to this repository, which is created if it does not exist: me/my-lora")
    add("--public", action="store_true", help="a repository that is created can be seen by everyone")
    add("--zip", type=Path, metavar="FILE", help="pack the card, the file and the samples")
    add("--card", type=Path, metavar="FILE", help="the card; default: written next to the file, unless it exists")
    add("--json", action="store_true", help="print a JSON object; without other flags, write nothing")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        done = publish(arguments)
    except (ValueError, OSError) as error:
        print(sentence_of(error), file=sys.stderr)
        return 2
    print(json.dumps(done) if arguments.json else "\n".join(_sentences(done)))
    return 0


def publish(arguments: argparse.Namespace) -> dict[str, Any]:
    """Carry out the flags; return the created files. Raises ValueError or OSError, one sentence."""
    if arguments.repo_id and not REPOSITORY.fullmatch(arguments.repo_id):
        raise ValueError(f"--repo_id: '{arguments.repo_id}' is not a repository name; write me/my-lora")
    if arguments.zip and arguments.zip.suffix.lower() != ".zip":
        raise ValueError(f"--zip: '{arguments.zip}' does not end with .zip")
    trained = read_run(arguments.run_folder)
    card = arguments.card or trained.file.with_name(f"{trained.file.stem}-{CARD}")
    done: dict[str, Any] = {}
    if (
        not arguments.card
        and os.path.lexists(card)
        and (why := why_elsewhere(card, output_folder(arguments.run_folder)))
    ):
        raise ValueError(f"{why}, so it is not published as the model card; remove it, or name another with --card")
    if arguments.json and not (arguments.repo_id or arguments.zip or arguments.card):
        text = card.read_text(encoding="utf-8") if card.is_file() else make_card(trained)
        sources = {name: str(path) for name, path in contents(trained, card)}
        return {
            "text": text,
            "card": str(card),
            "file": str(trained.file),
            "contents": sources,
            "left_out": trained.left_out,
        }
    if arguments.card and not card.is_file():
        raise ValueError(f"--card: file not found: '{card}'")
    if not card.is_file():
        with saving(card):
            write_whole(card, make_card(trained))
    done["card"] = str(card)
    if not arguments.json:
        print("\n".join(_sources(trained, card)), flush=True)
    if arguments.zip:
        _pack(trained, card, arguments.zip)
        done["zip"] = str(arguments.zip)
    if arguments.repo_id:
        done["url"] = _upload(trained, card, arguments.repo_id, private=not arguments.public)
    return done


def contents(trained: Trained, card: Path) -> Iterator[tuple[str, Path]]:
    """Yield the published files: names in the repository or zip, and paths."""
    yield CARD, card
    yield from ((file.name, file) for file in trained.files)
    yield from ((image_name(number, sample.path), sample.path) for number, sample in enumerate(trained.samples))


def _sources(trained: Trained, card: Path) -> Iterator[str]:
    """Yield the published files and where they come from."""
    yield from (f"{name}: '{path}'" for name, path in contents(trained, card))
    yield from trained.left_out


def _pack(trained: Trained, card: Path, file: Path) -> None:
    with saving(file), atomic_file(file) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as packed:
        for name, path in contents(trained, card):  # weights and images cannot be compressed
            packed.write(path, name)


def _upload(trained: Trained, card: Path, repo: str, *, private: bool) -> str:
    """Upload in one commit; return its address."""
    from huggingface_hub import CommitOperationAdd

    api = hub_api()
    try:
        open_repository(api, repo, private=private)
        operations = [CommitOperationAdd(name, str(path)) for name, path in contents(trained, card)]
        commit = api.create_commit(repo, operations, commit_message=f"Upload {trained.file.name}")
    except Refused as error:
        raise ValueError(
            f"--repo_id: '{repo}' cannot be written to: {error}. Set HF_TOKEN to a token with write access, or choose "
            "another"
        ) from None
    except Exception as error:
        raise ValueError(f"--repo_id: nothing was uploaded to '{repo}' ({hub_reason(error)}); try again") from None
    return str(commit.commit_url)


def _sentences(done: dict[str, str]) -> Iterator[str]:
    yield f"The model card is '{done['card']}'; edit it, then publish with --repo_id or --zip."
    if "zip" in done:
        yield f"Packed '{done['zip']}'."
    if "url" in done:
        yield f"Uploaded: {done['url']}"


if __name__ == "__main__":
    sys.exit(main())
