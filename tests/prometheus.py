"""A real Prometheus that scrapes the parts of a test, with our own rules and panels."""

import asyncio
import json
import re
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from chain_kernel.clients.http_server import HttpLimits, HttpServer
from chain_kernel.monitoring import Monitor, MonitoredPart
from local_stack.process import free_port
from tests.deadlines import until

PROGRAM = shutil.which("prometheus")
LOOPBACK = "127.0.0.1"
MONITORING = Path(__file__).parents[1] / "deploy/monitoring"
LOOK_SECONDS = 0.1

WAITS_SHARE = 60
"""The `for` of each rule is a sixtieth of what is shipped; nothing else in the rules differs."""


def with_short_waits(rules: str) -> str:
    """Return rules that fire sooner after their condition begins to hold."""

    def shorten(found: re.Match[str]) -> str:
        milliseconds = int(found[1]) * {"s": 1_000, "m": 60_000}[found[2]]
        return f"for: {milliseconds // WAITS_SHARE}ms"

    return re.sub(r"\bfor: (\d+)([sm])$", shorten, rules, flags=re.MULTILINE)


def config_for(*targets: str) -> str:
    """Return the shipped configuration for other targets, which it asks more often."""
    text = (MONITORING / "prometheus.yml").read_text()
    text = re.sub(r"_interval: \d+s$", "_interval: 200ms", text, flags=re.MULTILINE)
    return re.sub(r"targets: .*", f"targets: {json.dumps(targets)}", text)


def panels_of(*prefixes: str) -> list[str]:
    """Return the queries of the dashboard that ask for metrics of `prefixes` alone."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    queries = [str(target["expr"]) for panel in panels for target in panel["targets"]]
    return [
        query.replace("$__rate_interval", "1m")
        for query in queries
        if all(name.startswith(prefixes) for name in re.findall(r"\borderchain_[a-z_]+", query))
    ]


class Prometheus:
    """What the server of a test has found."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def is_ready(self) -> bool:
        """Return whether it answers."""
        try:
            return (await self._client.get("/-/ready")).is_success
        except httpx.TransportError:
            return False

    async def has(self, query: str) -> bool:
        """Return whether a query has a value now."""
        return bool(await self.values(query))

    async def values(self, query: str) -> list[float]:
        """Return the values that a query has now."""
        answer = await self._client.get("/api/v1/query", params={"query": query})
        found = answer.raise_for_status().json()["data"]["result"]
        return [float(each["value"][1]) for each in found]

    async def firing(self, alert: str) -> list[dict[str, str]]:
        """Return the labels with which an alert fires now."""
        answer = await self._client.get("/api/v1/alerts")
        found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["alerts"]
        return [
            one["labels"]
            for one in found
            if one["labels"]["alertname"] == alert and one["state"] == "firing"
        ]

    async def until_scraped(self, query: str) -> None:
        """Wait until a query has a value: an increase shows only after a first scrape."""
        await until(partial(self.has, query))

    async def until_fires(self, alert: str, **labels: str) -> None:
        """Wait until an alert fires with `labels`."""

        async def fires() -> bool:
            return any(labels.items() <= one.items() for one in await self.firing(alert))

        await until(fires)

    async def until_rules_applied(self) -> None:
        """Wait until all rules have been applied to what is scraped by now."""
        begin = datetime.now(UTC)

        async def is_applied() -> bool:
            answer = await self._client.get("/api/v1/rules")
            groups = answer.raise_for_status().json()["data"]["groups"]
            return all(datetime.fromisoformat(one["lastEvaluation"]) > begin for one in groups)

        await until(is_applied)

    @asynccontextmanager
    async def alarm(self, alert: str, since: str = "up == 1", **labels: str) -> AsyncIterator[None]:
        """Expect that what is done inside makes a silent alert fire with `labels`.

        It begins when `since` was scraped and the rules were applied to it: an increase is seen
        only from one scrape to the next. To leave waits for the alert, so a fault that must last
        goes around it.
        """
        await self.until_scraped(since)
        await self.until_rules_applied()
        assert not await self.firing(alert)
        yield
        await self.until_fires(alert, **labels)

    async def until_panels_show(self, *prefixes: str) -> None:
        """Wait until each panel that asks for metrics of `prefixes` alone has a value."""
        queries = panels_of(*prefixes)
        assert queries
        for query in queries:
            await self.until_scraped(query)


@asynccontextmanager
async def scraped(folder: Path, *parts: MonitoredPart) -> AsyncIterator[Prometheus]:
    """Serve the metrics of `parts` as an embedder does, to a Prometheus with the shipped rules."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        server = HttpServer(Monitor(*parts), HttpLimits(connections_max=50))
        serving = asyncio.create_task(server.serve(listening))
        try:
            target = f"{LOOPBACK}:{listening.getsockname()[1]}"
            async with running(folder, target) as prometheus:
                yield prometheus
        finally:
            server.stop()
            await serving


@asynccontextmanager
async def running(folder: Path, *targets: str) -> AsyncIterator[Prometheus]:
    """Run a Prometheus with the shipped configuration and rules, which asks `targets`."""
    if PROGRAM is None:
        pytest.skip("no prometheus (Debian: apt-get install prometheus)")
    folder = folder / "prometheus"
    folder.mkdir()
    rules = with_short_waits((MONITORING / "alerts.yml").read_text())
    (folder / "alerts.yml").write_text(rules)
    (folder / "prometheus.yml").write_text(config_for(*targets))
    address = f"{LOOPBACK}:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(PROGRAM), f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}",
            stdout=log, stderr=log, stdin=asyncio.subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            prometheus = Prometheus(client)

            async def is_ready() -> bool:
                assert process.returncode is None, (folder / "log").read_text()
                return await prometheus.is_ready()

            await until(is_ready)
            yield prometheus
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
