"""ctypes bindings of the parts of onnxruntime's C API that custom ops use (onnxruntime_c_api.h, version 1.31).

`OrtApi` is a table of functions to which new versions only append; `OrtCustomOp` has its version in its first field.
"""

from __future__ import annotations

import ctypes as C
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from onnx.defs import OpSchema

API_VERSION = 18
"""Version of OrtCustomOp: the first with GetMayInplace."""

INVALID_ARGUMENT = 2
"""ORT_INVALID_ARGUMENT, an OrtErrorCode."""

VP, SZ, INT, I64 = C.c_void_p, C.c_size_t, C.c_int, C.c_int64
FUNCTION = C.CFUNCTYPE


class Api(enum.IntEnum):
    """Indices in OrtApi."""

    CreateStatus = 0
    CreateEnv = 3
    CreateCustomOpDomain = 26
    CustomOpDomain_Add = 27
    AddCustomOpDomain = 28
    GetTensorMutableData = 51
    CastTypeInfoToTensorInfo = 55
    SetTensorElementType = 58
    CreateTensorTypeAndShapeInfo = 57
    SetDimensions = 59
    GetTensorElementType = 60
    GetDimensionsCount = 61
    GetDimensions = 62
    GetSymbolicDimensions = 63
    GetTensorTypeAndShape = 65
    CreateCpuMemoryInfo = 69
    AllocatorAlloc = 75
    AllocatorFree = 76
    KernelInfoGetAttribute_float = 85
    KernelInfoGetAttribute_int64 = 86
    KernelInfoGetAttribute_string = 87
    KernelContext_GetInputCount = 88
    KernelContext_GetInput = 90
    KernelContext_GetOutput = 91
    ReleaseStatus = 93
    ReleaseTypeInfo = 98
    ReleaseTensorTypeAndShapeInfo = 99
    ReleaseAllocator = 132
    KernelInfoGetAttributeArray_float = 162
    KernelInfoGetAttributeArray_int64 = 163
    RegisterAllocator = 176
    UnregisterAllocator = 177
    KernelInfo_GetInputCount = 230
    KernelInfo_GetOutputCount = 231
    KernelInfo_GetOutputName = 233
    KernelInfo_GetInputTypeInfo = 234
    ShapeInferContext_GetInputCount = 267
    ShapeInferContext_GetInputTypeShape = 268
    ShapeInferContext_GetAttribute = 269
    ShapeInferContext_SetOutputTypeShape = 270
    SetSymbolicDimensions = 271
    ReadOpAttr = 272
    KernelContext_ParallelFor = 274
    KernelInfoGetAllocator = 278


CType: TypeAlias = type["C._SimpleCData[Any]"]
SIGNATURES: dict[Api, Sequence[CType]] = {
    Api.CreateStatus: (INT, C.c_char_p),
    Api.CreateEnv: (INT, C.c_char_p, VP),
    Api.CreateCustomOpDomain: (C.c_char_p, VP),
    Api.CustomOpDomain_Add: (VP, VP),
    Api.AddCustomOpDomain: (VP, VP),
    Api.GetTensorMutableData: (VP, VP),
    Api.CastTypeInfoToTensorInfo: (VP, VP),
    Api.CreateTensorTypeAndShapeInfo: (VP,),
    Api.SetTensorElementType: (VP, INT),
    Api.SetDimensions: (VP, VP, SZ),
    Api.GetTensorElementType: (VP, VP),
    Api.GetDimensionsCount: (VP, VP),
    Api.GetDimensions: (VP, VP, SZ),
    Api.GetSymbolicDimensions: (VP, VP, SZ),
    Api.GetTensorTypeAndShape: (VP, VP),
    Api.KernelInfoGetAttribute_float: (VP, C.c_char_p, VP),
    Api.KernelInfoGetAttribute_int64: (VP, C.c_char_p, VP),
    Api.KernelInfoGetAttribute_string: (VP, C.c_char_p, VP, VP),
    Api.KernelInfoGetAttributeArray_float: (VP, C.c_char_p, VP, VP),
    Api.KernelInfoGetAttributeArray_int64: (VP, C.c_char_p, VP, VP),
    Api.KernelContext_GetInputCount: (VP, VP),
    Api.KernelContext_GetInput: (VP, SZ, VP),
    Api.ReleaseStatus: (VP,),
    Api.ReleaseTypeInfo: (VP,),
    Api.ReleaseTensorTypeAndShapeInfo: (VP,),
    Api.AllocatorAlloc: (VP, SZ, VP),
    Api.AllocatorFree: (VP, VP),
    Api.ReleaseAllocator: (VP,),
    Api.KernelInfoGetAllocator: (VP, INT, VP),
    Api.CreateCpuMemoryInfo: (INT, INT, VP),
    Api.RegisterAllocator: (VP, VP),
    Api.UnregisterAllocator: (VP, VP),
    Api.KernelInfo_GetInputCount: (VP, VP),
    Api.KernelInfo_GetOutputCount: (VP, VP),
    Api.KernelInfo_GetOutputName: (VP, SZ, VP, VP),
    Api.KernelInfo_GetInputTypeInfo: (VP, SZ, VP),
    Api.ShapeInferContext_GetInputCount: (VP, VP),
    Api.ShapeInferContext_GetInputTypeShape: (VP, SZ, VP),
    Api.ShapeInferContext_SetOutputTypeShape: (VP, SZ, VP),
    Api.SetSymbolicDimensions: (VP, VP, SZ),
    Api.ShapeInferContext_GetAttribute: (VP, C.c_char_p, VP),
    Api.ReadOpAttr: (VP, INT, VP, SZ, VP),
}


class OrtCustomOp(C.Structure):
    """The struct OrtCustomOp; callbacks are addresses."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("version", C.c_uint32),
        ("CreateKernel", VP),
        ("GetName", VP),
        ("GetExecutionProviderType", VP),
        ("GetInputType", VP),
        ("GetInputTypeCount", VP),
        ("GetOutputType", VP),
        ("GetOutputTypeCount", VP),
        ("KernelCompute", VP),
        ("KernelDestroy", VP),
        ("GetInputCharacteristic", VP),
        ("GetOutputCharacteristic", VP),
        ("GetInputMemoryType", VP),
        ("GetVariadicInputMinArity", VP),
        ("GetVariadicInputHomogeneity", VP),
        ("GetVariadicOutputMinArity", VP),
        ("GetVariadicOutputHomogeneity", VP),
        ("CreateKernelV2", VP),
        ("KernelComputeV2", VP),
        ("InferOutputShapeFn", VP),
        ("GetStartVersion", VP),
        ("GetEndVersion", VP),
        ("GetMayInplace", VP),
        ("ReleaseMayInplace", VP),
        ("GetAliasMap", VP),
        ("ReleaseAliasMap", VP),
    )


class OrtAllocator(C.Structure):
    """The struct OrtAllocator, without its optional functions; functions are addresses."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("version", C.c_uint32),
        ("Alloc", VP),
        ("Free", VP),
        ("Info", VP),
    )


@dataclass(frozen=True)
class _Attribute:
    """How attributes of one type are read.

    Attributes:
        function: reads it from an OrtKernelInfo.
        element: C type of an element.
        code: OrtOpAttrType.
        single: whether the value is a single element.
    """

    function: Api
    element: CType
    code: int
    single: bool = False


AttributeValue: TypeAlias = int | float | bytes | list[int] | list[float] | None


_ATTRIBUTES = {
    OpSchema.AttrType.INT: _Attribute(Api.KernelInfoGetAttribute_int64, I64, 1, single=True),
    OpSchema.AttrType.INTS: _Attribute(Api.KernelInfoGetAttributeArray_int64, I64, 2),
    OpSchema.AttrType.FLOAT: _Attribute(Api.KernelInfoGetAttribute_float, C.c_float, 3, single=True),
    OpSchema.AttrType.FLOATS: _Attribute(Api.KernelInfoGetAttributeArray_float, C.c_float, 4),
    OpSchema.AttrType.STRING: _Attribute(Api.KernelInfoGetAttribute_string, C.c_char, 5),
}


class OrtApi:
    """The functions of an OrtApi, by index.

    Args:
        address: of the OrtApi.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        table = C.cast(address, C.POINTER(VP))
        self._functions = {index: FUNCTION(VP, *types)(table[index]) for index, types in SIGNATURES.items()}

    def __call__(self, index: Api, *arguments: Any) -> int | None:
        """Call a function; returns its OrtStatus, None on success."""
        result: int | None = self._functions[index](*arguments)
        return result

    def succeeds(self, index: Api, *arguments: Any) -> bool:
        """Call a function; returns whether it returned no error."""
        if (status := self(index, *arguments)) is not None:
            self(Api.ReleaseStatus, status)
        return status is None

    def word(self, index: Api, *arguments: Any) -> int | None:
        """The 64-bit value that a function writes to its last argument, an output pointer; None on error."""
        slot = VP()
        return (slot.value or 0) if self.succeeds(index, *arguments, C.byref(slot)) else None

    def text(self, index: Api, *arguments: Any) -> str:
        """The string that a function writes to its last arguments, buffer and size."""
        size = SZ(0)
        self.succeeds(index, *arguments, None, C.byref(size))  # a query of the size may be an error
        buffer = C.create_string_buffer(size.value)
        self.succeeds(index, *arguments, buffer, C.byref(size))
        return decoded(buffer.value)

    def node_attribute(self, kind: OpSchema.AttrType, info: int, name: str) -> AttributeValue:
        """An attribute of the node of an OrtKernelInfo; None if there is none with this name and type."""
        known, key = _ATTRIBUTES[kind], name.encode()
        slot: Any
        if known.single:
            slot = known.element()
            found = self.succeeds(known.function, info, key, C.byref(slot))
        else:
            size = SZ(0)
            self.succeeds(known.function, info, key, None, C.byref(size))
            slot = (known.element * size.value)()
            found = self.succeeds(known.function, info, key, slot, C.byref(size))
        if not found:
            return None
        return slot.value if known.single or kind == OpSchema.AttrType.STRING else list(slot)

    def inferred_attribute(self, kind: OpSchema.AttrType, context: int, name: str) -> AttributeValue:
        """An attribute of the node of an OrtShapeInferContext; None if there is none with this name and type."""
        known = _ATTRIBUTES[kind]
        attribute = self.word(Api.ShapeInferContext_GetAttribute, context, name.encode())
        if not attribute:
            return None
        size = SZ(0)
        length = 1 if known.single else 0
        while True:
            slot: Any = (known.element * length)()
            if self.succeeds(Api.ReadOpAttr, attribute, known.code, slot, C.sizeof(slot), C.byref(size)):
                break
            if size.value <= C.sizeof(slot):
                return None
            length = size.value // C.sizeof(known.element)
        if kind == OpSchema.AttrType.STRING:
            return bytes(slot)[: size.value].rstrip(b"\0")
        return slot[0] if known.single else list(slot)[: size.value // C.sizeof(known.element)]

    def status(self, message: str) -> int | None:
        """A new OrtStatus, which onnxruntime raises as exception."""
        return self(Api.CreateStatus, INVALID_ARGUMENT, encoded(message))

    def dimensions(self, info: int) -> tuple[int | str | None, ...]:
        """The shape of an OrtTensorTypeAndShapeInfo; () for a scalar, and for an unknown rank."""
        rank = self.word(Api.GetDimensionsCount, info) or 0
        sizes, names = (I64 * rank)(), (C.c_char_p * rank)()
        self(Api.GetDimensions, info, sizes, rank)
        self(Api.GetSymbolicDimensions, info, names, rank)
        return tuple(
            size if size >= 0 else (decoded(name) or None) if name else None
            for size, name in zip(sizes, names, strict=True)
        )

    def element_type(self, info: int) -> int:
        """The element type of an OrtTensorTypeAndShapeInfo, 0 if unknown."""
        kind = INT()
        self(Api.GetTensorElementType, info, C.byref(kind))
        return kind.value


def object_of_pybind(wrapper: object) -> int | None:
    """The address of the C++ object of an object of pybind11; None if its layout is not that of versions 2 and 3.

    `pybind11::detail::instance` (pybind11/detail/common.h) begins with the object header, a pointer to the C++ object,
    its holder of two pointers, and two words for weak references and flags.
    """
    kind = next((k for k in type(wrapper).__mro__ if k.__base__ and k.__base__.__name__ == "pybind11_object"), None)
    header, word = object.__basicsize__, C.sizeof(VP)
    if kind is None or kind.__basicsize__ != header + 5 * word:
        return None
    return VP.from_address(id(wrapper) + header).value


def decoded(text: bytes) -> str:
    """Decode a string of onnxruntime; bytes that are not UTF-8 become surrogates."""
    return text.decode(errors="surrogateescape")


def encoded(text: str) -> bytes:
    """Inverse of `decoded`."""
    return text.encode(errors="surrogateescape")
