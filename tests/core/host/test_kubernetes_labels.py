import re

from hypothesis import given
from hypothesis import strategies as st

from p2pcache.core.host.kubernetes_labels import PREFIX, changes, label_key, wanted_labels
from p2pcache.core.host.settings import MAX_LABELS
from p2pcache.ids import Ref

# What the API server accepts after the prefix, from its own documentation.
VALID = re.compile(r"(?=.{1,63}\Z)[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
NAMES = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,79}", fullmatch=True)
TAGS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", fullmatch=True)
# Short ones over few letters: where two refs could meet in one label.
NEAR = st.builds(
    Ref,
    st.from_regex(r"[ah][a_.-]{0,4}", fullmatch=True),
    st.from_regex(r"[ah][a_.-]{0,4}", fullmatch=True),
    st.from_regex(r"[a_][a_.-]{0,4}", fullmatch=True),
    st.none(),
)
DIGEST = "0123456789abcdef" * 4


def test_usual_refs_can_be_read() -> None:
    assert label_key(Ref.parse("team/llama:v3")) == "models.p2pcache.io/team__llama__v3"
    assert label_key(Ref.parse("llama")) == "models.p2pcache.io/library__llama__latest"
    assert label_key(Ref.parse("t/llama-3.1_8b:v1.0")) == PREFIX + "t__llama-3.1_8b__v1.0"


@given(st.builds(Ref, NAMES, NAMES, TAGS))
def test_every_ref_has_a_valid_label(ref: Ref) -> None:
    key = label_key(ref)
    assert key.startswith(PREFIX)
    assert VALID.fullmatch(key.removeprefix(PREFIX))


@given(st.lists(NEAR, min_size=2, max_size=40, unique=True))
def test_no_two_refs_share_a_label(refs: list[Ref]) -> None:
    assert len({label_key(ref) for ref in refs}) == len(refs)


def test_the_digest_is_cut_to_what_a_label_may_hold() -> None:
    assert wanted_labels([(Ref.parse("m:v1"), DIGEST)]) == {
        PREFIX + "library__m__v1": "0123456789abcdef"
    }


def test_the_number_of_labels_is_bounded() -> None:
    models = [(Ref.parse(f"m{i}:v1"), DIGEST) for i in range(MAX_LABELS + 50)]
    wanted = wanted_labels(models)
    assert len(wanted) == MAX_LABELS
    assert label_key(models[0][0]) in wanted


LABELS = st.dictionaries(
    st.sampled_from([PREFIX + "a", PREFIX + "b", PREFIX + "c", "zone", "other.io/a"]),
    st.sampled_from(["1", "2"]),
)


@given(LABELS, LABELS)
def test_a_patch_leads_to_the_wanted_labels_and_changes_no_others(
    present: dict[str, str], labels: dict[str, str]
) -> None:
    wanted = {k: v for k, v in labels.items() if k.startswith(PREFIX)}
    after = dict(present)
    for key, value in changes(present, wanted).items():
        if value is None:
            del after[key]
        else:
            after[key] = value
    others = {k: v for k, v in present.items() if not k.startswith(PREFIX)}
    assert after == {**others, **wanted}
    assert not changes(after, wanted)
