"""Work groups: competing workers, claims with leases, dead letters."""
