# SPDX-License-Identifier: Apache-2.0
"""Runs on each rank: a model of Transformers, loaded from safetensors into a model on meta, trained
as the same model in one process is, and exported. Its kind is the first argument."""

import os
import sys
import tempfile

import torch

import slurm_zero as zero

from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

CONFIGS = {
    "gpt2": GPT2Config(vocab_size=211, n_positions=32, n_embd=48, n_layer=3, n_head=4,
                       resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
    "llama": LlamaConfig(vocab_size=211, hidden_size=48, intermediate_size=93, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2),
    "llama_tied": LlamaConfig(vocab_size=211, hidden_size=48, intermediate_size=93, num_hidden_layers=3,
                              num_attention_heads=4, tie_word_embeddings=True),
}

torch.set_num_threads(1)
torch.manual_seed(3)
zero.init()
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
config = CONFIGS[sys.argv[1]]
single = AutoModelForCausalLM.from_config(config)
shared = [tempfile.mkdtemp() if rank == 0 else None]
torch.distributed.broadcast_object_list(shared)
if rank == 0:
    single.save_pretrained(f"{shared[0]}/in")
torch.distributed.barrier()

with zero.meta():
    model = AutoModelForCausalLM.from_config(config)
assert all(p.device.type == "meta" for p in model.parameters())
assert all(b.device.type == "cpu" for b in model.buffers())
model.tie_weights()
for layer in model.transformer.h if sys.argv[1] == "gpt2" else model.model.layers:
    zero.fully_shard(layer)
zero.fully_shard(model)
missing, unexpected = zero.load(model, f"{shared[0]}/in")
assert not missing and not unexpected, (missing, unexpected)

mine, other = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (model, single))
for step in range(20):
    data = torch.randint(0, 211, (world, 2, 16), generator=torch.Generator().manual_seed(step))
    loss = model(input_ids=data[rank], labels=data[rank]).loss
    loss.backward()
    losses = [single(input_ids=d, labels=d).loss for d in data]
    sum(losses).div(world).backward()
    torch.testing.assert_close(loss, losses[rank], rtol=1e-5, atol=1e-5)
    for m, opt in ((model, mine), (single, other)):
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        opt.step()
        opt.zero_grad()

zero.export(f"{shared[0]}/out")
if rank == 0:
    single.config.save_pretrained(f"{shared[0]}/out")
    back = AutoModelForCausalLM.from_pretrained(f"{shared[0]}/out")
    for (name, value), (_, want) in zip(back.state_dict().items(), single.state_dict().items()):
        torch.testing.assert_close(value, want, rtol=1e-3, atol=1e-3, msg=lambda t: f"{name}: {t}")
torch.distributed.barrier()
if rank == 0:
    import shutil

    shutil.rmtree(shared[0])
    print(f"1 passed, 0 failed", flush=True)
