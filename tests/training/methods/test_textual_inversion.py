"""Textual inversion on the miniature SDXL: the trained rows, the file's contents, and its use in other programs."""

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import gradio as gr
import pytest
import safetensors.torch
import torch
from torch import Tensor

from kohya_gui.form.configuration import tab_for
from kohya_gui.form.training_tab import TrainingTab
from kohya_gui.lora_gui import LORA
from kohya_gui.textual_inversion_gui import TEXTUAL_INVERSION
from sd_scripts.data.sources.captions import Caption, CaptionRules, process_caption
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.sdxl.family import SDXL
from sd_scripts.formats.toml_files import write_toml
from sd_scripts.networks.embeddings import ExtendedEmbedding, token_embedding
from sd_scripts.options.launch import SlurmOptions
from sd_scripts.options.networks.embedding import OBJECT_TEMPLATES, EmbeddingOptions
from sd_scripts.runs.folder import RunFolder
from sd_scripts.runs.queue import RunQueue
from sd_scripts.runs.store import RunStore
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.family_options import each_option
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.training.context import make_context
from sd_scripts.training.methods.lora import Lora, LoraTrainable
from sd_scripts.training.methods.textual_inversion import TextualInversion
from tests.support.families.sdxl_pipeline import pipeline_of
from tests.support.scripts import SDXL_LORA
from tests.support.training import ALONE, PIVOTAL, TOKEN, Run, equal, train

pytestmark = pytest.mark.run

CAPTIONS = [f"a {TOKEN} circle on a white background", "a blue square"]


@dataclass
class Prepared:
    components: Components
    trainable: LoraTrainable
    warnings: list[str]

    @property
    def embeddings(self) -> list[ExtendedEmbedding]:
        found = [token_embedding(encoder) for encoder in self.components.text_encoders]
        assert all(isinstance(each, ExtendedEmbedding) for each in found)
        return found  # type: ignore[return-value]


def prepare(
    miniature: Any,
    folder: Path,
    method: str = "textual_inversion",
    before: Callable[[Components], None] = id,
    **more: Any,
) -> Prepared:
    """As the trainer does it, up to the first step."""
    values = {
        **miniature.files,
        "token_string": TOKEN,
        "learning_rate": 1e-2,
        "seed": 1,
        "run_dir": str(folder),
        **more,
    }
    context = make_context(Settings(script_for("sdxl", method), values))
    trains = TextualInversion() if method == "textual_inversion" else Lora()
    components = trains.open(SDXL, context, context.device)
    components.on_load = partial(trains.change_base, SDXL, components, context)
    before(components.load())
    trainable = trains.prepare(SDXL, components, context)
    assert isinstance(trainable, LoraTrainable)
    warnings = [event["text"] for event in RunFolder(folder).events() if event["kind"] == "warning"]
    return Prepared(components, trainable, warnings)


def encode(prepared: Prepared) -> dict[str, Tensor]:
    settings = Settings(script_for("sdxl", "textual_inversion"), {})
    return SDXL.text.encode(
        prepared.components,
        SDXL.text.tokenize(prepared.components, [*map(Caption, CAPTIONS)], TextOptions.of(settings)),
    )


def move(prepared: Prepared) -> None:
    """Give the masters other values, as if training had been."""
    network = prepared.trainable.network
    with torch.no_grad():
        network.masters.add_(torch.randn(network.masters.shape, generator=torch.Generator().manual_seed(5)) * 0.1)
    network.refresh()


def test_the_token_becomes_its_vectors_wherever_it_is_written(miniature: Any, tmp_path: Path) -> None:
    components = prepare(miniature, tmp_path, num_vectors_per_token=3).components
    settings = Settings(script_for("sdxl", "textual_inversion"), {"weighted_captions": True})
    tokens = SDXL.text.tokenize(
        components, [Caption(f"red {TOKEN}, ({TOKEN.upper()}:1.5) red")], TextOptions.of(settings)
    )
    for place, tokenizer in enumerate(components.tokenizers):
        first = token_embedding(components.text_encoders[place]).num_embeddings
        (red,), (comma,) = (tokenizer(word, add_special_tokens=False).input_ids for word in ("red", ","))
        vectors = [first, first + 1, first + 2]
        assert tokens[place]["ids"][0, 0, 1:10].tolist() == [red, *vectors, comma, *vectors, red]
        assert tokens[place]["weights"][0, 0, 1:10].tolist() == [1.0] * 5 + [1.5] * 3 + [1.0]


def test_only_the_new_rows_get_a_gradient_and_change(miniature: Any, tmp_path: Path) -> None:
    prepared = prepare(miniature, tmp_path, num_vectors_per_token=2, init_word="red")
    modules = (prepared.components.denoiser, prepared.components.vae, *prepared.components.text_encoders)
    before = [{name: p.clone() for name, p in module.named_parameters()} for module in modules]
    assert {id(p) for m in modules for p in m.parameters() if p.requires_grad} == {
        id(e.rows) for e in prepared.embeddings
    }
    text = encode(prepared)
    (text["hidden_state1"].square().sum() + text["hidden_state2"].square().sum() + text["pool2"].sum()).backward()
    prepared.trainable.gradients.collect()
    (masters,) = (group["params"] for group in prepared.trainable.parameter_groups())
    assert all(row.any() for master in masters for row in master.grad)
    torch.optim.SGD(masters, lr=1e-2).step()
    prepared.trainable.updated()
    for module, old in zip(modules, before, strict=True):
        changed = {name for name, p in module.named_parameters() if not torch.equal(p, old[name])}
        assert {name.rpartition(".")[2] for name in changed} <= {"rows"}
    assert all(e.rows.isfinite().all() for e in prepared.embeddings)


def test_rows_start_from_the_word_and_from_the_vocabularys_moments_without_one(miniature: Any, tmp_path: Path) -> None:
    given = prepare(miniature, tmp_path / "given", num_vectors_per_token=3, init_word="red circle")
    for embedding, tokenizer in zip(given.embeddings, given.components.tokenizers, strict=True):
        red, circle = tokenizer("red circle", add_special_tokens=False).input_ids
        assert torch.equal(embedding.rows, embedding.weight[[red, circle, red]])
    assert len([text for text in given.warnings if text.startswith("init_word")]) == 1
    free = prepare(miniature, tmp_path / "free", num_vectors_per_token=8)
    for embedding in free.embeddings:
        torch.testing.assert_close(embedding.rows.std(), embedding.weight.std(), rtol=0.2, atol=0.0)
        assert not torch.equal(embedding.rows[0], embedding.rows[1])


@pytest.mark.parametrize("vectors", [1, 3])
def test_diffusers_loads_the_file_and_encodes_the_same(vectors: int, miniature: Any, tmp_path: Path) -> None:
    prepared = prepare(miniature, tmp_path, num_vectors_per_token=vectors)
    move(prepared)
    file = tmp_path / f"{TOKEN}.safetensors"
    prepared.trainable.save(file, None, {})
    with torch.no_grad():
        ours = encode(prepared)
    tensors = safetensors.torch.load_file(file)
    assert {key: tuple(tensor.shape) for key, tensor in tensors.items()} == {
        "clip_l": (vectors, 64),
        "clip_g": (vectors, 128),
    }
    other = Settings(SDXL_LORA, {**miniature.files})
    pipe: Any = pipeline_of(SDXL.open(other, torch.float32).load())
    for key, encoder, tokenizer in (
        ("clip_l", pipe.text_encoder, pipe.tokenizer),
        ("clip_g", pipe.text_encoder_2, pipe.tokenizer_2),
    ):
        pipe.load_textual_inversion({key: tensors[key]}, token=TOKEN, text_encoder=encoder, tokenizer=tokenizer)
    with torch.no_grad():
        hidden, _, pooled, _ = pipe.encode_prompt(CAPTIONS, do_classifier_free_guidance=False, device="cpu")
    torch.testing.assert_close(torch.cat([ours["hidden_state1"], ours["hidden_state2"]], -1), hidden)
    torch.testing.assert_close(ours["pool2"], pooled)


def test_an_old_configuration_of_the_end_token_pools_at_the_end_all_the_same(miniature: Any, tmp_path: Path) -> None:
    """transformers takes the highest id for the end if eos_token_id is 2, as in SDXL's published folders."""

    def old(components: Components) -> None:
        components.text_encoders[1].text_model.eos_token_id = 2  # type: ignore[union-attr]

    with torch.no_grad():
        plain = encode(prepare(miniature, tmp_path / "plain"))["pool2"]
        assert torch.equal(encode(prepare(miniature, tmp_path / "old", before=old))["pool2"], plain)


def test_training_continues_from_a_file(miniature: Any, tmp_path: Path) -> None:
    first = prepare(miniature, tmp_path / "first", num_vectors_per_token=2)
    move(first)
    file = tmp_path / "first.pt"
    first.trainable.save(file, None, {})
    again = prepare(miniature, tmp_path / "again", num_vectors_per_token=2, weights=str(file))
    assert torch.equal(again.trainable.network.masters, first.trainable.network.masters)
    with pytest.raises(ValueError, match=r"^weights: '.*first.pt' has 2 vectors; set num_vectors_per_token = 2$"):
        prepare(miniature, tmp_path / "other", weights=str(file))
    safetensors.torch.save_file({"emb_params": torch.zeros(1, 768)}, tmp_path / "sd15.safetensors")
    with pytest.raises(ValueError, match=r"^weights: .* has no tensor clip_l; choose an embedding for this model$"):
        prepare(miniature, tmp_path / "sd15", weights=str(tmp_path / "sd15.safetensors"))


def test_templates_replace_captions_that_are_not_dropped() -> None:
    templates = EmbeddingOptions(token_string=TOKEN, use_object_template=True).templates
    assert len(templates) == len(set(templates)) == len(OBJECT_TEMPLATES)
    assert all(text.count(TOKEN) == 1 for text in templates)
    rules = CaptionRules(templates=templates)
    drawn = Counter(
        process_caption("mine", rules, Random(n), epoch=1, step=0, max_train_steps=1)
        for n in range(20 * len(templates))
    )
    assert drawn.keys() == set(templates)
    dropped = CaptionRules(templates=templates, caption_dropout_rate=1.0)
    assert process_caption("mine", dropped, Random(1), epoch=1, step=0, max_train_steps=1) == ""


@pytest.mark.parametrize(
    ("method", "values", "problem"),
    [
        ("textual_inversion", {}, "token_string: not set; "),
        ("textual_inversion", {"token_string": "two words"}, "token_string: 'two words' has a space"),
        ("textual_inversion", {"token_string": TOKEN, "learning_rate": 0}, "learning_rate: is 0"),
        (
            "textual_inversion",
            {"token_string": TOKEN, "cache_text_encoder_outputs": True},
            "cache_text_encoder_outputs: ",
        ),
        ("lora", {"token_string": TOKEN, "cache_text_encoder_outputs_to_disk": True}, "cache_text_encoder_outputs: "),
        ("lora", {"token_string": TOKEN, "network_module": "somebody.network"}, "token_string: embeddings cannot be"),
        (
            "textual_inversion",
            {"token_string": TOKEN, "use_object_template": True, "use_style_template": True},
            "use_object_template: ",
        ),
    ],
)
def test_conflicting_options_are_refused(method: str, values: dict[str, Any], problem: str) -> None:
    settings = from_values(
        script_for("sdxl", method), {"network_train_unet_only": True} if method == "lora" else {}, values
    )
    others = ("train_data_dir", "output_dir", "pretrained_model_name_or_path", "resolution")
    (found,) = [str(each) for each in settings.problems() if not str(each).startswith(others)]
    assert found.startswith(problem)


def test_options_without_a_token_have_no_effect_and_flux_has_none_of_them() -> None:
    values = {"init_word": "cat", "embedding_lr": 1e-3}
    said = {remark.name: remark.text for remark in from_values(SDXL_LORA, {**values, "learning_rate": 1e-4}).remarks}
    assert said == dict.fromkeys(values, "has no effect without token_string")
    flux = from_values(script_for("flux", "lora"), {"token_string": TOKEN, "cache_text_encoder_outputs": True})
    assert "token_string: has no effect for FLUX.1" in map(str, flux.remarks)
    assert not any("token" in str(problem) or "caption" in str(problem) for problem in flux.problems())


@pytest.mark.run
def test_a_run_resumes_bit_for_bit_and_samples_with_the_token(miniature: Any, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text(f"a {TOKEN} --w 64 --h 64 --s 2")
    options = {**ALONE, "save_state": True, "max_train_steps": 4, "use_ema": True}
    samples = {"sample_prompts": tmp_path / "prompts.txt", "sample_at_first": True, "sample_every_n_steps": 4}
    whole = train(miniature, tmp_path / "whole", "textual_inversion", save_every_n_steps=2, **options, **samples)
    assert whole.status == 0
    state = whole.output / "short-step00000002-state"
    rest = train(miniature, tmp_path / "rest", "textual_inversion", resume=state, **options)
    assert rest.losses == whole.losses[2:]
    assert equal(rest.tensors(), whole.tensors())
    assert equal(rest.tensors("short-ema.safetensors"), whole.tensors("short-ema.safetensors"))
    first, last = ((whole.output / event["path"]).read_bytes() for event in whole.events_of("sample"))
    assert first != last
    with safetensors.safe_open(whole.output / "short.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["modelspec.architecture"] == "stable-diffusion-xl-v1-base/textual-inversion"
    assert metadata["modelspec.trigger_phrase"] == TOKEN


@pytest.mark.run
def test_pivotal_tuning_saves_a_lora_and_its_embeddings_and_resumes_bit_for_bit(miniature: Any, tmp_path: Path) -> None:
    options = {**PIVOTAL, "save_state": True, "max_train_steps": 4}
    whole = train(miniature, tmp_path / "whole", save_every_n_steps=2, **options)
    assert whole.status == 0
    assert whole.events_of("step")[-1]["lr"] == {"unet": 1e-2, "embedding": 2e-2}
    lora, embedding = whole.tensors(), whole.tensors("short-embedding.safetensors")
    assert {key.partition("_")[0] for key in lora} == {"lora"}
    assert {key: len(rows) for key, rows in embedding.items()} == {"clip_l": 2, "clip_g": 2}
    rest = train(miniature, tmp_path / "rest", resume=whole.output / "short-step00000002-state", **options)
    assert rest.losses == whole.losses[2:]
    assert equal(rest.tensors(), lora)
    assert equal(rest.tensors("short-embedding.safetensors"), embedding)


@pytest.mark.deep
def test_compiled_text_encoders_train_like_uncompiled_ones(miniature: Any, tmp_path: Path) -> None:
    compiled = {"compile_text_encoder": True, "compile_backend": "aot_eager"}
    runs = [
        train(miniature, tmp_path / name, "textual_inversion", **ALONE, **options)
        for name, options in (("eager", {}), ("compiled", compiled))
    ]
    assert all(run.status == 0 for run in runs)
    assert runs[1].events_of("compile")
    eager, other = (run.tensors() for run in runs)
    for key in eager:
        torch.testing.assert_close(other[key], eager[key], rtol=1e-3, atol=1e-5)


@pytest.mark.run
@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"token_string": "red"}, "token_string: 'red' is a word that the model knows"),
        ({"caption_prefix": None}, f"token_string: no caption contains '{TOKEN}'"),
    ],
)
def test_a_token_that_cannot_be_trained_is_refused_before_the_model_loads(
    values: dict[str, Any], problem: str, miniature: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run: Run = train(miniature, tmp_path / "out", "textual_inversion", **{**ALONE, "caption_prefix": "red", **values})
    assert run.status == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert problem in said
    assert not run.events_of("started")


def test_the_tab_has_a_control_for_every_option_and_opens_settings_of_sd_scripts(tmp_path: Path) -> None:
    with gr.Blocks():
        queue = RunQueue(RunStore(tmp_path / "runs.sqlite"))
        tab = TrainingTab(TEXTUAL_INVERSION, queue, "launch")
    options = [o for group in script_for("sdxl", "textual_inversion").groups for o in each_option(group)]
    expected = {o.name for o in options if not o.not_yet and "textual_inversion" in o.methods} - {"run_dir"}
    if not shutil.which("sbatch"):
        expected -= {o.name for o in each_option(SlurmOptions)}
    assert set(tab.form.controls) == expected
    assert "Textual inversion" in [accordion.label for accordion, _ in tab.form._panels]
    write_toml(tmp_path / "a.toml", {"token_string": TOKEN, "learning_rate": 1e-3})
    assert tab_for(tmp_path / "a.toml") is TEXTUAL_INVERSION.tab
    write_toml(tmp_path / "b.toml", {"token_string": TOKEN, "network_dim": 4})
    assert tab_for(tmp_path / "b.toml") is LORA.tab
    with pytest.raises(ValueError, match="open it in the LoRA tab"):
        TEXTUAL_INVERSION.open_configuration(tmp_path / "b.toml")
