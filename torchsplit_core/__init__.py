"""TorchSplit: trace, profile, partition, plan and deploy PyTorch models on MIG-partitioned GPUs."""

__version__ = "0.1.0"
