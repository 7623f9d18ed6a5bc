"""The points of one model as a small SVG for pages without scripts: throughput over service time, a line a slice."""

from __future__ import annotations

import html
from collections.abc import Sequence

from app.charts.theme import AMBER
from torchsplit_core.pictures.numbers import short
from torchsplit_core.values import Point

WIDTH, HEIGHT = 300.0, 170.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 12.0, 30.0


def points_svg(
    title: str, points: Sequence[Point], colour: str, limit_ms: float | None, used: Sequence[Point]
) -> str:
    """Measured points filled, others hollow and amber; the limit dotted, the plan's points larger.

    Empty for no points. `title` is escaped here, `colour` is not.
    """
    shown = [point for point in points if point.throughput_rps > 0 and point.latency_ms > 0]
    if not shown:
        return ""
    wide = max(point.latency_ms for point in shown) * 1.05
    high = max(point.throughput_rps for point in shown) * 1.08

    def x(latency_ms: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * latency_ms / wide

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * rate / high

    lines: dict[tuple[str, str, int], list[Point]] = {}
    for point in sorted(shown, key=lambda point: (point.latency_ms, point.throughput_rps)):
        lines.setdefault((point.gpu_type, point.profile, point.processes), []).append(point)
    parts = [
        '<polyline fill="none" stroke="currentColor" stroke-opacity=".25" points="'
        + " ".join(f"{x(p.latency_ms):.1f},{y(p.throughput_rps):.1f}" for p in line)
        + '"/>'
        for line in lines.values()
    ]
    if limit_ms is not None and limit_ms < wide:
        parts.append(
            f'<line x1="{x(limit_ms):.1f}" x2="{x(limit_ms):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" '
            f'stroke="currentColor" stroke-dasharray="3 3"><title>limit {short(limit_ms, "ms")}</title></line>'
        )
    chosen = set(used)
    for point in shown:
        measured = point.basis == "measured"
        words = (
            f"{point.gpu_type} {point.profile}, batch {point.batch_size}, processes {point.processes}: "
            f"{short(point.throughput_rps, 'req/s')}, {short(point.latency_ms, 'ms')}, {point.basis}"
        )
        parts.append(
            f'<circle cx="{x(point.latency_ms):.1f}" cy="{y(point.throughput_rps):.1f}" '
            f'r="{4.5 if point in chosen else 2.4}" fill="{colour if measured else "none"}" '
            f'stroke="{colour if measured else AMBER["light"]}" stroke-width="{2 if point in chosen else 1}">'
            f"<title>{html.escape(words)}</title></circle>"
        )
    axes = (
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="currentColor"/>'
        f'<text x="{LEFT - 5}" y="{TOP + 8}" text-anchor="end">{short(high / 1.08)}</text>'
        f'<text x="{LEFT - 5}" y="{HEIGHT - BOTTOM}" text-anchor="end">0</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 14}" text-anchor="end">{short(wide / 1.05, "ms")}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">req/s over service p95</text>'
    )
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" role="img" font-size="11" fill="currentColor" '
        f'aria-label="{html.escape(title)}: throughput over service time of every point">{axes}{"".join(parts)}</svg>'
    )
