#!/usr/bin/env python3
"""Pastes the programs of docs/CLIENTS.md and of the README files into files and runs them.

snippets.py [language ...]: each must print the fence, end by itself, and leave the lock free.
run.py has built the libraries before.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from proxy import Proxy
from servers import ROOT, Server, eventually

PYTHON = str(ROOT / "target/clients/python/bin/python")
CLIENTS = ROOT / "clients"
MINUTES = 3  # only a program that does not end uses them up

PYTHON_BEFORE = "def do_the_work(fence, *rest):\n    print('fence', fence)\n\n\n"
NODE_BEFORE = "const doTheWork = (fence) => console.log('fence', fence);\n"
NODE_IMPORTS = """import crypto from "node:crypto";
import os from "node:os";
import { createClient } from "redis";
const client = await createClient().connect();
"""
GO_BEFORE = """package main

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	redislock "github.com/redislock/redislock/clients/go"
)

var _ = time.Second
var _ redislock.Options

func doTheWork(_ context.Context, fence int64) error {
	fmt.Println("fence", fence)
	return nil
}

func main() {
	ctx, token := context.Background(), "a random token"
	_ = token
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
"""
GO_AFTER = "\n\tif err != nil {\n\t\tpanic(err)\n\t}\n"
JAVA_BEFORE = """import io.lettuce.core.*;
import java.time.Duration;
import org.redislock.*;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;

public class Snippet {
    static void doTheWork(long fence) {
        System.out.println("fence " + fence);
    }

    public static void main(String[] words) throws Exception {
"""
JAVA_AFTER = "\nSystem.exit(0);\n}\n}\n"  # Lettuce's own threads go on

# language -> file, heading or "", number of the block of that language under it, before, after
SNIPPETS = {
    "python": [
        ("docs/CLIENTS.md", "## Python", 0, PYTHON_BEFORE, ""),
        ("docs/CLIENTS.md", "## Without a library", 0, PYTHON_BEFORE, ""),
        ("clients/python/README.md", "", 0, PYTHON_BEFORE, ""),
        ("clients/python/README.md", "", 1, PYTHON_BEFORE, ""),
    ],
    "node": [
        ("docs/CLIENTS.md", "## Node", 0, NODE_BEFORE, "client.destroy();"),
        (
            "docs/CLIENTS.md",
            "## Without a library",
            0,
            NODE_BEFORE + NODE_IMPORTS,
            "client.destroy();",
        ),
        ("clients/node/README.md", "", 0, NODE_BEFORE, "client.destroy();"),
    ],
    "go": [
        ("docs/CLIENTS.md", "## Go", 0, GO_BEFORE, GO_AFTER + "}\n"),
        (
            "docs/CLIENTS.md",
            "## Without a library",
            0,
            GO_BEFORE,
            GO_AFTER + "\t_ = doTheWork(ctx, fence)\n}\n",
        ),
        ("clients/go/README.md", "", 0, GO_BEFORE.replace("doTheWork", "work"), GO_AFTER + "}\n"),
    ],
    "java": [
        ("docs/CLIENTS.md", "## Java", 0, JAVA_BEFORE, JAVA_AFTER),
        ("docs/CLIENTS.md", "## Java", 1, JAVA_BEFORE, JAVA_AFTER),
        ("clients/java/README.md", "", 0, JAVA_BEFORE, JAVA_AFTER),
    ],
}
FENCES = {"python": "python", "node": "js", "go": "go", "java": "java"}


def block(file: str, heading: str, number: int, language: str) -> str:
    text = (ROOT / file).read_text()
    if heading:
        text = re.split(r"^## ", text.split(heading + "\n", 1)[1], maxsplit=1, flags=re.M)[0]
    return re.findall(rf"^```{FENCES[language]}\n(.*?)^```$", text, re.S | re.M)[number]


def at_port(code: str, port: int) -> str:
    """The same, but not on the usual port."""
    for old, new in (
        ("asyncio.Redis()", f"asyncio.Redis(port={port})"),
        ("redis.Redis()", f"redis.Redis(port={port})"),
        ("redis.Redis(socket", f"redis.Redis(port={port}, socket"),
        ("createClient()", f"createClient({{ socket: {{ port: {port} }} }})"),
        ("localhost:6379", f"localhost:{port}"),
        ("redis://localhost", f"redis://localhost:{port}"),
        ('"localhost", 6379', f'"localhost", {port}'),
    ):
        code = code.replace(old, new)
    return code


def command(language: str, code: str, scratch: Path) -> tuple[list[str], Path]:
    """Writes the program where its packages are found; how to run it, and where."""
    if language == "python":
        if "\nasync with" in code:
            head, body = code.split("async with", 1)
            body = "    async with" + body.replace("\n", "\n    ")
            code = f"{head}import asyncio\n\n\nasync def main():\n{body}\n\nasyncio.run(main())\n"
            code = code.replace("def do_the_work", "async def do_the_work")
        (scratch / "snippet.py").write_text(code)
        return [PYTHON, str(scratch / "snippet.py")], CLIENTS / "python"
    if language == "node":
        (scratch / "snippet.mjs").write_text(code)
        return ["node", str(scratch / "snippet.mjs")], CLIENTS / "node"
    if language == "go":
        (scratch / "main.go").write_text(code)
        return ["go", "run", "./" + scratch.name], scratch.parent
    (scratch / "Snippet.java").write_text(code)
    path = "target/classes:target/dependency/*"
    return ["java", "-cp", path, str(scratch / "Snippet.java")], CLIENTS / "java"


HOMES = {"python": None, "node": CLIENTS / "node", "go": CLIENTS / "go/conformance", "java": None}


def run(language: str, server: Server, file: str, heading: str, number: int, *around: str) -> None:
    before, after = around
    code = at_port(before + block(file, heading, number, language) + after, server.port)
    scratch = Path(tempfile.mkdtemp(prefix="snippet", dir=HOMES[language]))
    try:
        words, directory = command(language, code, scratch)
        environment = {"PYTHONPATH": str(CLIENTS / "python")} if language == "python" else {}
        done = subprocess.run(
            ["env", *(f"{k}={v}" for k, v in environment.items()), *words],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=MINUTES * 60,
        )
        assert done.returncode == 0 and "fence 1" in done.stdout, done.stdout + done.stderr
        assert server.lock("nightly") is None, "the lock is still held"
    finally:
        shutil.rmtree(scratch)


STOPPED = """
import asyncio, sys
import redis.asyncio
from redislock.asyncio import Lock

async def main():
    r = redis.asyncio.Redis(port=int(sys.argv[1]))
    asyncio.create_task(Lock(r, "nightly", ttl=60, wait=30).acquire())
    await asyncio.to_thread(sys.stdin.readline)
    sys.exit()

asyncio.run(main())
"""


def stopped_while_the_grant_is_on_its_way(server: Server) -> None:
    """A program on asyncio that ends at that moment leaves nothing held."""
    proxy = Proxy(server.port)
    proxy.when("LOCK.ACQUIRE", "hold_reply")
    words = ["env", f"PYTHONPATH={CLIENTS / 'python'}", PYTHON, "-c", STOPPED, str(proxy.port)]
    program = subprocess.Popen(words, stdin=subprocess.PIPE, cwd=CLIENTS / "python")
    try:
        eventually(lambda: server.holders("nightly"), what="the grant")
        program.communicate(b"stop\n", timeout=MINUTES * 60)
        eventually(lambda: server.lock("nightly") is None, what="the release")
    finally:
        program.kill()
        proxy.close()


def main() -> int:
    failed = passed = 0
    server = Server()
    try:
        for language in sys.argv[1:] or SNIPPETS:
            for snippet in SNIPPETS.get(language, []):
                try:
                    run(language, server, *snippet)
                    passed += 1
                except Exception as error:  # noqa: BLE001 it is reported
                    failed += 1
                    print(f"FAILED {language}: {snippet[0]} {snippet[1]}\n{error}", flush=True)
        if "python" in (sys.argv[1:] or SNIPPETS):
            stopped_while_the_grant_is_on_its_way(server)
            passed += 1
    finally:
        server.close()
    print(f"snippets: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
