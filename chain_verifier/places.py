"""Files and folders by path or by URL: archives, journals and reports may be in an object store.

A path, and a `file:` URL, is a `pathlib.Path`; what another URL names has the same methods. It is
read and written by pyarrow: `s3://`, `gs://`, `abfs://`, `hdfs://`, with credentials from the
environment.
"""

from __future__ import annotations

import os
import re
from errno import EIO
from fnmatch import fnmatchcase
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from chain_kernel.errors import SettingError
from chain_kernel.files import open_regular, private_opener, write_private
from chain_kernel.text import reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator


_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")

_URL_WITHIN: Final = re.compile(
    r"(?<![A-Za-z0-9+.-])(?!(?:parquet|orc|json|table):)[A-Za-z][A-Za-z0-9+.-]*:/.*", re.DOTALL
)

_OTHER_NAMES: Final = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}
"""Their names in Spark."""

_SECRET: Final = re.compile(
    r"(?i:secret|password|token|signature|(?:access|account|api|private|shared)_?key)"
    r"|(?:\b|_)(?i:key|sig)(?:\b|_)|(?:Key|Sig)(?![a-z])"
)
"""In the name of an option: its value is one."""

_WITH_PORTS: Final = frozenset({"hdfs", "webhdfs", "swebhdfs"})
"""URLs that know no password, so that a host with a port is one."""

_BUFFER_BYTES: Final = 1024 * 1024


def is_url(text: str) -> bool:
    """Return whether `text` is a URL (`s3a://bucket/x`, `file:/x`), which is no path."""
    return _URL.match(text) is not None


class _Stat(NamedTuple):
    st_size: int


class UrlPlace:
    """A file or folder in a file system of pyarrow, with the methods of a path that are used here.

    What is written is there as a whole once it is closed, and survives crashes. Its methods raise
    OSError.
    """

    def __init__(self, system: Any, path: str, root: str) -> None:  # noqa: ANN401 - pyarrow has no types
        self._system = system
        self._path = path.rstrip("/")
        self._root = root

    def __str__(self) -> str:
        """Return the URL without credentials and options."""
        return f"{self._root}{self._path}"

    def __lt__(self, other: UrlPlace) -> bool:
        return self._path < other._path

    def __truediv__(self, name: str) -> UrlPlace:
        return UrlPlace(self._system, f"{self._path}/{name}", self._root)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.rpartition("/")[2]

    @property
    def parent(self) -> UrlPlace:
        """The folder that it is in."""
        return UrlPlace(self._system, self._path.rpartition("/")[0], self._root)

    def absolute(self) -> UrlPlace:
        """Return itself: a URL is absolute."""
        return self

    def open(self, mode: str) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Open to read (`rb`) or to write (`wb`)."""
        if mode == "wb":
            return self._system.open_output_stream(self._path)
        return BufferedReader(self.native(), _BUFFER_BYTES)

    def native(self) -> Any:  # noqa: ANN401 - pyarrow has no types
        """Open to read by pyarrow."""
        return self._system.open_input_file(self._path)

    def replace(self, target: UrlPlace) -> None:
        """Move a file to another name."""
        self._system.move(self._path, target._path)

    def stat(self) -> _Stat:
        """Return the size of a file."""
        found = self._system.get_file_info(self._path)
        if found.size is None:
            raise FileNotFoundError(2, "no such file", str(self))
        return _Stat(found.size)

    def is_file(self) -> bool:
        """Return whether it is a file that exists."""
        return bool(self._system.get_file_info(self._path).is_file)

    def mkdir(self, *, parents: bool, exist_ok: bool) -> None:
        """Make a folder, with those above it, unless it exists."""
        del parents, exist_ok
        self._system.create_dir(self._path, recursive=True)

    def glob(self, pattern: str) -> Iterator[UrlPlace]:
        """Yield what a folder holds; only the last part of `pattern` may have wildcards."""
        from pyarrow.fs import FileSelector

        below, _, wanted = pattern.rpartition("/")
        folder = f"{self._path}/{below}" if below else self._path
        for found in self._system.get_file_info(FileSelector(folder, allow_not_found=True)):
            if fnmatchcase(found.base_name, wanted):
                yield UrlPlace(self._system, found.path, self._root)

    def unlink(self) -> None:
        """Remove a file."""
        self._system.delete_file(self._path)

    def relative_to(self, folder: UrlPlace) -> str:
        """Return the path below `folder`."""
        return self._path.removeprefix(f"{folder._path}/")


Place = Path | UrlPlace


def checked_url(option: str, text: str) -> SplitResult:
    """Return the parts of a URL. Raises SettingError for one that holds a password: a list of
    processes would show it, and so would a page of Spark.
    """
    hidden = f"{text.partition(':')[0]}://***"
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:  # a slash in a password: then its beginning is where the port should be
        raise SettingError(option, hidden, "a URL that can be used") from None
    options = parse_qsl(parts.query, keep_blank_values=True)
    has_port = ":" in unquote(parts.netloc) and parts.scheme.lower() not in _WITH_PORTS
    has_host = parts.netloc or parts.scheme.lower() == "file"  # with one slash there is none
    before, _, _ = (parts.netloc if has_host else text.partition(":")[2]).rpartition("@")
    if (
        ":" in unquote(before)
        or (has_port and "@" in f"{parts.path}{parts.query}{parts.fragment}")
        or any("@" in value or _SECRET.search(name) for name, value in options)
    ):
        expected = "a URL without a password or key, which the environment holds"
        raise SettingError(option, hidden, expected)
    return parts


def require_no_password(option: str, text: str) -> None:
    """Check the URL in a name of Spark's, such as `parquet:s3a://bucket/x`, as `checked_url`."""
    if found := _URL_WITHIN.search(text):
        checked_url(option, found[0])


def place_of(option: str, text: str) -> Place:
    """Return the place that an option names. Raises SettingError for a URL that nothing reads, or
    that holds a password.
    """
    if not is_url(text):
        return Path(text)
    parts = checked_url(option, text)
    if parts.scheme.lower() == "file":
        return Path(unquote(parts.path))
    scheme = _OTHER_NAMES.get(parts.scheme.lower(), parts.scheme.lower())
    root = f"{parts.scheme}://"
    try:
        from pyarrow import ArrowException
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise SettingError(option, root, "a path, or the package pyarrow for URLs") from error
    try:
        system, path = FileSystem.from_uri(parts._replace(scheme=scheme).geturl())
    except (ArrowException, OSError, ValueError) as error:
        shown = f"{root}{parts.hostname or ''}{parts.path}"
        raise SettingError(option, shown, f"a URL that can be used ({reason_of(error)})") from error
    if not path:
        raise SettingError(option, text, "a URL that can be used (it names no bucket)")
    return UrlPlace(system, path, root)


def open_to_read(place: Place) -> BufferedReader:
    """Open a file to read. Raises OSError, also for a pipe or a device: it may have no end."""
    return open_regular(place) if isinstance(place, Path) else place.open("rb")


def write_text(place: Place, text: str) -> None:
    """Write `text` as UTF-8; a new file is its user's alone. Raises OSError."""
    if isinstance(place, Path):
        write_private(place, text)
        return
    try:
        with place.open("wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise OSError(EIO, reason_of(error), str(place)) from error


def move(place: Place, target: Any) -> None:  # noqa: ANN401 - of the same kind
    """Give a file another name in the same file system."""
    place.replace(target)


def write_whole(place: Place, content: bytes) -> None:
    """Replace a file as a whole: after a crash it is there as it was, or as it is now."""
    if not isinstance(place, Path):
        with place.open("wb") as file:
            file.write(content)
        return
    draft = place.with_name(f"{place.name}.new")
    with open(draft, "wb", opener=private_opener) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(place)


def sync_file(place: Place) -> None:
    """Make what was written to a file survive a crash; below a URL it does once it is closed."""
    if isinstance(place, Path):
        with place.open("rb") as file:
            os.fsync(file.fileno())


def sync_folder(folder: Place) -> None:
    """Make the names in a folder survive a crash; below a URL they do."""
    if not isinstance(folder, Path):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
