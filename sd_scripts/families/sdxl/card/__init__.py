"""SDXL, as the page, the options and the file recognition see it."""

from sd_scripts.families.cards.family_card import (
    DENOISER,
    VAE,
    ComponentCard,
    FamilyCard,
    FilesCard,
    FirstLayer,
    HubCard,
    PageCard,
    PlanCard,
    RecognitionCard,
)
from sd_scripts.families.sdxl.card.checks import PROBLEMS, U_NET_BLOCKS
from sd_scripts.families.sdxl.card.hub_files import FILES
from sd_scripts.families.sdxl.card.kohya import KOHYA
from sd_scripts.families.sdxl.card.layer_rules import read_block_rules
from sd_scripts.families.sdxl.card.memory_facts import MEMORY
from sd_scripts.families.sdxl.card.speeds import GRAPHS, SPEEDS
from sd_scripts.formats.text_limit import TextLimit
from sd_scripts.options.memory import MemoryOptions
from sd_scripts.options.model import ModelOptions
from sd_scripts.options.spec import OptionValues

HUB_MODEL = "stabilityai/stable-diffusion-xl-base-1.0"

CHUNK, LONGEST = 75, 225
"""Tokens of a chunk of a caption, between a start and an end token, and the most that max_token_length allows."""


def text_limit(settings: OptionValues, variant: str) -> TextLimit:
    return limit_of(settings[ModelOptions].max_token_length)


def limit_of(max_token_length: int | None) -> TextLimit:
    tokens = max_token_length or CHUNK
    return TextLimit(tokens=tokens, remedy="" if tokens == LONGEST else f"set max_token_length = {LONGEST}")


CARD = FamilyCard(
    name="sdxl",
    title="SDXL",
    order=0,
    more_methods=("textual_inversion",),
    groups=(MemoryOptions,),
    capabilities=frozenset(
        {
            *("batches", "block_rates", "clip_captions", "convolutions", "fp8", "group_norms", "grouped_updates"),
            *("learns_embeddings", "noise_schedule", "own_vae", "trains_text"),
        }
    ),
    notes={
        "pretrained_model_name_or_path": f"SDXL's ID is {HUB_MODEL}.",
        "vae": "SDXL's fp16-fix VAE avoids black images in half precision.",
        "equal_token_buckets": "SDXL's attention blocks then share their graphs, its convolutions do not.",
        "blocks_to_swap": "SDXL takes up to 58, and each saves 0.07 GB.",
        "no_half_vae": "SDXL's original VAE does.",
        "quantize_base": "Of SDXL's U-Net it is the Linear layers, 2.2 of 2.6 billion weights.",
        "block_lr": f"SDXL has {U_NET_BLOCKS}: time and size embedding, 9 down, 3 middle, 9 up, output.",
        "network_args": "SDXL: block_dims, block_alphas, down_lr_weight, mid_lr_weight, up_lr_weight.",
        "record_steps": "A step of SDXL at batch size 1 on an H200 with a slow CPU takes 83 ms recorded and 494 "
        "unrecorded; compiled, 63 and 347.",
    },
    problems=PROBLEMS,
    files=FilesCard(
        components=(
            ComponentCard(
                name=DENOISER,
                kind="SDXL model",
                folder="unet",
                prefixes=("model.diffusion_model.",),
                signature_keys=("label_emb.0.0.weight",),
                first_layer=FirstLayer(
                    keys=("input_blocks.0.0.weight", "conv_in.weight"),
                    channels=4,
                    kind="SDXL model",
                    variants={8: "SDXL InstructPix2Pix model", 9: "SDXL inpainting model"},
                ),
            ),
            ComponentCard(
                name="text_encoder1",
                kind="SDXL model",
                folder="text_encoder",
                prefixes=("conditioner.embedders.0.transformer.text_model.",),
                signature_keys=("encoder.layers.0.self_attn.q_proj.weight",),
            ),
            ComponentCard(
                name="text_encoder2",
                kind="SDXL model",
                folder="text_encoder_2",
                prefixes=("conditioner.embedders.1.model.",),
                signature_keys=("ln_final.weight",),
            ),
            ComponentCard(
                name=VAE,
                option="vae",
                file="an SDXL VAE file",
                kind="VAE",
                title="a VAE for SDXL",
                folder="vae",
                prefixes=("", "first_stage_model."),
                signature_keys=("decoder.conv_in.weight",),
                first_layer=FirstLayer(keys=("encoder.conv_in.weight",), channels=3, kind="VAE"),
            ),
        ),
        base_file="an SDXL file",
        base_model="an SDXL checkpoint",
    ),
    network_rules=read_block_rules,
    side_multiple=8,
    token_multiple=32,
    text_limit=text_limit,
    plan=PlanCard(graphs=GRAPHS, speeds=SPEEDS, memory=MEMORY),
    recognition=RecognitionCard(
        hub_words=("xl",),
        marks=(
            ("conditioner.embedders.1.model.ln_final.weight", "sdxl", "SDXL checkpoint"),
            ("conditioner.embedders.0.model.ln_final.weight", None, "SDXL refiner"),
            ("model.diffusion_model.label_emb.0.0.weight", "sdxl", "SDXL U-Net alone"),
            ("add_embedding.linear_1.weight", "sdxl", "SDXL U-Net alone"),
        ),
        lora_encoder_marks=("lora_te2_", "text_encoder_2."),
        lora_marks=(
            "input_blocks_4_1_transformer_blocks_1_",
            *("down_blocks_2_attentions_0_transformer_blocks_1_", "down_blocks.2.attentions.0.transformer_blocks.1."),
        ),
        pipelines=(("StableDiffusionXL", "sdxl", "SDXL diffusers folder"),),
    ),
    hub=HubCard(model=HUB_MODEL, tags=("stable-diffusion-xl",), files=FILES),
    page=PageCard(
        use_hints={
            "full": "Your model. To use it, put it into <b>models/checkpoints</b> (ComfyUI) or "
            "<b>models/Stable-diffusion</b> (WebUI).",
            "textual_inversion": "Your embedding. To use it, put it into <b>models/embeddings</b> (ComfyUI, "
            "<code>embedding:name</code> in a prompt) or <b>embeddings</b> (WebUI, its file name in a prompt).",
        },
        demo_prompts="--l 2 --s 24",
        trained_demo={"learning_rate": 4e-3, "network_dim": 32, "network_alpha": 32.0, "min_snr_gamma": 5.0},
        kohya=KOHYA,
    ),
)
