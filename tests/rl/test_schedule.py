"""Learning rate and seeds follow from the step alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.schema import TrainerConfig
from rl.seeds import derive_seed, step_prompts
from rl.trainer.schedule import learning_rate_factor


def _factors(**settings: object) -> list[float]:
    trainer = TrainerConfig(steps=5, **settings)  # type: ignore[arg-type]
    return [learning_rate_factor(done, trainer) for done in range(6)]


def test_curves_by_hand() -> None:
    assert _factors() == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1, 0.1])
    assert _factors(lr_schedule="constant", warmup_steps=1) == [0.5, 1, 1, 1, 1, 1]
    assert _factors(lr_schedule="cosine", min_lr_ratio=0.0) == pytest.approx(
        [1.0, 0.853553, 0.5, 0.146447, 0.0, 0.0], abs=1e-6
    )
    decade = [1e-6 * factor for factor in _factors(learning_rate=1e-6)]  # StepAudio 3 Gen: 1e-6 to 1e-7
    assert (decade[0], decade[4]) == pytest.approx((1e-6, 1e-7))
    assert _factors(warmup_steps=2) == pytest.approx([1 / 3, 2 / 3, 1.0, 0.55, 0.1, 0.1])


@given(st.integers(0, 10), st.integers(1, 30), st.data())
def test_an_epoch_shows_each_prompt_at_most_once(seed: int, prompts: int, data: st.DataObject) -> None:
    per_step = data.draw(st.integers(1, prompts))
    steps = prompts // per_step
    shown = [i for step in range(1, steps + 1) for i in step_prompts(seed, step, prompts, per_step)]
    assert len(shown) == len(set(shown)) == steps * per_step
    assert set(shown) <= set(range(prompts))


def test_seeds_differ_by_stream_and_step() -> None:
    seeds = {
        derive_seed(s, stream, step) for s in (0, 1) for stream in ("order", "rollouts") for step in (1, 2)
    }
    assert len(seeds) == 8
    assert derive_seed(0, "rollouts", 1) == derive_seed(0, "rollouts", 1)
