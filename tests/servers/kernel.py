# SPDX-License-Identifier: Apache-2.0
"""What is read of a kernel's package: its image, unpacked, and the modules that a guest loads, each
after those that it needs.

A package has no modules.dep, which depmod makes where it is installed. What a module needs is said
in the module itself: `depends=` in the section .modinfo of its ELF file, as `modinfo` prints it.
"""

from __future__ import annotations

import bz2
import lzma
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

ELF = b"\x7fELF"


class CannotUnpack(Exception):
    """Nobody here knows how."""


class ModuleMissing(Exception):
    """Neither a file of the package nor a part of the kernel."""


# compression


def unzstd(data: bytes) -> bytes:
    """By Python where it can (3.14), else by the program."""
    try:
        from compression import zstd
    except ImportError:
        return _by_program("zstd", data)
    return bytes(zstd.decompress(data))


def _by_program(name: str, data: bytes) -> bytes:
    program = shutil.which(name)
    if program is None:
        raise CannotUnpack(f"{name} is not installed: `apt-get install {name}`")
    ran = subprocess.run([program, "-dc"], input=data, capture_output=True, check=False)
    if ran.returncode:
        raise CannotUnpack(f"{name}: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout


def _gunzip(data: bytes) -> bytes:
    """What follows its end does not matter."""
    return zlib.decompressobj(wbits=31).decompress(data)


PACKED: Mapping[str, Callable[[bytes], bytes]] = {
    ".ko": bytes,
    ".ko.gz": _gunzip,
    ".ko.xz": lzma.decompress,
    ".ko.zst": unzstd,
}
#: How the payload of an image begins. The length of what is in it may follow its end; zstd alone
#: does not bear that.
PAYLOADS: Mapping[bytes, Callable[[bytes], bytes]] = {
    ELF: bytes,
    b"\xfd7zXZ\0": lambda data: lzma.LZMADecompressor().decompress(data),
    b"\x1f\x8b": _gunzip,
    b"BZh": lambda data: bz2.BZ2Decompressor().decompress(data),
    b"\x5d\0\0": lambda data: lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(data),
    b"\x28\xb5\x2f\xfd": lambda data: unzstd(data[:-4]),
}


def unpacked(image: bytes) -> bytes:
    """The ELF file within a bzImage; the image itself, which boots slowly, if we cannot unpack it.
    Where its parts are is said in its header: Documentation/arch/x86/boot.rst of Linux."""
    (setup,) = struct.unpack_from("<B", image, 0x1F1)
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = ((setup or 4) + 1) * 512 + offset
    payload = image[start : start + length]
    for begin, unpack in PAYLOADS.items():
        if payload.startswith(begin):
            try:
                unpacked_image = unpack(payload)
            except (CannotUnpack, OSError, EOFError, lzma.LZMAError, zlib.error):
                return image
            return unpacked_image if unpacked_image.startswith(ELF) else image
    return image


# modules


def is_module(path: str) -> bool:
    return path.endswith(tuple(PACKED))


def name_of(path: str) -> str:
    """- and _ are the same in a module's name."""
    return PurePosixPath(path).name.partition(".")[0].replace("-", "_")


def module(path: str, data: bytes) -> bytes:
    """A module's ELF file."""
    ending = next(suffix for suffix in PACKED if path.endswith(suffix))
    return PACKED[ending](data)


def needs(elf: bytes) -> list[str]:
    """The modules that this one names as its own needs."""
    words = dict(entry.partition(b"=")[::2] for entry in section(elf, b".modinfo").split(b"\0"))
    return [name_of(name) for name in words.get(b"depends", b"").decode().split(",") if name]


def section(elf: bytes, wanted: bytes) -> bytes:
    """Of a 64-bit ELF file of a PC; nothing if it has no such section."""
    if not elf.startswith(ELF + b"\2\1"):
        raise CannotUnpack("this is no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + size * index) for index in range(count)]
    at = heads[names][4]
    for name, _type, _flags, _address, offset, length in heads:
        if elf[at + name : elf.index(b"\0", at + name)] == wanted:
            return elf[offset : offset + length]
    return b""


def in_order(
    files: Mapping[str, bytes], builtin: Iterable[str], wanted: Sequence[Sequence[str]]
) -> dict[str, bytes]:
    """Modules by name, each after those that it needs. Of each of `wanted`, which are names that
    one thing has in different kernels, the first that there is; nothing that is part of the kernel.
    """
    paths = {name_of(path): path for path in files if is_module(path)}
    inside = {name_of(path) for path in builtin}
    loaded: dict[str, bytes] = {}

    def load(name: str, *for_whom: str) -> None:
        if name in loaded or name in inside:
            return
        if name in for_whom:
            raise ModuleMissing(f"modules that need each other: {' '.join((*for_whom, name))}")
        if name not in paths:
            raise ModuleMissing(f"there is no module {name}, wanted by {' '.join(for_whom)}")
        elf = module(paths[name], files[paths[name]])
        for need in needs(elf):
            load(need, *for_whom, name)
        loaded[name] = elf

    for names in wanted:
        present = [name_of(name) for name in names if name_of(name) in {*paths, *inside}]
        if not present:
            raise ModuleMissing(f"there is no module {' or '.join(names)}")
        load(present[0])
    return loaded
