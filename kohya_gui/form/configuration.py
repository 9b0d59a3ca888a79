"""Files in and out, and the way from the page's values to a command: all that a tab does and that needs no page."""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kohya_gui.access.allowed_paths import EVERYWHERE, AllowedPaths
from kohya_gui.form.presets import family_of_preset
from kohya_gui.form.recognise import is_foreign
from kohya_gui.kohya import legacy_config
from kohya_gui.runs.launch_command import LaunchCommand, build
from kohya_gui.tabs import TABS, Tab
from sd_scripts.families.cards.family_card import FamilyCard
from sd_scripts.families.cards.model_file import describe, is_hub_id
from sd_scripts.families.cards.registry import card_by_network, card_of, cards
from sd_scripts.formats.atomic_files import write_whole
from sd_scripts.formats.secrets import HANDED, SHORTEST, secret_names, without_secrets
from sd_scripts.formats.toml_files import read_toml, write_toml
from sd_scripts.options.generating.prompt_lines import parse_prompts
from sd_scripts.options.saving import SavingOptions
from sd_scripts.options.spec import Remark
from sd_scripts.runs.folder import RunFolder, new_run_folder
from sd_scripts.settings import preflight
from sd_scripts.settings.catalog import SCRIPTS, options_of_one_method, script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Script, Settings

PROMPTS = "sample_prompts"


@dataclass(frozen=True)
class Opened:
    """The contents of a settings file: the values it sets and the keys that are not options."""

    values: dict[str, Any]
    family: str
    unknown: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()
    not_trained: str = ""
    """Title of the model the file is for, if no script here trains it; its values are then read for `family`."""
    prompts: str = ""
    """Sample prompts in the file itself, where kohya_ss stores them."""


@dataclass(frozen=True)
class Prepared:
    """A validated run with its TOML written, ready to start; or a command to print, with nothing written."""

    command: LaunchCommand
    folder: RunFolder | None
    remarks: tuple[Remark, ...]


def families_of(method: str) -> list[str]:
    """Return the families that a method can train."""
    return [script.family for script in SCRIPTS if script.method == method]


def config_path(text: str) -> Path:
    """Return the path a user typed: quotes stripped, ~ expanded, `.toml` added if there is no known suffix."""
    text = text.strip().strip('"')
    if not text:
        raise ValueError("Enter a file name for the configuration, for example ~/cat.toml")
    if is_foreign(text):
        raise ValueError(f"{text} is a Windows path, but the GUI does not run on Windows; enter a path on this machine")
    path = Path(os.path.expanduser(text))
    if path.name in ("", "..") or text.endswith(("/", os.sep)):
        raise ValueError(f"{text} is a folder; add a file name, for example {text}cat.toml")
    return path if path.suffix.lower() in (".toml", ".json") else path.with_name(path.name + ".toml")


def path_to_save(text: str) -> Path:
    """Return the TOML file to save to, even if a kohya_ss JSON was opened."""
    return config_path(text).with_suffix(".toml").absolute()


def open_file(path: Path, tab: Tab, shown: str | None = None, allowed_paths: AllowedPaths = EVERYWHERE) -> Opened:
    """Read a TOML file, which may be a run's, or a kohya_ss JSON; `shown` is the family of a file that names none.

    Raises ValueError, one sentence, if the file is missing, broken or for a different tab.
    """
    allowed_paths.check("configuration file", path)
    families = families_of(tab.method)
    if path.suffix.lower() == ".json":
        raw = legacy_config.read(path)
        _check_tab(path, legacy_config.tab_of(raw), tab)
        legacy = legacy_config.from_kohya(raw, tab.name)
        family = legacy.family if legacy.family in families else families[0]
        settings = from_values(script_for(family, tab.method), legacy.values)
        family = settings.script.family
        remarks = tuple(remark for remark in legacy.remarks if remark.name != PROMPTS)
        opened = _opened(settings, remarks, legacy.prompts)
        if legacy.prompts:  # they will be in a file, so the sampling options have an effect
            with_prompts = from_values(script_for(family, tab.method), {**legacy.values, PROMPTS: "prompts.txt"})
            opened = replace(opened, remarks=(*remarks, *with_prompts.remarks))
        return replace(opened, not_trained=legacy_config.not_trained(legacy.family))
    raw = read_toml(path)
    if of_preset := family_of_preset(path):
        raw["family"] = of_preset
    if isinstance(raw.get("datasets"), list):
        raise ValueError(f"{path.name} is a dataset configuration, not a settings file; enter it under dataset_config")
    if (own_tab := _tab_of(raw)) and own_tab.method != tab.method:
        _check_tab(path, own_tab, tab)
    family = family_of(raw, tab.method, allowed_paths) or shown or families[0]
    if shown and "family" not in raw and card_of(shown).trains(family):
        family = shown  # which reads the same settings
    settings = from_values(script_for(family, tab.method), raw)
    return _opened(settings)


def tab_for(path: Path) -> Tab:
    """Return the tab that a file is for, LoRA by default. Raises ValueError as open_file does."""
    is_legacy = path.suffix.lower() == ".json"
    tab = legacy_config.tab_of(legacy_config.read(path)) if is_legacy else _tab_of(read_toml(path))
    return tab or TABS["lora"]


def _tab_of(raw: Mapping[str, Any]) -> Tab | None:
    """Return the tab of a TOML file by its method or options only one has; in_json distinguishes Fine-tune from
    DreamBooth, and token_string alone is textual inversion."""
    by_method = options_of_one_method()
    methods = [method for method, names in by_method.items() if not names.isdisjoint(raw)]
    if str(raw.get("method")) in by_method:
        methods = [str(raw["method"])]
    elif not methods and "token_string" in raw:
        methods = ["textual_inversion"]
    if len(methods) != 1:
        return None
    full = "finetune" if "in_json" in raw else "dreambooth"
    return TABS[full if methods == ["full"] else methods[0]]


def _check_tab(path: Path, own_tab: Tab | None, tab: Tab) -> None:
    if own_tab not in (None, tab):
        raise ValueError(f"{path.name} is a {own_tab.title} configuration; open it in the {own_tab.title} tab")


def family_of(values: Mapping[str, Any], method: str, allowed_paths: AllowedPaths = EVERYWHERE) -> str | None:
    """Return the family that settings name, else the only one with these options and choices, else the base model's,
    else the first that has all of these options. The base model distinguishes a family from one derived from it."""
    families = families_of(method)
    if values.get("family") in families:
        return str(values["family"])
    by_model = _family_of_model(str(values.get("pretrained_model_name_or_path", "")), allowed_paths)
    capable = _capable(values, method, families)
    by_network = card_by_network(str(values.get("network_module", "")))
    by_options = by_network.name if by_network else None
    if len(capable) == 1:
        by_options = capable[0]
    if by_options and not (by_model in families and card_of(by_model).trains(by_options)):
        return by_options
    return by_model if by_model in families else next(iter(capable), None)


def _capable(values: Mapping[str, Any], method: str, families: Sequence[str]) -> list[str]:
    """Return the families that have all options of the values that not every family has; none if there are no such
    options. Groups that every family has do not count: files of other programs contain any of their options. Nor does a
    family count if the one that it is derived from has the same options."""
    every = [group for family in families for group in script_for(family, method).groups]
    special = {group for group in every if every.count(group) < len(families)}
    named = [o for group in special for o in each_option(group) if o.name in values]
    if not named:
        return []
    families_with_option = [o.family_choices.get(str(values[o.name]), o.families) for o in named]
    capable = [family for family in families if all(family in names for names in families_with_option)]
    return [family for family in capable if card_of(family).derived_from not in capable]


def _family_of_model(name: str, allowed_paths: AllowedPaths) -> str | None:
    path = Path(os.path.expanduser(name))
    try:
        if name and allowed_paths.holds(path) and path.exists():
            family = describe(path).family
            derived = [card for card in cards() if family and card.derived_from == family]
            return _named(path.name, derived) or family
    except (OSError, ValueError):  # not a valid path
        return None
    return _named(name, cards()) if is_hub_id(name) else None


def _named(name: str, among: Iterable[FamilyCard]) -> str | None:
    """Return the family that the name of a model reveals; the longest word decides, since one may contain another."""
    matches = [(len(word), card.name) for card in among for word in card.recognition.hub_words if word in name.lower()]
    return max(matches)[1] if matches else None


def save_prompts(configuration: Path, prompts: str, allowed_paths: AllowedPaths = EVERYWHERE) -> Path:
    """Write sample prompts to a new text file next to a configuration. Raises ValueError, one sentence."""
    text = prompts.rstrip() + "\n"
    for number in itertools.count(1):
        end = f"-{number}" if number > 1 else ""
        file = configuration.with_name(f"{configuration.stem}-prompts{end}.txt").absolute()
        allowed_paths.check(PROMPTS, file)
        try:
            if not file.exists():
                write_whole(file, text)
            if file.read_bytes() == text.encode():
                return file
        except OSError as error:
            raise ValueError(f"{PROMPTS}: '{file}' cannot be written: {error.strerror}") from error
    raise AssertionError


def _opened(settings: Settings, remarks: tuple[Remark, ...] = (), prompts: str = "") -> Opened:
    text = "is named like a secret, so it is neither kept nor saved"
    left_out = [Remark(name, text) for name in secret_names(settings.unknown)]
    unknown = without_secrets(settings.unknown)
    every = (*remarks, *settings.remarks, *left_out)
    return Opened(settings.changed(), settings.script.family, unknown, every, prompts=prompts)


def of_family(values: Mapping[str, Any], script: Script) -> dict[str, Any]:
    """Return the values that apply to a script: the page also has hidden values of other families."""
    options = {o.name: o for group in script.groups for o in each_option(group)}
    return {name: v for name, v in values.items() if name in options and script.family in options[name].families}


def leaked_secrets(settings: Settings) -> list[str]:
    """Return a problem for every non-secret option that contains a secret, since it would be written and printed."""
    values = settings.values()
    secrets = {name: str(values[name]) for name, o in settings.options.items() if o.secret and values[name]}
    in_environment = {name: os.environ[name] for name in HANDED if name in os.environ}
    secrets |= {name: text for name, text in in_environment.items() if text not in secrets.values()}
    return [
        f"{name}: contains the {secret}, which would be written to files; remove it there"
        for name, value in settings.saved().items()
        for secret, text in secrets.items()
        if len(text) >= SHORTEST and text in str(value)
    ]


def prepare(
    values: Mapping[str, Any],
    script: Script,
    unknown: Mapping[str, Any],
    print_only: bool,
    allowed_paths: AllowedPaths = EVERYWHERE,
    prompts: str = "",
) -> Prepared:
    """Validate the settings and write a new run folder for the training; `print_only` writes nothing.

    `prompts` are not in a file yet; they are used if sample_prompts is unset.
    Raises ValueError with one sentence per line for every problem.
    """
    values = of_family(values, script)
    settings = checked(values, script, unknown, allowed_paths, files=not print_only)
    output = Path(os.path.expanduser(settings[SavingOptions].output_dir or ".")).absolute()
    values["output_dir"] = str(output)  # a printed command may be run from any folder
    prompts = "" if values.get(PROMPTS) else prompts
    if prompts:
        parse_prompts(prompts, Path("prompts.txt")).prompts(card_of(script.family).sample_defaults)
    if print_only:
        command = build(from_values(script, unknown, values), script)
        unsaved = Remark(PROMPTS, "the prompts are in no file yet, so the command has none; press Save first")
        return Prepared(command, None, (*command.remarks, unsaved) if prompts else command.remarks)
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
    allowed_paths: AllowedPaths,
    *,
    files: bool = True,
) -> Settings:
    """Return the validated settings. Raises ValueError with one sentence per line.

    `files` also checks the files they name, as a run that starts now would.
    """
    settings = from_values(script, unknown, values)
    # paths first: the other checks reveal what exists there
    problems = allowed_paths.problems_of(settings)
    if not problems:
        problems = list(map(str, preflight.problems(settings) if files else settings.problems()))
    if sentences := [*problems, *leaked_secrets(settings)]:
        raise ValueError("\n".join(sentences))
    return settings
