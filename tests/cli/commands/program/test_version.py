import json
import platform
from importlib import metadata

from p2pcache import __version__
from p2pcache.core.format.manifest import FORMAT_SHA256
from p2pcache.core.protocol.handshake import VERSIONS
from p2pcache.io.disk.agent_db import SCHEMA_VERSION
from p2pcache.io.origins.repo import ROOT
from tests.cli.conftest import Run


def test_version_says_what_it_is(run: Run) -> None:
    assert run("--version").stdout == f"p2pcache {__version__}\n"
    first, *more = run("version").stdout.splitlines()
    assert first == f"p2pcache {__version__}"
    said = dict(line.split(":", 1) for line in more)
    assert list(said) == ["commit", "python", "uvloop", "blake3", "formats"]
    assert said["python"].strip() == platform.python_version()
    assert said["blake3"].strip() == metadata.version("blake3")
    assert said["formats"].strip() == (
        f"wire 1, cache {SCHEMA_VERSION}, origin p2pcache/v1, manifest p2pcache.manifest.v1.1"
    )


def test_version_for_programs(run: Run) -> None:
    said = json.loads(run("version", "--json").stdout)
    assert said["version"] == __version__
    assert said["uvloop"] == metadata.version("uvloop")
    assert said["formats"] == {
        "wire": list(VERSIONS), "cache": SCHEMA_VERSION, "origin": ROOT, "manifest": FORMAT_SHA256,
    }  # fmt: skip
    assert said.keys() == {"schema", "version", "commit", "python", "uvloop", "blake3", "formats"}
