"""A placement request from a config.json or a model's name, and from nodes or a matrix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from torchsplit_core.placement.request.decoders import decoder, read_config
from torchsplit_core.placement.request.fleets import list_gpus, matrix_of_csv, parse_nodes, tiered_links
from torchsplit_core.placement.request.validate import validate
from torchsplit_core.values import InputFault, PlacementRequest, RooflineThroughput, system_reason
from torchsplit_core.values.placement import Split
from torchsplit_core.values.units import GB, GIB

NETWORK_GIB_PER_S = 12.5 * GB / GIB
"""100 Gbit/s between nodes by default."""


def build_request(
    model: str,
    fleet: str,
    *,
    phase: Literal["prefill", "decode"] = "decode",
    sequence_length: int = 2048,
    batch_size: int = 32,
    max_gpus_per_segment: int = 1,
    communication_efficiency: float = 0.85,
    split: Split = "equal",
    sequences_in_flight: int | None = None,
    prefill_chunk: int | None = None,
    network_gib_per_s: float = NETWORK_GIB_PER_S,
    inside_gib_per_s: float | None = None,
    matrix: str | None = None,
) -> PlacementRequest:
    """A roofline request for a decoder (path of a config.json, or a name) on nodes such as `2x8xH100-SXM5-80GB`.

    `matrix`: the path of a CSV with GB/s from each GPU to each other, instead of tiers. Raises InputFault.
    """
    nodes = parse_nodes(fleet)
    if matrix is None:
        links = tiered_links(nodes, network_gib_per_s=network_gib_per_s, inside_gib_per_s=inside_gib_per_s)
    else:
        links = matrix_of_csv(_text(matrix), matrix)
    if Path(model).suffix == ".json":
        decoder_model = read_config(
            _text(model), model, sequence_length=sequence_length, batch_size=batch_size
        )
    else:
        decoder_model = decoder(model, sequence_length=sequence_length, batch_size=batch_size)
    request = PlacementRequest(
        replace(decoder_model, sequences_in_flight=sequences_in_flight, prefill_chunk=prefill_chunk),
        list_gpus(nodes),
        RooflineThroughput(phase),
        links,
        max_gpus_per_segment=max_gpus_per_segment,
        communication_efficiency=communication_efficiency,
        split=split,
    )
    validate(request)
    return request


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputFault(path, f"cannot be read: {system_reason(error)}", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise InputFault(path, "is not text (UTF-8)", "Check the path.") from error
