#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zero_files.so against the safetensors package: each reads what the other writes.

usage: files_interop.py PATH/zero_files.so      (needs numpy and safetensors)

Exits with 77, "skipped", where the packages are missing.
"""
import ctypes
import json
import os
import random
import sys
import tempfile

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

MAX_DIMS = 8
ABI = 17
OK, E_FORMAT = 0, 5
# enum zero_dtype, from 1 on, by the names that the package has for them
DTYPES = ["F32", "F16", "BF16", "F64", "I64", "I32", "U8", "BOOL"]
SIZES = dict(F32=4, F16=2, BF16=2, F64=8, I64=8, I32=4, U8=1, BOOL=1)


class Tensor(ctypes.Structure):
    """zero_tensor"""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("shape", ctypes.c_size_t * MAX_DIMS),
        ("path", ctypes.c_char_p),
        ("offset", ctypes.c_uint64),
    ]


# fail() is variadic: only what stands before the "..." is seen here.
Fail = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p)


class Core(ctypes.Structure):
    """struct zero_core, whose other members the module does not use"""

    _fields_ = [("fail", Fail), ("others", ctypes.c_void_p * 6)]


class Ops(ctypes.Structure):
    """struct zero_files_ops"""

    _fields_ = [
        ("abi", ctypes.c_int),
        ("open", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))),
        ("close", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("count", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p)),
        ("tensor", ctypes.CFUNCTYPE(ctypes.POINTER(Tensor), ctypes.c_void_p, ctypes.c_size_t)),
        ("find", ctypes.CFUNCTYPE(ctypes.POINTER(Tensor), ctypes.c_void_p, ctypes.c_char_p)),
        (
            "header",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(Tensor),
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.POINTER(ctypes.c_size_t),
            ),
        ),
        (
            "index",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(Tensor),
                ctypes.c_size_t,
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.POINTER(ctypes.c_size_t),
            ),
        ),
    ]


class Refused(Exception):
    pass


class Files:
    """The module's table, with Python's types."""

    def __init__(self, path):
        self.words = b""
        self.core = Core(Fail(self.fail))
        self.library = ctypes.CDLL(path)
        entry = self.library.zero_module_files
        entry.restype = ctypes.POINTER(Ops)
        entry.argtypes = [ctypes.POINTER(Core)]
        self.ops = entry(ctypes.byref(self.core)).contents
        assert self.ops.abi == ABI, self.ops.abi
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [ctypes.c_void_p]

    def fail(self, status, words):
        self.words = words
        return status

    def read(self, path):
        """{name: (dtype, shape, bytes)} in the file's order; raises Refused."""
        file = ctypes.c_void_p()
        status = self.ops.open(os.fsencode(path), ctypes.byref(file))
        if status != OK:
            raise Refused(status, self.words)
        found = {}
        for i in range(self.ops.count(file)):
            tensor = self.ops.tensor(file, i).contents
            again = self.ops.find(file, tensor.name).contents
            assert ctypes.addressof(again) == ctypes.addressof(tensor), tensor.name
            dtype, shape = DTYPES[tensor.dtype - 1], list(tensor.shape[: tensor.ndim])
            count = 1
            for dim in shape:
                count *= dim
            with open(tensor.path, "rb") as stream:
                stream.seek(tensor.offset)
                data = stream.read(count * SIZES[dtype])
            assert len(data) == count * SIZES[dtype], tensor.name
            found[tensor.name.decode()] = (dtype, shape, data)
        self.ops.close(file)
        return found

    def header(self, tensors):
        """The header of {name: (dtype, shape, bytes)}."""
        array = (Tensor * len(tensors))()
        for tensor, (name, (dtype, shape, _)) in zip(array, tensors.items()):
            tensor.name, tensor.dtype = name.encode(), DTYPES.index(dtype) + 1
            tensor.ndim = len(shape)
            tensor.shape[: len(shape)] = shape
        header, size = ctypes.c_void_p(), ctypes.c_size_t()
        status = self.ops.header(array, len(tensors), ctypes.byref(header), ctypes.byref(size))
        assert status == OK, (status, self.words)
        data = ctypes.string_at(header, size.value)
        self.free(header)
        end = size.value
        for tensor, (_, _, content) in zip(array, tensors.values()):
            assert tensor.offset == end, tensor.name
            end += len(content)
        return data


    def index(self, tensors, shards):
        """The text of an index of {name: (dtype, shape, bytes)} in {file: names}."""
        array = (Tensor * len(tensors))()
        files = {name: path for path, names in shards.items() for name in names}
        for tensor, (name, (dtype, shape, _)) in zip(array, tensors.items()):
            tensor.name, tensor.dtype = name.encode(), DTYPES.index(dtype) + 1
            tensor.ndim = len(shape)
            tensor.shape[: len(shape)] = shape
            tensor.path = os.fsencode(files[name])
        text, size = ctypes.c_void_p(), ctypes.c_size_t()
        status = self.ops.index(array, len(tensors), ctypes.byref(text), ctypes.byref(size))
        if status != OK:
            raise Refused(status, self.words)
        data = ctypes.string_at(text, size.value)
        self.free(text)
        return data.decode()


def package_reads(content):
    """The same dictionary from the package; raises SafetensorError."""
    tensors = {}
    for name, info in safetensors.deserialize(content):
        tensors[name] = (info["dtype"], list(info["shape"]), bytes(info["data"]))
    return tensors


def package_writes(tensors, path):
    """Not from numpy's arrays, for numpy has no bfloat16, but from their bytes."""
    names = dict(F32="float32", F16="float16", BF16="bfloat16", F64="float64", I64="int64",
                 I32="int32", U8="uint8", BOOL="bool")
    specs = {}
    for name, (dtype, shape, data) in tensors.items():
        if hasattr(safetensors, "TensorSpec"):  # since 0.8; `tensors` keeps the bytes alive
            address = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
            specs[name] = safetensors.TensorSpec(
                dtype=names[dtype], shape=shape, data_ptr=address, data_len=len(data))
        else:
            specs[name] = dict(dtype=names[dtype], shape=shape, data=data)
    safetensors.serialize_file(specs, path)


def samples():
    """Tensors of every storage type and many shapes, their bytes random."""
    tensors = {}
    shapes = [[], [1], [7], [3, 5], [2, 0, 3], [0], [2] * 8]
    for dtype in DTYPES:
        for shape in shapes:
            count = int(numpy.prod(shape))
            data = random.randbytes(count * SIZES[dtype])
            if dtype == "BOOL":
                data = bytes(byte & 1 for byte in data)
            tensors[f'{dtype}."{len(shape)}"\\é.{count}'] = (dtype, shape, data)
    return tensors


def check_reading(files, folder):
    path = os.path.join(folder, "package.safetensors")
    numpy_types = dict(F32="<f4", F16="<f2", F64="<f8", I64="<i8", I32="<i4", U8="u1", BOOL="?")
    tensors = {k: v for k, v in samples().items() if v[0] in numpy_types}
    arrays = {
        name: numpy.frombuffer(data, numpy_types[dtype]).reshape(shape)
        for name, (dtype, shape, data) in tensors.items()
    }
    safetensors.numpy.save_file(arrays, path, metadata={"by": "the package"})
    assert files.read(path) == tensors
    tensors = samples()
    package_writes(tensors, path)
    assert files.read(path) == tensors
    for foreign in ["int8", "int16", "uint16", "uint32", "uint64"]:
        safetensors.numpy.save_file({"x": numpy.zeros(3, foreign)}, path)
        try:
            files.read(path)
        except Refused as refused:
            assert refused.args[0] == E_FORMAT, refused
        else:
            raise AssertionError(f"{foreign} was accepted")


def check_sharded(files, folder):
    tensors = samples()
    names = sorted(tensors)
    shards = {f"model-{i}-of-3.safetensors": names[i::3] for i in range(3)}
    for shard, held in shards.items():
        arrays = {n: tensors[n] for n in held}
        with open(os.path.join(folder, shard), "wb") as stream:
            stream.write(files.header(arrays) + b"".join(v[2] for v in arrays.values()))
    index = {"metadata": {"total_size": 1},
             "weight_map": {n: shard for shard, held in shards.items() for n in held}}
    path = os.path.join(folder, "model.safetensors.index.json")
    for indent in [None, 2]:
        with open(path, "w") as stream:
            json.dump(index, stream, indent=indent)
        assert files.read(path) == tensors
        assert files.read(folder) == tensors
    # Ours says the same, with the sum of the tensors' bytes and without folders.
    index["metadata"]["total_size"] = sum(len(data) for _, _, data in tensors.values())
    text = files.index(tensors, {f"some/where/{s}": held for s, held in shards.items()})
    assert json.loads(text) == index
    with open(path, "w") as stream:
        stream.write(text)
    assert files.read(folder) == tensors
    assert json.loads(files.index({}, {})) == {"metadata": {"total_size": 0}, "weight_map": {}}


def check_writing(files, folder):
    path = os.path.join(folder, "ours.safetensors")
    for tensors in [samples(), {}, dict(list(samples().items())[:1])]:
        content = files.header(tensors) + b"".join(data for _, _, data in tensors.values())
        assert package_reads(content) == tensors
        with open(path, "wb") as stream:
            stream.write(content)
        with safetensors.safe_open(path, framework="numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert sorted(opened.keys()) == sorted(tensors)
    tensors = {"a.b": ("F32", [2, 3], numpy.arange(6, dtype="<f4").tobytes())}
    with open(path, "wb") as stream:
        stream.write(files.header(tensors) + tensors["a.b"][2])
    loaded = safetensors.numpy.load_file(path)["a.b"]
    assert loaded.dtype == numpy.float32
    assert (loaded == numpy.arange(6).reshape(2, 3)).all()


def check_damaged(files, folder, cases):
    """Whatever is accepted here, the package accepts too, and reads the same from it."""
    path = os.path.join(folder, "damaged.safetensors")
    tensors = dict(
        a=("F32", [2, 3], random.randbytes(24)), b=("BF16", [4], random.randbytes(8)),
        e=("I64", [0], b""), c=("U8", [3], random.randbytes(3)))
    good = files.header(tensors) + b"".join(data for _, _, data in tensors.values())
    header = len(good) - 35
    accepted = 0
    stream = open(path, "wb", buffering=0)
    for _ in range(cases):
        content = bytearray(good)
        for _ in range(random.randint(1, 3)):
            new = random.choice([random.randrange(256), ord(random.choice('{}[]",:0123456789-. '))])
            content[random.randrange(header)] = new
        os.pwrite(stream.fileno(), content, 0)
        try:
            ours = files.read(path)
        except Refused:
            continue
        accepted += 1
        assert package_reads(bytes(content)) == ours, bytes(content)
    stream.close()
    assert 0 < accepted < cases
    return accepted


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    seed = int(os.environ.get("ZERO_TEST_SEED", "20200505"), 0)
    cases = 5000
    print(f"ZERO_TEST_SEED={seed}")
    random.seed(seed)
    files = Files(os.path.abspath(sys.argv[1]))
    for check in [check_reading, check_sharded, check_writing]:
        with tempfile.TemporaryDirectory() as folder:
            check(files, folder)
    with tempfile.TemporaryDirectory() as folder:
        accepted = check_damaged(files, folder, cases)
    print(f"{accepted} of {cases} damaged files accepted, all as safetensors "
          f"{safetensors.__version__} reads them")


if __name__ == "__main__":
    main()
