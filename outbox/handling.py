"""The block in which a message of `async for delivery in consumer` is worked on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, cast

from orderchain.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from outbox.attempts import Attempt

Given = TypeVar("Given")


class Handling(Generic[Given]):
    """`async with` it: at the end of the block the message is applied, or its retry is asked for.

    What the block raises is the message's failure: it is counted and logged, its message is parked,
    and the loop goes on. Only what is no `Exception`, such as a cancellation, goes through.
    """

    def __init__(self, attempt: Attempt, ended: Callable[[Handling[Given]], None]) -> None:
        self.was_entered = False
        self._attempt = attempt
        self._ended = ended

    @property
    def is_idempotent(self) -> bool:
        """Whether the effect joins no transaction of ours."""
        return self._attempt.connection is None

    async def __aenter__(self) -> Given:
        if self.was_entered:
            raise SettingError("delivery", "worked on before", "one block for each delivery")
        self.was_entered = True
        return cast("Given", self._attempt.connection)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if error is None:
                await self._attempt.succeed()
            else:
                await self._attempt.fail(error)
        finally:
            self._ended(self)
        return isinstance(error, Exception)

    async def abandon(self, error: BaseException) -> None:
        """End a message whose block was never entered, or never left."""
        await self._attempt.fail(error)
        self._ended(self)
