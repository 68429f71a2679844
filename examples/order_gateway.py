"""Orders over HTTP with a standby: an ASGI application of which one process leads.

    eval "$(chainctl stack env)"
    chainctl chain create 7
    pip install uvicorn starlette
    CHAIN=7 uvicorn --app-dir examples --factory order_gateway:make_app --port 8001 &
    CHAIN=7 uvicorn --app-dir examples --factory order_gateway:make_app --port 8002 &
    curl --data '{"key": "anna/1", "symbol": "ALPHA", "qty": 100}' 127.0.0.1:8001/orders

answers {"key":"anna/1","id":1,"pid":0} once the order is committed. The process that does not lead
answers every request with 503, also `GET /ready`, by which a load balancer finds the one that does.
A process that leads no more ends itself, and its supervisor starts it again, as a standby: what it
had accepted is committed or was answered with 503, and the client sends that again, to whichever
process answers, under the same key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import msgspec
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from orderchain import Sequencer, SequencerConfig, errors, open_sequencer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

NAME = "example-gateway"
CONFLICTS = (errors.KeyConflict, errors.KeyTooOld, errors.NumberOutOfOrder)
ORDER_BYTES_MAX = 256 * 1024  # what the sequencer takes; nothing larger is read


class Keyed(msgspec.Struct):
    """What this service needs of an order: the client's unique id for it."""

    key: str


class Gateway:
    """Takes orders while this process leads."""

    def __init__(self, chain_id: int) -> None:
        self._chain_id = chain_id
        self._sequencer: Sequencer | None = None

    async def lead(self) -> None:
        """Wait for the chain, lead it, and end the process when another one leads, or none can."""
        config = SequencerConfig(
            chain_id=self._chain_id,
            owner=NAME,
            database=os.environ["CHAINCTL_DATABASE"],
            kafka=os.environ.get("CHAINCTL_KAFKA"),
            standby=True,
        )
        try:
            async with open_sequencer(config) as sequencer:
                self._sequencer = sequencer
                await sequencer.until_stopped()
        except errors.OrderchainError as error:
            print(f"{NAME}: {error}", file=sys.stderr)
        finally:
            self._sequencer = None
        # The server answers the requests under way, and ends. A server that ends cancels this.
        os.kill(os.getpid(), signal.SIGTERM)

    async def ready(self, request: Request) -> JSONResponse:
        """Answer whether orders are taken here."""
        del request
        return standby() if self._sequencer is None else JSONResponse({"leads": self._chain_id})

    async def order(self, request: Request) -> JSONResponse:
        """Answer with the place of an order once it is committed."""
        sequencer, body = self._sequencer, b""
        if sequencer is None:
            return standby()
        async for piece in request.stream():
            body += piece
            if len(body) > ORDER_BYTES_MAX:
                return refusal(413, f"an order has at most {ORDER_BYTES_MAX} bytes")
        try:
            key = msgspec.json.decode(body, type=Keyed).key
            ack = await sequencer.submit(key, body)
        except CONFLICTS as error:  # the chain knows the key, or a later number of its client
            return refusal(409, str(error))
        except (msgspec.MsgspecError, errors.OrderError) as error:  # nothing is stored
            return refusal(400, str(error))
        except errors.OrderchainError:  # perhaps it is stored: the same key again gets its place
            return standby()
        return JSONResponse({"key": key, "id": ack.id, "pid": ack.pid})


def standby() -> JSONResponse:
    """Return the answer of a process that does not lead, or does not know whether it stored."""
    return refusal(503, "not acknowledged here: send it again under the same key")


def refusal(status: int, why: str) -> JSONResponse:
    """Return an answer that gives no place."""
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"refused": why}, status, headers)


def make_app(chain_id: int | None = None) -> Starlette:
    """Return the application for a chain, by default the one that CHAIN names."""
    gateway = Gateway(chain_id or int(os.environ["CHAIN"]))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        leading = asyncio.create_task(gateway.lead())  # beside the server, which answers meanwhile
        yield
        leading.cancel()  # leaves `async with`: commits, publishes and hands over
        with suppress(asyncio.CancelledError):
            await leading

    routes = [
        Route("/orders", gateway.order, methods=["POST"]),
        Route("/ready", gateway.ready),
    ]
    return Starlette(routes=routes, lifespan=lifespan)
