"""Streams groups of tensors into safetensors files: a pass over the headers first, then the data, a piece at a time."""
import json
import struct
from pathlib import Path

from .errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ALIGNMENT = 8


def split(groups, shard_bytes):
    """Lists of groups of at most shard_bytes each; a larger group is alone."""
    shards, size = [[]], 0
    for group in groups:
        own = sum(entry.size_bytes for entry in group.entries)
        if shards[-1] and size + own > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(group)
        size += own
    return shards


def header(groups):
    entries, offset = {"__metadata__": {"format": "pt"}}, 0
    for group in groups:
        for entry in group.entries:
            if entry.name in entries:
                raise CheckpointError(f"two tensors are called {entry.name}")
            end = offset + entry.size_bytes
            entries[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [offset, end]}
            offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % ALIGNMENT)


def write_file(path, groups):
    text = header(groups)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for group in groups:
            written = sum(file.write(part.tobytes()) for part in group.parts())
            expected = sum(entry.size_bytes for entry in group.entries)
            assert written == expected, (group.entries, written, expected)


def write_tensors(folder, groups, shard_bytes):
    """Writes one file, or several and their index; gives the bytes of all tensors."""
    shards = split(groups, shard_bytes)
    total = sum(entry.size_bytes for shard in shards for group in shard for entry in group.entries)
    if len(shards) == 1:
        write_file(Path(folder) / SINGLE_FILE, shards[0])
        return total
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_file(Path(folder) / name, shard)
        weight_map.update({entry.name: name for group in shard for entry in group.entries})
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (Path(folder) / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total
