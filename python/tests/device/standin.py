# SPDX-License-Identifier: Apache-2.0
"""The device "standin" of torch: what stands in for a GPU, see device.cpp. Importing it before
slurm_zero.init has slurm_zero take it for a GPU. ZERO_TEST_STANDIN is the library that device.cpp
makes."""

import ctypes
import os
import types

import torch
import torch.distributed as dist

os.environ["TORCH_FR_BUFFER_SIZE"] = "0"  # it asks a group for what OnHost has not
torch._C._cuda_getDeviceCount = lambda: 0  # torch's own CUDA is not to meet the stand-in

_library = ctypes.CDLL(os.environ["ZERO_TEST_STANDIN"])
_library.standin_open.restype = ctypes.c_char_p
_wrong = _library.standin_open()
assert _wrong is None, _wrong
_driver = ctypes.CDLL("libcuda.so.1")
_driver.double_cuda_count.restype = ctypes.c_ulonglong

torch.utils.rename_privateuse1_backend("standin")
_module = types.ModuleType("torch.standin")
_module.is_available = _module.is_initialized = lambda: True
_module.device_count = lambda: 1
_module.current_device = lambda: 0
_module.set_device = _module.manual_seed = _module.manual_seed_all = lambda _: None
_module.empty_cache = lambda: None
_library.standin_held.restype = ctypes.c_size_t
_module.memory_reserved = _module.memory_allocated = lambda _=0: _library.standin_held()
_module.max_memory_allocated = _module.memory_allocated
_module.is_current_stream_capturing = lambda: False
_module._is_in_bad_fork = lambda: False
_module.get_rng_state = lambda _=0: torch.get_rng_state()
_module.set_rng_state = lambda state, _=0: torch.set_rng_state(state)
_module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
_module.current_stream = lambda _=0: torch.accelerator.current_stream()
torch._register_device_module("standin", _module)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)


def waits():
    """How often the program has waited for the device so far."""
    return _driver.double_cuda_count(b"round_trips")


def free_bytes():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert not _driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value


class Done(dist._Work):
    def __init__(self, result):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


class OnHost(dist.ProcessGroup):
    """Collectives of tensors on the device: gloo's, of copies."""

    def __init__(self, gloo, rank, size):
        super().__init__(rank, size)
        self.gloo, self.named = gloo, "default"

    _device_types = [torch.device("cpu"), torch.device("standin")]

    def getBackendName(self):
        return "standin"

    @property
    def group_name(self):
        return self.named

    def _set_group_name(self, name):
        self.named = name

    def _copied(self, collective, given, options):
        """One that changes the tensors that it is given."""
        copies = [t.cpu() for t in given]
        getattr(self.gloo, collective)(copies, options).wait()
        for to, value in zip(given, copies):
            to.copy_(value)
        return Done(given)

    def allreduce(self, tensors, opts=None):
        return self._copied("allreduce", tensors, opts or dist.AllreduceOptions())

    def broadcast(self, tensors, opts=None):
        return self._copied("broadcast", tensors, opts or dist.BroadcastOptions())

    def allgather(self, outputs, inputs, opts=None):
        copies = [[torch.empty(t.shape, dtype=t.dtype) for t in each] for each in outputs]
        self.gloo.allgather(copies, [t.cpu() for t in inputs]).wait()
        for to, values in zip(outputs, copies):
            for t, value in zip(to, values):
                t.copy_(value)
        return Done(outputs)

    def _allgather_base(self, output, given, opts=None):
        copies = [torch.empty(given.shape, dtype=given.dtype) for _ in range(self.size())]
        self.gloo.allgather([copies], [given.cpu()]).wait()
        output.copy_(torch.cat([c.flatten() for c in copies]).view(output.shape))
        return Done(output)

    def all_gather_single(self, output, given, *_, **__):
        return self._allgather_base(output, given)

    def scatter(self, outputs, inputs, opts):
        copies = [torch.empty(t.shape, dtype=t.dtype) for t in outputs]
        self.gloo.scatter(copies, [[t.cpu() for t in each] for each in inputs], opts).wait()
        for to, value in zip(outputs, copies):
            to.copy_(value)
        return Done(outputs)

    def send(self, tensors, to, tag):
        self.gloo.send([t.cpu() for t in tensors], to, tag).wait()
        return Done(tensors)

    def recv(self, tensors, of, tag):
        copies = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
        self.gloo.recv(copies, of, tag).wait()
        for to, value in zip(tensors, copies):
            to.copy_(value)
        return Done(tensors)

    def barrier(self, opts=None):
        self.gloo.barrier().wait()
        return Done(None)


def _make(store, rank, size, timeout):
    return OnHost(dist.ProcessGroupGloo(store, rank, size, timeout), rank, size)


dist.Backend.register_backend("standin", _make, devices=["cpu", "standin"])

from slurm_zero import _device as product  # noqa: E402, which imports torch

product.GPU, product.DLPACK, product.BACKENDS = "standin", 12, "standin"
