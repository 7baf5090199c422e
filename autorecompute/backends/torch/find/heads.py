"""Finds vocabulary heads: linear layers whose results become logits of a loss."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Linear

from autorecompute.backends.common import tensors_in
from autorecompute.backends.torch.find.graphs import sequence_of
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.forecast.records import CHUNK, HEAD
from autorecompute.backends.torch.switch.chunks import rows_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from torch.autograd.graph import Node
    from torch.nn import Module

    from autorecompute.plans import Choice

    Owner = Callable[[int], str]


LOG_SOFTMAX = torch.ops.aten._log_softmax.default  # every cross entropy of classes begins with it

_HANDING_ON = frozenset(
    {"Add", "Alias", "Clone", "Div", "Index", "Mul", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T"}
    | {"Tanh", "ToCopy", "Transpose", "UnsafeView", "Unsqueeze", "View"}
)
"""Nodes between a head and its loss, by the names of their functions."""

_LONGEST = 64  # so many nodes are gone back at most


class Heads:
    """The heads of one model.

    Attributes:
        losses: Logits of which the forward pass computed a loss, by the paths of the layers whose results they are: the
            bytes of what the loss saves of them, and their rows.
        results: Those that it returned.
    """

    def __init__(self, model: Module) -> None:
        self._layers = {path: module for path, module in model.named_modules() if _is_plain(module)}
        self.losses: dict[tuple[str, ...], tuple[int, int]] = {}
        self.results: dict[tuple[str, ...], tuple[int, int]] = {}

    def see_loss(self, logits: Tensor, dim: int, is_widened: bool, owner_of: Owner) -> None:  # noqa: FBT001
        """See the logits of a softmax, which come in float32 where they are widened."""
        words = logits.shape[dim] if logits.dim() else 0
        self._note(
            self.losses, logits, words, torch.float32.itemsize if is_widened else logits.element_size(), owner_of
        )

    def see_result(self, result: Any, owner_of: Owner) -> None:
        """See what the model returned: where it has computed no loss, the script will.

        Hidden states may be among it, which are no wider than what they are made of.
        """
        for tensor in tensors_in(result) if not self.losses else ():
            if tensor.dim() > 1:
                self._note(self.results, tensor, tensor.shape[-1], tensor.element_size(), owner_of)

    def sites(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Yield the name of each site, the paths of its layers and the bytes of its logits."""
        logits = {paths: told for paths, told in self.results.items() if all(map(self._widens, paths))}
        for paths, (size, rows) in (self.losses or logits).items():
            layer = self._layers[paths[0]]
            if rows > rows_at_once(layer.in_features):
                yield f"{_common(paths)}{HEAD}", paths, size

    def _widens(self, path: str) -> bool:
        layer = self._layers[path]
        return bool(layer.out_features > layer.in_features)

    def _note(
        self, seen: dict[tuple[str, ...], Any], tensor: Tensor, words: int, element_bytes: int, owner_of: Owner
    ) -> None:
        paths = tuple(dict.fromkeys(self._behind(tensor.grad_fn, words, owner_of)))
        if paths:
            size, rows = seen.get(paths, (0, 0))
            seen[paths] = size + tensor.numel() * element_bytes, max(rows, tensor.numel() // max(words, 1))

    def _behind(self, last: Node | None, words: int, owner_of: Owner) -> Iterator[str]:
        """Yield the layers with so many words whose results lead to a node, through others that hand rows on."""
        nodes = [last]
        for node in nodes:  # grows while it is gone through
            if node is None:
                continue
            path = owner_of(sequence_of(node))
            layer = self._layers.get(path)
            if layer is not None and layer.out_features == words:
                yield path
            elif type(node).__name__.partition("Backward")[0] in _HANDING_ON:
                nodes.extend(one for one, _ in node.next_functions[: _LONGEST - len(nodes)])


def heads_in(choices: Iterable[Choice], model: Module) -> dict[str, tuple[str, ...]]:
    """Return the paths of the layers whose logits choices make in chunks, by the names of their sites.

    A site that is no layer is known where it is an adapted one, as with LoRA: a few layers, of which those that are as
    wide as the base give logits. Of any other nothing is known.
    """
    found, modules = {}, dict(model.named_modules())
    for name in {one.site for one in choices if one.option == CHUNK}:
        outer = name.removesuffix(HEAD)
        base = getattr(modules.get(outer), "base_layer", modules.get(outer)) if outer else None
        if isinstance(base, Linear):
            layers = {path: one for path, one in modules.items() if is_within(path, outer) and _is_plain(one)}
            found[name] = tuple(path for path, one in layers.items() if one.out_features == base.out_features)
    return {name: paths for name, paths in found.items() if paths}


def _is_plain(module: Module) -> bool:
    return type(module) is Linear  # a class of parametrize's reads another weight each time


def _common(paths: tuple[str, ...]) -> str:
    """Return the path of the module that holds all of these."""
    if len(paths) == 1:
        return paths[0]
    parts = zip(*(path.split(".") for path in paths), strict=False)
    return ".".join(one[0] for one in itertools.takewhile(lambda part: len(set(part)) == 1, parts))
