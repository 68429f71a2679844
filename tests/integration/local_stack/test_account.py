"""The system user of the servers, made when several starts need it at the same moment."""

import asyncio
import os
import pwd
import secrets
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from typing import cast

import pytest

STARTS = 6
START = """
import sys
from local_stack import folders

folders.SERVICE_USER = sys.argv[1]
print("ready", flush=True)
sys.stdin.readline()
print(folders.service_account().user_id)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes the user")


@pytest.fixture
def name() -> Iterator[str]:
    name = f"ocs{secrets.token_hex(4)}"
    yield name
    subprocess.run(["/usr/sbin/userdel", name], check=False, capture_output=True)


async def test_starts_at_the_same_moment_agree_on_one_user(name: str) -> None:
    starts = [await ready_start(name) for _ in range(STARTS)]
    # One useradd knows nothing of another: each takes a number of its own, and the last one's entry
    # stays. A start that saw an earlier one would own its files by a number without a name.
    answers = await asyncio.gather(*(start.communicate(b"go\n") for start in starts))
    assert {int(out) for out, _ in answers} == {pwd.getpwnam(name).pw_uid}


async def ready_start(name: str) -> Process:
    start = await asyncio.create_subprocess_exec(
        sys.executable, "-c", START, name, stdin=PIPE, stdout=PIPE
    )
    assert await cast("asyncio.StreamReader", start.stdout).readline() == b"ready\n"
    return start
