from tests.cli.conftest import Run
from tests.cli.fake_agent import HEX, FakeAgent


def test_ps_is_a_table(agent: FakeAgent, run: Run) -> None:
    pull = {
        "ref": "a:b", "digest": HEX, "bytes_done": 500, "bytes_total": 1000, "rate": 100, "eta_s": 5.0,
        "peers": 3, "bytes_origin": 100, "bytes_peers": 300, "started": 0,
    }  # fmt: skip
    agent.document(
        "GET /v1/pulls",
        {
            "pulls": [
                pull,
                pull | {"eta_s": None, "bytes_origin": 0, "bytes_peers": 0, "kind": "warm"},
            ]
        },
    )
    lines = run("ps", "--agent", agent.address).stdout.splitlines()
    assert lines[1].split() == [
        "a:b",
        HEX[:12],  # tells a model from the one that its tag has moved to
        "pull",  # an agent of the release before says nothing of kinds
        "50%",
        "1.00",
        "kB",
        "100",
        "B/s",
        "5.0s",
        "3",
        "75%",
        "from",
        "peers",
    ]
    assert lines[2].split()[-3:] == ["-", "3", "-"]
    assert lines[2].split()[2] == "warm"
