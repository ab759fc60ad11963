"""Groups of which only the lengths matter: a prompt's, and its responses'."""

from hypothesis import strategies as st

from learner.packing import PackedSequences

Groups = list[tuple[int, list[int]]]


def groups() -> st.SearchStrategy[Groups]:
    """Of one response and of several, some of them empty."""
    responses = st.lists(st.integers(0, 12), min_size=1, max_size=5)
    return st.lists(st.tuples(st.integers(1, 20), responses), min_size=1, max_size=4)


def pack(drawn: Groups) -> PackedSequences:
    """With shared prefixes."""
    return PackedSequences.pack_groups([([0] * prompt, [[0] * n for n in responses]) for prompt, responses in drawn])
