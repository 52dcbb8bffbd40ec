"""Triton's interpreter as shipped and repaired, on the kernels of triton_probes.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pagedattn.conformance.emulation import triton as emulation
from pagedattn.conformance.emulation.triton import installing
from pagedattn.errors import NotReady

HERE = Path(__file__).parent


def run(*arguments, **environment):
    command = [sys.executable, *arguments]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRITON_", "PAGEDATTN_"))}
    return subprocess.run(
        command, capture_output=True, text=True, cwd=HERE, env=kept | environment, check=False
    )


def probe(which, *names, **environment):
    done = run("triton_probes.py", which, *names, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shipped():
    return probe("shipped")


@pytest.fixture(scope="module")
def repaired():
    return probe("repaired")


# Wrong in every version that is verified, right when repaired.
REPAIRED = [
    "bf16_add",
    "bf16_sub",
    "bf16_mul",
    "bf16_less",
    "bf16_sum",
    "bf16_dot",
    "bf16_from_int",
    "bf16_cast_rounds_to_nearest_even",
    "bf16_cast_keeps_nan_and_infinity",
    "e4m3_cast_rounds_to_nearest_even",
    "e5m2_cast_rounds_to_nearest_even",
    "e4m3_cast_of_subnormals",
    "e4m3_cast_saturates",
    "e5m2_cast_saturates",
    "e4m3_to_float32_every_byte",
    "e5m2_to_float32_every_byte",
    "e4m3_to_bf16_every_byte",
    "float32_dot_in_tf32",
    "float_argument_is_float32",
    "annotated_int64_argument",
    "sum_of_16_bit_floats_rounds_every_step",
    "masked_load_without_other",
    "masked_integer_load_without_other",
    "masked_e4m3_load_without_other",
    "launches_of_two_threads",
]
# Wrong in some versions (of Triton or NumPy), or right all along.
SOUND = [
    "atomic_add",
    "bf16_constant",
    "bf16_max",
    "bf16_maximum",
    "bf16_to_float16",
    "bf16_to_float32",
    "bool_argument",
    "e4m3_dot",
    "e5m2_dot",
    "empty_grid",
    "float32_dot_in_ieee",
    "float_to_int8",
    "fp16_dot",
    "int8_dot",
    "launch_options",
    "loop_with_a_loaded_bound",
    "masked_lanes_may_point_anywhere",
    "max_skips_nan",
    "maximum_skips_nan",
    "minimum_skips_nan",
    "nothing_is_loaded_of_an_empty_tensor",
    "replay_of_a_capture",
]
# What a GPU refuses, gets wrong or faults on: accepted as shipped, an error when repaired.
MISUSE = {
    "atomic_past_the_end": "OutOfBounds: an atomic outside of OUT",
    "dot_below_the_least_tile": "AssertionError: Input shapes should have M >= 1, N >= 1 and K",
    "false_promise_of_alignment": "ValueError: tl.multiple_of promises a multiple of 16, it is 24",
    "grid_beyond_the_limit": "GridTooLarge: grid (1, 70000) of nothing_kernel",
    "load_before_the_start": "OutOfBounds: a load outside of X",
    "load_from_another_tensor": "OutOfBounds: a load outside of X",
    "load_past_the_end": "OutOfBounds: a load outside of X",
    "misaligned_load": "MisalignedAccess: a load of 4 bytes at an address of X",
    "programs_that_count_on_their_order": "wrong: [0, ",
    "store_past_the_end": "OutOfBounds: a store outside of OUT",
    "truth_of_a_block": "TypeError: the truth value of a block of shape (2,)",
}


@pytest.mark.parametrize("name", REPAIRED)
def test_a_wrong_result_is_repaired(name, shipped, repaired):
    assert shipped[name] != "right"
    assert repaired[name] == "right"


@pytest.mark.parametrize("name", SOUND)
def test_a_right_result_comes_out(name, repaired):
    assert repaired[name] == "right"


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_seen(name, shipped, repaired):
    assert shipped[name] == "right"
    assert repaired[name].startswith(MISUSE[name])


def test_an_unknown_keyword_is_named(repaired):
    assert "full_kernel has no parameter num_wraps" in repaired["unknown_keyword"]


def test_every_probe_is_judged(repaired):
    assert set(repaired) == {*REPAIRED, *SOUND, *MISUSE, "unknown_keyword"}


def test_out_of_bounds_names_lane_tensor_distance_and_program(repaired):
    text = repaired["load_past_the_end"]
    assert "X ((8,) strides (1,) torch.float32, 32 bytes)" in text
    assert "lane (5,) of (8,) is 0 bytes past its end; 3 active lanes are outside" in text
    assert "in program (0, 0, 0) of copy_kernel, grid (1, 1, 1)" in text
    assert "lane (0,) of (8,) is 4 bytes before its start" in repaired["load_before_the_start"]


@pytest.mark.parametrize(
    ("order", "found"),
    [("ascending", "right"), ("descending", "wrong: [0, 1, 1, 1, "), ("shuffled:3", "wrong: [0, ")],
)
def test_programs_run_in_the_order_that_is_asked_for(order, found):
    name = "programs_that_count_on_their_order"
    assert probe("repaired", name, PAGEDATTN_TRITON_ORDER=order)[name].startswith(found)


def test_an_unknown_order_is_named():
    text = probe("repaired", "atomic_add", PAGEDATTN_TRITON_ORDER="random")["atomic_add"]
    assert "PAGEDATTN_TRITON_ORDER='random'" in text


def test_install_tells_of_a_gpu_and_is_done_once():
    done = run(
        "-W",
        "error",
        "-c",
        "from pagedattn.conformance.emulation.triton import install\n"
        "import sys\n"
        "assert 'triton' not in sys.modules and 'torch' not in sys.modules\n"
        "made = install()\n"
        "assert install() is made\n"
        "assert (made.device.type, made.device.sm, made.device.real) == ('cuda', (9, 0), True)\n"
        "import triton.language as tl\n"
        "assert tl.sum.__class__.__name__ == 'InterpretedFunction'\n",
    )
    assert done.returncode == 0, done.stderr


def test_install_after_an_uninterpreted_import_says_what_to_do():
    done = run(
        "-c",
        "import triton\nfrom pagedattn.conformance.emulation.triton import install\ninstall()\n",
    )
    assert "NotReady" in done.stderr
    assert "start the process with TRITON_INTERPRET=1" in done.stderr


def test_versions_that_were_not_verified():
    for version in emulation.VERIFIED:
        installing._require_known(version)
    with pytest.warns(UserWarning, match=r"not verified for triton 4\.0\.0, only for 3\.6\.0"):
        installing._require_known("4.0.0")
    with pytest.raises(NotReady, match=r"triton 3\.5\.1 is too old"):
        installing._require_known("3.5.1")
