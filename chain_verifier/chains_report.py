"""What came of several chains that were verified in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from chain_verifier.report import Report, Verdict
from orderchain.counted import counted
from orderchain.errors import OrderchainError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chain_verifier.config import VerifyRequest


class Unverified(Struct, frozen=True, kw_only=True):
    """A chain of which nothing is known: it could not be read, or not to its end."""

    chain_id: int
    is_refused: bool
    """A source could not be used; else it broke off."""
    reason: str


class ChainsReport(Struct, frozen=True, kw_only=True):
    """The outcome of each chain, in the order in which they were asked for."""

    outcomes: tuple[Report | Unverified, ...]
    spark_start_seconds: float
    """0 when a session was given, and in the local mode."""
    seconds: float
    """In all."""

    @property
    def reports(self) -> list[Report]:
        """The chains that were read to their end."""
        return [one for one in self.outcomes if isinstance(one, Report)]

    @property
    def unverified(self) -> list[Unverified]:
        """The chains that were not."""
        return [one for one in self.outcomes if isinstance(one, Unverified)]

    @property
    def is_clean(self) -> bool:
        """Whether every chain was read to its end and proven, and there is no finding."""
        return not self.unverified and all(report.is_clean for report in self.reports)

    def to_json(self) -> str:
        """Return the report as one JSON object, indented; each chain as it would be alone."""
        told = {
            "is_clean": self.is_clean,
            "chains": [_built(one) for one in self.outcomes],
            "spark_start_seconds": self.spark_start_seconds,
            "seconds": self.seconds,
        }
        return msgspec.json.format(msgspec.json.encode(told), indent=2).decode()

    def lines(self) -> list[str]:
        """Return the report as lines for people: chain by chain, and how many of them are what."""
        told = []
        for one in self.outcomes:
            told += one.lines() if isinstance(one, Report) else [_line(one)]
        clean = sum(report.is_clean for report in self.reports)
        broken = sum(report.verdict is Verdict.BROKEN for report in self.reports)
        spark = f", {self.spark_start_seconds:.1f} s of it to start Spark"
        told.append(
            f"{counted(len(self.outcomes), 'chain')}: {clean} clean, {broken} with "
            f"findings, {len(self.outcomes) - clean - broken} not verified; "
            f"{self.seconds:.1f} s{spark if self.spark_start_seconds else ''}"
        )
        return told


def outcomes_of(
    chains: Sequence[VerifyRequest | Unverified], verify: Callable[[VerifyRequest], Report]
) -> tuple[Report | Unverified, ...]:
    """Verify one chain after the other; one that cannot be keeps no other from it."""
    return tuple(one if isinstance(one, Unverified) else _outcome_of(one, verify) for one in chains)


def _outcome_of(
    request: VerifyRequest, verify: Callable[[VerifyRequest], Report]
) -> Report | Unverified:
    try:
        return verify(request)
    except OrderchainError as error:
        return unverified_by(error, request.chain_id)


def unverified_by(error: OrderchainError, chain_id: int) -> Unverified:
    """Return the outcome of a chain that `error` kept from being verified."""
    is_refused = isinstance(error, RefusedError)
    return Unverified(chain_id=chain_id, is_refused=is_refused, reason=str(error))


def _built(one: Report | Unverified) -> dict[str, Any]:
    if isinstance(one, Report):
        return one.to_dict()
    built: dict[str, Any] = msgspec.to_builtins(one)
    return built | {"verdict": "not verified", "is_clean": False}


def _line(one: Unverified) -> str:
    return f"chain {one.chain_id}: not verified: {one.reason}"
