"""The context length within which log-probabilities do not depend on how they are computed."""

from minrl.models.shape import shape_of
from minrl.types import CausalModel


def context_length(model: CausalModel) -> int:
    """Tokens that the model takes, prompt and completion together.

    With LongRoPE it is the original context: a longer sequence changes the frequencies of all its tokens
    (arXiv:2402.13753), and so the log-probabilities of earlier ones. Dynamic RoPE does the same beyond
    `max_position_embeddings`, which is the limit anyway.
    """
    config = model.config.get_text_config(decoder=True)
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one, or one for each type of layer
    originals = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([shape_of(model.config).context, *originals])
