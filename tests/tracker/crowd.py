"""A cluster of members that say what real agents would say: real connections and messages, no bytes of models."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from p2pcache.core import bitset
from p2pcache.core.protocol import messages as m
from tests.tracker.fake_agent import FakeAgent

RUNS = 64  # of each model
GB = 10**9


@dataclass
class Held:
    """What a node has of a model, and whether it fetches the rest."""

    label: str
    total_bytes: int
    pulled: bool = False
    peers: int = 0
    origin: int = 0


class Resident(FakeAgent):
    """A member with a name and a place that holds some models and fetches others."""

    def __init__(self, node: int, name: str, rack: str = "") -> None:
        super().__init__(node)
        self.name, self.rack = name, rack
        self.held: dict[str, Held] = {}
        self.ended: list[m.EndedPull] = []  # to be told with the next heartbeat

    def hold(self, digest: str, held: Held, share: float = 1.0) -> None:
        """Have a part of a model; told with the announcement or the next heartbeat."""
        self.runs[digest], self.held[digest] = RUNS, held
        self.have[digest] = bitset.full(round(RUNS * share))

    def state(self, digest: str) -> m.SwarmState:
        held, have = self.held[digest], self.have[digest]
        complete = have == bitset.full(RUNS)
        return m.SwarmState(
            digest, RUNS, b"" if complete else bitset.to_bytes(have, RUNS), complete,
            label=held.label, total_bytes=held.total_bytes, taken=(held.peers, held.origin, 0),
            pulled=held.pulled and not complete,
        )  # fmt: skip

    async def announce(self) -> None:
        states = tuple(self.state(digest) for digest in self.runs)
        await self.send(m.Announce(self.address, "0.1", self.rack, "", states, self.name))

    async def beat(self) -> None:
        active = tuple(self.state(digest) for digest, held in self.held.items() if held.pulled)
        for held in self.held.values():
            held.pulled = held.pulled and not self._is_complete(held)
        ended, self.ended = tuple(self.ended), []
        await self.send(m.Heartbeat(3, active, 900 * GB, 100 * GB * len(self.runs), ended))

    def advance(self, digest: str, runs: int = 1, from_peers: float = 0.9) -> None:
        """Get some more runs of a model that it fetches."""
        held, have = self.held[digest], self.have[digest]
        before = have.bit_count()
        after = min(RUNS, before + runs)
        came = held.total_bytes * (after - before) // RUNS
        self.have[digest] = bitset.full(after)
        held.peers += round(came * from_peers)
        held.origin += came - round(came * from_peers)
        if after == RUNS > before:
            taken = (held.peers, held.origin, 0)
            self.ended.append(m.EndedPull(digest, held.label, 0, 60.0, held.total_bytes, taken))

    def give_up(self, digest: str, code: int) -> None:
        """The pull of a model fails."""
        held = self.held[digest]
        taken = (held.peers, held.origin, 0)
        self.ended.append(m.EndedPull(digest, held.label, code, 30.0, held.total_bytes, taken))

    def _is_complete(self, held: Held) -> bool:
        digest = next(one for one, each in self.held.items() if each is held)
        return self.have[digest] == bitset.full(RUNS)


def digest_of(number: int) -> str:
    """Of a model by its number."""
    return f"{number:08x}" * 8


def residents(nodes: int, models: int, seed: int = 1) -> list[Resident]:
    """Nodes that hold some of so many models, a tenth of them fetching one more."""
    dice = random.Random(seed)
    found = []
    for number in range(1, nodes + 1):
        one = Resident(number, f"gpu-node-{number}.cluster.example", f"rack-{number % 8}")
        for model in dice.sample(range(1, models + 1), max(1, models // 8)):
            held = Held(
                f"team-{model % 5}/model-{model}:v1",
                (model % 40 + 1) * GB,
                peers=GB,
                origin=GB // 9,
            )
            one.hold(digest_of(model), held)
        if number % 10 == 1:
            model = number % 3 + 1
            held = Held(f"team-{model % 5}/model-{model}:v1", (model % 40 + 1) * GB, pulled=True)
            one.hold(digest_of(model), held, 0.25)
        found.append(one)
    return found


@contextlib.asynccontextmanager
async def members(address: str, crowd: list[Resident], beat_s: float = 2.0) -> AsyncIterator[None]:
    """All of them are members for the length of the block, and get on with what they fetch."""

    async def live(one: Resident) -> None:
        await asyncio.sleep(random.Random(one.node).uniform(0, beat_s))
        while True:
            for digest, held in one.held.items():
                if held.pulled:
                    one.advance(digest)
            await one.beat()
            await asyncio.sleep(beat_s)

    async with contextlib.AsyncExitStack() as stack:
        for one in crowd:
            await stack.enter_async_context(one.member(address))
        async with asyncio.TaskGroup() as tasks:
            living = [tasks.create_task(live(one)) for one in crowd]
            try:
                yield
            finally:
                for task in living:
                    task.cancel()
