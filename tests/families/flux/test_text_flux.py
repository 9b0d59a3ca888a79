"""FLUX.1's captions: tokens, pooled state and states, against transformers and diffusers."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from safetensors.torch import load_file
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel, T5Tokenizer

from sd_scripts.data.batch import Batch
from sd_scripts.data.caches.caching import CacheJob
from sd_scripts.data.caches.text_caching import TextStore, cache_text
from sd_scripts.data.sources.captions import Caption
from sd_scripts.families.common.family import Components, TextOptions
from sd_scripts.families.common.opening import load_tokenizers
from sd_scripts.families.flux.family import FLUX
from sd_scripts.families.flux.text import (
    encode_text,
    text_cache_fits,
    text_cache_key,
    text_limit,
    tokenize,
)
from sd_scripts.library.text import tokenizers
from tests.support.data import loader_of, make_folder, plan_of
from tests.support.families.flux import flux_settings
from tests.support.training import TEXT_ENCODERS_TOO, Run, train

pytestmark = pytest.mark.run

CAPTIONS = ["a red circle on a white background", "", "red " * 100]
SIZES = (49408, 32128)


@functools.cache
def shipped() -> tuple[CLIPTokenizer, T5Tokenizer]:
    """The tokenizers with the real vocabularies; reading these takes a quarter of a second."""
    return tokenizers.shipped_clip(), tokenizers.shipped_t5()


def tiny_parts(t5_length: int = 24, masked: bool = False, clip_eos: int = 49407) -> Components:
    """Both encoders in miniature, over the real vocabularies."""
    torch.manual_seed(0)
    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=SIZES[0],
            hidden_size=32,
            intermediate_size=64,
            num_attention_heads=2,
            num_hidden_layers=2,
            eos_token_id=clip_eos,
        )
    )
    t5 = T5EncoderModel(
        T5Config(
            vocab_size=SIZES[1], d_model=48, d_kv=8, d_ff=64, num_heads=4, num_layers=2, feed_forward_proj="gated-gelu"
        )
    )
    return Components(
        denoiser=nn.Identity(),
        vae=nn.Identity(),
        text_encoders=[clip.eval(), t5.eval()],
        tokenizers=[*shipped()],
        source="model",
        extras={"t5_length": t5_length, "apply_t5_attn_mask": masked},
    )


@pytest.fixture(scope="module")
def components() -> Components:
    return tiny_parts()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a photo of a cat", [3, 9, 1202, 13, 3, 9, 1712, 1]),
        ("Ünïcödé ﬁ ½ ①", [3, 14858, 29, 2, 75, 1872, 3764, 361, 209, 2, 357, 209, 1]),
        ("  two  spaces\tand\nnewline ", [192, 4856, 11, 126, 747, 1]),
        ("日本語 mixed 😀", [3, 2, 4838, 3, 2, 1]),
        ("1girl, long_hair, (red:1.5)", [209, 18722, 6, 307, 834, 19176, 6, 41, 1271, 10, 16593, 61, 1]),
        ("</s> <extra_id_0> x", [1, 32099, 3, 226, 1]),
        ("", [1]),
    ],
)
def test_the_shipped_vocabulary_is_t5s(text: str, ids: list[int]) -> None:
    """The numbers are from google/t5-v1_1-xxl's own tokenizer.json."""
    assert shipped()[1](text).input_ids == ids


def found(source: Path, cache: str | None, rows: tuple[int, int]) -> list[Any]:
    encoders = dict(zip(("text_encoder1", "text_encoder2"), rows, strict=True))
    return load_tokenizers(FLUX.card, FLUX.layouts, encoders, source, cache)


def test_the_shipped_tokenizers_are_used_without_tokenizers_next_to_the_model(tmp_path: Path) -> None:
    clip, t5 = found(tmp_path / "flux1-dev.safetensors", None, SIZES)
    assert (len(clip), len(t5)) == (49408, 32100)


@pytest.mark.parametrize("place", ["folder", "beside", "cache"])
def test_a_matching_tokenizer_is_found_next_to_the_model_and_a_different_one_is_skipped(
    tmp_path: Path, place: str
) -> None:
    """A smaller T5 vocabulary for a smaller encoder; CLIP's place holds one that is too small."""
    source = tmp_path / "model.safetensors"
    if place == "folder":
        source = tmp_path / "flux"
        folders = [source / name for name in ("tokenizer", "tokenizer_2")]
    elif place == "beside":
        source.touch()
        folders = [tmp_path / "model_tokenizers" / name for name in ("tokenizer", "tokenizer_2")]
    else:
        folders = [tmp_path / "cache" / kind.cache_folder for kind in (tokenizers.CLIP, tokenizers.T5)]
    pieces = [(shipped()[1].convert_ids_to_tokens(number), -float(number)) for number in range(200)]
    small = T5Tokenizer(vocab=pieces, extra_ids=0)
    tokenizers.make_clip_tokenizer([("a", "b")]).save_pretrained(folders[0])
    small.save_pretrained(folders[1])
    clip, t5 = found(source, str(tmp_path / "cache"), (49408, 256))
    assert (len(clip), len(t5)) == (49408, 200)
    assert t5("the").input_ids == small("the").input_ids


def test_an_encoder_without_a_matching_tokenizer_is_reported_with_the_folder_to_fill(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer_cache_dir: found no tokenizer with 300 tokens .*'tokenizer_2'"):
        found(tmp_path / "flux1-dev.safetensors", None, (49408, 300))


def test_shapes_do_not_depend_on_the_captions(components: Components) -> None:
    tokens = tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(flux_settings()))
    shapes = [{name: tuple(each.shape) for name, each in read.items()} for read in tokens.values()]
    assert shapes == [{"ids": (3, 77)}, {"ids": (3, 24), "mask": (3, 24)}]
    outputs = encode_text(components, tokens)
    assert {name: tuple(each.shape) for name, each in outputs.items()} == {
        "l_pooled": (3, 32),
        "t5_out": (3, 24, 48),
        "txt_ids": (3, 24, 3),
        "t5_attn_mask": (3, 24),
        "apply_t5_attn_mask": (3,),
    }
    assert outputs["t5_attn_mask"].sum(1).tolist() == [10, 1, 24]


def test_states_match_diffusers(components: Components) -> None:
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=None,
        transformer=None,
        text_encoder=components.text_encoders[0],
        tokenizer=components.tokenizers[0],
        text_encoder_2=components.text_encoders[1],
        tokenizer_2=components.tokenizers[1],
    )
    with torch.no_grad():
        ours = encode_text(components, tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(flux_settings())))
        states, pooled, _ = pipeline.encode_prompt(CAPTIONS, None, device="cpu", max_sequence_length=24)
    torch.testing.assert_close(ours["t5_out"], states)
    torch.testing.assert_close(ours["l_pooled"], pooled)


def test_the_pooled_state_is_at_the_end_token_whatever_its_name_in_the_file() -> None:
    tokens = tokenize(tiny_parts(), [*map(Caption, CAPTIONS)], TextOptions.of(flux_settings()))
    told, untold = (encode_text(tiny_parts(clip_eos=eos), tokens)["l_pooled"] for eos in (49407, 5))
    torch.testing.assert_close(told, untold)


def test_padding_is_hidden_from_t5_only_with_apply_t5_attn_mask(components: Components) -> None:
    tokens = tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(flux_settings()))
    plain, masked = (encode_text(tiny_parts(masked=hidden), tokens) for hidden in (False, True))
    mask = tokens[1]["mask"]
    t5 = tiny_parts().text_encoders[1]
    torch.testing.assert_close(masked["t5_out"], t5(tokens[1]["ids"], attention_mask=mask).last_hidden_state)
    assert not torch.allclose(plain["t5_out"][0], masked["t5_out"][0])
    torch.testing.assert_close(plain["t5_out"][2], masked["t5_out"][2])  # a caption without padding
    assert (plain["apply_t5_attn_mask"].any(), masked["apply_t5_attn_mask"].all()) == (False, True)


def test_only_encoders_whose_tokens_are_given_run(components: Components) -> None:
    tokens = tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(flux_settings()))
    assert set(encode_text(components, {0: tokens[0]})) == {"l_pooled"}
    assert "l_pooled" not in encode_text(components, {1: tokens[1]})


def test_gradients_reach_both_encoders() -> None:
    components = tiny_parts()
    outputs = encode_text(components, tokenize(components, [*map(Caption, CAPTIONS)], TextOptions.of(flux_settings())))
    (outputs["l_pooled"].square().sum() + outputs["t5_out"].square().sum()).backward()
    for encoder in components.text_encoders:
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.encoder.parameters())


def test_a_caption_longer_than_t5_reads_is_truncated(components: Components) -> None:
    limit = text_limit(components, TextOptions.of(flux_settings()))
    texts = [
        (Path("a/1.png"), "red " * 23),
        (Path("b/1.png"), "a"),
        (Path("b/1.png"), "red " * 24),
    ]  # and the end token
    assert limit.caption_remark(texts) == (
        "1 of 2 captions is longer than 24 tokens and is cut: 1.png (25 tokens); shorten it, or raise "
        "t5xxl_max_token_length"
    )


def test_cut_captions_and_prompts_are_reported_by_every_run(any_miniature: Any, tmp_path: Path) -> None:
    """Also by one that finds all captions in its cache."""
    (first, _) = make_folder(tmp_path / "images/1_x", [(64, 64)] * 2, "red")
    first.with_suffix(".txt").write_text("a blue square " * 9)
    (tmp_path / "prompts.txt").write_text("a cat\n" + "a white background " * 9)
    for name in ("one", "two"):
        made = train(
            any_miniature,
            tmp_path / name,
            train_data_dir=tmp_path / "images",
            cache_text_encoder_outputs_to_disk=True,
            sample_prompts=tmp_path / "prompts.txt",
            caption_prefix="circle",
            max_train_steps=1,
        )
        told = [event["text"].partition("; ")[0] for event in made.events_of("warning") if "tokens" in event["text"]]
        assert told == [
            "1 of 2 captions is longer than 16 tokens and is cut: 00.png (29 tokens)",
            f"1 of 2 prompts is longer than 16 tokens and is cut: '{('a white background ' * 9)[:60]}...' (28 tokens)",
        ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_folder(tmp_path / "train/1_cat", [(64, 64), (64, 64)])
    return tmp_path / "train"


class Caching:
    """The text cache of a run, with the captions that had to be encoded for it."""

    def __init__(self, root: Path, components: Components, **how: Any):
        self.encoded: list[str] = []
        self.components = components
        self.plan = plan_of(root, train_batch_size=2, cache_latents=True)
        self.store: TextStore = cache_text(
            self.plan,
            self._encode,
            encoder_key=str(text_cache_key(components, TextOptions.of(flux_settings()))),
            suffix="flux_te",
            job=CacheJob(**{"warn": pytest.fail, "to_disk": True, **how}),
            fits=lambda tensors: text_cache_fits(components, tensors),
        )

    @torch.no_grad()
    def _encode(self, captions: list[Caption]) -> dict[str, torch.Tensor]:
        self.encoded += [caption.text for caption in captions]
        return encode_text(self.components, tokenize(self.components, captions, TextOptions.of(flux_settings())))

    def batch(self) -> Batch:
        return next(loader_of(self.plan, text=self.store).epoch(1))


@pytest.mark.parametrize("to_disk", [True, False])
def test_cached_outputs_equal_the_encoders_output(root: Path, components: Components, to_disk: bool) -> None:
    batch = Caching(root, components, to_disk=to_disk).batch()
    with torch.no_grad():
        fresh = encode_text(components, tokenize(components, batch.captions, TextOptions.of(flux_settings())))
    assert set(batch.text) == set(fresh)
    for name, tensor in fresh.items():
        torch.testing.assert_close(batch.text[name], tensor)


def test_a_cache_file_has_the_fields_names_and_the_dtypes_of_the_encoders(root: Path) -> None:
    components = tiny_parts(masked=True)
    for encoder in components.text_encoders:
        encoder.to(torch.bfloat16)
    Caching(root, components)
    tensors = load_file(root / "1_cat/00_flux_te.safetensors")
    assert bool(tensors["apply_t5_attn_mask"])
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()} == {
        "l_pooled": ((32,), torch.bfloat16),
        "t5_out": ((24, 48), torch.bfloat16),
        "txt_ids": ((24, 3), torch.bfloat16),
        "t5_attn_mask": ((24,), torch.int64),
        "apply_t5_attn_mask": ((), torch.bool),
    }


def test_states_in_memory_take_no_more_space_than_the_encoders_output(root: Path) -> None:
    components = tiny_parts()
    components.text_encoders[1].to(torch.bfloat16)
    text = Caching(root, components, to_disk=False).batch().text
    assert (text["t5_out"].dtype, text["l_pooled"].dtype) == (torch.bfloat16, torch.float32)


def test_a_different_length_or_mask_rebuilds_the_cache(root: Path, components: Components) -> None:
    assert len(Caching(root, components).encoded) == 2
    assert not Caching(root, components).encoded
    assert len(Caching(root, tiny_parts(masked=True)).encoded) == 2
    assert len(Caching(root, tiny_parts(t5_length=30)).encoded) == 2


def write_foreign(root: Path, length: int, masked: bool) -> None:
    """Files of another program: the arrays without a fingerprint."""
    for number in range(2):
        np.savez(
            root / f"1_cat/{number:02d}_flux_te.npz",
            l_pooled=np.full(32, 7, np.float32),
            t5_out=np.full((length, 48), 7, np.float32),
            txt_ids=np.zeros((length, 3), np.float32),
            t5_attn_mask=np.ones(length, np.int64),
            apply_t5_attn_mask=masked,
        )


def test_files_of_other_programs_are_used_with_skip_cache_check(root: Path, components: Components) -> None:
    write_foreign(root, length=24, masked=False)
    caching = Caching(root, components, skip_check=True)
    assert not caching.encoded
    text = caching.batch().text
    assert (text["l_pooled"] == 7).all()
    assert not text["apply_t5_attn_mask"].any()
    assert len(Caching(root, components).encoded) == 2


@pytest.mark.parametrize(("length", "masked"), [(24, True), (30, False)])
def test_files_with_a_different_mask_or_length_are_rebuilt_even_then(
    root: Path, components: Components, length: int, masked: bool
) -> None:
    write_foreign(root, length, masked)
    assert len(Caching(root, components, skip_check=True).encoded) == 2


def test_a_file_that_lacks_states_is_rebuilt_even_then(root: Path, components: Components) -> None:
    write_foreign(root, length=24, masked=False)
    for file in (root / "1_cat").glob("*.npz"):
        with np.load(file) as arrays:
            kept = {name: arrays[name] for name in arrays.files if name != "t5_out"}
        np.savez(file, **kept)
    assert len(Caching(root, components, skip_check=True).encoded) == 2


@pytest.mark.parametrize("given", [{"train_t5xxl": True}, {"network_args": ["train_t5xxl=True"]}])
def test_t5_is_adapted_only_on_request(given: dict[str, Any]) -> None:
    assert FLUX.text.adapted(flux_settings()) == (True, False)
    assert FLUX.text.adapted(flux_settings(**given)) == (True, True)


def cache_problems(**values: Any) -> list[str]:
    problems = flux_settings(cache_text_encoder_outputs=True, **values).problems()
    return [str(problem) for problem in problems if "cache" in str(problem)]


def test_clip_can_be_trained_while_t5_is_cached_but_t5_cannot() -> None:
    assert not cache_problems()
    assert cache_problems(train_t5xxl=True) == [
        "train_t5xxl: T5 cannot be trained while its outputs are cached; turn off one of the two"
    ]
    assert not cache_problems(train_t5xxl=True, network_train_unet_only=True)


def learned(run: Run) -> set[str]:
    """Modules whose matrices have moved, by the beginning of their names."""
    ups = {key for key, tensor in run.tensors().items() if "lora_up" in key and tensor.any()}
    return {"_".join(key.split("_", 2)[:2]) for key in ups}


@pytest.fixture(scope="module")
def reading(flux_miniature: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose CLIP is trained, and both encoders run in each step."""
    return train(flux_miniature, tmp_path_factory.mktemp("reading") / "out", **TEXT_ENCODERS_TOO)


@pytest.mark.run
@pytest.mark.parametrize("kept", [{"cache_text_encoder_outputs": True}, {"cache_text_encoder_outputs_to_disk": True}])
def test_clip_trains_the_same_with_t5_cached_or_run_in_each_step(
    flux_miniature: Any, reading: Run, tmp_path: Path, kept: dict[str, Any]
) -> None:
    cached = train(flux_miniature, tmp_path / "cached", **{**TEXT_ENCODERS_TOO, **kept})
    assert learned(reading) == {"lora_unet", "lora_te1"}
    assert cached.losses == reading.losses


@pytest.mark.run
def test_t5_is_trained_with_train_t5xxl_also_with_gradient_checkpointing(flux_miniature: Any, tmp_path: Path) -> None:
    options = {**TEXT_ENCODERS_TOO, "train_t5xxl": True}
    whole = train(flux_miniature, tmp_path / "whole", **options)
    components = train(flux_miniature, tmp_path / "parts", gradient_checkpointing=True, **options)
    assert learned(whole) == {"lora_unet", "lora_te1", "lora_te3"}
    assert components.losses == pytest.approx(whole.losses, rel=1e-5)


@pytest.mark.run
def test_validation_uses_the_trained_clip(flux_miniature: Any, tmp_path: Path) -> None:
    options = {**TEXT_ENCODERS_TOO, "network_train_text_encoder_only": True, "learning_rate": 1e-1}
    options |= {"validation_split": 0.5, "validate_every_n_steps": 1, "max_train_steps": 2}
    reading = train(flux_miniature, tmp_path / "reading", **options)
    cached = train(flux_miniature, tmp_path / "cached", **{**options, "cache_text_encoder_outputs": True})
    (first, second), again = ([event["loss"] for event in run.events_of("validation")] for run in (reading, cached))
    assert first != second
    assert again == [first, second]
