"""How long a sequence may be for a model to say the same of its tokens however it is computed."""

from minrl.types import CausalModel


def context_length(model: CausalModel) -> int:
    """Tokens that the model takes, prompt and completion together.

    With LongRoPE that is its original context: in a longer sequence the frequencies of all tokens are others
    (arXiv:2402.13753), so that what was sampled before would have other log-probabilities after. Dynamic RoPE does the
    same beyond `max_position_embeddings`, which is the limit anyway.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one, or one for each type of layer
    originals = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([config.max_position_embeddings, *originals])
