"""Imports a module that does not exist."""

import torch

from models import Clasifier  # the typing error is the point

model = Clasifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
