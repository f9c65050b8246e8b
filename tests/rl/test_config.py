"""Configuration: what loads, what is refused and in which words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import MISSING

from rl.config import config_hash, find_config, load_config, save_resolved, schema_keys, shipped_configs
from rl.errors import ConfigError

RUN_FILES = sorted(shipped_configs().glob("*.yaml"))
RECIPES = sorted((shipped_configs() / "rewards").glob("*.yaml"))

MINIMAL = """\
rewards:
  nodes:
    quality: {type: dnsmos}
    asr: {type: whisper, model: tiny.en}
  total: quality
trainer:
  steps: 3
"""


@pytest.fixture(scope="module")
def minimal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "minimal.yaml"
    file.write_text(MINIMAL)
    return file


def complaint(file: Path | str, *overrides: str) -> str:
    """The message of the `ConfigError` that loading raises, after checking that it is one line."""
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def with_text(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "other.yaml"
    file.write_text(text)
    return file


# --- what loads


@pytest.mark.parametrize("file", RUN_FILES, ids=lambda file: file.name)
def test_every_shipped_run_loads(file: Path) -> None:
    config = load_config(file.name)
    assert config.name == file.stem
    assert config.rewards.nodes
    assert config.rewards.total


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.name)
def test_every_shipped_recipe_can_replace_the_one_of_a_run(recipe: Path) -> None:
    config = load_config("grpo_tiny.yaml", [f"rewards.recipe={recipe.stem}"])
    assert config.rewards.total == load_config("grpo_tiny", [f"rewards.recipe={recipe}"]).rewards.total


def test_defaults_fill_what_a_file_leaves_out(minimal: Path) -> None:
    config = load_config(minimal)
    assert config.trainer.steps == 3
    assert config.trainer.learning_rate == 3e-4
    assert config.rollouts.group_size == 16
    assert config.trainer.epsilon_high is None
    assert config.evaluation.monitors == {}
    assert config.rewards.nodes["asr"] == {"type": "whisper", "model": "tiny.en"}


@pytest.mark.parametrize("section", ["evaluation:\n", "evaluation: {}\n", "evaluation:\n  # enabled: true\n"])
def test_an_empty_section_means_its_defaults(tmp_path: Path, section: str) -> None:
    assert load_config(with_text(tmp_path, MINIMAL + section)).evaluation.samples == 4


def test_a_name_is_looked_up_here_then_among_the_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config("grpo_tiny") == shipped_configs() / "grpo_tiny.yaml"
    Path("grpo_tiny.yaml").write_text(MINIMAL)
    assert load_config("grpo_tiny.yaml").trainer.steps == 3


def test_every_default_is_one_that_the_command_line_would_take(minimal: Path) -> None:
    chosen = {key.name: key for key in schema_keys().values() if key.default != MISSING}
    config = load_config(minimal, [f"{name}={json.dumps(key.default)}" for name, key in chosen.items()])
    assert config == load_config(minimal)
    assert all(key.help for key in schema_keys().values())


# --- overrides


def test_overrides_win_in_their_order(minimal: Path) -> None:
    config = load_config(minimal, ["trainer.steps=5", "trainer.learning_rate=1e-4", "trainer.steps=7"])
    assert (config.trainer.steps, config.trainer.learning_rate) == (7, 1e-4)


@pytest.mark.parametrize(
    ("raw", "total"),
    [
        ("quality", "quality"),
        ("'quality'", "quality"),
        ("0.5*asr.confidence+0.5*quality", "0.5*asr.confidence+0.5*quality"),
        (
            "gate * (0.5*exp(asr.logp) + 0.3*min(quality, 1))",
            "gate * (0.5*exp(asr.logp) + 0.3*min(quality, 1))",
        ),
        ("-quality", "-quality"),
        ("where(error > 0.5, 0, exp(-3*error))", "where(error > 0.5, 0, exp(-3*error))"),
        ("a == b", "a == b"),
        ("1", "1"),
        ("1e-3", "1e-3"),
    ],
)
def test_expressions_arrive_as_they_are(minimal: Path, raw: str, total: str) -> None:
    config = load_config(minimal, [f"rewards.total={raw}"])
    assert config.rewards.total == total
    assert set(config.rewards.nodes) == {"quality", "asr"}


def test_a_free_mapping_takes_deep_overrides(minimal: Path) -> None:
    config = load_config(
        minimal, ["rewards.nodes.asr.model=base.en", "rewards.nodes.voice={type: voiceprint}"]
    )
    assert config.rewards.nodes["asr"] == {"type": "whisper", "model": "base.en"}
    assert config.rewards.nodes["voice"] == {"type": "voiceprint"}


def test_null_lists_and_digits_in_text(minimal: Path) -> None:
    overrides = ["trainer.epsilon_high=0.28", "trainer.epsilon_high=null", "trainer.report_to=[tensorboard]"]
    config = load_config(minimal, [*overrides, "name=007"])
    assert config.trainer.epsilon_high is None
    assert config.trainer.report_to == ["tensorboard"]
    assert config.name == "007"


@settings(max_examples=50, deadline=None)
@given(steps=st.integers(1, 10**9), rate=st.floats(1e-300, 1e300), flag=st.booleans())
def test_numbers_and_flags_survive_the_command_line(
    minimal: Path, steps: int, rate: float, flag: bool
) -> None:
    overrides = [f"trainer.steps={steps}", f"trainer.learning_rate={rate!r}", f"evaluation.enabled={flag}"]
    config = load_config(minimal, overrides)
    assert (config.trainer.steps, config.trainer.learning_rate) == (steps, rate)
    assert config.evaluation.enabled is flag


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=40))
def test_any_override_text_is_taken_or_refused_in_one_line(minimal: Path, text: str) -> None:
    for override in (text, f"name={text}", f"rewards.nodes.a={text}", f"trainer.steps={text}"):
        try:
            load_config(minimal, [override])
        except ConfigError as error:
            assert "\n" not in str(error)


@settings(max_examples=50, deadline=None)
@given(
    text=st.text(
        st.characters(min_codepoint=32, exclude_categories=["C"], exclude_characters="'$"), max_size=40
    )
)
def test_quoted_text_survives_the_command_line_and_the_saved_file(minimal: Path, text: str) -> None:
    config = load_config(minimal, [f"rewards.nodes.judge.prompt='{text}'", f"name='{text}'"])
    assert config.name == text
    assert config.rewards.nodes["judge"]["prompt"] == text
    file = minimal.with_name("saved.yaml")
    save_resolved(config, file)
    assert load_config(file) == config


# --- what is refused


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "trainer.lerning_rate=1",
            "there is no key trainer.lerning_rate; did you mean trainer.learning_rate?",
        ),
        ("learning_rate=1", "there is no key learning_rate; did you mean trainer.learning_rate?"),
        ("rewards.nodez.a=1", "there is no key rewards.nodez; did you mean rewards.nodes?"),
        ("qqqq=1", "there is no key qqqq; --help-config lists the keys"),
        ("trainer.steps=many", 'trainer.steps must be a whole number from 1, not "many"'),
        ("trainer.steps=2.5", "trainer.steps must be a whole number from 1, not 2.5"),
        ("trainer.steps=true", "trainer.steps must be a whole number from 1, not true"),
        ("trainer.steps=0", "trainer.steps must be a whole number from 1, not 0"),
        ("trainer.steps=null", "trainer.steps must be a whole number from 1, not null"),
        ("trainer.steps.x=1", 'trainer.steps must be a whole number from 1, not {"x": 1}'),
        ("trainer=5", "trainer is a section, not 5; set one of its keys"),
        ("rollouts.group_size=1", "rollouts.group_size must be a whole number from 2, not 1"),
        ("rollouts.temperature=0", "rollouts.temperature must be a number above 0, not 0"),
        ("rollouts.temperature=.nan", "rollouts.temperature must be a number above 0, not NaN"),
        ("rewards.max_missing=1.5", "rewards.max_missing must be a number from 0 up to 1, not 1.5"),
        ("trainer.epsilon_high=-1", "trainer.epsilon_high must be a number above 0, or null, not -1"),
        ("trainer.lr_schedule=step", 'trainer.lr_schedule must be linear or cosine or constant, not "step"'),
        ("rollouts.engine=sglang", 'rollouts.engine must be auto or vllm or torch, not "sglang"'),
        ("evaluation.enabled=maybe", 'evaluation.enabled must be true or false, not "maybe"'),
        ("trainer.report_to=wandb", 'trainer.report_to must be a list of texts, not "wandb"'),
        ("trainer.report_to=[1]", "trainer.report_to must be a list of texts, not [1]"),
        ("rewards.nodes=[a]", 'rewards.nodes must be a mapping with text keys, not ["a"]'),
        ("rewards.nodes.a={1: b}", "rewards.nodes must be a mapping with text keys"),
        ("rewards.total=a: b", 'rewards.total must be text, not {"a": "b"}'),
        ("rewards.recipe=3.5.1", "3.5.1: no such rewards file"),
        ("name={}", "name must be text, not {}"),
        ("name=", "name must be text, not null"),
        ("name=${sede}", "name: Interpolation key 'sede' not found"),
        ("name=${", "name: "),
        ("trainer.steps", '"trainer.steps" is not key=value; e.g. trainer.steps=20'),
        ("=3", '"=3" is not key=value'),
        ("trainer..steps=3", '"trainer..steps=3" is not key=value'),
        ("rewards.total=*a", "rewards.total: not valid YAML on line 1: found undefined alias"),
        (
            "name=!!python/object/apply:os.system [true]",
            "remove the YAML tag tag:yaml.org,2002:python/object",
        ),
        (
            "name=!!python/object/apply:pathlib.Path [a]",
            "remove the YAML tag tag:yaml.org,2002:python/object",
        ),
    ],
)
def test_a_wrong_override_is_named(minimal: Path, override: str, words: str) -> None:
    message = complaint(minimal, override)
    assert words in message
    assert message.startswith("command line: ") or "no such rewards file" in message


def test_a_wrong_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    file = with_text(tmp_path, MINIMAL + "rolouts:\n  group_size: 4\n")
    assert complaint(file, "trainer.steps=4") == f"{file}: there is no key rolouts; did you mean rollouts?"


def test_a_wrong_value_in_a_recipe_names_the_recipe(tmp_path: Path) -> None:
    recipe = with_text(tmp_path, "nodes: {}\ntotal: [1]\n")
    assert (
        complaint("grpo_tiny", f"rewards.recipe={recipe}") == f"{recipe}: rewards.total must be text, not [1]"
    )


def test_what_must_be_set_is_listed(tmp_path: Path) -> None:
    file = with_text(tmp_path, "")
    wanted = f"{file}: rewards.nodes, rewards.total, trainer.steps must be set, there or on the command line"
    assert complaint(file) == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainer: [", "not valid YAML on line"),
        ("seed: 1\nseed: 2\n", "not valid YAML on line 2: found duplicate key seed"),
        ("- seed\n", "must be a mapping of keys to values"),
        ("seed: !!python/name:os.system\n", "line 1: remove the YAML tag"),
        ("seed: !mine 3\n", "line 1: remove the YAML tag !mine"),
        ("hello", "there is no key hello"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = with_text(tmp_path, text)
    message = complaint(file)
    assert message.startswith(f"{file}: ")
    assert words in message


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "binary.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    assert complaint(file).startswith(f"{file}: can't be read as UTF-8 text")


def test_a_missing_file_suggests_a_shipped_one() -> None:
    assert complaint("grpo_tinny.yaml").endswith("did you mean grpo_tiny.yaml?")
    assert "grpo_tiny.yaml" in complaint("zzz.yaml")


# --- recipes


def test_keys_beside_a_recipe_go_on_top_of_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("nodes: {a: {type: x, k: 1}, b: {type: y}}\ntotal: a\nmax_missing: 0.1\n")
    text = f"rewards:\n  recipe: {recipe}\n  nodes: {{a: {{k: 2}}}}\n  total: a + b\ntrainer: {{steps: 1}}\n"
    rewards = load_config(with_text(tmp_path, text)).rewards
    assert rewards.nodes == {"a": {"type": "x", "k": 2}, "b": {"type": "y"}}
    assert (rewards.total, rewards.max_missing, rewards.recipe) == ("a + b", 0.1, None)


def test_a_recipe_on_the_command_line_replaces_the_files(minimal: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("nodes: {only: {type: x}}\ntotal: only\n")
    file = with_text(tmp_path, f"rewards: {{recipe: {tmp_path}/absent.yaml}}\ntrainer: {{steps: 1}}\n")
    assert set(load_config(file, [f"rewards.recipe={recipe}"]).rewards.nodes) == {"only"}
    assert set(load_config(minimal, [f"rewards.recipe={recipe}"]).rewards.nodes) == {"only", "quality", "asr"}


def test_rewards_alone_names_a_recipe() -> None:
    short = load_config("grpo_tiny.yaml", ["rewards=step_audio_3_embedded"])
    assert short == load_config("grpo_tiny.yaml", ["rewards.recipe=step_audio_3_embedded"])
    assert "instruction" in short.rewards.nodes
    assert "quality" not in short.rewards.nodes
    assert complaint("grpo_tiny", "rewards=3").endswith("rewards is a section, not 3; set one of its keys")


def test_a_recipe_may_lie_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("nodes: {only: {type: x}}\ntotal: only\n")
    file = with_text(tmp_path, "rewards: {recipe: mine}\ntrainer: {steps: 1}\n")
    assert load_config(file).rewards.total == "only"
    assert "mine: no such rewards file" in complaint(file, "rewards.recipe=mine")


def test_a_recipe_starts_from_no_other(tmp_path: Path) -> None:
    recipe = with_text(tmp_path, "recipe: tiny\n")
    words = f"{recipe}: a recipe can't start from another; remove its key recipe"
    assert complaint("grpo_tiny", f"rewards.recipe={recipe}") == words


# --- saving and naming


def test_a_saved_configuration_loads_as_the_same(minimal: Path, tmp_path: Path) -> None:
    config = load_config(minimal, ["name=1e-4", "trainer.learning_rate=1e-7", "output_dir=${name}/x"])
    assert config.output_dir == "1e-4/x"
    save_resolved(config, tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_the_hash_names_what_is_computed(minimal: Path) -> None:
    config = load_config(minimal)
    assert len(config_hash(config)) == 12
    assert config_hash(replace(config, name="other", output_dir="elsewhere")) == config_hash(config)
    assert config_hash(load_config(minimal, ["cluster.address=auto"])) == config_hash(config)
    assert config_hash(replace(config, seed=1)) != config_hash(config)
    assert config_hash(load_config(minimal, ["rewards.nodes.asr.model=base"])) != config_hash(config)
