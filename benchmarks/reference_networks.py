"""Networks of the measured library whose layers are published, built on the meta device.

Only their graphs are needed, so no weight is allocated. Dimensions follow torchvision's, with which the library was
measured; BERT is BERT-base, its sequence length was not published.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sample_models.bert import Bert, BertSize
from sample_models.resnet50 import ResNet

BERT_TOKENS = 128
"""Assumption: the library does not say how many tokens a request of its BERT has."""


def vgg(convolutions: tuple[int, ...]) -> nn.Module:
    """VGG (Simonyan and Zisserman 2015) with these numbers of 3 × 3 convolutions in its five stages."""
    layers: list[nn.Module] = []
    inner = 3
    for outer, count in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU()]
            inner = outer
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
    return nn.Sequential(*layers, *head, nn.Linear(4096, 1000))


class DenseLayer(nn.Module):
    """Norm, 1 × 1, norm, 3 × 3; appends 32 channels to its input."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inner), nn.ReLU(), nn.Conv2d(inner, 128, 1, bias=False),
            nn.BatchNorm2d(128), nn.ReLU(), nn.Conv2d(128, 32, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet(blocks: tuple[int, ...]) -> nn.Module:
    """DenseNet (Huang et al. 2017) with growth rate 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    width = 64
    for index, count in enumerate(blocks):
        for _ in range(count):
            layers.append(DenseLayer(width))
            width += 32
        if index < len(blocks) - 1:
            halved = nn.Conv2d(width, width // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(width), nn.ReLU(), halved, nn.AvgPool2d(2)]
            width //= 2
    layers += [
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 1000),
    ]
    return nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    """Expand, depthwise 3 × 3, project; a shortcut if the shape stays."""

    def __init__(self, inner: int, outer: int, stride: int, widening: int) -> None:
        super().__init__()
        middle = inner * widening
        layers: list[nn.Module] = []
        if widening != 1:
            layers += [nn.Conv2d(inner, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU6()]
        depthwise = nn.Conv2d(middle, middle, 3, stride, 1, groups=middle, bias=False)
        layers += [depthwise, nn.BatchNorm2d(middle), nn.ReLU6()]
        self.body = nn.Sequential(*layers, nn.Conv2d(middle, outer, 1, bias=False), nn.BatchNorm2d(outer))
        self.shortcut = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.shortcut else y


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018)."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    inner = 32
    for widening, outer, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(count):
            layers.append(InvertedResidual(inner, outer, stride if index == 0 else 1, widening))
            inner = outer
    layers += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def bert_base() -> nn.Module:
    """BERT-base: 12 layers of width 768."""
    return Bert(BertSize(vocabulary=30522, tokens=BERT_TOKENS, width=768, layers=12, heads=12))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: ResNet(64, (3, 4, 6, 3), 1000),
    "resnet101": lambda: ResNet(64, (3, 4, 23, 3), 1000),
    "resnet152": lambda: ResNet(64, (3, 8, 36, 3), 1000),
    "vgg16": lambda: vgg((2, 2, 3, 3, 3)),
    "vgg19": lambda: vgg((2, 2, 4, 4, 4)),
    "densenet121": lambda: densenet((6, 12, 24, 16)),
    "densenet169": lambda: densenet((6, 12, 32, 32)),
    "densenet201": lambda: densenet((6, 12, 48, 32)),
    "mobilenetv2": mobilenet_v2,
    "bert": bert_base,
}


def example(name: str) -> tuple[Tensor, ...]:
    """Inputs of batch 2 on the meta device."""
    if name == "bert":
        return tuple(torch.zeros(2, BERT_TOKENS, dtype=torch.int64, device="meta") for _ in range(3))
    return (torch.zeros(2, 3, 224, 224, device="meta"),)
