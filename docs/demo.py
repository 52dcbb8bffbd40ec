"""`make demo`: choose a backend, prove it, compare it, and run a real model on it.

Each step is one `pagedattn` command, run as you would type it; a summary closes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.text import Text

CONSOLE = Console()
PROMPTS = [
    "What is the capital of France?",
    "Name three colours.",
    "What is 2+2?",
    "Write one sentence about the sea.",
]


def step(title: str, command: str, *more: str) -> None:
    """Show and run one `pagedattn` command; its output goes straight to the terminal."""
    arguments = [*command.split(), *more]
    shown = " ".join(f'"{a}"' if " " in a else a for a in arguments)
    CONSOLE.print()
    CONSOLE.print(Rule(title, align="left", style="cyan"))
    CONSOLE.print(Text(f"$ pagedattn {shown}", style="dim"))
    CONSOLE.print()
    # The suite's steps are tiny: more threads would mostly wait for each other.
    threads = {"OMP_NUM_THREADS": "1"} if arguments[0] == "check" else {}
    done = subprocess.run(
        [sys.executable, "-m", "pagedattn", *arguments], env={**os.environ, **threads}
    )
    if done.returncode:
        CONSOLE.print(f"[bold red]This step failed[/] with exit code {done.returncode}.")
        sys.exit(done.returncode)


def checked(report: Any) -> list[str]:
    lines = []
    for run in report["runs"]:
        subject, counts = run["subject"], run["verdict"]["counts"]
        verdict = "conforms" if run["verdict"]["conforms"] else "does NOT conform"
        lines.append(
            f"{subject['name']} {verdict}: {counts['passed']} cases computed right, "
            f"{counts['declined']} declined with a reason, {counts['failed']} wrong."
        )
    return lines


def compared(report: Any) -> list[str]:
    lines = []
    for group in report["groups"]:
        times = {row["backend"]: median(row["run"]) for row in group["rows"] if row["run"]}
        text = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in times.items())
        lines.append(f"{group['workload']}: {text} (median of one attention call).")
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        check, bench = Path(name) / "check.json", Path(name) / "bench.json"
        step("1. Which backends are here?", "backends")
        step(
            "2. Prove two of them, and the allocator",
            f"check template reference paged --json {check}",
        )
        step(
            "3. Compare them; nothing wrong is ever timed",
            "bench decode --backend reference template --shape smollm2 --batch 1,8 --context 512 "
            f"--json {bench}",
        )
        step(
            "4. Generate text with a real model on the one you chose",
            "generate --model smollm2 --backend template --max-new-tokens 24",
            *PROMPTS,
        )
        lines = [
            *checked(json.loads(check.read_text())),
            *compared(json.loads(bench.read_text())),
            f"SmolLM2-135M answered {len(PROMPTS)} prompts in one batch: its own code, our cache, "
            "the template backend.",
            "",
            "Next: judge your own kernel (README), or `pagedattn explain` for your model.",
        ]
    CONSOLE.print()
    CONSOLE.print(Panel("\n".join(lines), title="What you saw", border_style="green"))


if __name__ == "__main__":
    main()
