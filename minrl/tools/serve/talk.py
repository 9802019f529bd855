"""A chat in the terminal: a line is a message, the answer appears as it is sampled, and the next line goes on.

Without a terminal each line of standard input is a message, and standard output holds the answers alone.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from minrl.models.messages import text_of
from minrl.tools.serve.asking import ApiError, Asked
from minrl.tools.serve.choices import Event, Failed, Job, Said
from minrl.tools.serve.config import ServeConfig
from minrl.tools.serve.sampler import Sampler
from minrl.types import Message, Prompt, require
from minrl.utils.text import printable

PROMPT = "> "
RESET, QUIT = "/reset", "/quit"
HELP = f"{RESET} forgets the conversation, {QUIT} or Ctrl-D ends it, Ctrl-C stops an answer"
LONGEST_SHOWN = 60
"""Characters of a prompt that is shown as an example."""


class Conversation:
    """The messages so far, and their answers by the sampler. `plain`: a line is the whole prompt, without a template,
    as in a task whose prompts are texts.
    """

    def __init__(self, sampler: Sampler, config: ServeConfig, plain: bool = False) -> None:
        self._sampler, self._config, self._plain = sampler, config, plain
        self._answers = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        system = self._config.system
        self.messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def answer(self, text: str, show: Callable[[str], None]) -> None:
        """Answer a message, and show the answer part by part. A signal from the keyboard ends it where it is. Raises
        `ApiError` if there is no answer; then the message is forgotten.
        """
        messages: list[Message] = [*self.messages, {"role": "user", "content": text}]
        seed = self._config.seed + self._answers if self._config.seed else None
        temperature = self._config.temperature
        prompt: Prompt = text if self._plain else messages
        asked = Asked(chat=not self._plain, prompts=[prompt], temperature=temperature, seed=seed, stream=True)
        said: list[str] = []
        ends: list[Event] = []

        def tell(event: Event) -> None:
            if isinstance(event, Said):
                said.append(event.text)
                show(event.text)
            if isinstance(event, Failed) or (isinstance(event, Said) and event.finish_reason):
                ends.append(event)

        job = Job(asked, tell)
        self._sampler.submit(job)
        with _stopping(job):
            while not ends and not job.cancelled:
                self._sampler.step()
        for end in ends:
            if isinstance(end, Failed):
                raise end.error
        self._answers += 1
        self.messages = [*messages, {"role": "assistant", "content": "".join(said)}]


def talk(sampler: Sampler, config: ServeConfig, example: Prompt | None = None) -> int:
    """Talk until the input ends. `example` is a prompt of the task that the model was trained on."""
    plain = isinstance(example, str)
    if not plain:
        sampler.policy.render([{"role": "user", "content": "x"}])  # refused now if there is no chat template
    require(not (plain and config.system), "--system is for chats: the prompts of this run's task are plain texts")
    conversation = Conversation(sampler, config, plain)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if terminal:
        with suppress(ImportError):  # the system may lack it: then lines have no history
            import readline  # noqa: F401 - input() edits lines with it
        asked = example if isinstance(example, str) else text_of(example[-1]) if example else ""
        such = f"a prompt of its task is {printable(asked)!r}; " if 0 < len(asked) <= LONGEST_SHOWN else ""
        sys.stderr.write(f"{config.checkpoint}: {such}{HELP}\n")
    for line in _lines(PROMPT if terminal else ""):
        if line == RESET:
            conversation.reset()
        elif line == QUIT:
            break
        elif line.startswith("/") and " " not in line:
            sys.stderr.write(f"there is no {printable(line)}: {HELP}\n")
        elif line:
            _answer(conversation, line, terminal)
    return 0


def _answer(conversation: Conversation, line: str, terminal: bool) -> None:
    def show(text: str) -> None:
        sys.stdout.write(printable(text) if terminal else text)
        sys.stdout.flush()

    try:
        conversation.answer(line, show)
    except ApiError as error:
        mend = f" ({RESET} begins again)" if error.code == "context_length_exceeded" else ""
        sys.stderr.write(f"error: {printable(error.message)}{mend}\n")
    else:
        show("\n")


def _lines(prompt: str) -> Iterator[str]:
    """The lines of standard input, without the white space around them."""
    while True:
        try:
            yield input(prompt).strip()
        except EOFError:
            if prompt:
                sys.stdout.write("\n")
            return
        except UnicodeDecodeError as error:
            require(False, f"standard input is not {error.encoding}: {error.reason}")


@contextmanager
def _stopping(job: Job) -> Iterator[None]:
    """Inside, Ctrl-C cancels the job; a second one ends the program."""
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        job.cancelled = True
        signal.signal(signal.SIGINT, before)

    if before != signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
