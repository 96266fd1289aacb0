"""A real `vllm serve` in front of real agents, on this machine's CPU: what docs/engines/vllm.md promises.

A tiny Llama is pushed to a directory. Each scene starts vLLM as a user does and compares the tokens
that it answers with those of transformers. `make vllm-server` installs vLLM first (.ci/install_vllm.py).

    python -m loadtest.vllm_server --only streamed --json FILE

Exit code: 0 every scene went well, 1 one didn't, 2 vLLM isn't installed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtest.kit.daemons import StartError, exit_on_signals
from loadtest.vllm_server import living, scenes
from loadtest.vllm_server.ends import VENV
from loadtest.vllm_server.stage import Figures, Stage

SCENES: tuple[Callable[[Stage], Figures], ...] = (
    scenes.directory, scenes.streamed, scenes.hub_door, scenes.two_ranks, scenes.agent_killed, scenes.no_agent,
    scenes.wrong_setting, living.one_command, living.adapters, living.draft, living.reload_times,
    scenes.compiled,
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Play the scenes; 0: all went well."""
    names = [scene.__name__.replace("_", "-") for scene in SCENES]
    parser = argparse.ArgumentParser(prog="python -m loadtest.vllm_server", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args(argv)
    if not (VENV / "bin" / "vllm").exists():
        print("vllm-server: no vLLM here: `make vllm-server` installs it", file=sys.stderr)
        return 2
    exit_on_signals()
    root = Path(tempfile.mkdtemp(prefix="p2pv-"))
    try:
        stage = Stage(root)
        with stage.cluster:
            stage.push()
            figures = {name: _play(name, stage) for name in names if name in options.only}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any("failed" in each for each in figures.values()))


def _play(name: str, stage: Stage) -> Figures:
    scene = SCENES[[each.__name__ for each in SCENES].index(name.replace("-", "_"))]
    began = time.monotonic()
    try:
        figures = scene(stage)
    except (AssertionError, StartError, TimeoutError) as error:
        figures = {"failed": str(error)}
    verdict = "FAILED" if "failed" in figures else "ok"
    print(f"{name}: {verdict} after {time.monotonic() - began:.0f} s", flush=True)
    for key, value in figures.items():
        print(f"    {key}: {value}", flush=True)
    return figures


if __name__ == "__main__":
    sys.exit(main())
