"""What an operator can set for an agent. Units are in the names; 0 or "" means none or automatic."""

from typing import Literal

import msgspec

from p2pcache.core.settings import UploadSettings
from p2pcache.io.config import CACHE_DIR

DEFAULT_SOCKET = "/run/p2pcache/agent.sock"
DEFAULT_CLIENT_SOCKET = "/run/p2pcache/client/agent.sock"


class AgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of `p2pcache agent`; the TOML section is `[agent]`."""

    listen: str = "127.0.0.1:7401"
    """HOST:PORT for peers. Beyond loopback it needs a cluster key, a certificate or `insecure`."""
    advertise: str = ""
    """HOST:PORT that other nodes dial; default: the listen address, or this host's address if that is 0.0.0.0."""
    tracker: str = ""
    """URL of the tracker, http://HOST:PORT, or https:// in mTLS mode. Of several, one of which is active, all URLs,
    separated by commas, or a name with all their addresses. Without one the agent works alone."""
    origin: str = ""
    """URL of the storage (s3://bucket/prefix or file:///dir); default: the one that the tracker announces."""
    cache_dir: str = CACHE_DIR
    """Where blobs and models lie; one agent per directory."""
    socket: str = DEFAULT_SOCKET
    """Unix socket for operators (every call)."""
    client_socket: str = ""
    """Unix socket for containers (pull and read); default: beside the default `socket`, else none."""
    cluster_key_file: str = ""
    """File with the key that makes a process a member of the cluster."""
    tls_cert: str = ""
    """PEM file of this member's certificate; with `tls_key` and `tls_ca` every member connection is mTLS."""
    tls_key: str = ""
    """PEM file of the certificate's key; mode 0600."""
    tls_ca: str = ""
    """PEM file of the cluster's CA; several certificates in it while one CA replaces another."""
    insecure: bool = False
    """Serve other hosts without a cluster key. Any host that reaches the port can then read every model."""
    client_namespaces: str = "*"
    """Namespaces that the client socket may pull from without a token, separated by commas; *: all."""
    compile_cache_namespaces: str = ""
    """Namespaces whose compile caches, which are programs, this agent takes, separated by commas; default: none."""
    require_signature: str = ""
    """NAMESPACE=FILE, separated by commas: models there need a signature by this public key or CA; *: all others.
    In place of the file, who signs without a key: identity:NAME issuer:URL."""
    sigstore_trust_config: str = ""
    """JSON file (ClientTrustConfig) of the Sigstore that certifies these identities; default: asks the public one."""
    api_listen: str = ""
    """HOST:PORT for the API over TCP, for clients with a token; default: only on the sockets. Plain HTTP."""
    hf_listen: str = ""
    """HOST:PORT for clients of the Hugging Face hub (HF_ENDPOINT), read-only; default: no such door. Plain HTTP."""
    s3_listen: str = ""
    """HOST:PORT for S3 clients (AWS_ENDPOINT_URL), read-only; default: no such door. Plain HTTP."""
    s3_domain: str = "localhost"
    """Name of the S3 door before which a bucket may stand as part of the host: team.localhost."""
    oci_listen: str = ""
    """HOST:PORT for clients of an OCI registry, read-only; default: no such door. Plain HTTP."""
    torrent_listen: str = ""
    """HOST:PORT where BitTorrent clients get the models of `torrent_namespaces`, over TCP and uTP; default: nowhere."""
    torrent_http_listen: str = ""
    """HOST:PORT of a web seed for BitTorrent clients, with torrents and announces; default: none. Plain HTTP."""
    torrent_namespaces: str = ""
    """Namespaces that everybody who reaches the torrent ports may read, separated by commas; *: all. No default."""
    torrent_v1: bool = False
    """Seed each model as a torrent of version 1, too, for clients that can't read hybrids: Transmission until 3."""
    torrent_upload_bytes_per_s: int = 0
    """Cap on what BitTorrent clients get, over `torrent_listen` and the web seed each; 0: none."""
    torrent_sites: str = ""
    """NAMESPACE=HOST:PORT,... of other clusters' torrent doors, asked for models before storage; *: all others."""
    torrent_download_bytes_per_s: int = 0
    """Cap on what comes from `torrent_sites`; 0: none."""
    token_key_file: str = ""
    """File with the key that clients' tokens are signed with; default: the cluster key."""
    health_listen: str = ""
    """HOST:PORT for /healthz, /readyz and /metrics, for probes and Prometheus; default: only on the sockets."""
    node_name: str = ""
    """What people call this node; default: the host's name."""
    kubernetes_labels: bool = False
    """Keep a label on the Kubernetes Node `node_name` for each complete model (models.p2pcache.io/..)."""
    rack: str = ""
    """Label of this node's rack: neighbours in the same rack are preferred."""
    site: str = ""
    """Label of this node's site."""
    role: Literal["seed", "cache", "client"] = "cache"
    """seed, cache or client: `p2pcache keep` chooses nodes by it; clients keep nothing unless they are named."""
    labels: str = ""
    """KEY=VALUE,... by which `p2pcache keep --nodes` chooses nodes, such as gpu=h100."""
    kubernetes_rack_label: str = ""
    """Without `rack`: the label of the Kubernetes Node `node_name` that says it, read at the start."""
    kubernetes_site_label: str = ""
    """Without `site`: the label of the Node that says it, such as topology.kubernetes.io/zone."""
    congestion_control: str = ""
    """TCP's congestion control between nodes; default: the system's, and bbr where a long line loses packets. Where the
    system's is bbr, try cubic for links of 10 Gbit/s and more: over loopback it was 1.7 times as quick."""
    upload_bytes_per_s: int = 0
    """Cap on what is served to peers; 0: none."""
    download_bytes_per_s: int = 0
    """Cap on what is taken from peers; 0: none."""
    origin_bytes_per_s: int = 0
    """Cap on what is read from the origin; 0: none."""
    disk_bytes_per_s: int = 0
    """Cap on what is written to the cache, from peers and the origin together; 0: none."""
    governor: Literal["auto", "on", "off"] = "auto"
    """Give way to what this host serves: auto: while an engine says how it does; on: also by stalls and links alone."""
    governor_floor: float = 0.1
    """The governor leaves at least this share of full speed, so that a storm still ends."""
    governor_cgroup: str = ""
    """Cgroup (below /sys/fs/cgroup) of the engine: its stalls count; default: those of the whole host."""
    link_bytes_per_s: int = 0
    """What this host's link carries, for the governor and the node's part of what is kept; 0: what interfaces say."""
    engine_metrics: str = ""
    """URL of the engine's Prometheus metrics, http://HOST:PORT/metrics, for the governor."""
    engine_metric: str = "vllm:time_to_first_token_seconds"
    """The histogram (its p90 counts) or gauge there that is the engine's latency in seconds."""
    engine_latency_s: float = 1.0
    """The latency that is just good enough: the governor keeps it below this."""
    upload_slots: int = UploadSettings().slots
    """Peers served at once where the uplink is quick, two at first; others hear BUSY, and when there is room again."""
    min_free_bytes: int = 1 << 30
    """Free space that a pull must leave on the cache's disk."""
    cache_quota: str = ""
    """What the cache may take: a size (500GiB) or a share of its disk (80%); old models make room. Default: any."""
    cache_high: float = 0.8
    """Share of the quota above which the least valuable models go."""
    cache_low: float = 0.7
    """Share of the quota down to which they go."""
    origin_cost: float = 3.0
    """What a byte from storage costs beside one from another node (1): 10 where storage is far."""
    recycle_bytes: int = 0
    """Does nothing any more, and goes with the next release: a removed model's files are deleted at once."""
    abandon_after_s: float = 30.0
    """Time that a pull goes on after its last client has left."""
    shutdown_s: float = 10.0
    """Limit for finishing uploads and reads of storage after SIGTERM."""
    flush_interval_s: float = 2.0
    """Longest time until proved chunks become durable while a pull runs."""
    flush_bytes: int = 256 << 20
    """Proved chunks also become durable when this many bytes have come."""
    scrub_interval_s: float = 7 * 86400.0
    """Time until a complete model is proved again in the background; 0: never."""
    record_dir: str = ""
    """Record each pull's scheduler here, for `python -m loadtest.replay`; default: nothing is recorded."""
    record_bytes: int = 256 << 20
    """All recordings in `record_dir` together; the oldest make room."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """text or json."""

    def __post_init__(self) -> None:
        if not self.cache_dir.strip():  # it would be the directory in which the agent was started
            raise ValueError("cache_dir is blank; name a directory, or leave it out")


EXAMINED = (
    "cache_dir", "tracker", "origin", "listen", "advertise", "cluster_key_file", "insecure", "tls_cert", "tls_key",
    "tls_ca", "min_free_bytes", "rack", "site", "node_name",
)  # fmt: skip
"""Settings that say what `p2pcache doctor` has to look at; operators see them in `GET /v1/status`. None is a secret."""
DOORS = ("hf_listen", "s3_listen", "oci_listen")
"""Settings that open a door for another program's protocol."""
PATHS = frozenset({"cache_dir", "cluster_key_file", "tls_cert", "tls_key", "tls_ca"})
"""Those of them that name files."""
