"""Estimates of the slices that were not measured."""

from __future__ import annotations

from torchsplit_core.values import Profile


def fill_slices(profile: Profile) -> Profile:
    return profile
