"""Sample Chroma images."""

from collections.abc import Sequence

from torch import Tensor

from sd_scripts.families.chroma.objective import predict
from sd_scripts.families.common.family import Components
from sd_scripts.families.common.sampling import one_of
from sd_scripts.families.common.sampling import prompt_captions as prompt_captions
from sd_scripts.families.flux.sampling import sample_predictions
from sd_scripts.library.diffusion.media import Media
from sd_scripts.options.generating.prompt_lines import SamplePrompt
from sd_scripts.settings.settings import Settings


def sample_batch(
    components: Components, prompts: Sequence[SamplePrompt], text: dict[str, Tensor], settings: Settings
) -> list[Media]:
    """Generate images that differ in their seeds alone, as sample_flow does. Both captions are read together."""

    def predicted(noisy: Tensor, at: Tensor, outputs: dict[str, Tensor], controls: list[Tensor]) -> Tensor:
        return predict(components.denoiser, noisy, at, outputs)

    return sample_predictions(components, prompts, text, settings, predicted, shifts=True)


sample = one_of(sample_batch)
