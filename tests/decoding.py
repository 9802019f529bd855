"""What the embedded engine's decoder says of given tokens."""

import torch

from minrl.engines.decoders import make_decoder
from minrl.models.logprobs import output_head


@torch.no_grad()
def decoded_logprobs(model, ids):
    """Log-probability at temperature 1 of each token after the first, token by token."""
    decoder, head = make_decoder(model), output_head(model).cast()
    hidden = decoder.prefill([ids[:1]], len(ids))
    logprobs = []
    for token in ids[1:]:
        logprobs.append(float(head.logits(hidden).log_softmax(-1)[0, token]))
        hidden = decoder.step(torch.tensor([token]))
    return logprobs
