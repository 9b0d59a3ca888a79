"""Options of families that are trained by flow matching: timesteps, prediction, guidance."""

from typing import Literal

from sd_scripts.options.spec import OptionGroup, option, switch


class FlowOptions(OptionGroup, title="Timesteps"):
    """At which timesteps a flow-matching model is trained, and how its prediction enters the loss."""

    timestep_sampling: Literal["sigma", "uniform", "sigmoid", "shift"] = option(
        "sigma",
        "How timesteps are sampled. shift with discrete_flow_shift = 3.1582 suits most models.",
        label="Timestep sampling",
    )
    model_prediction_type: Literal["raw", "additive", "sigma_scaled"] = option(
        "sigma_scaled",
        "How the model's output is interpreted. raw is recommended; sigma_scaled is the default of sd-scripts and does "
        "not match what the models predict.",
        label="Prediction type",
        needs="prediction_types",
    )
    discrete_flow_shift: float = option(
        3.0, "Shifts timesteps towards more noise, for sigma and shift. 3.1582 suits 1024x1024.", within=(0.001, 100.0)
    )
    guidance_scale: float = option(
        3.5, "Guidance embedded in the model during training.", label="Guidance", needs="guidance", within=(0.0, 100.0)
    )
    sigmoid_scale: float = option(
        1.0, "Scale of the timestep distribution around the middle, for sigmoid and shift.", within=(0.001, 100.0)
    )
    preserve_distribution_shape: bool = switch(
        "Draw again what falls outside min_timestep and max_timestep, instead of scaling all timesteps into that range."
    )
    weighting_scheme: Literal["sigma_sqrt", "logit_normal", "mode", "cosmap", "none", "uniform"] = option(
        "uniform",
        "Samples some timesteps more often (logit_normal, mode; with sigma) or weights them more (sigma_sqrt, cosmap; "
        "with sigma_scaled).",
    )
    logit_mean: float = option(0.0, "Mean of logit_normal.", within=(-100.0, 100.0))
    logit_std: float = option(1.0, "Standard deviation of logit_normal.", within=(0.0, 100.0))
    mode_scale: float = option(1.29, "Scale of mode.", within=(-100.0, 100.0))
