"""Sampler against learner: the figures by hand, and what an old version's rollouts do to a run."""

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from rl.errors import StaleRolloutError
from rl.metrics import read_metrics
from rl.policy.likelihood import Likelihood
from rl.schema import RunConfig
from rl.trainer.mismatch import mismatch_metrics, mismatch_sums, stale_share
from rl.trainer.objective import OldLogprobs
from rl.trainer.run import train
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, Rollout

Configure = Callable[..., RunConfig]


def test_figures_by_hand() -> None:
    weights = torch.tensor([[0.5, 2.0, 1.0], [1.0, 77.0, 77.0]])  # learner over sampler, slow
    slow_mask = torch.tensor([[True, True, True], [True, False, False]])
    frame_mask = torch.tensor([[True, True], [False, False]])
    fast = torch.full((2, 2, 3), math.log(4.0))
    learner = Likelihood(weights.log(), weights, slow_mask, fast, fast, frame_mask)
    sums = mismatch_sums(learner, OldLogprobs(torch.zeros(2, 3), torch.zeros(2, 2, 3)))
    metrics = mismatch_metrics({name: float(value) for name, value in sums.items()})
    assert metrics == pytest.approx(
        {
            "learner/mismatch_mean_slow": 2 * math.log(2) / 4,
            "learner/mismatch_max_slow": math.log(2),
            "learner/ess_slow": 4.5**2 / (4 * (0.25 + 4 + 1 + 1)),
            "learner/mismatch_mean_fast": math.log(4),
            "learner/mismatch_max_fast": math.log(4),
            "learner/ess_fast": 1.0,  # equal weights, however wrong
        },
        rel=1e-6,
    )


def test_no_codes_no_figures() -> None:
    nothing = torch.zeros(1, 1, dtype=torch.bool)
    learner = Likelihood(*[torch.zeros(1, 1)] * 2, nothing, *[torch.zeros(1, 1, 3)] * 2, nothing)
    sums = mismatch_sums(learner, OldLogprobs(torch.zeros(1, 1), torch.zeros(1, 1, 3)))
    assert all(math.isnan(v) for v in mismatch_metrics({name: float(v) for name, v in sums.items()}).values())


def _rollouts(*versions: int) -> list[Rollout]:
    empty = np.zeros((0, 2))
    return [
        Rollout(Prompt("p", "x", "x"), i, 0, empty, empty, -1.0, "eos", v) for i, v in enumerate(versions)
    ]


def test_old_versions_are_recognised() -> None:
    assert stale_share(_rollouts(3, 3), 3, corrected=False) == 0.0
    assert stale_share(_rollouts(2, 3, 3, 3), 3, corrected=True) == 0.25
    with pytest.raises(StaleRolloutError, match=r"step 3: 1 of 2 .* version 2, the learner's is 3") as caught:
        stale_share(_rollouts(3, 2), 3, corrected=False)
    assert "\n" not in str(caught.value)


class Forgetful(TorchEngine):
    """Misses the second weight sync."""

    syncs = 0

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self.syncs += 1
        if self.syncs != 2:
            super().load_weights(weights)


def test_a_run_stops_at_old_rollouts_or_corrects_for_them(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.parts.TorchEngine", Forgetful)
    settings = ["trainer.steps=2", "trainer.learning_rate=1e-2", "evaluation.enabled=false"]
    with pytest.raises(StaleRolloutError, match="step 2: 8 of 8 rollouts were sampled by policy version 1"):
        train(configure(*settings))
    first, second = read_metrics(
        train(configure(*settings, "name=corrected", "trainer.importance_cap=2")) / "metrics.jsonl"
    )
    assert (first["rollout/stale"], second["rollout/stale"]) == (0.0, 1.0)
    for ar in ("slow", "fast"):
        assert first[f"learner/mismatch_max_{ar}"] < 1e-4
        assert first[f"learner/ess_{ar}"] == pytest.approx(1.0, abs=1e-6)
        assert second[f"learner/mismatch_max_{ar}"] > second[f"learner/mismatch_mean_{ar}"] > 1e-4
        assert 0 < second[f"learner/ess_{ar}"] < 1 - 1e-8
        assert first[f"learner/capped_{ar}"] == 0.0


def test_on_policy_the_correction_changes_nothing(configure: Configure) -> None:
    losses = []
    for name, cap in (("plain", "null"), ("capped", "2.0")):
        settings = ["trainer.steps=2", "trainer.num_iterations=2", "evaluation.enabled=false"]
        folder = train(configure(*settings, f"name={name}", f"trainer.importance_cap={cap}"))
        rows = read_metrics(folder / "metrics.jsonl")
        losses.append([(row["learner/loss"], row["learner/grad_norm"]) for row in rows])
    assert losses[0][0][0] != 0.0
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3, atol=1e-6)
