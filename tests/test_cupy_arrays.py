"""CuPy arrays in and out. NumPy arrays and CPU tensors stand for them: both speak DLPack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pagedattn.backends.cupy import arrays

Array = np.ndarray[Any, Any]


class Stranger:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)


class Old(Stranger):
    """One that knows only the protocol before DLPack 1.0, whose capsules have another layout."""

    def __dlpack__(self, **options: Any) -> Any:
        if set(options) - {"stream"}:
            raise TypeError(f"unknown keywords: {options}")
        return self._array.__dlpack__(**options)


@pytest.fixture
def numpy_for_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_cupy_from_dlpack", np.from_dlpack)


def read_only() -> Array:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    return array


# -- in ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [lambda x: x, Stranger, Old], ids=["numpy", "stranger", "old"])
@pytest.mark.parametrize(
    ("array", "strides"),
    [
        (np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2], (6, 2)),
        (np.arange(24, dtype=np.float32).reshape(4, 6).T, (1, 6)),
        (np.array(7.0, np.float32), ()),
        (np.zeros((0, 4), np.float16), None),
        (np.array([True, False, True])[::2], (2,)),
        (np.zeros(3, np.complex64), (1,)),
        (np.arange(3, dtype=np.int8), (1,)),
    ],
    ids=["gaps", "transposed", "0-d", "empty", "bool", "complex", "int8"],
)
def test_from_cupy_shares_memory_and_strides(
    array: Array, strides: tuple[int, ...] | None, wrapped: Any
) -> None:
    tensor = arrays.from_cupy(wrapped(array))
    assert tuple(tensor.shape) == array.shape
    assert tensor.numpy().dtype == array.dtype
    assert tensor.tolist() == array.tolist()
    if strides is not None:
        assert tensor.stride() == strides
        assert tensor.data_ptr() == array.ctypes.data
        array[...] = 1
        assert tensor.sum() == array.size


def test_from_cupy_reads_bits_as_the_dtype_that_cupy_lacks() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)
    tensor = arrays.from_cupy(bits, dtype=torch.bfloat16)
    assert tensor.tolist() == [1.0, -2.0]
    assert tensor.data_ptr() == bits.ctypes.data


@pytest.mark.parametrize("wrapped", [lambda x: x, Stranger, Old], ids=["numpy", "stranger", "old"])
@pytest.mark.parametrize(
    "array",
    [np.zeros(4, np.float32)[::-1], np.zeros((3, 4), np.float16)[::-1, ::2]],
    ids=["reversed", "reversed-rows"],
)
def test_negative_strides_are_refused_before_torch_sees_them(array: Array, wrapped: Any) -> None:
    with pytest.raises(ValueError, match=r"has strides \(-\d.* give a copy of the array"):
        arrays.from_cupy(wrapped(array))


@pytest.mark.parametrize("wrapped", [lambda x: x, Stranger], ids=["numpy", "stranger"])
def test_read_only_arrays_are_refused(wrapped: Any) -> None:
    with pytest.raises(ValueError, match="is read-only, and a tensor cannot be"):
        arrays.from_cupy(wrapped(read_only()))


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(4, ">f4"), "native byte order"),
        (np.zeros(4, dtype=[("a", "f4"), ("b", "u1")])["a"], "multiple of itemsize"),
        (np.zeros(4, object), "only supports"),
        (Old(read_only()), "readonly"),
    ],
    ids=["byte-swapped", "odd-strides", "objects", "read-only-before-1.0"],
)
def test_what_cannot_be_exported_says_why(array: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"this (ndarray|Old) cannot be shared: .*{reason}"):
        arrays.from_cupy(array)


def test_from_cupy_refuses_other_sizes_and_other_things() -> None:
    with pytest.raises(ValueError, match=r"uint16 have 2 bytes, those of torch.float8_e4m3fn 1"):
        arrays.from_cupy(np.zeros(2, np.uint16), dtype=torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="a list is not an array that speaks DLPack"):
        arrays.from_cupy([1.0])
    with pytest.raises(TypeError, match="the class ndarray is not an array"):
        arrays.from_cupy(np.ndarray)
    numpy_dtype: Any = np.float32
    with pytest.raises(TypeError, match=r"float32'> is not a torch.dtype"):
        arrays.from_cupy(np.zeros(2, np.float32), dtype=numpy_dtype)


def test_a_refused_array_is_not_kept_alive() -> None:
    import sys

    array = np.zeros(4, np.float32)[::-1]
    before = sys.getrefcount(array)
    for _ in range(3):
        with pytest.raises(ValueError, match="strides"):
            arrays.from_cupy(array)
    assert sys.getrefcount(array) == before


# -- out -----------------------------------------------------------------------------------------


def test_to_cupy_shares_memory(numpy_for_cupy: None) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).t()
    array = arrays.to_cupy(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    assert array.shape == (3, 2)
    assert array.strides == (4, 12)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.bfloat16, np.uint16),
        (torch.float8_e4m3fn, np.uint8),
        (torch.float8_e5m2, np.uint8),
    ],
    ids=str,
)
def test_to_cupy_gives_bits_only_when_asked(
    numpy_for_cupy: None, dtype: torch.dtype, bits: type[np.generic]
) -> None:
    tensor = torch.zeros(2, dtype=dtype)
    with pytest.raises(TypeError, match=rf"CuPy has no {dtype}: pass bits=True"):
        arrays.to_cupy(tensor)
    array = arrays.to_cupy(tensor, bits=True)
    assert array.dtype == bits
    assert arrays.from_cupy(array, dtype=dtype).data_ptr() == tensor.data_ptr()


def test_bits_are_those_of_the_values(numpy_for_cupy: None) -> None:
    tensor = torch.tensor([1.0, -2.0], dtype=torch.bfloat16)
    assert arrays.to_cupy(tensor, bits=True).tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize("bits", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.complex128, torch.float64, torch.bool, torch.uint64], ids=str
)
def test_dtypes_of_cupy_stay_as_they_are(
    numpy_for_cupy: None, dtype: torch.dtype, bits: bool
) -> None:
    for shape in ((2, 3), (), (0, 4)):
        array = arrays.to_cupy(torch.ones(shape, dtype=dtype), bits=bits)
        assert str(array.dtype) == str(dtype).removeprefix("torch.")
        assert array.shape == shape


def test_to_cupy_calls_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(cupy, "from_dlpack", lambda x: ("cupy", x.shape))
    assert arrays.to_cupy(torch.zeros(2, 3)) == ("cupy", (2, 3))
