"""What a scripted agent says of itself: a pull, rows of its history, a status."""

import time
from typing import Any

from tests.cli.fake_agent import HEX

PULL: dict[str, Any] = {
    "ref": "team/llama:v3", "digest": HEX, "bytes_done": 60_000_000, "bytes_total": 80_000_000,
    "rate": 20_000_000, "eta_s": 1.0, "peers": 5, "bytes_origin": 15_000_000,
    "bytes_peers": 45_000_000, "started": 0, "clients": 3,
}  # fmt: skip
ROW: dict[str, Any] = {
    "ended": time.time() - 60, "action": "pull", "ref": "team/llama:v2", "digest": HEX,
    "bytes": 140_000_000_000, "seconds": 50.0, "rate": 2_800_000_000, "bytes_origin": 35_000_000_000,
    "bytes_peers": 105_000_000_000, "bytes_local": 0, "code": 0, "message": "", "times": 1,
}  # fmt: skip
FAILED = ROW | {"code": 7, "message": "storage\x1b[31m doesn't answer", "times": 4, "rate": 0}
PRUNED = ROW | {"action": "prune", "ref": "", "bytes_peers": 0, "bytes_origin": 0}
STATUS: dict[str, Any] = {
    "node": "00000000000000aa", "name": "gpu-01", "address": "10.0.0.1:7401", "rack": "r1\x07",
    "site": "ams", "version": "0.1.0", "uptime_s": 7300.0, "ready": False,
    "reasons": ["origin: no answer"], "warnings": ["the certificate ends in 3 days"],
    "tracker": {"url": "http://t:7400", "connected": True, "error": ""},
    "origin": {"url": "s3://models", "error": "no answer"},
    "cache": {"dir": "/var/lib/p2pcache", "cached_bytes": 3 * 10**11, "free_bytes": 10**11},
    "models": 4, "pulls": [PULL], "load": 2, "peers": 9,
    "bytes": {"peer": 3_000_000, "origin": 1_000_000, "local": 0, "served": 7_000_000},
}  # fmt: skip
