"""What an operator can set for the tracker. Units are in the names; "" means none."""

from typing import ClassVar, Literal

import msgspec

from p2pcache.core.pool.settings import GRACE_S
from p2pcache.core.settings import LeaseSettings, MemberSettings


class TrackerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of `p2pcache tracker`; the TOML section is `[tracker]`."""

    retired: ClassVar[frozenset[str]] = frozenset({"trees_from"})  # keys of the release before

    listen: str = "127.0.0.1:7400"
    """HOST:PORT for agents, health and metrics. Beyond loopback it needs a cluster key, a certificate or `insecure`."""
    origin: str = ""
    """URL of the storage (s3://bucket/prefix or file:///dir); told to agents that have none of their own."""
    lease: Literal["off", "origin", "kubernetes"] = "off"
    """Where several trackers agree on which of them is active: an object in the origin, or a Lease of Kubernetes in
    the pod's namespace; off: this is the only tracker."""
    lease_name: str = "p2pcache-tracker"
    """What those trackers call it; clusters that share an origin need different names."""
    advertise: str = ""
    """HOST:PORT at which agents reach this tracker, with `lease`; default: where it listens, or this host."""
    state_dir: str = ""
    """Directory for notes that make a restart in a storm smoother; without one nothing is lost either."""
    cluster_key_file: str = ""
    """File with the key that makes a process a member of the cluster."""
    tls_cert: str = ""
    """PEM file of this member's certificate; with `tls_key` and `tls_ca` every member connection is mTLS."""
    tls_key: str = ""
    """PEM file of the certificate's key; mode 0600."""
    tls_ca: str = ""
    """PEM file of the cluster's CA; several certificates in it while one CA replaces another."""
    insecure: bool = False
    """Serve other hosts without a cluster key. Any host that reaches the port can then join the cluster."""
    leases_in_flight: int = LeaseSettings().in_flight
    """Chunks of one model that are read from the origin at once, over all nodes, at first and at least; where that
    doesn't keep the way to it full (its first byte is far away, one connection carries little), more do, up to 128."""
    keep_grace_s: float = GRACE_S
    """Seconds that a node may be silent before its copies of what is kept are made again on others; 0: at once."""
    neighbours: int = MemberSettings().neighbours
    """Peers that each node of a large swarm is told to dial."""
    namespace_quotas: str = ""
    """Bytes that all copies of a namespace's models may take in the pool, as NAMESPACE=SIZE, separated by commas."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """text or json."""
