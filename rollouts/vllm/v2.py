"""The adapter for vLLM's V2 model runner, the default on GPU.

Written against vLLM 0.32's source and not run yet: it needs Triton, and so a GPU. The core it calls
(`rollouts.vllm.model`) is the one that the V1 adapter's tests cover.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.core.sched.output import NewRequestData
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import InputBatch, get_num_sampled_and_rejected
from vllm.v1.worker.gpu.model_states.default import DefaultModelState
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu_worker import Worker

from rollouts.vllm.frames import SCRATCH
from rollouts.vllm.sync import WorkerCalls


class DualModelState(DefaultModelState):
    """Tells the model which request and position each row has, without waiting for the device.

    ``slot_of``: the runner's request index to the model's slot. The runner removes a request when it is
    preempted too, and adds it again under its id; the model's slot outlives that.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.slot_of = torch.full((self.max_num_reqs,), SCRATCH, dtype=torch.long, device=self.device)

    def add_request(self, req_index: int, new_req_data: NewRequestData) -> None:
        """A new request, or one resumed."""
        super().add_request(req_index, new_req_data)
        self.slot_of[req_index] = self.model.add(
            new_req_data.req_id,
            new_req_data.prompt_token_ids,
            new_req_data.sampling_params.extra_args,
        )

    def prepare_inputs_embeds(
        self, scheduled_encoder_inputs: dict[str, list[int]], input_batch: InputBatch, req_states: Any
    ) -> Tensor:
        """vLLM's persistent buffer (captured graphs read it), its tokens' rows overwritten in place."""
        embeds = super().prepare_inputs_embeds(scheduled_encoder_inputs, input_batch, req_states)
        total = input_batch.num_tokens
        starts = input_batch.query_start_loc[: input_batch.num_reqs + 1]
        slots = self.slot_of[input_batch.idx_mapping[: input_batch.num_reqs]].repeat_interleave(
            starts.diff(), output_size=total
        )
        embeds[:total] = self.model.embed(input_batch.input_ids[:total], slots, input_batch.positions[:total])
        return embeds

    def custom_sampler(self, sampler: Sampler) -> tuple[Sampler, None]:
        """Our sampler in the place of vLLM's."""
        return DualSampler(sampler, self), None


class DualSampler(Sampler):
    """vLLM's sampler, of which only the bookkeeping is kept."""

    def __init__(self, base: Sampler, state: DualModelState) -> None:
        self.__dict__.update(vars(base))
        self.state = state

    def __call__(self, logits: Tensor, input_batch: InputBatch) -> SamplerOutput:
        """``logits`` are the hidden states ``[R, dim]`` of all rows (see ``compute_logits``).

        A row that is still re-computing its prefix writes into the scratch slot.
        """
        count = input_batch.num_reqs
        indices = input_batch.idx_mapping[:count]
        lengths = input_batch.seq_lens[:count]
        whole = lengths >= self.req_states.prefill_len.gpu[indices]
        slots = torch.where(whole, self.state.slot_of[indices], SCRATCH)
        tokens, codes, logprobs = self.state.model.sample(logits, slots, lengths.long())
        num_sampled, num_rejected = get_num_sampled_and_rejected(
            lengths.new_ones(count),
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.req_states.prefill_len.gpu,
        )
        ranks = torch.zeros(count, dtype=torch.int32, device=codes.device)
        return SamplerOutput(
            sampled_token_ids=tokens[:, None],
            logprobs_tensors=LogprobsTensors(codes.int(), logprobs, ranks),
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )


class DualGpuWorker(WorkerCalls, Worker):
    """vLLM's GPU worker; its runner finds `DualModelState` through the model."""
