"""Draws a cut model as a row of its stages in order, one box for all copies of a stage, with GB/s between them."""

from __future__ import annotations

from torchsplit_core.pictures.colours import UNKNOWN
from torchsplit_core.pictures.numbers import short
from torchsplit_core.pictures.slice_values import ranges
from torchsplit_core.pictures.slices.stages import FlowStage, StageFlow, StagePosition, shade
from torchsplit_core.pictures.svg_text import escaped, escaped_attribute, shortened
from torchsplit_core.values import profile_words
from torchsplit_core.values.units import GB

BOX, ARROW, HEIGHT = 180.0, 92.0, 66.0
"""Pixels: width of a stage, width of an arrow, height of both."""


def flow_html(flow: StageFlow, colour: str = UNKNOWN) -> str:
    """Boxes and arrows that wrap in a narrow window; `data-rates` has the texts of the arrows."""
    count = len(flow.stages)
    parts = []
    for number, stage in enumerate(flow.stages, 1):
        arrow = _arrow(flow, number) if number < count else ""
        # An arrow wraps with the stage before it and never begins a line.
        box = _box(stage, StagePosition(number, count), colour)
        parts.append(f'<span style="display:inline-flex;max-width:100%">{box}{arrow}</span>')
    rates = "|".join(rate_words(rate) for rate in flow.bytes_per_s)
    return (
        f'<figure class="flow" data-flow="{escaped_attribute(flow.model)}" data-rates="{escaped_attribute(rates)}"'
        ' style="margin:.9rem 0 0">'
        f'<figcaption style="font-size:.82rem;margin-bottom:.3rem"><b>{escaped(flow.model)}</b> runs in {count} stages'
        f'</figcaption><div style="display:flex;flex-wrap:wrap;row-gap:6px">{"".join(parts)}</div></figure>'
    )


def rate_words(bytes_per_s: float | None) -> str:
    """GB/s of a cut; n/a if unknown."""
    if bytes_per_s is None:
        return "GB/s n/a"
    return short(bytes_per_s / GB, "GB/s")


def copies_words(stage: FlowStage) -> str:
    """The slices of a stage's copies: "3 × 1g.10gb, 2g.20gb"."""
    counted: dict[str, int] = {}
    for copy in stage.copies:
        name = profile_words(copy.profile)
        counted[name] = counted.get(name, 0) + 1
    return (
        ", ".join(f"{count} × {name}" if count > 1 else name for name, count in counted.items()) or "no slice"
    )


def _box(stage: FlowStage, place: StagePosition, colour: str) -> str:
    gpus = ranges(tuple(dict.fromkeys(copy.gpu for copy in stage.copies)))
    where = "; ".join(f"{copy.gpu} {profile_words(copy.profile)} at {copy.start}" for copy in stage.copies)
    title = f"Stage {place.number} of {place.count}, {stage.name}: {where or 'no slice'}"
    # The box is wide enough for any rate, since numbers must not be shortened.
    head = f"{place.short} · {short(stage.throughput_rps, 'req/s')}"
    texts = f'<text x="8" y="18" font-size="12" font-weight="700">{escaped(head)}</text>' + "".join(
        f'<text x="8" y="{18 + 18 * row}" font-size="12">{escaped(shortened(text, BOX - 16, 12))}</text>'
        for row, text in enumerate((copies_words(stage), gpus), 1)
    )
    # A second outline behind the box shows that there are several copies.
    stack = (
        f'<rect x="5" y="5" width="{BOX - 6:g}" height="{HEIGHT - 6:g}" rx="5" fill="none" stroke="{colour}"/>'
        if len(stage.copies) > 1
        else ""
    )
    return (
        f'<svg width="{BOX:g}" height="{HEIGHT:g}" viewBox="0 0 {BOX:g} {HEIGHT:g}" fill="currentColor" role="img"'
        f' aria-label="{escaped_attribute(title)}"><title>{escaped(title)}</title>{stack}'
        f'<rect x="1" y="1" width="{BOX - 6:g}" height="{HEIGHT - 6:g}" rx="5" fill="{colour}"'
        f' fill-opacity="{shade(place):.3g}" stroke="{colour}"/>{texts}</svg>'
    )


def _arrow(flow: StageFlow, number: int) -> str:
    rate = rate_words(flow.bytes_per_s[number - 1])
    y = HEIGHT / 2
    title = f"From stage {number} to stage {number + 1}: {rate}"
    return (
        f'<svg class="arrow" width="{ARROW:g}" height="{HEIGHT:g}" viewBox="0 0 {ARROW:g} {HEIGHT:g}"'
        f' fill="currentColor" role="img" aria-label="{escaped_attribute(title)}"><title>{escaped(title)}</title>'
        f'<path d="M4 {y:g}H{ARROW - 6:g}m-7 -5l7 5l-7 5" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        f'<text x="{ARROW / 2:g}" y="{y - 8:g}" font-size="12" text-anchor="middle">{escaped(rate)}</text></svg>'
    )
