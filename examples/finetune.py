# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a causal language model, sharded over the ranks, from a folder in Hugging Face's
layout.

    python finetune.py --make small                             # a small Llama of random values
    zerorun -n 2 python finetune.py small tuned *.txt           # trains it on text
    srun --zero -n 16 python finetune.py Qwen3-8B tuned *.txt   # or a model that you have

The result is such a folder, too. Run again with --checkpoint FOLDER, it continues from the last
checkpoint there: at any number of ranks, and after it was killed. With --protect each step is kept
in the memory of the nodes, too, and `zerorun --max-restarts=20` goes on from there after the loss
of a rank or a node.
"""

import argparse
import os
import shutil
import sys
import time

import slurm_zero as zero
import torch
import torch.distributed as dist
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", help="folder with config.json and safetensors")
    parser.add_argument("output", nargs="?", help="folder for the trained model")
    parser.add_argument("text", nargs="*", help="files of text")
    parser.add_argument("--make", action="store_true", help="make the folder `model`, and stop")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank and step")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--optimizer", choices=["torch", "adamw", "adamw8bit", "muon"],
                        default="torch", help="torch.optim.AdamW, or one of the library's")
    parser.add_argument("--bf16", action="store_true",
                        help="compute in bf16; sums and steps stay f32")
    parser.add_argument("--checkpoint",
                        help="folder of checkpoints, of which the last two are kept")
    parser.add_argument("--save-every", type=int, default=20,
                        help="steps from one checkpoint to the next")
    parser.add_argument("--protect", action="store_true",
                        help="keep the last steps in memory, for zerorun --max-restarts")
    parser.add_argument("--print-every", type=int, default=10,
                        help="steps from one line to the next")
    args = parser.parse_args()
    if not args.make and not (args.output and args.text):
        parser.error("name a folder for the result, and files of text")
    return args


def make_model(folder):
    """Writes a Llama of a million parameters, whose tokens are bytes."""
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        bos_token_id=None, eos_token_id=None,
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def read_tokens(folder, paths):
    """All text as one row of tokens: those of the model's tokenizer, or bytes where it has none."""
    text = b"\n".join(open(path, "rb").read() for path in paths)
    if not os.path.exists(os.path.join(folder, "tokenizer.json")):
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return torch.tensor(tokenizer(text.decode(errors="replace")).input_ids)


def sharded_model(folder, bf16):
    """The model without values: each layer is a group, and the rest is one."""
    with zero.meta():  # parameters take no memory
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder),
                                                 dtype=torch.float32)
    model.tie_weights()
    policy = zero.MixedPrecisionPolicy(param_dtype=torch.bfloat16 if bf16 else None)
    for layer in next(m for m in model.modules() if isinstance(m, nn.ModuleList)):
        zero.fully_shard(layer, mp_policy=policy)
    return zero.fully_shard(model, mp_policy=policy)


def make_optimizer(model, args):
    kinds = {"torch": torch.optim.AdamW, "adamw": zero.AdamW, "adamw8bit": zero.AdamW8bit}
    if args.optimizer in kinds:
        return kinds[args.optimizer](model.parameters(), lr=args.lr)
    # Muon is for the layers' matrices; embeddings, norms and the head stay with AdamW.
    layers = next(m for m in model.modules() if isinstance(m, nn.ModuleList))
    matrices = [p for p in layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if not any(p is q for q in matrices)]
    groups = [{"params": matrices}, {"params": others, "use_muon": False}]
    return zero.Muon(groups, lr=args.lr, adjust_lr_fn="match_rms_adamw")


def batch(tokens, step, args):
    """The rank's sequences of a step. They follow from the step, so that a resumed run goes on
    alike."""
    generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
    starts = torch.randint(len(tokens) - args.length, (args.batch,), generator=generator)
    return torch.stack([tokens[start : start + args.length] for start in starts.tolist()])


def train(model, optimizer, tokens, first, args):
    start = time.monotonic()
    for step in range(first, args.steps):
        ids = batch(tokens, step, args)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if args.checkpoint and (step + 1) % args.save_every == 0:
            zero.save(model, optimizer, args.checkpoint, keep_last=2, background=True)
        if (step + 1) % args.print_every == 0 or step == first:
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            say(f"step {step + 1}: loss {mean.item():.3f}, norm {float(norm):.2f}, "
                f"{(time.monotonic() - start) / (step + 1 - first):.2f} s a step")
    if args.checkpoint:
        zero.save_wait()


def say(text):
    if dist.get_rank() == 0:
        print(text, flush=True)


def main():
    args = arguments()
    if args.make:
        return make_model(args.model)
    model = sharded_model(args.model, args.bf16)
    tokens = read_tokens(args.model, args.text)
    if len(tokens) <= args.length:
        sys.exit(f"the text has {len(tokens)} tokens, too few for sequences of {args.length}")
    optimizer = make_optimizer(model, args)

    saved = None
    if args.protect:
        saved = zero.protect(model, optimizer, folder=args.checkpoint)
    elif args.checkpoint:
        saved = zero.restore(model, optimizer, args.checkpoint)
    if saved:
        say(f"continuing from {saved['path']}")
    else:
        zero.load(model, args.model)  # each rank reads its part
    say(f"{sum(p.numel() for p in model.parameters())} parameters, {dist.get_world_size()} ranks")
    train(model, optimizer, tokens, saved["step"] if saved else 0, args)

    zero.export(model, args.output)
    if dist.get_rank() == 0:
        for name in os.listdir(args.model):  # configuration and tokenizer
            if not name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
                shutil.copy(os.path.join(args.model, name), args.output)
        print(f"the trained model is in {args.output}", flush=True)


if __name__ == "__main__":
    main()
