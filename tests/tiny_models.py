"""Small models of the kinds that people train, each with a batch and the loss of a script."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

BATCH = 4


@dataclasses.dataclass
class Training:
    model: nn.Module
    batch: dict[str, Any]
    loss: Callable[[nn.Module, dict[str, Any]], torch.Tensor]

    def gradients(self, seed=1, around=None, backwards=1):
        """What a step leaves, from the same random numbers each time, with so many backward passes over its graph."""
        torch.manual_seed(seed)
        with around or torch.enable_grad():
            loss = self.loss(self.model, self.batch)
        for left in reversed(range(backwards)):
            loss.backward(retain_graph=left > 0)
        return self.collect(loss)

    def collect(self, loss):
        """The loss, the gradients and the buffers, as copies; gradients are then reset."""
        found = {name: value.grad.clone() for name, value in self.model.named_parameters() if value.grad is not None}
        found |= {f"buffer {name}": value.clone() for name, value in self.model.named_buffers()}
        self.model.zero_grad()
        return found | {"loss": loss.detach().clone()}


def differences(first, second):
    """Names of what is not the same bit for bit."""
    names = first.keys() | second.keys()
    return sorted(n for n in names if n not in first or n not in second or not torch.equal(first[n], second[n]))


def call_of(training):
    return ((training.batch["x"],), {}) if "x" in training.batch else ((), training.batch)


def tokens(vocabulary, batch, length):
    numbers = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": numbers, "labels": numbers}


def own_loss(model, batch):
    return model(**batch).loss


def cross_entropy(model, batch):
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def of_transformers(family, task, **sizes):
    import transformers

    return getattr(transformers, f"{family}{task}")(getattr(transformers, f"{family}Config")(**sizes))


def gpt2(batch, layers=2):
    sizes = {"n_layer": layers, "n_embd": 64, "n_head": 4, "vocab_size": 200, "n_positions": 32, "use_cache": False}
    model = of_transformers("GPT2", "LMHeadModel", **sizes, bos_token_id=0, eos_token_id=0)
    return Training(model, tokens(200, batch, 32), own_loss)


def sizes_of(layers, hidden=256):
    return {"num_hidden_layers": layers, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": hidden}


TEXT = {"vocab_size": 200, "max_position_embeddings": 32}


def llama(batch, layers=2):
    """Llama with grouped queries and dropout in attention, which no kernel fuses."""
    sizes = {**sizes_of(layers, 176), **TEXT, "num_key_value_heads": 2, "attention_dropout": 0.1, "use_cache": False}
    return Training(of_transformers("Llama", "ForCausalLM", **sizes), tokens(200, batch, 32), own_loss)


def bert(batch, layers=2):
    """BERT with a mask of ones, which it looks at."""
    text, model = tokens(200, batch, 32), of_transformers("Bert", "ForMaskedLM", **sizes_of(layers), **TEXT)
    return Training(model, {**text, "attention_mask": torch.ones_like(text["input_ids"])}, own_loss)


def vit(batch, layers=2):
    images = {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(0, 10, (batch,))}
    sizes = {**sizes_of(layers), "image_size": 32, "patch_size": 8, "num_labels": 10}
    dropouts = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return Training(of_transformers("ViT", "ForImageClassification", **sizes, **dropouts), images, own_loss)


class Encoder(nn.Module):
    def __init__(self, layers):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            64, 4, 256, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(200, 64)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)).mean(1))


def encoder(batch, layers=2):
    data = {"x": torch.randint(0, 200, (batch, 32)), "y": torch.randint(0, 10, (batch,))}
    return Training(Encoder(layers), data, cross_entropy)


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.down = nn.Conv2d(inner, outer, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.down(x))


class ResNet(nn.Module):
    """Two stages of two blocks, named as torchvision names them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(self.layer2(self.layer1(self.stem(x))).mean((2, 3)))


def resnet(batch, layers=2):
    """A small ResNet, of one size whatever is asked for."""
    del layers
    data = {"x": torch.randn(batch, 3, 16, 16), "y": torch.randint(0, 10, (batch,))}
    return Training(ResNet(), data, cross_entropy)


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert, "vit": vit, "encoder": encoder, "resnet": resnet}


def make(name, batch=BATCH, layers=2):
    """A model ready to train, the same on every call."""
    torch.manual_seed(0)
    training = MODELS[name](batch, layers)
    training.model.train()
    return training
