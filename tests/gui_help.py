"""What the tests of the page share, with a browser and without."""

SIX = {
    "compile": True,
    "compile_backend": "inductor",
    "compile_mode": "reduce-overhead",
    "compile_dynamic": "false",
    "compile_fullgraph": True,
    "compile_cache_size_limit": 64,
}
"""The six compile options, each but the backend other than its default."""
