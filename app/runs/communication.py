"""How a run exchanges its gradients: what was chosen and why, the candidates, the seconds by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from app.charts.training import stacked_bars
from app.components import saving
from app.runs.slowness import describe_window, name_rank
from app.shell import widgets
from torchsplit_core.pictures.numbers import UNKNOWN, escape_markdown, exact, short, size
from torchsplit_core.training.communication.choice import describe_exchange
from torchsplit_core.training.communication.record import ExchangeRecord
from torchsplit_core.training.monitor import Rank, RunView
from torchsplit_core.values.strategy.communication import Hook

LOSS_GATHER = ("loss all-gather", "#dc7de3")
"""Name and colour of the files' `agreement`, which is a part of a step and a kind of communication."""
KINDS: Mapping[str, tuple[str, str]] = {
    "all_reduce_exposed": ("all-reduce, exposed", "#d9532f"),
    "all_reduce_overlapped": ("all-reduce, overlapped", "#e9a48f"),
    "broadcast": ("broadcast", "#6d4be0"),
    "agreement": LOSS_GATHER,
}
"""Kinds of communication: their names on the page and their colours, none of which is that of another part."""
HOOK_NAMES: Mapping[Hook, str] = {
    "ddp": "DDP's own", "all_reduce": "all-reduce", "hierarchical": "hierarchical", "bf16": "bf16", "fp16": "fp16",
    "powersgd": "PowerSGD",
}  # fmt: skip
UNSIZED = "DDP's default"
MOST_CANDIDATES = 8
NOTABLE_GAIN = 0.02


def exposed_s(view: RunView) -> float | None:
    """Seconds of a step in which the slowest rank waits for the gradient reduction; None if not known."""
    known = [
        seconds["all_reduce_exposed"]
        for rank in view.ranks
        if "all_reduce_exposed" in (seconds := rank.communication_s or {})
    ]
    return max(known, default=None)


def communication_share(rank: Rank) -> float | None:
    """Share of both passes in which a rank waits for the gradient reduction; None if not known.

    Over the steps of its last report, as its seconds by part and by kind; without these, by DDP's own timings.
    """
    exposed = (rank.communication_s or {}).get("all_reduce_exposed")
    passes = sum((rank.parts_s or {}).get(part, 0.0) for part in ("forward", "backward"))
    return rank.communication_share if exposed is None or not passes else exposed / passes


def exchange_words(view: RunView) -> str | None:
    """How the run exchanges gradients; None if nothing was chosen."""
    return None if view.exchange is None else describe_exchange(view.exchange.hook, view.exchange.bucket_mib)


def candidate_rows(record: ExchangeRecord) -> list[dict[str, Any]]:
    """A row for each of the fastest candidates, and for what the run has and DDP's defaults."""
    rows = []
    for place, candidate in enumerate(record.candidates):
        chosen = (candidate.hook, candidate.bucket_mib) == (record.hook, record.bucket_mib)
        default = (candidate.hook, candidate.bucket_mib) == ("all_reduce", None)
        if place < MOST_CANDIDATES or chosen or default:
            rows.append(
                {
                    "exchange": HOOK_NAMES[candidate.hook],
                    "bucket size": UNSIZED
                    if candidate.bucket_mib is None
                    else f"{candidate.bucket_mib:g} MiB",
                    "exchanges": exact(candidate.buckets),
                    "bytes of a rank": size(candidate.sent_bytes),
                    "exposed": short(candidate.exposed_s, "s"),
                    "predicted step": short(candidate.step_s, "s"),
                    "role": "the run's" if chosen else "DDP's defaults" if default else "",
                }
            )
    return rows


def transfer_rows(record: ExchangeRecord) -> list[dict[str, Any]]:
    """A row for each timed exchange."""
    return [
        {
            "exchange": HOOK_NAMES[hook],
            "gradients": size(count),
            "took": short(seconds, "s"),
            "processor": short(processor, "s"),
            "rate": f"{size(count / seconds)}/s" if seconds else UNKNOWN,
        }
        for hook, times in record.transfers.items()
        for count, seconds, processor in zip(times.sizes, times.seconds, times.processor_s, strict=True)
    ]


def render(name: str, view: RunView) -> None:
    """Draw the section; nothing for a run of one rank."""
    record, known = view.exchange, [rank for rank in view.ranks if rank.communication_s]
    if record is None and not known:
        return
    st.header("Communication", anchor=False)
    if record is not None:
        st.markdown(escape_markdown(_describe(record)))
    if known:
        bars = stacked_bars(
            [name_rank(view, rank.rank, slow=False) for rank in known],
            [
                {KINDS[kind][0]: spent for kind, spent in (rank.communication_s or {}).items() if kind in KINDS}
                for rank in known
            ],
            dict(KINDS.values()), "s/step", "s", dark=widgets.is_dark(),
        )  # fmt: skip
        alt = "Seconds of a step in communication, by rank"
        widgets.chart(bars, "Communication by kind", f"{name}.communication", key="run-kinds", alt=alt)
        st.caption(
            f"{describe_window(known)} Exposed: the step waits for it, within backward. Overlapped: while the backward "
            "pass runs. Loss all-gather: ranks tell each other their losses; a fast one waits there for a slow one."
        )
    if record is not None:
        saving.table(
            candidate_rows(record), f"{name}.exchanges", key="run-exchanges", alt="Predicted exchanges"
        )
        with st.expander("What was measured between the ranks"):
            saving.table(
                transfer_rows(record), f"{name}.transfers", key="run-transfers", alt="Timed exchanges"
            )


def _describe(record: ExchangeRecord) -> str:
    """What was chosen, and what it brought."""
    words = record.reason[:1].upper() + record.reason[1:]
    if record.after_s is not None and record.before_s:
        before, after = short(record.before_s, "s"), short(record.after_s, "s")
        gain = record.before_s / record.after_s
        ratio = f"{short(gain)} times as fast" if abs(gain - 1) >= NOTABLE_GAIN else "about as fast"
        words += f". Measured: backward pass and exchange {after}, {before} by DDP's defaults ({ratio})"
        words += "; so the run went back to these." if record.reverted else "."
    return words
