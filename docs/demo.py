"""`make demo`: choose a backend, prove it, compare it, and run a real model on it.

Each step is one command of the README, run as you would type it; a summary closes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule

CONSOLE = Console()
PROMPTS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about memory.",
    "What is 2+2?",
]


def step(title: str, *arguments: str) -> None:
    """Show and run one `pagedattn` command; its output goes straight to the terminal."""
    CONSOLE.print()
    CONSOLE.print(Rule(f"[bold]{title}[/]", align="left", style="cyan"))
    shown = " ".join(f"'{a}'" if " " in a else a for a in arguments)
    CONSOLE.print(f"[dim]$ pagedattn {shown}[/]\n", soft_wrap=True)
    done = subprocess.run([sys.executable, "-m", "pagedattn", *arguments])
    if done.returncode:
        CONSOLE.print(f"[bold red]this step failed[/] with exit code {done.returncode}")
        sys.exit(done.returncode)


def load(path: Path) -> Any:
    return json.loads(path.read_text())


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench, checks, text = folder / "bench.json", folder / "check.json", folder / "text.json"
        step("1. Which backends are here?", "backends")
        step("2. Prove them", "check", "template", "reference", "paged", "--json", str(checks))
        step(
            "3. Compare them",
            "bench",
            "decode",
            "--backend",
            "reference",
            "template",
            "--shape",
            "smollm2",
            "--batch",
            "1,8",
            "--context",
            "512",
            "--json",
            str(bench),
        )
        step(
            "4. Run a real model on one of them",
            "generate",
            *PROMPTS,
            "--model",
            "smollm2",
            "--backend",
            "template",
            "--max-new-tokens",
            "24",
            "--json-file",
            str(text),
        )
        CONSOLE.print()
        CONSOLE.print(Panel(summary(load(checks), load(bench), load(text)), title="What you saw"))


def summary(checks: Any, bench: Any, text: Any) -> str:
    raise NotImplementedError


if __name__ == "__main__":
    main()
