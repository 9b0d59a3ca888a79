"""Files in and out, and the way from the page's values to a command: all that a tab does and that needs no page."""

import itertools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kohya_gui import legacy_config
from kohya_gui.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.launch_command import LaunchCommand, build
from kohya_gui.tabs import TABS, Tab
from sd_scripts.options import preflight
from sd_scripts.options.catalog import SCRIPTS, Script, script_for
from sd_scripts.options.flux import FluxNetworkOptions
from sd_scripts.options.full import FullOptions, FusedOptions
from sd_scripts.options.model_file import describe, is_hub_id
from sd_scripts.options.network import NetworkOptions
from sd_scripts.options.prompt_lines import SAMPLE_DEFAULTS, prompts_in
from sd_scripts.options.reading import from_values
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.settings import Remark, Settings
from sd_scripts.options.spec import OptionGroup, each_option
from sd_scripts.options.toml_files import read_toml, write_toml
from sd_scripts.runs.folder import RunFolder, new_run_folder, write_whole

PROMPTS = "sample_prompts"
WINDOWS_PATH = re.compile(r"[A-Za-z]:\\")
HUB_WORDS = {"flux": "flux", "xl": "sdxl"}
"""How models on the Hugging Face Hub are called."""
SECRET_LENGTH = 8
"""Shorter ones may stand in another text by chance."""
TELLING = {"lora": (NetworkOptions, FluxNetworkOptions), "full": (FullOptions, FusedOptions)}
"""Groups whose options only files for this method have."""


@dataclass(frozen=True)
class Opened:
    """What a file says: the values that it sets, and what it says that no option knows."""

    values: dict[str, Any]
    family: str
    unknown: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()
    not_trained: str = ""
    """The model that the file is for, where no script of ours trains it; its values are then read for `family`."""
    prompts: str = ""
    """Sample prompts that stand in the file itself, as kohya_ss keeps them."""


@dataclass(frozen=True)
class Prepared:
    """A checked run, its TOML written, ready to start; or a command to print, for which nothing is written."""

    command: LaunchCommand
    folder: RunFolder | None
    remarks: tuple[Remark, ...]


def families_of(method: str) -> list[str]:
    """The families that a method can train."""
    return [script.family for script in SCRIPTS if script.method == method]


def place_of(text: str) -> Path:
    """The file that a user means: quotes dropped, ~ read, `.toml` added where no suffix of ours stands."""
    text = text.strip().strip('"')
    if not text:
        raise ValueError("Give the configuration file a name, for example ~/cat.toml")
    if os.name != "nt" and WINDOWS_PATH.match(text):
        raise ValueError(f"{text} is a path of Windows, and the GUI runs on another system; name a folder of this one")
    path = Path(os.path.expanduser(text))
    if path.name in ("", "..") or text.endswith(("/", os.sep)):
        raise ValueError(f"{text} is a folder; give the configuration file a name, for example {text}cat.toml")
    return path if path.suffix.lower() in (".toml", ".json") else path.with_name(path.name + ".toml")


def place_to_save(text: str) -> Path:
    """The TOML file that a user means to write, also where a JSON of kohya_ss was opened."""
    return place_of(text).with_suffix(".toml").absolute()


def open_file(path: Path, tab: Tab, shown: str | None = None, places: AllowedPaths = EVERYWHERE) -> Opened:
    """Read TOML, or the JSON of kohya_ss; `shown` is the family of a file that does not tell its own.

    Raises ValueError, one sentence, when the file is not there, broken, or for another tab.
    """
    places.check("configuration file", path)
    families = families_of(tab.method)
    if path.suffix.lower() == ".json":
        raw = legacy_config.read(path)
        _check_tab(path, legacy_config.tab_of(raw), tab)
        legacy = legacy_config.from_kohya(raw, tab.name)
        family = legacy.family if legacy.family in families else families[0]
        settings = from_values(script_for(family, tab.method), legacy.values)
        remarks = tuple(remark for remark in legacy.remarks if remark.name != PROMPTS)
        opened = _opened(settings, family, remarks, legacy.prompts)
        if legacy.prompts:  # they will be in a file, so that what draws them has an effect
            with_prompts = from_values(script_for(family, tab.method), {**legacy.values, PROMPTS: "prompts.txt"})
            opened = replace(opened, remarks=(*remarks, *with_prompts.remarks))
        return replace(opened, not_trained=legacy_config.not_trained(legacy.family))
    raw = read_toml(path)
    if isinstance(raw.get("datasets"), list):
        raise ValueError(f"{path.name} describes a dataset and is no settings file; name it in dataset_config")
    if (told_by := _tab_of(raw)) and told_by.method != tab.method:
        _check_tab(path, told_by, tab)
    family = family_of(raw, tab.method, places) or shown or families[0]
    return _opened(from_values(script_for(family, tab.method), raw), family)


def tab_for(path: Path) -> Tab:
    """The tab that a file is for; LoRA where it does not tell. Raises ValueError as open_file does."""
    told = (
        legacy_config.tab_of(legacy_config.read(path)) if path.suffix.lower() == ".json" else _tab_of(read_toml(path))
    )
    return told or TABS["lora"]


def _tab_of(raw: Mapping[str, Any]) -> Tab | None:
    """The tab of a TOML file: by the options that one method alone has, DreamBooth and Fine-tune by the metadata."""
    methods = [
        method for method, groups in TELLING.items() if any(o.name in raw for g in groups for o in each_option(g))
    ]
    if len(methods) != 1:
        return None
    full = "finetune" if "in_json" in raw else "dreambooth"
    return TABS["lora" if methods == ["lora"] else full]


def _check_tab(path: Path, told: Tab | None, tab: Tab) -> None:
    if told not in (None, tab):
        raise ValueError(f"{path.name} is a configuration for {told.title}; open it in the tab {told.title}")


def family_of(values: Mapping[str, Any], method: str, places: AllowedPaths = EVERYWHERE) -> str | None:
    """The family that settings are for: told by options that it alone has, else by the base model."""
    families = families_of(method)
    groups = {family: set(script_for(family, method).groups) for family in families}
    for family, mine in groups.items():
        others = set[type[OptionGroup]]().union(*(theirs for other, theirs in groups.items() if other != family))
        if any(o.name in values for group in mine - others for o in each_option(group)):
            return family
    if str(values.get("network_module", "")).endswith("_flux"):
        return "flux"
    found = _family_of_model(str(values.get("pretrained_model_name_or_path", "")), places)
    return found if found in families else None


def _family_of_model(name: str, places: AllowedPaths) -> str | None:
    place = Path(os.path.expanduser(name))
    try:
        if name and places.holds(place) and place.exists():
            return describe(place).family
    except (OSError, ValueError):  # no path at all
        return None
    if not is_hub_id(name):
        return None
    return next((family for word, family in HUB_WORDS.items() if word in name.lower()), None)


def save_prompts(beside: Path, prompts: str, places: AllowedPaths = EVERYWHERE) -> Path:
    """Write sample prompts into a text file beside a configuration: over no other. Raises ValueError, one sentence."""
    text = prompts.rstrip() + "\n"
    for number in itertools.count(1):
        place = beside.with_name(f"{beside.stem}-prompts{f'-{number}' if number > 1 else ''}.txt").absolute()
        places.check(PROMPTS, place)
        try:
            if not place.exists():
                write_whole(place, text)
            if place.read_bytes() == text.encode():
                return place
        except OSError as error:
            raise ValueError(f"{PROMPTS}: '{place}' cannot be written: {error.strerror}") from error
    raise AssertionError


def _opened(settings: Settings, family: str, remarks: tuple[Remark, ...] = (), prompts: str = "") -> Opened:
    return Opened(settings.changed(), family, settings.unknown, (*remarks, *settings.remarks), prompts=prompts)


def of_family(values: Mapping[str, Any], script: Script) -> dict[str, Any]:
    """What counts for a script: the page holds the values of other families too, and hides them."""
    known = {o.name: o for group in script.groups for o in each_option(group)}
    return {name: v for name, v in values.items() if name in known and script.family in known[name].families}


def save_file(
    path: Path,
    values: Mapping[str, Any],
    script: Script,
    unknown: Mapping[str, Any],
    places: AllowedPaths = EVERYWHERE,
) -> Path:
    """Write what differs from the defaults, and the unknown keys. Raises ValueError for a bad value or a bad place."""
    places.check("configuration file", path)
    settings = from_values(script, unknown, of_family(values, script))
    if wrong := [*settings.wrong_values(), *_told_secrets(settings)]:
        raise ValueError("\n".join(wrong))
    try:
        write_toml(path, settings.saved())
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _told_secrets(settings: Settings) -> list[str]:
    """Every option that holds a secret and is none: it would be written down and printed."""
    values = settings.values()
    secrets = {name: values[name] for name, o in settings.options.items() if o.secret and values[name]}
    return [
        f"{name}: holds the {secret}, which would be written to files with it; leave it out there"
        for name, value in settings.saved().items()
        for secret, word in secrets.items()
        if len(word) >= SECRET_LENGTH and word in str(value)
    ]


def prepare(
    values: Mapping[str, Any],
    script: Script,
    unknown: Mapping[str, Any],
    print_only: bool,
    places: AllowedPaths = EVERYWHERE,
    prompts: str = "",
) -> Prepared:
    """Check the settings and write what the training reads into a new run folder; `print_only` writes nothing.

    `prompts` are those that are in no file yet; they count where sample_prompts is unset.
    Raises ValueError with one sentence a line for all that stands in the way.
    """
    values = of_family(values, script)
    settings = checked(values, script, unknown, places, files=not print_only)
    output = Path(os.path.expanduser(settings[SavingOptions].output_dir or ".")).absolute()
    values["output_dir"] = str(output)  # a printed command may be pasted anywhere
    prompts = "" if values.get(PROMPTS) else prompts
    if prompts:
        prompts_in(prompts, Path("prompts.txt"), SAMPLE_DEFAULTS[script.family])
    if print_only:
        command = build(from_values(script, unknown, values), script)
        kept = (Remark(PROMPTS, "are in no file yet, so the command has none; press Save first"),) if prompts else ()
        return Prepared(command, None, (*command.remarks, *kept))
    try:
        folder = new_run_folder(output / "runs", settings[SavingOptions].output_name or "")
        if prompts:
            values[PROMPTS] = str(folder.path / "prompts.txt")
            write_whole(folder.path / "prompts.txt", prompts.rstrip() + "\n")
        command = build(from_values(script, unknown, values), script, folder.config, run_dir=folder.path)
        write_toml(folder.config, command.toml)
    except OSError as error:
        raise ValueError(f"output_dir: {output} cannot be written ({error.strerror}); choose another folder") from error
    return Prepared(command, folder, command.remarks)


def checked(
    values: Mapping[str, Any],
    script: Script,
    unknown: Mapping[str, Any],
    places: AllowedPaths,
    *,
    files: bool = True,
) -> Settings:
    """The settings, where nothing is wrong with them. Raises ValueError with one sentence a line.

    `files` looks at what they name too, as a run does that starts here and now.
    """
    settings = from_values(script, unknown, values)
    # places come first: the other checks tell what is there
    problems = places.problems(settings.values(), settings.options.values())
    if not problems:
        problems = list(map(str, preflight.problems(settings) if files else settings.mistakes()))
    if told := problems or _told_secrets(settings):
        raise ValueError("\n".join(told))
    return settings
