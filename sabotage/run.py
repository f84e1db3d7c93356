#!/usr/bin/env python3
"""Removes one protection at a time from a copy of the project, and expects a named test to fail.

    run.py                 every protection of sabotage/*.toml
    run.py NAME ...        only these
    run.py --check         only whether each change can still be made, and each test still exists
    run.py --find NAME ... runs all tests of the named targets instead, and lists those that fail

A protection that no test misses, a change that can no longer be made, a change that does not
compile and a test that fails without any change are errors. The copy and what is built from it are
in target/sabotage, so a second run compiles only what has changed.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "sabotage"
TREE = WORK / "tree"
BUILD = WORK / "build"
LIBRARY = "libredislock.dylib" if sys.platform == "darwin" else "libredislock.so"
# A test that takes longer than this much more than without the change is stopped.
PATIENCE = float(os.environ.get("PATIENCE", "120"))
# Tests say this when something did not happen in time.
TIMED_OUT = "timed out"
PACKAGES = {
    "core": ("redislock-core", "core"),
    "module": ("redislock-module", "."),
    "client": ("redislock-client", "client"),
    "chaos": ("redislock-chaos", "chaos"),
}
# These targets start servers with the module.
NEED_MODULE = {"module main", "client servers", "client lib"}
# Tests run in sessions of their own, so a signal from the terminal does not reach them.
RUNNING = set()
STOPPED = threading.Event()


class Broken(Exception):
    """Something is wrong with a sabotage itself."""


def stop(number, _):
    """Ends the tests that run, with their servers, and then this program."""
    if STOPPED.is_set():
        return
    STOPPED.set()
    for group in list(RUNNING):
        end_group(group)
    sys.exit(128 + number)


def end_group(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Sabotage:
    def __init__(self, fields, where):
        known = {"name", "protection", "caught_by", "in_place", "file", "find", "replace", "edits"}
        unknown = set(fields) - known
        if unknown:
            raise Broken(f"{where}: unknown fields {sorted(unknown)}")
        self.name = fields["name"]
        self.protection = fields["protection"]
        package, target, self.test = fields["caught_by"].split()
        self.target = f"{package} {target}"
        # The test builds from the copy itself, so it runs before the change is taken back.
        self.in_place = fields.get("in_place", False)
        one = [{part: fields[part] for part in ("file", "find", "replace") if part in fields}]
        self.edits = fields.get("edits", one)

    def changed(self, root):
        """The changed files: path and new text."""
        files = {}
        for edit in self.edits:
            where = root / edit["file"]
            paths = sorted(where.rglob("*.rs")) if where.is_dir() else [where]
            found = []
            for path in paths:
                text = files.get(path) or path.read_text()
                found += [(path, text, at) for at in pattern(edit["find"]).finditer(text)]
            if len(found) != 1:
                wanted = edit["find"].strip()
                raise Broken(f"{edit['file']} has {len(found)} places for: {wanted}")
            path, text, at = found[0]
            files[path] = text[: at.start()] + edit["replace"].strip() + text[at.end() :]
        return files


def is_there(one):
    """Whether a function of the name of the test is in its package."""
    package = ROOT / PACKAGES[one.target.split()[0]][1]
    folders = [package / "src", package / "tests"]
    wanted = re.compile(rf"\bfn {re.escape(one.test.rpartition('::')[2])}\b")
    files = [path for folder in folders for path in folder.rglob("*.rs")]
    return any(wanted.search(path.read_text()) for path in files)


def pattern(find):
    """Matches whatever white space stands between the words and signs of the text."""
    tokens = re.findall(r"\w+|[^\w\s]", find)
    parts = [re.escape(tokens[0])]
    for before, token in zip(tokens, tokens[1:]):
        both_words = re.match(r"\w", before) and re.match(r"\w", token)
        parts.append((r"\s+" if both_words else r"\s*") + re.escape(token))
    return re.compile("".join(parts))


def load():
    found = {}
    for path in sorted((ROOT / "sabotage").glob("*.toml")):
        for fields in tomllib.loads(path.read_text())["sabotage"]:
            one = Sabotage(fields, path.name)
            if one.name in found:
                raise Broken(f"{path.name}: {one.name} is there twice")
            found[one.name] = one
    return found


def copy_tree():
    """Makes the copy the same as the project. Files that are the same keep their times, so that
    cargo does not build them again."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout
    wanted = {name.decode() for name in listed.split(b"\0") if name}
    wanted = {name for name in wanted if (ROOT / name).is_file()}
    TREE.mkdir(parents=True, exist_ok=True)
    for path in TREE.rglob("*"):
        if path.is_file() and str(path.relative_to(TREE)) not in wanted:
            path.unlink()
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            shutil.copymode(source, copy)
    # Most of the time is spent on compiling, so core is hardly optimized here, and the client not at
    # all. Without any optimization, core is too slow to have many replies to send in one turn.
    manifest = TREE / "Cargo.toml"
    text = manifest.read_text()
    for package, level in (("core", 1), ("client", 0)):
        optimized = rf"(\[profile\.dev\.package\.redislock-{package}\]\nopt-level = )\d"
        text = re.sub(optimized, rf"\g<1>{level}", text)
    manifest.write_text(text)


def cargo(*args):
    env = dict(os.environ, CARGO_TARGET_DIR=str(BUILD), CARGO_INCREMENTAL="1")
    env["CARGO_PROFILE_DEV_DEBUG"] = "none"
    return subprocess.run(
        ["cargo", *args], cwd=TREE, env=env, text=True, capture_output=True
    )


def build(targets, into):
    """Builds the tests of these targets, and the module if they need it, and copies both. None if
    it does not compile."""
    into.mkdir(parents=True, exist_ok=True)
    built = {}
    for target in sorted(targets):
        package, test = target.split()
        kind = ["--lib"] if test == "lib" else ["--test", test]
        made = cargo("test", "--no-run", "--message-format=json", "-p", PACKAGES[package][0], *kind)
        if made.returncode != 0:
            return None, made.stderr
        for line in made.stdout.splitlines():
            message = json.loads(line) if line.startswith("{") else {}
            if message.get("executable") and message["profile"]["test"]:
                # Some tests look for what was built next to them.
                copy = BUILD / "debug" / "deps" / f"sabotage-{into.name}-{package}-{test}"
                shutil.copy(message["executable"], copy)
                built[target] = copy
    if targets & NEED_MODULE:
        made = cargo("build", "--lib", "-p", "redislock-module")
        if made.returncode != 0:
            return None, made.stderr
        shutil.copy(BUILD / "debug" / LIBRARY, into / LIBRARY)
    return built, ""


def run(executable, target, module, tests, limit):
    """Runs tests by their names, or all. Returns what they printed, the names of those that
    failed, and how long it took; no names if it did not end."""
    package = target.split()[0]
    # CARGO and CARGO_TARGET_DIR are for tests that build a module themselves.
    env = dict(os.environ, REDISLOCK_SO=str(module), CARGO_TARGET_DIR=str(BUILD))
    env.setdefault("RUST_TEST_THREADS", "2")
    args = [executable, *([*tests, "--exact"] if tests else [])]
    began = time.monotonic()
    # A test that is ended by force leaves its folders there. Not in WORK: the path of a socket must
    # be short.
    with tempfile.TemporaryDirectory(prefix="sabotage-", ignore_cleanup_errors=True) as folder:
        env["TMPDIR"] = folder
        child = subprocess.Popen(
            args, cwd=TREE / PACKAGES[package][1], env=env, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )
        RUNNING.add(child.pid)
        if STOPPED.is_set():
            end_group(child.pid)
        try:
            said, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end_group(child.pid)
            said, _ = child.communicate()
            return said, None, time.monotonic() - began
        finally:
            RUNNING.discard(child.pid)
    if STOPPED.is_set():
        raise Broken("stopped")
    failed = re.findall(r"^test (\S+)(?: - should panic)? \.\.\. FAILED$", said, re.M)
    failed += re.findall(r"^    (\S+)$", said.rpartition("\nfailures:\n")[2], re.M)
    if child.returncode != 0 and not failed:
        failed = ["(the process itself)"]
    return said, sorted(set(failed)), time.monotonic() - began


def baseline(chosen):
    """Runs every named test without a change. Returns how long each target took."""
    targets = {one.target for one in chosen}
    say(f"without any change: building {', '.join(sorted(targets))}")
    built, why = build(targets, WORK / "run" / "unchanged")
    if built is None:
        raise Broken(f"the project does not compile:\n{why[-3000:]}")
    for target, executable in built.items():
        listed = subprocess.run(
            [executable, "--list"], cwd=TREE, text=True, capture_output=True
        ).stdout
        there = set(re.findall(r"^(\S+): test$", listed, re.M))
        for one in chosen:
            if one.target == target and one.test not in there:
                raise Broken(f"{one.name}: {target} has no test {one.test}")
    for target, executable in built.items():
        tests = sorted({one.test for one in chosen if one.target == target})
        module = WORK / "run" / "unchanged" / LIBRARY
        said, failed, took = run(executable, target, module, tests, 900)
        ran = re.search(r"(\d+) passed", said)
        if failed is None or failed or not ran or int(ran.group(1)) != len(tests):
            raise Broken(f"without any change, {target} fails: {failed}\n{said[-3000:]}")
        say(f"without any change: {len(tests)} tests of {target} pass ({took:.0f} s)")


def say(text):
    print(text, flush=True)


class Table:
    def __init__(self, chosen):
        self.width = max(len(one.name) for one in chosen)
        self.lock = threading.Lock()
        self.bad = 0

    def row(self, one, caught, by, seconds):
        with self.lock:
            self.bad += not caught
            verdict = "caught" if caught else "NOT CAUGHT"
            say(f"{one.name:{self.width}}  {verdict:10}  {seconds:5.0f} s  {by}")


def try_one(one, built, folder, table, began, find):
    """Runs the test of a sabotage that was built."""
    module = folder / LIBRARY
    if not module.exists():
        module = WORK / "run" / "unchanged" / LIBRARY
    tests = [] if find else [one.test]
    executable = built[one.target]
    limit = PATIENCE * (5 if find else 1)
    said, failed, _ = run(executable, one.target, module, tests, limit)
    if failed and not find and TIMED_OUT in said:
        # A busy machine may have caused this, but hardly twice.
        said, failed, _ = run(executable, one.target, module, tests, limit)
    took = time.monotonic() - began
    if failed is None:
        table.row(one, False, f"{one.target}: {one.test} does not end\n{said[-1500:]}", took)
    elif find:
        table.row(one, bool(failed), f"{one.target}: {' '.join(failed)}", took)
    else:
        caught = one.test in failed
        table.row(one, caught, f"{one.target}: {one.test}", took)
    executable.unlink()
    shutil.rmtree(folder)


def sabotage(chosen, find):
    """Builds each sabotage, while the tests of the one before run."""
    table = Table(chosen)
    with ThreadPoolExecutor(max_workers=2) as testers:
        # No more than two wait to be tested: each has a copy of its programs.
        room = threading.Semaphore(3)
        running = []
        for one in chosen:
            began = time.monotonic()
            files = one.changed(TREE)
            before = {path: path.read_text() for path in files}
            for path, text in files.items():
                path.write_text(text)
            folder = WORK / "run" / one.name
            room.acquire()
            try:
                built, why = build({one.target}, folder)
                if one.in_place and built is not None:
                    try_one(one, built, folder, table, began, find)
            finally:
                for path, text in before.items():
                    path.write_text(text)
            if built is None:
                table.row(one, False, f"it does not compile:\n{why[-2000:]}", 0)
            if built is None or one.in_place:
                room.release()
                continue
            job = testers.submit(try_one, one, built, folder, table, began, find)
            job.add_done_callback(lambda _: room.release())
            running.append(job)
        for job in running:
            job.result()
    return table


def main(args):
    if "--help" in args or "-h" in args:
        return say(__doc__.strip())
    find, check = "--find" in args, "--check" in args
    names = [arg for arg in args if arg not in ("--find", "--check")]
    everything = load()
    unknown = [name for name in names if name not in everything]
    if unknown:
        raise Broken(f"there is no sabotage of the name {', '.join(unknown)}")
    chosen = [everything[name] for name in names] or list(everything.values())
    began = time.monotonic()
    stale = []
    for one in chosen:
        try:
            one.changed(ROOT)
            if not is_there(one):
                raise Broken(f"there is no test {one.test}")
        except (Broken, OSError) as broken:
            stale.append(f"{one.name}: {broken}")
    if stale:
        raise Broken("\n".join(stale))
    if check:
        return say(f"sabotage: all {len(chosen)} changes can be made, and their tests are there")
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (WORK / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Broken("another run is using target/sabotage") from None
    copy_tree()
    shutil.rmtree(WORK / "run", ignore_errors=True)
    try:
        if not find:
            baseline(chosen)
        else:
            build(NEED_MODULE & {one.target for one in chosen}, WORK / "run" / "unchanged")
        table = sabotage(chosen, find)
    finally:
        shutil.rmtree(WORK / "run", ignore_errors=True)
        for copy in (BUILD / "debug" / "deps").glob("sabotage-*"):
            copy.unlink()
    took = time.monotonic() - began
    say(f"{len(chosen) - table.bad} of {len(chosen)} caught, {took:.0f} s")
    if table.bad:
        sys.exit(1)


if __name__ == "__main__":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # `nohup` and a shell's `&` ignore some of them.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        main(sys.argv[1:])
    except Broken as broken:
        sys.exit(f"sabotage: {broken}")
