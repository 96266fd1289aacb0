"""One model on its way from another site: one node of this site brings it in, and the others get it from that node."""

import asyncio
import contextlib
import logging
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

import msgspec

from p2pcache.agent.context import AgentContext
from p2pcache.agent.downloads.download import Download
from p2pcache.core.swarm.events import Source
from p2pcache.errors import IntegrityError, P2PCacheError, Unreachable, UsageError, without_frames
from p2pcache.ids import RunSet, format_node
from p2pcache.io import pools
from p2pcache.io.torrents.arrivals import Arrivals, Spans
from p2pcache.io.torrents.finding import Found
from p2pcache.io.torrents.receiving import FILES, command

log = logging.getLogger(__name__)

RENEW_S = 10.0  # of the turn: four times in the time for which it lasts
LOOK_S = 5.0  # between two questions whether the turn is free
WANT_S = 0.5  # between two looks at what is wanted: clients come and go, and other nodes bring runs
SILENT_S = 60.0  # without a byte of the other site; sooner than a pull without progress ends, whose error says less
MEET_S = 3.0  # to meet a neighbour, which takes milliseconds, or round trips of a long line
MEET_LOOK_S = 0.05
MAX_LINE = 1 << 24  # of what the process says: `receiving.PARTS` of the longest names are a quarter
ANSWER_S = 10.0  # of the tracker
END_S = 2.0  # to give the turn back; a tracker that hangs takes it back by itself


class Crossing:
    """Brings the runs that a download wants, while it is this node's turn."""

    def __init__(
        self, context: AgentContext, download: Download, found: Found, folder: Path
    ) -> None:
        """Nothing comes yet; `folder` has the torrent."""
        self._context = context
        self._download = download
        self._found = found
        self._folder = folder
        swarm = download.swarm
        self._arrivals = Arrivals(swarm.store, folder / FILES / f"@{swarm.digest}")
        self._heard = context.now()  # when a byte came last
        self._bytes = 0  # that this life of the process has received
        self._turn = False

    async def bring(self) -> None:
        """Bring all that is wanted, until cancelled; an error ends the download."""
        try:
            while True:
                await self._take_turn()
                if self._turn:
                    await self._live()
                else:
                    self._download.swarm.on_hope()  # the node whose turn it is gets bytes
                    await asyncio.sleep(LOOK_S)
        except P2PCacheError as error:
            self._download.fail(without_frames(error))
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            why = str(error) or "the receiving process ended"
            self._download.fail(
                Unreachable(f"site {self._found.site}: {why}; pull again: it resumes")
            )
        finally:
            if self._turn:
                with contextlib.suppress(P2PCacheError, asyncio.CancelledError):
                    await self._ask(ends=True)

    async def _take_turn(self) -> None:
        """Ask the tracker; without an answer things stay as they are."""
        if self._context.link is None:
            self._turn = True
            return
        try:
            self._turn = await self._ask()
        except UsageError:
            self._turn = (
                True  # a tracker of the last release: nodes bring the model in side by side
            )
        except P2PCacheError as error:
            log.info("whose turn it is isn't known: %s", error)

    async def _ask(self, *, ends: bool = False) -> bool:
        link = self._context.link
        if link is None:
            return True
        wish = {
            "digest": self._download.swarm.digest, "node": format_node(self._context.node), "ends": ends,
        }  # fmt: skip
        text = msgspec.json.encode(wish).decode()
        answer = await link.ask("crossing", text, timeout_s=END_S if ends else ANSWER_S)
        said: dict[str, Any] = msgspec.json.decode(answer.data)
        return bool(said["yours"])

    async def _live(self) -> None:
        """One life of the process: until it is another node's turn.

        Raises:
            Unreachable: the other site is silent.
            IntegrityError: it sent other bytes.
            EOFError: the process ended.
        """
        rate = self._context.settings.torrent_download_bytes_per_s
        await self._meet_neighbours()
        process = await asyncio.create_subprocess_exec(
            *command(self._folder, self._found.peer, rate),
            stdin=PIPE, stdout=PIPE, limit=MAX_LINE,
        )  # fmt: skip
        assert process.stdout is not None
        self._heard = asked = self._context.now()
        self._bytes = 0
        wanted: RunSet | None = None
        due = 0.0
        try:
            while self._turn:
                now = self._context.now()
                if now - asked >= RENEW_S:
                    asked = now
                    await self._take_turn()
                if now >= due:
                    due = now + WANT_S
                    wanted = await self._tell_wanted(process, wanted)
                line = None
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        line = await process.stdout.readline()
                if line is not None:
                    await self._hear(line)
                self._check_silence(wanted or 0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _meet_neighbours(self) -> None:
        """Wait a moment to hear what the others have: a node that comes back must not ask for that across the line."""
        known = self._download.swarm.neighbours
        deadline = self._context.now() + MEET_S
        while self._context.link is not None and self._context.now() < deadline:
            alone = known.members and not known.members.keys() - {self._context.node}
            if known.joined or alone:
                return
            await asyncio.sleep(MEET_LOOK_S)

    async def _tell_wanted(self, process: Process, before: RunSet | None) -> RunSet:
        """Tell the process what to bring: what is wanted, and no other node of this cluster has."""
        swarm = self._download.swarm
        runs = swarm.needed & ~swarm.neighbours.runs_elsewhere()
        if before is not None and runs == before & swarm.needed:
            return before
        spans: dict[str, Spans] = await pools.WORK.run(self._arrivals.lacking, runs)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode({"want": spans}) + b"\n")
        return runs

    async def _hear(self, line: bytes) -> None:
        if not line:
            raise EOFError
        said: dict[str, Any] = msgspec.json.decode(line)
        if why := said.get("failed"):
            raise OSError(why)
        if (count := said.get("bytes", 0)) > self._bytes:
            self._bytes = count
            self._heard = self._context.now()
            self._download.swarm.on_hope()
        if parts := said.get("came"):
            store = self._download.swarm.store
            before = store.have_runs()
            try:
                await pools.WORK.run(self._arrivals.prove_parts, parts)
            except IntegrityError as error:
                raise IntegrityError(
                    f"site {self._found.site} seeds other bytes than the model's ({error}); take it out of "
                    "torrent_sites"
                ) from None
            finally:
                self._download.swarm.on_proved(store.have_runs() & ~before, Source.PEER)

    def _check_silence(self, wanted: RunSet) -> None:
        swarm = self._download.swarm
        silent = self._context.now() - self._heard
        if not wanted & swarm.needed:
            self._heard = self._context.now()  # nothing is asked for
        elif silent > SILENT_S:
            raise Unreachable(
                f"site {self._found.site} has sent nothing for {silent:.0f} s; pull again: it resumes"
            )
