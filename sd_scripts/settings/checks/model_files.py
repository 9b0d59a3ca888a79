"""Check, without torch, that the model files of a run belong to its family, as far as their headers show."""

from collections.abc import Iterator
from pathlib import Path

from sd_scripts.families.cards.model_file import ModelFile, describe, header_of, is_hub_id, locate
from sd_scripts.families.cards.registry import card_of, component_card, is_built_in_network
from sd_scripts.formats.models.lora_header import why_unreadable
from sd_scripts.formats.models.lora_keys import DENOISER_LAYER, group_keys, left_out, not_in_model
from sd_scripts.formats.models.safetensors_header import SAFETENSORS, read_header
from sd_scripts.options.generating.sampling import SAMPLE_MODEL, SampleOptions
from sd_scripts.options.model import MODEL, ModelOptions
from sd_scripts.options.networks.network import NetworkOptions
from sd_scripts.settings.catalog import FAMILY_TITLES, GENERATE_SCRIPTS, METHOD_TITLES, SCRIPTS
from sd_scripts.settings.settings import Check, Script, Settings, reading


def base_model(script: Script, model: ModelOptions) -> Iterator[str]:
    where = locate(model.pretrained_model_name_or_path)
    if isinstance(where, str):
        return
    found = describe(where)
    if found.problem:
        yield f"{MODEL}: {found.problem}"
    elif _is_known(found) and not (card_of(script.family).trains(found.family) and found.is_base_model):
        title = FAMILY_TITLES[script.family]
        yield f"{MODEL}: '{where}' is {found.is_a}, not a base model for {title}; {_advice(found, script)}"


def _is_known(found: ModelFile) -> bool:
    """Whether its keys identified it; unidentified files are left to the loaders."""
    return bool(found.variant) and not found.variant.endswith(" file")


def _advice(found: ModelFile, script: Script) -> str:
    """Suggest what to do with a file that is not a base model of the script's family."""
    if found.variant.endswith("LoRA"):
        training = script.method in METHOD_TITLES
        return "to continue training a LoRA, set network_weights" if training else "set it in lora_weights"
    if options := [
        part.option for part in card_of(script.family).files.separate_components if found.variant in part.fitting
    ]:
        return f"set it in {options[0]}"
    if found.variant == "VAE":
        return "set it in vae"
    every = (*SCRIPTS, *GENERATE_SCRIPTS)
    others = [each for each in every if (each.family, each.method) == (found.family, script.method)]
    if others and found.family != script.family and not found.variant.endswith("alone"):
        title = FAMILY_TITLES[others[0].family]
        file = others[0].file
        return f"choose the model family {title}, or run {file} instead"
    return "choose another file"


def vae(script: Script, model: ModelOptions) -> Iterator[str]:
    name = model.vae
    card = card_of(script.family)
    if not name or not card.has("own_vae"):  # without effect elsewhere
        return
    if component_card(card.name, "vae"):  # checked with the other components
        return
    if not Path(name).exists():
        if not is_hub_id(name):
            yield f"vae: file or folder not found: '{name}'"
        return
    path = Path(name)
    found = describe(path / "vae" if (path / "vae").is_dir() else path)
    if found.problem:
        yield f"vae: {found.problem}"
    elif _is_known(found) and found.variant != "VAE" and found.family != card.name:
        yield f"vae: '{name}' is {found.is_a}, not a VAE for {card.title}; choose another file"


def components(valid: Settings) -> Iterator[str]:
    """Check the files of text encoders and autoencoder that the options name."""
    for wanted in card_of(valid.script.family).files.separate_components:
        name = wanted.option
        if not (file := valid.value(name)):
            continue
        path = Path(file)
        inner = path / wanted.folder
        found = describe(inner if inner.is_dir() else path)
        if not path.exists():
            yield f"{name}: file or folder not found: '{file}'"
        elif found.problem:
            yield f"{name}: {found.problem}"
        elif _is_known(found) and found.variant not in wanted.fitting and name not in found.parts:
            yield f"{name}: '{file}' is {found.is_a}, not {wanted.title}; choose another file"


def components_in_the_model(valid: Settings) -> Iterator[str]:
    """Check that the base model contains the components that no option names."""
    where = locate(valid[ModelOptions].pretrained_model_name_or_path)
    card = card_of(valid.script.family)
    if isinstance(where, str) or not where.is_file():
        return
    found = describe(where)
    if not card.trains(found.family) or found.variant.endswith("LoRA"):
        return
    for component in card.files.components if found.is_base_model else ():
        if component.option in found.lacks and not valid.value(component.option):
            yield component.absent_from(where)
    for wanted in card.files.separate_components:
        name = wanted.option
        if not wanted.optional and not valid.value(name) and name not in found.parts:
            yield f"{name}: '{where}' does not contain {wanted.title}; set {name} to its file"


def sample_model(script: Script, samples: SampleOptions) -> Iterator[str]:
    """Check the model that samples are made with."""
    name = samples.sample_model
    card = card_of(script.family)
    if not name or not card.has(SAMPLE_MODEL):  # without effect elsewhere
        return
    path = Path(name)
    found = describe(path)
    if not path.exists():
        yield f"{SAMPLE_MODEL}: file or folder not found: '{name}'"
    elif found.problem:
        yield f"{SAMPLE_MODEL}: {found.problem}"
    elif _is_known(found) and not (card.trains(found.family) and found.is_base_model):
        yield f"{SAMPLE_MODEL}: '{name}' is {found.is_a}, not a base model for {card.title}; choose another file"


def network_files(script: Script, network: NetworkOptions) -> Iterator[str]:
    """Check the LoRA files to continue from or to merge into the base model."""
    for option, file, ours in _network_files(network):
        if why := why_no_lora(Path(file), script.family, ours=ours):
            yield f"{option}: {why}"


def _network_files(options: NetworkOptions) -> Iterator[tuple[str, str, bool]]:
    """Yield each LoRA file with its option, and whether it is read here, not by an external network."""
    if options.network_weights:
        yield "network_weights", options.network_weights, is_built_in_network(options)
    yield from (("base_weights", file, True) for file in options.base_weights)
    if options.training_adapter:
        yield "training_adapter", options.training_adapter, True


def why_no_lora(file: Path, family: str, *, ours: bool = True) -> str:
    """Return why a file is not a LoRA of the family, going by its header; an unrecognised file may still be one. With
    `ours` it must also be one that is read here, not by an external network."""
    found = describe(file)
    if found.problem:
        return found.problem
    fits = found.family is None or card_of(family).trains(found.family)
    if not _is_known(found) or (fits and found.variant.endswith("LoRA")):
        why = why_unreadable(read_header(file)) if ours and file.suffix in SAFETENSORS else ""
        return f"'{file}' {why}" if why else ""
    return f"'{file}' is {found.is_a}, not a LoRA for {FAMILY_TITLES[family]}; choose another file"


def network_remarks(script: Script, model: ModelOptions, network: NetworkOptions) -> Iterator[str]:
    """Report tensors that belong to no layer in the LoRA files, and layers that the model lacks, as far as headers show
    them."""
    for option, file, ours in _network_files(network):
        if ours and Path(file).suffix in SAFETENSORS and not why_no_lora(Path(file), script.family):
            keys = group_keys(read_header(Path(file)).shapes)
            yield from left_out(option, file, keys.others)
            layers = [layer for layer in keys.layers if layer.startswith(DENOISER_LAYER)]
            lacking = sorted({*layers} - _denoiser_layers(model, script.family))
            if lacking and len(lacking) < len(layers):  # else the two are named by different programs
                yield not_in_model(option, file, lacking)


def _denoiser_layers(model: ModelOptions, family: str) -> set[str]:
    """Return the names of the denoiser's layers in sd-scripts' LoRA files; empty if unknown."""
    where = Path(model.pretrained_model_name_or_path or "")
    denoiser = card_of(family).files.denoiser
    if denoiser is None or where.suffix not in SAFETENSORS or not where.is_file():
        return set()
    try:
        keys = header_of(where).shapes
    except (OSError, ValueError):  # a problem of its own
        return set()
    prefix = denoiser.prefix_in(keys) or ""
    ending = ".weight"
    paths = (key.removeprefix(prefix).removesuffix(ending) for key in keys if key.endswith(ending))
    return {f"{DENOISER_LAYER}{path.replace('.', '_')}" for path in paths}


def model_variant(model: ModelOptions) -> str:
    """Return the kind of the base model's file or folder; empty if unknown."""
    path = Path(model.pretrained_model_name_or_path or "")
    return describe(path).variant if path.name else ""


def model_remarks(settings: Settings, downloaded: Path | None = None) -> Iterator[str]:
    """Compare the options with the base model's kind, and with its stated objective, in a sentence for each difference.

    Nothing is known of a model of the Hugging Face Hub before it is in a `downloaded` folder; with it, models that are
    files or folders are skipped.
    """
    name = settings[ModelOptions].pretrained_model_name_or_path or ""
    card = card_of(settings.script.family)
    local = Path(name) if Path(name).exists() else None
    where = None if local and downloaded else local or downloaded
    if where is None:
        return
    found = describe(where)
    yield from card.model_remarks(settings, found.variant)
    if card.has("noise_schedule"):
        yield from found.objective.disagreements(
            name,
            velocity=settings[ModelOptions].v_parameterization,
            zero_terminal_snr=settings.value("zero_terminal_snr"),
        )


OF_BASE_MODEL: tuple[Check, ...] = (
    reading(base_model, Script, ModelOptions),
    reading(vae, Script, ModelOptions),
    components,
    components_in_the_model,
)
CHECKS: tuple[Check, ...] = (
    *OF_BASE_MODEL,
    reading(sample_model, Script, SampleOptions),
    reading(network_files, Script, NetworkOptions),
)
