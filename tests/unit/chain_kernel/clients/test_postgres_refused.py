"""A server that refuses a login, and never says goodbye, leaves the client's loop free to end."""

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from chain_kernel.clients.database_config import DatabaseConfig
from chain_kernel.clients.postgres import connect
from chain_kernel.errors import ConnectError
from chainctl.event_loop import run_async
from tests.certificates import HOST, Authority
from tests.deadlines import LONG_SECONDS

_REFUSAL = b"SFATAL\0C28P01\0Mpassword authentication failed\0\0"


@contextmanager
def refusing_server(authority: Authority) -> Iterator[int]:
    """Hold a server that asks for TLS, refuses every login, and stays; give its port."""
    files = authority.server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = Event()

    def serve() -> None:
        plain, _ = listener.accept()
        plain.settimeout(LONG_SECONDS)
        plain.recv(8)  # it asks for TLS
        plain.sendall(b"S")
        with context.wrap_socket(plain, server_side=True) as connection:
            connection.recv(4096)  # who wants to log in
            connection.sendall(b"E" + struct.pack("!i", 4 + len(_REFUSAL)) + _REFUSAL)
            is_over.wait()

    thread = Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        is_over.set()
        thread.join()
        listener.close()


def test_login_that_is_refused_over_tls_is_the_only_error(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with refusing_server(authority) as port:
        config = DatabaseConfig(
            host=HOST, port=port, user="trader", password="wrong", dbname="orders",
            sslmode="verify-full", sslrootcert=str(authority.path),
        )  # fmt: skip
        with pytest.raises(ConnectError, match="wrong user or password"):
            run_async(connect(config, application_name="test", within_seconds=LONG_SECONDS))
