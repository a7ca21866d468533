#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 checkpoint by the safetensors package, and its loss by numpy in f64.

reference.py write VARIANT FOLDER    makes the folder; prints the losses at 1, 2 and 3 ranks
reference.py compare WORLD LOSSES GOT
reference.py same FOLDER FILE        whether FILE holds the folder's tensors, bit by bit
"""
import json
import os
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB, EPS = 3, 4, 44, 23, 301, 1e-5
BATCH, SEQ, STEPS = 2, 19, 3


def parameters(rng):
    def normal(*shape, mean=0.0):
        return rng.normal(mean, 0.3, shape).astype(np.float32)

    p = {"wte.weight": normal(VOCAB, WIDTH), "wpe.weight": normal(CONTEXT, WIDTH)}
    for l in range(LAYERS):
        for name, n_in, n_out in [
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ]:
            p[f"h.{l}.{name}.weight"] = normal(n_in, n_out)
            p[f"h.{l}.{name}.bias"] = normal(n_out)
        for name in "ln_1", "ln_2":
            p[f"h.{l}.{name}.weight"] = normal(WIDTH, mean=1)
            p[f"h.{l}.{name}.bias"] = normal(WIDTH)
    p["ln_f.weight"] = normal(WIDTH, mean=1)
    p["ln_f.bias"] = normal(WIDTH)
    return p


def layernorm(x, p, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
    return x * p[name + ".weight"] + p[name + ".bias"]


def linear(x, p, name):
    return x @ p[name + ".weight"] + p[name + ".bias"]


def loss(p, tokens):
    """The mean cross-entropy of tokens[1:] after tokens[:-1]."""
    n = len(tokens) - 1
    x = p["wte.weight"][tokens[:-1]] + p["wpe.weight"][:n]
    future = np.triu(np.ones((n, n), bool), 1)
    for l in range(LAYERS):
        h = f"h.{l}."
        q, k, v = (
            part.reshape(n, HEADS, -1).swapaxes(0, 1)
            for part in np.split(linear(layernorm(x, p, h + "ln_1"), p, h + "attn.c_attn"), 3, -1)
        )
        score = q @ k.swapaxes(1, 2) / np.sqrt(WIDTH // HEADS)
        score = np.exp(np.where(future, -np.inf, score))
        value = (score / score.sum(-1, keepdims=True)) @ v
        x = x + linear(value.swapaxes(0, 1).reshape(n, WIDTH), p, h + "attn.c_proj")
        u = linear(layernorm(x, p, h + "ln_2"), p, h + "mlp.c_fc")
        u = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        x = x + linear(u, p, h + "mlp.c_proj")
    logits = layernorm(x, p, "ln_f") @ p["wte.weight"].T
    top = logits.max(-1, keepdims=True)
    norm = top[:, 0] + np.log(np.exp(logits - top).sum(-1))
    return (norm - logits[np.arange(n), tokens[1:]]).mean()


def write(variant, folder):
    rng = np.random.default_rng(5)
    p = parameters(rng)
    tokens = rng.integers(0, VOCAB, 500).astype("<u2")
    prefix = "" if variant == "bare" else "transformer."
    tensors = {prefix + name: tensor for name, tensor in p.items()}
    # What older checkpoints also hold: masks, and a head that is tied to wte anyway.
    for l in range(LAYERS):
        mask = np.tril(np.ones((1, 1, CONTEXT, CONTEXT), np.float32))
        tensors[f"{prefix}h.{l}.attn.bias"] = mask
        tensors[f"{prefix}h.{l}.attn.masked_bias"] = np.array(-1e4, np.float32)
    tensors["lm_head.weight"] = np.zeros((VOCAB, WIDTH), np.float32)

    os.makedirs(folder)
    tokens.tofile(f"{folder}/tokens")
    with open(f"{folder}/config.json", "w") as out:
        config = {"model_type": "gpt2", "activation_function": "gelu_new", "n_inner": None}
        config |= {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "n_positions": CONTEXT}
        json.dump(config | {"vocab_size": VOCAB, "layer_norm_epsilon": EPS}, out)
    if variant == "sharded":
        names, files = sorted(tensors), {}
        for i in range(3):
            file = f"model-{i + 1:05}-of-00003.safetensors"
            part = {name: tensors[name] for name in names[i::3]}
            save_file(part, f"{folder}/{file}", {"format": "pt"})
            files |= {name: file for name in part}
        with open(f"{folder}/model.safetensors.index.json", "w") as out:
            json.dump({"metadata": {"total_size": 0}, "weight_map": files}, out)
    else:
        save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})

    exact = {name: tensor.astype(np.float64) for name, tensor in p.items()}
    losses = []
    for k in range(STEPS * BATCH * 3):
        begin = k * SEQ % (len(tokens) - SEQ)
        losses.append(loss(exact, tokens[begin : begin + SEQ + 1].astype(int)))
    print(" ".join(f"{np.mean(losses[: STEPS * BATCH * world]):.9f}" for world in (1, 2, 3)))


def compare(world, losses, got):
    want = float(losses.split()[int(world) - 1])
    print(f"{world} ranks: loss {got}, reference {want}")
    return abs(float(got) - want) < 1e-4


def same(folder, file):
    original = {}
    for name in os.listdir(folder):
        if name.endswith(".safetensors"):
            original |= load_file(f"{folder}/{name}")
    extra = [n for n in original if n.endswith((".attn.bias", ".attn.masked_bias"))]
    for name in extra + ["lm_head.weight"]:
        del original[name]
    written = load_file(file)
    if set(written) != set(original):
        print("tensors differ:", set(written) ^ set(original))
        return False
    return all(
        written[n].dtype == t.dtype and written[n].shape == t.shape and (written[n] == t).all()
        for n, t in original.items()
    )


if sys.argv[1] == "write":
    write(*sys.argv[2:])
else:
    sys.exit(0 if {"compare": compare, "same": same}[sys.argv[1]](*sys.argv[2:]) else 1)
