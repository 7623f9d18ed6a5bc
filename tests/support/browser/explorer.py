"""The explorer as a test sees it: what its canvas says of itself, and moving about in it by keyboard."""

import json
import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 4))
    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).softmax(-1)

batch = torch.export.Dim("batch", min=2)
program = torch.export.export(Net().eval(), (torch.zeros(2, 8),), dynamic_shapes=({0: batch},))
torch.export.save(program, PATH)
"""


def save_model(path: Path) -> None:
    """A small network of six equal blocks as a .pt2, as a script of a user's exports it."""
    exec(MODEL, {"__name__": "__main__", "PATH": str(path)})


def canvas(page: Page) -> Locator:
    """The dataflow, drawn."""
    found = page.locator("canvas.scene").first
    expect(found).to_have_attribute("data-drawn", re.compile(".+"), timeout=60_000)
    return found


def move_to(page: Page, name: str, key: str = "ArrowDown", most: int = 40) -> None:
    """Press an arrow until the selected box is called that."""
    scene = canvas(page)
    scene.focus()
    for _ in range(most):
        page.keyboard.press(key)
        if f"Selected: {name}" in str(scene.get_attribute("aria-label")):
            return
    raise AssertionError(f"no box called {name}; last {scene.get_attribute('aria-label')}")


def redrawn(page: Page, before: str) -> str:
    """Wait for another drawing than `before`; which."""
    page.wait_for_function(
        """before => [...document.querySelectorAll('*')].some(e => { const c = e.shadowRoot &&
        e.shadowRoot.querySelector('canvas.scene'); return c && c.dataset.drawn && c.dataset.drawn !== before; })""",
        arg=before,
    )
    return drawing(page)


def drawing(page: Page) -> str:
    """Which drawing is shown."""
    return str(canvas(page).get_attribute("data-drawn"))


def look(page: Page) -> dict[str, float]:
    """Scale and place of the view."""
    data: dict[str, float] = json.loads(str(canvas(page).get_attribute("data-look")))
    return data
