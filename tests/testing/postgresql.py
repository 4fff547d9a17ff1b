"""A PostgreSQL server of the tests' own: on the loopback, in a directory of its own, as nobody."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USER, PASSWORD = "tuner", "geheim-123"
_START_LIMIT_S = 60.0


def why_not() -> str | None:
    """Why no server can be started here; None where one can."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed"
    if _program("initdb") is None or _program("postgres") is None:
        return "PostgreSQL's programs are not installed"
    return None


def _program(name: str) -> str | None:
    """From the path, or where Debian puts them; the newest of several."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(places[-1]) if places else None)


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._directory = directory
        self._log = directory / "log"
        # As root, PostgreSQL refuses to run.
        is_root = os.geteuid() == 0
        self._account = pwd.getpwnam("nobody") if is_root else None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str, *, user: str = USER, password: str = PASSWORD) -> str:
        return f"postgresql+psycopg://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def make(self) -> None:
        secret = self._directory / "password"
        secret.write_text(PASSWORD)
        if self._account is not None:
            for path in (self._directory, secret):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        initdb = _program("initdb")
        assert initdb is not None
        options = ["-U", USER, "-A", "scram-sha-256", "--no-sync", "--no-locale", "-E", "UTF8"]
        made = self._popen([initdb, "-D", str(self._data), "--pwfile", str(secret), *options])
        output, _ = made.communicate(timeout=_START_LIMIT_S)
        assert made.returncode == 0, output.decode()

    def start(self) -> None:
        postgres = _program("postgres")
        assert postgres is not None
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self._directory,
            "fsync": "off",
            "max_connections": 40,
            "shared_buffers": "16MB",
            "dynamic_shared_memory_type": "mmap",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self._popen([postgres, "-D", str(self._data), *options])
        deadline_s = time.monotonic() + _START_LIMIT_S
        while not self._answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline_s, self._log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Ends all connections and the server, as its administrator would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=_START_LIMIT_S)
            self._process = None

    def new_database(self) -> str:
        import psycopg

        name = f"studies_{time.monotonic_ns()}"
        with psycopg.connect(self._plain("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload, unused-ignore]
        return name

    def _plain(self, database: str) -> str:
        return self.url(database).replace("+psycopg", "")

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self._plain("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._account
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log if command[0].endswith("postgres") else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )


@contextmanager
def server() -> Iterator[Server]:
    """A running server, which is gone without a trace afterwards."""
    # Directories of tests are their owner's alone, and the server is somebody else.
    with tempfile.TemporaryDirectory(prefix="autotune-pg-") as directory:
        found = Server(Path(directory))
        found.make()
        found.start()
        try:
            yield found
        finally:
            found.stop()
