"""Two-tower CLIP (Radford et al. 2021): a vision transformer and a text transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sample_models.attention import PreNormBlock
from sample_models.client import SampleClient


class ImageTower(nn.Module):
    """Patches and a class token, transformer blocks, projection of the class token."""

    def __init__(self, image: int, patch: int, width: int, layers: int, heads: int, joint: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) * width**-0.5)
        self.positions = nn.Parameter(torch.randn((image // patch) ** 2 + 1, width) * width**-0.5)
        self.norm_before = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(PreNormBlock(width, heads) for _ in range(layers))
        self.norm_after = nn.LayerNorm(width)
        self.projection = nn.Linear(width, joint, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.patches(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm_before(x + self.positions)
        for block in self.blocks:
            x = block(x)
        return self.projection(self.norm_after(x[:, 0]))


class TextTower(nn.Module):
    """Tokens, causal transformer blocks, projection of the end-of-text position (highest id)."""

    def __init__(
        self, vocabulary: int, context: int, width: int, layers: int, heads: int, joint: int
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.01)
        self.blocks = nn.ModuleList(PreNormBlock(width, heads, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, joint, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions
        for block in self.blocks:
            x = block(x)
        end = ids.argmax(dim=-1)[:, None, None].expand(-1, 1, x.shape[-1])
        return self.projection(self.norm(x).gather(1, end).squeeze(1))


class Clip(nn.Module):
    """The scaled cosine similarity of each image with its own text: one number per request."""

    def __init__(self, image_tower: ImageTower, text_tower: TextTower) -> None:
        super().__init__()
        self.image, self.text = image_tower, text_tower
        self.log_scale = nn.Parameter(torch.tensor(2.6593))  # ln(1/0.07), the paper's start value

    def forward(self, pixels: Tensor, ids: Tensor) -> Tensor:
        image = F.normalize(self.image(pixels), dim=-1)
        text = F.normalize(self.text(ids), dim=-1)
        return self.log_scale.exp() * (image * text).sum(dim=-1)


class ClipClient(SampleClient):
    """The client: CLIP with ViT-B/32 dimensions, or two layers of width 32."""

    def build(self) -> nn.Module:
        if self.large:
            return Clip(ImageTower(224, 32, 768, 12, 12, 512), TextTower(49408, 77, 512, 12, 8, 512))
        return Clip(ImageTower(32, 8, 32, 2, 2, 16), TextTower(100, 12, 24, 2, 2, 16))

    def draw(self, batch_size: int) -> tuple[Tensor, ...]:
        image, context, vocabulary = (224, 77, 49408) if self.large else (32, 12, 100)
        return torch.randn(batch_size, 3, image, image), torch.randint(vocabulary, (batch_size, context))

    def draw_target(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return (inputs[1].sum() % 2).float()

    def get_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy: does the text belong to the image?"""
        return F.binary_cross_entropy_with_logits(outputs, targets)
