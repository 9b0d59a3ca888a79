"""The tier of each test: `fast` trains nothing, `run` has whole runs on miniatures, `deep` what takes longest."""

RUN = {
    "test_auth",
    "test_bad_input",
    "test_benchmark",
    "test_command_listener",
    "test_compare_checkpoints",
    "test_components",
    "test_dataset_tools",
    "test_demo_data",
    "test_error_hints",
    "test_family_contract",
    "test_finetune_tools",
    "test_flux_run",
    "test_qwen_image_edit_run",
    "test_qwen_image_run",
    "test_full_run",
    "test_generate",
    "test_generate_page",
    "test_lora_run",
    "test_model_saving",
    "test_outputs",
    "test_quantized_run",
    "test_queue",
    "test_resume",
    "test_samples",
    "test_saving_faults",
    "test_sdxl_sampling",
    "test_secrets",
    "test_text_encoders_run",
    "test_third_family",
    "test_trackers",
    "test_training_options",
    "test_training_run",
    "test_validation",
}
"""Whole runs and samples, and servers of the GUI."""

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
