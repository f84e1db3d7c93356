"""Real servers with the module, a connection to look at them, Sentinel and Cluster."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULE = Path(os.environ.get("REDISLOCK_SO") or ROOT / "redislock.so").resolve()
SERVER = (
    os.environ.get("REDIS_SERVER")
    or shutil.which("redis-server")
    or shutil.which("valkey-server")
    or "redis-server"
)
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class ReplyError(Exception):
    pass


class Wire:
    """A connection of the runner itself."""

    def __init__(self, port: int, timeout: float = 20.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout)
        self._file = self._socket.makefile("rb")

    def __call__(self, *words: object) -> object:
        parts = [str(word).encode() for word in words]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)
        self._socket.sendall(request)
        reply = self._read()
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def _read(self) -> object:
        line = self._file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            return ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length < 0:
            return None
        if kind == b"$":
            return self._file.read(length + 2)[:-2].decode()
        return [self._read() for _ in range(length)]

    def close(self) -> None:
        self._socket.close()


def eventually(condition, within: float = 60.0, what: str = "the condition"):
    """Waits for the condition; only a broken program uses up the time."""
    end = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come true within {within} s"
        time.sleep(0.01)


def free_port() -> int:
    """Below the range that the system uses for outgoing connections; the cluster bus fits, too."""
    for _ in range(1000):
        port = 10000 + int.from_bytes(os.urandom(2), "big") % 20000
        with socket.socket() as probe, socket.socket() as bus:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bus.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10000))
                return port
            except OSError:
                continue
    raise RuntimeError("no free port")


def killed_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn`: a runner that is killed cannot stop its processes, so the kernel does it.

    Only Linux has this. It ends with the thread that starts it, which must therefore live longer.
    """
    if _LIBC is None:
        return None
    parent = os.getpid()

    def arrange() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # killed before the call
            os._exit(1)

    return arrange


class Server:
    """A server process that ends with the scenario, or with the thread that started it."""

    def __init__(self, *settings: str, module: bool = True, sentinel: bool = False) -> None:
        self._settings, self._module, self._sentinel = settings, module, sentinel
        self._directory = tempfile.mkdtemp(prefix="redislock-conformance-")
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start_at_a_free_port()
        except BaseException:  # also the end of the runner: nobody owns this server yet
            self.close()
            raise

    def _start_at_a_free_port(self) -> None:
        for _ in range(5):
            self.port = free_port()
            try:
                return self.start()
            except ConnectionError as error:
                failure = error
                self.kill()
        raise failure

    def start(self) -> None:
        """Starts it, or starts it again at the same port."""
        file = Path(self._directory, "server.conf")
        if not file.exists() or not self._sentinel:
            lines = [
                f"port {self.port}",
                "bind 127.0.0.1",
                f"dir {self._directory}",
                "protected-mode no",
            ]
            if not self._sentinel:
                lines += ['save ""', *([f"loadmodule {MODULE}"] if self._module else [])]
            file.write_text("\n".join([*lines, *self._settings]) + "\n")
        log = open(Path(self._directory, "server.log"), "ab")
        command = [SERVER, str(file), *(["--sentinel"] if self._sentinel else [])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=killed_with_parent(),
        )
        log.close()
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise ConnectionError(f"the server ended: {self.log()}")
            try:
                wire = Wire(self.port)
                if f"process_id:{self._process.pid}\r" in wire("INFO", "server"):
                    self._wire = wire
                    return
            except (OSError, ReplyError):
                pass
            time.sleep(0.02)
        raise ConnectionError(f"the server does not answer: {self.log()}")

    def wire(self, *words: object) -> object:
        """A command of the runner. A failover closes connections: then on a new one."""
        try:
            return self._wire(*words)
        except ConnectionError:
            self._wire = Wire(self.port)
            return self._wire(*words)

    def log(self) -> str:
        return Path(self._directory, "server.log").read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Its host still accepts connections, but nobody answers on them, until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ---- what the scenarios look at ----

    def lock(self, key: str) -> dict | None:
        """LOCK.INFO as a dictionary; None: nobody holds it, nobody waits."""
        found = self.wire("LOCK.INFO", key)
        return _pairs(found) if found else None

    def holders(self, key: str) -> list[dict]:
        found = self.lock(key)
        return found["holders"] if found else []

    def waiters(self, key: str) -> int:
        found = self.lock(key)
        return found["waiters"] if found else 0

    def calls(self, command: str) -> int:
        """How often the command was called, from the server's own statistics."""
        for line in self.wire("INFO", "commandstats").splitlines():
            if line.lower().startswith(f"cmdstat_{command.lower()}:"):
                return int(line.split("calls=")[1].split(",")[0])
        return 0


def _pairs(flat: list) -> dict:
    pairs = dict(zip(flat[::2], flat[1::2], strict=True))
    if "holders" in pairs:
        pairs["holders"] = [_pairs(one) for one in pairs["holders"]]
    return pairs


def sentinel_set(take) -> tuple[Server, Server, Server]:
    """A master, its replica, and one Sentinel that decides alone. `take` owns each server."""
    master = take(Server())
    replica = take(Server(f"replicaof 127.0.0.1 {master.port}"))
    eventually(lambda: "master_link_status:up" in replica.wire("INFO", "replication"))
    watch = take(
        Server(
            f"sentinel monitor main 127.0.0.1 {master.port} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 5000",
            sentinel=True,
        )
    )
    eventually(
        lambda: "slaves=1" in watch.wire("INFO", "sentinel"),
        what="Sentinel's discovery of the replica",
    )
    return master, replica, watch


def cluster_set(take, *settings: str, count: int = 2) -> list[Server]:
    """Masters that share the slots in equal parts."""
    nodes = [
        take(
            Server(
                "cluster-enabled yes",
                "cluster-node-timeout 5000",
                "cluster-require-full-coverage no",
                *settings,
            )
        )
        for _ in range(count)
    ]
    for index, node in enumerate(nodes):
        first, last = 16384 * index // count, 16384 * (index + 1) // count - 1
        node.wire("CLUSTER", "ADDSLOTSRANGE", first, last)
        node.wire("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        node.wire("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
    for node in nodes:
        eventually(lambda node=node: _is_whole(node, count), what="the cluster")
    return nodes


def _is_whole(node: Server, count: int) -> bool:
    info = node.wire("CLUSTER", "INFO")
    return (
        "cluster_slots_ok:16384" in info
        and f"cluster_size:{count}" in info
        and "cluster_state:ok" in info
    )


def move_slot(nodes: list[Server], key: str, target: Server) -> None:
    """Gives the slot of the key to the target, with the key if there is one."""
    slot = target.wire("CLUSTER", "KEYSLOT", key)
    target_id = target.wire("CLUSTER", "MYID")
    source = next(node for node in nodes if node is not target)
    source_id = source.wire("CLUSTER", "MYID")
    target.wire("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
    source.wire("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
    for name in source.wire("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.wire("MIGRATE", "127.0.0.1", target.port, name, 0, 5000)
    for node in (target, source):
        node.wire("CLUSTER", "SETSLOT", slot, "NODE", target_id)
