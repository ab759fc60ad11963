"""Presets as a user chooses them, and that each is what its name says."""

from pathlib import Path

import pytest

from async_rl.config.compose import dump_config, load_run_config, load_sft_config
from async_rl.config.objective import CorrectionConfig, Estimator, Proximal, RatioLevel, Surrogate, Weighting
from async_rl.config.option import walk
from async_rl.config.presets import load_presets, preset_file, presets_table, read_preset
from async_rl.errors import ConfigError

RUNNABLE = "model: {path: m}\ndata: {train: rows.jsonl}\nreward: {function: 'rewards.py:score'}\n"
PLAIN = f"defaults: [run_schema, _self_]\n{RUNNABLE}"
WITH_PRESET = f"defaults: [run_schema, correction: decoupled_k3_rs_token_tis, _self_]\n{RUNNABLE}"

TOKEN, SEQUENCE = ("token", "truncated", 0.0, 2.0), ("sequence", "truncated", 0.0, 2.0)
ICEPOP, OFF = ("token", "masked", 0.5, 5.0), ("token", "off", 0.0, 2.0)
GEO, K3 = ["seq_mean_k1:0.999_1.001"], ["seq_mean_k3:0.01"]
VERL: dict[str, tuple[str, tuple[str, str, float, float], list[str], str]] = {
    "decoupled_token_is": ("recompute", TOKEN, [], "ppo_clip"),
    "decoupled_seq_is": ("recompute", SEQUENCE, [], "ppo_clip"),
    "decoupled_token_icepop": ("recompute", ICEPOP, [], "ppo_clip"),
    "decoupled_seq_is_rs": ("recompute", SEQUENCE, ["seq_sum_k1:0.5_2.0"], "ppo_clip"),
    "decoupled_geo_rs": ("recompute", OFF, GEO, "ppo_clip"),
    "decoupled_geo_rs_seq_tis": ("recompute", SEQUENCE, GEO, "ppo_clip"),
    "decoupled_geo_rs_token_tis": ("recompute", TOKEN, GEO, "ppo_clip"),
    "decoupled_k3_rs": ("recompute", OFF, K3, "ppo_clip"),
    "decoupled_k3_rs_seq_tis": ("recompute", SEQUENCE, K3, "ppo_clip"),
    "decoupled_k3_rs_token_tis": ("recompute", TOKEN, K3, "ppo_clip"),
    "bypass_ppo_clip": ("rollout", OFF, [], "ppo_clip"),
    "bypass_ppo_clip_geo_rs": ("rollout", OFF, GEO, "ppo_clip"),
    "bypass_ppo_clip_k3_rs": ("rollout", OFF, K3, "ppo_clip"),
    "bypass_pg_is": ("rollout", SEQUENCE, [], "reinforce"),
    "bypass_pg_token_icepop": ("rollout", ICEPOP, [], "reinforce"),
    "bypass_pg_geo_rs": ("rollout", OFF, GEO, "reinforce"),
    "bypass_pg_geo_rs_seq_tis": ("rollout", SEQUENCE, GEO, "reinforce"),
    "bypass_pg_geo_rs_token_tis": ("rollout", TOKEN, GEO, "reinforce"),
    "disabled": ("recompute", OFF, [], "ppo_clip"),
}
"""verl's 19: π_prox; level, weighting, floor and cap of the weights; criteria; loss."""
OURS = {"none", "truncated", "icepop", "decoupled_ppo", "log_linear", "aipo", "vtrace", "arrival_split"}
NAMES = [preset.name for preset in load_presets()]


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def correction(path: Path, *overrides: str) -> CorrectionConfig:
    return load_run_config(path, overrides).correction


def refused(path: Path, *overrides: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_run_config(path, overrides)
    return caught.value


def test_there_is_one_for_each_of_verls_and_ours() -> None:
    assert len(VERL) == 19
    assert set(NAMES) == set(VERL) | OURS


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_goes_with_the_quickstart_and_takes_effect(repository: Path, name: str) -> None:
    config = load_run_config(repository / "configs" / "quickstart.yaml", [f"correction={name}"])
    values = {entry.path: entry.value for entry in walk(config)}
    settings = read_preset(preset_file(name)).settings
    assert settings and {option: values[option] for option in settings} == settings


@pytest.mark.parametrize("name", VERL)
def test_a_preset_with_a_name_of_verls_is_what_verl_has_under_it(tmp_path: Path, name: str) -> None:
    config = load_run_config(write(tmp_path, PLAIN), [f"correction={name}"])
    proximal, (level, weighting, floor, cap), reject, surrogate = VERL[name]
    assert config.correction == CorrectionConfig(
        proximal=Proximal(proximal),
        level=RatioLevel(level),
        weighting=Weighting(weighting),
        floor=floor,
        cap=cap,
        reject=reject,
    )
    assert config.loss.surrogate is Surrogate(surrogate)


def test_presets_of_our_own_are_what_their_names_say(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    assert load_run_config(path, ["correction=vtrace"]).advantage.estimator is Estimator.vtrace
    assert load_run_config(path, ["correction=aipo"]).loss.surrogate is Surrogate.aipo
    assert correction(path, "correction=log_linear").proximal is Proximal.log_linear
    assert correction(path, "correction=none").weighting is Weighting.off
    assert (correction(path, "correction=truncated").floor, correction(path, "correction=truncated").cap) == (0.5, 2.0)
    split = correction(path, "correction=arrival_split")
    assert (split.score_on_arrival, split.mismatch_cap, split.staleness_cap) == (True, 2.0, 2.0)


def test_a_file_anywhere_chooses_in_its_defaults_and_its_own_values_win(tmp_path: Path) -> None:
    path = write(tmp_path, WITH_PRESET + "correction: {cap: 7}\n")
    assert (correction(path).reject, correction(path).cap) == (["seq_mean_k3:0.01"], 7.0)
    assert correction(path, "correction.cap=3").cap == 3.0


@pytest.mark.parametrize("text", [PLAIN, WITH_PRESET], ids=["none", "another"])
def test_the_command_line_chooses_for_a_file_with_and_without_a_choice(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text + "correction: {cap: 7}\n")
    config = load_run_config(path, ["correction.floor=0.25", "correction=bypass_pg_token_icepop"])
    assert config.loss.surrogate is Surrogate.reinforce
    assert (config.correction.weighting, config.correction.reject) == (Weighting.masked, [])
    assert (config.correction.floor, config.correction.cap) == (0.25, 7.0), "single options win, wherever they stand"


def test_a_choice_of_the_file_that_one_starts_from_can_be_replaced(tmp_path: Path) -> None:
    write(tmp_path, WITH_PRESET, "base.yaml")
    path = write(tmp_path, "defaults: [base, _self_]\n")
    assert correction(path).reject == ["seq_mean_k3:0.01"]
    assert correction(path, "correction=icepop").reject == []
    assert correction(path, "correction=null") == CorrectionConfig()


def test_a_folder_beside_the_file_adds_presets_and_hides_those_that_come_along(tmp_path: Path) -> None:
    write(tmp_path, "cap: 9\n", "correction/mine.yaml")
    write(tmp_path, "# @package _global_\ncorrection: {cap: 8}\n", "correction/icepop.yaml")
    path = write(tmp_path, PLAIN)
    assert correction(path, "correction=mine").cap == 9.0
    assert correction(path, "correction=icepop") == CorrectionConfig(cap=8.0)
    assert correction(path, "correction=none").weighting is Weighting.off
    assert read_preset(tmp_path / "correction" / "mine.yaml").settings == {"correction.cap": 9}


def test_an_unknown_preset_is_refused_with_the_names(tmp_path: Path) -> None:
    error = refused(write(tmp_path, PLAIN), "correction=decoupled_tokn_is")
    assert error.problem.startswith("there is no correction/decoupled_tokn_is.yaml, neither in ")
    assert error.place == "command line: correction=decoupled_tokn_is"
    assert error.remedy == f"did you mean decoupled_token_is? There are {', '.join(NAMES)}"
    in_file = refused(write(tmp_path, WITH_PRESET.replace("decoupled_k3_rs_token_tis", "zzz")))
    assert (in_file.place, in_file.remedy) == (f"{tmp_path / 'run.yaml'}: defaults", f"give one of {', '.join(NAMES)}")
    with pytest.raises(ConfigError, match="there is no preset zzz"):
        preset_file("zzz")


def test_a_preset_that_the_file_hides_whole_is_refused(tmp_path: Path) -> None:
    earlier = write(tmp_path, dump_config(load_run_config(write(tmp_path, PLAIN))), "config.yaml")
    error = refused(earlier, "correction=bypass_ppo_clip")
    assert error.problem.startswith("`correction=bypass_ppo_clip` changes nothing: config.yaml itself sets all")
    assert error.remedy.endswith("one by one: correction.proximal=rollout correction.weighting=off")
    assert correction(earlier, "correction=decoupled_token_is", "correction.cap=3").cap == 3.0, "those are its values"


def test_a_warm_start_has_no_correction(tmp_path: Path) -> None:
    path = write(tmp_path, "defaults: [sft_schema, _self_]\ndata: {task: 'm:T', max_prompt_tokens: 16}\n")
    with pytest.raises(ConfigError, match="there is no option `correction`"):
        load_sft_config(path, ["correction=none"])


def test_each_says_in_a_line_when_to_use_it() -> None:
    assert all(preset.use.endswith(".") and len(preset.use) < 120 for preset in load_presets())
    rows = presets_table().splitlines()
    assert len(rows) == 2 + len(NAMES)
    assert (
        "| `bypass_ppo_clip` | `proximal=rollout, weighting=off, loss.surrogate=ppo_clip` | PPO clips π/μ itself: no "
        "scoring pass, little staleness. |"
    ) in rows
