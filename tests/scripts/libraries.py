"""Trains a library's model from random weights in plain PyTorch: adapters of peft, diffusers' U-Net, Mixtral."""

import argparse

import torch
from torch.nn import functional

VOCABULARY, LENGTH, CHANNELS = 60, 16, 3
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def make_llama():
    """A frozen Llama whose attention has LoRA adapters."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    adapters = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "up_proj"])
    return get_peft_model(LlamaForCausalLM(LlamaConfig(**SIZES)), adapters)


def make_mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=4, output_router_logits=True))


def make_unet():
    from diffusers import UNet2DModel

    sizes = {"sample_size": 16, "in_channels": CHANNELS, "out_channels": CHANNELS, "layers_per_block": 1}
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return UNet2DModel(**sizes, **blocks, block_out_channels=(32, 64))


def loss_of_text(model, batch):
    tokens = torch.randint(VOCABULARY, (batch, LENGTH))
    return model(input_ids=tokens, labels=tokens).loss


def loss_of_noise(model, batch):
    """The noise that was added to an image is to be predicted."""
    noise, images = (torch.randn(batch, CHANNELS, 16, 16) for _ in range(2))
    share = torch.rand(batch)
    noisy = images + share.view(-1, 1, 1, 1) * noise
    return functional.mse_loss(model(noisy, 1000 * share).sample, noise)


MODELS = {
    "peft": (make_llama, loss_of_text),
    "mixtral": (make_mixtral, loss_of_text),
    "diffusers": (make_unet, loss_of_noise),
}

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, required=True)
parser.add_argument("--bs", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(0)
make_model, loss_of = MODELS[args.model]
model = make_model()
model.train()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
for _ in range(100_000):
    loss_of(model, args.bs).backward()
    optimizer.step()
    optimizer.zero_grad()
