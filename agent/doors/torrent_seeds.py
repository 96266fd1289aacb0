"""Which models this agent seeds as torrents, and the process that does it.

All complete models of `torrent_namespaces` are seeded. A model's torrent is made once, by a process that reads the
whole model, and kept in CACHE/torrents. The seeding process is started again when it dies.

A torrent's name here is its model's digest; with `.v1` behind it for one of version 1 alone.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.core.protocol.address import join
from p2pcache.core.protocol.tokens import Rights, Scope, check_namespaces
from p2pcache.errors import Busy, NotFound, P2PCacheError, UsageError
from p2pcache.io import pools
from p2pcache.io.blobs.blob_file import OpenFile
from p2pcache.io.http.body_writer import FileBytes
from p2pcache.io.http.server import parse_listen
from p2pcache.io.torrents.making import maker_command

log = logging.getLogger(__name__)

LOOK_S = 2.0  # between two looks for models that came or went
START_S = 20.0  # for a process to listen; Python alone takes one on a busy machine
AGAIN_S = 5.0  # before a process that died is started again; doubled each time, up to
LONGEST_S = 300.0
V1 = ".v1"


class TorrentSeeds:
    """The seeding process, from the agent's side. It touches its state on the loop's thread alone.

    Invariant: `info_hashes` has exactly the torrents that the process said it seeds.
    """

    def __init__(self, context: AgentContext) -> None:
        """Nothing runs yet.

        Raises:
            UsageError: settings of torrents contradict each other, or libtorrent isn't installed.
        """
        settings = context.settings
        self._context = context
        self._listen = settings.torrent_listen
        self._v1 = settings.torrent_v1
        self.rights = Rights(Scope.PULL, _namespaces(settings.torrent_namespaces))
        if (self._listen or settings.torrent_http_listen) and not self.rights.namespaces:
            raise UsageError(
                "torrents are for everybody who reaches the port: name the namespaces that everybody may read in "
                "torrent_namespaces"
            )
        if self._listen and importlib.util.find_spec("libtorrent") is None:
            raise UsageError("torrent_listen needs libtorrent: pip install 'p2pcache[torrent]'")
        if self._listen:
            self._listen = join(*parse_listen(self._listen))
        self._folder = context.store.root / "torrents"
        self._process: Process | None = None
        self._ordered: set[str] = set()  # names that the process was told to seed
        self._making = ""  # name
        self._failed: dict[str, str] = {}  # why one isn't seeded, by name
        self.info_hashes: dict[str, str] = {}  # hex of 20 bytes -> name
        self.port = 0
        self.peers = 0  # connected now
        self.sent_bytes = 0  # by this process, since it started

    def start(self) -> None:
        """Seed, if the settings say so, until the agent ends."""
        if self._listen:
            self._context.tasks.spawn_contained(self._run(), name="torrent-seeds")

    def torrent_of(self, digest: str, *, v1: bool) -> FileBytes:
        """The torrent of a model, without sources; `v1`: of version 1 alone. Strangers ask, so it takes no memory.

        Raises:
            Busy: it is being made.
            NotFound: nor will it be.
        """
        name = digest + V1 if v1 else digest
        try:
            file = OpenFile(os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC))
            return FileBytes(file.fd, 0, os.fstat(file.fd).st_size, file)
        except OSError:
            if self._listen and name not in self._failed and (not v1 or self._v1):
                raise Busy("the torrent is being made", retry_after_s=LOOK_S) from None
            setting = "torrent_v1" if v1 else "torrent_listen"
            why = self._failed.get(name, f"this agent has no {setting}")
            raise NotFound(f"no torrent of {digest[:12]} here: {why}") from None

    async def _run(self) -> None:
        pause = AGAIN_S
        while True:
            try:
                await self._live()
                pause = AGAIN_S
            except (OSError, EOFError, msgspec.MsgspecError, P2PCacheError) as error:
                why = str(error) or "the seeding process doesn't answer"
                log.warning("torrents: %s; seeding again in %.0f s", why, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_S)

    async def _live(self) -> None:
        """One life of the process.

        Raises:
            EOFError: it ended.
            TimeoutError: it doesn't begin.
        """
        rate = str(self._context.settings.torrent_upload_bytes_per_s)
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "p2pcache.io.torrents.seeding", self._listen, rate,
            stdin=PIPE, stdout=PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                self._hear(await process.stdout.readline())
            log.info("torrents: seeding at port %d", self.port)
            due = 0.0
            while True:
                if (now := self._context.now()) >= due:
                    due = now + LOOK_S
                    await self._look(process)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        self._hear(await process.stdout.readline())
        finally:
            self._process, self.port, self.peers = None, 0, 0
            self._ordered.clear()
            self.info_hashes.clear()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _hear(self, line: bytes) -> None:
        if not line:
            raise EOFError("the seeding process ended")
        said: dict[str, Any] = msgspec.json.decode(line)
        if "port" in said:
            self.port = said["port"]
        if name := said.get("seeds"):
            self.info_hashes |= dict.fromkeys(said["hashes"], name)
            log.info("torrents: seeding %s", name)
        if name := said.get("failed"):
            self._fail(name, said["why"])
        self.peers = said.get("peers", self.peers)
        self.sent_bytes = said.get("uploaded_bytes", self.sent_bytes)

    def _fail(self, name: str, why: str) -> None:
        self._failed[name] = why
        self._forget(name)
        log.warning("torrents: %s isn't seeded: %s; `p2pcache verify` proves it", name, why)

    def _forget(self, name: str) -> None:
        self._ordered.discard(name)
        self.info_hashes = {key: of for key, of in self.info_hashes.items() if of != name}

    async def _look(self, process: Process) -> None:
        """Tell the process what came and what went; make the next torrent that is missing."""
        wanted = await pools.STEPS.run(self._wanted)
        made = await pools.STEPS.run(self._made, wanted)
        for name in self._ordered - wanted.keys():
            self._forget(name)
            self._tell(process, {"drop": name})
        for name in sorted(made - self._ordered - self._failed.keys()):
            self._ordered.add(name)
            torrent, folder = str(self._folder / name), str(wanted[name])
            self._tell(process, {"seed": name, "torrent": torrent, "folder": folder})
        missing = wanted.keys() - made - self._failed.keys()
        if missing and not self._making:
            self._making = min(missing)
            making = self._make(self._making, wanted[self._making])
            self._context.tasks.spawn_contained(making, name="torrent-make")

    @staticmethod
    def _tell(process: Process, order: dict[str, str]) -> None:
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")

    def _wanted(self) -> dict[str, Path]:
        """For each torrent to seed, by name, the folder that has the model's folder `@HEX`."""
        store = self._context.store
        found: dict[str, Path] = {}
        for ref in store.refs():
            digest = store.named(ref)
            if not digest or digest in found or not self.rights.allow(Scope.PULL, ref.namespace):
                continue
            model = store.get(digest)
            if model is not None and model.complete and store.published_path(ref, digest):
                names = [digest, digest + V1] if self._v1 else [digest]
                found |= dict.fromkeys(names, store.root / "models" / ref.namespace / ref.name)
        return found

    def _made(self, wanted: dict[str, Path]) -> set[str]:
        """The torrents that are made. Those of models that nobody knows any more are removed, and parts of torrents."""
        self._folder.mkdir(exist_ok=True)
        there = {path.name for path in self._folder.iterdir()}
        if there - wanted.keys():
            known = {info.digest for info in self._context.store.models()}
            for name in there:
                arriving = bool(self._making) and name.startswith(f".{self._making}.")
                if name.removesuffix(V1) not in known and not arriving:
                    (self._folder / name).unlink(missing_ok=True)
        return there & wanted.keys()

    async def _make(self, name: str, folder: Path) -> None:
        manifest = self._context.store.root / "manifests" / name.removesuffix(V1)
        command = maker_command(folder, manifest, self._folder / name, v1=name.endswith(V1))
        maker = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
        try:
            _, said = await maker.communicate()
            if maker.returncode:
                why = said.decode(errors="replace").strip().splitlines()[-1:]
                self._fail(name, f"its torrent can't be made: {why or maker.returncode}")
        finally:
            self._making = ""
            if maker.returncode is None:
                maker.kill()
                await maker.wait()


def _namespaces(text: str) -> tuple[str, ...]:
    found = tuple(text.replace(",", " ").split())
    if found:
        check_namespaces(found)
    return found
