"""Options by their paths: which was meant, and what it takes."""

import pytest

from async_rl.config.tree import RUN, SFT, expected


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("stalenes.max", "did you mean `staleness.max`?"),
        ("generation.lr", "did you mean `critic.optimizer.lr` or `learner.optimizer.lr`?"),
        ("learner.groups_per_stp", "did you mean `learner.groups_per_step`?"),
        ("num_threads", "did you mean `learner.num_threads`?"),
        ("lerner", "did you mean `learner`?"),
        ("every", "did you mean `checkpoint.every` or `evaluation.every`?"),
        ("xyz", "`async-rl config` lists the options"),
    ],
)
def test_the_option_that_was_meant(given: str, remedy: str) -> None:
    assert RUN.suggestion(given) == remedy


def test_what_an_option_takes_in_words() -> None:
    assert expected(RUN.entries["steps"]) == "a whole number ≥ 1"
    assert expected(RUN.entries["generation.top_p"]) == "a number > 0, ≤ 1"
    assert expected(RUN.entries["data.shuffle"]) == "true or false"
    assert expected(RUN.entries["name"]) == "text"
    assert expected(RUN.entries["correction.reject"]) == "a list of text"
    assert expected(RUN.entries["advantage.reward_weights"]) == "a list of numbers"
    assert expected(RUN.entries["correction.weighting"], "truncate") == (
        "one of off, truncated, masked (did you mean truncated?)"
    )


def test_every_option_and_section_has_words() -> None:
    for tree in (RUN, SFT):
        assert all(entry.help.text for entry in tree.entries.values())
        assert all(tree.sections.values())
