"""Words and forms that need a second reading; docs/contribute.md says how to write instead."""

import re

BANNED = re.compile(
    r"\b(whose|likewise|the one before|as many again|hangs? on|(?:is|are) told|(?:is|are) said|in the clear"
    r"|by the wall|stands? in|that of|in vain)\b|(?<=[.;:] )Who\b"
)
