import io

from rich.console import Console, RenderableType

from async_rl.config.presets import load_presets
from async_rl.config.schema import RunConfig
from async_rl.config.tree import RUN
from async_rl.readiness import Rows
from async_rl.terminal.options_page import options_page
from async_rl.terminal.panel import run_panel
from async_rl.terminal.plan_page import data_words
from async_rl.terminal.presets_page import presets_page
from async_rl.terminal.summary_page import Places, summary_page
from tests.async_rl.terminal.snapshots import starting
from tests.async_rl.test_summary import whole_run


def text_of(page: RenderableType, width: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(page)
    return stream.getvalue()


def test_the_summary_says_what_it_came_to_and_where_everything_is() -> None:
    places = Places(
        run="runs/it", checkpoint="runs/it/checkpoints/2", model="runs/it/model", dashboard="async-rl dashboard"
    )
    text = text_of(summary_page(whole_run(), places, staleness_bound=4))
    for words in (
        "completed",
        "0.250 → 0.750",
        "0.500 → 1.000",
        "2 steps, 40 tokens in 0:10",
        "10 tokens/s, idle 20%",
        "4 tokens/s, idle 50%",
        "80.0%",
        "runs/it/checkpoints/2",
        "runs/it/model",
        "async-rl dashboard",
    ):
        assert words in text


def test_what_a_run_did_not_make_is_not_shown() -> None:
    assert "model" not in text_of(summary_page(whole_run(), Places(run="runs/it"), staleness_bound=4))


def test_the_panel_of_a_run_that_only_starts_is_short() -> None:
    assert len(text_of(run_panel(starting())).splitlines()) < 8


def test_options_are_found_by_name_and_by_effect() -> None:
    assert "staleness.depth" in text_of(options_page(RUN, "staleness"), 200)
    assert "learner.optimizer.beta1" in text_of(options_page(RUN, "adam"), 200)
    assert "No option of async-rl launch has 'zzz'" in text_of(options_page(RUN, "zzz"))


def test_presets_are_listed_with_what_they_set_and_when_to_take_them() -> None:
    text = text_of(presets_page(load_presets()), 300)
    row = next(line for line in text.splitlines() if line.startswith("decoupled_token_is "))
    assert "proximal=recompute, level=token, weighting=truncated, cap=2.0" in row
    assert "the usual choice" in row


def test_a_dry_run_says_how_often_training_goes_through_the_rows() -> None:
    (training, words), (held_out, none) = data_words(RunConfig(), Rows(train=1000, held_out=0))
    assert (training, words) == ("training", "1,000 rows; 100 batches take 1,600 groups: 1.6 times")
    assert (held_out, none) == ("held out", "none: the run is not evaluated")
