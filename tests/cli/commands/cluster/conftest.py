import time

import pytest

from tests.cli.commands.cluster.answers import FAILED, PRUNED, ROW, STATUS
from tests.cli.fake_agent import FakeAgent


@pytest.fixture
def node(agent: FakeAgent) -> FakeAgent:
    tracker = STATUS["tracker"] | {"last_heartbeat": time.time() - 2}
    agent.document("GET /v1/status", STATUS | {"tracker": tracker})
    agent.document("GET /v1/history", {"history": [FAILED, ROW, PRUNED]})
    return agent
