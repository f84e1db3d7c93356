#!/usr/bin/env python3
"""Each library against the usual locks of its language: run.py [--check] [language ...]

WORKERS workers of one process compete for one lock on MASTERS servers, and do nothing while they
hold it. Libraries and usual locks take turns in one run; only ours use servers with the module.
Both variables may be several numbers: WORKERS='2 16 64 256' MASTERS='1 5'. What was found goes to
target/peers/results.json. With KEEP=1 it also replaces older figures of the same locks in
bench/peers/results.json. --check only checks the arguments.

The exit code is 1 if a lock or a build failed, and 2 if an argument or the module is wrong. A
language without tools is not a failure.

A worker program is started as `COMMAND PEER PORTS WORKERS SECONDS`, with a comma between two ports.
It warms up, writes the line `ready`, waits for a line, works for SECONDS, and writes one line of
JSON: `grants` of each worker, `waits` in µs, and `handovers`, the grants to another worker than the
last one. If it fails, its last line on stderr says why.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from statistics import median
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/conformance"))
from servers import MODULE, Server, killed_with_parent  # noqa: E402 the one harness for servers


def refuse(reason: str) -> NoReturn:
    print(f"peers: {reason}", file=sys.stderr)
    sys.exit(2)


def numbers(name: str, default: str) -> list[int]:
    """The positive numbers of an environment variable, each of them once."""
    text = os.environ.get(name, "").strip() or default
    found = [int(word) if word.isascii() and word.isdigit() else 0 for word in text.split()]
    if not all(found):
        refuse(f"{name}='{text}': only whole numbers from 1 on are allowed")
    return list(dict.fromkeys(found))


def one_number(name: str, default: str) -> int:
    found = numbers(name, default)
    if len(found) > 1:
        refuse(f"{name}='{os.environ[name]}': only one number is allowed")
    return found[0]


def switch(name: str) -> bool:
    text = os.environ.get(name, "").strip()
    if text not in ("", "0", "no", "1", "yes"):
        refuse(f"{name}='{text}': only 1 or yes, and 0 or no, are allowed")
    return text in ("1", "yes")


HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").absolute() / "peers"
KEPT = HERE / "results.json"
SECONDS, ROUNDS = one_number("SECONDS", "5"), one_number("ROUNDS", "3")
WORKERS, MASTERS = numbers("WORKERS", "16"), numbers("MASTERS", "1")
KEEP = switch("KEEP")
DATE = time.strftime("%Y-%m-%d", time.gmtime())
# Seconds beside SECONDS that a worker program gets: to start, to warm up, and for the waits that
# go on when the time is over. What needs longer has failed.
PATIENCE = 30
# How the file with the versions of a language names a package and its version.
VERSIONS = {
    "rust": r'name = "{}"\nversion = "([^"]+)"',
    "python": r"^{}==(\S+)",
    "node": r'"{}": "([^"]+)"',
    "go": r"^\s{} v(\S+)",
    "java": r"<artifactId>{}</artifactId>\s*<version>([^<]+)<",
}
TOOLS = {
    "python": ["python3"],
    "node": ["node", "npm"],
    "go": ["go"],
    "java": ["javac", "mvn"],
    "rust": ["cargo"],
}


class Failed(Exception):
    """A lock could not be measured."""


def filled(text: str) -> str:
    return text.replace("{target}", str(TARGET))


class Program:
    """A running worker program. It is killed when it takes too long."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            preexec_fn=killed_with_parent(),
        )
        self._is_late = False
        self._timer = threading.Timer(SECONDS + PATIENCE, self._end)
        self._timer.daemon = True  # nobody waits for it when a signal ends this program
        self._timer.start()

    def _end(self) -> None:
        self._is_late = True
        self._process.kill()

    def line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if line:
            return line
        self._process.wait()
        if self._is_late:
            raise Failed(f"not all workers were served within {PATIENCE} s more")
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        print(said, file=sys.stderr)
        raise Failed(said.rpartition("\n")[2][:200] or "it ended without a word")

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def cpu(self) -> float:
        """Seconds that it has used, its own and those of the kernel for it."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        return sum(map(int, stat.rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        self._errors.close()


class Peer:
    """One lock of one language, and what it came to in each round."""

    def __init__(self, language: str, entry: dict, name: str) -> None:
        self.language, self.name = language, name
        self.library = library(language, entry["versions"], name)
        self._command = [filled(word) for word in entry["command"]]
        self._rounds: list[dict] = []
        self._failure: str | None = None

    def measure(self, servers: list[Server], workers: int) -> None:
        if self._failure:
            return
        ports = ",".join(str(server.port) for server in servers)
        command = [*self._command, self.name, ports, str(workers), str(SECONDS)]
        try:
            with closing(Program(command, HERE / self.language)) as program:
                self._rounds.append(measured(program, servers))
        except Failed as failure:
            self._failure = str(failure)
            print(f"peers: {self.name} failed: {failure}", file=sys.stderr, flush=True)
        finally:
            for server in servers:
                server.wire("FLUSHALL")

    def result(self) -> dict:
        """The median of the rounds, the worst wait and share of all of them, and every round."""
        about = {"language": self.language, "lock": self.name, "library": self.library}
        if self._failure:
            return {**about, "failed": self._failure}
        worst = {"wait_max_ms": max, "share": min}
        return {
            **about,
            **{
                name: short(worst.get(name, median)(one[name] for one in self._rounds))
                for name in self._rounds[0]
            },
            "each_round": [
                {name: short(figure) for name, figure in one.items()} for one in self._rounds
            ],
        }

    def is_ours(self) -> bool:
        return self.name.startswith("redislock ")


def short(figure: float) -> float:
    """Five significant digits."""
    return float(f"{figure:.5g}")


def measured(program: Program, servers: list[Server]) -> dict:
    program.line()
    for server in servers:
        server.wire("CONFIG", "RESETSTAT")
    before = cpu_time(servers), program.cpu()
    program.go()
    told = json.loads(program.line())
    after = cpu_time(servers), program.cpu()
    cpu = [end - begin for begin, end in zip(before, after, strict=True)]
    return figures(told, sum(map(commands, servers)), *cpu)


def cpu_time(servers: list[Server]) -> float:
    """Seconds that these servers have used."""
    used = ("used_cpu_user:", "used_cpu_sys:")
    lines = [line for server in servers for line in server.wire("INFO", "cpu").splitlines()]
    return sum(float(line.split(":")[1]) for line in lines if line.startswith(used))


def commands(server: Server) -> int:
    """How many commands ran, also inside of scripts; those of this program are not counted."""
    calls = 0
    for line in server.wire("INFO", "commandstats").splitlines():
        if line.startswith("cmdstat_") and not line.startswith(("cmdstat_info", "cmdstat_config")):
            calls += int(line.split("calls=")[1].split(",")[0])
    return calls


def figures(told: dict, calls: int, server_cpu: float, client_cpu: float) -> dict:
    waits, grants = sorted(told["waits"]), sum(told["grants"])
    every = len(waits)  # also the grants after the end of the time, which cost commands, too
    if grants == 0:
        raise Failed(f"no grant in {SECONDS} s")
    return {
        "grants_per_second": grants / SECONDS,
        "handovers_per_second": told["handovers"] / SECONDS,
        "wait_p50_ms": waits[every // 2] / 1000,
        "wait_p99_ms": waits[every * 99 // 100] / 1000,
        "wait_max_ms": waits[-1] / 1000,
        "least": min(told["grants"]),
        "most": max(told["grants"]),
        "share": min(told["grants"]) / max(told["grants"]),
        "commands_per_grant": calls / every,
        "server_cpu_us_per_grant": server_cpu * 1e6 / every,
        "client_cpu_us_per_grant": client_cpu * 1e6 / every,
    }


def chosen(wanted: list[str]) -> dict:
    """The languages with these names; all of them without a name."""
    languages = json.loads((HERE / "peers.json").read_text())
    unknown = [language for language in wanted if language not in languages]
    if unknown:
        refuse(f"no language '{unknown[0]}'; there are: {', '.join(languages)}")
    languages = {name: languages[name] for name in languages if name in (wanted or languages)}
    if not any(peers_of(languages, masters) for masters in MASTERS):
        refuse(f"{', '.join(languages)}: no lock for several masters; MASTERS=1 is allowed")
    return languages


def prepared(languages: dict) -> tuple[dict, bool]:
    """Builds the workers. Those that can run, and whether a build failed: no tool is no failure."""
    ready, has_failed = {}, False
    for language, entry in languages.items():
        missing = [tool for tool in TOOLS[language] if not shutil.which(tool)]
        if missing:
            print(f"peers: skipping {language}: {' and '.join(missing)} is missing", flush=True)
            continue
        print(f"peers: building {language}", flush=True)
        built = subprocess.run(["sh", "-ec", filled(entry["build"])], cwd=HERE / language)
        if built.returncode == 0:
            ready[language] = entry
        else:
            print(f"peers: skipping {language}: its build failed", file=sys.stderr, flush=True)
            has_failed = True
    return ready, has_failed


def peers_of(languages: dict, masters: int) -> list[Peer]:
    """All locks on one server; on several, those that agree by majority."""
    peers = []
    for language, entry in languages.items():
        if masters == 1:
            usual = [name for names in entry["beside"].values() for name in names]
            names = dict.fromkeys([*entry["beside"], *usual])
        else:
            names = entry.get("majority", [])
        peers += [Peer(language, entry, name) for name in names]
    return peers


def library(language: str, versions: dict, lock: str) -> str:
    """The package that a lock belongs to, or is built on, and its version."""
    package = versions["packages"][lock]
    text = (HERE / language / versions["file"]).read_text()
    found = re.search(VERSIONS[language].format(re.escape(package)), text, re.MULTILINE)
    if not found:
        sys.exit(f"peers: {versions['file']} of {language} has no version of {package}")
    return f"{package} {found[1]}"


def progress(line: str) -> None:
    """On one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def contest(peers: list[Peer], masters: int, workers: int) -> list[dict]:
    """The peers take turns; who begins changes from round to round.

    Ours use servers with the module, the others servers without it.
    """
    load, before = os.getloadavg()[0], processor_times()
    with ExitStack() as stack:
        with_module, plain = (
            [stack.enter_context(closing(Server(module=module))) for _ in range(masters)]
            for module in (True, False)
        )
        for number in range(ROUNDS):
            turn = peers[number % len(peers) :] + peers[: number % len(peers)]
            for place, peer in enumerate(turn):
                what = f"{masters} × server, {workers} workers, round {number + 1} of {ROUNDS}"
                progress(f"peers: {what}, {place + 1} of {len(turn)}: {peer.name}")
                peer.measure(with_module if peer.is_ours() else plain, workers)
        progress("")
        about = {
            "masters": masters,
            "workers": workers,
            "server": name_of(with_module[0]),
            "machine": machine(),
            "load": round(load, 1),
            "stolen": stolen_since(before),
            "commit": commit(),
            "date": DATE,
            "trained": is_trained(),
            "seconds": SECONDS,
            "rounds": ROUNDS,
            "apart": True,  # the usual locks on servers without the module
        }
    return [{**about, **peer.result()} for peer in peers]


def name_of(server: Server) -> str:
    """The kind and version: "Redis 7.0.15"."""
    lines = server.wire("INFO", "server").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "valkey_version" in fields:
        return f"Valkey {fields['valkey_version']}"
    return f"Redis {fields['redis_version']}"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else os.uname().machine
    return f"{len(os.sched_getaffinity(0))} cores of {model}"


def processor_times() -> list[int]:
    """How long all processors wanted to run, and how much of it the host gave to others."""
    line = Path("/proc/stat").read_text().split("\n")[0]
    user, nice, system, _, _, irq, softirq, stolen = map(int, line.split()[1:9])
    return [user + nice + system + irq + softirq + stolen, stolen]


def stolen_since(before: list[int]) -> float:
    """The share of that time that the host of a virtual machine gave to others."""
    wanted, stolen = (now - then for now, then in zip(processor_times(), before, strict=True))
    return short(stolen / max(wanted, 1))


@cache
def commit() -> str | None:
    """That of the working tree, with a "+" if tracked files have changes; None without git.

    Changes of documents and results do not count.
    """
    code = [".", ":!*.md", ":!docs", ":!bench/results.json", ":!bench/peers/results.json"]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", *code)
        return git("rev-parse", "--short", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@cache
def is_trained() -> bool | None:
    """Whether the module was built with a profile; None if it is not a build of this project."""
    for build, trained in [("redislock-trained.so", True), ("redislock.so", False)]:
        if (ROOT / build).exists() and (ROOT / build).read_bytes() == MODULE.read_bytes():
            return trained
    return None


def keep(found: list[dict]) -> None:
    """Replaces what the file has of these locks with as many masters and workers."""

    def place(one: dict) -> tuple:
        return one["masters"], one["workers"], one["lock"]

    older = json.loads(KEPT.read_text()) if KEPT.exists() else []
    places = {place(one) for one in found}
    merged = [one for one in older if place(one) not in places] + found
    order = known(1) + known(5)
    merged.sort(key=lambda one: (one["masters"], one["workers"], order.index(one["lock"])))
    write(KEPT, merged)


def write(file: Path, found: list[dict]) -> None:
    """One line for each lock, so that a difference shows which ones changed."""
    lines = [json.dumps(one, ensure_ascii=False) for one in found]
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def end_on_signals() -> None:
    """A closed terminal or `kill` ends this program as an exception does: its servers stop."""
    signals = [
        one
        for one in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(one) != signal.SIG_IGN  # nohup has it ignored
    ]

    def end(received: int, _: object) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)  # another one must not interrupt the clean-up
        sys.exit(128 + received)

    for one in signals:
        signal.signal(one, end)


def known(masters: int) -> list[str]:
    """The names of all locks, in the order of peers.json."""
    languages = json.loads((HERE / "peers.json").read_text())
    return [peer.name for peer in peers_of(languages, masters)]


def main() -> int:
    words = sys.argv[1:]
    languages = chosen([word for word in words if word != "--check"])
    if "--check" in words:
        return 0
    if not MODULE.exists():
        refuse(f"{MODULE} is missing: make build")
    if KEEP and not is_trained():
        refuse("KEEP=1 needs the module with a profile: make bench, with rustup")
    end_on_signals()
    commit(), is_trained()  # now: a build may change them meanwhile
    # Each waiter is a connection: both sides need a file for it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    TARGET.mkdir(parents=True, exist_ok=True)
    found: list[dict] = []
    write(TARGET / "results.json", found)  # if nothing can run, nobody reads older ones instead
    languages, has_failed = prepared(languages)
    for masters in MASTERS:
        for workers in WORKERS:
            peers = peers_of(languages, masters)
            if peers:
                found += contest(peers, masters, workers)
                # At once: a later one may fail.
                write(TARGET / "results.json", found)
                if KEEP:
                    keep(found)
    if found:
        print(f"peers: written to {KEPT if KEEP else TARGET / 'results.json'}")
    else:
        print("peers: nothing was measured")
    return 1 if has_failed or any("failed" in one for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
