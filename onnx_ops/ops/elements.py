"""Elements of any floating dtype, read and written in the computing dtype of a kernel."""

from __future__ import annotations

from typing import Any

from onnx_ops.loops.memory import (
    DOUBLE,
    address_of,
    array_at,
    copy_bytes,
    item_size,
    read_numbers,
    read_row,
    size_of,
    write_numbers,
    write_row,
)
from onnx_ops.loops.primitives import Array, Floating, helper
from onnx_ops.loops.records import Kernel


@helper
def read_as(kernel: Kernel, source: int, element_type: int, count: int, target: Array, dtype: Floating) -> None:
    """Convert elements at an address to a computing dtype that holds them."""
    if size_of(dtype) == item_size(DOUBLE):
        read_numbers(kernel.read, source, element_type, count, address_of(target))
    else:
        read_row(source, element_type, count, target)


@helper
def write_as(kernel: Kernel, numbers: Array, count: int, target: int, element_type: int, dtype: Floating) -> None:
    """Inverse of `read_as`, rounded once."""
    if size_of(dtype) == item_size(DOUBLE):
        write_numbers(kernel.write, address_of(numbers), element_type, count, target)
    else:
        write_row(numbers, element_type, count, target)


@helper
def elements(kernel: Kernel, source: int, element_type: int, count: int, converted: Array, dtype: Floating) -> Any:
    """Elements at an address in a computing dtype: where they are, if they have it, else in `converted`."""
    found = converted
    if item_size(element_type) == size_of(dtype):
        found = array_at(source, count, dtype)
    else:
        read_as(kernel, source, element_type, count, converted, dtype)
    return found


@helper
def destination(target: int, element_type: int, width: int, in_place: bool, own: Array, dtype: Floating) -> Any:
    """Where to compute a row that `deliver` writes to an address: there, or in memory of one's own.

    In place it is the latter, as LLVM's vectors are not used where memory overlaps.
    """
    found = own
    if item_size(element_type) == size_of(dtype) and not in_place:
        found = array_at(target, width, dtype)
    return found


@helper
def deliver(
    kernel: Kernel, own: Array, width: int, target: int, element_type: int, in_place: bool, dtype: Floating
) -> None:
    """Write a row that was computed in its `destination` to an address."""
    size = item_size(element_type)
    if size != size_of(dtype):
        write_as(kernel, own, width, target, element_type, dtype)
    elif in_place:
        copy_bytes(address_of(own), target, width * size)
