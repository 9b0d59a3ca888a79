"""Anima's mathematics, keys, captions and samples against diffusers and transformers, at tiny size."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.modular_pipelines.anima.encoders import AnimaTextEncoderStep

from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.anima.adapter import AdapterParams, LLMAdapter
from sd_scripts.families.anima.card.memory_facts import BLOCK, MEMORY
from sd_scripts.families.anima.full_size import modules as full_size
from sd_scripts.families.anima.load import BLOCK_LISTS, LAYOUTS, TEXT_ENCODER
from sd_scripts.families.anima.lora import TEXT_ENCODERS, TRANSFORMER
from sd_scripts.families.anima.model import AnimaParams, AnimaTransformer
from sd_scripts.families.anima.objective import predict
from sd_scripts.families.anima.sampling import prompt_captions, sample
from sd_scripts.families.anima.text import IDS, IDS_MASK, MASK, STATES, T5_TOKENIZER, encode_text, pad, tokenize, trim
from sd_scripts.families.anima.tiny import tiny_modules
from sd_scripts.families.cards.model_file import recognise
from sd_scripts.families.cards.registry import card_of
from sd_scripts.families.common.components import DENOISER, VAE, Components
from sd_scripts.families.common.encoders.qwen3 import with_qwen3_tokens
from sd_scripts.families.common.encoders.tiny_qwen3 import qwen3_tokenizer
from sd_scripts.families.common.family import TextOptions
from sd_scripts.formats.models.safetensors_header import Header
from sd_scripts.library.text.tokenizers import shipped_qwen, shipped_t5
from sd_scripts.networks.targets import adaptable
from sd_scripts.options.compile import CompileOptions
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.options.networks.layer_rules import Rank, Rate
from sd_scripts.options.networks.network_args import NetworkArguments
from sd_scripts.settings.catalog import script_for
from sd_scripts.settings.reading import from_values
from sd_scripts.settings.settings import Settings
from sd_scripts.testing.miniature import t5_tokenizer
from tests.support.families.anima import in_diffusers, pipeline_of, to_diffusers
from tests.support.families.formula_weights import formula_input, formula_weights

pytestmark = pytest.mark.run

REFERENCE = json.loads((Path(__file__).parents[2] / "reference/anima.json").read_text())
CAPTIONS = ["a red circle", "a blue square on a red circle", ""]
PROMPT: dict[str, Any] = {"prompt": CAPTIONS[1], "width": 64, "height": 80, "seed": 1, "steps": 3}


def settings_of(**values: Any) -> Settings:
    return from_values(script_for("anima", "lora"), {"learning_rate": 1e-4, **values})


@pytest.fixture(scope="module")
def components() -> Components:
    tokenizer = qwen3_tokenizer()
    modules = tiny_modules(len(tokenizer))
    for module in modules.values():
        module.eval().requires_grad_(False)
    return Components(
        denoiser=modules[DENOISER],
        vae=modules[VAE],
        text_encoders=[modules[TEXT_ENCODER]],
        tokenizers=[tokenizer],
        source="tiny",
        extras={T5_TOKENIZER: [t5_tokenizer()]},
    )


def spread(table: dict[str, list[Any]]) -> dict[str, tuple[int, ...]]:
    return {
        key.replace(".N.", f".{number}."): tuple(shape)
        for key, (shape, *ends) in table.items()
        for number in (range(ends[0], ends[1] + 1) if ends else [0])
    }


def encoded(components: Components, captions: list[str]) -> dict[str, Any]:
    with torch.no_grad():
        tokens = tokenize(components, [*map(Caption, captions)], TextOptions.of(settings_of()))
        return encode_text(components, tokens)


# transformer and adapter


@pytest.mark.parametrize(
    ("rows", "expected"), [(7, "output"), (12, "output_with_5_zero_rows_appended_to_cross")], ids=["text", "zero rows"]
)
def test_the_transformer_equals_the_official_code(rows: int, expected: str) -> None:
    """Rows of zeros after the text change the result: they are attended to."""
    reference = REFERENCE["transformer"]
    model = AnimaTransformer(AnimaParams(width=64, heads=2, mlp_width=256, modulation_width=8, blocks=2, adapter=None))
    model.load_state_dict(formula_weights(model.state_dict()))
    inputs = reference["inputs"]
    latents, text = (formula_input(name, tuple(inputs[name])) for name in ("latents", "cross"))
    text = torch.nn.functional.pad(text, (0, 0, 0, rows - text.shape[1]))
    with torch.no_grad():
        output = predict(model, latents.squeeze(2), torch.tensor(inputs["t"]), text)
    torch.testing.assert_close(output.flatten()[:24], torch.tensor(reference[expected]["first"]), rtol=1e-4, atol=1e-4)
    assert output.square().sum().item() == pytest.approx(reference[expected]["sum_of_squares"], rel=1e-4)


def test_the_adapter_equals_the_official_code() -> None:
    reference = REFERENCE["adapter"]
    model = LLMAdapter(AdapterParams(words=50, width=32, states_width=16, heads=2, mlp_width=128, blocks=2))
    model.load_state_dict(formula_weights(model.state_dict()))
    inputs = reference["inputs"]
    ids, ids_mask, mask = (torch.tensor(inputs[name]) for name in ("ids", "target_mask", "source_mask"))
    with torch.no_grad():
        output = model(formula_input("qwen", tuple(inputs["qwen"])), mask.bool(), ids, ids_mask.bool())
    expected = reference["output_masked_to_zero"]
    torch.testing.assert_close(output.flatten()[:24], torch.tensor(expected["first"]), rtol=1e-4, atol=1e-5)
    assert output.square().sum().item() == pytest.approx(expected["sum_of_squares"], rel=1e-4)
    assert not output[1, 2:].any()


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)])
def test_the_prediction_matches_diffusers(components: Components, dtype: torch.dtype, error: float) -> None:
    ours: Any = deepcopy(components.denoiser).to(dtype)
    transformer, conditioner = (part.to(dtype) for part in in_diffusers(components.denoiser))
    text = pad(encoded(components, CAPTIONS[:2]), CompileOptions())
    noisy = torch.randn(2, 16, 8, 4, generator=torch.Generator().manual_seed(2))
    t = torch.tensor([0.25, 0.5])
    with torch.no_grad():
        rows = conditioner(text[STATES].to(dtype), text[IDS], text[IDS_MASK], text[MASK])
        expected = transformer(
            noisy[:, :, None].to(dtype), t.to(dtype), rows, padding_mask=torch.zeros(1, 1, 64, 32, dtype=dtype)
        ).sample.squeeze(2)
        found = predict(ours, noisy, t, text)
    assert ((found - expected.float()).abs().max() / expected.float().abs().max()).item() < error


# keys


def test_the_transformer_has_the_keys_and_shapes_of_the_official_file() -> None:
    keys, model = spread(REFERENCE["original"]), full_size()[DENOISER]
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == keys
    assert AnimaParams.of(keys) == AnimaParams()
    assert sum(p.numel() for p in model.parameters()) == sum(REFERENCE["parameters"].values())
    theirs = {name: torch.empty(shape, device="meta") for name, shape in spread(REFERENCE["diffusers"]).items()}
    unified = {name: tuple(tensor.shape) for name, tensor in LAYOUTS[DENOISER].unify(theirs).items()}
    assert unified == {name: shape for name, shape in keys.items() if not name.startswith("llm_adapter.")}
    assert AnimaParams.of(unified).adapter is None


def test_both_layouts_of_the_transformer_are_the_same_model(components: Components) -> None:
    original = dict(components.denoiser.state_dict())
    transformer, adapter = to_diffusers(original)
    unified = LAYOUTS[DENOISER].unify(dict(transformer))
    assert unified.keys() | {f"llm_adapter.{key}" for key in adapter} == original.keys()
    assert all(torch.equal(tensor, original[key]) for key, tensor in unified.items())
    positions = {**original, "pos_embedder.seq": torch.zeros(4)}
    assert LAYOUTS[DENOISER].unify(positions).keys() == original.keys()


def test_lora_adapts_attention_and_mlps_unless_told_otherwise() -> None:
    reference, modules = REFERENCE["lora"], full_size()
    adapted = {
        TRANSFORMER.name(path): (path, layer) for path, layer in adaptable(modules[DENOISER], TRANSFORMER, conv=False)
    }

    def chosen(arguments: dict[str, str]) -> dict[str, Any]:
        rules = card_of("anima").network_rules(NetworkArguments(arguments), lambda text: None)
        rules.check(modules[DENOISER])
        return {name: each for name, each in adapted.items() if rules.rank(name, False, Rank(4, 1.0)).dim}

    usual, more = chosen({}), chosen({"train_llm_adapter": "True"})
    assert len(usual) == reference["counts"]["dit"]
    assert len(more) - len(usual) == reference["counts"]["llm_adapter"]
    names = reference["first"] | reference["llm_adapter"]
    assert {name: more[name][0] for name in names} == names
    assert len(chosen({"include_patterns": "['.*_modulation_mlp.*']"})) == len(usual) + 2 * 28
    assert sum(sum(layer.weight.shape) for _, layer in usual.values()) == MEMORY.lora[DENOISER]
    (target,) = TEXT_ENCODERS
    encoder = {target.name(path): path for path, _ in adaptable(modules[TEXT_ENCODER], target, conv=False)}
    assert len(encoder) == reference["counts"]["text_encoder"]
    assert encoder.items() >= reference["text_encoder"].items()


def test_patterns_that_match_a_whole_path_give_ranks_and_learning_rates_as_in_sd_scripts() -> None:
    modules = full_size()
    arguments = {
        "network_reg_dims": r".*mlp\.layer1=8,.*mlp.*=0,blocks.0=2",
        "network_reg_lrs": r".*self_attn.*=5e-5,.*q_proj=0",
    }
    rules = card_of("anima").network_rules(NetworkArguments(arguments), lambda text: None)
    rules.check(modules[DENOISER])
    names = {path: TRANSFORMER.name(path) for path, _ in adaptable(modules[DENOISER], TRANSFORMER, conv=False)}
    dims = {path: rules.rank(name, False, Rank(4, 1.0)).dim for path, name in names.items()}
    assert (dims["blocks.0.mlp.layer1"], dims["blocks.0.mlp.layer2"], dims["blocks.0.self_attn.q_proj"]) == (8, 0, 4)
    assert dims["llm_adapter.blocks.0.mlp.0"] == dims["blocks.0.adaln_modulation_mlp.1"] == 0  # excluded first
    own = {path: rules.rate(name, 1e-4) for path, name in names.items()}
    assert own["blocks.0.self_attn.q_proj"] == Rate(5e-5, "_reg_lr_0")
    assert own["blocks.0.cross_attn.q_proj"] is None
    assert own["blocks.0.cross_attn.k_proj"] == Rate(1e-4)
    for wrong in ("mlp", "mlp(=4", "mlp=x", "mlp=-1"):
        with pytest.raises(ValueError, match=r"^network_args: network_reg_dims") as error:
            card_of("anima").network_rules(NetworkArguments({"network_reg_dims": wrong}), lambda text: None)
        assert "\n" not in str(error.value)


def test_the_plan_counts_what_the_model_has() -> None:
    modules = full_size()
    assert {name: sum(p.numel() for p in each.parameters()) for name, each in modules.items()} == MEMORY.values
    ((first, *others),) = BLOCK_LISTS.of(modules[DENOISER])
    assert sum(p.numel() for p in first.parameters()) == BLOCK
    assert BLOCK_LISTS.most(1 + len(others)) == MEMORY.most_swapped


# captions


def test_captions_have_the_tokens_of_the_official_tokenizers() -> None:
    qwen, t5 = with_qwen3_tokens(shipped_qwen()), shipped_t5()
    tokens = REFERENCE["tokens"]
    for caption, name in (("a cat", "a cat"), ("", "empty")):
        assert qwen(caption).input_ids == tokens[f"anima qwen, {name}"]
        assert t5(caption).input_ids == tokens[f"anima t5, {name}"]
    tags = "1girl, silver hair"
    assert {"qwen": qwen(tags).input_ids, "t5": t5(tags).input_ids} == tokens[f"anima, {tags}"]


def test_captions_become_the_text_that_diffusers_makes_of_them(components: Components) -> None:
    (tokenizer,), (t5,) = components.tokenizers, components.extras[T5_TOKENIZER]
    transformer: Any = components.denoiser
    conditioner = in_diffusers(transformer)[1]

    class Parts:
        text_encoder = components.text_encoders[0]
        t5_tokenizer = t5

    Parts.tokenizer = tokenizer  # type: ignore[attr-defined]
    for captions in (CAPTIONS, [""]):
        with torch.no_grad():
            theirs = AnimaTextEncoderStep.encode_prompt(
                Parts, captions, prepare_unconditional_embeds=False, device=torch.device("cpu"), dtype=torch.float32
            )
            expected = conditioner(
                *(theirs[name] for name in ("qwen_prompt_embeds", "t5_input_ids", "t5_attention_mask")),
                theirs["qwen_attention_mask"],
            )
            ours = transformer._text_rows(**encoded(components, captions))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_padding_of_cached_captions_changes_nothing(components: Components) -> None:
    whole = encoded(components, CAPTIONS)
    for number in range(len(CAPTIONS)):
        stored = trim({name: tensor[number] for name, tensor in whole.items()})
        assert len(stored[STATES]) == len(stored[MASK]) <= 12
        padded = pad({name: tensor[None] for name, tensor in stored.items()}, CompileOptions())
        assert all(torch.equal(padded[name][0], whole[name][number]) for name in whole)


# samples


def made(components: Components, **changes: Any) -> np.ndarray:
    prompt, settings = SamplePrompt(**{**PROMPT, **changes}), settings_of()
    text = encoded(components, [caption.text for caption in prompt_captions(prompt)])
    return sample(components, prompt, text, settings).frames[0].numpy() / 255


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_sample_matches_diffusers_with_the_same_noise(components: Components, scale: float) -> None:
    theirs = pipeline_of(components, scale)(
        prompt=PROMPT["prompt"],
        width=64,
        height=80,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
        output="images",
    )[0]
    assert np.abs(made(components, scale=scale) - theirs).max() < 2 / 255


def test_a_prompt_can_shift_the_timesteps(components: Components) -> None:
    assert np.array_equal(made(components, flow_shift=3.0), made(components))
    assert not np.array_equal(made(components, flow_shift=5.0), made(components))


# recognition


def test_files_are_recognised_by_blocks_and_adapter() -> None:
    def found(keys: dict[str, tuple[int, ...]], **metadata: str) -> tuple[str | None, str]:
        return recognise(Header(metadata=metadata, shapes=keys, dtypes={}))

    keys = spread(REFERENCE["original"])
    for prefix in ("net.", "", "model.diffusion_model."):
        assert found({prefix + key: shape for key, shape in keys.items()}) == ("anima", "Anima")
    without = {key: shape for key, shape in keys.items() if not key.startswith("llm_adapter.")}
    for alone in (without, spread(REFERENCE["diffusers"])):
        assert found(alone) == ("anima", "Anima or Cosmos-Predict2 transformer alone")
    adapter = {key.removeprefix("llm_adapter."): shape for key, shape in keys.items() if key not in without}
    assert found(adapter) == (None, "Anima LLM adapter")
    for lora in ("lora_unet_blocks_0_cross_attn_q_proj.lora_down", "diffusion_model.blocks.0.mlp.layer1.lora_A"):
        assert found({f"{lora}.weight": (4, 2048)}) == ("anima", "Anima LoRA")
    assert found({"model.layers.0.self_attn.q_norm.weight": (128,), "model.embed_tokens.weight": (151936, 1024)}) == (
        None,
        "Qwen3-0.6B text encoder",
    )
