"""Registry of the training systems, and the choice of the one that a script uses."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, cast

from autorecompute.errors import OwnCheckpointingError, SetupError
from autorecompute.plans import Config, Lengths
from autorecompute.startup.sitecustomize import ImportWatch, watch_for
from autorecompute.units import printable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from autorecompute.backends.interface import ControllerBackend, Emission, Listener, WorkerBackend
    from autorecompute.training_job import Detection


def when_imported(name: str, change: Callable[[Any], None], before: Callable[[], None] | None = None) -> None:
    """Call a function with a module as soon as it has been imported: now, if it has been already.

    With the same function again, nothing more happens. ``before`` is called just before the module runs.
    """
    watches = [finder for finder in sys.meta_path if isinstance(finder, ImportWatch)]
    if name in sys.modules:
        change(sys.modules[name])
    elif not any((watch.module, watch.after) == (name, change) for watch in watches):
        # The module must not be imported from here: that may be what is going on at this moment.
        sys.meta_path.insert(0, ImportWatch(name, before, change))


NOT_REPLACED = (
    "The script does not train with plain PyTorch alone, where its checkpointing could be replaced: leave "
    "--replace-checkpointing out."
)


class AutoBackend:
    """Several training systems in one process, until one of them trains; else it does as the one that trains does.

    ``plain`` trains scripts which use no other, and can be taken out again. An import of their module brings in the
    ``others``, of which ``make`` makes the half that runs in this process.
    """

    def __init__(
        self, plain: Any, others: Mapping[str, ControllerBackend], make: Callable[[ControllerBackend], WorkerBackend]
    ) -> None:
        self._plain, self._others, self._make = plain, others, make
        self._current: WorkerBackend = plain
        self._is_decided = False
        self._listener: Listener | None = None

    def __getattr__(self, name: str) -> Any:
        """Return what the one that trains, or that was brought in last, has under this name."""
        return getattr(self._current, name)

    def install(self, listener: Listener) -> None:
        """Hook into the plain one, and wait for the imports of the others."""
        self._listener = listener
        self._plain.install(_ForwardingListener(listener, lambda: self._decide(self._plain)))
        for module, controller in self._others.items():
            hook = watch_for(controller.IMPORT_HOOK)
            when_imported(module, self._bring_in(controller, listener), hook.before if hook is not None else None)

    def why_nothing_trained(self) -> str:
        """Return the explanation of each backend that the script has brought in."""
        brought_in = [] if self._current is self._plain else [self._current]
        return " ".join(backend.why_nothing_trained() for backend in (*brought_in, self._plain))

    def _bring_in(self, controller: ControllerBackend, listener: Listener) -> Callable[[Any], None]:
        def bring_in(_module: Any) -> None:
            if self._is_decided:
                return
            backend = self._current = self._make(controller)
            backend.install(_ForwardingListener(listener, lambda: self._decide(backend)))

        return bring_in

    def _decide(self, backend: WorkerBackend) -> bool:
        """Tell whether this is the one that trains; the first to train is."""
        if not self._is_decided:
            self._is_decided, self._current = True, backend
            if backend is not self._plain:
                self._plain.uninstall()
                if self._listener is not None and self._listener.replaces_checkpointing:
                    self._listener.on_fault(OwnCheckpointingError(NOT_REPLACED))
        return self._current is backend


_OF_TRAINING = frozenset({"on_forward", "on_several_models", "on_failure", "on_fallback"})


class _ForwardingListener:
    """Passes on what one backend tells; of the training, as long as it is the one that trains."""

    def __init__(self, listener: Listener, decide: Callable[[], bool]) -> None:
        self._listener, self._decide = listener, decide

    def __getattr__(self, name: str) -> Any:
        passed_on = getattr(self._listener, name)
        return functools.partial(self._tell, passed_on) if name in _OF_TRAINING else passed_on

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        return self._listener.on_session(detect) if self._decide() else Config()

    def _tell(self, note: Callable[..., None], *told: Any) -> None:
        if self._decide():
            note(*told)


AUTO = "auto"  # whichever training system the script uses
PACKAGES = {"ortmodule": "autorecompute.backends.ortmodule", "torch": "autorecompute.backends.torch"}
"""The folder of each, as a package: its module ``controller`` is one half, what its ``worker`` makes is the other."""


def controller(name: str) -> ControllerBackend:
    """Return the controller's half of the backend of this name; a ``SetupError`` says that there is none."""
    return cast("ControllerBackend", _load(name, "controller"))


def controllers(name: str = AUTO) -> list[ControllerBackend]:
    """Return the controller's half of the backend of this name, or of every one for ``AUTO``."""
    return [controller(each) for each in (PACKAGES if name == AUTO else [name])]


def plain_name() -> str:
    """Return the backend that trains every script, as it is."""
    return next(backend.NAME for backend in controllers() if not backend.USED_BY)


def worker(name: str, folder: Path) -> WorkerBackend:
    """Return the half inside the user's process of the backend of this name, or of all for ``AUTO``.

    Whoever gave the folder, where it may write files, removes it.
    """
    if name != AUTO:
        return cast("WorkerBackend", _load(name, "worker").make_backend(folder))
    others = {backend.USED_BY: backend for backend in controllers() if backend.USED_BY}
    leaves = functools.partial(_holds_class_of, tuple(others))
    made = _load(plain_name(), "worker").make_backend(folder, leaves=leaves)
    return cast("WorkerBackend", AutoBackend(made, others, lambda backend: worker(backend.NAME, folder)))


def is_decided() -> bool:
    """Tell whether a tuner, or the environment, has decided already what this process recomputes."""
    return cast("bool", _load(plain_name(), "switch.applying").ELSEWHERE.is_set())


def other_in_use(name: str) -> str:
    """Return the name of another backend whose training system this process has imported; empty where there is none."""
    others = (backend for backend in controllers() if name != backend.NAME)
    return next((backend.NAME for backend in others if backend.USED_BY in sys.modules), "")


def call_when_imported(name: str, call: Callable[[], None]) -> None:
    """Call a function once this process has imported torch, and again once it has the package of this, or any, backend.

    The function may import all that the backend is made of: nothing of that is half imported then.
    """
    packages = [backend.USED_BY.partition(".")[0] for backend in controllers(name) if backend.USED_BY]
    for package in ("torch", *packages):
        when_imported(package, lambda _module: call())


def _holds_class_of(packages: tuple[str, ...], module: Any) -> bool:
    """Tell whether a torch module, or one in it, is of a class of these packages."""
    if any(f"{type(module).__module__}.".startswith(f"{package}.") for package in packages):
        return True
    return any(_holds_class_of(packages, child) for child in module.children())


def backend_of(versions: Mapping[str, str]) -> ControllerBackend:
    """Return the backend that trained with these versions, as a detection or a result has them."""
    return controller(versions.get("backend", ""))


def variables() -> tuple[str, ...]:
    """Return all environment variables that decide about recompute in any of them."""
    return gather("VARIABLES")


def trial_variables(name: str) -> dict[str, str]:
    """Return the variables of trials of the backend of this name, or of any where it is ``AUTO``."""
    return {variable: value for backend in controllers(name) for variable, value in backend.TRIAL_VARIABLES.items()}


def gather(member: str) -> tuple[str, ...]:
    """Return what all backends have under a name of :class:`ControllerBackend`, such as ``CARDS``, if they have it."""
    return tuple(dict.fromkeys(name for backend in controllers() for name in getattr(backend, member, ())))


def find_card(text: str) -> str | None:
    """Return the name of the card that fake tensors are to stand for; ``None`` where none is meant."""
    return cast("str | None", _load(plain_name(), "controller").find_card(text))


def render(
    config: Config, knobs: Collection[str], versions: Mapping[str, str], folder: Path, lengths: Lengths | None = None
) -> Emission:
    """Render a config for an unmodified script, with the knobs of these names; derived each time, stored nowhere."""
    return backend_of(versions).render(config, knobs=knobs, versions=versions, folder=folder, lengths=lengths)


def apply_plans(model: Any, plans: str | os.PathLike[str] | None) -> None:
    """See :func:`autorecompute.apply`."""
    _load(plain_name(), "switch.applying").apply(model, plans)


def _load(name: str, half: str) -> Any:
    # The name may come from a file, and must not choose what is imported.
    if name not in PACKAGES:
        raise SetupError(
            f"This autorecompute knows no training system '{printable(name, '')}'. Install the version that does."
        )
    try:
        package = importlib.import_module(PACKAGES[name])
        if hasattr(package, "require"):
            package.require()
        return importlib.import_module(f"{PACKAGES[name]}.{half}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", __name__.partition(".")[0]}:
            raise
        raise SetupError(
            f"The backend {name} needs the package {missing}, and {sys.executable} does not have it. Install "
            "autorecompute where the script trains; 'autorecompute doctor' there says what is missing."
        ) from error
