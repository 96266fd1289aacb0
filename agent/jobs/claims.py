"""Pins and holds: reasons why models stay here, with names and ends."""

import logging
import re
import time
from collections.abc import Callable

from p2pcache.agent.context import AgentContext
from p2pcache.agent.jobs.events import Events
from p2pcache.agent.jobs.housekeeping import local_model
from p2pcache.core.pool.settings import HOLD_S, MAX_HOLD_S
from p2pcache.errors import NotFound, P2PCacheError, UsageError
from p2pcache.ids import Ref, as_written
from p2pcache.io import pools
from p2pcache.io.clock import start_of
from p2pcache.io.disk.claims import Claim

log = logging.getLogger(__name__)

LOOK_S = 60.0  # between two looks for claims that have ended
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_MAX_PIN_S = 3650 * 86400.0  # ten years: a time is a number that a clock can show

Sees = Callable[[str], bool]


def check_name(name: str) -> str:
    """The name of a pin or a hold, if it is one.

    Raises:
        UsageError: it isn't.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name[:100]!r} is no name of a pin or hold: 80 letters, digits, dots, dashes or underscores at most"
        )
    return name


class Claims:
    """All pins and holds of this cache."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context

    def start(self) -> None:
        """Begin to drop what has ended."""
        self._context.tasks.every(LOOK_S, self._drop_ended, name="claims")

    async def pin(self, ref: Ref, name: str, for_s: float) -> Claim:
        """Pin a model; again renews it. By a tag: whatever it names here. `for_s`: 0: until `unpin`.

        Raises:
            NotFound: the model isn't known here.
            P2PCacheError: as `ClaimRecords.put_claim`.
        """
        await local_model(self._context.store, ref)
        now = time.time()
        if for_s > _MAX_PIN_S:
            raise UsageError("a pin for more than ten years is one without --for")
        ends = now + for_s if for_s else 0.0
        claim = Claim("pin", ref.namespace, check_name(name), ref.full, ref.digest or "", now, ends)
        await pools.STEPS.run(self._context.store.claims.put_claim, claim)
        return claim

    async def unpin(self, ref: Ref, name: str) -> list[Claim]:
        """End the pins of a model. `name`: ends only this one; "": all.

        Raises:
            NotFound: there is none.
        """
        rows = await pools.STEPS.run(self._context.store.claims.all_claims)
        ended = [c for c in rows if c.kind == "pin" and c.ref == ref.full and name in ("", c.name)]
        if not ended:
            raise NotFound(
                f"{ref} has no pin{f' {name}' if name else ''} here; `p2pcache pins` lists all"
            )
        await pools.STEPS.run(self._context.store.claims.end_claims, ended)
        return ended

    async def end_holds(self, name: str, sees: Sees) -> list[Claim]:
        """End the holds of this name, of models in namespaces that the caller sees.

        Raises:
            NotFound: there is none.
        """
        rows = await pools.STEPS.run(self._context.store.claims.all_claims)
        ended = [c for c in rows if c.kind == "hold" and c.name == name and sees(c.namespace)]
        if not ended:
            raise NotFound(f"nothing is held here by {check_name(name)}; `p2pcache pins` lists all")
        await pools.STEPS.run(self._context.store.claims.end_claims, ended)
        return ended

    async def rows(self, sees: Sees) -> list[dict[str, object]]:
        """The pins and holds that last, of models in namespaces that the caller sees."""
        rows = await pools.STEPS.run(self._context.store.claims.all_claims)
        now = time.time()
        return [self.shown(claim) for claim in rows if claim.lasts(now) and sees(claim.namespace)]

    def shown(self, claim: Claim) -> dict[str, object]:
        """The row of a claim, with the name of its model as it was pushed, as far as this cache knows."""
        row, ref = claim.as_json(), Ref.parse(claim.ref)
        written = self._context.store.written(ref)
        short = written if written.lower() == ref.short.lower() else written.partition("/")[2]
        if short.lower() == ref.short.lower():
            row["ref"] = as_written(short + ref.full.removeprefix(ref.short))
        return row

    async def held(
        self, events: Events, ref: Ref, name: str, for_s: float, pid: int, started: str
    ) -> Events:
        """The events of a pull, whose model is held from the moment when it is known.

        Args:
            events: of the pull.
            ref: of the model.
            name: of the hold.
            for_s: how long it lasts; 0: a day, or as long as its process.
            pid: of the process with which it ends; 0: none.
            started: when that process started, as its own side sees it (`start_of`).

        Raises:
            UsageError: a name or time that is none, or no such process here.
            P2PCacheError: as of the pull, or of `ClaimRecords.put_claim`.
        """
        check_name(name)
        if for_s > MAX_HOLD_S:
            raise UsageError(
                f"a hold lasts {MAX_HOLD_S / 86400:.0f} days at most; renew it by pulling again"
            )
        if pid and (not started or start_of(pid) != started):
            raise UsageError(
                f"the agent doesn't see process {pid} (a container numbers its own); hold with a time instead (--for)"
            )
        for_s = for_s or (MAX_HOLD_S if pid else HOLD_S)
        async for event in events:
            if event["event"] == "resolved":
                now = time.time()
                claim = Claim(
                    "hold", ref.namespace, name, ref.full, str(event["digest"]), now, now + for_s, pid, started
                )  # fmt: skip
                await pools.STEPS.run(self._context.store.claims.put_claim, claim)
            yield event

    async def _drop_ended(self) -> None:
        claims = self._context.store.claims
        try:
            now = time.time()
            ended = [c for c in await pools.STEPS.run(claims.all_claims) if not c.lasts(now)]
            if ended:
                await pools.STEPS.run(claims.end_claims, ended)
        except P2PCacheError as error:
            log.warning("dropping pins and holds that have ended: %s", error)
