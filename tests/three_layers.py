"""The shape whose memory is derived by hand in test_memory.py, and its weights."""

from minrl.models.memory import Weights

SHAPE = {
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "tie_word_embeddings": True,
}
WEIGHTS = Weights(total=1888, trained=1888, layer=600, outer=88)
