"""Writes local_stack/kafka.lock: every jar that a Kafka of one version needs, with its hash.

`python tools/kafka_jars.py 4.1.1`, then set KAFKA_VERSION in local_stack/jars.py to the same.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from jgo.maven import MavenContext

LOCK: Final = Path(__file__).parents[1] / "local_stack" / "kafka.lock"
SCALA_VERSION: Final = "2.13"
LOGGING: Final = "org.slf4j:slf4j-simple:1.7.36"
"""Kafka's own jars have no logging binding, so the broker would log nothing when it fails. This one
prints, and has the version of the logging interface that Kafka requires."""

HEAD: Final = """\
# The jars of Apache Kafka {version}: Maven coordinate and SHA-256.
# Written by `python tools/kafka_jars.py {version}`.
"""


def fetched(version: str, cache: Path) -> list[tuple[str, Path]]:
    """Resolve what a Kafka needs, and fetch it; return coordinate and place of each jar."""
    context = MavenContext(repo_cache=cache, timeout=60)
    wanted = [f"org.apache.kafka:kafka_{SCALA_VERSION}:{version}", LOGGING]
    inputs, needed = context.resolver.resolve([context.create_dependency(each) for each in wanted])
    artifacts = [
        each.artifact for each in inputs + needed if each.scope in ("compile", "runtime", None)
    ]
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda artifact: artifact.resolve(), artifacts))
    return [
        (f"{each.groupId}:{each.artifactId}:{each.version}", path)
        for each, path in zip(artifacts, paths, strict=True)
    ]


def main(version: str) -> None:
    """Write the lock of this version."""
    with tempfile.TemporaryDirectory() as cache:
        found = sorted(
            f"{coordinate} {hashlib.sha256(path.read_bytes()).hexdigest()}"
            for coordinate, path in fetched(version, Path(cache))
        )
    LOCK.write_text(HEAD.format(version=version) + "\n".join(found) + "\n", encoding="utf-8")
    print(f"{LOCK.name}: {len(found)} jars")


if __name__ == "__main__":
    main(*sys.argv[1:])
