"""The page of options: it is what the schema says."""

from pathlib import Path

from async_rl.config.reference import reference_page


def test_the_page_in_docs_is_what_the_schema_says(repository: Path) -> None:
    page = (repository / "docs" / "config.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run `python -m async_rl.config.reference > docs/config.md`"


def test_an_option_is_a_row_with_type_default_range_and_effect() -> None:
    rows = reference_page().splitlines()
    assert "| `staleness.max` | int | `4` | ≥ 0 | Hard bound per token, in versions. |" in rows
    assert (
        "| `model.dtype` | `float32` \\| `bfloat16` | `float32` |  | Number format of the learner and of the engines. |"
        in rows
    )
    assert (
        "| `advantage.reward_components` | list of text | `[]` |  | `gdpo`: the names of the rewards that the reward "
        "function returns. |"
    ) in rows
    assert "### `learner.optimizer`" in rows
