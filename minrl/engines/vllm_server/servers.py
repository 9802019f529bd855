"""The servers of a run as one of its processes sees them: who samples what, and which are lost."""

from collections.abc import Iterable, Mapping, Sequence

from loguru import logger

from minrl.types import Request, UserError


class Servers:
    """Servers by URL. A lost one is asked nothing until the next sync has verified its weights.

    `first` is the one that begins in this process, so that several processes do not all begin with the same.
    """

    def __init__(self, urls: Sequence[str], first: int) -> None:
        turn = first % len(urls)
        self.urls = [*urls[turn:], *urls[:turn]]
        self.lost: dict[str, str] = {}
        self._homes: dict[tuple[int, ...], str] = {}
        self._next: dict[tuple[int, ...], str] = {}
        self._said: set[str] = set()

    def left(self) -> list[str]:
        """The servers that are not lost. Raises `UserError` if there is none."""
        left = [url for url in self.urls if url not in self.lost]
        if not left:
            reasons = "; ".join(f"{url}: {reason}" for url, reason in sorted(self.lost.items()))
            raise UserError(f"no server is left that samples ({reasons}): start them again and resume the run")
        return left

    def spread(self, requests: Sequence[Request], indices: Iterable[int]) -> dict[str, list[int]]:
        """The indices of requests for each server that is left. Those with one prompt go to one server, and those that
        continue a prompt of the last call to the one that has it in its cache; others to the one with the fewest.
        """
        parts: dict[str, list[int]] = {url: [] for url in self.left()}
        lengths = sorted({len(prompt) for prompt in self._homes}, reverse=True)
        chosen: dict[tuple[int, ...], str] = {}
        for index in indices:
            prompt = tuple(requests[index].ids)
            if prompt not in chosen:
                begun = (prompt[:length] for length in lengths if length < len(prompt))
                home = next((self._homes[start] for start in begun if start in self._homes), "")
                chosen[prompt] = home if home in parts else min(parts, key=lambda url: len(parts[url]))
            parts[chosen[prompt]].append(index)
        self._next.update(chosen)
        return {url: part for url, part in parts.items() if part}

    def begin(self) -> None:
        """A call begins: the prompts of the last one are those that may be continued."""
        self._homes, self._next = self._next, {}

    def tell(self, lost: Mapping[str, str]) -> None:
        """Say once which servers are lost, and which are back."""
        for url in sorted(lost.keys() - self._said):
            logger.warning(f"{url} is lost: {lost[url]}; what it was asked is asked of the others")
        for url in sorted(self._said - lost.keys()):
            logger.info(f"{url} is back, with the policy's weights")
        self._said = set(lost)
