import pytest

from p2pcache.core.format.near_refs import hint
from p2pcache.ids import Ref

KNOWN = [Ref.parse(text) for text in (
    "team/llama:v1", "team/llama:v2", "team/llama:v10", "team/mistral:latest", "team/uni:v1", "qwen:a",
)]  # fmt: skip


@pytest.mark.parametrize(("ref", "said"), [
    ("team/llama:x", "; team/llama has the tags v1, v2, v10"),
    ("team/llama:v11", "; team/llama has the tags v1, v2, v10"),
    ("qwen", "; qwen has the tag a"),
    (
        "team/llama:v1",
        "; this cache has it, from another storage or from before it was deleted there (`p2pcache ls`)",
    ),
    ("team/lama:v1", "; did you mean team/llama:v1?"),
    ("team/lama:v3", "; did you mean team/llama:v10?"),
    ("taem/llama:v2", "; did you mean team/llama:v2?"),
    ("mistral", "; did you mean team/mistral:latest?"),
    ("quite/different:v1", ""),
    ("team/none:v1", ""),
])  # fmt: skip
def test_what_may_have_been_meant(ref: str, said: str) -> None:
    found = hint(Ref.parse(ref), KNOWN)
    if ref == "team/llama:v11":  # the nearest first
        assert found in (
            "; team/llama has the tags v1, v2, v10",
            "; team/llama has the tags v10, v1, v2",
        )
    else:
        assert found == said


def test_a_name_with_many_tags_is_cut() -> None:
    many = [Ref.parse(f"m:v{n}") for n in range(100)]
    assert hint(Ref.parse("m:x"), many).endswith("v7 and 92 more")
