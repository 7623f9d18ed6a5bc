"""ResNet-50 (He et al. 2016), with the stride in the 3 × 3 convolution, as is now common."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.client import SampleClient


class Bottleneck(nn.Module):
    """Convolutions of 1 × 1, 3 × 3 and 1 × 1, with a shortcut around them."""

    def __init__(self, inner: int, middle: int, stride: int) -> None:
        super().__init__()
        outer = 4 * middle
        self.conv1 = nn.Conv2d(inner, middle, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, outer, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride=stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def stage(inner: int, middle: int, blocks: int, stride: int) -> nn.Sequential:
    """A chain of equal blocks, except that the first one changes the width and the image size."""
    rest = (Bottleneck(4 * middle, middle, 1) for _ in range(blocks - 1))
    return nn.Sequential(Bottleneck(inner, middle, stride), *rest)


class ResNet(nn.Module):
    """Stem, four stages, average pooling, classifier."""

    def __init__(self, base: int, blocks: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, base, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(base),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.layer1 = stage(base, base, blocks[0], 1)
        self.layer2 = stage(4 * base, 2 * base, blocks[1], 2)
        self.layer3 = stage(8 * base, 4 * base, blocks[2], 2)
        self.layer4 = stage(16 * base, 8 * base, blocks[3], 2)
        self.classifier = nn.Linear(32 * base, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.stem(image)))))
        return self.classifier(x.mean(dim=(2, 3)))


class ResNetClient(SampleClient):
    """The client: ResNet-50 on 224 × 224, or one block per stage with 4 channels on 32 × 32."""

    def build(self) -> nn.Module:
        return ResNet(64, (3, 4, 6, 3), 1000) if self.large else ResNet(4, (1, 1, 1, 1), 10)

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        side = 224 if self.large else 32
        return (torch.randn(batch_size, 3, side, side),)

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return torch.randint(1000 if self.large else 10, ())

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over the classes."""
        return F.cross_entropy(outputs, targets)
