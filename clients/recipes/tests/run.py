#!/usr/bin/env python3
"""Tests the recipes of docs/RECIPES.md: run.py [word]: only those whose name contains the word"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from programs import PYTHON, ROOT, Skip, Stage, Unsafe
from recipes import RECIPES, Bug, Recipe

DIRECTORY = ROOT / "clients/recipes"
LANES = 4  # tests at once; most of a test is waiting
EXAMPLES = [ROOT / "client/examples/leader.rs"]


def prepare() -> None:
    """The packages of Python, `redlock`, and the example in Rust."""
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parents[1])], check=True)
    wanted = ["install", "-q", "-r", "requirements.txt"]
    subprocess.run([str(PYTHON), "-m", "pip", *wanted], check=True, cwd=DIRECTORY)
    build = "cargo build -q -p redlock-cli --bin redlock -p redislock-client --example leader"
    subprocess.run(build.split(), check=True, cwd=ROOT)


def page_problems() -> list[str]:
    """The page shows each program as it is, and no other code."""
    page = (ROOT / "docs/RECIPES.md").read_text()
    shown = {
        (ROOT / "docs" / path).resolve(): code
        for path, code in re.findall(r"\]\((\S+)\):\n\n```\w+\n(.*?)```\n", page, re.S)
    }
    files = [file for file in DIRECTORY.iterdir() if file.suffix in (".py", ".sh", ".sql")]
    problems = []
    for file in sorted([*files, *EXAMPLES]):
        code = shown.pop(file, None)
        if code != file.read_text():
            what = "does not show" if code is None else "shows another text than"
            problems.append(f"docs/RECIPES.md {what} {file.relative_to(ROOT)}")
    problems += [f"docs/RECIPES.md shows {file}, which is no recipe" for file in shown]
    if page.count("\n```") != 2 * (len(files) + len(EXAMPLES)):
        problems.append("docs/RECIPES.md has code that is not one of the recipes")
    return problems


def run(recipe: Recipe, directory: Path) -> None:
    stage = Stage(directory)
    try:
        recipe.test(stage)
    finally:
        stage.close()


def run_with(bug: Bug, recipe: Recipe) -> None:
    """The test must see what the removed protection prevents, and must not fail otherwise."""
    with tempfile.TemporaryDirectory(prefix="redislock-recipes-") as scratch:
        copy = Path(scratch, "recipes")
        shutil.copytree(DIRECTORY, copy)
        text = (copy / bug.file).read_text()
        for old, new in bug.replaced.items():
            assert text.count(old) == 1, f"{old!r} is not once in {bug.file}"
            text = text.replace(old, new)
        (copy / bug.file).write_text(text)
        try:
            run(recipe, copy)
        except Unsafe:
            return
        raise AssertionError(f"the test does not catch: {bug.name}")


def verdict(recipe: Recipe, bug: Bug | None) -> str:
    name = recipe.name if bug is None else f"{recipe.name}, planted: {bug.name}"
    try:
        if bug is None:
            run(recipe, DIRECTORY)
        else:
            run_with(bug, recipe)
    except Skip as skip:
        if os.environ.get("CI") == "true":
            print(f"FAILED recipe: {name}: {skip}", flush=True)
            return "failed"
        if bug is not None:
            return "not planted"
        print(f"recipes: skipping {name}: {skip}", flush=True)
        return "skipped"
    except Exception:  # noqa: BLE001 a failure of any kind is reported
        print(f"FAILED recipe: {name}\n{traceback.format_exc(limit=-3)}", flush=True)
        return "failed"
    return "passed" if bug is None else "caught"


def main() -> int:
    chosen = [one for one in RECIPES if len(sys.argv) < 2 or sys.argv[1] in one.name]
    problems = page_problems()
    for problem in problems:
        print(f"FAILED recipe: {problem}", flush=True)
    prepare()
    jobs = [(recipe, bug) for recipe in chosen for bug in [None, *recipe.bugs]]
    with ThreadPoolExecutor(LANES) as lanes:
        verdicts = list(lanes.map(lambda job: verdict(*job), jobs))
    failed = verdicts.count("failed") + len(problems)
    print(
        f"recipes: {verdicts.count('passed')} passed, {failed} failed, "
        f"{verdicts.count('skipped')} skipped; {verdicts.count('caught')} planted bugs caught"
    )
    return 1 if failed or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
