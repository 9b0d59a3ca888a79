import kohya_gui.lean_gradio  # noqa: F401  # before Gradio
