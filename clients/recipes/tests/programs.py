"""What the tests of the recipes start: the programs, a web service and PostgreSQL."""

from __future__ import annotations

import contextlib
import http.server
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))
from servers import ROOT, Server, eventually  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PYTHON = ROOT / "target/clients/python/bin/python"
PATIENCE = 60.0  # for everything that comes sooner or later; only a broken program uses it up


class Skip(Exception):
    """Something that the test needs is not installed."""


class Unsafe(Exception):
    """What the recipe prevents has happened."""


class Program:
    """A running recipe. Its output is read all the time."""

    def __init__(self, command: list[str], settings: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self.lines.extend(line.rstrip() for line in self.process.stdout)

    def says(self, text: str, times: int = 1) -> str:
        """Waits for a line that contains the text, for the last one of so many."""

        def found() -> str | None:
            lines = [line for line in self.lines if text in line]
            return lines[times - 1] if len(lines) >= times else None

        try:
            return eventually(found, PATIENCE, f"the output of {text!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the output is {self.lines}") from None

    def write(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end_input(self) -> None:
        self.process.stdin.close()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def code(self) -> int:
        """Waits for the end of the program and returns its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def close(self) -> None:
        self.process.kill()  # reaches a stopped process, too
        self.process.wait()
        self._reader.join()
        with contextlib.suppress(OSError):
            self.process.stdin.close()


class Service:
    """A web service: `answer` gets the path of a call and returns the text of its answer."""

    def __init__(self, answer: Callable[[str], str]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = answer(self.path).encode()
                with contextlib.suppress(OSError):  # the caller may have ended
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Postgres:
    """A PostgreSQL of its own in a new directory, on a Unix socket only."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parts[-2]))
        initdb = shutil.which("initdb", path=str(found[-1])) if found else shutil.which("initdb")
        if not initdb:
            raise Skip("PostgreSQL is missing (Debian: package postgresql)")
        programs = Path(initdb).resolve().parent
        self._directory = tempfile.mkdtemp(prefix="redislock-postgres-")
        try:
            self._start(programs)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def _start(self, programs: Path) -> None:
        data, log = f"{self._directory}/data", f"{self._directory}/log"
        prefix = self._as_its_user()
        make = [*prefix, programs / "initdb", "-D", data, "-U", "recipes", "-A", "trust", "-N"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=self._directory)
        server = [programs / "postgres", "-D", data, "-k", self._directory]
        server += ["-c", "listen_addresses=", "-c", "fsync=off"]
        with open(log, "wb") as file:
            self._process = subprocess.Popen(
                [*prefix, *server], stdout=file, stderr=file, cwd=self._directory
            )
        self.url = f"host={self._directory} user=recipes dbname=postgres"
        ready = [programs / "pg_isready", "-q", "-h", self._directory]

        def answers() -> bool:
            assert self._process.poll() is None, f"PostgreSQL ended: {Path(log).read_text()}"
            return subprocess.run(ready).returncode == 0

        try:
            eventually(answers, PATIENCE, "PostgreSQL's answer")
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        self._psql = [programs / "psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", self.url]

    def _as_its_user(self) -> list[str]:
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return []
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            raise Skip("PostgreSQL does not run as root, and there is no user postgres") from None
        os.chown(self._directory, user.pw_uid, user.pw_gid)
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]

    def run(self, sql: str) -> str:
        done = subprocess.run([*self._psql, "-c", sql], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def close(self) -> None:
        self._process.send_signal(signal.SIGQUIT)  # at once, with all its processes
        try:
            self._process.wait(PATIENCE)
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)


class Stage:
    """One test: a server, and everything else that ends with the test."""

    def __init__(self, recipes: Path) -> None:
        self.recipes = recipes
        self._owned = contextlib.ExitStack()
        self.server = self.take(Server())
        self._settings = {
            "REDIS_URL": f"redis://127.0.0.1:{self.server.port}",
            "REDLOCK_NODES": f"redis://127.0.0.1:{self.server.port}",
            "PATH": f"{TARGET / 'debug'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "clients/python"),
        }

    def take(self, owned):
        self._owned.callback(owned.close)
        return owned

    def set(self, name: str, value: str) -> None:
        self._settings[name] = value

    def start(self, file: str, *arguments: str) -> Program:
        with_what = {"py": str(PYTHON), "sh": "sh"}[file.rsplit(".")[-1]]
        return self.start_command(with_what, str(self.recipes / file), *arguments)

    def start_command(self, *command: str) -> Program:
        return self.take(Program(list(command), self._settings))

    def close(self) -> None:
        self._owned.close()


def is_safe(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Unsafe(otherwise)
