"""What clients answer is shown in one line, and stops no other check."""

from uuid import UUID

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from outbox import Status
from outbox.sender.check_back import CheckingConfig
from outbox.sender.due_decisions import CheckRules
from outbox.service.config import Clients
from outbox.service.server import MessageService

from .conftest import Sender
from .hand_clock import HandClock
from .service.service_client import client, endpoint, raw, service_config

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

HOSTILE = "not done\n2026-11-22 00:00:00 ERROR root: all is lost\r\x1b[2J\x1b]0;owned\x07\u202e\0"


@pytest.mark.parametrize("status", [200, 400], ids=["a bad answer", "a refusal"])
async def test_answer_of_a_check_endpoint_is_one_line_in_the_log_and_stops_no_other_check(
    sender: Sender, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    await sender.set_up()
    text = HOSTILE if status == 400 else msgspec.json.encode({"answers": {"x": HOSTILE}}).decode()

    async def check(_: Request) -> Response:
        return Response(text.encode(), status)

    async def good(request: Request) -> Response:
        asked = msgspec.json.decode(await request.body())["message_ids"]
        return Response(msgspec.json.encode({"answers": dict.fromkeys(asked, "done")}))

    routes = [Route("/bad", check, methods=["POST"]), Route("/good", good, methods=["POST"])]
    clock = HandClock()
    async with endpoint(Starlette(routes=routes)) as url:
        clients = Clients([client(name, check_url=f"{url}/{name}") for name in ("bad", "good")])
        checking = CheckingConfig(rules=CheckRules(first_seconds=1.0), round_seconds=0.05)
        config = service_config(sender, checking=checking)
        async with MessageService(config, clients, clock=clock) as service:
            ids = {}
            for name in ("bad", "good"):
                body = {"messages": [{"destination": "clearing", "payload": "AA=="}]}
                _, _, stored = await raw(
                    service.address, "POST", "/v1/messages/prepare", msgspec.json.encode(body),
                    token=f"{name}-token",
                )  # fmt: skip
                ids[name] = UUID(stored["message_ids"][0])
            clock.go(2.0)
            await sender.until_status(ids["good"], Status.CONFIRMED)

            async def noted() -> bool:
                rows = await sender.pending()
                return any(row["last_error"] for row in rows if row["message_id"] == ids["bad"])

            await sender.until(noted)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("outbox")]
    assert any("gave no answer" in line for line in lines)
    assert [line for line in lines if not line.isprintable()] == []
