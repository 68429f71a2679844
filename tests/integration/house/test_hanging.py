"""What a test that hangs says, in a project of its own with a short time limit."""

from pathlib import Path

import pytest

from tests.deadlines import stretched

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
HANGS = """
import asyncio
import contextlib
import os
import time

async def wait_for_nothing():
    await asyncio.Event().wait()  # the place

async def test_hangs():
    side = asyncio.create_task(wait_for_nothing(), name="at the side")
    await wait_for_nothing()

async def test_hangs_again_in_its_clean_up():
    try:
        await wait_for_nothing()
    finally:
        await wait_for_nothing()

def test_hangs_where_the_failure_is_lost():
    with contextlib.suppress(BaseException):
        time.sleep(3600)
    time.sleep(3600)

def test_after_them():
    pass

def test_that_is_slow_on_a_loaded_machine(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (1e6, 0.0, 0.0))
    time.sleep(2 * {seconds})
"""


def test_that_hangs_ends_and_names_the_line_of_each_task(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    seconds = stretched(0.5)
    pytester.makeconftest(
        "import os\n"
        "import time\n"
        "import pytest\n"
        "import tests.hanging\n"
        "from tests.hanging import pytest_runtest_call, pytest_runtest_setup\n"
        "from tests.hanging import pytest_runtest_teardown, pytest_timeout_set_timer\n"
        f"tests.hanging.CLEAN_UP_SECONDS = {seconds}\n"
        f"tests.hanging.REPEAT_SECONDS = {seconds}\n"
        "os.getloadavg = lambda: (0.0, 0.0, 0.0)\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport(call):\n"
        f"    time.sleep({2 * seconds} if call.excinfo else 0)  # timers fire again meanwhile\n"
        "    return (yield)\n"
    )
    pytester.makepyfile(HANGS.format(seconds=seconds))
    options = ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", f"--timeout={seconds}"]
    options += ["-o", "asyncio_default_fixture_loop_scope=function"]
    done = pytester.runpytest_subprocess(*options)
    done.assert_outcomes(failed=3, errors=1, passed=2)
    done.stdout.fnmatch_lines(["waiting: at the side", "*.py:*: await asyncio.Event().wait()*"])
    assert done.stdout.str().count("# the place") >= 4
