"""Files made to cost, dropped on the running dashboard: one message to who dropped them, and the server serves on."""

import io
import json
import zipfile

import pytest
from playwright.sync_api import expect

from tests.support.seeds import repeated

pytestmark = pytest.mark.browser

MANIFEST = {
    "format": "torchsplit.workspace",
    "version": 1,
    "name": "bomb",
    "results": [{"kind": "plan_request", "name": "a", "file": "a"}],
}


def objects(times: int) -> bytes:
    return b"[" + b"{}," * times + b"{}]"


def zipped() -> bytes:
    """58 kB that unpack to 20 million empty objects."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("manifest.json", json.dumps(MANIFEST))
        made.writestr("a", objects(20_000_000))
    return buffer.getvalue()


REQUEST = b'{"format": "torchsplit.plan_request", "version": 1, "gpus": [{"type": "A30-24GB"}], "models": '


@repeated(("name", "made", "words"), [
    ("bomb.zip", zipped, "above the limit of 768 MiB"),
    ("bomb.json", lambda: objects(20_000_000), "above the limit of 768 MiB"),
    ("models.json", lambda: REQUEST + objects(3_000_000) + b"}", "above the limit of 768 MiB"),
    ("fields.json", lambda: REQUEST + objects(50_000) + b"}", "is missing"),
], kept=0, ids=lambda value: value if isinstance(value, str) and "." in value else "")  # fmt: skip
def test_a_file_made_to_cost_is_one_message(session, address, name, made, words, tmp_path):
    page = session()
    page.goto(f"{address}/workspace")
    expect(page.get_by_text("Files in")).to_be_visible()
    file = tmp_path / name
    file.write_bytes(made())
    page.locator("input[type=file]").first.set_input_files(file)
    expect(page.get_by_test_id("stAlert").first).to_contain_text(words)
    other = session()
    other.goto(f"{address}/workspace")
    expect(other.get_by_text("Files in")).to_be_visible()
