"""The adapter for vLLM's V1 model runner, which is the one that runs on CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from rollouts.vllm.sync import WorkerCalls


class DualCpuRunner(CPUModelRunner):
    """Tells the model which request and position each row has, and samples with it."""

    def _update_states(self, scheduler_output: SchedulerOutput) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            params = request.sampling_params
            self.model.add(request.req_id, request.prompt_token_ids, params.extra_args)
        return super()._update_states(scheduler_output)

    def _preprocess(
        self,
        scheduler_output: SchedulerOutput,
        num_input_tokens: int,
        intermediate_tensors: Any = None,
    ) -> Any:
        prepared = super()._preprocess(scheduler_output, num_input_tokens, intermediate_tensors)
        counts = [scheduler_output.num_scheduled_tokens[name] for name in self.input_batch.req_ids]
        total = sum(counts)
        slots = self._slots().repeat_interleave(torch.tensor(counts))
        self.inputs_embeds.gpu[:total] = self.model.embed(
            self.input_ids.gpu[:total], slots, self.positions[:total]
        )
        return prepared

    def _sample(self, logits: Tensor, spec_decode_metadata: Any) -> SamplerOutput:
        """``logits`` are the hidden states ``[R, dim]`` of all rows (see ``compute_logits``).

        A row that is still re-computing its prefix isn't sampled.
        """
        count = self.input_batch.num_reqs
        sampled = torch.from_numpy(~self.discard_request_mask.np[:count]).nonzero()[:, 0]
        tokens = torch.zeros(count, dtype=torch.int32)
        codes = torch.zeros(count, self.model.config.codes_per_step, dtype=torch.int32)
        logprobs = torch.zeros(codes.shape)
        if len(sampled):
            positions = self.optimistic_seq_lens_cpu[sampled].long()
            new_tokens, new_codes, new_logprobs = self.model.sample(
                logits[sampled], self._slots()[sampled], positions
            )
            tokens[sampled], codes[sampled] = new_tokens.int(), new_codes.int()
            logprobs[sampled] = new_logprobs
        ranks = torch.zeros(count, dtype=torch.int32)
        return SamplerOutput(tokens[:, None], LogprobsTensors(codes, logprobs, ranks))

    def _slots(self) -> Tensor:
        return torch.tensor([self.model.frames.slots[name] for name in self.input_batch.req_ids])


class DualCpuWorker(WorkerCalls, CPUWorker):
    """vLLM's CPU worker with our runner."""

    def init_device(self) -> None:
        """Replace the runner that vLLM made."""
        super().init_device()
        self.model_runner = DualCpuRunner(self.vllm_config, torch.device("cpu"))
