"""Puts the tensors of a checkpoint together from its shards alone, and prints a line for each: name, dtype, shape, SHA-256 of the bytes.

    read_shards.py plain|numpy|torch CHECKPOINT_DIRECTORY

`plain` parses the files itself, as any program can; the others leave that to the package safetensors (numpy has no bf16).
"""

import glob
import hashlib
import itertools
import json
import re
import struct
import sys

SIZES = {"F64": 8, "F32": 4, "BF16": 2, "U8": 1, "I32": 4, "I64": 8, "U32": 4, "U64": 8}


def plain(path):
    """Metadata, and name -> (dtype, shape, bytes)."""
    with open(path, "rb") as file:
        blob = file.read()
    begin = 8 + struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8:begin])
    metadata = header.pop("__metadata__")
    return metadata, {
        name: (entry["dtype"], entry["shape"], blob[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
        for name, entry in header.items()
    }


def by_package(path, framework):
    from safetensors import safe_open

    tensors = {}
    with safe_open(path, framework) as file:
        for name in file.keys():
            tensor, part = file.get_tensor(name), file.get_slice(name)
            if framework == "pt":
                import torch

                raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
            else:
                raw = tensor.tobytes()
            tensors[name] = (part.get_dtype(), list(tensor.shape), raw)
        return file.metadata(), tensors


def whole_tensors(shards):
    whole = {}
    for metadata, tensors in shards:
        described = json.loads(metadata["elrun.tensors"])
        for key, (dtype, shape, data) in tensors.items():
            kind, name, box = re.fullmatch(r"([^/]+)/([^[]*)(?:\[(.*)\])?", key).groups() if "/" in key else ("", "", "")
            if name not in described or kind == "aux":
                continue  # padding, checksums, host state
            full, size = described[name]["shape"], SIZES[dtype]
            first = [int(part.split(":")[0]) for part in box.split(",")] if box else [0] * len(full)
            count = size
            for extent in full:
                count *= extent
            target = whole.setdefault(f"{kind}/{name}", (dtype, full, bytearray(count)))[2]
            row = size * (shape[-1] if shape else 1)
            for number, index in enumerate(itertools.product(*(range(n) for n in shape[:-1]))):
                at = 0
                for extent, start, i in zip(full, first, list(index) + [0]):
                    at = at * extent + start + i
                target[at * size : at * size + row] = data[number * row : (number + 1) * row]
    return whole


def main():
    how, directory = sys.argv[1:]
    paths = sorted(glob.glob(glob.escape(directory) + "/*.safetensors"))
    shards = [plain(path) if how == "plain" else by_package(path, {"numpy": "np", "torch": "pt"}[how]) for path in paths]
    for name, (dtype, shape, data) in sorted(whole_tensors(shards).items()):
        print(name, dtype, json.dumps(shape, separators=(",", ":")), hashlib.sha256(data).hexdigest())


main()
