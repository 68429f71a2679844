"""All models of one chain, stepped together."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from .chain_bytes import genesis
from .fence import Fence
from .history import History
from .publish import Publish
from .receive import Effects, Receive
from .rules import Diverged

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Judge:
    """Steps every model that knows what was seen, and keeps the first divergence.

    `has_wrong_frames`: somebody signs frames that are wrong about a seal. `clock` has the times of
    calls.
    """

    def __init__(
        self,
        database_id: bytes,
        chain_id: int,
        *,
        has_wrong_frames: bool = False,
        clock: Callable[[], float] = float,
    ) -> None:
        first = genesis(database_id, chain_id)
        self.fence = Fence(first)
        self.publish = Publish(first, "G2 seal of a frame" if has_wrong_frames else "")
        self.receive, self.effects, self.history = Receive(first), Effects(), History(clock)
        self.models = (self.fence, self.publish, self.receive, self.effects, self.history)
        self.divergence: Diverged | None = None
        self.successions: set[tuple[str, str]] = set()
        """What was seen right after what: how many interleavings worlds have shown."""
        self._last = ""
        self._is_muted = False
        self._steps: defaultdict[str, list[Callable[..., None]]] = defaultdict(list)
        for model in self.models:
            for name, step in vars(type(model)).items():
                if not name.startswith("_") and callable(step):
                    self._steps[name].append(getattr(model, name))

    def saw(self, what: str, *values: Any) -> None:
        """Step the models. Raises Diverged, which a caller may swallow: it is kept."""
        if self._is_muted:
            return
        if what not in self._steps:
            raise LookupError(f"no model knows {what!r}")
        self.successions.add((self._last, what))
        self._last = what
        try:
            for step in self._steps[what]:
                step(*values)
        except Diverged as error:
            self.divergence = self.divergence or error
            raise

    def mute(self) -> None:
        """Judge nothing from now on: a lost primary leaves two truths, which no model knows."""
        self._is_muted = True

    def require(self, holds: object, rule: str, *shown: object) -> None:
        """Judge what no model knows, such as how long something takes."""
        if not holds:
            error = Diverged(rule, *shown)
            self.divergence = self.divergence or error
            raise error
