"""How soon a graph is on the screen, what a click costs, and a large model from its file to its drawing.

Everything in Chromium against the dashboard as users start it; `st.graphviz_chart` draws the same graph
in the same run, on a server of its own. Times are from the start of a navigation, a click or a drop to
the picture (or the answer) on the page.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from torchsplit_core.drawing.hierarchy import Hierarchy
from torchsplit_core.graph import TorchGraph
from torchsplit_core.values import GraphNode
from torchsplit_core.workspace.store import Store

ROOT = Path(__file__).resolve().parent.parent
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
GRAPHVIZ = """
import sys
import streamlit as st
st.set_page_config(layout="wide")
st.graphviz_chart(open(sys.argv[1]).read())
"""


REDRAW = """async () => {
  const host = [...document.querySelectorAll('*')].find(e => e.shadowRoot?.querySelector('canvas.scene'));
  const canvas = host.shadowRoot.querySelector('canvas.scene');
  const began = performance.now();
  canvas.dispatchEvent(new KeyboardEvent('keydown', { key: 'f', bubbles: true }));
  await new Promise(requestAnimationFrame);
  canvas.getContext('2d').getImageData(0, 0, 1, 1);
  return performance.now() - began;
}"""
"""Redraw the whole graph and read a pixel, which forces deferred drawing; returns ms."""


def graph(nodes: int) -> TorchGraph:
    """A graph of equal operations that each read one or two of the last dozen."""
    draw = random.Random(1)
    made = [GraphNode("n0", "input", shape=(2, 64), dtype="float32", output_bytes=512)]
    for i in range(1, nodes):
        reads = {draw.randint(max(0, i - 12), i - 1) for _ in range(draw.choice((1, 1, 2)))}
        made.append(
            GraphNode(
                f"n{i}", "op", "add", "aten.add.Tensor", tuple(made[r].id for r in sorted(reads)), "",
                (2, 64), "float32", 512,
            )
        )  # fmt: skip
    return TorchGraph(tuple(made), architecture_hash=f"synthetic {nodes}", traced_batch=2)


def llama(path: Path, layers: int) -> None:
    """Export a LLaMA of 8B dimensions on the meta device to a .pt2, in a child process."""
    script = f"""
import torch
from transformers import LlamaConfig, LlamaForCausalLM
config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers={layers}, num_attention_heads=32,
    num_key_value_heads=8, vocab_size=128256, use_cache=False)
with torch.device("meta"):
    model = LlamaForCausalLM(config).eval()
    ids = torch.zeros(2, 128, dtype=torch.long)
program = torch.export.export(model, (), {{"input_ids": ids, "return_dict": False}}, strict=False)
torch.export.save(program, {str(path)!r})
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=ROOT)


@contextlib.contextmanager
def server(*command: str, **environment: str) -> Iterator[tuple[str, int]]:
    """Start the dashboard, or another Streamlit script, on a free port; yields its address and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = ["app.server", "127.0.0.1", str(port), "127.0.0.1"]
    if command:
        started = [
            "streamlit", "run", command[0], "--server.address", "127.0.0.1", "--server.port", str(port),
            "--server.headless", "true", "--", *command[1:],
        ]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", *started],
        cwd=ROOT, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):
                break
            time.sleep(0.1)
        yield address, process.pid
    finally:
        process.terminate()
        process.wait(timeout=120)


def drawn(page: Page, but: str = "", limit_s: float = 60.0) -> str:
    """Wait until the explorer shows a drawing other than `but`; return that drawing's mark."""
    page.wait_for_function(
        """but => [...document.querySelectorAll('*')].some(e => {
            const c = e.shadowRoot && e.shadowRoot.querySelector('canvas.scene');
            return c && c.dataset.drawn && c.dataset.drawn !== but;
        })""",
        arg=but,
        timeout=1000 * limit_s,
        polling=20,
    )
    return str(page.locator("canvas.scene").first.get_attribute("data-drawn"))


def opened(
    page: Page, address: str, store: Store, model: TorchGraph, name: str, *, everything: bool
) -> float:
    """Seconds from opening the page to its drawing: of the first view, or of every node."""
    workspace = store.create(f"{len(model.nodes)} {name}")
    # A fresh hash each time, so that no cache has the drawing.
    fresh = TorchGraph((*model.nodes[:-1], GraphNode(f"last {name}", "op", inputs=model.nodes[-1].inputs)))
    workspace.put("graph", name, fresh)
    if everything:
        workspace.set_setting(f"explorer {name}", {"opened": sorted(Hierarchy(fresh).groups)})
    began = time.perf_counter()
    page.goto(f"{address}/graph?workspace={workspace.id}")
    drawn(page, limit_s=120)
    return time.perf_counter() - began


def explorer(page: Page, address: str, store: Store, model: TorchGraph, repeats: int) -> dict[str, float]:
    """Seconds to the first view and to all nodes, milliseconds of a redraw, seconds from a click to its response."""
    first, shown, redraws, clicks = [], [], [], []
    for turn in range(repeats):
        first.append(opened(page, address, store, model, f"first {turn}", everything=False))
        shown.append(opened(page, address, store, model, f"all {turn}", everything=True))
        canvas = page.locator("canvas.scene")
        canvas.focus()
        page.keyboard.press("f")
        page.wait_for_timeout(500)
        redraws += [float(page.evaluate(REDRAW)) for _ in range(5)]
        for step in range(5):
            before_text = page.locator(".st-key-graph-details").first.inner_text()
            began = time.perf_counter()
            page.keyboard.press("ArrowDown" if step % 2 == 0 else "ArrowRight")
            page.wait_for_function(
                "before => document.querySelector('.st-key-graph-details')?.innerText !== before",
                arg=before_text,
                polling=20,
            )
            clicks.append(time.perf_counter() - began)
            page.wait_for_timeout(300)
    return {
        "first": statistics.median(first),
        "shown": statistics.median(shown),
        "redraw": statistics.median(redraws),
        "click": statistics.median(clicks),
    }


def plain_dot(model: TorchGraph) -> str:
    """The graph in DOT without edge labels, which would cost Graphviz more."""
    lines = [f"{source} -> {node.id}" for node in model.nodes for source in node.inputs]
    return "digraph {\n" + "\n".join(lines) + "\n}\n"


def graphviz(page: Page, folder: Path, model: TorchGraph) -> float:
    """Seconds until `st.graphviz_chart` shows the same graph."""
    dot, script = folder / "graph.dot", folder / "graphviz_app.py"
    script.write_text(GRAPHVIZ)
    seconds = 0.0
    with server(str(script), str(dot)) as (address, _):
        # A small graph first, so that server and browser have loaded what they load only once.
        for one in (graph(50), model):
            dot.write_text(plain_dot(one))
            began = time.perf_counter()
            page.goto(address)
            page.wait_for_function(
                "n => document.querySelectorAll('[data-testid=stGraphVizChart] g.node').length >= n",
                arg=len(one.nodes) - 1,
                timeout=900_000,
                polling=100,
            )
            seconds = time.perf_counter() - began
    return seconds


def peak_gb(process: int) -> float:
    """Peak resident memory of a process, in GB (Linux)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


def largest(page: Page, folder: Path, nodes: int) -> tuple[float, float, float]:
    """For a very large graph: seconds to its first view, seconds to open a run of it, the server's peak in GB."""
    store = Store(folder / "large")
    workspace = store.create("large")
    workspace.put("graph", "large", graph(nodes))
    with server(TORCHSPLIT_HOME=str(folder / "large")) as (address, process):
        began = time.perf_counter()
        page.goto(f"{address}/graph?workspace={workspace.id}")
        before = drawn(page, limit_s=900)
        shown = time.perf_counter() - began
        page.locator("canvas.scene").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(10_000)
        began = time.perf_counter()
        page.keyboard.press("Enter")
        drawn(page, but=before, limit_s=300)
        return shown, time.perf_counter() - began, peak_gb(process)


def from_file(page: Page, address: str, path: Path, repeats: int) -> dict[str, float]:
    """Seconds from dropping a .pt2 to its drawing, and from opening a block to its drawing."""
    shown, opened = [], []
    for turn in range(repeats):
        page.goto(address)
        field = page.locator('[data-testid="stFileUploaderDropzoneInput"]')
        # Another name each turn, so that each is a new visit with a new file.
        named = path.with_name(f"{path.stem}{turn}.pt2")
        named.write_bytes(path.read_bytes())
        page.wait_for_timeout(1000)
        began = time.perf_counter()
        field.set_input_files(named)
        before = drawn(page)
        shown.append(time.perf_counter() - began)
        canvas = page.locator("canvas.scene")
        canvas.focus()
        label: Any = ""
        for _ in range(30):
            page.keyboard.press("ArrowDown")
            label = canvas.get_attribute("aria-label")
            if "layers" in str(label):
                break
        page.wait_for_timeout(1000)
        began = time.perf_counter()
        page.keyboard.press("Enter")
        drawn(page, but=before)
        opened.append(time.perf_counter() - began)
        page.evaluate("localStorage.clear()")
    return {"shown": statistics.median(shown), "opened": statistics.median(opened)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as room,
        sync_playwright() as playwright,
    ):
        folder = Path(room)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        model = graph(options.nodes)
        store = Store(folder / "home")
        with server(TORCHSPLIT_HOME=str(folder / "home")) as (address, _):
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            # A small graph first, so that server and browser have loaded what they load only once.
            explorer(page, address, store, graph(50), 1)
            ours = explorer(page, address, store, model, options.repeats)
            file = folder / "llama.pt2"
            llama(file, options.layers)
            dropped = from_file(
                browser.new_page(viewport={"width": 1440, "height": 1000}), address, file, options.repeats
            )
        theirs = graphviz(browser.new_page(), folder, model)
        large = largest(browser.new_page(viewport={"width": 1440, "height": 1000}), folder, options.largest)
        browser.close()
    print("| what | explorer | st.graphviz_chart | ratio |")
    print("|---|---|---|---|")
    print(
        f"| {options.nodes} nodes, from opening the page to its first view, runs of 100 closed, s "
        f"| {ours['first']:.2f} | {theirs:.1f} | {theirs / ours['first']:.0f} |"
    )
    print(
        f"| {options.nodes} nodes, from opening the page to all of them on screen, s | {ours['shown']:.2f} | "
        f"{theirs:.1f} | {theirs / ours['shown']:.0f} |"
    )
    print(f"| a redraw of them, ms (the canvas prototype: 24) | {ours['redraw']:.1f} | n/a | n/a |")
    print(f"| from selecting one to its details from Python, s | {ours['click']:.2f} | n/a | n/a |")
    print(
        f"| LLaMA 8B, {options.layers} layers, .pt2: from the drop to its first drawing, s | {dropped['shown']:.2f} "
        "| n/a | n/a |"
    )
    print(f"| opening a block of it, s | {dropped['opened']:.2f} | n/a | n/a |")
    print(
        f"| {options.largest} nodes without modules, from opening the page to its first view, s | {large[0]:.0f} "
        "| n/a | n/a |"
    )
    print(f"| opening a run of it, s | {large[1]:.1f} | n/a | n/a |")
    print(f"| the server's peak memory with it, GB | {large[2]:.2f} | n/a | n/a |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
