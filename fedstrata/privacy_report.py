"""What the record and `fedstrata check` say of noise: ε and δ, of what, and what is not covered."""

from typing import Any

from fedstrata.privacy_settings import PrivacySettings

RESEARCH = "noise for research, which all who have the experiment file can take off: no protection"
UNIT = "one example of a device, replaced by any other"
NOT_COVERED = ("updates", "losses and hits", "numbers of examples")


def privacy_summary(privacy: PrivacySettings) -> dict[str, Any]:
    """The part `privacy` of summary.json."""
    profiles = privacy.profiles
    return {
        "noise": privacy.noise,
        "is_protection": privacy.noise == "protection",
        "is_repeatable": privacy.noise == "research",
        "profiles": None if profiles is None else {**profiles.model_dump(), "unit": UNIT},
        "not_covered": list(NOT_COVERED),
    }


def privacy_lines(privacy: PrivacySettings) -> list[str]:
    """For a person: what is private, in what sense, and what is not."""
    said = []
    if privacy.profiles is not None:
        said.append(f"profiles: ε {privacy.profiles.epsilon:g}, δ {privacy.profiles.delta:g}, once, for {UNIT}")
    said.append(f"not covered: {', '.join(NOT_COVERED)}")
    if privacy.noise == "research":
        said.append(RESEARCH)
    return said
