"""Loads, stores and places of elements, whose LLVM types are passed rather than read off a pointer.

llvmlite announces that pointers will have no element type. Numba's still have one, and LLVM before version 17 (Numba
before 0.62) has no others.
"""

from __future__ import annotations

from llvmlite import binding, ir

OPAQUE = binding.llvm_version_info >= (17,)


def pointer_type(element: ir.Type) -> ir.Type:
    """The type of a pointer to elements of an LLVM type."""
    return ir.PointerType() if OPAQUE else element.as_pointer()


def pointer_at(builder: ir.IRBuilder, address: ir.Value, element: ir.Type) -> ir.Value:
    """Pointer to an element at an address, an integer."""
    return builder.inttoptr(address, pointer_type(element))


def element_at(builder: ir.IRBuilder, numbers: ir.Value, element: ir.Type, index: ir.Value) -> ir.Value:
    """Pointer to the element of `numbers` at an index."""
    if OPAQUE:
        return builder.gep(numbers, [index], source_etype=element)
    return builder.gep(cast(builder, numbers, element), [index])


def load(builder: ir.IRBuilder, pointer: ir.Value, element: ir.Type, align: int | None = None) -> ir.Value:
    """The value of an LLVM type at a pointer."""
    if OPAQUE:
        return builder.load(pointer, align=align, typ=element)
    return builder.load(cast(builder, pointer, element), align=align)


def store(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, align: int | None = None) -> ir.Value:
    """Store a value at a pointer; returns the instruction."""
    return builder.store(value, cast(builder, pointer, value.type), align=align)


def cast(builder: ir.IRBuilder, pointer: ir.Value, element: ir.Type) -> ir.Value:
    """The pointer to an element of another LLVM type, where its type names that."""
    return builder.bitcast(pointer, element.as_pointer()) if hasattr(pointer.type, "pointee") else pointer
