"""Which tests wait for the night: whole modules here, single tests by `pytest.mark.nightly`.

In a module of the night, the tests with `pytest.mark.merge` do not wait.

`make test` is the lane of a merge. It holds every guarantee, contract, mutation and fault, and one
example of each thing that has many: one page run as typed, one demo, one Spark test per finding.
"""

from itertools import groupby
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark import ParameterSet

NIGHTLY: Final = {
    "integration/benchmarks": "rivals, each with servers of its own",
    "integration/packaging": "wheels in empty environments",
    "integration/house": "the site, and a run of pytest that hangs",
    "integration/examples/test_mode_14_clearing.py": "kills of every part of an example",
    "integration/examples/test_snippets.py": "every page's snippets",
    "integration/chainctl/commands/test_bench.py": "the benchmark's command",
    "integration/chainctl/commands/verifier/test_repair.py": "every reason to refuse",
    "integration/chainctl/console/test_app_page.py": "the console in Chromium",
    "integration/chainctl/test_monitor_alerts.py": "alerts in a real Prometheus",
    "integration/chainctl/test_embedding_guide.py": "guides followed from an empty folder",
    "integration/chainctl/test_states.py": "runbooks",
    "integration/chainctl/test_states_outbox.py": "runbooks",
    "integration/chainctl/test_secured.py": "TLS and logins in every command",
    "integration/chain_verifier/archive/test_archive.py": "every reason to refuse",
    "integration/chain_verifier/test_findings.py": "Spark: every way to be wrong",
    "integration/chain_verifier/test_keys.py": "Spark: every way to be wrong",
    "integration/chain_verifier/test_reconcile.py": "Spark: every way to be wrong",
    "integration/chain_verifier/test_seals.py": "Spark: every way to be wrong",
    "integration/chain_verifier/test_topic.py": "Spark: every way to be wrong",
    "integration/chain_verifier/test_secured.py": "TLS and logins through Spark",
    "integration/chain_verifier/test_seeded_servers.py": "seeds over real servers",
    "integration/chain_verifier/spark/test_database.py": "Spark: every way to be wrong",
    "integration/chain_verifier/spark/test_source_check.py": "Spark: every way to be wrong",
    "integration/chain_verifier/spark/test_cluster_faults.py": "clusters of Spark",
    "integration/chain_verifier/spark/test_connect.py": "a server of Spark Connect",
    "integration/chain_verifier/spark/test_session_cluster.py": "a cluster of Spark",
    "integration/local_stack/test_setup_script.py": "the set-up on machines that lack something",
    "integration/local_stack/test_postgres.py": "the stack's PostgreSQL through crashes",
    "integration/local_stack/test_stack.py": "the stack through crashes",
    "integration/matcher_receiver/test_alerts.py": "alerts in a real Prometheus",
    "integration/gapfill/test_plans.py": "plans of a large chain",
    "integration/chain_kernel/clients/test_secured_database.py": "TLS and logins in every part",
    "integration/chain_kernel/clients/test_secured_path.py": "TLS and logins in every part",
    "integration/chain_kernel/clients/test_spoiled_database_files.py": "every file, in every part",
    "integration/chain_kernel/clients/test_spoiled_kafka_files.py": "every file, in every part",
    "integration/outbox/consumer/test_alerts.py": "alerts in a real Prometheus",
    "integration/outbox/sender/test_alerts.py": "alerts in a real Prometheus",
    "integration/sequencer/test_alerts.py": "alerts in a real Prometheus",
}
"""Modules and folders below `tests`, each with what makes it one for the night."""

SAMPLED: Final = (
    "integration/chainctl",
    "integration/chain_kernel",
    "integration/gapfill",
    "integration/matcher_receiver",
    "integration/outbox",
    "integration/schema",
    "integration/sequencer",
)
"""Folders with one way to be wrong per test. The first tests of a module, which begins with what
goes right, are of the merge lane, and its tests of cancellation and of guarantees."""
SAMPLE: Final = 3

_HERE: Final = Path(__file__).parent


@pytest.hookimpl(specname="pytest_collection_modifyitems", tryfirst=True)
def pytest_mark_nightly(items: list[pytest.Item]) -> None:
    """Mark the tests of the modules above, before `-m` chooses among them."""
    whole = tuple(_HERE / name for name in NIGHTLY)
    sampled = tuple(_HERE / name for name in SAMPLED)
    for path, tests in groupby(items, lambda item: item.path):
        if any(map(path.is_relative_to, whole)):
            _mark(list(tests))
        elif any(map(path.is_relative_to, sampled)):
            _mark([item for item in list(tests)[SAMPLE:] if not _stays(item)])


def _stays(item: pytest.Item) -> bool:
    return "cancel" in item.nodeid or item.get_closest_marker("guarantee") is not None


def _mark(items: list[pytest.Item]) -> None:
    for item in items:
        if not item.get_closest_marker("merge"):
            item.add_marker(pytest.mark.nightly)


def at_night(*values: object) -> list[ParameterSet]:
    """Return the cases of a parametrized test that wait for the night."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
