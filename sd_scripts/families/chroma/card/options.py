"""Values of FLUX.1's options that train Chroma well."""

RECOMMENDED = {"timestep_sampling": "sigmoid", "model_prediction_type": "raw"}
"""The defaults are sd-scripts'."""
