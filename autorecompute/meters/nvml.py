"""NVIDIA's management library, asked in one place: what its error codes mean, and what a user can do about them.

Only questions go through here. Nothing in this package changes a setting of a card.
"""

from __future__ import annotations

from typing import Any

from autorecompute.errors import SetupError


class NvmlError(SetupError):
    """NVML gave no answer.

    Args:
        found: What is wrong, in words, without a full stop.
        remedy: What to do about it; empty where nothing can be done.

    Attributes:
        found: As given.
        remedy: As given.
    """

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(f"{found}. {remedy}".strip())
        self.found, self.remedy = found, remedy


class NvmlUnavailableError(NvmlError):
    """There is no driver to ask: no figure of any card can be had."""


class NvmlCardError(NvmlError):
    """This card cannot be asked: it is not visible here, or it is broken."""


class NvmlUnsupportedError(NvmlError):
    """This card or this driver does not keep that one figure; others may be had."""


_GIVE_TO_CONTAINER = "A container needs: docker run --gpus all"
_INSTALL_DRIVER = f"Install the NVIDIA driver on the host. {_GIVE_TO_CONTAINER}"

_MEANINGS: dict[str, tuple[type[NvmlError], str, str]] = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": (NvmlUnavailableError, "no NVIDIA driver is installed", _INSTALL_DRIVER),
    "NVML_ERROR_DRIVER_NOT_LOADED": (NvmlUnavailableError, "the NVIDIA driver is not loaded", _INSTALL_DRIVER),
    "NVML_ERROR_GPU_NOT_FOUND": (NvmlUnavailableError, "the NVIDIA driver finds no card", _GIVE_TO_CONTAINER),
    "NVML_ERROR_OPERATING_SYSTEM": (
        NvmlUnavailableError,
        "the system keeps this process from the NVIDIA driver",
        _GIVE_TO_CONTAINER,
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        NvmlUnavailableError,
        "the NVIDIA driver's library and its kernel module are of different versions",
        "Restart the machine, or the container if the host's driver was updated.",
    ),
    "NVML_ERROR_NOT_FOUND": (
        NvmlCardError,
        "no card of this UUID is visible here",
        "See those that are with: nvidia-smi -L",
    ),
    "NVML_ERROR_GPU_IS_LOST": (
        NvmlCardError,
        "the card has fallen off the bus",
        "Look for its Xid error with: sudo dmesg | grep Xid; then restart the machine.",
    ),
    "NVML_ERROR_RESET_REQUIRED": (NvmlCardError, "the card needs a reset", "Ask the machine's administrator."),
    "NVML_ERROR_NOT_SUPPORTED": (NvmlUnsupportedError, "the card does not keep this figure", ""),
    "NVML_ERROR_INVALID_ARGUMENT": (NvmlUnsupportedError, "this cannot be asked of such a device", ""),
    "NVML_ERROR_NO_PERMISSION": (NvmlUnsupportedError, "this figure is for administrators only", ""),
    "NVML_ERROR_FUNCTION_NOT_FOUND": (NvmlUnsupportedError, "the NVIDIA driver is too old to know this figure", ""),
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": (NvmlUnsupportedError, "the NVIDIA driver is too old to be asked this", ""),
}
"""Codes by the names that pynvml has for them. What is not among them is an :class:`NvmlError` in NVML's own words."""


class Nvml:
    """The library, initialised; it stays so until the process ends.

    Raises:
        NvmlUnavailableError: there is no driver, or it does not answer.
    """

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            remedy = "Run: python -m pip install nvidia-ml-py"
            raise NvmlUnavailableError("nvidia-ml-py is not installed", remedy) from error
        self._pynvml = pynvml
        self.ask("nvmlInit")

    def ask(self, function: str, *arguments: Any) -> Any:
        """Return the answer of one of pynvml's functions.

        Raises:
            NvmlError: the one of its kinds that fits NVML's error code.
        """
        question = getattr(self._pynvml, function, None)
        if question is None:
            raise NvmlUnsupportedError(f"the installed nvidia-ml-py does not know {function}")
        try:
            return question(*arguments)
        except self._pynvml.NVMLError as error:
            raise self._translate(error) from error
        except self._pynvml.NVMLLibraryMismatchError as error:
            raise NvmlUnsupportedError("the NVIDIA driver is too old for the installed nvidia-ml-py") from error

    @property
    def driver_version(self) -> str:
        """Return the driver's version, such as ``550.54.15``."""
        return str(self.ask("nvmlSystemGetDriverVersion"))

    def constant(self, name: str) -> int:
        """Return a number that pynvml has a name for."""
        return int(getattr(self._pynvml, name))

    def _translate(self, error: Any) -> NvmlError:
        for name, (kind, found, remedy) in _MEANINGS.items():
            if error.value == getattr(self._pynvml, name, None):
                return kind(found, remedy)
        return NvmlError(f"NVML answers: {error}")
