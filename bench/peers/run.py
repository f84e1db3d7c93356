#!/usr/bin/env python3
"""Each library against the usual lock of its language: run.py [language ...]

Contended: WORKERS workers of one process compete for one lock on one server, and do nothing while
they hold it. Libraries and usual locks take turns in one run on the same server.

A worker program is started as `COMMAND PEER PORT WORKERS SECONDS`. It warms up, writes the line
`ready`, waits for a line, works for SECONDS, and writes one line of JSON: `grants` of each worker,
`waits` in µs, and `handovers`, the grants to another worker than the last one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "clients/conformance"))
from servers import MODULE, Server  # noqa: E402 the one harness for servers in Python

HERE = Path(__file__).resolve().parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute() / "peers"
WORKERS = 16
SECONDS, ROUNDS = int(os.environ.get("SECONDS", "5")), int(os.environ.get("ROUNDS", "3"))
TOOLS = {
    "python": ["python3"],
    "node": ["node", "npm"],
    "go": ["go"],
    "java": ["javac", "mvn"],
}


def filled(text: str) -> str:
    return text.replace("{target}", str(TARGET))


class Peer:
    """One lock of one language, and what it came to in each round."""

    def __init__(self, language: str, name: str, command: list[str]) -> None:
        self.language, self.name = language, name
        self._command = [filled(word) for word in command]
        self.rounds: list[dict] = []

    def measure(self, server: Server) -> None:
        command = [*self._command, self.name, str(server.port), str(WORKERS), str(SECONDS)]
        worker = subprocess.Popen(
            command,
            cwd=HERE / self.language,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout and worker.stdin
        try:
            assert worker.stdout.readline() == "ready\n", f"{self.name}: the worker ended"
            server.wire("CONFIG", "RESETSTAT")
            before = cpu_time(server), cpu_of(worker.pid)
            worker.stdin.write("go\n")
            worker.stdin.flush()
            told = json.loads(worker.stdout.readline())
            after = cpu_time(server), cpu_of(worker.pid)
            cpu = [end - begin for begin, end in zip(before, after, strict=True)]
            self.rounds.append(figures(told, commands(server), *cpu))
        finally:
            worker.kill()
            worker.wait()
            server.wire("FLUSHALL")

    def result(self) -> dict:
        """The median of the rounds, and the worst wait and share of all of them."""
        worst = {"wait_max_ms": max, "share": min}
        return {
            "language": self.language,
            "lock": self.name,
            **{
                name: worst.get(name, median)([one[name] for one in self.rounds])
                for name in self.rounds[0]
            },
        }


def cpu_time(server: Server) -> float:
    info = dict(
        line.split(":", 1) for line in server.wire("INFO", "cpu").splitlines() if ":" in line
    )
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def cpu_of(process: int) -> float:
    """Seconds that a running process has used, its own and those of the kernel for it."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


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


def prepared(wanted: list[str]) -> tuple[list[Peer], dict]:
    """Builds the workers of every language whose tools are installed."""
    peers, sides = [], json.loads((HERE / "peers.json").read_text())
    for language, entry in list(sides.items()):
        missing = [tool for tool in TOOLS[language] if not shutil.which(tool)]
        if missing and language in (wanted or sides):
            print(f"peers: skipping {language}: {' and '.join(missing)} is missing", flush=True)
        if missing or language not in (wanted or sides):
            del sides[language]
            continue
        print(f"peers: building {language}", flush=True)
        subprocess.run(["sh", "-ec", filled(entry["build"])], cwd=HERE / language, check=True)
        usual = [name for names in entry["beside"].values() for name in names]
        for name in dict.fromkeys([*entry["beside"], *usual]):
            peers.append(Peer(language, name, entry["command"]))
    return peers, sides


COLUMNS = [
    ("lock", "lock", "{}"),
    ("grants_per_second", "grants/s", "{:.0f}"),
    ("handovers_per_second", "hand-overs/s", "{:.0f}"),
    ("wait_p50_ms", "wait p50 ms", "{:.2f}"),
    ("wait_p99_ms", "p99 ms", "{:.1f}"),
    ("wait_max_ms", "longest ms", "{:.0f}"),
    ("share", "least/most served", "{:.2f}"),
    ("commands_per_grant", "commands/grant", "{:.2f}"),
    ("server_cpu_us_per_grant", "server CPU µs/grant", "{:.0f}"),
    ("client_cpu_us_per_grant", "client CPU µs/grant", "{:.0f}"),
]


def table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def verdicts(results: list[dict], sides: dict) -> list[list[str]]:
    """Each library beside the usual locks that do the same work in the same way."""
    by_name, rows = {one["lock"]: one for one in results}, []
    for entry in sides.values():
        for name, beside in entry["beside"].items():
            own = by_name[name]
            checks = [
                ratio("least/most served", own["share"], 1, 0.9),
                ratio("commands per grant", own["commands_per_grant"], -1, 2.5),
            ]
            for usual in (by_name[other] for other in beside):
                rate = own["grants_per_second"] / usual["grants_per_second"]
                wait = own["wait_max_ms"] / usual["wait_max_ms"]
                checks += [
                    ratio(f"grants/s over {usual['lock']}", rate, 1, 1),
                    ratio(f"longest wait over {usual['lock']}", wait, -1, 0.5),
                ]
            rows += [[name, *rest, "met" if met else "not met"] for *rest, met in checks]
    return rows


def ratio(what: str, value: float, sign: int, target: float) -> tuple[str, str, str, bool]:
    goal = f"{'≥' if sign > 0 else '≤'} {target}"
    return what, f"{value:.2f}", goal, value * sign >= target * sign


def main() -> int:
    if not MODULE.exists():
        print("redislock.so is missing: make build", file=sys.stderr)
        return 2
    TARGET.mkdir(parents=True, exist_ok=True)
    peers, sides = prepared(sys.argv[1:])
    if not peers:
        print("peers: no language to run", file=sys.stderr)
        return 2
    server = Server()
    try:
        for number in range(ROUNDS):
            turn = peers[number % len(peers) :] + peers[: number % len(peers)]
            for place, peer in enumerate(turn):
                done = f"round {number + 1} of {ROUNDS}, {place + 1} of {len(turn)}"
                print(f"peers: {done}: {peer.name}", file=sys.stderr, flush=True)
                peer.measure(server)
    finally:
        server.close()
    results = [peer.result() for peer in peers]
    print(f"\n{WORKERS} workers, one lock, {ROUNDS} rounds of {SECONDS} s\n")
    rows = [[form.format(one[name]) for name, _, form in COLUMNS] for one in results]
    print(table([title for _, title, _ in COLUMNS], rows), end="\n\n")
    print(table(["library", "what", "figure", "target", ""], verdicts(results, sides)))
    file = TARGET / "results.json"
    file.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
