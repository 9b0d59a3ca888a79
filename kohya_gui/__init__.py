"""The page: a Gradio GUI over the training scripts, without torch."""

import kohya_gui.server.lean_gradio  # noqa: F401  # before Gradio
