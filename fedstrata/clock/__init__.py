"""When events happen: links, rates and schedules, on the virtual clock and on the real clock."""
