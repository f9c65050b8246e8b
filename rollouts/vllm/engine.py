"""The vLLM engine: both ARs sampled inside vLLM, continuously batched, each prompt computed once."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from vllm import SamplingParams as RequestParams
from vllm import TokensPrompt
from vllm.distributed.parallel_state import model_parallel_is_initialized
from vllm.engine.arg_utils import EngineArgs
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from rl.errors import CheckpointError, ConfigError, PromptError
from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM
from rl.policy.prompts import prompt_rows
from rollouts.depth import in_batches
from rollouts.engine import CallStats, in_order
from rollouts.types import Prompt, Rollout, SamplingParams
from rollouts.vllm.frames import Sample
from rollouts.vllm.plugin import ARCHITECTURE

_BLOCK = 32  # cache tokens per block, the least the CPU kernels take; whole blocks of a prompt are shared


@dataclass(frozen=True)
class VllmOptions:
    """How to run vLLM; nothing here changes what is sampled.

    ``batch_size``: samples at once. ``kv_cache_bytes``: memory for the slow AR's cache; when it is short,
    samples wait or are preempted. ``step_tokens``: tokens per step, prompts are cut into chunks of that many;
    None leaves it to vLLM. ``eager``: don't compile the slow AR. ``multiprocessing``: run vLLM's core and
    worker in processes of their own.
    """

    batch_size: int = 128
    kv_cache_bytes: int = 2**30
    step_tokens: int | None = None
    eager: bool = True
    multiprocessing: bool = False
    tensor_parallel: int = 1


class VllmEngine:
    """Implements :class:`rollouts.engine.StreamingEngine` with vLLM, on CPU or GPU.

    ``checkpoint``: a directory in the published layout. ``prompt_format``: None is the checkpoint's own.
    ``llm`` is vLLM's own engine.

    Raises:
        ConfigError: another one runs in this process, without processes of its own; vLLM's state is global.
        CheckpointError: vLLM can't load the checkpoint.
    """

    def __init__(
        self,
        checkpoint: Path,
        tokenizer: PreTrainedTokenizerBase,
        dtype: str = "float32",
        options: VllmOptions = VllmOptions(),
        prompt_format: str | None = None,
    ) -> None:
        if model_parallel_is_initialized():
            raise ConfigError("rollouts.engine: vllm runs in this process already; close that engine first")
        self.tokenizer, self.options = tokenizer, options
        self.version = 0
        self.stats = CallStats()
        self.config = DualARConfig.from_pretrained(checkpoint)
        self.config.prompt_format = prompt_format or self.config.prompt_format
        with torch.device("meta"):
            shapes = DualARForCausalLM(self.config).named_parameters()
        self._shapes = {name: parameter.shape for name, parameter in shapes}
        self._unusable: str | None = None
        self._can_sleep = not current_platform.is_cpu()
        args = EngineArgs(
            model=str(checkpoint),
            skip_tokenizer_init=True,
            use_tqdm_on_load=False,
            hf_overrides={"architectures": [ARCHITECTURE]},
            generation_config="vllm",
            dtype=dtype,
            max_model_len=-1,
            max_num_seqs=options.batch_size,
            max_num_batched_tokens=options.step_tokens,
            max_logprobs=self.config.codes_per_step - 1,
            enable_prompt_embeds=True,
            enable_prefix_caching=True,
            block_size=_BLOCK,
            kv_cache_memory_bytes=options.kv_cache_bytes,
            enforce_eager=options.eager,
            tensor_parallel_size=options.tensor_parallel,
            enable_sleep_mode=self._can_sleep,
            **_classes(),
        )
        try:
            with _environment(options.multiprocessing):
                self.llm = LLMEngine.from_engine_args(args)
        except (OSError, RuntimeError, ValueError) as error:
            detail = " ".join(str(error).split())
            raise CheckpointError(
                f"rollouts.engine: vllm can't run {checkpoint} ({detail}); "
                "set rollouts.engine=torch to sample without it"
            ) from error

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> list[Rollout]:
        """See :class:`rollouts.engine.Engine`; raises what `stream` does."""
        return in_order(self.stream(prompts, n, sampling, seed), prompts)

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        """See :class:`rollouts.engine.StreamingEngine`. An iterator that is dropped ends its call.

        Raises:
            PromptError: a prompt is malformed or too long for the cache.
            CheckpointError: the last weight sync failed half-way.
        """
        if self._unusable:
            raise CheckpointError(
                f"weight sync: the engine holds parts of two versions ({self._unusable}); "
                "load the weights again, or start anew with --resume"
            )
        inputs = [self._input(prompt, sampling) for prompt in prompts]
        longest = max(len(tokens["prompt_token_ids"]) for tokens, _ in inputs) + sampling.max_frames
        self.llm.collective_rpc(
            "begin_call", args=(len(prompts) * n, longest, sampling.max_frames, sampling.temperature)
        )
        outputs = list[RequestOutput]()

        def finished() -> Iterator[Rollout]:
            while self.llm.has_unfinished_requests():
                for output in self.llm.step():
                    outputs.append(output)
                    row = int(output.request_id)
                    yield self._rollout(output, prompts[row // n], row % n, seed)

        try:
            for row in range(len(prompts) * n):
                tokens, codes = inputs[row // n]
                sample = Sample(seed, prompts[row // n].id, row % n, codes)
                self.llm.add_request(str(row), tokens, self._params(sample, sampling))
            yield from self._filled(finished()) if self.config.feedback == "first" else finished()
        finally:
            if self.llm.has_unfinished_requests():
                self.llm.abort_request(list(self.llm.output_processor.request_states), internal=True)
        self._count(outputs)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See :class:`rollouts.engine.Engine`. Cached prompts of the old weights are dropped.

        Through memory where vLLM runs in this process, else through a file.

        Raises:
            CheckpointError: a name or shape the policy doesn't have (nothing is changed then), or the
                transfer failed (the engine then refuses to sample until a later one succeeds).
        """
        for name, tensor in weights.items():
            if self._shapes.get(name) != tensor.shape:
                raise CheckpointError(
                    f"weight sync: the policy has no parameter `{name}` of shape {tuple(tensor.shape)}"
                )
        self._unusable = "it was interrupted"
        try:
            self._send({name: tensor.detach() for name, tensor in weights.items()})
            if not self.llm.reset_prefix_cache():
                raise RuntimeError("the prefix cache is in use")
        except Exception as error:
            self._unusable = " ".join(str(error).split())
            raise CheckpointError(
                f"weight sync: it failed ({self._unusable}); load the weights again, or start anew with "
                "--resume"
            ) from error
        self._unusable = None
        self.version += 1

    def sleep(self) -> None:
        """See :class:`rollouts.engine.Engine`: weights to host memory, the cache dropped. Not on CPU."""
        if self._can_sleep and not self.llm.is_sleeping():
            self.llm.sleep(level=1)

    def wake(self) -> None:
        """See :class:`rollouts.engine.Engine`."""
        if self._can_sleep and self.llm.is_sleeping():
            self.llm.wake_up()

    def close(self) -> None:
        """Free the model and end vLLM's processes."""
        self.llm.engine_core.shutdown()

    def _send(self, weights: dict[str, Tensor]) -> None:
        if not self.options.multiprocessing and self.options.tensor_parallel == 1:
            self.llm.collective_rpc("load_parameters", args=(weights,))
            return
        with tempfile.TemporaryDirectory(prefix="auralign-") as folder:
            path = str(Path(folder, "weights.safetensors"))
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
            self.llm.collective_rpc("load_parameters", args=(path,))

    def _input(self, prompt: Prompt, sampling: SamplingParams) -> tuple[TokensPrompt, list[list[int]]]:
        """A prompt's tokens, and the codes of its audio positions ``[A, K]``.

        The salt keeps prompts apart whose tokens, which hold the first code only, are equal.
        """
        rows = prompt_rows(prompt, self.tokenizer, self.config)
        limit = self.llm.model_config.max_model_len
        if rows.shape[1] + sampling.max_frames > limit:
            raise PromptError(
                f"prompt {prompt.id}: {rows.shape[1]} tokens and rollouts.max_frames={sampling.max_frames} "
                f"don't fit the engine's {limit}; shorten one, or raise rollouts.kv_cache_gib"
            )
        tokens = TokensPrompt(prompt_token_ids=rows[0].tolist())
        codes = rows[1:, self.config.is_heard(rows[0])].T.contiguous()
        if len(codes):
            tokens["cache_salt"] = hashlib.sha256(codes.numpy().tobytes()).hexdigest()
        return tokens, codes.tolist()

    def _params(self, sample: Sample, sampling: SamplingParams) -> RequestParams:
        return RequestParams(
            max_tokens=sampling.max_frames,
            stop_token_ids=[self.config.eos_token_id],
            logprobs=self.config.codes_per_step - 1,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=sample.to_args(),
        )

    def _count(self, outputs: list[RequestOutput]) -> None:
        self.stats = CallStats(
            prompt_tokens=sum(len(output.prompt_token_ids) for output in outputs),
            cached_tokens=sum(output.num_cached_tokens for output in outputs),
            preemptions=sum(output.metrics.num_preemptions for output in outputs),
        )

    def _filled(self, finished: Iterator[Rollout]) -> Iterator[Rollout]:
        """Rollouts of first codes, completed: the fast AR over the frames of many of them at once."""
        for batch in in_batches(finished, lambda rollout: len(rollout.codes)):
            names = [(rollout.prompt.id, rollout.sample_index, len(rollout.codes)) for rollout in batch]
            codes, logprobs = self.llm.collective_rpc("fill_frames", args=(names,))[0]
            at, books = 0, self.config.num_codebooks - 1
            for rollout in batch:
                part = slice(at, at + len(rollout.codes))
                more = np.array(codes[part], dtype=np.int64).reshape(-1, books)
                rollout.codes = np.concatenate([rollout.codes, more], 1)
                likely = np.array(logprobs[part], dtype=np.float32).reshape(-1, books)
                rollout.logprobs = np.concatenate([rollout.logprobs, likely], 1)
                at = part.stop
                yield rollout

    def _rollout(self, output: RequestOutput, prompt: Prompt, index: int, seed: int) -> Rollout:
        completion = output.outputs[0]
        ended = completion.finish_reason == "stop"
        books = self.config.codes_per_step
        frames = len(completion.token_ids) - ended
        codes = np.array(completion.logprobs.token_ids, dtype=np.int64).reshape(-1, books)
        logprobs = np.array(completion.logprobs.logprobs, dtype=np.float32).reshape(-1, books)
        return Rollout(
            prompt=prompt,
            sample_index=index,
            seed=seed,
            codes=codes[:frames],
            logprobs=logprobs[:frames],
            end_logprob=float(logprobs[frames, 0]) if ended else None,
            finish_reason="eos" if ended else "length",
            policy_version=self.version,
        )


def _classes() -> dict[str, str]:
    """The worker and scheduler for this platform's model runner."""
    if current_platform.is_cpu():
        return {
            "worker_cls": "rollouts.vllm.v1.DualCpuWorker",
            "scheduler_cls": "rollouts.vllm.scheduler.DualScheduler",
        }
    return {
        "worker_cls": "rollouts.vllm.v2.DualGpuWorker",
        "scheduler_cls": "rollouts.vllm.scheduler.DualAsyncScheduler",
    }


@contextmanager
def _environment(multiprocessing: bool) -> Iterator[None]:
    """What vLLM needs while it starts; the process is left as it was.

    Its mode is an environment variable. Its CPU worker disables ``torch.set_num_threads`` for good, which the
    learner may need, and looks for a ``__dict__`` in everything that any module holds, which fails in
    llvmlite's: its library object takes every name for a function of its own.
    """
    variable, module = "VLLM_ENABLE_V1_MULTIPROCESSING", "llvmlite.binding.ffi"
    value, hidden = os.environ.get(variable), sys.modules.pop(module, None)
    set_num_threads = torch.set_num_threads
    os.environ[variable] = str(int(multiprocessing))
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        if hidden is not None:
            sys.modules[module] = hidden
        if value is None:
            del os.environ[variable]
        else:
            os.environ[variable] = value
