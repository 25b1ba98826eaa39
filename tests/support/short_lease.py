"""`python -m tests.support.short_lease` is the `fedstrata` command, with leases in buckets of twelve seconds."""

from emulator.commands.main import main
from emulator.sweeps import bucket

bucket.LEASE_S, bucket.RENEW_S, bucket.LOOK_S = 12.0, 1.0, 0.5

if __name__ == "__main__":
    main()
