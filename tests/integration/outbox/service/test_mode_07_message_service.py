"""Mode 7: the outbox over HTTP, for services that own none."""

import asyncio
import base64
import gc
import os
import random
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import hypothesis
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from msgspec.structs import replace
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from chain_kernel.clock import SystemClock
from chain_kernel.errors import ConnectError, RetryError
from outbox import Message, Status
from outbox.http_call import CallRefused
from outbox.message import MessageIds, draw_message_ids
from outbox.roles import OUTBOX_RELAY
from outbox.sender.check_back import SQL, CheckingConfig
from outbox.sender.due_decisions import CheckRules
from outbox.service.app import MessageApp
from outbox.service.config import Client, Clients
from outbox.service.interface import MessageClient
from outbox.service.message_api import MessageApi
from outbox.service.server import MessageService
from tests.cases import case
from tests.deadlines import deadline

from ..conftest import Sender
from .service_client import client, endpoint, raw, served, service_config, write_clients

CONSUMER = "clearing-service"
WAITS_FOR_A_LOCK = """
SELECT count(*) > 0 FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
SEED = int(os.environ.get("ORDERCHAIN_SEED", random.randrange(2**32)))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """A socket that a stop has left open is reported here, not in the test that comes next."""
    yield
    gc.collect()


@asynccontextmanager
async def running(
    sender: Sender, *clients: Client, **settings: Any
) -> AsyncIterator[MessageService]:
    known = Clients(list(clients) or [client("payments"), client("shop")])
    async with MessageService(service_config(sender, **settings), known) as service:
        yield service


def messages(count: int, destination: str = "clearing") -> list[Message]:
    return [
        Message(each, destination, f"pay {n}".encode(), f"key {n % 5}", {"trace": str(n)})
        for n, each in enumerate(draw_message_ids(count))
    ]


def caller(service: MessageService, name: str = "payments") -> MessageClient:
    return MessageClient([service.address], f"{name}-token")


# ------------------------------------------------------------------------------------- operations


async def test_message_sent_over_http_arrives_and_is_consumed(sender: Sender) -> None:
    destination = await sender.set_up()
    async with running(sender) as service:
        given = messages(20)
        await caller(service).send(given)
        for message in given:
            await sender.until_status(message.message_id, Status.CONFIRMED)
        assert sorted(await sender.sent(destination)) == [each.message_id for each in given]
        ids = [message.message_id for message in given]
        noted = await caller(service, "shop").confirm(CONSUMER, ids)
        assert (noted.consumed, noted.repeated) == (20, 0)
        noted = await caller(service, "shop").confirm(CONSUMER, ids[:3])
        assert (noted.consumed, noted.repeated) == (0, 3)
        shown = await caller(service).get(ids[7])
        assert (shown.payload, shown.key, shown.headers) == (b"pay 7", "key 2", {"trace": "7"})
        assert [(each.consumer, each.status) for each in shown.deliveries] == [
            (CONSUMER, "consumed")
        ]
    assert await sender.pending() == []


async def test_prepared_message_is_sent_once_committed_and_never_once_rolled_back(
    sender: Sender,
) -> None:
    destination = await sender.set_up()
    async with running(sender) as service:
        one, other = messages(2)
        async with caller(service).prepared([one]):
            assert (await caller(service).get(one.message_id)).deliveries[0].status == "prepared"
        await caller(service).prepare([other])
        await caller(service).rollback([other.message_id])
        await sender.until_status(one.message_id, Status.CONFIRMED)
        with pytest.raises(CallRefused, match="decided_otherwise") as caught:
            await caller(service).commit([other.message_id])
        assert caught.value.status == 409
        noted = await caller(service).commit([one.message_id])
        assert (noted.decided, noted.repeated) == (0, 1)
    assert await sender.sent(destination) == [one.message_id]


async def test_undecided_message_is_asked_about_at_the_clients_endpoint(sender: Sender) -> None:
    destination = await sender.set_up()
    asked: list[str] = []
    done, undone, unknown = messages(3)
    answers = {str(done.message_id): "done", str(undone.message_id): "not_done"}

    async def check(request: Request) -> JSONResponse:
        assert request.headers["authorization"] == "Bearer ours"
        ids = (await request.json())["message_ids"]
        asked.extend(ids)
        return JSONResponse({"answers": {each: answers.get(each, "unknown") for each in ids}})

    async with endpoint(Starlette(routes=[Route("/check", check, methods=["POST"])])) as url:
        asking = client("payments", check_url=f"{url}/check", call_token="ours")
        rules = CheckRules(first_seconds=0.01, again_seconds=0.01, answers_max=2)
        checking = CheckingConfig(rules=rules, round_seconds=0.01)
        async with running(sender, asking, checking=checking) as service:
            await caller(service).prepare([done, undone, unknown])
            await sender.until_status(done.message_id, Status.CONFIRMED)
            await sender.until_status(undone.message_id, Status.CANCELLED)
            await sender.until_status(unknown.message_id, Status.ABNORMAL)
    assert await sender.sent(destination) == [done.message_id]
    assert Counter(asked) == {
        str(done.message_id): 1, str(undone.message_id): 1, str(unknown.message_id): 2
    }  # fmt: skip


async def test_same_request_again_stores_nothing_twice(sender: Sender) -> None:
    await sender.set_up(confirm="none")
    async with running(sender) as service:
        given = messages(10)
        await asyncio.gather(*(caller(service).send(given) for _ in range(8)))
        await caller(service).send([*given[5:], *messages(2)])
        other = replace(given[0], payload=b"something else")
        for name, sent in (("payments", other), ("shop", given[0])):
            with pytest.raises(CallRefused, match="id_taken") as caught:
                await caller(service, name).send([sent])
            assert caught.value.status == 409
    assert await sender.admin.fetchval("SELECT count(*) FROM outbox_message") == 12


async def test_same_id_by_the_other_request_is_refused_and_changes_nothing(sender: Sender) -> None:
    """A 200 would promise that nothing is sent before a commit, or that all of it is."""
    destination = await sender.set_up()
    sent, prepared, committed, undone, new = messages(5)
    async with running(sender) as service:
        call = caller(service)
        await call.send([sent])
        await call.prepare([prepared, committed, undone])
        await call.prepare([prepared])
        await call.commit([committed.message_id])
        await call.rollback([undone.message_id])
        await call.send([committed])
        for request, message in (
            (call.prepare, sent), (call.prepare, committed), (call.prepare, undone),
            (call.send, prepared), (call.send, undone),
        ):  # fmt: skip
            with pytest.raises(CallRefused, match="stored_otherwise") as caught:
                await request([new, message])
            assert caught.value.status == 409
        await sender.until_status(sent.message_id, Status.CONFIRMED)
        await sender.until_status(committed.message_id, Status.CONFIRMED)
        with pytest.raises(CallRefused, match="unknown_message"):
            await call.get(new.message_id)
        await sender.until_status(prepared.message_id, Status.PREPARED)
    assert sorted(await sender.sent(destination)) == sorted([sent.message_id, committed.message_id])


async def test_commit_of_which_a_part_is_refused_changes_nothing(sender: Sender) -> None:
    await sender.set_up()
    one, other = messages(2)
    elsewhere = await sender.connect(OUTBOX_RELAY)
    async with running(sender) as service:
        await caller(service).prepare([one, other])
        async with elsewhere.transaction():
            undecided = [int(Status.PREPARED)]
            await elsewhere.fetch(SQL["rolled_back"], [other.message_id], undecided, None)
            ids = [one.message_id, other.message_id]
            committing = asyncio.create_task(caller(service).commit(ids))
            await sender.until_true(WAITS_FOR_A_LOCK)
        with pytest.raises(CallRefused, match="decided_otherwise"):
            await committing
    assert await sender.statuses() == {
        one.message_id: Status.PREPARED, other.message_id: Status.CANCELLED
    }  # fmt: skip


async def test_list_has_every_delivery_of_the_client_page_by_page(sender: Sender) -> None:
    await sender.set_up(consumers=("ledger", "risk"))
    async with running(sender) as service:
        ours, theirs = messages(7), messages(3)
        await caller(service).prepare(ours)
        await caller(service, "shop").prepare(theirs)
        await caller(service).rollback([ours[0].message_id])
        found = []
        query: dict[str, Any] = {"limit": 4}
        while True:
            page = await caller(service).page(**query)
            found += [(each.message_id, each.consumer) for each in page.deliveries]
            if page.after is None:
                break
            query |= {"after": str(page.after), "after_consumer": page.after_consumer}
        assert found == [
            (each.message_id, consumer) for each in ours for consumer in ("ledger", "risk")
        ]
        page = await caller(service).page(status="cancelled", destination="clearing")
        assert {each.message_id for each in page.deliveries} == {ours[0].message_id}
        assert (await caller(service).page(destination="ledger")).deliveries == []


# ------------------------------------------------------------------------------ what is not right

ONE = {"destination": "clearing", "payload": "eA=="}
OLD, AHEAD = (
    str(MessageIds(partial(int, ns)).draw(1)[0])
    for ns in (10**18, int(4e18))
)  # fmt: skip


def body(**changes: Any) -> bytes:
    return msgspec.json.encode({"messages": [{**ONE, **changes}]})


BAD_BODIES: tuple[tuple[bytes, int, str | None, str | None], ...] = (
    (b"", 400, "not_json", "body"),
    (b'{"messages": [', 400, "not_json", "body"),
    (b"[" * 100_000, 400, None, None),
    (b"[]", 400, "invalid", "body"),
    (b'{"messages": []}', 400, "invalid", "$.messages"),
    (body(payload="not base64!"), 400, "invalid", "$.messages[0].payload"),
    (body(destination=""), 400, "invalid", "$.messages[0].destination"),
    (body(destination="nowhere"), 404, "unknown_destination", "destination"),
    (body(destination="secret"), 403, "not_allowed", "destination"),
    (body(payload=base64.b64encode(bytes(300 * 1024)).decode()), 413, "too_large", "payload"),
    (body(payload=base64.b64encode(bytes(513 * 1024)).decode()), 400, "invalid", None),
    (body(key="a\0b"), 400, "invalid", "$.messages[0].key"),
    (body(headers={"orderchain-x": "1"}), 400, "invalid", "header name"),
    (body(headers={str(n): "x" * 1_000 for n in range(40)}), 400, "invalid", "headers"),
    (body(colour="red"), 400, "invalid", "$.messages[0]"),
    (body(message_id="1"), 400, "invalid", "$.messages[0].message_id"),
    (body(message_id=OLD), 409, "id_time", "message_id"),
    (body(message_id=AHEAD), 409, "id_time", "message_id"),
)  # fmt: skip


async def test_bad_body_gets_a_reason_and_nothing_is_stored(
    bad_requests: MessageService, sender: Sender
) -> None:
    for content, status, error, field in BAD_BODIES:
        for operation in ("send", "prepare"):
            with case((operation, content[:200])):
                path = f"/v1/messages/{operation}"
                noted = await raw(bad_requests.address, "POST", path, content)
                assert (noted[0], noted[1]["content-type"]) == (status, "application/json"), noted
                assert error is None or noted[2]["error"] == error, noted
                assert field is None or noted[2]["field"] == field, noted
    assert await sender.admin.fetchval("SELECT count(*) FROM outbox_message") == 0
    refusals = sum(bad_requests.app.refusals.values())
    assert refusals == 2 * len(BAD_BODIES), "they are counted"


@pytest.fixture
async def bad_requests(sender: Sender) -> AsyncIterator[MessageService]:
    await sender.set_up(payload_bytes_max=256 * 1024)
    limited = client("payments", destinations=("clearing", "nowhere"))
    async with running(sender, limited) as service:
        yield service


async def test_bad_requests_get_a_4xx_with_a_reason(sender: Sender) -> None:
    await sender.set_up()
    settings: dict[str, Any] = {"body_bytes_max": 10_000}
    clients = (client("payments", consumers=("ledger",)), client("shop"))
    async with running(sender, *clients, **settings) as service:
        at = service.address
        (theirs,) = messages(1)
        await caller(service, "shop").prepare([theirs])
        of_theirs = msgspec.json.encode({"message_ids": [str(theirs.message_id)]})
        confirm = {"consumer": CONSUMER, "message_ids": [str(theirs.message_id)]}
        refused = [
            (401, await raw(at, "POST", "/v1/messages/send", body(), token=None)),
            (401, await raw(at, "POST", "/v1/messages/send", body(), token="nobody")),
            (401, await raw(at, "POST", "/v1/messages/send", body(), token="\u00e9")),
            (401, await raw(at, "GET", "/v1/messages", token="", content_type="")),
            (415, await raw(at, "POST", "/v1/messages/send", body(), content_type="text/plain")),
            (415, await raw(at, "POST", "/v1/messages/send", body(), content_type="")),
            (413, await raw(at, "POST", "/v1/messages/send", body(key="k" * 11_000))),
            (404, await raw(at, "POST", "/v1/messages/commit", of_theirs)),
            (404, await raw(at, "POST", "/v1/messages/rollback", of_theirs)),
            (404, await raw(at, "GET", f"/v1/messages/{theirs.message_id}")),
            (400, await raw(at, "GET", "/v1/messages/7")),
            (403, await raw(at, "POST", "/v1/messages/confirm", msgspec.json.encode(confirm))),
            (400, await raw(at, "GET", "/v1/messages?limit=0")),
            (400, await raw(at, "GET", "/v1/messages?limit=99999999999999999999")),
            (400, await raw(at, "GET", "/v1/messages?status=lost")),
            (400, await raw(at, "GET", "/v1/messages?after=x")),
            (400, await raw(at, "GET", "/v1/messages?colour=red")),
            (404, await raw(at, "GET", "/v2")),
            (405, await raw(at, "DELETE", "/v1/messages")),
        ]
        for status, noted in refused:
            assert (noted[0], noted[1]["content-type"]) == (status, "application/json"), noted
            assert noted[2]["error"], noted
        assert refused[0][1][1]["www-authenticate"] == "Bearer"
        confirm["consumer"] = "ledger"
        unknown = await raw(at, "POST", "/v1/messages/confirm", msgspec.json.encode(confirm))
        assert (unknown[0], unknown[2]["error"]) == (404, "unknown_message")
        assert (unknown[2]["consumed"], unknown[2]["repeated"]) == (0, 0)
    assert [row["status"] for row in await sender.pending()] == [Status.PREPARED]


async def test_health_and_description_need_no_token(sender: Sender) -> None:
    async with running(sender) as service:
        for path in ("/livez", "/readyz", "/openapi.json"):
            status, _, noted = await raw(service.address, "GET", path, token=None)
            assert status == 200, noted
        assert set(noted["paths"]) >= {"/v1/messages/send", "/v1/messages/{message_id}"}
        await sender.admin.execute("ALTER TABLE outbox_version RENAME TO outbox_version_away")
        status, _, noted = await raw(service.address, "GET", "/readyz", token=None)
        assert (status, noted["error"]) == (503, "unavailable")
        status, _, _ = await raw(service.address, "GET", "/livez", token=None)
        assert status == 200


async def test_database_away_is_503_with_the_ids_to_repeat_it_by(
    sender: Sender, postgres_server: Any
) -> None:
    await sender.set_up()
    relay = replace(sender.config(), database=sender.dsns[OUTBOX_RELAY] + "_gone")
    desk = MessageApi(service_config(sender, relay=relay), SystemClock())
    app = MessageApp(service_config(sender), Clients([client("payments")]), desk)
    async with endpoint(app.asgi) as url:
        status, headers, noted = await raw(url, "POST", "/v1/messages/send", body())
        assert (status, noted["error"], headers["retry-after"]) == (503, "unavailable", "1")
        assert len(noted["message_ids"]) == 1
        with pytest.raises(RetryError):
            await MessageClient([url], "payments-token").send(messages(1))
    await desk.close()


async def test_request_that_takes_too_long_is_503_with_the_ids_to_repeat_it_by(
    sender: Sender,
) -> None:
    await sender.set_up()
    config = service_config(sender, request_seconds=1.0)
    desk = MessageApi(config, SystemClock())
    async with endpoint(MessageApp(config, Clients([client("payments")]), desk).asgi) as url:
        async with sender.admin.transaction():
            await sender.admin.execute("LOCK TABLE outbox_message IN EXCLUSIVE MODE")
            status, _, noted = await raw(url, "POST", "/v1/messages/send", body())
        assert (status, noted["error"]) == (503, "unavailable")
        (message_id,) = noted["message_ids"]

        async def is_stored() -> bool:
            again = body(message_id=message_id)
            return (await raw(url, "POST", "/v1/messages/send", again))[0] == 200

        await sender.until(is_stored)
    await desk.close()
    stored = await sender.admin.fetch("SELECT message_id::text FROM outbox_message")
    assert [row[0] for row in stored] == [message_id]


async def test_relays_are_woken_after_the_last_of_many_requests_and_not_for_each(
    sender: Sender,
) -> None:
    await sender.set_up()
    desk = MessageApi(service_config(sender), SystemClock())
    woken = asyncio.Event()
    wakes: list[None] = []

    def note(*_: object) -> None:
        woken.set()
        wakes.append(None)

    await sender.admin.add_listener("outbox_ready", note)
    stored = 0
    async with deadline():
        for many in range(20, 420, 20):
            storing = (desk.store("payments", messages(1), is_prepared=False) for _ in range(20))
            await asyncio.gather(*storing)
            while stored < many:
                await woken.wait()
                woken.clear()
                stored = await sender.admin.fetchval("SELECT count(*) FROM outbox_pending")
    await desk.close()
    assert len(wakes) < 200


async def test_stop_answers_the_requests_under_way_and_sends_what_they_stored(
    sender: Sender,
) -> None:
    destination = await sender.set_up()
    async with running(sender) as service:
        async with sender.admin.transaction():
            await sender.admin.execute("LOCK TABLE outbox_message IN EXCLUSIVE MODE")
            sending = asyncio.create_task(caller(service).send(messages(1)))
            await sender.until_true(WAITS_FOR_A_LOCK)
            stopping = asyncio.create_task(service.stop())
        await sending
        await stopping
    assert len(await sender.sent(destination)) == 1


async def test_start_where_nobody_may_listen_is_refused(sender: Sender) -> None:
    with pytest.raises(ConnectError, match="listen"):
        async with running(sender, host="203.0.113.1"):
            raise AssertionError("it runs")


# ---------------------------------------------------------------------------- several of them


CLAIM_LOG = """
CREATE TABLE claim_log (message_id uuid, claims integer);
CREATE FUNCTION log_claim() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO claim_log VALUES (NEW.message_id, TG_ARGV[0]::integer);
    RETURN NULL;
END $$;
CREATE TRIGGER claimed_at_once AFTER INSERT ON outbox_pending
   FOR EACH ROW WHEN (NEW.claim_token IS NOT NULL) EXECUTE FUNCTION log_claim('1');
CREATE TRIGGER claimed AFTER UPDATE ON outbox_pending
   FOR EACH ROW WHEN (NEW.claim_token IS NOT NULL
                      AND NEW.claim_token IS DISTINCT FROM OLD.claim_token)
   EXECUTE FUNCTION log_claim('1');
CREATE TRIGGER released AFTER UPDATE ON outbox_pending
   FOR EACH ROW WHEN (NEW.claim_token IS NULL AND OLD.claim_token IS NOT NULL
                      AND NEW.status = OLD.status AND NEW.send_count = OLD.send_count)
   EXECUTE FUNCTION log_claim('-1');
"""
"""Counts each claim by which a message could be sent: the tables forget those of the dead."""


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_two_instances_under_load_with_one_killed_lose_and_double_nothing(
    sender: Sender, tmp_path: Path
) -> None:
    destination = await sender.set_up(
        confirm="none", partitions=3, resend_seconds=2.0, tries_max=100
    )
    await sender.admin.execute(CLAIM_LOG)
    clients = write_clients(tmp_path / "clients.toml", client("payments"))
    given = [messages(25) for _ in range(80)]
    acknowledged: list[Message] = []
    waiting = list(given)
    options = ("--group", sender.name, "--sweep-seconds", "0.2")
    database = sender.dsns[OUTBOX_RELAY]
    async with (
        served(database, sender.kafka, clients, *options) as one,
        served(database, sender.kafka, clients, *options) as other,
    ):

        async def load(urls: list[str]) -> None:
            calling = MessageClient(urls, "payments-token")
            while waiting:
                batch = waiting.pop()
                while True:
                    try:
                        await calling.send(batch)
                        break
                    except RetryError:
                        continue  # the same again: what is stored is not stored twice
                acknowledged.extend(batch)
                if len(acknowledged) >= 25 * 30 and one.process.returncode is None:
                    await one.kill()

        urls = [one.address, other.address]
        await asyncio.gather(*(load(urls if n % 2 else urls[::-1]) for n in range(6)))
        assert one.process.returncode == -9
        await sender.until_true("SELECT count(*) = 0 FROM outbox_pending")
    assert other.process.returncode == 143, "SIGTERM, in good order"
    assert len(acknowledged) == 25 * 80
    done = {row["message_id"] for row in await sender.done()}
    assert done == {message.message_id for message in acknowledged}
    records = Counter(await sender.sent(destination))
    assert set(records) == done, "nothing lost"
    # What the killed one had claimed was claimed again, and only that may be there twice.
    claims: Counter[UUID] = Counter()
    for message_id, count in await sender.admin.fetch("SELECT * FROM claim_log"):
        claims[message_id] += count
    twice = {each: count for each, count in records.items() if count > claims[each]}
    assert twice == {}, "nothing is sent that was not claimed for it"


# ---------------------------------------------------------------------------------------- metrics


async def metrics_of(address: str) -> dict[str, float]:
    """Return the samples of the page, by name with labels."""
    request = urllib.request.Request(  # noqa: S310 - our own service
        f"{address}/metrics", headers={"Authorization": "Bearer watcher-token"}
    )

    def read() -> str:
        with urllib.request.urlopen(request) as response:  # noqa: S310 - the same
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            noted: str = response.read().decode()
            return noted

    lines = (await asyncio.to_thread(read)).splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def test_metrics_report_what_was_sent_consumed_refused_and_what_waits(sender: Sender) -> None:
    destination = await sender.set_up()
    known = client("payments"), client("shop"), client("watcher", metrics=True)
    async with running(sender, *known) as service:
        given = messages(7)
        await caller(service).send(given)
        for message in given:
            await sender.until_status(message.message_id, Status.CONFIRMED)
        await sender.confirm(destination, *(message.message_id for message in given[:3]))
        await sender.until_counted(service.relay, consumed=3)
        status, _, heard = await raw(service.address, "GET", "/metrics")
        assert (status, heard["error"]) == (403, "not_allowed")
        labels = '{destination="clearing",status="confirmed"}'

        async def are_counted() -> bool:  # at the second look
            return f"orderchain_outbox_deliveries{labels}" in await metrics_of(service.address)

        await sender.until(are_counted)
        found = await metrics_of(service.address)
    assert found["orderchain_outbox_relay_sent_total"] == 7
    assert found["orderchain_outbox_relay_consumed_total"] == 3
    assert found["orderchain_outbox_relay_abnormal_total"] == 0
    assert found['orderchain_outbox_refusals_total{error="not_allowed"}'] == 1
    assert found["orderchain_outbox_waiting"] == 0
    assert found[f"orderchain_outbox_deliveries{labels}"] == 4
    assert found[f"orderchain_outbox_oldest_seconds{labels}"] >= 0


# ------------------------------------------------------------------------------------------- fuzz


POSTS = [
    f"POST /v1/messages/{name}" for name in ("send", "prepare", "commit", "rollback", "confirm")
]
TOKEN = {"Authorization": "Bearer payments-token"}
BARE = ["GET /livez", "GET /readyz", "GET /metrics"]
"""They take nothing, so nothing can be wrong."""

GETS = ["GET /v1/messages", "GET /v1/messages/{message_id}", *BARE]


def described(sender: Sender) -> tuple[MessageApp, dict[str, Any]]:
    """The service in this process, and its operations as it describes them."""
    fuzzed = client("payments", metrics=True)
    known = Clients([fuzzed])
    desk = MessageApi(service_config(sender), SystemClock())
    app = MessageApp(service_config(sender), known, desk)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app.asgi)
    found: Any = schema.get_all_operations()
    return app, {each.ok().label: each.ok() for each in found}


def test_every_operation_is_described(sender: Sender) -> None:
    assert sorted(described(sender)[1]) == sorted(POSTS + GETS)


FUZZED_EACH_MERGE = (GETS[0],)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "label",
    [
        pytest.param(label, marks=() if label in FUZZED_EACH_MERGE else pytest.mark.nightly)
        for label in POSTS + GETS
    ],
)
def test_fuzz_by_its_own_description_finds_nothing(sender: Sender, label: str) -> None:
    print(f"ORDERCHAIN_SEED={SEED}")  # noqa: T201 - pytest shows it on failure
    app, operations = described(sender)
    _fuzz(operations[label], GenerationMode.POSITIVE)
    if label in BARE:
        return
    _fuzz(operations[label], GenerationMode.NEGATIVE)
    assert app.refusals["unauthenticated"] > 0, "it has tried without a token"


def _fuzz(operation: Any, mode: GenerationMode) -> None:
    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=25,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        # A token of ours would make right again what is wrong in the headers alone.
        header = case.meta.components.get(ParameterLocation.HEADER)
        is_header_wrong = header is not None and header.mode is GenerationMode.NEGATIVE
        case.call_and_validate(headers=None if is_header_wrong else TOKEN)

    fuzz()
