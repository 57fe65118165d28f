"""A shared library in memory whose only symbol is a function of this process.

onnxruntime registers custom ops by the path of a library, in which it looks up a function. For a function that exists
already the library needs no code: its symbol is absolute (SHN_ABS), so the dynamic linker returns the address as it is.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import struct
import sys

HEADER, SEGMENT, SYMBOL, ENTRY = 64, 56, 24, 16
"""Sizes in bytes of Elf64_Ehdr, Elf64_Phdr, Elf64_Sym and Elf64_Dyn."""
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
DT_NULL, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT = 0, 4, 5, 6, 10, 11
ET_DYN, READ_WRITE = 3, 6
GLOBAL_FUNCTION, SHN_ABS = 0x12, 0xFFF1
MOST_PAGE_BYTES = 1 << 16
"""The largest page size of x86-64 and AArch64."""


def library_of(symbol: str, address: int) -> str:
    """The path of a library in memory, loaded until the process ends, whose symbol is the function at an address.

    Raises:
        OSError: no ELF platform, or its dynamic linker does not load the library or relocates absolute symbols.
    """
    if not hasattr(os, "memfd_create") or sys.byteorder != "little" or struct.calcsize("P") != 8:
        raise OSError("libraries in memory need Linux with 64-bit little-endian words")
    with open("/proc/self/exe", "rb") as executable:
        own = executable.read(HEADER)
    descriptor = os.memfd_create(symbol)  # stays open: its number is part of the path
    os.write(descriptor, _elf(own, symbol.encode(), address))
    path = f"/proc/self/fd/{descriptor}"
    function = getattr(ctypes.CDLL(path), symbol, None)
    found = ctypes.cast(function, ctypes.c_void_p).value if function else None
    if found != address:
        raise OSError(f"the address of {symbol} is {found}, expected {address}")
    return path


def _elf(own: bytes, symbol: bytes, address: int) -> bytes:
    """The contents of the library.

    Args:
        own: the ELF header of this process's program, for the machine and its flags.
    """
    names = b"\0" + symbol + b"\0"
    # One bucket of the hash table, with the one symbol; the symbol before it is undefined, as the format wants it.
    hashes = struct.pack("<5I", 1, 2, 1, 0, 0)
    symbols = bytes(SYMBOL) + struct.pack("<IBBHQQ", 1, GLOBAL_FUNCTION, 0, SHN_ABS, address, 0)
    sizes = (HEADER + 3 * SEGMENT, len(symbols), 6 * ENTRY, len(hashes))
    at_symbols, at_dynamic, at_hashes, at_names = itertools.accumulate(sizes)
    tables = {DT_HASH: at_hashes, DT_STRTAB: at_names, DT_SYMTAB: at_symbols, DT_STRSZ: len(names), DT_SYMENT: SYMBOL}
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in [*tables.items(), (DT_NULL, 0)])
    machine, flags = own[18:20], own[48:52]
    sizes_of_tables = (HEADER, SEGMENT, 3, 0, 0, 0)
    header = own[:16] + struct.pack("<H2sIQQQ4s6H", ET_DYN, machine, 1, 0, HEADER, 0, flags, *sizes_of_tables)

    def segment(kind: int, start: int, size: int, alignment: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, READ_WRITE, start, start, start, size, size, alignment)

    whole = at_names + len(names)
    segments = [
        segment(PT_LOAD, 0, whole, MOST_PAGE_BYTES),  # writable: the dynamic linker relocates the dynamic section
        segment(PT_DYNAMIC, at_dynamic, len(dynamic), 8),
        segment(PT_GNU_STACK, 0, 0, 16),  # without it the stack would become executable
    ]
    return b"".join([header, *segments, symbols, dynamic, hashes, names])
