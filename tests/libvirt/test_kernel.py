# SPDX-License-Identifier: Apache-2.0
"""What a Linux guest of the tests is made of, whatever the kernel that Debian has today: modules in
the order of their own needs, and images however they are packed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import kernel

ROOT = "lib/modules/6.1.0-1-amd64/kernel/drivers"


def elf(depends: str = "", *, modinfo: bool = True) -> bytes:
    """A module that says what it needs, and nothing else."""
    info = b"license=GPL\0" + f"depends={depends}".encode() + b"\0retpoline=Y\0"
    names = b"\0.modinfo\0.shstrtab\0"
    head, end = 64, 64 + len(info) + len(names)
    sections = [
        struct.pack("<IIQQQQIIQQ", *[0] * 10),
        struct.pack("<IIQQQQIIQQ", 1 if modinfo else 0, 1, 2, 0, head, len(info), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, head + len(info), len(names), 0, 0, 1, 0),
    ]
    about = struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, end, 0, 64, 0, 0, 64, len(sections), 2)
    return b"\x7fELF\2\1\1".ljust(16, b"\0") + about + info + names + b"".join(sections)


def package(needs: dict[str, str], ending: str = ".ko") -> dict[str, bytes]:
    return {f"{ROOT}/{name}{ending}": elf(depends) for name, depends in needs.items()}


def loaded(needs: dict[str, str], *wanted: str, builtin: tuple[str, ...] = ()) -> list[str]:
    return list(kernel.in_order(package(needs), builtin, [[one] for one in wanted]))


def test_a_module_comes_after_those_that_it_needs_and_those_that_they_need() -> None:
    needs = {
        "virtio": "virtio_ring",  # as in 6.1.192; before it was the other way round
        "virtio_ring": "",
        "virtio_pci": "virtio,virtio_ring,virtio_pci_legacy_dev",
        "virtio_pci_legacy_dev": "",
        "other": "nobody",
    }
    assert loaded(needs, "virtio_pci", "virtio") == [
        *("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci"),
    ]
    needs |= {"virtio": "", "virtio_ring": "virtio"}
    assert loaded(needs, "virtio_pci")[:2] == ["virtio", "virtio_ring"]


def test_what_is_part_of_the_kernel_is_not_loaded() -> None:
    needs = {"i6300esb": "watchdog,pci_core"}
    inside = ("kernel/drivers/watchdog/watchdog.ko", "kernel/drivers/pci-core.ko")
    assert loaded(needs, "i6300esb", builtin=inside) == ["i6300esb"]
    assert loaded(needs, "watchdog", builtin=inside) == []


def test_of_the_names_that_a_thing_has_the_first_that_there_is_counts() -> None:
    wanted = [["pvpanic-mmio", "pvpanic"]]
    new = package({"pvpanic-mmio": "pvpanic", "pvpanic": ""})
    assert list(kernel.in_order(new, (), wanted)) == ["pvpanic", "pvpanic_mmio"]
    assert list(kernel.in_order(package({"pvpanic": ""}), (), wanted)) == ["pvpanic"]


def test_what_is_not_there_is_named_with_who_needs_it() -> None:
    with pytest.raises(kernel.ModuleMissing, match="no module c, wanted by a b"):
        loaded({"a": "b", "b": "c"}, "a")
    with pytest.raises(kernel.ModuleMissing, match="no module x or y"):
        kernel.in_order({}, (), [["x", "y"]])
    with pytest.raises(kernel.ModuleMissing, match="need each other: a b a"):
        loaded({"a": "b", "b": "a"}, "a")


def test_a_module_without_dependencies_needs_no_other() -> None:
    assert kernel.needs(elf("virtio,virtio-ring")) == ["virtio", "virtio_ring"]
    assert kernel.needs(elf()) == []
    assert kernel.needs(elf("virtio", modinfo=False)) == []
    with pytest.raises(kernel.CannotUnpack, match="no 64-bit"):
        kernel.needs(b"MZ")


def zstd(data: bytes) -> bytes:
    """A frame with one block that is not packed, so that nobody is needed to make it."""
    size = struct.pack("<H", len(data) - 256)
    block = struct.pack("<I", len(data) << 3 | 1)[:3]
    return b"\x28\xb5\x2f\xfd\x60" + size + block + data


#: By Python itself from 3.14 on.
KNOWS_ZSTD = bool(shutil.which("zstd") or sys.version_info >= (3, 14))


@pytest.mark.parametrize(
    ("ending", "pack"),
    [(".ko", bytes), (".ko.gz", gzip.compress), (".ko.xz", lzma.compress)],
)
def test_modules_are_read_however_they_are_packed(
    ending: str, pack: Callable[[bytes], bytes]
) -> None:
    files = {f"{ROOT}/a{ending}": pack(elf("b")), f"{ROOT}/b{ending}": pack(elf())}
    assert kernel.in_order(files, (), [["a"]]) == {"b": elf(), "a": elf("b")}


def test_zstd_is_unpacked_where_somebody_can_and_missed_where_nobody_can() -> None:
    files = {f"{ROOT}/a.ko.zst": zstd(elf())}
    boots = image(with_size(zstd(elf())))
    if KNOWS_ZSTD:
        assert kernel.in_order(files, (), [["a"]]) == {"a": elf()}
        assert kernel.unpacked(boots) == elf()
        return
    with pytest.raises(kernel.CannotUnpack, match="apt-get install zstd"):
        kernel.in_order(files, (), [["a"]])
    assert kernel.unpacked(boots) == boots


def test_a_missing_unpack_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernel.CannotUnpack, match="apt-get install nothing-such"):
        kernel._by_program("nothing-such", b"")


def image(payload: bytes) -> bytes:
    """A bzImage: one sector of setup, then what unpacks the payload, which is behind that."""
    head = bytearray(1024)
    head[0x1F1] = 1
    struct.pack_into("<II", head, 0x248, 16, len(payload))
    return bytes(head) + b"unpacks the rest" + payload + b"the end"


def with_size(data: bytes) -> bytes:
    """As the kernel's makefiles do to all but gzip, which has it."""
    return data + struct.pack("<I", len(data))


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        lambda data: with_size(lzma.compress(data)),
        lambda data: with_size(lzma.compress(data, lzma.FORMAT_ALONE)),
        lambda data: with_size(bz2.compress(data)),
    ],
    ids=["plain", "gzip", "xz", "lzma", "bzip2"],
)
def test_an_image_is_unpacked_however_it_is_packed(pack: Callable[[bytes], bytes]) -> None:
    assert kernel.unpacked(image(pack(elf()))) == elf()


@pytest.mark.parametrize("payload", [b"\x02\x21\x4c\x18 lz4", b"\x1f\x8b broken", b"\xfd7zXZ\0 no"])
def test_an_image_that_nobody_here_unpacks_is_booted_as_it_is(payload: bytes) -> None:
    assert kernel.unpacked(image(payload)) == image(payload)
