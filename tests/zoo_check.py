"""Whether an architecture is computed as plain transformers computes it: the policy's log-probabilities and gradients,
and the log-probabilities with which the embedded engine samples; or refused in one line.

    python -m tests.zoo_check [NAME ...]

prints a line for each, and with `--write` keeps what it found in docs/models.json.
"""

import json
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import transformers
from torch import Tensor

from minrl.batch import make_batch
from minrl.dataflow import CausalModel, Request, Rollout, UserError
from minrl.engines import Sampling
from minrl.engines.decoders import has_own_decoder
from minrl.engines.torch_engine import TorchEngine
from minrl.models.distributed import Processes
from minrl.models.lora import Adapters
from minrl.models.scoring import method_of, sampled_rollout
from minrl.policy import Policy
from minrl.run.checkpoint import save_policy
from minrl.run.setup import load_policy
from minrl.update import _streams
from tests.parsed import sized
from tests.zoo import NOT_MADE, VOCABULARY, names, small_model, small_tokenizer

TABLE = Path(__file__).parent.parent / "docs" / "models.json"
TOLERANCE = 1e-4
"""Nats, and the share of the largest element of a gradient."""
LEAST_SPREAD = 0.5
"""Nats by which log-probabilities differ, lest any two numbers agree."""
STREAM_TOKENS = 60
LIMITS = (1, 3, 9, 12)
"""Most tokens of the completions that are sampled for each prompt."""


@dataclass(frozen=True)
class Found:
    """What became of an architecture. `outcome`: right, refused, wrong, traceback or not made."""

    outcome: str
    how: str = ""
    decoder: str = ""
    lora: str = ""
    reason: str = ""
    nats: float = 0.0
    gradient: float = 0.0
    sampled: float = 0.0
    seconds: float = 0.0


def check(name: str) -> Found:
    """Make the architecture small, save it, load it as a policy, and compare."""
    start = time.perf_counter()
    if name in NOT_MADE:
        return Found("not made", reason=NOT_MADE[name])
    try:
        model = small_model(name)
    except Exception as error:
        return Found("not made", reason=_line(error))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        model.save_pretrained(path)
        small_tokenizer().save_pretrained(path)
        try:
            found = _compare(name, path)
        except UserError as error:
            found = Found("refused", reason=str(error).replace(folder, "FOLDER"))
        except Exception as error:
            found = Found("traceback", reason=_line(error, where=True))
    return Found(**{**asdict(found), "seconds": round(time.perf_counter() - start, 2)})


def _compare(name: str, path: Path) -> Found:
    policy = load_policy(str(path), sized(device="cpu", threads=1), _processes())
    method = method_of(policy.model)
    how = {"how": "packed" if method.packed else "rows", "decoder": decoder_of(policy)}
    rollouts = some_rollouts()
    plain = plain_model(name, path)
    expected = plain_logprobs(plain, rollouts)
    spread = float(expected.detach().std())
    if not spread > LEAST_SPREAD:
        return Found("wrong", **how, reason=f"the log-probabilities differ by {spread:.2g} nats only")
    weights = (
        torch.linspace(-1, 1, len(expected)).cos()
        * torch.tensor([1.0, -0.7, 0.4]).repeat(len(expected))[: len(expected)]
    )
    (expected * weights).sum().backward()
    scored = policy_logprobs(policy, rollouts, weights)
    nats = float((scored - expected.detach()).abs().max())
    gradient, worst = largest_gap(gradients(plain), gradients(policy.model))
    sampled = engine_gap(policy, plain)
    wrong = [
        *([f"log-probabilities differ by {nats:.2g} nats"] if not nats <= TOLERANCE else []),
        *([f"gradients differ by {gradient:.2g}, most in {worst}"] if not gradient <= TOLERANCE else []),
        *([f"what the engine samples by {sampled:.2g} nats"] if not sampled <= TOLERANCE else []),
    ]
    figures = {"nats": nats, "gradient": gradient, "sampled": sampled}
    lora = lora_found(name, policy, path, rollouts)
    wrong += [f"with adapters {lora}"] if lora.startswith("wrong") else []
    return Found("wrong" if wrong else "right", **how, **figures, lora=lora, reason="; ".join(wrong))


def plain_model(name: str, path: Path) -> CausalModel:
    """transformers' own, of the class that the folder names, with eager attention. That of Falcon adds ALiBi twice, so
    that sdpa is the reference there.
    """
    attention = "sdpa" if name == "falcon, ALiBi" else "eager"
    (saved,) = json.loads((path / "config.json").read_text())["architectures"]
    return getattr(transformers, saved).from_pretrained(path, attn_implementation=attention).eval()


@cache
def _processes() -> Processes:
    return Processes(sized(device="cpu", threads=1))


def decoder_of(policy: Policy) -> str:
    """What decodes token by token: a shape that the engine's own decoder does not take goes to transformers' cache."""
    decoding = method_of(policy.model).decoding
    return "own" if decoding == "own" and has_own_decoder(policy.model) else decoding.replace("own", "cached")


def some_rollouts() -> list[Rollout]:
    """Three prompts, shorter and longer than the windows, with completions of several lengths, a single token too."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda length: torch.randint(5, VOCABULARY, (length,), generator=generator).tolist()  # noqa: E731
    lengths = {3: (9, 1, 4), 17: (12, 2), 11: (6, 6, 1, 14)}
    return [sampled_rollout(prompt, draw(n)) for size, ends in lengths.items() for prompt in [draw(size)] for n in ends]


def plain_logprobs(model: CausalModel, rollouts: Sequence[Rollout]) -> Tensor:
    """Log-probabilities of the sampled tokens by transformers, one sequence at a time."""
    found = []
    for rollout in rollouts:
        ids = torch.tensor([rollout.ids])
        logprobs = model(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)
        start = rollout.prompt_length
        found.append(logprobs[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0])
    return torch.cat(found)


def policy_logprobs(policy: Policy, rollouts: Sequence[Rollout], weights: Tensor | None = None) -> Tensor:
    """The same by the policy, in streams as in training; the gradient of their weighted sum is left in the weights."""
    batch = make_batch(rollouts, torch.zeros(len(rollouts)))
    scored = torch.zeros(sum(rollout.num_sampled for rollout in rollouts))
    for stream in _streams(policy, batch, range(len(rollouts)), sized(micro_batch_tokens=STREAM_TOKENS)):
        logprobs, _ = policy.score(stream, 1.0)
        if weights is not None:
            (logprobs * weights[stream.token_index]).sum().backward()
        scored[stream.token_index] = logprobs.detach().float()
    return scored


def gradients(model: CausalModel) -> dict[str, Tensor]:
    """By name, without the place of the text model within the whole."""
    return {
        re.sub(r"(language_model|text_model|model)\.", "", name): weight.grad
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


def largest_gap(expected: dict[str, Tensor], found: dict[str, Tensor]) -> tuple[float, str]:
    """The largest difference of a gradient as a share of its largest element, and in which weight. Of a weight that
    hardly matters, the share of a hundredth of the largest element of all.
    """
    least = 1e-2 * max(float(gradient.abs().max()) for gradient in expected.values())
    gaps = {}
    for name in expected.keys() | found.keys():
        zero = torch.zeros(())
        mine, theirs = found.get(name, zero), expected.get(name, zero)
        gaps[name] = float((mine - theirs).abs().max()) / max(least, float(theirs.abs().max()))
    worst = max(gaps, key=lambda name: gaps[name] if gaps[name] == gaps[name] else float("inf"))
    return gaps[worst], worst


@torch.no_grad()
def engine_gap(policy: Policy, plain: CausalModel) -> float:
    """The largest difference in nats between what the engine says of the tokens that it sampled, and transformers."""
    prompts = {tuple(rollout.ids[: rollout.prompt_length]): None for rollout in some_rollouts()}
    requests = [
        Request(list(prompt), seed, limit) for prompt in prompts for seed, limit in enumerate(LIMITS, len(prompt))
    ]
    completions = TorchEngine(policy).generate(requests, Sampling(1.0, frozenset()))
    said = torch.tensor([logprob for completion in completions for logprob in completion.logprobs])
    rollouts = [sampled_rollout(r.ids, completion.ids) for r, completion in zip(requests, completions, strict=True)]
    return float((said - plain_logprobs(plain, rollouts)).abs().max())


@torch.no_grad()
def lora_found(name: str, policy: Policy, path: Path, rollouts: Sequence[Rollout]) -> str:
    """`yes` where adapters on every linear layer, once saved and merged, are what transformers computes."""
    try:
        policy.adapters = Adapters(policy.model, sized(lora_rank=2, lora_alpha=4), str(path), seed=0)
    except UserError as error:
        return f"no: {error}"
    generator = torch.Generator().manual_seed(1)
    for weight in policy.model.parameters():
        if weight.requires_grad and not weight.any():  # B, which starts at 0
            weight.copy_(0.2 * torch.randn(weight.shape, generator=generator))
    save_policy(policy, path.with_name("merged"))
    plain = plain_model(name, path.with_name("merged"))
    expected = plain_logprobs(plain, rollouts)
    nats = float((policy_logprobs(policy, rollouts) - expected).abs().max())
    sampled = engine_gap(policy, plain)
    return "yes" if max(nats, sampled) <= TOLERANCE else f"wrong: update {nats:.2g} nats, engine {sampled:.2g} nats"


def row_of(found: Found) -> dict[str, str]:
    """What docs/models.json keeps: all but the figures, which differ from machine to machine."""
    kept = {"outcome": found.outcome}
    if found.outcome == "right":
        return {**kept, "how": found.how, "decoder": found.decoder, "lora": found.lora}
    return {**kept, "reason": re.sub(r"\d[\d.e-]*(?= nats| of its)", "some", found.reason)}


def _line(error: Exception, where: bool = False) -> str:
    """The first line of an error, and the last line of ours or of transformers' where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f" ({Path(frame.filename).name}:{frame.lineno})" if where else ""
    return f"{type(error).__name__}: {(str(error).strip() or ' ').splitlines()[0][:160]}{place}"


def main(arguments: Sequence[str]) -> None:
    """Check the named architectures, or all; with --write keep what was found."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    rows = {}
    for name in [one for one in arguments if one != "--write"] or names():
        found = check(name)
        counts[found.outcome] += 1
        rows[name] = row_of(found)
        gaps = f"{found.nats:.0e} {found.gradient:.0e} {found.sampled:.0e}"
        how = f"{found.outcome:9} {found.how:6} {found.decoder:10}"
        print(f"{name:30} {how} {gaps} {found.seconds:5.2f} s {found.lora[:100]} {found.reason}", flush=True)
    print(dict(counts))
    if "--write" in arguments:
        kept = json.loads(TABLE.read_text())["architectures"] if TABLE.exists() else {}
        table = {"transformers": transformers.__version__, "architectures": dict(sorted({**kept, **rows}.items()))}
        TABLE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
