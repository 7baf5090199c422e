import pynvml
import pytest

from autorecompute.meters.nvml import NvmlError, all_cards, describe_visible, find_card, instances, visible_cards
from autorecompute.units import GIB
from fake_gpu import FakeCard, FakeNvml

FIRST, SECOND, THIRD = "GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000"
PARTS = ("MIG-cccc4444-0000", "MIG-dddd5555-0000")


def make_machine(*, divided=()):
    return FakeNvml(
        *(
            FakeCard(
                uuid=uuid,
                is_divided=uuid in divided,
                instances=[FakeCard(uuid=part, total_bytes=10 * GIB) for part in PARTS] if uuid in divided else [],
            )
            for uuid in (FIRST, SECOND, THIRD)
        )
    )


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [FIRST, SECOND, THIRD]),
        ("2,0", [THIRD, FIRST]),
        (" 1 , 2", [SECOND, THIRD]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,7,1", [FIRST]),
        ("1,-1,2", [SECOND]),
        ("1,1", []),
        (THIRD, [THIRD]),
        ("GPU-bbbb,GPU-aaaa2", [THIRD, SECOND]),
        ("GPU-aaaa", []),
        ("GPU-bbbb,GPU-aaaa", [THIRD]),
        ("GPU-eeee", []),
        ("MIG-cccc", []),
    ],
)
def test_cuda_visible_devices(value, seen):
    """Indices, UUIDs and their unique beginnings; the list ends at what names no card, and a repetition hides all."""
    with make_machine().installed():
        assert [card.uuid for card in visible_cards(value)] == seen


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (PARTS[1], [PARTS[1]]),
        ("MIG-dddd", [PARTS[1]]),
        ("1", [PARTS[0]]),
        (SECOND, [PARTS[0]]),
        ("MIG-cccc,MIG-dddd", [PARTS[0]]),
        ("0", [FIRST]),
    ],
)
def test_a_card_in_mig_mode_is_seen_as_one_instance(value, seen):
    with make_machine(divided={SECOND}).installed():
        assert [card.uuid for card in visible_cards(value)] == seen


@pytest.mark.parametrize("uuid", [SECOND, PARTS[1]])
def test_a_card_or_an_instance_is_found_by_its_uuid_with_prefix_or_as_torch_gives_it(uuid):
    with make_machine(divided={THIRD}).installed():
        assert find_card(uuid).uuid == find_card(uuid.partition("-")[2]).uuid == uuid
        assert find_card(PARTS[1]).whole.card.uuid == THIRD


@pytest.mark.parametrize(("value", "part"), [(None, PARTS[0]), (PARTS[1], PARTS[1]), ("2", PARTS[0]), ("0", PARTS[0])])
def test_the_uuid_of_a_card_in_mig_mode_means_the_instance_in_use(monkeypatch, value, part):
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    with make_machine(divided={THIRD}).installed():
        assert find_card(THIRD.removeprefix("GPU-")).uuid == part


def test_an_unknown_uuid_is_said_to_be_one():
    with make_machine().installed(), pytest.raises(NvmlError, match="nvidia-smi -L"):
        find_card("GPU-nowhere")


def test_a_card_without_mig_has_no_instances():
    with FakeNvml(FakeCard(is_divided=None)).installed():
        assert instances(all_cards()[0]) == []


def test_a_card_that_one_may_not_use_does_not_count():
    """A control group can hide the device files of cards that the driver counts."""
    machine = make_machine()
    with machine.installed():
        machine.errors["nvmlDeviceGetHandleByIndex"] = pynvml.NVML_ERROR_NO_PERMISSION
        assert all_cards() == []


def test_doctor_can_say_what_is_seen(monkeypatch):
    with make_machine().installed():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert describe_visible() == "driver 550.54.15, GPUs seen: NVIDIA Paper 40GB (40.00 GiB)"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert describe_visible().endswith("GPUs seen: none: CUDA_VISIBLE_DEVICES= hides all 3")
