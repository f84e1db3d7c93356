#!/usr/bin/env python3
"""Runs the scenarios against the libraries: run.py [--only word] [--planted] [language ...]"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from driver import Driver, Skip
from scenarios import SCENARIOS
from scene import PACES, Scene, TooSlow
from servers import MODULE, ROOT

CLIENTS = ROOT / "clients"
LANES = 4  # scenarios at once; most of a scenario is waiting


class Library:
    """One entry of a drivers.json: how its driver starts, which bugs are planted in it."""

    def __init__(self, language: str, entry: dict) -> None:
        self.language, self.name = language, entry["name"]
        self.command = [_with_paths(part) for part in entry["command"]]
        self.build = _with_paths(entry["build"])
        self.lanes = entry.get("lanes", LANES)
        self.planted = entry.get("planted", [])

    def built(self, directory: Path) -> bool:
        """Builds the driver in its directory; libraries of a language may share one build."""
        return subprocess.run(["sh", "-ec", self.build], cwd=directory).returncode == 0

    def start(self, directory: Path) -> Driver:
        return Driver(self.command, str(directory))


def _with_paths(text: str) -> str:
    target = os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))
    return text.replace("{root}", str(ROOT)).replace("{target}", target)


def libraries(wanted: list[str]) -> list[Library]:
    found = []
    for file in sorted(CLIENTS.glob("*/drivers.json")):
        found += [Library(file.parent.name, entry) for entry in json.loads(file.read_text())]
    return [one for one in found if not wanted or one.language in wanted or one.name in wanted]


class Result:
    def __init__(self) -> None:
        self.passed: list[str] = []
        self.skipped: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.repeats = 0  # because the machine was slow


def run(library: Library, names: list[str], directory: Path, loud: bool = True) -> Result:
    """Every scenario, several at once, each lane with a driver of its own."""
    result, todo, mutex = Result(), queue.SimpleQueue(), threading.Lock()
    for name in names:
        todo.put(name)

    def lane() -> None:
        driver = library.start(directory)
        while True:
            try:
                name = todo.get_nowait()
            except queue.Empty:
                return driver.close()
            began = time.monotonic()
            failure, skipped, repeats = one(driver, name)
            with mutex:
                result.repeats += repeats
                if skipped:
                    result.skipped[name] = skipped
                elif failure:
                    result.failed[name] = failure
                    if loud:
                        print(f"FAILED {library.name}: {name}\n{failure}", flush=True)
                else:
                    result.passed.append(name)
                if loud and os.environ.get("VERBOSE"):
                    print(f"{library.name}: {name} {time.monotonic() - began:.1f} s", flush=True)
            if failure:  # what it left behind is not to fail the next one
                driver.close()
                driver = library.start(directory)

    lanes = [threading.Thread(target=lane) for _ in range(min(library.lanes, len(names)))]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    return result


def one(driver: Driver, name: str) -> tuple[str | None, str | None, int]:
    """The failure, or why it does not apply, and how often it was repeated at a slower pace."""
    for repeats, pace in enumerate(PACES):
        scene = Scene(driver, pace)
        try:
            SCENARIOS[name](scene)
            return None, None, repeats
        except Skip as skip:
            return None, str(skip), repeats
        except Exception as error:  # noqa: BLE001 a failure of any kind is reported
            is_slow = isinstance(error, TooSlow) or scene.is_spoiled()
            if not is_slow or pace == PACES[-1]:
                return traceback.format_exc(limit=-3), None, repeats
        finally:
            scene.close()


def copy_without_packages(source: Path, copy: Path) -> None:
    """Packages of node are linked, not copied; what was built before is left out."""
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("node_modules", "target", "driver"))
    if (source / "node_modules").exists():
        (copy / "node_modules").symlink_to(source / "node_modules")


def planted(library: Library) -> Result:
    """Each bug, in a copy of the library, must be caught by the scenarios named for it."""
    result = Result()
    for bug in library.planted:
        with tempfile.TemporaryDirectory(prefix="redislock-planted-") as scratch:
            copy = Path(scratch, library.language)
            copy_without_packages(CLIENTS / library.language, copy)
            file = copy / bug["file"]
            text = file.read_text()
            assert text.count(bug["old"]) == 1, (
                f"{bug['bug']}: the text to replace is not once in {bug['file']}"
            )
            file.write_text(text.replace(bug["old"], bug["new"]))
            if not library.built(copy):
                result.failed[bug["bug"]] = "the copy does not build"
                continue
            caught = run(library, bug["caught_by"], copy, loud=False).failed
            missing = [name for name in bug["caught_by"] if name not in caught]
            if missing:
                result.failed[bug["bug"]] = f"not caught by {missing}"
                print(
                    f"FAILED {library.name}: '{bug['bug']}' was not caught by {missing}",
                    flush=True,
                )
            else:
                result.passed.append(bug["bug"])
                print(f"{library.name}: caught: {bug['bug']}", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("languages", nargs="*", help="languages or libraries, all without")
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    parser.add_argument(
        "--planted", action="store_true", help="plant each bug and see that it is caught"
    )
    options = parser.parse_args()
    if not MODULE.exists():
        print("redislock.so is missing: make build", file=sys.stderr)
        return 2
    names = [name for name in SCENARIOS if options.only in name]
    passed = failed = 0
    for library in libraries(options.languages):
        began = time.monotonic()
        if not library.built(CLIENTS / library.language):
            print(f"FAILED {library.name}: its driver does not build")
            failed += 1
            continue
        if options.planted:
            result = planted(library)
        else:
            result = run(library, names, CLIENTS / library.language)
        passed += len(result.passed)
        failed += len(result.failed)
        what = "planted bugs caught" if options.planted else "scenarios passed"
        print(
            f"{library.name}: {len(result.passed)} {what}, {len(result.failed)} failed, "
            f"{len(result.skipped)} not applicable, {result.repeats} repeated as the machine was "
            f"slow, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
