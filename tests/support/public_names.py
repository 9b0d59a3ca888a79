"""Names that users' files and commands contain: `python -m tests.support.public_names` updates their list."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sd_scripts.families.cards.registry import card_of, cards
from sd_scripts.families.common.family import family_of
from sd_scripts.formats.models.lora_keys import ENDINGS
from sd_scripts.networks.targets import readable
from sd_scripts.settings import generate_settings
from sd_scripts.settings.catalog import GENERATE_SCRIPTS, SCRIPTS
from sd_scripts.settings.command_line import parser
from sd_scripts.settings.family_options import each_option
from sd_scripts.tools.lora.files import full_size_modules

LIST = Path(__file__).parents[1] / "reference" / "public_names.json"
NUMBER = re.compile(r"(?<=_)\d+(?=_|$)")

Names = dict[str, set[str]]
"""Names by what has them: scripts, families."""


def options() -> Names:
    """Return the flags and TOML keys of each script."""
    found = Names()
    for script in (*SCRIPTS, *GENERATE_SCRIPTS):
        of = generate_settings.setup_parser(script.family) if script in GENERATE_SCRIPTS else parser(script)
        flags = {action.dest for action in of._actions} - {"help"}
        keys = {option.name for group in script.groups for option in each_option(group)}
        found[script.file] = flags | keys | set(card_of(script.family).aliases)
    return found


def lora_layers() -> Names:
    """Return the names of layers in LoRA files of each family, with # for numbers of blocks."""
    return {
        card.name: {
            NUMBER.sub("#", adapted.target.name(path))
            for adapted in full_size_modules(family_of(card.name))
            for path, _ in readable(adapted.module)
        }
        for card in cards()
    }


def lora_endings() -> Names:
    """Return the endings after the name of a layer in LoRA files."""
    return {"every family": set(ENDINGS)}


CURRENT = {"options": options, "lora_layers": lora_layers, "lora_endings": lora_endings}


def listed(kind: str) -> Names:
    """Return the names of a kind as the list has them."""
    found = defaultdict[str, set[str]](set)
    for having, names in json.loads(LIST.read_text(encoding="utf-8"))[kind].items():
        for each in having.split(", "):
            found[each] |= set(names)
    return dict(found)


def compare(before: Names, now: Names) -> Iterator[str]:
    """Yield a sentence for the names that are gone, and one for those that are new."""
    if gone := _less(before, now):
        yield (
            f"{gone}: removed or renamed, which breaks settings files, commands or LoRA files of users. Let the old "
            "name work as an alias; if it must go, that takes a new major version, an entry in CHANGELOG.md and "
            f"`python -m {__spec__.name}`."
        )
    if new := _less(now, before):
        yield f"{new}: new. Run `python -m {__spec__.name}`, which adds them to the list, and commit the list."


def _less(some: Names, others: Names) -> str:
    left = {having: sorted(names - others.get(having, set())) for having, names in some.items()}
    return "; ".join(f"{', '.join(names)} of {having}" for having, names in left.items() if names)


def grouped(names: Names) -> dict[str, list[str]]:
    """Return the names by all that have them, so that each is listed once."""
    havers = defaultdict[str, list[str]](list)
    for having, own in names.items():
        for name in own:
            havers[name].append(having)
    found = defaultdict[str, list[str]](list)
    for name in sorted(havers):
        found[", ".join(havers[name])].append(name)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    current = {kind: grouped(names()) for kind, names in CURRENT.items()}
    LIST.write_text(json.dumps(current, indent=1) + "\n", encoding="utf-8")
    print(f"Wrote {LIST}")
