"""Loads, stores and places of elements, whose LLVM types are passed rather than read off a pointer.

llvmlite announces that pointers will have no element type. Numba's still have one, and LLVM before version 17 (Numba
before 0.62) has no others.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir

OPAQUE = binding.llvm_version_info >= (17,)


def pointer_type(element: Any) -> Any:
    """The type of a pointer to elements of an LLVM type."""
    return ir.PointerType() if OPAQUE else element.as_pointer()


def pointer_at(builder: Any, address: Any, element: Any) -> Any:
    """Pointer to an element at an address, an integer."""
    return builder.inttoptr(address, pointer_type(element))


def element_at(builder: Any, numbers: Any, element: Any, index: Any) -> Any:
    """Pointer to the element of `numbers` at an index."""
    if OPAQUE:
        return builder.gep(numbers, [index], source_etype=element)
    return builder.gep(cast(builder, numbers, element), [index])


def load(builder: Any, pointer: Any, element: Any, align: int | None = None) -> Any:
    """The value of an LLVM type at a pointer."""
    if OPAQUE:
        return builder.load(pointer, align=align, typ=element)
    return builder.load(cast(builder, pointer, element), align=align)


def store(builder: Any, value: Any, pointer: Any, align: int | None = None) -> Any:
    """Store a value at a pointer; returns the instruction."""
    return builder.store(value, cast(builder, pointer, value.type), align=align)


def cast(builder: Any, pointer: Any, element: Any) -> Any:
    """The pointer to an element of another LLVM type, where its type names that."""
    return builder.bitcast(pointer, element.as_pointer()) if hasattr(pointer.type, "pointee") else pointer
