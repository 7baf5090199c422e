"""Which knobs are offered where, and why the others are not."""

from __future__ import annotations

import dataclasses

import pytest

from autorecompute.backends.ortmodule.environment import MEMORY_VARIABLES
from autorecompute.backends.ortmodule.knobs import (
    CONVOLUTION,
    CUSTOM_AUTOGRAD,
    TRITON,
    TRITON_BUILD,
    Place,
    knobs_for,
    offer,
)

CPU = Place(
    onnxruntime=(1, 19),
    torch=(2, 13),
    device="cpu",
    features=(),
    has_layers=True,
    glibc=(2, 36),
    huge_pages="madvise",
)
CUDA = dataclasses.replace(CPU, device="cuda", features=(TRITON_BUILD, TRITON, CUSTOM_AUTOGRAD, CONVOLUTION))


def why_not(place, inherited=()):
    """The reason for each knob by its name; empty where it can be tried."""
    return {knob.name: knob.why_not for knob in offer(place, dict.fromkeys(inherited, "1"))}


@pytest.mark.parametrize(
    ("place", "change", "name", "reason"),
    [
        (CPU, {"has_layers": False}, "layer_boundaries", "ORT finds the same plans"),
        (CPU, {}, "compute_optimizer_off", "1.19 raises"),
        (CPU, {}, "sparsity_off", "1.19 raises"),
        (CUDA, {}, "mem_efficient_gradients", "1.19 raises"),
        (CUDA, {"onnxruntime": (1, 18), "features": ()}, "mem_efficient_gradients", "custom autograd"),
        (CUDA, {"onnxruntime": (1, 18)}, "embedding_sparsity", "from 1.18 on"),
        (CPU, {}, "efficient_attention", "CUDA"),
        (CUDA, {"torch": (2, 2)}, "efficient_attention", "torch 2.3"),
        (CUDA, {"features": (TRITON,)}, "triton", "built without Triton"),
        (CUDA, {"features": (TRITON_BUILD,)}, "triton", "not installed"),
        (CPU, {}, "tunable_kernels", "CUDA"),
        (CUDA, {"features": ()}, "exhaustive_convolutions", "no convolution"),
        (CPU, {}, "expandable_segments", "CUDA"),
        (CUDA, {"torch": (2, 0)}, "expandable_segments", "torch 2.1"),
        (CUDA, {}, "one_malloc_arena", "CPU"),
        (CPU, {"glibc": (0, 0)}, "keep_freed_memory", "glibc"),
        (CPU, {"glibc": (2, 34)}, "huge_pages", "glibc 2.35"),
        (CPU, {"huge_pages": "always"}, "huge_pages", "on for every process"),
        (CPU, {"huge_pages": "never"}, "huge_pages", "switched off"),
    ],
)
def test_what_does_nothing_here_says_why(place, change, name, reason):
    """Each guard names the version, device or feature that is missing."""
    assert reason in why_not(dataclasses.replace(place, **change))[name]


@pytest.mark.parametrize(
    ("place", "names"),
    [
        (
            CPU,
            {
                "layer_boundaries",
                "no_model_copy",
                "one_malloc_arena",
                "keep_freed_memory",
                "huge_pages",
            },
        ),
        (
            CUDA,
            {
                "layer_boundaries",
                "efficient_attention",
                "triton",
                "tunable_kernels",
                "exhaustive_convolutions",
                "no_model_copy",
                "expandable_segments",
            },
        ),
        (
            dataclasses.replace(CPU, onnxruntime=(1, 17), torch=(2, 4), features=(CUSTOM_AUTOGRAD,)),
            {
                "layer_boundaries",
                "compute_optimizer_off",
                "sparsity_off",
                "embedding_sparsity",
                "mem_efficient_gradients",
                "no_model_copy",
                "one_malloc_arena",
                "keep_freed_memory",
                "huge_pages",
            },
        ),
    ],
)
def test_the_others_can_be_tried(place, names):
    """On a CPU, on a card, and under an old ONNX Runtime, those are offered that do something there."""
    assert {name for name, reason in why_not(place).items() if not reason} == names


def test_what_the_user_set_is_left_alone():
    """A variable of the user's own is not overruled, and the knob says so."""
    assert (
        why_not(CPU, inherited=["MALLOC_ARENA_MAX"])["one_malloc_arena"]
        == "MALLOC_ARENA_MAX is set in your environment"
    )


def test_no_two_knobs_set_the_same_variable():
    """Knobs that are kept are on together: none may undo another."""
    names = [name for knob in offer(CPU, {}) for name in knob.environment]
    assert len(names) == len(set(names))


def test_the_probe_is_cleared_for_trials():
    """The one variable of ours that decides about recompute must not reach a trial from elsewhere."""
    (knob,) = [knob for knob in offer(CPU, {}) if knob.looks_within_layers]
    assert set(knob.environment) <= set(MEMORY_VARIABLES)


def test_a_detection_and_this_machine_are_enough_to_know(make_detection):
    """Every knob is told for what a worker detected, each by a name of its own."""
    knobs = knobs_for(make_detection(), {})
    assert len({knob.name for knob in knobs}) == len(knobs)
    assert {knob.name: knob.why_not for knob in knobs}["efficient_attention"] == "it is for CUDA only"
