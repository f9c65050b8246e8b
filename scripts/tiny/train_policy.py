"""Pre-train the embedded policy on the corpus: cross-entropy of both ARs, history corruption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast

from rl.policy import DualARConfig, DualARForCausalLM
from rl.policy.loading import load_tokenizer
from rl.policy.prompts import code_rows, prompt_rows
from rollouts.types import Prompt

_NAMES = (
    "endoftext im_start im_end pad phoneme_start phoneme_end text voice interleave "
    "audio_start audio_end audio_pad"
)
CONTROL = [f"<|{name}|>" for name in _NAMES.split(" ")]
CORRUPTED, FAST_SHARE = 0.06, 0.35


def make_tokenizer(texts: list[str], codebook_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose merges make whole words of the domain; accepts any text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2400, min_frequency=20, initial_alphabet=alphabet, show_progress=False
    )
    prefix = (
        "system\nconvert the provided text to speech\nuser\nassistant\n"
        " reference to the following:\n\nText:\nSpeech:\n"
    )
    bpe.train_from_iterator([*texts, *[prefix] * 100], trainer)
    bpe.add_tokens([AddedToken(f"<|speaker:{i}|>", normalized=False) for i in range(2)])
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    bpe.add_special_tokens(
        [AddedToken(f"<|semantic:{i}|>", special=True, normalized=False) for i in range(codebook_size)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")


def make_config(tokenizer: PreTrainedTokenizerFast, books: int, codebook_size: int) -> DualARConfig:
    """4 x 256 slow, 2 x 192 fast."""
    ids = tokenizer.convert_tokens_to_ids
    return DualARConfig(
        text_config={
            "vocab_size": len(tokenizer), "n_layer": 4, "n_head": 4, "n_local_heads": 4, "head_dim": 64,
            "dim": 256, "intermediate_size": 704, "max_seq_len": 1024, "attention_qk_norm": True,
        },
        audio_decoder_config={
            "vocab_size": codebook_size, "n_layer": 2, "n_head": 3, "n_local_heads": 3, "head_dim": 64,
            "dim": 192, "intermediate_size": 512, "max_seq_len": books + 1, "text_dim": 256,
            "num_codebooks": books,
        },
        semantic_start_token_id=ids("<|semantic:0|>"),
        semantic_end_token_id=ids(f"<|semantic:{codebook_size - 1}|>"),
        eos_token_id=ids("<|im_end|>"), pad_token_id=ids("<|pad|>"), audio_pad_token_id=ids("<|audio_pad|>"),
    )  # fmt: skip


def batch_loss(
    model: DualARForCausalLM, items: list[tuple[Tensor, Tensor]], rng: np.random.Generator
) -> Tensor:
    """Slow plus fast cross-entropy of (prompt rows ``[1 + K, P]``, codes ``[T, K]``) pairs."""
    config = model.config
    longest = max(p.shape[1] + len(c) for p, c in items)
    rows = torch.zeros(len(items), 1 + config.num_codebooks, longest, dtype=torch.long)
    rows[:, 0] = int(config.pad_token_id)
    where_batch, where_time, labels, frames = [], [], [], []
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    for b, (prompt, codes) in enumerate(items):
        first = prompt.shape[1]
        fed = codes.clone()
        bad = torch.rand(len(codes), generator=generator) < CORRUPTED
        fed[bad] = torch.randint(config.semantic_size, (int(bad.sum()), codes.shape[1]), generator=generator)
        rows[b, :, :first] = prompt
        rows[b, :, first : first + len(codes)] = code_rows(fed.numpy(), config)
        where_batch.append(torch.full((len(codes) + 1,), b))
        where_time.append(torch.arange(first - 1, first + len(codes)))
        labels.append(torch.cat([codes[:, 0], torch.tensor([config.semantic_size])]))
        frames.append(F.pad(codes, (0, 0, 0, 1), value=-1))
    hidden = model(rows).hidden[torch.cat(where_batch), torch.cat(where_time)]
    start = config.semantic_start_token_id
    allowed = torch.tensor([*range(start, start + config.semantic_size), int(config.eos_token_id)])
    slow = F.cross_entropy(model.slow_logits(hidden, allowed).float(), torch.cat(labels))
    targets = torch.cat(frames)
    chosen = (targets[:, 0] >= 0) & (torch.rand(len(targets), generator=generator) < FAST_SHARE)
    logits = model.fast_logits(hidden[chosen], targets[chosen])
    fast = F.cross_entropy(logits.flatten(0, 1).float(), targets[chosen][:, 1:].flatten())
    return slow + fast


def load_items(
    folder: Path, tokenizer: PreTrainedTokenizerFast, config: DualARConfig
) -> list[tuple[Tensor, Tensor]]:
    """The corpus as (prompt rows, codes)."""
    texts = [u["text"] for u in json.loads((folder / "utterances.json").read_text())]
    data = np.load(folder / "codes.npz")
    codes = torch.split(torch.from_numpy(data["codes"]).long(), data["frames"].tolist())
    prompts = (Prompt(id=str(i), text=text, spoken="") for i, text in enumerate(texts))
    return [(prompt_rows(p, tokenizer, config), c) for p, c in zip(prompts, codes, strict=True)]


def train(
    folder: Path,
    out: Path,
    steps: int,
    batch: int = 32,
    peak: float = 2e-3,
    seed: int = 0,
    start: Path | None = None,
) -> None:
    """One learning-rate cycle; saves an S2-layout checkpoint (fp16) with its tokenizer into ``out``.

    ``start``: a checkpoint of an earlier cycle to go on from (a warm restart; Loshchilov and Hutter 2017).
    """
    torch.manual_seed(seed)
    rng = np.random.Generator(np.random.Philox(key=seed))
    data = np.load(folder / "codes.npz")
    texts = [u["text"] for u in json.loads((folder / "utterances.json").read_text())]
    tokenizer = make_tokenizer(texts, 1024)
    model = DualARForCausalLM(make_config(tokenizer, data["codes"].shape[1], 1024))
    torch.nn.init.normal_(model.audio_decoder.codebook_embeddings.weight, std=0.05)
    if start:
        model.load_state_dict(DualARForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict())
    items = load_items(folder, tokenizer, model.config)
    order: list[np.ndarray] = []
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.98))
    shape = [min(1.0, (s + 1) / 100, max(0.03, (steps - s) / (steps * 2 / 3))) for s in range(steps + 1)]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: shape[min(s, steps)])
    bar = tqdm(range(steps), desc="pre-training the policy", unit="step", mininterval=10)
    for step in bar:
        if not order:
            shuffled = rng.permutation(len(items))
            pools = np.array_split(shuffled, max(1, len(items) // (batch * 20)))
            by_length = [
                sorted(pool, key=lambda i: items[i][0].shape[1] + len(items[i][1])) for pool in pools
            ]
            order = [np.array(p[i : i + batch]) for p in by_length for i in range(0, len(p), batch)]
            rng.shuffle(order)  # type: ignore[arg-type]
        loss = batch_loss(model, [items[i] for i in order.pop()], rng)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step % 400 == 399 or step == steps - 1:
            save(model, tokenizer, out)


def make_usual(folder: Path, temperature: float) -> None:
    """Rescale a checkpoint so that its distributions at temperature 1 are what they were at ``temperature``.

    Each AR's last norm scales its logits; ``project_in`` takes the slow one's change back for the fast AR.
    """
    model = DualARForCausalLM.from_pretrained(folder, dtype=torch.float32)
    fast = model.audio_decoder
    with torch.no_grad():
        for norm in (model.text_model.model.norm, fast.norm):
            norm.weight /= temperature
        fast.project_in.weight *= temperature
    save(model, load_tokenizer(folder), folder)


def save(model: DualARForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the S2 layout in fp16; training goes on in fp32."""
    halved = {name: tensor.detach().half() for name, tensor in model.state_dict().items()}
    model.save_pretrained(out, state_dict=halved)
    tokenizer.save_pretrained(out)
