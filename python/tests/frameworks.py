# SPDX-License-Identifier: Apache-2.0
"""frameworks.py accelerate|peft|trainer|resume FOLDER, on each rank: Accelerate, peft and the
Trainer of Transformers in FSDP2 mode. The losses of 20 steps are compared with those of torch's
FSDP2 and of one process."""

import math
import sys

import accelerate.state
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import slurm_zero as zero
from slurm_zero import _overlay

what, folder = sys.argv[1:]
torch.set_num_threads(1)
zero.init()
rank, world = dist.get_rank(), dist.get_world_size()
STEPS, LR = 20, 1e-3


def make(tied=True):
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=211, hidden_size=48, intermediate_size=93, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied,
    ))
    if what == "peft":
        from peft import LoraConfig, get_peft_model

        # Its second matrix begins as 0, with which half of the gradients are.
        model = get_peft_model(model, LoraConfig(
            r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False,
            task_type="CAUSAL_LM"
        ))
    return model


def batch(step, of_rank):
    return torch.randint(0, 211, (2, 16),
                         generator=torch.Generator().manual_seed(world * step + of_rank))


def single(model, batches, rate=lambda step: 1):
    """The mean loss over the ranks' batches of each step, of one process."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    losses = []
    for step, ranks in enumerate(batches):
        optimizer.param_groups[0]["lr"] = LR * rate(step)
        loss = sum(model(input_ids=ids, labels=ids).loss for ids in ranks) / world
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def close(name, losses, wanted):
    assert len(losses) == len(wanted), (name, losses, wanted)
    for step, (loss, want) in enumerate(zip(losses, wanted)):
        assert math.isclose(loss, want, rel_tol=1e-5), (name, step, losses, wanted)


def mean(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss.item() / world


def accelerated(name):
    AcceleratorState._reset_state(True)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
        state_dict_type="SHARDED_STATE_DICT",
        # The model goes to the device meta, and rank 0's parameters to all.
        cpu_ram_efficient_loading=what == "accelerate",
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = make()
    if what == "accelerate" and rank:
        for p in model.parameters():
            p.data.zero_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    model, optimizer = accelerator.prepare(model, optimizer)
    assert isinstance(model, torch.distributed.fsdp.FSDPModule)
    assert isinstance(model, zero.FullyShardedModule) == (name == "zero")

    def train(steps):
        losses = []
        for step in steps:
            ids = batch(step, rank)
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(mean(loss))
        return losses

    losses = train(range(STEPS // 2))
    if name == "zero":
        accelerator.save_state(f"{folder}/state")
    losses += train(range(STEPS // 2, STEPS))
    if name == "zero":
        accelerator.load_state(f"{folder}/state")
        close("after load_state", train(range(STEPS // 2, STEPS)), losses[STEPS // 2 :])
        exported(accelerator, model)
    return losses


def exported(accelerator, model):
    """What Transformers and peft write is read by them."""
    state = accelerator.get_state_dict(model)
    model.save_pretrained(f"{folder}/{what}", state_dict=state, is_main_process=rank == 0)
    ids = batch(99, 0)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    dist.barrier()
    if rank == 0:
        if what == "peft":
            from peft import PeftModel

            torch.manual_seed(5)
            back = PeftModel.from_pretrained(make().unload(), f"{folder}/{what}")
        else:
            back = LlamaForCausalLM.from_pretrained(f"{folder}/{what}")
        torch.testing.assert_close(back(input_ids=ids).logits, logits, rtol=1e-5, atol=1e-5)
    dist.barrier()


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * world * STEPS

    def __getitem__(self, index):
        ids = batch(index, 0)[0]
        return {"input_ids": ids, "labels": ids}


class Recorder(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        every = [torch.empty_like(inputs["input_ids"]) for _ in range(world)]
        dist.all_gather(every, inputs["input_ids"])
        self.seen.append((loss.detach(), every))
        return loss


def trained(name, resume=None):
    AcceleratorState._reset_state(True)
    trainer = Recorder(make(tied=False), train_dataset=Data(), args=TrainingArguments(
        f"{folder}/{name}", use_cpu=True, fsdp="full_shard", max_steps=STEPS, save_steps=STEPS // 2,
        fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
        per_device_train_batch_size=2, learning_rate=LR, report_to=[], disable_tqdm=True,
        save_strategy="steps" if name == "zero" else "no",
    ))
    trainer.seen = []
    trainer.train(resume_from_checkpoint=resume)
    assert isinstance(trainer.model_wrapped, zero.FullyShardedModule) == (name == "zero")
    return [mean(loss) for loss, _ in trainer.seen], [ids for _, ids in trainer.seen], trainer


def replace():
    from torch.distributed._composable.fsdp import fully_shard

    zero.replace_fsdp2()
    zero.replace_fsdp2()  # a second time does nothing
    for other in (torch.distributed._composable.fsdp, torch.distributed.fsdp._fully_shard):
        assert other.fully_shard is torch.distributed.fsdp.fully_shard is not fully_shard
    assert other.fully_shard.state(torch.nn.Linear(1, 1)) is None


_overlay._shard_on_cpus(accelerate.state)  # for torch's FSDP2 too
if what in ("accelerate", "peft"):
    wanted = single(make(), [[batch(step, r) for r in range(world)] for step in range(STEPS)])
    close("FSDP2", accelerated("stock"), wanted)
    replace()
    close("zero", accelerated("zero"), wanted)
elif what == "trainer":
    losses, batches, _ = trained("stock")
    wanted = single(make(tied=False), batches, rate=lambda step: 1 - step / STEPS)
    close("FSDP2", losses, wanted)
    zero.replace_fsdp2()
    losses, again, trainer = trained("zero")
    assert all(torch.equal(a, b) for x, y in zip(batches, again) for a, b in zip(x, y))
    close("zero", losses, wanted)
    # It made generate a method that gathers the parameters.
    state = trainer.accelerator.get_state_dict(trainer.model)
    ids = trainer.model.generate(batch(0, 0), max_new_tokens=4, do_sample=False)
    if rank == 0:
        model = make(tied=False)
        model.load_state_dict(state)
        assert torch.equal(ids, model.generate(batch(0, 0), max_new_tokens=4, do_sample=False))
        torch.save(losses, f"{folder}/losses")
elif what == "resume":
    zero.replace_fsdp2()
    losses, _, trainer = trained("zero", resume=f"{folder}/zero/checkpoint-{STEPS // 2}")
    close("resumed", losses, torch.load(f"{folder}/losses")[STEPS // 2 :])
print("ok")
