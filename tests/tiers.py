"""The tier of each test: `fast` has functions and single layers, `run` whole models and training runs on miniatures,
`deep` what takes longest."""

RUN = {
    "test_adapter_images",
    "test_adapter_kinds",
    "test_adapter_memory",
    "test_auth",
    "test_bad_input",
    "test_benchmark",
    "test_benchmark_generate",
    "test_block_swap",
    "test_comfyui",
    "test_command_listener",
    "test_compare_checkpoints",
    "test_compile_cache",
    "test_components",
    "test_dataset_tools",
    "test_demo_data",
    "test_direct_start",
    "test_doctor",
    "test_error_hints",
    "test_family_contract",
    "test_finetune_tools",
    "test_flux_kontext",
    "test_flux_load",
    "test_flux_run",
    "test_flux_sampling",
    "test_folded_lora",
    "test_full_run",
    "test_garbage_collection",
    "test_generate",
    "test_generate_page",
    "test_live_routes",
    "test_lora_files",
    "test_lora_flux",
    "test_lora_merge_model",
    "test_lora_method",
    "test_lora_plan",
    "test_lora_run",
    "test_lora_starts",
    "test_lora_tools",
    "test_memory_plan",
    "test_model_saving",
    "test_outputs",
    "test_peft",
    "test_plan_card",
    "test_prompt_editor",
    "test_quantized",
    "test_quantized_run",
    "test_queue",
    "test_qwen_image",
    "test_qwen_image_edit",
    "test_qwen_image_edit_run",
    "test_qwen_image_load",
    "test_qwen_image_run",
    "test_resume",
    "test_samples",
    "test_save_as_format",
    "test_saving_faults",
    "test_sdxl_load",
    "test_sdxl_model_util",
    "test_sdxl_sampling",
    "test_sdxl_swap",
    "test_secrets",
    "test_start_up",
    "test_tensorboard",
    "test_text_encoders_run",
    "test_text_flux",
    "test_text_sdxl",
    "test_textual_inversion",
    "test_third_family",
    "test_trackers",
    "test_training_options",
    "test_training_run",
    "test_validation",
}
"""Whole runs and images, whole models that are loaded or counted, servers of the GUI, new Pythons."""

DEEP = {
    "browser",
    "test_attention_cuda",
    "test_compile",
    "test_compare_checkpoints_cuda",
    "test_compile_cuda",
    "test_compile_more",
    "test_compile_run",
    "test_ddp",
    "test_full_resume",
    "test_generate_cuda",
    "test_head_start_cuda",
    "test_kill",
    "test_sigterm",
    "test_memory_cuda",
    "test_preset_runs",
    "test_quantized_cuda",
    "test_qwen_image_cuda",
    "test_rounding_cuda",
    "test_sharded",
    "test_step_graphs_cuda",
}
"""Killed runs, several processes, every preset, the compiler, the page in a browser, and what needs a GPU."""

TIERS = ("fast", "run", "deep")
current = ""
"""The tier of the test that is running."""


def tier_of(module: str, markers: set[str]) -> str:
    """Return the tier of a test: that of its own marker, else that of its module or folder, else `fast`."""
    if own := markers.intersection(TIERS):
        (tier,) = own
        return tier
    if module in DEEP or "inductor" in markers:
        return "deep"
    return "run" if module in RUN else "fast"


def require_whole_runs() -> None:
    """Raise unless the running test may train."""
    assert current != "fast", "a fast test does not train: list its module in tests/tiers.py, or mark the test `run`"
