# SPDX-License-Identifier: Apache-2.0
"""pretrained.py STAGE FOLDER CASE...: DeepSpeed as Transformers, Accelerate and peft use it, in a
program that has never heard of slurm-zero. Rank 0 prints `case: what number...` lines, which are to
be the same whoever's the engine is."""

import contextlib
import os

import deepspeed
import torch
import transformers
from deepspeed_cases import case, folder, rank, run, stage, tell
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM, GPT2Config, LlamaConfig, Trainer, TrainerCallback, TrainingArguments,
)
from transformers.integrations import HfDeepSpeedConfig

VOCABULARY, LENGTH = 96, 12
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def files(kind):
    """A folder with a model, in two files."""
    path = f"{folder}/{kind}"
    if rank == 0 and not os.path.exists(path):
        torch.manual_seed(3)
        if kind == "llama":
            config = LlamaConfig(
                vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            )
        else:
            config = GPT2Config(
                vocab_size=VOCABULARY, n_embd=32, n_layer=3, n_head=4, n_positions=64,
                resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            )
        AutoModelForCausalLM.from_config(config).save_pretrained(path, max_shard_size="60KB")
        assert sum(f.endswith(".safetensors") for f in os.listdir(path)) > 1
    torch.distributed.barrier()
    return path


def settings(**others):
    return {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage}, "steps_per_print": 1000,
        "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "eps": 1e-3, "torch_adam": True}},
        **others,
    }


def batch(step):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator)


def train(name, engine, steps=4):
    for step in range(steps):
        ids = batch(step)
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        tell(name, f"loss.{step}", loss.item())


@case
def loaded():
    """from_pretrained under HfDeepSpeedConfig, and what programs do with the model before it is
    sharded."""
    for kind in ("gpt2", "llama"):
        path, config = files(kind), settings()
        hf = HfDeepSpeedConfig(config)  # as long as it is there
        model = AutoModelForCausalLM.from_pretrained(path)
        if stage == 3:
            assert not any(p.numel() for p in model.parameters())
        embeddings = model.get_input_embeddings()
        with deepspeed.zero.GatheredParameters(embeddings.weight):
            tell(f"loaded.{kind}", "embeddings", embeddings.weight.double().norm().item())
        model.resize_token_embeddings(VOCABULARY + 8, mean_resizing=False)
        engine, *_ = deepspeed.initialize(model=model, config=config)
        del hf
        train(f"loaded.{kind}", engine)


@case
def made():
    """from_config, whose values are made by zero.Init; they are Transformers' own."""
    described, config = LlamaConfig.from_pretrained(files("llama")), settings()
    hf = HfDeepSpeedConfig(config)
    torch.manual_seed(4)
    model = AutoModelForCausalLM.from_config(described)
    engine, *_ = deepspeed.initialize(model=model, config=config)
    del hf
    train("made", engine)
    engine.eval()
    with torch.no_grad():
        ids = torch.arange(5).view(1, 5)
        out = engine.module.generate(
            ids, max_new_tokens=6, do_sample=False, synced_gpus=stage == 3, pad_token_id=0
        )
    tell("made", "generated", *out[0].tolist())


SAMPLES = [{"input_ids": (ids := torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)),
            "labels": ids} for generator in [torch.Generator().manual_seed(7)] for _ in range(64)]


class Tell(TrainerCallback):
    def __init__(self, name):
        self.name = name

    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            tell(self.name, f"step.{state.global_step}", logs["loss"], logs["learning_rate"],
                 *([logs["grad_norm"]] if stage else []))


def arguments(name, own, **others):
    auto = {
        "zero_optimization": {
            "stage": stage, "overlap_comm": True, "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
            "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
    }
    if not own:
        auto["optimizer"] = {"type": "AdamW", "params": {
            "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto",
            "torch_adam": True}}
        auto["scheduler"] = {"type": "WarmupLR", "params": {
            "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}}
    return TrainingArguments(
        f"{folder}/{name}", use_cpu=True, per_device_train_batch_size=2, max_steps=6,
        gradient_accumulation_steps=2, learning_rate=1e-2, warmup_steps=2, weight_decay=0.01,
        adam_epsilon=1e-3, logging_steps=1, save_strategy="steps", save_steps=3, report_to=[],
        deepspeed=auto, disable_tqdm=True, seed=1, data_seed=1, **others,
    )


def trainer_of(name, own=False, adapters=False, **others):
    path = files("gpt2")  # before there are arguments, which turn zero.Init on
    args = arguments(name, own, **others)
    model = AutoModelForCausalLM.from_pretrained(path)
    if adapters:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(2)
        model = get_peft_model(model, LoraConfig(
            r=4, target_modules=["c_attn"], lora_dropout=0, task_type="CAUSAL_LM",
            fan_in_fan_out=True))
    return Trainer(model, args, train_dataset=SAMPLES, eval_dataset=SAMPLES[:16],
                   callbacks=[Tell(name)])


def tell_file(name, path):
    torch.distributed.barrier()
    for key, value in sorted(load_file(path).items()):
        tell(name, key, value.double().norm().item(), value.double().abs().max().item())


@case
def trainer():
    """Training, evaluation, prediction, a checkpoint in the middle from which it goes on, and the
    model in the end."""
    told = trainer_of("trainer")
    told.train()
    tell("trainer", "evaluated", told.evaluate()["eval_loss"])
    predicted = told.predict(SAMPLES[:8]).predictions
    tell("trainer", "predicted", float(abs(predicted).sum()))
    told.save_model(f"{folder}/trained")
    tell_file("trainer", f"{folder}/trained/model.safetensors")
    told = None  # a checkpoint is of all models that are sharded
    resumed = trainer_of("trainer.resumed")
    resumed.train(resume_from_checkpoint=f"{folder}/trainer/checkpoint-3")
    resumed.save_model(f"{folder}/resumed")
    tell_file("trainer.resumed", f"{folder}/resumed/model.safetensors")


@case
def own():
    """The Trainer's own optimizer and scheduler."""
    trainer_of("own", own=True, lr_scheduler_type="cosine").train()


@case
def adapters():
    """Those of peft."""
    told = trainer_of("adapters", adapters=True)
    told.train()
    told.save_model(f"{folder}/adapted")
    tell_file("adapters", f"{folder}/adapted/adapter_model.safetensors")


@case
def accelerated():
    """Accelerate with an optimizer and a scheduler of the program, and its states on disk."""
    import accelerate

    config = settings(gradient_accumulation_steps=2)
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    del config["optimizer"]
    plugin = accelerate.DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=stage == 3)
    path = files("gpt2")
    accelerator = accelerate.Accelerator(
        deepspeed_plugin=plugin, gradient_accumulation_steps=2)
    loader = torch.utils.data.DataLoader(SAMPLES, batch_size=2)
    model = AutoModelForCausalLM.from_pretrained(path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    def steps(name):
        for index, inputs in enumerate(loader):
            if index == 6:
                return
            with accelerator.accumulate(model):
                loss = model(**inputs).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            tell(name, f"loss.{index}", loss.item(), scheduler.get_last_lr()[0])

    steps("accelerated")
    accelerator.save_state(f"{folder}/state")
    steps("accelerated.on")
    # DeepSpeed's own at stage 3 wants a new engine, and forgets the masters.
    if stage < 3 or type(model).__module__.startswith("slurm_zero."):
        accelerator.load_state(f"{folder}/state")
    state = accelerator.get_state_dict(model)
    if stage < 3:
        steps("accelerated.again")
    assert isinstance(model, deepspeed.DeepSpeedEngine)
    assert (rank == 0) == bool(state) or stage < 3


run()
