"""A strict copy of mig-parted's own schema."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

# MigProfile names as mig-parted parses them: an optional compute part, slices, memory, attributes.
ProfileName = Annotated[str, StringConstraints(pattern=r"^(\d+c\.)?\d+g\.\d+gb([+-][a-z.]+)?$")]


class MigConfigSpec(BaseModel):
    """api/spec/v1/spec.go: devices and mig-enabled required, anything else unexpected."""

    model_config = ConfigDict(extra="forbid", strict=True)
    device_filter: str | list[str] | None = Field(default=None, alias="device-filter")
    devices: Literal["all"] | list[Annotated[int, Field(ge=0)]]
    mig_enabled: bool = Field(alias="mig-enabled")
    mig_devices: dict[ProfileName, Annotated[int, Field(ge=1)]] | None = Field(
        default=None, alias="mig-devices"
    )

    @model_validator(mode="after")
    def together(self) -> MigConfigSpec:
        if self.mig_enabled and self.mig_devices is None:
            raise ValueError("missing required field 'mig-devices' when 'mig-enabled' is true")
        if not self.mig_enabled and self.mig_devices:
            raise ValueError("MIG devices included when 'mig-enabled' is false")
        return self


class Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    version: Literal["v1"]
    mig_configs: dict[str, Annotated[list[MigConfigSpec], Field(min_length=1)]] = Field(
        alias="mig-configs", min_length=1
    )
