"""What every part of an experiment file is made of."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)
