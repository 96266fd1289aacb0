from p2pcache.cli.support.vocabulary import document, rfc3339

HEX = "ab" * 32


def test_times_are_rfc_3339() -> None:
    assert rfc3339(1_764_145_067.1234) == "2025-11-26T08:17:47.123Z"
    assert rfc3339(0) is None


def test_words_are_translated_at_every_depth() -> None:
    told = document({
        "history": [{"ended": 0, "rate": 5, "digest": HEX, "message": "rate"}],
        "cache": {"cached_bytes": 1, "free_bytes": 2}, "bytes": {"peer": 3, "served": 4},
        "digest": "", "rates": {"peer": 6},
    })  # fmt: skip
    assert told == {
        "schema": 1,
        "history": [
            {"ended_at": None, "bytes_per_s": 5, "digest": f"blake3:{HEX}", "message": "rate"}
        ],
        "cache": {"bytes_cached": 1, "bytes_free": 2}, "bytes_peers": 3, "bytes_served": 4,
        "digest": "", "bytes_per_s": {"peers": 6},
    }  # fmt: skip
