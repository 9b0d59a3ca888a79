"""The theme of the page: calm, compact, light and dark. No font, script or image is loaded from elsewhere."""

from pathlib import Path
from typing import Any

import gradio as gr

STYLES = (
    *("style.css", "vendor/uplot.min.css", "runs/chart.css", "form/prompts.css", "generate/generate.css"),
    *("tools/lora_tools.css", "tools/job_tab.css", "generate/checkpoints.css", "dataset/dataset.css"),
    *("dataset/editing.css", "drawing/drawing.css", "tools/reports.css", "train/train.css", "form/search.css"),
    *("form/presets.css", "runs/gpus.css", "models/models.css"),
)
SCRIPTS = (
    *("studio.js", "language.js", "media.js", "page.js", "form/visibility.js", "form/drafts.js"),
    *(
        "vendor/uplot.min.js",
        "runs/chart.js",
        "runs/curves.js",
        "runs/console.js",
        "generate/matrix.js",
        "runs/samples.js",
        "runs/live.js",
    ),
    *("runs/compare.js", "runs/runs.js", "tools/doctor.js", "form/prompts.js", "form/fields.js", "form/browse.js"),
    *("form/compile_bundle.js", "runs/plan.js", "runs/measure.js", "tools/compile_cache.js", "generate/texts.js"),
    *(
        "generate/rating.js",
        "generate/own_loras.js",
        "generate/generate.js",
        "tools/lora_report.js",
        "tools/job_tab.js",
        "tools/lora_tools.js",
    ),
    *(
        "tools/captions.js",
        "tools/images.js",
        "tools/publish.js",
        "generate/checkpoints.js",
        "generate/regularisation.js",
    ),
    *("dataset/marks.js", "dataset/grid.js", "dataset/detail.js", "dataset/epoch.js", "dataset/step.js"),
    *("dataset/dataset.js", "dataset/chips.js", "dataset/bulk.js", "dataset/files.js", "dataset/captions.js"),
    *("drawing/stage.js", "drawing/paint.js", "drawing/masks.js", "drawing/crop.js", "tools/duplicates.js"),
    *("tools/balance.js", "train/parts.js", "train/cards.js", "train/train.js", "form/search_rank.js"),
    *("form/search.js", "form/presets.js", "runs/gpus.js", "models/models.js"),
)
COLOURS = {
    "body_background_fill": ("*neutral_100", "*neutral_950"),
    "background_fill_primary": ("white", "*neutral_900"),
    "block_background_fill": ("transparent", "transparent"),
    "block_shadow": ("none", "none"),
    "block_label_background_fill": ("transparent", "transparent"),
    "block_title_text_color": ("*neutral_700", "*neutral_200"),
    "block_info_text_color": ("*neutral_500", "*neutral_400"),
    "input_background_fill": ("*neutral_50", "*neutral_800"),
    "input_border_color": ("*neutral_300", "*neutral_700"),
    "input_border_color_focus": ("*primary_500", "*primary_400"),
    "checkbox_background_color": ("white", "*neutral_800"),
    "checkbox_border_color": ("*neutral_400", "*neutral_600"),
    "checkbox_label_background_fill": ("transparent", "transparent"),
    "button_primary_background_fill": ("*primary_700", "*primary_700"),
    "button_primary_background_fill_hover": ("*primary_800", "*primary_600"),
    "button_primary_text_color": ("white", "white"),
    "button_secondary_background_fill": ("white", "*neutral_800"),
    "button_secondary_background_fill_hover": ("*neutral_50", "*neutral_700"),
    "button_secondary_border_color": ("*neutral_300", "*neutral_700"),
    "button_primary_border_color": ("transparent", "transparent"),
    "button_cancel_background_fill": ("*neutral_800", "*neutral_200"),
    "button_cancel_background_fill_hover": ("*neutral_700", "white"),
    "button_cancel_text_color": ("white", "*neutral_900"),
    "border_color_primary": ("*neutral_200", "*neutral_800"),
}
"""Each in light and in dark mode."""


def look() -> dict[str, Any]:
    """Return theme, CSS and scripts for launch(); Gradio 6 no longer takes them in Blocks()."""
    head = "".join(f"<script>{script}</script>" for script in scripts())
    return {"theme": theme(), "css": "\n".join(map(asset, STYLES)), "head": head}


def scripts() -> list[str]:
    """Return the page's own scripts in loading order."""
    return [asset(name) for name in SCRIPTS]


def asset(name: str) -> str:
    """Return the text of a script or style sheet in `static/`."""
    return (Path(__file__).parent / "static" / name).read_text(encoding="utf-8")


def theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue=gr.themes.colors.teal,
        secondary_hue=gr.themes.colors.teal,
        neutral_hue=gr.themes.colors.slate,
        text_size=gr.themes.sizes.text_sm,
        spacing_size=gr.themes.sizes.spacing_sm,
        radius_size=gr.themes.sizes.radius_md,
        font=["Inter", "ui-sans-serif", "system-ui", "Segoe UI", "DejaVu Sans", "sans-serif"],
        font_mono=["ui-monospace", "Cascadia Mono", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace"],
    ).set(
        block_border_width="0px",
        block_padding="0px",
        block_label_text_weight="600",
        block_title_text_weight="600",
        block_title_text_size="*text_sm",
        block_info_text_size="*text_xs",
        input_border_width="1px",
        input_padding="6px 10px",
        checkbox_label_border_width="0px",
        checkbox_label_padding="0px",
        button_border_width="1px",
        button_large_padding="9px 16px",
        button_small_padding="6px 12px",
        button_large_text_weight="600",
        button_small_text_weight="500",
        layout_gap="10px",
        form_gap_width="0px",
        **{name: light for name, (light, _) in COLOURS.items()},
        **{f"{name}_dark": dark for name, (_, dark) in COLOURS.items()},
    )
