"""Calls to the clients of the message service: which of them is called where, and what it answers.

A check is `POST check_url {"message_ids": [...]}`, answered by `{"answers": {message_id: "done" |
"not_done" | "unknown"}}`. An id that is left out was not answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
from msgspec import Meta, Struct

from orderchain.errors import RetryError, SettingError
from orderchain.reasons import reason_of
from outbox.check_back import Answer
from outbox.http_call import call_json
from outbox.limits import NAME_CHARS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outbox.service.clients import Client, Clients


class CheckRequest(Struct, forbid_unknown_fields=True):
    """What a check endpoint is sent."""

    message_ids: Annotated[list[UUID], Meta(min_length=1, max_length=10_000)]


class CheckAnswer(Struct):
    """What it answers."""

    answers: dict[Annotated[str, Meta(max_length=NAME_CHARS_MAX)], Answer]


_check_answer = msgspec.json.Decoder(CheckAnswer)


class ClientCalls:
    """Asks clients by their HTTP endpoints."""

    def __init__(self, clients: Clients, seconds: float) -> None:
        self._clients = clients
        self._seconds = seconds

    async def check(self, sender: str, message_ids: Sequence[UUID]) -> Mapping[UUID, Answer]:
        """Ask a sender about messages. Raises RetryError, CallRefused, SettingError: no answer."""
        client = self.client(sender)
        if not client.check_url:
            raise SettingError("check_url", "", f"one for client {sender}")
        asked = CheckRequest(list(message_ids))
        answered = await call_json(
            "POST", client.check_url, client.call_token, asked, self._seconds
        )
        try:
            told = _check_answer.decode(answered.body).answers
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RetryError(
                f"the check endpoint of {sender} has answered: {reason_of(error)}"
            ) from error
        return {each: told[str(each)] for each in message_ids if str(each) in told}

    def client(self, sender: str) -> Client:
        """Return the client of that name. Raises SettingError."""
        client = self._clients.by_name(sender)
        if client is None:
            raise SettingError("client", sender, "one that the file of clients names")
        return client
