"""What transformers' code says of the layers of each type of model, and their modules do not show."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Part = Any
"""A module or config of transformers: each type of model has classes of its own."""

BEFORE = ("input_layernorm", "", "post_attention_layernorm", "")
AFTER = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GLM4 = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the modules of a type of model do not show of how its layers compute."""

    norms: tuple[str, str, str, str] = BEFORE
    """The norms before and after the attention, and before and after the feed-forward; "" is none."""
    centred: bool = False
    """Norms take the mean off."""
    one_more: bool = False
    """Norms multiply by 1 + weight."""
    last_norm: str = "norm"
    """The norm after all layers."""
    norms_embeddings: bool = False
    """The last norm is also the first."""
    windows: Literal["", "all", "typed"] = ""
    """`config.sliding_window` holds for no layer, for all, or for those of the type `sliding_attention`."""
    rotates: Callable[[Part], bool] = lambda attention: True
    """Whether a layer with this attention rotates its queries and keys."""
    neighbours: bool = False
    """Rotary pairs are neighbours, (2 i, 2 i + 1)."""
    one_angle: bool = False
    """transformers' tables have an angle for each pair, not for each of its two dimensions."""
    backwards: bool = False
    """Rotation is by minus the angle."""
    rotates_first: bool = False
    """Queries and keys are normed after the rotation."""
    parallel: bool = False
    """The feed-forward has the attention's input, not its output."""
    capped: bool = False
    """Scores of the attention are capped, where the config says so."""
    scaled_by_position: bool = False
    """Queries are multiplied by 1 + beta log(1 + floor(position / original context))."""
    refuses: Callable[[Part], bool] = lambda config: False
    """Whether a config asks for what is not computed here."""


def _bidirectional(config: Part) -> bool:
    return bool(getattr(config, "use_bidirectional_attention", False))


def _clips(config: Part) -> bool:
    return config.clip_qkv is not None


PLAIN, TYPED, WINDOWED = Shape(), Shape(windows="typed"), Shape(windows="all")
SHAPES = {
    **dict.fromkeys(("llama", "granite", "seed_oss", "arcee"), PLAIN),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "ministral"), TYPED),
    **dict.fromkeys(("mistral", "mixtral", "qwen3_moe", "phi3"), WINDOWED),
    "ministral3": Shape(windows="all", scaled_by_position=True),
    "starcoder2": Shape(windows="all", centred=True),
    "smollm3": Shape(windows="typed", rotates=lambda attention: bool(attention.use_rope)),
    "olmo": Shape(centred=True, refuses=_clips),
    "olmoe": Shape(refuses=_clips),
    "olmo2": Shape(norms=AFTER),
    "flex_olmo": Shape(norms=AFTER),
    "olmo3": Shape(norms=AFTER, windows="typed"),
    "exaone4": Shape(norms=AFTER, windows="typed", rotates=lambda a: a.sliding_window is None or a.is_sliding),
    "gemma": Shape(one_more=True, refuses=_bidirectional),
    "gemma2": Shape(one_more=True, norms=AROUND, windows="typed", capped=True, refuses=_bidirectional),
    "gemma3_text": Shape(one_more=True, norms=AROUND, windows="typed", refuses=_bidirectional),
    "glm": Shape(neighbours=True),
    "glm4": Shape(neighbours=True, norms=GLM4),
    "helium": Shape(neighbours=True),
    "ernie4_5": Shape(neighbours=True),
    "cohere": Shape(neighbours=True, centred=True, parallel=True),
    "cohere2": Shape(
        neighbours=True, centred=True, parallel=True, windows="typed", rotates=lambda a: a.sliding_window is not None
    ),
    "lfm2": Shape(norms=("operator_norm", "", "ffn_norm", ""), last_norm="embedding_norm"),
    "gpt_oss": Shape(windows="typed", one_angle=True),
    "hunyuan_v1_dense": Shape(rotates_first=True),
    "nanochat": Shape(norms_embeddings=True, backwards=True, rotates_first=True),
}
"""By `model_type`. A model whose type is not here is left to transformers."""
