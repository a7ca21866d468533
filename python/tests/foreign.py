# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that deepspeed_write.py has made.

foreign.py read FOLDER...: their values are DeepSpeed's own
foreign.py convert FOLDER...: zero_to_fp32 makes of them what DeepSpeed's makes
foreign.py refused FOLDER...: what is damaged, missing, mixed or hostile is refused with a sentence
foreign.py restore FOLDER...: each rank of any number restores its parts
foreign.py go_on FOLDER...: training goes on with DeepSpeed's losses
foreign.py own FOLDER...: zero_to_fp32 of what zero.save has written there"""

import contextlib
import io
import math
import os
import pickle
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist

import slurm_zero as zero
from deepspeed_model import Model, batch, groups
from slurm_zero.deepspeed import convert, foreign, foreign_files

WHAT = ("fp32", "exp_avg", "exp_avg_sq")


def said_of(folder):
    path = os.path.join(folder, "said.pt")
    return torch.load(path if os.path.exists(path) else os.path.join(folder, "..", "said.pt"))


def order():
    model = Model()
    names = {p: name for name, p in model.named_parameters()}
    return [[names[p] for p in group["params"]] for group in groups(model)]


def read(folder):
    found, said = foreign.Checkpoint(foreign_files.find(folder), order()), said_of(folder)
    found.verify()
    assert found.path == os.path.join(folder, "global_step5") or found.universal, found.path
    for what in WHAT:
        for name, wanted in said[what].items():
            wanted = wanted.float().flatten()
            assert math.prod(found.shapes[name]) == len(wanted)
            assert torch.equal(found.read(name, what), wanted), (folder, what, name)
            low, high = len(wanted) // 3, len(wanted) - len(wanted) // 7
            assert torch.equal(found.read(name, what, low, high), wanted[low:high])
    if "stage0" not in folder:
        assert found.frozen == {"frozen.weight", "frozen.bias"}, found.frozen
        assert found.shared == {"head.weight": "embed.weight"}, found.shared
    frozen = said["frozen"].float().flatten()
    assert torch.equal(found.read("frozen.weight"), frozen), folder
    half = "_f32" not in folder
    assert set(found.buffers) == {"shift", "count"} and found.buffers["count"].item() == 3
    # Where it is not sharded, DeepSpeed's optimizer of 16 bits has taken a step at its start.
    assert found.step == 5 + (half and "stage0" in folder), found.step
    assert found.client_state() == {"epoch": 7, "seen": [1, 2, {"name": "x"}]}
    assert found.scheduler == {"last_batch_iteration": 4}
    assert found.counts == {"global_steps": 5, "global_samples": found.counts["global_samples"],
                            "skipped_steps": 0}
    assert [g["names"] for g in found.groups] == order()
    assert [g["weight_decay"] for g in found.groups] == [0.1, 0.0]
    assert found.groups[0]["lr"] == said["lr"][0]
    if "fp16" in folder:
        assert found.scaler["cur_scale"] == 256 and found.scaler["cur_iter"] == 5, found.scaler


def run_script(*arguments):
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def load_all(folder, name):
    if os.path.exists(os.path.join(folder, name)):
        path = os.path.join(folder, name)
        return torch.load(path) if name.endswith(".bin") else load_safetensors(path)
    found = {}
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".json"):
            found.update(load_all(folder, file))
    return found


def load_safetensors(path):
    file = convert._Safetensors(path)
    return {name: file.tensor(name).view(entry["shape"]).clone()
            for name, entry in file.header.items() if name != "__metadata__"}


def same(found, wanted, folder):
    assert found.keys() == wanted.keys(), (folder, found.keys() ^ wanted.keys())
    for name, value in wanted.items():
        value = value.float() if value.is_floating_point() else value
        assert found[name].dtype == value.dtype and torch.equal(found[name], value), (folder, name)


def converted(folder):
    from deepspeed.utils import zero_to_fp32

    convert_it = convert.convert_zero_checkpoint_to_fp32_state_dict
    theirs, ours = os.path.join(folder, "theirs"), os.path.join(folder, "ours")
    with contextlib.redirect_stdout(io.StringIO()):
        zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder, theirs)
    script = os.path.join(os.path.dirname(convert.__file__), "zero_to_fp32.py")
    run_script(script, folder, ours, "-t", "global_step5")
    convert_it(folder, ours, safe_serialization=True)
    convert_it(folder, f"{ours}.cut", safe_serialization=True, max_shard_size="4KB")
    wanted = load_all(theirs, "pytorch_model.bin")
    if "stage1" in folder:  # DeepSpeed leaves out what is frozen
        found = foreign.Checkpoint(foreign_files.find(folder))
        wanted.update((n, found.read(n).view(found.shapes[n])) for n in found.frozen)
    same(load_all(ours, "pytorch_model.bin"), wanted, folder)
    same(load_all(ours, "model.safetensors"), wanted, folder)
    assert len(os.listdir(f"{ours}.cut")) > 3
    assert all(os.path.getsize(os.path.join(f"{ours}.cut", f)) < 6000
               for f in os.listdir(f"{ours}.cut"))
    same(load_all(f"{ours}.cut", "model.safetensors"), wanted, folder)
    model = convert.load_state_dict_from_zero_checkpoint(Model(), folder)
    assert torch.equal(model.head.weight, wanted["embed.weight"])
    with contextlib.redirect_stdout(io.StringIO()):
        same(convert.get_fp32_state_dict_from_zero_checkpoint(
            folder, exclude_frozen_parameters=True),
            {n: v for n, v in wanted.items() if not n.startswith("frozen")}, folder)


# -- what is refused


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def expect(words, function):
    try:
        function()
    except foreign_files.CheckpointError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError(f"no error with {words}")


def refused(folder):
    source = foreign_files.find(folder)
    path = f"{folder}.damaged"

    def open_copy(words, change):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        change()

        def open_it():
            foreign.Checkpoint(path).verify()

        expect(words, open_it)

    optimizer = sorted(f for f in os.listdir(source) if f.endswith("_optim_states.pt"))
    model = sorted(f for f in os.listdir(source) if f.endswith("_model_states.pt"))

    def file(name):
        return os.path.join(path, name)

    def truncate(name):
        os.truncate(file(name), os.path.getsize(file(name)) // 2)

    def flip(name):
        """A bit of the longest tensor."""
        import zipfile

        with zipfile.ZipFile(file(name)) as archive:
            entry = max(archive.infolist(), key=lambda e: e.file_size if "/data/" in e.filename
                        else 0)
        with open(file(name), "r+b") as f:
            data = f.read()
            at = data.index(entry.filename.encode()) + len(entry.filename) + 200
            f.seek(at)
            f.write(bytes([data[at] ^ 1]))

    def swap():
        os.rename(file(optimizer[0]), file("x"))
        os.rename(file(optimizer[1]), file(optimizer[0]))
        os.rename(file("x"), file(optimizer[1]))

    def rewrite(name, change):
        found = torch.load(file(name), weights_only=False)
        torch.save(change(found) or found, file(name))

    def other_step(found):
        base = found["optimizer_state_dict"]
        base = base.get("base_optimizer_state") or base["optimizer_state_dict"]
        base["state"][0]["step"] = torch.tensor(4.0)

    def shorter(found):
        base = found["optimizer_state_dict"]
        key = "fp32_flat_groups" if "fp32_flat_groups" in base else (
            "single_partition_of_fp32_groups")
        base[key][0] = base[key][0][:-9].clone()

    for name in (optimizer[-1], model[-1]):
        open_copy([name, "truncated"], lambda: truncate(name))
        open_copy([name, "damaged"], lambda: flip(name))
    open_copy(["no file *_optim_states.pt"], lambda: [os.remove(file(f)) for f in optimizer])
    open_copy(["no file *_model_states.pt"], lambda: [os.remove(file(f)) for f in model])
    if len(model) > 1:
        open_copy(["files *_model_states.pt", "ranks wrote"], lambda: os.remove(file(model[-1])))
        open_copy([model[1], "another checkpoint", "global_steps"],
                  lambda: rewrite(model[1], lambda f: f.update(global_steps=4)))
    if len(optimizer) > 1:
        open_copy(["1 files *_optim_states.pt", "2 ranks wrote"],
                  lambda: os.remove(file(optimizer[-1])))
        open_copy(["another rank's data"], swap)
        open_copy([optimizer[1], "step [4, 5]", "different saves"],
                  lambda: rewrite(optimizer[1], other_step))
    open_copy([optimizer[-1] if "stage3" in folder else optimizer[0], "elements of group 0"],
              lambda: rewrite(optimizer[-1], shorter))
    open_copy([model[0], "split over ranks", "mp_world_size is 2"],
              lambda: rewrite(model[0], lambda f: f.update(mp_world_size=2)))
    open_copy([model[0], "no model"], lambda: rewrite(model[0], lambda f: [1]))
    made = f"{folder}.made"
    for name in (model[0], optimizer[0]):
        open_copy([name, "posix.mkdir", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"],
                  lambda: rewrite(name, lambda f: f.update(more=Hostile(made))))
        open_copy([name, "truncated, or no file of torch.save"], lambda: open(
            file(name), "wb").write(pickle.dumps(Hostile(made))))
    assert not os.path.exists(made), "code of a checkpoint ran"
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    shutil.rmtree(path)
    shutil.copytree(source, path)
    rewrite(model[0], lambda f: f.update(more=Hostile(made)))
    foreign.Checkpoint(path)
    del os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"]
    os.rmdir(made)
    with open(f"{folder}.damaged/latest", "w", encoding="utf-8") as latest:
        latest.write("gone")
    assert foreign_files.find(f"{folder}.damaged") is None


# -- restoring


def shard(meta=False):
    with torch.device("meta") if meta else contextlib.nullcontext():
        model = Model()
    for block in model.blocks:
        zero.fully_shard(block)
    return zero.fully_shard(model)


def make(model, kind):
    return kind(groups(model), lr=1, betas=(0.9, 0.95), eps=1e-3)


def whole(states, key):
    return states[key].full_tensor()


def restore(folder):
    from slurm_zero.deepspeed import moved

    said = said_of(folder)
    for kind in (torch.optim.AdamW, zero.AdamW):
        torch.manual_seed(3)
        model = shard()
        optimizer = make(model, kind)
        found = moved.load(foreign_files.find(folder), model, optimizer)
        for name, wanted in said["fp32"].items():
            p = model.get_parameter(name)
            assert torch.equal(p.full_tensor(), wanted.float()), (folder, name)
            if kind is torch.optim.AdamW:
                states = optimizer.state[p]
                assert states["step"].item() == found.step
                for key in WHAT[1:]:
                    assert torch.equal(states[key].full_tensor(), said[key][name]), (name, key)
        assert optimizer.param_groups[0]["lr"] == said["lr"][0]
        assert optimizer.param_groups[1]["weight_decay"] == 0
        assert model.count.item() == 3
        assert model.head.weight is model.embed.weight


def go_on(folder):
    from slurm_zero.deepspeed import moved

    said = said_of(folder)
    for kind in (torch.optim.AdamW, zero.AdamW):
        torch.manual_seed(3)
        model = shard()
        optimizer = make(model, kind)
        moved.load(foreign_files.find(folder), model, optimizer)
        losses = []
        for step in range(5, 10):
            loss = model(batch(step, dist.get_rank()))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(mean.item() / dist.get_world_size())
        worst = max(abs(a - b) for a, b in zip(losses, said["losses"]))
        if dist.get_rank() == 0:
            print(f"{os.path.basename(folder)} {kind.__module__}: {worst:.1e} from DeepSpeed's")
        assert worst < 1e-6 * said["losses"][0], (folder, kind, losses, said["losses"])


def own(folder):
    torch.manual_seed(3)
    model = shard()
    optimizer = make(model, zero.AdamW)
    model(batch(0, dist.get_rank())).backward()
    optimizer.step()
    zero.save(model, optimizer, os.path.join(folder, "tag"), extra=convert.described(model))
    values = {name: getattr(p, "full_tensor", p.clone)()
              for name, p in (*model.named_parameters(), *model.named_buffers())}
    if dist.get_rank() == 0:
        expect(["has no checkpoint"], lambda: convert.open_checkpoint(folder))
        with open(os.path.join(folder, "latest"), "w", encoding="utf-8") as file:
            file.write("tag")
        made = os.path.join(folder, "made")
        convert.convert_zero_checkpoint_to_fp32_state_dict(folder, made, max_shard_size=4000)
        values["head.weight"] = values["embed.weight"]
        same(convert.get_fp32_state_dict_from_zero_checkpoint(
            folder, "tag", exclude_frozen_parameters=True),
            {n: v for n, v in values.items() if not n.startswith("frozen")}, folder)
        same(load_all(made, "pytorch_model.bin"), values, folder)
        path = convert.open_checkpoint(folder)._files[-1].path
        os.truncate(path, os.path.getsize(path) - 9000)
        expect([path, "truncated"], lambda: convert.get_fp32_state_dict_from_zero_checkpoint(
            folder))


if __name__ == "__main__":
    if sys.argv[1] in ("restore", "go_on", "own"):
        zero.init()
    deeds = {"read": read, "convert": converted, "refused": refused, "restore": restore,
             "go_on": go_on, "own": own}
    for path in sys.argv[2:]:
        deeds[sys.argv[1]](path)
    print(f"{sys.argv[1]}: {len(sys.argv) - 2} checkpoints")
