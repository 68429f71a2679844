"""A real Redis for a test, where the machine has one (`tools/setup.sh` installs it on Debian)."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path

from local_stack.process import free_port
from tests.deadlines import LONG_SECONDS

PROGRAM = shutil.which("redis-server")
READY = b"Ready to accept connections"


class RedisServer:
    """One server on loopback that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, and return once it answers."""
        assert PROGRAM is not None
        self._process = subprocess.Popen(
            [
                PROGRAM, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                "--appendonly", "no", "--dir", str(self._folder), "--daemonize", "no",
            ],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert self._process.stdout is not None
        shown = b""
        for line in self._process.stdout:
            shown += line
            if READY in line:
                return
        raise AssertionError(f"redis-server has ended: {shown.decode()}")

    def command(self, *words: str) -> bytes:
        """Run one command, and return the answer as it came."""
        shown = b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=LONG_SECONDS) as line:
            line.sendall(b"*%d\r\n%s" % (len(words), shown))
            return line.recv(65_536)

    def kill(self) -> None:
        """kill -9: all that it remembered is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
