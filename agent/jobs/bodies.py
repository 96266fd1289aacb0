"""The JSON bodies that the API takes. A field that isn't known here is an error."""

from typing import Annotated

import msgspec

MAX_DEMANDED = 65_536  # pairs in one call: more than any loader waits for, little memory
Pairs = Annotated[list[tuple[int, int]], msgspec.Meta(max_length=MAX_DEMANDED)]


class PullRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/pull."""

    ref: str
    force_generation: bool = False
    include: list[str] = []  # patterns; none of both: the whole model
    exclude: list[str] = []
    background: bool = False  # nobody waits for it: others go first


class WarmRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/warm."""

    ref: str
    replicas: Annotated[int, msgspec.Meta(ge=0)] = 0  # nodes of the cluster; 0: this one


class LoadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/load."""

    ref: str
    needed: bool = False  # fetch only what /v1/demand names, not the whole model


class DemandRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/demand."""

    load: str
    runs: Pairs  # [start, end)
    urgent: bool = True  # before everything else


class PushRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/push."""

    ref: str
    digest: str
    force: bool = False
    repair: bool = False  # upload also what the origin has


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/prune."""

    dry_run: bool = False
    all: bool = False


class VerifyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/verify."""

    ref: str


class PressureRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/pressure."""

    level: float  # 0: the engine does well, 1: as bad as it should ever be


class LingerRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /v1/linger."""

    digest: str
    seconds: float
