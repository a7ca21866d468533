# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: models of Transformers, each trained for 20 steps as a sharded model, as FSDP2
and in one process on the batches of all ranks. Models may be named by arguments."""

import copy
import shutil
import sys
import tempfile
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import fsdp

import slurm_zero as zero
import transformers as tf
from slurm_zero._streamed_loss import Logits

WORDS = 211  # odd, as the other sizes, so that shards end within rows
TEXT = {"vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 93, "num_hidden_layers": 3,
        "num_attention_heads": 4}
# torch._grouped_mm takes rows of multiples of 16 bytes.
EXPERTS = {**TEXT, "intermediate_size": 88, "num_key_value_heads": 2, "num_experts_per_tok": 2}


def words(generator):
    ids = torch.randint(0, WORDS, (2, 16), generator=generator)
    return {"input_ids": ids, "labels": ids}


def images(generator):
    return {"pixel_values": torch.randn(2, 3, 20, 20, generator=generator),
            "labels": torch.randint(0, 7, (2,), generator=generator)}


# name: (class, config, batch). Dropout is off.
CAUSAL = tf.AutoModelForCausalLM
MODELS = {
    "gpt2": (CAUSAL, tf.GPT2Config(vocab_size=WORDS, n_positions=32, n_embd=48, n_layer=3, n_head=4,
                                   resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), words),
    "llama": (CAUSAL, tf.LlamaConfig(**TEXT, num_key_value_heads=2), words),
    "llama_tied": (CAUSAL, tf.LlamaConfig(**TEXT, tie_word_embeddings=True), words),
    "qwen3": (CAUSAL, tf.Qwen3Config(**TEXT, num_key_value_heads=2, head_dim=12), words),
    "mixtral": (CAUSAL, tf.MixtralConfig(**EXPERTS, num_local_experts=5), words),
    "qwen3_moe": (CAUSAL, tf.Qwen3MoeConfig(**EXPERTS, num_experts=5, moe_intermediate_size=40,
                                            head_dim=12), words),
    "bert": (tf.AutoModelForMaskedLM, tf.BertConfig(
        **TEXT, max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0),
        words),
    "vit": (tf.AutoModelForImageClassification, tf.ViTConfig(
        **{k: v for k, v in TEXT.items() if k != "vocab_size"}, image_size=20, patch_size=5,
        num_labels=7, hidden_dropout_prob=0, attention_probs_dropout_prob=0), images),
}
FROM_FILES = ("gpt2", "llama", "llama_tied")

torch.set_num_threads(1)
zero.init()
rank, world = dist.get_rank(), dist.get_world_size()


def on_meta(name, folder):
    """The model that is in the folder."""
    kind, config, _ = MODELS[name]
    with zero.meta():
        model = kind.from_config(config)
    assert all(p.device.type == "meta" for p in model.parameters())
    assert all(b.device.type == "cpu" for b in model.buffers())
    model.tie_weights()
    shard(model, zero.fully_shard)
    missing, unexpected = zero.load(model, folder)
    assert not missing and not unexpected, (missing, unexpected)
    return model


def shard(model, fully_shard, **options):
    for layer in next(m for m in model.modules() if isinstance(m, nn.ModuleList)):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def step(model, optimizer, data):
    """The losses of this process's batches."""
    losses = [model(**batch).loss for batch in data]
    (sum(losses) / len(losses)).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return losses


def train(name, models, tolerances):
    """The first is in one process; tolerances are of the others' losses against the third's, which
    is the sharded one."""
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in models]
    for number in range(20):
        data = [MODELS[name][2](torch.Generator().manual_seed(world * number + r))
                for r in range(world)]
        losses = [step(models[0], optimizers[0], data)[rank]]
        losses += [step(m, o, data[rank:rank + 1])[0] for m, o in zip(models[1:], optimizers[1:])]
        for other, loss, tolerance in zip(("one process", "FSDP2"), losses, tolerances):
            torch.testing.assert_close(
                losses[2].float(), loss.float(), rtol=tolerance, atol=tolerance,
                msg=lambda text: f"{name}: loss of step {number} against {other}: {text}",
            )


def in_f32(name, folder):
    torch.manual_seed(3)
    single = MODELS[name][0].from_config(MODELS[name][1])
    stock = shard(copy.deepcopy(single), fsdp.fully_shard)
    if name in FROM_FILES:
        if rank == 0:
            single.save_pretrained(f"{folder}/{name}")
        dist.barrier()
        model = on_meta(name, f"{folder}/{name}")
    else:
        model = shard(copy.deepcopy(single), zero.fully_shard)
    train(name, (single, stock, model), (1e-5, 1e-5))
    for (key, value), want in zip(model.state_dict().items(), single.state_dict().values()):
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        torch.testing.assert_close(value, want, rtol=1e-3, atol=1e-3, msg=lambda t: f"{key}: {t}")


def in_bf16(name):
    """Against FSDP2, which rounds at the same places, and against f32 in one process."""
    torch.manual_seed(4)
    single = MODELS[name][0].from_config(MODELS[name][1])
    policy = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    stock, model = (
        shard(copy.deepcopy(single), of.fully_shard, mp_policy=of.MixedPrecisionPolicy(**policy))
        for of in (fsdp, zero)
    )
    train(name, (single, stock, model), (2**-5, 2**-7))


def in_slices(name):
    """All that can be streamed is, and the logits of a head are never whole."""
    torch.manual_seed(6)
    single = MODELS[name][0].from_config(MODELS[name][1])
    stock = shard(copy.deepcopy(single), fsdp.fully_shard)
    model = shard(copy.deepcopy(single), zero.fully_shard, streamed=6144)
    train(name, (single, stock, model), (1e-5, 1e-5))
    data = MODELS[name][2](torch.Generator().manual_seed(rank))
    with torch.no_grad():
        want = single(**data).logits
        torch.testing.assert_close(model(**data).logits, want, rtol=1e-3, atol=1e-3)
    out = model(**data)
    if isinstance(out.logits, Logits):
        with mock.patch.object(Logits, "_whole", side_effect=AssertionError("whole logits")):
            out = model(**data)
        out.loss.backward()
        model.zero_grad()
    else:
        assert name in ("bert", "vit"), "the head of this model does not stream"
    torch.testing.assert_close(out.logits * 1, want, rtol=1e-3, atol=1e-3)


def exported():
    """Transformers reads what is exported, if one model was sharded."""
    kind, config, _ = MODELS["llama_tied"]
    single = kind.from_config(config)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    model = shard(copy.deepcopy(single), zero.fully_shard)
    data = [words(torch.Generator().manual_seed(r)) for r in range(world)]
    step(model, torch.optim.SGD(model.parameters(), lr=1.0), data[rank:rank + 1])
    step(single, torch.optim.SGD(single.parameters(), lr=1.0), data)
    zero.export(model, folder[0])
    if rank == 0:
        config.save_pretrained(folder[0])
        back = kind.from_pretrained(folder[0])
        for (key, value), want in zip(back.state_dict().items(), single.state_dict().values()):
            torch.testing.assert_close(value, want, msg=lambda text: f"{key}: {text}")
        shutil.rmtree(folder[0])


torch.manual_seed(5)
exported()
shared = [tempfile.mkdtemp() if rank == 0 else None]
dist.broadcast_object_list(shared)
names = sys.argv[1:] or list(MODELS)
for name in names:
    in_f32(name, shared[0])
    in_bf16(name)
    in_slices(name)
dist.barrier()
if rank == 0:
    shutil.rmtree(shared[0])
    print(f"{len(names)} passed, 0 failed", flush=True)
