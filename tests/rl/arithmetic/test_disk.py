"""What a run writes: by hand, and never less than a real run wrote."""

from pathlib import Path

from rl.arithmetic.disk import PER_ROLLOUT, written
from rl.arithmetic.memory import CodecShape, Plan, s2_codec_shape
from rl.arithmetic.shapes import adapter_parameters, published_s2
from rl.codec.s2_config import S2CodecConfig
from rl.config import load_config
from rl.policy.files import read_config
from rl.trainer.run import train

S2, CODEC = published_s2(), s2_codec_shape(S2CodecConfig(), 391_430_530)


def test_s2_by_hand() -> None:
    need = written(Plan(load_config("grpo_s2"), S2, CODEC, 128, "vllm", True), tokenizer=10**7)
    clips = 500 * 256 + 2 * 64 * 4
    # a frame: 2048 samples of 16 bits, ten int32 codes and ten float32 log-probs
    assert need.rollouts == clips * (512 * (4096 + 80) + PER_ROLLOUT)
    assert need.typical_rollouts == int(clips * (0.5 * 512 * (0.6 * 4096 + 80) + PER_ROLLOUT))
    assert need.checkpoints == 20 * (12 * 23_592_960 + 10**7)
    assert (need.most, need.typical) == (
        need.rollouts + need.checkpoints,
        need.typical_rollouts + need.checkpoints,
    )


def test_without_an_evaluation_and_with_an_odd_number_of_steps() -> None:
    run = load_config("grpo_s2", ["evaluation.enabled=false", "trainer.steps=26", "trainer.save_every=25"])
    need = written(Plan(run, S2, CODEC, 128, "vllm", True))
    assert need.rollouts == 26 * 256 * (512 * 4176 + PER_ROLLOUT)
    assert need.checkpoints == 2 * 12 * 23_592_960, "the last step is saved as well"


def test_a_real_run_stays_within_it(configure, policy: Path) -> None:
    run = configure("evaluation.enabled=false")
    plan = Plan(run, read_config(policy), CodecShape(0, 800, 16_000, 0), 20, "torch", False)
    need = written(plan)
    folder = train(run)
    parquet = 32_000  # of the columns and footers of a file, whatever is in it
    assert sum(file.stat().st_size for file in (folder / "rollouts").iterdir()) < need.rollouts + 3 * parquet
    saved = [file.stat().st_size for file in (folder / "checkpoints").rglob("optimizer.pt")]
    assert len(saved) == 2
    moments = 8 * adapter_parameters(plan.policy, run.lora)
    assert all(moments < size < moments + 64_000 for size in saved)
