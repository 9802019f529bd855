"""A model's output head: what its config says of its logits."""

from minrl.models.logprobs import Head
from minrl.models.lora import merged_weight
from minrl.models.text import head_of
from minrl.types import CausalModel

CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
"""Names of the cap c in logits c tanh(x / c): of Gemma and nanochat, RecurrentGemma, xLSTM."""

FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
"""Names of a factor of the logits: of Cohere, Falcon-H1, Muse."""

DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")
"""Names of a divisor of the logits: of Granite and MiniCPM3, Inkling."""

UNSCALED = ("aya_vision", "cohere2_vision")
"""Multimodal model types whose class leaves out the factor of their text part."""

MULTIPLIED_BY_DIVISOR = ("hyperclovax",)
"""Model types that multiply by what the others divide by."""


def output_head(model: CausalModel) -> Head:
    """The head with its bias, scale and cap. Loading verifies them."""
    layer, config = head_of(model), model.config.get_text_config(decoder=True)
    scale = 1.0
    for name in FACTORS if model.config.model_type not in UNSCALED else ():
        scale *= getattr(config, name, None) or 1.0
    for name in DIVISORS:
        divisor = getattr(config, name, None) or 1.0
        scale *= divisor if config.model_type in MULTIPLIED_BY_DIVISOR else 1 / divisor
    cap = next((getattr(config, name) for name in CAPS if getattr(config, name, None)), 0.0)
    return Head(merged_weight(layer), getattr(layer, "bias", None), scale, cap)
