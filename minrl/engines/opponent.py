"""The frozen opponent: a model that plays some roles of an episode and never learns. It has its own embedded engine."""

from collections.abc import Sequence

from minrl.engines import Ended, Engine, Sampling, ended_as
from minrl.engines.torch_engine import TorchEngine
from minrl.policy import Policy
from minrl.types import Completion, Request, UserError


class EngineWithOpponent:
    """The policy's engine, and the opponent's for frozen requests. Everything but sampling is the policy's engine's:
    the opponent is never synced, and its cache lives for one batch only.
    """

    def __init__(self, engine: Engine, opponent: Policy, policy: Policy, cache_gib: float = 0.0) -> None:
        if opponent.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise UserError(
                "the opponent's tokenizer is not the policy's, and both read the same ids: choose as --opponent a "
                "checkpoint of the same model"
            )
        opponent.model.requires_grad_(False)
        self.engine, self.opponent = engine, TorchEngine(opponent, cache_gib)
        self.needs_correction = engine.needs_correction
        self.sync, self.score, self.take_facts = engine.sync, engine.score, engine.take_facts
        self.sleep, self.wake, self.close = engine.sleep, engine.wake, engine.close

    @property
    def context_length(self) -> int:
        """Tokens that both take."""
        return min(self.engine.context_length, self.opponent.context_length)

    @property
    def cores(self) -> int:
        """Cores that the one which takes more of them computes on."""
        return max(self.engine.cores, self.opponent.cores)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, *, ended: Ended | None = None
    ) -> list[Completion]:
        """One completion for each request, in order. It depends on weights, prompt and seed alone, so the engines may
        sample one after the other.
        """
        completions: dict[int, Completion] = {}
        for engine, frozen in ((self.engine, False), (self.opponent, True)):
            chosen = [index for index, request in enumerate(requests) if request.frozen == frozen]
            if chosen or not (frozen or requests):  # without requests others of the run may have some
                own = [requests[index] for index in chosen]
                sampled = engine.generate(own, sampling, ended=ended_as(ended, chosen))
                completions.update(zip(chosen, sampled, strict=True))
        return [completions[index] for index in range(len(requests))]
