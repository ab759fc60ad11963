"""The presets on the page of the correction are those that come along."""

from pathlib import Path

from async_rl.config.presets import presets_table


def test_the_page_has_every_preset_as_it_is(repository: Path) -> None:
    page = (repository / "docs/correction.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- presets -->")
    table, end, _ = rest.partition("<!-- /presets -->")
    assert end
    assert table.strip() == presets_table().strip(), "paste what `python -m async_rl.config.presets` prints"
