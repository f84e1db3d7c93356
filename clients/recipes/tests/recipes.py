"""The test of each recipe, and the bugs that it must catch."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from programs import PATIENCE, TARGET, Postgres, Program, Service, Stage, eventually, is_safe


@dataclass
class Bug:
    """A protection that is removed from a copy of a recipe: texts of one file, and replacements."""

    name: str
    file: str
    replaced: dict[str, str]


@dataclass
class Recipe:
    name: str
    test: Callable[[Stage], None]
    bugs: list[Bug] = field(default_factory=list)


def one_of_several_cron_hosts(stage: Stage) -> None:
    with tempfile.TemporaryDirectory(prefix="redislock-cron-") as scratch:
        log = Path(scratch, "log")
        job = ["sh", "-c", f"echo ran >> {log}"]
        assert stage.start("hourly.sh", *job).code() == 0
        assert log.read_text() == "ran\n"
        late = stage.start("hourly.sh", *job)  # its host's clock is a little behind
        assert late.code() == 0, late.lines
        is_safe(log.read_text() == "ran\n", "the job ran twice")
        stage.server.wire("LOCK.FORCE", "cron:hourly")  # an hour later
        assert stage.start("hourly.sh", "sh", "-c", "exit 3").code() == 3
        stage.server.kill()
        assert stage.start("hourly.sh", *job).code() == 69
        assert log.read_text() == "ran\n"


def term(candidate: Program, times: int = 1) -> int:
    return int(candidate.says(" leads in term ", times).split()[-1])


def candidates(stage: Stage, first: Program, stop_first: int) -> None:
    """The first one leads, is paused, is replaced, comes back as a candidate, leads again."""
    server = stage.server
    first_term = term(first)
    second = stage.start("leader.py", "second")
    eventually(lambda: server.waiters("{scheduler}") == 1, PATIENCE, "the second candidate")
    first.signal(signal.SIGSTOP)
    second_term = term(second)
    assert second_term > first_term

    def log() -> list[int]:
        return [int(one) for one in server.wire("LRANGE", "{scheduler}:log", 0, -1)]

    eventually(lambda: second_term in log(), PATIENCE, "the work of the second leader")
    first.signal(signal.SIGCONT)

    def first_is_a_candidate() -> bool:
        is_safe(log() == sorted(log()), "a replaced leader has worked")
        return server.waiters("{scheduler}") == 1

    eventually(first_is_a_candidate, PATIENCE, "the first one as a candidate")
    first.says("does not lead")
    second.signal(signal.SIGTERM)
    assert second.code() == 0, second.lines
    assert term(first, 2) > second_term
    first.signal(stop_first)
    assert first.code() == 0, first.lines
    assert server.lock("{scheduler}") is None, "a leader that stops resigns"
    is_safe(log() == sorted(log()), "a replaced leader has worked")


def leader_in_python(stage: Stage) -> None:
    candidates(stage, stage.start("leader.py", "first"), signal.SIGTERM)


def leader_in_rust(stage: Stage) -> None:
    program = str(TARGET / "debug/examples/leader")
    first = stage.start_command(program, "first", f"redis://127.0.0.1:{stage.server.port}")
    candidates(stage, first, signal.SIGINT)


def fenced_write_to_postgresql(stage: Stage) -> None:
    postgres = stage.take(Postgres())
    stage.set("DATABASE_URL", postgres.url)
    postgres.run((stage.recipes / "account.sql").read_text())
    postgres.run("INSERT INTO account (id, balance) VALUES ('7', 0)")

    def balance() -> int:
        return int(postgres.run("SELECT balance FROM account WHERE id = '7'"))

    alice = stage.start("deposit.py", "7")
    alice.says("read 0")
    alice.signal(signal.SIGSTOP)
    bob = stage.start("deposit.py", "7")  # waits for the end of the lease of alice
    bob.write("100")
    assert bob.code() == 0, bob.lines
    assert balance() == 100
    alice.write("1")
    alice.signal(signal.SIGCONT)
    code = alice.code()
    is_safe(balance() == 100, "the update of bob is lost")
    assert code == 1 and any("refused" in line for line in alice.lines), alice.lines

    again = stage.start("deposit.py", "7")
    again.write("1")
    assert again.code() == 0, again.lines
    assert balance() == 101
    assert stage.start("deposit.py", "no such account").code() == 1


def at_most_three_calls(stage: Stage) -> None:
    changed, now, most, calls = threading.Condition(), 0, 0, 0

    def answer(_path: str) -> str:
        """The first calls last until there is one too many, or long enough for that one."""
        nonlocal now, most, calls
        with changed:
            now, calls = now + 1, calls + 1
            most = max(most, now)
            changed.notify_all()
            changed.wait_for(lambda: most >= 3, PATIENCE)
            if calls <= 4:
                changed.wait_for(lambda: most > 3, 3)
            now -= 1
        return "done"

    service = stage.take(Service(answer))
    callers = [stage.start("limit.py", *[service.url] * 6) for _ in range(2)]
    for caller in callers:
        assert caller.code() == 0, caller.lines
        assert caller.lines == ["200"] * 6
    is_safe(most <= 3, f"{most} calls at once")
    assert (most, calls) == (3, 12)
    assert stage.server.lock("partner") is None


def configuration_in_use(stage: Stage) -> None:
    server = stage.server
    server.wire("SET", "{config}", "old")
    workers = [stage.start("use_config.py") for _ in range(2)]
    for worker in workers:  # both at once
        worker.says("uses old")
    change = stage.start("change_config.py", "new")
    eventually(lambda: server.waiters("{config}:lock") == 1 or change.lines, PATIENCE, "the writer")
    is_safe(server.wire("GET", "{config}") == "old", "it changed while it was in use")
    later = stage.start("use_config.py")  # does not overtake the writer
    eventually(lambda: server.waiters("{config}:lock") == 2, PATIENCE, "the reader behind it")
    for worker in workers:
        worker.write("a line")
        worker.says("old: a line")
        worker.end_input()
        assert worker.code() == 0, worker.lines
    assert change.code() == 0, change.lines
    later.says("uses new")
    later.end_input()
    assert later.code() == 0, later.lines


class Carrier:
    """Sells labels. A call waits until the test lets it go on."""

    def __init__(self) -> None:
        self.calls = 0
        self._gates: list[threading.Event] = []
        self._mutex = threading.Lock()

    def answer(self, _path: str) -> str:
        with self._mutex:
            self.calls += 1
            call, gate = self.calls, threading.Event()
            self._gates.append(gate)
        gate.wait(PATIENCE)
        return f"label {call}"

    def wait_for(self, calls: int) -> None:
        eventually(lambda: self.calls >= calls, PATIENCE, f"call {calls} of the carrier")

    def let_go(self, call: int) -> None:
        self._gates[call - 1].set()


def with_an_order(stage: Stage) -> tuple[Carrier, str]:
    carrier = Carrier()
    service = stage.take(Service(carrier.answer))
    stage.server.wire("XGROUP", "CREATE", "orders", "shipping", 0, "MKSTREAM")
    stage.server.wire("XADD", "orders", "*", "order", "order:7")
    return carrier, service.url


def delivered_twice(stage: Stage) -> None:
    """The second delivery comes while the first one is handled, and waits for it."""
    carrier, url = with_an_order(stage)
    first = stage.start("consumer.py", "first", url)
    carrier.wait_for(1)
    second = stage.start("consumer.py", "second", url)

    def second_delivery_waits() -> bool:
        is_safe(carrier.calls == 1, "two labels were bought")
        return stage.server.waiters("{order:7}:lock") == 1

    eventually(second_delivery_waits, PATIENCE, "the second delivery")
    carrier.let_go(1)
    first.says("first confirms order:7")
    second.says("second confirms order:7")
    assert carrier.calls == 1
    assert stage.server.wire("GET", "{order:7}:label") == "label 1"
    assert stage.server.wire("XPENDING", "orders", "shipping")[0] == 0


def paused_consumer(stage: Stage) -> None:
    """Another consumer takes over; the result of the paused one does not replace its result."""
    carrier, url = with_an_order(stage)
    first = stage.start("consumer.py", "first", url)
    carrier.wait_for(1)
    first.signal(signal.SIGSTOP)
    second = stage.start("consumer.py", "second", url)
    carrier.wait_for(2)
    carrier.let_go(2)
    second.says("second confirms order:7")
    second.signal(signal.SIGTERM)
    second.code()
    carrier.let_go(1)
    first.signal(signal.SIGCONT)
    eventually(lambda: first.lines, PATIENCE, "the end of the paused work")
    label = stage.server.wire("GET", "{order:7}:label")
    is_safe(label == "label 2", f"the label was replaced by {label}")
    first.says("first leaves order:7 for later")


RECIPES = [
    Recipe(
        "cron singleton",
        one_of_several_cron_hosts,
        [Bug("no --min-hold", "hourly.sh", {" --min-hold 50s": ""})],
    ),
    Recipe(
        "leader election, Python",
        leader_in_python,
        [
            Bug(
                "a leader that does not look at its lock",
                "leader.py",
                {
                    "not held.wait_lost(timeout=0.2)": 'not __import__("time").sleep(0.2)',
                    "held.guard(": "r.execute_command(",
                },
            )
        ],
    ),
    Recipe("leader election, Rust", leader_in_rust),
    Recipe(
        "fenced write to PostgreSQL",
        fenced_write_to_postgresql,
        [Bug("a write without the fence", "deposit.py", {" AND fence = %(fence)s": ""})],
    ),
    Recipe(
        "semaphore as a concurrency limit",
        at_most_three_calls,
        [Bug("no limit", "limit.py", {", limit=3": ""})],
    ),
    Recipe(
        "configuration with shared locks",
        configuration_in_use,
        [Bug("a shared lock for changes", "change_config.py", {"wait=60": "wait=60, shared=True"})],
    ),
    Recipe(
        "idempotent consumer, delivered twice",
        delivered_twice,
        [Bug("a shared lock", "consumer.py", {"wait=60": "wait=60, shared=True"})],
    ),
    Recipe(
        "idempotent consumer, paused",
        paused_consumer,
        [Bug("a write without GUARD", "consumer.py", {'held.guard("SET", ': "r.set("})],
    ),
]
