"""The teacher of a run: a model with the policy's tokens, and what it reads in place of the prompt."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from minrl.config import ANSWER, TrainerConfig
from minrl.dataflow import Example, Prompt, Rollout, require
from minrl.models.chat import text_of
from minrl.policy import Policy
from minrl.run.base_model import PROMPTS_READ, require_known_words
from minrl.tasks import Task
from minrl.tasks.task import reference
from minrl.utils.task_names import task_key

_PLACEHOLDER = re.compile(r"\{(prompt|answer)\}")


def require_same_tokens(policy: Policy, teacher: Policy, path: str) -> None:
    """Refuse a teacher that reads an id of the policy as another token, or has no row for it. It may have tokens beside
    the policy's.
    """
    own, known = policy.tokenizer.get_vocab(), teacher.tokenizer.get_vocab()
    other = [token for token in sorted(own, key=own.__getitem__) if known.get(token) != own[token]]
    rows, needed = (one.model.get_input_embeddings().weight.shape[0] for one in (teacher, policy))
    require(
        not other and rows >= needed,
        f"the teacher {path} has other tokens than the policy, and both read the same ids: {len(other)} of {len(own)} "
        f"differ, {other[:1]} among them, and it has {rows} rows where the policy has {needed}; choose as --teacher-id "
        "a model of the policy's family, or train one of the teacher's",
    )


@dataclass(frozen=True)
class TeacherPrompt:
    """Rollouts as a teacher with a prompt of its own reads them: the same tokens behind another prompt."""

    policy: Policy
    text: str
    examples: Mapping[str, Example]

    def __call__(self, rollout: Rollout) -> Rollout:
        """The rollout behind the teacher's prompt. Raises `UserError` if it is longer than the context."""
        prompt = self.policy.encode_prompt(self.shown(rollout.message, self.examples[rollout.example_id]))
        before, length = rollout.prompt_length, len(prompt)
        total, limit = length + len(rollout.ids) - before, self.policy.context_length
        require(
            length > 0 and total <= limit,
            f"the teacher would read {total} tokens, {length} of its prompt, and takes {limit} (example "
            f"{rollout.example_id!r}): shorten --teacher-prompt or --max-tokens",
        )
        return replace(
            rollout,
            ids=prompt + rollout.ids[before:],
            loss_mask=[False] * length + rollout.loss_mask[before:],
            rollout_logprobs=[0.0] * length + rollout.rollout_logprobs[before:],
            turns=[(start - before + length, end - before + length) for start, end in rollout.turns],
            prompt_length=length,
        )

    def shown(self, message: Prompt, example: Example) -> Prompt:
        """The prompt with the text in its place, in a chat in place of the last message of the user."""
        if isinstance(message, str):
            return self._filled(message, example)
        asked = max((place for place, one in enumerate(message) if one.get("role") == "user"), default=len(message) - 1)
        content = self._filled(text_of(message[asked]), example)
        return [*message[:asked], {**message[asked], "content": content}, *message[asked + 1 :]]

    def _filled(self, prompt: str, example: Example) -> str:
        known = {"prompt": prompt, "answer": reference(example) if ANSWER in self.text else ""}
        return _PLACEHOLDER.sub(lambda match: known[match[1]], self.text)


def teacher_prompt(policy: Policy, config: TrainerConfig, task: Task) -> TeacherPrompt | None:
    """What puts --teacher-prompt in place of the prompt. Raises `UserError` if an example has no answer to show, or if
    words are unknown to the policy's tokenizer. The prompts of an episode of the task's own are known only when it is
    played.
    """
    text = config.teacher_prompt
    if not text:
        return None
    examples, name = task.dataset.train, task_key(config.task)
    reads = TeacherPrompt(policy, text, {example.id: example for example in examples})
    without = [one.id for one in examples if ANSWER in text and reference(one) in ("", "{}", "null")]
    require(
        not without,
        f"teacher_prompt shows {ANSWER}, and {len(without)} of {len(examples)} training examples of {name} have none, "
        f"{without[:1]} among them: leave {ANSWER} out, or give the task's examples a field `answer`",
    )
    if task.episode is None:
        prompts = [reads.shown(example.prompt, example) for example in examples[:PROMPTS_READ]]
        require_known_words(policy, "what the teacher reads (--teacher-prompt)", prompts)
    return reads
