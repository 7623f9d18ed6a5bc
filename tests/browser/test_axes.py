"""Logarithmic axes as plotly.js draws them: whole powers, 2 and 5 where there are few, never a lone "3"."""

from pathlib import Path

import plotly
import plotly.graph_objects as go
import pytest

from app.charts.theme import apply_layout, log_axis
from tests.support.seeds import repeated

pytestmark = pytest.mark.browser
SCRIPT = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
LABELS = """([data, layout, width]) => { const place = document.createElement('div');
  document.body.replaceChildren(place);
  return Plotly.newPlot(place, data, {...layout, width})
    .then(() => [...place.querySelectorAll('.xtick text')]
      .map(text => Number(text.textContent.replace(/\\s/g, '')))); }"""


@repeated("widths", [(700,), (340, 1200)], kept=0)
def test_labels_are_powers_of_ten_and_2_and_5_where_there_are_few(session, widths):
    page = session()
    page.set_content("<body></body>")
    page.add_script_tag(path=SCRIPT)
    for low, high, labels in (
        (0.02, 9000.0, [0.1, 1, 10, 100, 1000]), (3.0, 400.0, [10, 100]), (3.0, 90.0, [5, 10, 20, 50]),
        (12.0, 300.0, [20, 50, 100, 200]),
    ):  # fmt: skip
        for width in widths:
            made = go.Figure(go.Scatter(x=[low, high], y=[1, 2], mode="markers"))
            apply_layout(made, "light", height=300, key="axis")
            made.update_layout(xaxis=log_axis("ms", "light", [low, high]))
            drawn = page.evaluate(
                LABELS, [*(made.to_plotly_json()[part] for part in ("data", "layout")), width]
            )
            inside = [label for label in drawn if low <= label <= high]
            assert inside == labels, (low, high, width, drawn)
    narrow = go.Figure(go.Scatter(x=[21.0, 79.0], y=[1, 2]))
    narrow.update_layout(xaxis=log_axis("ms", "light", [21.0, 79.0]))
    drawn = page.evaluate(LABELS, [*(narrow.to_plotly_json()[part] for part in ("data", "layout")), 700])
    assert len(drawn) >= 2 and all(label >= 10 for label in drawn)
