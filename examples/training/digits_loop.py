"""A loop of one's own with a schedule, clipping and validation: `python examples/training/digits_loop.py RUN`.

Alone, or on two processes by `torchrun --nproc-per-node 2 examples/training/digits_loop.py RUN`; from the repository's
root. Started again it goes on with the run in RUN.
"""

import sys

from torch.utils.data import DataLoader

from sample_models.digits import DigitsClient
from torchsplit_core.training import prepare, schedule_of

client = DigitsClient()
model = client.get_model()
optimizer = client.get_optimizer(model.parameters(), "adamw")
scheduler = schedule_of(optimizer, "cosine", steps=330, warmup_steps=30)
loader = DataLoader(client.get_dataset(), batch_size=64, shuffle=True)
held_out = DataLoader(client.get_validation_dataset(), batch_size=64), client.get_metrics
run = prepare(model, optimizer, loader, None, sys.argv[1], steps=330, scheduler=scheduler, clip_norm=1.0,
              validation=held_out, validate_every=30, best="accuracy")  # fmt: skip
for inputs, targets in run:
    run.backward(client.get_loss(run.model(*inputs), targets))
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
